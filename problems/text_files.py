"""Any pair of line-aligned text files, given by environment variables."""
import array
import functools
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tensor2tensor.data_generators import text_problems
from tensor2tensor.utils import registry

from rpr.problems import checks, parallel_text, translation
from rpr.problems.checks import SPLITS
from rpr.utils import console, files
from rpr.utils.errors import UserError

# Size of a development or test set that is taken from the training text: 1%, but at least 20 and at
# most 2,000 lines, and at most a tenth of the text. Equal sources stay together and can exceed it.
_SHARE, _FEWEST, _MOST, _LARGEST_SHARE = 0.01, 20, 2000, 0.1
# The vocabulary is built from at most this many pairs, evenly sampled.
_VOCABULARY_PAIRS = 200_000
_SHOWN_LINES = 10


class SplitText:
    """Training text of which some pairs, chosen by a hash of the source, are held out.

    `shares` are those of the held-out splits, such as {"dev": 0.01, "test": 0.01}. Their pairs (a
    few thousand) are kept in memory by a pass over the text, so that it is not read again for them.
    """

    def __init__(self, source_path: str, target_path: str, shares: Mapping[str, float]) -> None:
        self._paths, self.shares = (source_path, target_path), shares
        self._held_out: dict[str, list[tuple[str, str]]] | None = None

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the pairs of "train" or of a held-out split."""
        if split == "train":
            yield from self._training_pairs()
            return
        if self._held_out is None:
            for _ in self._training_pairs():
                pass
        assert self._held_out is not None
        yield from self._held_out[split]

    def _training_pairs(self) -> Iterator[tuple[str, str]]:
        held_out: dict[str, list[tuple[str, str]]] = {split: [] for split in self.shares}
        lines = 0
        for pair in parallel_text.read_pairs(*self._paths):
            lines += 1
            split = split_of(pair[0], self.shares)
            if split == "train":
                yield pair
            else:
                held_out[split].append(pair)
        for split, pairs in held_out.items() if self._held_out is None else ():
            # The number of pairs varies by chance, in short text by much.
            if len(pairs) > lines * max(_LARGEST_SHARE, 2 * self.shares[split]):
                console.say(f"{self._paths[0]}: warning: {len(pairs):,} of {lines:,} lines are "
                            f"held out as the {split} set, because equal sources stay together",
                            style="yellow")
        self._held_out = held_out


def held_out_share(lines: int) -> float:
    """The share of a text of so many lines that becomes its development or its test set."""
    return min(max(_SHARE, _FEWEST / lines), _MOST / lines, _LARGEST_SHARE)


def split_of(source: str, shares: Mapping[str, float]) -> str:
    """The split of a source sentence; what the shares leave is "train"."""
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    for split, share in shares.items():
        if position < share:
            return split
        position -= share
    return "train"


@registry.register_problem("translate_text_files")
class TranslateTextFiles(translation.TranslationProblem):
    """Your own line-aligned files: RPR_TEXT_SOURCE, RPR_TEXT_TARGET (and _DEV_, _TEST_).

    docs/data.md has the variables. A set that is not given is taken from the training text by a
    hash of the source sentence. The same text gives the same sets in any order, and equal sources
    are never in two sets.
    """

    has_edges = False                                 # after the words of a source

    @property
    def approx_vocab_size(self) -> int:
        return checks.positive_integer_variable("RPR_TEXT_VOCAB_SIZE", 8192)

    @property
    def vocab_filename(self) -> str:
        """Without the size, so that training needs no RPR_TEXT_VOCAB_SIZE."""
        return "vocab.translate_text_files.subwords"

    def text_pairs(self, split: str, tmp_dir: str) -> Iterator[tuple[str, str]]:
        del tmp_dir
        if split != "train" and split in self._checked:
            yield from parallel_text.read_pairs(*self._given_paths()[split])
        else:
            yield from self._training_text.pairs(split)

    def sources(self, tmp_dir: str) -> dict[str, str]:
        del tmp_dir
        return {f"{split} {side}": digest for split, pair in self._checked.items()
                for side, digest in zip(("source", "target"), pair.digests, strict=True)}

    def vocabulary_text(self, tmp_dir: str) -> Iterator[str]:
        step = -(-self._checked["train"].lines // _VOCABULARY_PAIRS)
        for number, pair in enumerate(self.text_pairs("train", tmp_dir)):
            if number % step == 0:
                yield from pair

    @functools.cached_property
    def _checked(self) -> dict[str, "CheckedPair"]:
        return {split: check_pair(*paths, self.has_edges)
                for split, paths in self._given_paths().items()}

    @functools.cached_property
    def _training_text(self) -> SplitText:
        share = held_out_share(self._checked["train"].lines)
        return SplitText(*self._given_paths()["train"], {
            split: share for split in ("dev", "test") if split not in self._checked})

    def _given_paths(self) -> dict[str, tuple[str, str]]:
        """{split: (source path, target path)} from the environment."""
        given = {}
        for split in SPLITS:
            prefix = "RPR_TEXT_" + ("" if split == "train" else split.upper() + "_")
            source, target = (os.environ.get(prefix + side) for side in ("SOURCE", "TARGET"))
            if source and target:
                given[split] = (source, target)
            elif source or target:
                present, missing = ("SOURCE", "TARGET") if source else ("TARGET", "SOURCE")
                raise UserError(f"{prefix}{present} is set and {prefix}{missing} is not: set both")
            elif split == "train":
                raise UserError("translate_text_files needs RPR_TEXT_SOURCE and RPR_TEXT_TARGET in "
                                "the environment: two text files, one sentence a line")
        return given


@registry.register_problem("lm_text_files")
class LmTextFiles(TranslateTextFiles):
    """A language model of your own text: RPR_TEXT_SOURCE, one document a line; sub-words.

    The variables are those of translate_text_files, without the ones of the target side.
    """

    has_inputs = False

    @property
    def vocab_filename(self) -> str:
        return f"vocab.{self.name}.subwords"

    def hparams(self, defaults: Any, unused_model_hparams: Any) -> None:
        super().hparams(defaults, unused_model_hparams)
        defaults.loss_multiplier = 1.0                # T2T doubles the loss of characters

    def sources(self, tmp_dir: str) -> dict[str, str]:
        return {name: digest for name, digest in super().sources(tmp_dir).items()
                if name.endswith(" source")}

    def vocabulary_text(self, tmp_dir: str) -> Iterator[str]:
        yield from itertools.islice(super().vocabulary_text(tmp_dir), 0, None, 2)

    def _given_paths(self) -> dict[str, tuple[str, str]]:
        paths = {split: os.environ.get(f"RPR_TEXT_{part}SOURCE") for split, part in (
            ("train", ""), ("dev", "DEV_"), ("test", "TEST_"))}
        if not paths["train"]:
            raise UserError(f"{self.name} needs RPR_TEXT_SOURCE in the environment: a text file, "
                            "one document a line")
        return {split: (path, path) for split, path in paths.items() if path}


@registry.register_problem("lm_text_files_characters")
class LmTextFilesCharacters(LmTextFiles):
    """A language model of your own text: RPR_TEXT_SOURCE, one document a line; bytes of UTF-8."""

    vocab_type = text_problems.VocabType.CHARACTER


class CheckedPair(NamedTuple):
    """Two line-aligned files that were checked: the lines of each, and their SHA-256 as stored."""
    lines: int
    digests: tuple[str, str]


def check_pair(source_path: str, target_path: str, has_edges: bool = False) -> CheckedPair:
    """Checks two files, which may be one, for encoding, empty lines and equal length.

    With `has_edges`, source lines without words before the first tab are refused as well. The error
    is one line that names everything that is wrong, with line numbers.
    """
    checked = {path: _check_file(path, has_edges and path == source_path)
               for path in dict.fromkeys((source_path, target_path))}
    (lines, digest, _), (target_lines, target_digest, _) = (
        checked[path] for path in (source_path, target_path))
    faults = [fault for *_, found in checked.values() for fault in found]
    if lines != target_lines:
        faults.append(f"{source_path} has {lines:,} lines, but {target_path} has "
                      f"{target_lines:,}")
    elif not lines:
        faults.append(f"{source_path} is empty")
    if faults:
        raise UserError("; ".join(faults))
    return CheckedPair(lines, (digest, target_digest))


def _check_file(path: str, has_edges: bool) -> tuple[int, str, list[str]]:
    """The number of lines of a file, its SHA-256, and what is wrong with it."""
    count, faulty = 0, {fault: array.array("Q") for fault in (
        "not UTF-8", "empty", "without words before the edges")}
    for count, line in enumerate(parallel_text.raw_lines(path), start=1):
        try:
            text = line.decode("utf-8")
            if not text.strip():
                faulty["empty"].append(count)
            elif has_edges and not text.partition("\t")[0].strip():
                faulty["without words before the edges"].append(count)
        except UnicodeDecodeError:
            faulty["not UTF-8"].append(count)
    faults = []
    for fault, numbers in faulty.items():
        if numbers:
            shown = ", ".join(map(str, numbers[:_SHOWN_LINES]))
            shown += ", ..." if len(numbers) > _SHOWN_LINES else ""
            faults.append(f"{path}: line {shown} is {fault}" if len(numbers) == 1 else
                          f"{path}: {len(numbers):,} lines are {fault} ({shown})")
    return count, files.sha256(path), faults
