"""What a data directory must hold before a training or a decoding starts.

Data made by this project carries a record, PROBLEM.datagen.json, written last: the SHA-256 of the
vocabulary, and the size of each TFRecord file. Data made by stock t2t-datagen has none and is
checked by its structure alone.
"""
import glob
import itertools
import json
import os
import struct

import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError
from tensor2tensor.data_generators import problem as t2t_problem
from tensor2tensor.data_generators import text_encoder

from rpr.utils.errors import UserError
from rpr.utils.files import sha256

SPLITS = {"train": t2t_problem.DatasetSplit.TRAIN,
          "dev": t2t_problem.DatasetSplit.EVAL,
          "test": t2t_problem.DatasetSplit.TEST}

# A sub-word vocabulary writes a character that it lacks as \1234; with these.
_ESCAPES = set("\\_u;0123456789")
# How many records of a file without a record of its own have their ids compared with the
# vocabulary's size.
_SAMPLE = 100


def record_path(problem, data_dir):
    """Where datagen records what it made; the file's presence says that it finished."""
    return os.path.join(data_dir, problem.dataset_filename() + ".datagen.json")


def staging_path(problem, data_dir):
    """The directory that datagen works in; its presence without a record: it did not finish."""
    return os.path.join(data_dir, "." + problem.dataset_filename() + ".datagen")


def read_record(problem, data_dir):
    """The record of a finished datagen, or None where stock T2T, or nobody, made the data."""
    path = record_path(problem, data_dir)
    try:
        with open(path, encoding="utf-8") as text:
            return json.load(text)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): remove it and the data, and run rpr datagen "
                        "again") from None


def vocabulary_files(problem):
    """Names of the vocabulary files of a problem, whichever kind of text problem it is."""
    names = {getattr(problem, name, None) for name in ("vocab_filename", "source_vocab_name",
                                                       "target_vocab_name", "labels_filename")}
    if getattr(problem, "vocab_type", None) == "character":
        return []                                     # bytes: T2T names a file that it never makes
    return sorted(filter(None, names))


def check_data(problem, data_dir, splits):
    """Checks the vocabulary and the TFRecord files of a problem; writes nothing.

    With a record: the vocabulary's SHA-256 and the size of each file, in no time. Without one: the
    vocabulary's form, every record's frame, and the contents of the first records of each file. A
    changed byte in the middle of a file of the right size is left to TensorFlow, which finds it
    when it reads the record.

    Args:
      problem: a T2T problem, of this project or another.
      data_dir: T2T's --data_dir.
      splits: which of "train", "dev" and "test" are needed; none: only the vocabulary.

    Raises:
      UserError: one line that says what is wrong, and what to do.
    """
    again = f"rpr datagen --problem={problem.dataset_filename()} --data_dir={data_dir}"
    if not os.path.isdir(data_dir):
        raise UserError(f"--data_dir={data_dir}: there is no such directory (run {again})")
    record = read_record(problem, data_dir)
    if record is None and os.path.exists(staging_path(problem, data_dir)):
        raise UserError(f"--data_dir={data_dir}: datagen did not finish there (run {again})")
    sizes = []
    for name in vocabulary_files(problem):
        path = os.path.join(data_dir, name)
        if not os.path.exists(path):
            raise UserError(f"--data_dir={data_dir}: the vocabulary {name} is missing (run "
                            f"{again})")
        if record is not None:
            _same_vocabulary(path, record, again)
        elif name.endswith(".subwords"):
            sizes.append(check_subwords(path))
    for split in splits:
        if record is not None:
            _same_files(split, data_dir, record, again)
        else:
            _sound_files(problem, split, data_dir, max(sizes, default=None), again)


def check_subwords(path):
    """Refuses a file that is not a whole sub-word vocabulary; returns its size.

    Raises:
      UserError: it is empty or cut off, or lacks the reserved tokens or the characters that
        unknown characters are written with.
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
        raise UserError(f"{path}: not a sub-word vocabulary of T2T: it begins with {tokens[:2]}, "
                        f"not with {text_encoder.RESERVED_TOKENS}")
    missing = _ESCAPES - set(tokens)
    if missing:
        raise UserError(f"{path}: the vocabulary is cut off: it lacks the characters "
                        f"{' '.join(sorted(missing))}; remove it and run rpr datagen again")
    return len(tokens)


def _same_vocabulary(path, record, again):
    if sha256(path) != record["vocabulary"].get(os.path.basename(path)):
        raise UserError(f"{path} is not the vocabulary that the data beside it was made with: put "
                        f"that one back, or remove the data and run {again}")


def _same_files(split, data_dir, record, again):
    files = record["files"].get(split)
    if not files:
        raise UserError(f"--data_dir={data_dir}: datagen made no {split} data there (run {again})")
    for name, file in files.items():
        path = os.path.join(data_dir, name)
        found = os.path.getsize(path) if os.path.exists(path) else None
        if found is None:
            raise UserError(f"{path} is missing: remove the data and run {again}")
        if found != file["bytes"]:
            raise UserError(f"{path} is damaged: {found:,} bytes, {file['bytes']:,} were written; "
                            f"remove the data and run {again}")


def _sound_files(problem, split, data_dir, vocab_size, again):
    paths = sorted(glob.glob(problem.filepattern(data_dir, SPLITS[split])))
    if not paths:
        raise UserError(f"--data_dir={data_dir}: there is no {split} data of "
                        f"{problem.dataset_filename()} (run {again})")
    total = int(paths[0].rsplit("-of-", 1)[-1])
    if len(paths) != total:
        raise UserError(f"--data_dir={data_dir}: {len(paths)} of {total} {split} files of "
                        f"{problem.dataset_filename()} are there: remove them and run {again}")
    records = 0
    for path in paths:
        records += count_records(path)
        if vocab_size:
            _ids_below(path, vocab_size)
    if not records:
        raise UserError(f"--data_dir={data_dir}: the {split} data is empty: remove it and run "
                        f"{again}")


def count_records(path):
    """The number of records of a TFRecord file; reads only their lengths.

    Raises:
      UserError: the file ends within a record.
    """
    size = os.path.getsize(path)
    count = position = 0
    with open(path, "rb") as file:
        while position < size:
            file.seek(position)
            header = file.read(12)
            # length (8 bytes), its CRC (4), the record, its CRC (4)
            if len(header) == 12:
                position += 16 + struct.unpack("<Q", header[:8])[0]
            if len(header) < 12 or position > size:
                raise UserError(f"{path} is cut off after {count:,} records: remove the data and "
                                "run rpr datagen again")
            count += 1
    return count


def _ids_below(path, vocab_size):
    try:
        for record in itertools.islice(tf.io.tf_record_iterator(path), _SAMPLE):
            example = tf.train.Example.FromString(record)
            for name in ("inputs", "targets"):
                ids = example.features.feature[name].int64_list.value
                if ids and max(ids) >= vocab_size:
                    raise UserError(f"{path} holds the id {max(ids)}, the vocabulary only "
                                    f"{vocab_size} entries: it is not the one that the data was "
                                    "made with")
    except (tf.errors.DataLossError, DecodeError) as error:
        raise UserError(f"{path} is damaged ({str(error)[:100]}): remove the data and run rpr "
                        "datagen again") from None


def positive_integer_variable(name: str, default: int) -> int:
    """The positive number in an environment variable, or the default where it is not set."""
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{variable}={text}: a positive number")
    return int(text)
