"""Any pair of line-aligned text files, given by environment variables."""
import hashlib
import itertools
import os

from tensor2tensor.utils import registry

from problems import checks, parallel_text, translation
from problems.checks import SPLITS
from rpr.utils import files
from rpr.utils.errors import UserError

# Of a development or test set that is taken from the training text: at least so many lines and at
# most so many, as far as the text goes; in between, one in a hundred.
_FEWEST, _MOST, _SHARE, _LARGEST_SHARE = 20, 2000, 0.01, 0.1
# The vocabulary is built from at most so many pairs, evenly taken.
_VOCABULARY_PAIRS = 200_000
_SHOWN = 10


@registry.register_problem("translate_text_files")
class TranslateTextFiles(translation.TranslationProblem):
    """Your own line-aligned files: RPR_TEXT_SOURCE, RPR_TEXT_TARGET (and _DEV_, _TEST_).

    | variable | meaning |
    | --- | --- |
    | RPR_TEXT_SOURCE, RPR_TEXT_TARGET | training text: UTF-8, one sentence a line; .gz too |
    | RPR_TEXT_DEV_SOURCE, RPR_TEXT_DEV_TARGET | development set; else some of the training text |
    | RPR_TEXT_TEST_SOURCE, RPR_TEXT_TEST_TARGET | test set; else some of the training text |
    | RPR_TEXT_VOCAB_SIZE | sub-words, about (8192) |

    A set that is not given is taken from the training text by a hash of the source sentence: the
    same text gives the same sets, in whatever order, and equal sentences never fall into two sets.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._shares = None                           # of dev and test, once the text is checked

    @property
    def approx_vocab_size(self):
        return checks.positive_integer_variable("RPR_TEXT_VOCAB_SIZE", 8192)

    @property
    def vocab_filename(self):
        """Without the size: a training need not be told what datagen was told."""
        return "vocab.translate_text_files.subwords"

    def text_pairs(self, split, tmp_dir):
        del tmp_dir
        given = _given()
        shares = self._checked()
        if split != "train" and split in given:
            yield from parallel_text.read_pairs(*given[split])
            return
        for source, target in parallel_text.read_pairs(*given["train"]):
            if split_of(source, shares) == split:
                yield source, target

    def sources(self, tmp_dir):
        del tmp_dir
        self._checked()
        return {f"{split} {side}": files.sha256(path) for split, paths in _given().items()
                for side, path in zip(("source", "target"), paths, strict=True)}

    def generate_text_for_vocab(self, data_dir, tmp_dir):
        self._checked()                               # it counts the lines
        step = -(-self._lines // _VOCABULARY_PAIRS)
        pairs = self.text_pairs("train", tmp_dir)
        yield from itertools.chain.from_iterable(itertools.islice(pairs, 0, None, step))

    def _checked(self):
        if self._shares is None:
            given = _given()
            counts = {split: check_pair(*paths) for split, paths in given.items()}
            self._lines = counts["train"]
            share = held_out_share(self._lines)
            self._shares = {split: share for split in ("dev", "test") if split not in given}
        return self._shares


def held_out_share(lines):
    """The part of a text of so many lines that becomes its development or its test set."""
    return min(max(_SHARE, _FEWEST / lines), _MOST / lines, _LARGEST_SHARE)


def split_of(source, shares):
    """The split that a source sentence falls into.

    Args:
      source: the sentence.
      shares: {"dev": part of all, "test": part of all}; what they leave is for "train".
    """
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    for split, share in shares.items():
        if place < share:
            return split
        place -= share
    return "train"


def _given():
    """{split: (source path, target path)} from the environment."""
    given = {}
    for split in SPLITS:
        prefix = "RPR_TEXT_" + ("" if split == "train" else split.upper() + "_")
        paths = [os.environ.get(prefix + side) for side in ("SOURCE", "TARGET")]
        if any(paths) and not all(paths):
            there, missing = ("SOURCE", "TARGET") if paths[0] else ("TARGET", "SOURCE")
            raise UserError(f"{prefix}{there} is set and {prefix}{missing} is not: give both")
        if all(paths):
            given[split] = paths
        elif split == "train":
            raise UserError("translate_text_files needs RPR_TEXT_SOURCE and RPR_TEXT_TARGET in the "
                            "environment: two text files, one sentence a line")
    return given


def check_pair(source_path, target_path):
    """Checks two files for encoding, empty lines and equal length.

    Returns:
      The number of lines.

    Raises:
      UserError: one line that says all that is wrong, with line numbers.
    """
    found, counts = [], []
    for path in (source_path, target_path):
        try:
            count, bad, empty = _check_file(path)
        except (OSError, EOFError) as error:
            raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
        counts.append(count)
        found += [f"{path}: {len(lines):,} {what} (line {_some(lines)})"
                  for what, lines in (("not UTF-8", bad), ("empty", empty)) if lines]
    if counts[0] != counts[1]:
        found.append(f"{source_path} has {counts[0]:,} lines, {target_path} has {counts[1]:,}")
    elif not counts[0]:
        found.append(f"{source_path} is empty")
    if found:
        raise UserError("; ".join(found))
    return counts[0]


def _check_file(path):
    count, bad, empty = 0, [], []
    with parallel_text.open_bytes(path) as lines:
        for count, line in enumerate(lines, start=1):
            try:
                if not line.decode("utf-8").strip():
                    empty.append(count)
            except UnicodeDecodeError:
                bad.append(count)
    return count, bad, empty


def _some(lines):
    return ", ".join(map(str, lines[:_SHOWN])) + (", ..." if len(lines) > _SHOWN else "")
