"""Problems with generated examples, and the reversal toy."""
import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tensor2tensor.data_generators import text_encoder
from tensor2tensor.utils import registry

from rpr.problems import checks, translation
from rpr.utils.errors import UserError
from rpr.utils.interfaces import EXAMPLES


class Tokens(text_encoder.TokenTextEncoder):
    """A fixed vocabulary of words, separated by spaces in the text.

    Their ids, in this order, follow T2T's two reserved ids.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        super().__init__(None, vocab_list=list(tokens))

    def encode(self, s: str) -> list[int]:
        """The ids of a line of words; raises UserError for an unknown word."""
        try:
            return super().encode(s)
        except KeyError as error:
            known = list(self._token_to_id)[self.num_reserved_ids:]
            raise UserError(f"'{s.strip()[:60]}': {error} is not a token of this problem: "
                            f"{' '.join(known[:20])}") from None


PLACE = "_"                      # in a source: where an encoder without a decoder answers
MOST_REPEATS = 100                                    # sources of other splits per example
_COMPARED = 100                                       # examples of each split, in the record


class GeneratedProblem(translation.TranslationProblem):
    """Random examples from a fixed seed over a fixed vocabulary: there are no files to read.

    No source occurs in two splits. A subclass defines `tokens`, `sizes` and `example`.
    """

    tokens: tuple[str, ...] = ()
    sizes = {"train": 200000, "dev": 500, "test": 1000}
    train_shards = 1
    vocab_filename = None                             # the vocabulary is in the code

    def example(self, rng: random.Random, split: str) -> tuple[str, str]:
        """Generates one example, (source, target) as text, from random numbers alone."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """The settings that the examples depend on, for the record of data generation."""
        return {"tokens": list(self.tokens), "sizes": self.sizes}

    def text_pairs(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        del tmp_dir
        self.check_attributes()
        held_out: set[str] = set()
        for name in ("test", "dev", "train"):
            rng, made, refused = random.Random(f"{self.name} {name}"), 0, 0
            while made < self.sizes[name]:
                pair = self._checked_example(rng, name)
                if pair[0] in held_out:
                    refused += 1
                    if refused > MOST_REPEATS * self.sizes[name]:
                        raise UserError(f"{self.name}: too few different sources for {name}, since "
                                        "no source occurs in two splits: make them longer, or "
                                        "lower `sizes`")
                    continue
                made += 1
                if name != "train":
                    held_out.add(pair[0])
                if name == split:
                    yield pair
            if name == split:
                return

    def sources(self, tmp_dir: str) -> dict[str, str]:
        del tmp_dir
        self.check_attributes()
        first, again = (repr({
            split: [self._checked_example(rng, split) for _ in range(_COMPARED)]
            for split in checks.SPLITS for rng in (random.Random(f"{self.name} {split}"),)})
            for _ in range(2))
        if first != again:
            raise UserError(f"{self.name}: the same random numbers gave two different examples; "
                            "take them from the `rng` that `example` is given")
        return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in (
            ("settings", repr(sorted(self.settings().items()))), (EXAMPLES, first))}

    def check_attributes(self) -> None:
        """Refuses class attributes from which no examples can be made."""
        lacking = [split for split in checks.SPLITS if split not in self.sizes]
        if lacking:
            raise UserError(f"{self.name}: sizes = {self.sizes} lacks {', '.join(lacking)}")
        if not isinstance(self.tokens, Sequence):
            # The order of a set differs between processes, and with it the ids of the words.
            raise UserError(f"{self.name}: tokens = {self.tokens!r:.80}: must be a tuple")
        for place, token in enumerate(self.tokens):
            if not isinstance(token, str) or token.split() != [token]:
                raise UserError(f"{self.name}: tokens: {token!r} is not a text without white space")
            if token in self.tokens[:place]:
                raise UserError(f"{self.name}: tokens: {token!r} occurs twice")

    def _checked_example(self, rng: random.Random, split: str) -> tuple[str, str]:
        pair: Any = self.example(rng, split)
        if not (isinstance(pair, tuple) and len(pair) == 2
                and all(isinstance(text, str) and text.strip() for text in pair)):
            raise UserError(f"{self.name}: the example {pair!r:.80} is not (source, target), two "
                            "texts that are not empty; for no answer, add a token that says so")
        return pair

    def get_or_create_vocab(self, data_dir: str, tmp_dir: str,
                            force_get: bool = False) -> Tokens:
        del data_dir, tmp_dir, force_get
        return Tokens(self.tokens)


def register(name: str, base: type[GeneratedProblem], doc: str, **attributes: Any) -> None:
    """Registers a problem like another one with other values of its class attributes."""
    registry.register_problem(name)(
        type(name, (base,), {"__doc__": doc, "__module__": base.__module__, **attributes}))


def reverse_repeats(digits: Sequence[str]) -> list[str]:
    """Replaces every second occurrence of a digit by X and reverses the sequence.

    0 1 5 9 0 3 5 2 5 becomes 5 2 X 3 X 9 5 1 0.
    """
    counts: dict[str, int] = {}
    result = []
    for digit in digits:
        counts[digit] = counts.get(digit, 0) + 1
        result.append(digit if counts[digit] % 2 else "X")
    return result[::-1]


@registry.register_problem("toy_reverse_repeats")
class ToyReverseRepeats(GeneratedProblem):
    """10 digits, every second occurrence of a digit replaced by X, reversed; 200,000 examples."""

    tokens = (*"0123456789", "X")
    shortest = longest = 10                           # digits in an example

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "lengths": (self.shortest, self.longest)}

    def example(self, rng: random.Random, split: str) -> tuple[str, str]:
        del split
        digits = rng.choices(self.tokens[:10], k=rng.randint(self.shortest, self.longest))
        return " ".join(digits), " ".join(reverse_repeats(digits))


def _register(lengths: str, shortest: int, longest: int, train: int = 200000) -> None:
    register(f"toy_reverse_repeats_{lengths.replace(' ', '_')}", ToyReverseRepeats,
             f"toy_reverse_repeats with {lengths} digits; {train:,} examples.",
             shortest=shortest, longest=longest, sizes={**GeneratedProblem.sizes, "train": train})


_register("5", 5, 5, 5000)                            # small, for a quick try
for _length in (11, 12, 15, 20, 40):
    _register(str(_length), _length, _length)
_register("5 to 10", 5, 10)
