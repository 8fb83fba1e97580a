"""Problems whose examples are generated, and the reversal toy."""
import hashlib
import random

from tensor2tensor.data_generators import text_encoder
from tensor2tensor.utils import registry

from problems import translation
from rpr.utils.errors import UserError


class Tokens(text_encoder.TokenTextEncoder):
    """A vocabulary that is known beforehand: words between spaces.

    Args:
      tokens: the words, in the order of their ids, which begin after T2T's reserved two.
    """

    def __init__(self, tokens):
        super().__init__(None, vocab_list=list(tokens))

    def encode(self, s):
        """The ids of a line of words; UserError for one that the vocabulary lacks."""
        try:
            return super().encode(s)
        except KeyError as error:
            known = list(self._token_to_id)[self.num_reserved_ids:]
            raise UserError(f"'{s.strip()[:60]}': {error} is not a token of this problem: "
                            f"{' '.join(known[:20])}") from None


class GeneratedProblem(translation.TranslationProblem):
    """Seeded examples over a fixed vocabulary: no file to read, none to learn from the text.

    The sets are disjoint in their sources. A subclass gives `tokens`, `sizes` and `example`.
    """

    tokens = ()
    sizes = {"train": 200000, "dev": 500, "test": 1000}
    train_shards = 1
    vocab_filename = None                             # nothing to keep: the code knows the tokens

    def example(self, rng, split):
        """One example.

        Args:
          rng: a `random.Random`, the only thing by which the examples of a split differ.
          split: "train", "dev" or "test".

        Returns:
          (source, target), as text.
        """
        raise NotImplementedError

    def settings(self):
        """What the examples depend on, beside the code; for the record of datagen."""
        return {"tokens": list(self.tokens), "sizes": self.sizes}

    def text_pairs(self, split, tmp_dir):
        del tmp_dir
        held_out = set()
        for name in ("test", "dev", "train"):
            rng, made = random.Random(f"{self.name} {name}"), 0
            while made < self.sizes[name]:
                pair = self.example(rng, name)
                if pair[0] in held_out:
                    continue
                made += 1
                if name != "train":
                    held_out.add(pair[0])
                if name == split:
                    yield pair
            if name == split:
                return

    def sources(self, tmp_dir):
        del tmp_dir
        text = repr(sorted(self.settings().items())).encode()
        return {"settings": hashlib.sha256(text).hexdigest()}

    def get_or_create_vocab(self, data_dir, tmp_dir, force_get=False):
        del data_dir, tmp_dir, force_get
        return Tokens(self.tokens)


def reverse_repeats(digits):
    """Every second occurrence of a digit becomes X, and the whole is reversed.

    Args:
      digits: a list of words, 0 1 5 9 0 3 5 2 5.

    Returns:
      a list as long, 5 2 X 3 X 9 5 1 0.
    """
    seen, out = {}, []
    for digit in digits:
        seen[digit] = seen.get(digit, 0) + 1
        out.append(digit if seen[digit] % 2 else "X")
    return out[::-1]


@registry.register_problem("toy_reverse_repeats")
class ToyReverseRepeats(GeneratedProblem):
    """10 digits, every even repetition of one replaced by X, reversed; 200,000 seeded examples."""

    tokens = (*"0123456789", "X")
    shortest = longest = 10                           # digits of an example

    def settings(self):
        return {**super().settings(), "lengths": (self.shortest, self.longest)}

    def example(self, rng, split):
        del split
        digits = rng.choices(self.tokens[:10], k=rng.randint(self.shortest, self.longest))
        return " ".join(digits), " ".join(reverse_repeats(digits))


def _register(name, shortest, longest, train, what):
    cls = type(name, (ToyReverseRepeats,), {
        "__doc__": f"toy_reverse_repeats with {what} digits; {train:,} examples.",
        "__module__": __name__, "shortest": shortest, "longest": longest,
        "sizes": {**GeneratedProblem.sizes, "train": train}})
    registry.register_problem(name)(cls)


_register("toy_reverse_repeats_5", 5, 5, 5000, 5)     # to see that something runs
for _length in (11, 12, 15, 20, 40):
    _register(f"toy_reverse_repeats_{_length}", _length, _length, 200000, _length)
_register("toy_reverse_repeats_5_to_10", 5, 10, 200000, "5 to 10")
