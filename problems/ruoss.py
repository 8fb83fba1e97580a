"""The 15 tasks of Ruoss et al. 2023 (arXiv:2305.16843, appendix B.1), by Chomsky level.

A source of n tokens is followed by the places of its answer, `_`, which an encoder without a
decoder answers in (hparam `answer_symbol`). In training n is 1 to 40, as in the paper. Development
and test set have no source of fewer than 21 tokens, as there would be too few for training; test
sources have up to 100. Lengths are uniform.

The tasks are those of github.com/google-deepmind/neural_networks_chomsky_hierarchy: the same
sources with the same probabilities, up to the names of tokens. Its answers to stack manipulation,
addition and multiplication are padded with zeros after their end, which the loss counts there; here
they end.
"""
import math
import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rpr.problems import toy

TRAINED_LENGTH, TESTED_LENGTH, SHORTEST_TESTED = 40, 100, 21
MODULUS = 5

Example = tuple[Iterable[str], Iterable[str]]                # source and answer


class Task(NamedTuple):
    tokens: str                                              # of sources and answers
    places: Callable[[int], int]                             # for the answer to n tokens
    make: Callable[[random.Random, int], Example]            # from n tokens


TASKS: dict[str, Task] = {}


def _task(tokens: str, places: Callable[[int], int] = lambda n: 1) -> Callable:
    """Enters a function (rng, n) -> source and answer in the table."""
    def enter(make: Callable[[random.Random, int], Example]) -> Callable:
        TASKS[make.__name__] = Task(tokens, places, make)
        return make
    return enter


def _bits(rng: random.Random, n: int) -> list[str]:
    return rng.choices("01", k=n)


@_task("01")
def even_pairs(rng: random.Random, n: int) -> Example:
    """Whether the number of 01 and 10 among neighbours is odd."""
    bits = _bits(rng, n)
    return bits, str(sum(a != b for a, b in zip(bits, bits[1:], strict=False)) % 2)


@_task("01234+-*")
def modular_arithmetic(rng: random.Random, n: int) -> Example:
    """The value modulo 5 of an expression without brackets; n is odd, or one less."""
    text = rng.choice("01234") + "".join(
        rng.choice("+-*") + rng.choice("01234") for _ in range((n - 1) // 2))
    return text, str(eval(text) % MODULUS)                   # digits and operators alone


@_task("01")
def parity_check(rng: random.Random, n: int) -> Example:
    """Whether the number of ones is odd."""
    bits = _bits(rng, n)
    return bits, str(bits.count("1") % 2)


@_task("01234")
def cycle_navigation(rng: random.Random, n: int) -> Example:
    """The place on a circle of 5 after steps back (0), none (1) and forward (2)."""
    steps = rng.choices("012", k=n)
    return steps, str(sum(int(step) - 1 for step in steps) % MODULUS)


@_task("01abP.", lambda n: n + 1)
def stack_manipulation(rng: random.Random, n: int) -> Example:
    """A stack from its top, after pushing 0 (a), pushing 1 (b) and popping (P) on one of bits."""
    if n == 1:
        bit = rng.choice("01")
        return bit, bit + "."
    stack = _bits(rng, rng.randint(1, n - 1))
    actions = rng.choices("Pab", k=n - len(stack))
    source = [*stack, *actions]
    for action in actions:
        if action != "P":
            stack.append("01"["ab".index(action)])
        elif stack:
            stack.pop()
    return source, [*reversed(stack), "."]


@_task("01", lambda n: n)
def reverse_string(rng: random.Random, n: int) -> Example:
    """The bits from the last to the first."""
    bits = _bits(rng, n)
    return bits, bits[::-1]


def _expression(rng: random.Random, n: int, operators: str) -> str:
    """A random expression with brackets of n tokens."""
    if n < 5:
        form = ("{}", "-{}", "({})", "(-{})")[n - 1]
        return form.format(rng.randrange(MODULUS))
    left = rng.randint(1, n - 4)
    first, second = (_expression(rng, length, operators) for length in (left, n - 3 - left))
    return f"({first}{rng.choice(operators)}{second})"


@_task("01234+-*()")
def modular_arithmetic_brackets(rng: random.Random, n: int) -> Example:
    """The value modulo 5 of an expression with brackets."""
    text = _expression(rng, n, "+-*")
    return text, str(eval(text) % MODULUS)


@_task("01234+-()x=")
def solve_equation(rng: random.Random, n: int) -> Example:
    """The digit x of an equation modulo 5, whose other side is a digit."""
    if n < 3:
        return "0" * n, "0"
    text = _expression(rng, n - 2, "+-")
    at = rng.randrange(len(text))
    while not text[at].isdigit():
        at = (at + 1) % len(text)
    return f"{text[:at]}x{text[at + 1:]}={eval(text) % MODULUS}", text[at]


@_task("01", lambda n: 2 * n)
def duplicate_string(rng: random.Random, n: int) -> Example:
    """The bits, twice."""
    bits = _bits(rng, n)
    return bits, bits * 2


@_task("01?-")
def missing_duplicate(rng: random.Random, n: int) -> Example:
    """The bit that is missing (?) where bits occur twice; - follows if n is odd."""
    if n == 1:
        return "1", "1"
    bits = _bits(rng, n // 2) * 2
    at = rng.randrange(len(bits))
    return [*bits[:at], "?", *bits[at + 1:], *"-"[:n % 2]], bits[at]


@_task("01", lambda n: n)
def odds_first(rng: random.Random, n: int) -> Example:
    """The bits with even numbers (the second, fourth and so on), then the others."""
    bits = _bits(rng, n)
    return bits, bits[1::2] + bits[::2]


def _two_numbers(rng: random.Random, n: int, sign: str) -> tuple[list[str], list[int]]:
    """Two numbers above 0 in bits, the lowest first, with a sign between them: n tokens."""
    first = rng.randint(1, n - 2)
    lengths = (first, n - 1 - first)
    numbers = [rng.randint(1, 2 ** length - 1) for length in lengths]
    texts = (f"{number:0{length}b}"[::-1]
             for number, length in zip(numbers, lengths, strict=True))
    return [*sign.join(texts)], numbers


def _lowest_first(number: int) -> str:
    return f"{number:b}"[::-1] + "."


@_task("01+.", lambda n: n + 1)
def binary_addition(rng: random.Random, n: int) -> Example:
    """The sum of two binary numbers, all with the lowest bit first; one number if n < 3."""
    if n < 3:
        number = rng.randrange(2 ** n - 1)
        return f"{number:0{n}b}"[::-1], _lowest_first(number)
    source, (first, second) = _two_numbers(rng, n, "+")
    return source, _lowest_first(first + second)


@_task("01*.", lambda n: n)
def binary_multiplication(rng: random.Random, n: int) -> Example:
    """The product of two binary numbers, all with the lowest bit first; n - 1 zeros if n < 3."""
    if n < 3:
        return f"{rng.randrange(2 ** n - 1):0{n}b}"[::-1], "0" * (n - 1) + "."
    source, (first, second) = _two_numbers(rng, n, "*")
    return source, _lowest_first(first * second)


@_task("01", lambda n: -(-n // 2))
def compute_sqrt(rng: random.Random, n: int) -> Example:
    """The square root of a binary number, rounded down, in half as many bits."""
    number = rng.randint(1, 2 ** n - 1)
    return f"{number:0{n}b}", f"{math.isqrt(number):0{-(-n // 2)}b}"


@_task("01234", lambda n: n)
def bucket_sort(rng: random.Random, n: int) -> Example:
    """The digits in ascending order."""
    digits = rng.choices("01234", k=n)
    return digits, sorted(digits)


class RuossTask(toy.GeneratedProblem):
    """A task of the table; `trained_length` and `tested_length` count the places of the answer."""

    sizes = {"train": 500000, "dev": 500, "test": 4000}
    task: Task

    def settings(self) -> dict[str, Any]:
        return {**super().settings(),
                "lengths": (TRAINED_LENGTH, TESTED_LENGTH, SHORTEST_TESTED)}

    def example(self, rng: random.Random, split: str) -> tuple[str, str]:
        n = rng.randint(1 if split == "train" else SHORTEST_TESTED,
                        TESTED_LENGTH if split == "test" else TRAINED_LENGTH)
        source, answer = self.task.make(rng, n)
        return " ".join([*source, *[toy.PLACE] * self.task.places(n)]), " ".join(answer)


for _name, _entry in TASKS.items():
    _doc = (_entry.make.__doc__ or "").strip().removesuffix(".")
    toy.register(f"ruoss_{_name}", RuossTask,
                 f"{_doc} (Ruoss et al. 2023); {TRAINED_LENGTH} tokens in training, up to "
                 f"{TESTED_LENGTH} in testing.",
                 task=_entry, tokens=(toy.PLACE, *_entry.tokens),
                 trained_length=TRAINED_LENGTH + _entry.places(TRAINED_LENGTH),
                 tested_length=TESTED_LENGTH + _entry.places(TESTED_LENGTH))
