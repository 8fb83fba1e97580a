"""Generates the vocabulary and the TFRecords of a problem, completely or not at all.

When stock T2T is killed, it leaves files that the next run takes for finished: a truncated
vocabulary, some shards shuffled and others not. Here everything is written to a staging directory
next to the data. Finished files are moved into place, last the record that says so. A command that
was stopped before that starts again.

The same text gives the same bytes: vocabulary and order of the examples depend only on the text and
the problem's name.
"""
import contextlib
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import text_encoder, text_problems

from rpr.problems import checks, parallel_text, shards
from rpr.utils import console, files, locks
from rpr.utils.errors import InvalidPath, UserError
from rpr.utils.interfaces import EXAMPLES, Problem, TextProblem, Vocabulary


def generate(problem: TextProblem, data_dir: str, tmp_dir: str) -> None:
    """Generates the data of a problem, unless it is there.

    A complete vocabulary in data_dir is used, as in T2T. Data without a record (of stock
    t2t-datagen) is kept if it is sound. Downloads go to tmp_dir. Data that is damaged or was made
    from other text is refused.
    """
    try:
        # First: bad text or settings leave no directories behind.
        sources = problem.sources(tmp_dir)
        names = ["packed_length", "vector_rows"]
        if checks.vocabulary_files(problem):
            names.append("approx_vocab_size")
        settings = {name: getattr(problem, name, None) for name in names}
        if not os.path.exists(checks.record_path(problem, data_dir)):
            _make_directory(tmp_dir)                  # first: a bad one leaves no data_dir behind
        _make_directory(data_dir)
        with _locked(problem, data_dir):
            _generate_or_check(problem, sources, settings, data_dir, tmp_dir)
    except (OSError, tf.errors.OpError) as error:     # a full disk, a read-only directory
        raise InvalidPath(data_dir, f"datagen of {problem.dataset_filename()} stopped: {error}; "
                          "once that is mended, the same command starts it again") from error


def generate_with_t2t(problem: Problem, data_dir: str, make: Callable[[str], None]) -> None:
    """Generates the data of a problem with T2T's own code, `make(directory)`, unless it is there.

    That directory is the staging directory. It has links to what is in data_dir, such as a
    vocabulary, and `make` may write any files to it. Complete data of stock t2t-datagen gets a
    record and texts.
    """
    _make_directory(data_dir)
    staging = checks.staging_path(problem, data_dir)
    with _locked(problem, data_dir):
        record = _finished(problem, data_dir)
        if record is not None:
            checks.check_data(problem, data_dir, record["files"])
            checks.check_texts(record, data_dir)
            return
        if not os.path.exists(staging) and _files_of_t2t(problem, data_dir):
            _check_data_of_t2t(problem, data_dir)
            files.remove_temporary_files(data_dir)
            _write_record(problem, data_dir, _describe_data_of_t2t(problem, data_dir))
            return
        shutil.rmtree(staging, ignore_errors=True)
        os.mkdir(staging)
        links = [os.path.join(staging, name) for name in os.listdir(data_dir)
                 if not name.startswith(".")]
        try:
            for link in links:
                os.symlink(os.path.join(os.path.abspath(data_dir), os.path.basename(link)), link)
            _run_t2t(problem, data_dir, staging, make)
            record = _describe_data_of_t2t(problem, staging)
            for link in filter(os.path.islink, links):
                os.unlink(link)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)           # after a kill, the next call does
            raise
        _write_record(problem, staging, record)
        _move_into_place(problem, data_dir)


def _run_t2t(problem: Problem, data_dir: str, staging: str, make: Callable[[str], None]) -> None:
    if type(problem).__module__.startswith("tensor2tensor."):
        console.say(f"{problem.name} is a problem of tensor2tensor itself: what it downloads, "
                    "often over http, is neither verified nor unpacked safely")
    try:
        make(staging)
    except (OSError, tf.errors.NotFoundError) as error:
        lacking = [name for name in checks.vocabulary_files(problem)
                   if not os.path.exists(os.path.join(staging, name))]
        if lacking and getattr(problem, "vocab_type", None) == text_problems.VocabType.TOKEN:
            raise InvalidPath(data_dir, f"{problem.dataset_filename()} needs a vocabulary of yours "
                              f"there, {lacking[0]}: <pad>, <EOS>, then the words, one a line"
                              ) from error
        raise


def _make_directory(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InvalidPath(path, "is a link to a directory that does not exist"
                          if os.path.islink(path) and not os.path.exists(path)
                          else f"it cannot be created: {error.strerror}") from error


def _locked(problem: Problem, data_dir: str) -> contextlib.AbstractContextManager[None]:
    """The lock on a problem's data; none where nothing can be written and data is only checked."""
    if not os.access(data_dir, os.W_OK):
        return contextlib.nullcontext()
    return locks.locked(checks.staging_path(problem, data_dir))


def _files_of_t2t(problem: Problem, data_dir: str) -> list[str]:
    """The TFRecord files of a problem, and what t2t-datagen leaves when it is killed."""
    beginning = os.path.join(glob.escape(data_dir), glob.escape(problem.dataset_filename()))
    return [path for pattern in ("-unshuffled-*", "-*.incomplete") for path in glob.glob(
        beginning + pattern)] + [
            path for split in checks.SPLITS for path in checks.data_files(problem, split, data_dir)]


def _check_data_of_t2t(problem: Problem, data_dir: str) -> None:
    """Refuses data of stock t2t-datagen that is damaged or not complete."""
    name, splits = problem.dataset_filename(), _shard_counts(problem)
    there = [split for split in splits if checks.data_files(problem, split, data_dir)]
    lacking = [f"{os.path.basename(path)} is unfinished"
               for path in _files_of_t2t(problem, data_dir)
               if "-unshuffled-" in path or path.endswith(".incomplete")]
    if not lacking:
        checks.check_data(problem, data_dir, there)
        lacking = [f"there is no {split} data" for split in splits if split not in there]
    if lacking:
        raise InvalidPath(data_dir, f"t2t-datagen of {name} did not finish there ({lacking[0]}): "
                          f"remove {name}-*, and the same command starts it again")


def _describe_data_of_t2t(problem: Problem, data_dir: str) -> dict[str, Any]:
    """The record of complete data that T2T's own code has made.

    Writes the texts that `rpr run` needs, if the examples are pairs of texts: those of the
    development and the test set, decoded from the TFRecords. A problem without a test split has the
    development set as its test set.
    """
    name = problem.dataset_filename()
    encoders = problem.get_feature_encoders(data_dir) if checks.is_parallel_text(problem) else None
    written: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for split in checks.SPLITS:
        paths = checks.data_files(problem, split, data_dir)
        for path in paths:
            count = sum(1 for _ in tf.io.tf_record_iterator(path))
            written.setdefault(split, {})[os.path.basename(path)] = {
                "bytes": os.path.getsize(path), "records": count}
            sources[os.path.basename(path)] = files.sha256(path)
        if split == "train" or encoders is None:
            continue
        if not paths:
            console.say(f"{name} has no {split} split: its development set is the test set")
        source, reference = (os.path.join(data_dir, f"{name}.{split}.{kind}.txt")
                             for kind in ("source", "reference"))
        parallel_text.write_pairs(
            _decoded(paths or checks.data_files(problem, "dev", data_dir), encoders),
            source, reference)
    return {"problem": name, "sources": sources, "settings": {}, "files": written,
            "texts": _describe_texts(problem, data_dir),
            "vocabulary": {file: files.sha256(os.path.join(data_dir, file))
                           for file in checks.vocabulary_files(problem)
                           if os.path.exists(os.path.join(data_dir, file))}}


def _describe_texts(problem: Problem, directory: str) -> dict[str, Any]:
    """Size and SHA-256 of the texts that were written for decoding and scoring."""
    beginning = os.path.join(glob.escape(directory), glob.escape(problem.dataset_filename()))
    return {os.path.basename(path): files.describe(path)
            for kind in ("source", "reference", "documents")
            for path in glob.glob(f"{beginning}.*.{kind}.txt")}


def _write_record(problem: Problem, directory: str, record: dict[str, Any]) -> None:
    files.write_atomically(checks.record_path(problem, directory),
                           json.dumps(record, indent=1, sort_keys=True) + "\n")


def _decoded(paths: Iterable[str], encoders: dict[str, Vocabulary]) -> Iterator[tuple[str, str]]:
    """The text of the examples in TFRecord files, source and target, each on one line."""
    for path in paths:
        for record in tf.io.tf_record_iterator(path):
            features = tf.train.Example.FromString(record).features.feature
            source, target = (
                " ".join(encoders[name].decode(
                    [number for number in features[name].int64_list.value
                     if number != text_encoder.EOS_ID]).split())
                for name in ("inputs", "targets"))
            yield source, target


def _generate_or_check(problem: TextProblem, sources: dict[str, str], settings: dict[str, Any],
                       data_dir: str, tmp_dir: str) -> None:
    staging = checks.staging_path(problem, data_dir)
    record = _finished(problem, data_dir)
    if record is not None:
        _check_same_text(problem, record, sources, settings, data_dir)
        checks.check_data(problem, data_dir, record["files"])
        checks.check_texts(record, data_dir)
    elif not os.path.exists(staging) and any(          # of stock t2t-datagen
            checks.data_files(problem, split, data_dir) for split in checks.SPLITS):
        _check_data_of_t2t(problem, data_dir)
    else:
        try:
            record = {"problem": problem.dataset_filename(), "sources": sources,
                      "settings": settings, **_generate(problem, data_dir, staging, tmp_dir)}
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)           # after a kill, the next call does
            raise
        if trained_length := getattr(problem, "trained_length", None):
            record["trained_length"] = trained_length
        _write_record(problem, staging, record)
        _move_into_place(problem, data_dir)


def _finished(problem: Problem, data_dir: str) -> dict[str, Any] | None:
    """The record of finished data, after moving into place what is complete; None: not there."""
    staging = checks.staging_path(problem, data_dir)
    if os.path.exists(checks.record_path(problem, staging)):
        _move_into_place(problem, data_dir)                      # this had been interrupted
    record = checks.read_record(problem, data_dir)
    if record is not None:                                       # after the last file was moved
        shutil.rmtree(staging, ignore_errors=True)
    return record


def _move_into_place(problem: Problem, data_dir: str) -> None:
    """Moves the finished files out of the staging directory, the record last."""
    staging = checks.staging_path(problem, data_dir)
    record_name = os.path.basename(checks.record_path(problem, data_dir))
    for name in sorted(os.listdir(staging), key=lambda name: (name == record_name, name)):
        os.replace(os.path.join(staging, name), os.path.join(data_dir, name))
    os.rmdir(staging)


def _shard_counts(problem: Problem) -> dict[str, int]:
    """The splits of a problem and their numbers of files: {"train": 10, ...}."""
    splits = getattr(problem, "dataset_splits", [      # T2T's other problems have these two
        {"split": checks.SPLITS[split], "shards": 1} for split in ("train", "dev")])
    counts = {split["split"]: split["shards"] for split in splits}
    return {name: counts[split] for name, split in checks.SPLITS.items() if split in counts}


def _check_same_text(problem: TextProblem, record: dict[str, Any], sources: dict[str, str],
                     settings: dict[str, Any], data_dir: str) -> None:
    changed = [f"{name} changed" for name, digest in sources.items()
               if record["sources"].get(name, digest if name == EXAMPLES else None) != digest]
    changed += [f"{name} is missing" for name in record["sources"] if name not in sources]
    changed += [f"{name} was {record['settings'].get(name)}, now it is {value}"
                for name, value in settings.items()
                if record["settings"].get(name) != value]
    if changed:
        raise InvalidPath(data_dir, f"it contains other data of {problem.dataset_filename()} "
                          f"({'; '.join(changed[:4])}): take another directory, or remove it")


def _generate(problem: TextProblem, data_dir: str, staging: str, tmp_dir: str) -> dict[str, Any]:
    """Fills the staging directory; returns the files and vocabularies of the record."""
    name = problem.dataset_filename()
    shutil.rmtree(staging, ignore_errors=True)
    scratch = os.path.join(staging, "scratch")
    os.makedirs(scratch)
    for vocabulary in checks.vocabulary_files(problem):
        path = os.path.join(data_dir, vocabulary)
        if os.path.exists(path):
            if path.endswith(".subwords"):
                checks.check_subwords(path)
            shutil.copyfile(path, os.path.join(staging, vocabulary))
            console.say(f"{name}: using the vocabulary {path}")
    console.say(f"{name}: vocabulary")
    problem.get_or_create_vocab(staging, tmp_dir)
    # Text of what is decoded and scored; `rpr run` uses that of the test set.
    held_out: dict[str, list[str]] = {}               # the sources of each split
    for split in ("dev", "test", *problem.extra_test_sets):
        source, reference, documents = (os.path.join(staging, f"{name}.{split}.{kind}.txt")
                                        for kind in ("source", "reference", "documents"))
        lines = problem.write_text(split, tmp_dir, source, reference)
        names = problem.documents(split, tmp_dir)
        if names is not None:
            _write_documents(names, lines, documents)
        held_out[split] = [line.decode().rstrip("\n") for line in parallel_text.raw_lines(source)]
    unseen = set().union(*held_out.values())          # those that the training text lacks
    written = {}
    with shards.workers(problem, staging, tmp_dir, scratch) as pool:
        for split, count in _shard_counts(problem).items():
            samples = problem.generate_samples(staging, tmp_dir, checks.SPLITS[split])
            if split == "train":
                samples = _discarding(
                    unseen, "targets" if problem.was_reversed else "inputs", samples)
            written[split] = shards.write_split(pool, problem, split, samples, count, staging,
                                                scratch)
    for split, sources in held_out.items():
        shared = sum(source not in unseen for source in sources)
        if shared:
            console.say(f"{name}: the training text has {shared:,} of the {len(sources):,} sources "
                        f"of the {split} split")
    shutil.rmtree(scratch)
    return {"files": written, "texts": _describe_texts(problem, staging),
            "vocabulary": {vocabulary: files.sha256(os.path.join(staging, vocabulary))
                           for vocabulary in checks.vocabulary_files(problem)}}


def _discarding(texts: set[str], feature: str, samples: Iterable[dict[str, str]]
                ) -> Iterator[dict[str, str]]:
    """Yields the samples unchanged; discards the texts that one of them has as its feature."""
    for sample in samples:
        texts.discard(sample[feature])
        yield sample


def _write_documents(names: list[str], lines: int, path: str) -> None:
    """Writes the document of each line of a split."""
    if len(names) != lines:
        raise UserError(f"{os.path.basename(path)}: the problem names the documents of "
                        f"{len(names):,} lines, the text has {lines:,}")
    files.write_atomically(path, "".join(" ".join(name.split()) + "\n" for name in names))
