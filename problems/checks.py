"""Checks of a data directory before training or decoding starts.

Data made by this project has a record, PROBLEM.datagen.json, which is written last: the SHA-256 of
the vocabulary and the size of each TFRecord file. Data made by stock t2t-datagen has none; its
structure alone is checked.
"""
import glob
import itertools
import os
import re
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError
from tensor2tensor.data_generators import problem as t2t_problem
from tensor2tensor.data_generators import text_encoder, text_problems

from rpr.utils.errors import InvalidPath, UserError
from rpr.utils.files import RECORDED, check_recorded, read_json, sha256
from rpr.utils.interfaces import HParams, Problem

SPLITS = {"train": t2t_problem.DatasetSplit.TRAIN,
          "dev": t2t_problem.DatasetSplit.EVAL,
          "test": t2t_problem.DatasetSplit.TEST}

_RECORD = {"problem": str, "sources": {"*": str}, "settings": dict, "vocabulary": {"*": str},
           "files": {"*": {"*": {"bytes": int, "records": int}}}, "texts?": RECORDED}
# A sub-word vocabulary writes an unknown character as \1234; with these characters.
_ESCAPES = set("\\_u;0123456789")
# In a file without a record: how many examples have their ids compared with the vocabulary's size.
_SAMPLE_SIZE = 100
FRAME_BYTES = 16                                      # of a TFRecord, in addition to its content
BUFFER_BYTES = 1 << 20


def record_path(problem: Problem, data_dir: str) -> str:
    """The path of the record; its presence means that data generation has finished."""
    return os.path.join(data_dir, problem.dataset_filename() + ".datagen.json")


def staging_path(problem: Problem, data_dir: str) -> str:
    """The directory of unfinished data; without a record it means that generation was stopped."""
    return os.path.join(data_dir, "." + problem.dataset_filename() + ".datagen")


def read_record(problem: Problem, data_dir: str) -> dict[str, Any] | None:
    """The record of finished data, or None if there is none (stock T2T writes none)."""
    path = record_path(problem, data_dir)
    if not os.path.exists(path):
        return None
    return read_json(path, _RECORD, "remove it and the data, and run rpr datagen again")


def vocabulary_files(problem: Problem) -> list[str]:
    """The names of the vocabulary files of any kind of text problem."""
    names = {getattr(problem, name, None) for name in ("vocab_filename", "source_vocab_name",
                                                       "target_vocab_name", "labels_filename")}
    if getattr(problem, "vocab_type", None) == "character":
        return []                                     # T2T names a file that it never makes
    return sorted(filter(None, names))


def is_parallel_text(problem: Problem) -> bool:
    """Whether a problem's examples are pairs of texts, one pair in each."""
    others = (text_problems.Text2ClassProblem, text_problems.Text2RealProblem,
              text_problems.QuestionAndContext2TextProblem)
    return (isinstance(problem, text_problems.Text2TextProblem) and problem.has_inputs
            and not isinstance(problem, others) and not problem.packed_length)


def has_one_example_per_record(problem: Problem, hparams: HParams) -> bool:
    """Whether each record of a problem's data is one training example.

    No: packed batches, targets that are split, several problems at once, and problems that read
    their records in their own way.
    """
    kind, base = type(problem), t2t_problem.Problem
    return (kind.dataset is base.dataset and kind.input_fn is base.input_fn
            and kind.preprocess is base.preprocess and not hparams.split_to_length
            and not hparams.get("pack_dataset") and not hparams.get("split_targets_chunk_length"))


def check_data(problem: Problem, data_dir: str, splits: Iterable[str]) -> None:
    """Checks the vocabulary and the TFRecord files of some of the splits train, dev and test.

    With a record, compares the vocabulary's SHA-256 and the size of each file. Without one, checks
    the form of the vocabulary, the frame of every record, and the content of the first records of
    each file. A changed byte inside a file of the right size is found by TensorFlow when it reads
    the record. Raises UserError with one line that says what is wrong and what to do.
    """
    if not os.path.isdir(data_dir):
        raise InvalidPath(data_dir, "no such directory; run rpr datagen")
    record = read_record(problem, data_dir)
    if record is None and os.path.exists(staging_path(problem, data_dir)):
        raise InvalidPath(data_dir, "datagen did not finish there; run rpr datagen")
    sizes = []
    for name in vocabulary_files(problem):
        path = os.path.join(data_dir, name)
        if not os.path.exists(path):
            raise InvalidPath(data_dir, f"the vocabulary {name} is missing; run rpr datagen")
        if record is not None:
            if sha256(path) != record["vocabulary"].get(name):
                raise UserError(f"{path} is not the vocabulary that the data next to it was made "
                                "with: restore it, or remove the data and run rpr datagen")
        elif name.endswith(".subwords"):
            sizes.append(check_subwords(path))
    for split in splits:
        if record is not None:
            _check_sizes(problem, split, data_dir, record)
        else:
            _check_structure(problem, split, data_dir, max(sizes, default=None))


def check_texts(record: dict[str, Any], data_dir: str) -> None:
    """Refuses data whose text for decoding and scoring is missing or has changed.

    Training reads no text, so `check_data` does not ask for it. Older records do not describe it.
    """
    for name, recorded in record.get("texts", {}).items():
        check_recorded(os.path.join(data_dir, name), recorded)


def check_subwords(path: str) -> int:
    """Checks that a file is a complete sub-word vocabulary; returns its size.

    It must have the reserved tokens, and the characters that unknown characters are written with.
    """
    with open(path, encoding="utf-8", newline="\n") as text:
        try:
            content = text.read()
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not a vocabulary: not UTF-8 ({error.reason})") from None
    if not content.endswith("\n"):
        raise UserError(f"{path}: the vocabulary is {'cut off' if content else 'empty'}: remove it "
                        "and run rpr datagen again")
    tokens = [line[1:-1] if line[:1] == line[-1:] and line[:1] in ("'", '"') else line
              for line in (line.rstrip() for line in content[:-1].split("\n"))]
    if [token.removesuffix("_") for token in tokens[:2]] != text_encoder.RESERVED_TOKENS:
        raise UserError(f"{path}: not a sub-word vocabulary of T2T: it begins with "
                        f"{str(tokens[:2])[:100]}, not with {text_encoder.RESERVED_TOKENS}")
    missing = _ESCAPES - set(tokens)
    if missing:
        raise UserError(f"{path}: the vocabulary is cut off: it lacks the characters "
                        f"{' '.join(sorted(missing))}; remove it and run rpr datagen again")
    return len(tokens)


def _check_sizes(problem: Problem, split: str, data_dir: str, record: dict[str, Any]) -> None:
    expected_files = record["files"].get(split)
    if not expected_files:
        raise InvalidPath(data_dir, f"datagen made no {split} data there; run rpr datagen")
    for path in data_files(problem, split, data_dir):
        if os.path.basename(path) not in expected_files:
            raise UserError(f"{path} does not belong to the data in this directory but would be "
                            "read with it; move it")
    for name, expected in expected_files.items():
        path = os.path.join(data_dir, name)
        if not os.path.isfile(path):
            raise UserError(f"{path} is missing: remove the data and run rpr datagen")
        size = os.path.getsize(path)
        if size != expected["bytes"]:
            raise UserError(f"{path} is damaged: {size:,} bytes, {expected['bytes']:,} were "
                            f"written; remove the data and run rpr datagen")


def data_files(problem: Problem, split: str, data_dir: str) -> list[str]:
    """The paths of the TFRecord files of a split, sorted."""
    return sorted(glob.glob(os.path.join(
        glob.escape(data_dir), f"{glob.escape(problem.dataset_filename())}-{split}*")))


def _check_structure(problem: Problem, split: str, data_dir: str, vocab_size: int | None
                     ) -> None:
    paths = data_files(problem, split, data_dir)
    if not paths:
        raise InvalidPath(data_dir, f"there is no {split} data of {problem.dataset_filename()}; "
                          "run rpr datagen")
    for path in paths:
        if not re.search(r"-\d{5}-of-\d{5}$", path) or not os.path.isfile(path):
            raise UserError(f"{path}: unexpected file among the {split} files; move it")
    total = int(paths[0].rsplit("-of-", 1)[-1])
    if len(paths) != total:
        raise InvalidPath(data_dir, f"{len(paths)} of {total} {split} files of "
                          f"{problem.dataset_filename()} are there: remove them and run rpr "
                          "datagen")
    records = 0
    for path in paths:
        records += count_records(path)
        if vocab_size:
            _check_ids(path, vocab_size)
    if not records:
        raise InvalidPath(data_dir, f"the {split} data is empty: remove it and run rpr datagen")


def frame_starts(path: str) -> Iterator[int]:
    """Yields the position of each record of a TFRecord file, then its size; refuses a cut file."""
    size = os.path.getsize(path)
    count = position = 0
    with open(path, "rb", buffering=BUFFER_BYTES) as file:
        while position < size:
            yield position
            file.seek(position)
            header = file.read(12)
            # length (8 bytes), its CRC (4), the record, its CRC (4)
            if len(header) == 12:
                position += FRAME_BYTES + struct.unpack("<Q", header[:8])[0]
            if len(header) < 12 or position > size:
                raise UserError(f"{path} is cut off after {count:,} records: remove the data and "
                                "run rpr datagen again")
            count += 1
    yield position


def count_records(path: str) -> int:
    """The number of records of a TFRecord file."""
    return sum(1 for _ in frame_starts(path)) - 1


def _check_ids(path: str, vocab_size: int) -> None:
    try:
        for record in itertools.islice(tf.io.tf_record_iterator(path), _SAMPLE_SIZE):
            example = tf.train.Example.FromString(record)
            for name in ("inputs", "targets"):
                ids = example.features.feature[name].int64_list.value
                if ids and max(ids) >= vocab_size:
                    raise UserError(f"{path} contains the id {max(ids)}, but the vocabulary has "
                                    f"only {vocab_size} entries: it is not the one that the data "
                                    "was made with")
    except (tf.errors.DataLossError, DecodeError) as error:
        raise UserError(f"{path} is damaged ({str(error)[:100]}): remove the data and run rpr "
                        "datagen again") from None


def summary(problem: Problem, data_dir: str) -> str:
    """One line about the data of a problem: how many examples of each split, and where."""
    record = read_record(problem, data_dir)
    counts = []
    for split, label in (("train", "training"), ("dev", "development"), ("test", "test")):
        if record is not None:
            count = sum(file["records"] for file in record["files"].get(split, {}).values())
        else:
            count = sum(map(count_records, data_files(problem, split, data_dir)))
        if count:
            counts.append(f"{count:,} {label}")
    return f"{problem.dataset_filename()}: {', '.join(counts) or 'no'} examples in {data_dir}"


def positive_integer_variable(name: str, default: int) -> int:
    """The value of an environment variable that must be a positive integer, or the default."""
    text = os.environ.get(name, str(default))
    # Nine digits: Python refuses to convert numbers of thousands of digits.
    if not (text.isdecimal() and text.isascii() and len(text) < 10 and int(text) > 0):
        raise UserError(f"{name}={text[:40]}: a whole number from 1 to 999,999,999")
    return int(text)
