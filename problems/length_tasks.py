"""Generated tasks that train on short sequences and test on longer ones.

Each name ends in the longest source in training, in tokens; test sources have up to three times as
many. Lengths are uniform. Copy, reverse, sort, addition and parity are among the tasks of
Kazemnejad et al. 2023 (arXiv:2305.19466, table 1) and Ruoss et al. 2023 (arXiv:2305.16843, table
B.1), counting is a plain form of that of Golovneva et al. 2024 (arXiv:2405.18719, section 5.2).
"""
import random
from typing import Any

from rpr.problems import toy

TRAINED_LENGTHS = (10, 20, 40)
TIMES_LONGER = 3                                      # the longest test source


class LengthTask(toy.GeneratedProblem):
    """A task for sources of any length; a subclass defines `tokens` and `answer`.

    Training and development set have sources of `shortest` to `trained_length` tokens, the test set
    of `shortest` to `tested_length`.
    """

    sizes = {"train": 100000, "dev": 500, "test": 1000}
    shortest, trained_length, tested_length = 5, 20, 60

    def settings(self) -> dict[str, Any]:
        return {**super().settings(),
                "lengths": (self.shortest, self.trained_length, self.tested_length)}

    def example(self, rng: random.Random, split: str) -> tuple[str, str]:
        longest = self.tested_length if split == "test" else self.trained_length
        source = self.source(rng, rng.randint(self.shortest, longest))
        return " ".join(source), " ".join(self.answer(source))

    def source(self, rng: random.Random, length: int) -> list[str]:
        """A random source of `length` tokens."""
        return rng.choices(self.tokens, k=length)

    def answer(self, source: list[str]) -> list[str]:
        """The tokens of the right answer."""
        raise NotImplementedError


class LengthCopy(LengthTask):
    """The digits of the source."""

    tokens = tuple("0123456789")

    def answer(self, source: list[str]) -> list[str]:
        return source


class LengthReverse(LengthCopy):
    """The digits of the source from the last to the first."""

    def answer(self, source: list[str]) -> list[str]:
        return source[::-1]


class LengthSort(LengthCopy):
    """The digits of the source in ascending order."""

    def answer(self, source: list[str]) -> list[str]:
        return sorted(source)


class LengthAddition(LengthTask):
    """The sum of two numbers of equally many digits, such as 0 7 + 4 5: 5 2."""

    tokens = (*"0123456789", "+")

    def source(self, rng: random.Random, length: int) -> list[str]:
        first, second = (rng.choices("0123456789", k=(length - 1) // 2) for _ in range(2))
        return [*first, "+", *second]

    def answer(self, source: list[str]) -> list[str]:
        return list(str(sum(map(int, "".join(source).split("+")))))


class LengthParity(LengthTask):
    """Whether the number of ones among zeros and ones is odd: 0 or 1."""

    tokens = ("0", "1")
    shortest = 12                                     # fewer give too few different sources

    def answer(self, source: list[str]) -> list[str]:
        return [str(source.count("1") % 2)]


class LengthCounting(LengthTask):
    """How often a occurs among a, b, c and d, as a decimal number."""

    tokens = (*"abcd", *"0123456789")

    def source(self, rng: random.Random, length: int) -> list[str]:
        return rng.choices("abcd", k=length)

    def answer(self, source: list[str]) -> list[str]:
        return list(str(source.count("a")))


for _task in (LengthCopy, LengthReverse, LengthSort, LengthAddition, LengthParity, LengthCounting):
    for _trained in TRAINED_LENGTHS:
        if _trained > _task.shortest:
            _tested = TIMES_LONGER * _trained
            toy.register(
                f"length_{_task.__name__.removeprefix('Length').lower()}_{_trained}", _task,
                f"{(_task.__doc__ or '').rstrip('.')}; {_trained} tokens in training, up to "
                f"{_tested} in testing.", trained_length=_trained, tested_length=_tested)
