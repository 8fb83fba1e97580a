"""Generated tasks that train on short sequences and test on longer ones.

Each name ends in the longest source in training, in tokens; test sources have up to three times as
many. Lengths are drawn uniformly; a task that cannot fill a length takes the next shorter one, and
scan ends before the first command that does not fit. Where there are few sources of a length, the
test set takes many of them and training has fewer.

- Copy, reverse, sort, addition and parity are among the tasks of Kazemnejad et al. 2023
  (arXiv:2305.19466, table 1). rsc, rdc, rsc2x, cmc, cmc2x, mc, mc2x and mcrv are forms of its
  tasks, named as in github.com/McGill-NLP/length-generalization; so are sum and polynomial. scan
  has the commands of Lake and Baroni 2018 (arXiv:1711.00350), any number of them in one source,
  joined by "and"; "after" does not occur.
- counting is a plain form of that of Golovneva et al. 2024 (arXiv:2405.18719, section 5.2),
  variables1, variables3 and variables5 are that with so many variables.
- mqar is multi-query associative recall (Arora et al. 2024, arXiv:2312.04927).
- alternating3 to alternating6 ask which prefixes are in the language of so many alternating blocks,
  as Yang et al. 2025 do (arXiv:2506.16055, github.com/pentagonalize/CRASP_depth).
"""
import itertools
import random
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rpr.problems import toy
from rpr.utils.errors import UserError

TRAINED_LENGTHS = (10, 20, 40)
TIMES_LONGER = 3                                      # the longest test source


class LengthTask(toy.GeneratedProblem):
    """A task for sources of any length; a subclass defines `tokens` and `answer`.

    `answer` turns the tokens of a source into those of the right answer. Training and development
    set have sources of `shortest` to `trained_length` tokens, the test set of `shortest` to
    `tested_length`.
    """

    sizes = {"train": 100000, "dev": 500, "test": 1000}
    shortest, trained_length, tested_length = 5, 20, 60
    answer: Callable[[list[str]], list[str]]

    def source(self, rng: random.Random, length: int) -> list[str]:
        """A random source of `length` tokens."""
        return rng.choices(self.tokens, k=length)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(),
                "lengths": (self.shortest, self.trained_length, self.tested_length)}

    def check_attributes(self) -> None:
        super().check_attributes()
        if self.shortest > min(self.trained_length, self.tested_length):
            raise UserError(f"{self.name}: shortest = {self.shortest}: must be at most "
                            f"trained_length = {self.trained_length} and tested_length = "
                            f"{self.tested_length}")

    def example(self, rng: random.Random, split: str) -> tuple[str, str]:
        longest = self.tested_length if split == "test" else self.trained_length
        length = rng.randint(self.shortest, longest)
        source = self._tokens(self.source(rng, length), f"source(rng, {length})")
        text = " ".join(source)                       # `answer` may sort the list itself
        return text, " ".join(self._tokens(self.answer(source), f"answer({text.split()})"))

    def _tokens(self, given: Any, call: str) -> list[str]:
        """The tokens that `call`, a function of the task, returned; refuses anything else."""
        tokens = [*given] if isinstance(given, Iterable) else [given]
        if not all(isinstance(token, str) for token in tokens):
            raise UserError(f"{self.name}: {call:.80} gave {given!r:.80}, not a list of tokens")
        return tokens


_SYMBOLS = tuple(string.digits + string.ascii_letters + string.punctuation)
_NEXT = "NEXT"
_KEYS, _VALUES = (tuple(f"{kind}{number}" for number in range(64)) for kind in "kv")
_VERBS = {"walk": ["WALK"], "look": ["LOOK"], "run": ["RUN"], "jump": ["JUMP"], "turn": []}
_TIMES = {"twice": 2, "thrice": 3}


def _register(name: str, doc: str, tokens: Iterable[str],
              source: Callable[[random.Random, int], list[str]],
              answer: Callable[[list[str]], list[str]], shortest: int = LengthTask.shortest,
              least_trained: int = 10) -> None:
    """Registers a task for each of the trained lengths that are at least `least_trained`."""
    for trained in TRAINED_LENGTHS:
        if trained >= least_trained:
            tested = TIMES_LONGER * trained
            toy.register(
                f"length_{name}_{trained}", LengthTask,
                f"{doc}; {trained} tokens in training, up to {tested} in testing.",
                tokens=tuple(tokens), source=staticmethod(source), answer=staticmethod(answer),
                shortest=shortest, trained_length=trained, tested_length=tested)


def _any_of(symbols: Sequence[str]) -> Callable[[random.Random, int], list[str]]:
    """Sources of independent symbols."""
    return lambda rng, length: rng.choices(symbols, k=length)


def _two_numbers(rng: random.Random, length: int) -> list[str]:
    first, second = (rng.choices(string.digits, k=(length - 1) // 2) for _ in range(2))
    return [*first, "+", *second]


def _sum(source: list[str]) -> list[str]:
    return list(str(sum(map(int, "".join(source).split("+")))))


def _sum_backwards(source: list[str]) -> list[str]:
    return _sum(source[::-1])[::-1]


def _two(rng: random.Random, length: int) -> list[str]:
    first, other = rng.sample(_SYMBOLS, 2)
    return [first, *[other] * (length - 1)]


def _polynomial(rng: random.Random, length: int) -> list[str]:
    terms = ((str(rng.randint(-3, 3)), rng.choice("abcd")) for _ in range((length - 1) // 2))
    return [str(rng.randint(-2, 2)), *itertools.chain(*terms)]


def _polynomial_value(source: list[str]) -> list[str]:
    x, *terms = source
    return [str(sum(int(factor) * int(x) ** "abcd".index(power) for factor, power
                    in zip(terms[::2], terms[1::2], strict=True)) % 10)]


def _scan_source(rng: random.Random, length: int) -> list[str]:
    """As many random commands as fit into so many tokens."""
    source: list[str] = []
    while True:
        verb = rng.choice([*_VERBS])
        way = rng.choice(["left", "right", "opposite left", "opposite right", "around left",
                          "around right", *([""] if verb != "turn" else [])])
        command = f"{verb} {way} {rng.choice(['', *_TIMES])}".split()
        if len(source) + len(command) > length:
            return source[:-1]
        source += [*command, "and"]


def _scan_actions(source: list[str]) -> list[str]:
    actions: list[str] = []
    for command in " ".join(source).split(" and "):
        words = command.split()
        turn = [word.upper() for word in words if word in ("left", "right")]
        turns, repeats = (2, 1) if "opposite" in words else (1, 4) if "around" in words else (1, 1)
        actions += (turn * turns + _VERBS[words[0]]) * repeats * _TIMES.get(words[-1], 1)
    return actions


def _passkey(rng: random.Random, length: int) -> list[str]:
    letters, at = rng.choices(string.ascii_lowercase, k=length - 3), rng.randint(0, length - 3)
    return letters[:at] + rng.choices(string.digits, k=3) + letters[at:]


def _mqar_source(rng: random.Random, length: int) -> list[str]:
    keys, values = (rng.sample(kind, (length - 1) // 3) for kind in (_KEYS, _VALUES))
    pairs = itertools.chain(*zip(keys, values, strict=True))
    return [*pairs, toy.PLACE, *rng.sample(keys, len(keys))]


def _mqar_values(source: list[str]) -> list[str]:
    end = source.index(toy.PLACE)
    value = dict(zip(source[:end:2], source[1:end:2], strict=True))
    return [toy.PLACE, *(value[key] for key in source[end + 1:])]


def _variables(names: str) -> None:
    steps = [*(f"{name}{change}" for name in names for change in ("=0", "++")), "pass"]
    questions = [f"{name}?" for name in names]

    def value(source: list[str]) -> list[str]:
        count, name = 0, source[-2][0]
        for step in source[:-2]:
            count = 0 if step == f"{name}=0" else count + (step == f"{name}++")
        return [str(count)]

    _register(f"variables{len(names)}", "The value of a variable, after steps that set one to 0, "
              "add 1 to one, or pass", (toy.PLACE, *steps, *questions, *map(str, range(120))),
              lambda rng, n: [*rng.choices(steps, k=n - 2), rng.choice(questions), toy.PLACE],
              value)


def _alternating(blocks: int) -> None:
    def source(rng: random.Random, length: int) -> list[str]:
        starts = {*rng.sample(range(1, length - 1), blocks - 1)}
        block = itertools.accumulate(int(place in starts) for place in range(length - 1))
        return [toy.PLACE, *("ab"[index % 2] for index in block)]

    def answer(source: list[str]) -> list[str]:
        change = (int(a != b) for a, b in itertools.pairwise(source))
        return [str(int(count == blocks)) for count in itertools.accumulate(change, initial=0)]

    _register(f"alternating{blocks}", f"For each prefix, whether a and b alternate in {blocks} "
              "blocks", toy.PLACE + "ab01", source, answer, shortest=12, least_trained=20)


_register("copy", "The digits of the source", string.digits, _any_of(string.digits),
          lambda source: source)
_register("reverse", "The digits of the source from the last to the first", string.digits,
          _any_of(string.digits), lambda source: source[::-1])
_register("sort", "The digits of the source in ascending order", string.digits,
          _any_of(string.digits), sorted)
_register("addition", "The sum of two numbers of equally many digits, such as 0 7 + 4 5: 5 2",
          string.digits + "+", _two_numbers, _sum)
_register("raddition", "The same with all numbers backwards, from the lowest digit, such as 7 0 + "
          "5 4: 2 5", string.digits + "+", _two_numbers, _sum_backwards)
# Shorter sources of two symbols give too few different ones; so do those of one symbol.
_register("parity", "Whether the number of ones among zeros and ones is odd: 0 or 1", "01",
          _any_of("01"), lambda source: [str(source.count("1") % 2)], shortest=12, least_trained=20)
_register("counting", "How often a occurs among a, b, c and d, as a decimal number",
          "abcd" + string.digits, _any_of("abcd"), lambda source: list(str(source.count("a"))))
_register("rsc", "One symbol, as often as in the source", _SYMBOLS,
          lambda rng, n: [rng.choice(_SYMBOLS)] * n, lambda source: source, least_trained=20)
_register("rsc2x", "One symbol, twice as often as in the source", _SYMBOLS,
          lambda rng, n: [rng.choice(_SYMBOLS)] * n, lambda source: source * 2, least_trained=20)
_register("rdc", "The first symbol, as often as another one follows it", _SYMBOLS, _two,
          lambda source: source[:1] * (len(source) - 1))
_register("cmc", "The source of 94 symbols", _SYMBOLS, _any_of(_SYMBOLS), lambda source: source)
_register("cmc2x", "The source of 94 symbols, twice", (*_SYMBOLS, _NEXT), _any_of(_SYMBOLS),
          lambda source: [*source, _NEXT, *source])
_register("mc", "The source of 94 symbols, backwards", _SYMBOLS, _any_of(_SYMBOLS),
          lambda source: source[::-1])
_register("mc2x", "The source of 94 symbols, backwards, twice", (*_SYMBOLS, _NEXT),
          _any_of(_SYMBOLS), lambda source: [*source[::-1], _NEXT, *source[::-1]])
_register("mcrv", "The source of 94 symbols, backwards, then as it is", (*_SYMBOLS, _NEXT),
          _any_of(_SYMBOLS), lambda source: [*source[::-1], _NEXT, *source])
_register("sum", "The last digit of the sum of digits from 1 to 9", "1234567890",
          _any_of("123456789"), lambda source: [str(sum(map(int, source)) % 10)])
_register("polynomial", "The value modulo 10 of terms c x^0 (a) to c x^3 (d), after x",
          (*map(str, range(-3, 10)), *"abcd"), _polynomial, _polynomial_value)
_register("scan", "The actions of SCAN commands, joined by and",
          (*_VERBS, *_TIMES, "and", "opposite", "around", "left", "right", "WALK", "LOOK", "RUN",
           "JUMP", "LEFT", "RIGHT"), _scan_source, _scan_actions)
_register("mqar", "The values of keys in another order, after pairs of key and value",
          (toy.PLACE, *_KEYS, *_VALUES), _mqar_source, _mqar_values)
_register("passkey", "The three digits among letters", string.ascii_lowercase + string.digits,
          _passkey, lambda source: [*filter(str.isdigit, source)])
for _names in ("a", "abc", "abcde"):
    _variables(_names)
for _count in (3, 4, 5, 6):
    _alternating(_count)
