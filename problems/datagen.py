"""Generates the vocabulary and the TFRecords of a problem, completely or not at all.

When stock T2T is killed, it leaves files that the next run takes for finished: a truncated
vocabulary, some shards shuffled and others not. Here everything is written to a staging directory
next to the data. Finished files are moved into place, last the record that says so. A command that
was stopped before that starts again.

The same text gives the same bytes: vocabulary and order of the examples depend only on the text and
the problem's name.
"""
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import text_encoder

from rpr.problems import checks, parallel_text, shards
from rpr.utils import console, files, locks
from rpr.utils.errors import InvalidPath, UserError
from rpr.utils.interfaces import Problem, TextProblem, Vocabulary


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
        try:
            os.makedirs(tmp_dir, exist_ok=True)
        except OSError as error:
            raise InvalidPath(tmp_dir, f"it cannot be created: {error.strerror}") from error
        os.makedirs(data_dir, exist_ok=True)
        with locks.locked(checks.staging_path(problem, data_dir)):
            _generate_or_check(problem, sources, settings, data_dir, tmp_dir)
    except (OSError, tf.errors.OpError) as error:     # a full disk, a read-only directory
        raise InvalidPath(data_dir, f"datagen of {problem.dataset_filename()} stopped: {error}; "
                          "the same command starts it again") from error


def record_data_of_t2t(problem: Problem, data_dir: str) -> None:
    """Writes what `rpr run` needs of data that T2T's own code has generated: texts and the record.

    The problem has text with inputs, and its data is complete. The texts of the development and the
    test set are decoded from the TFRecords. A problem without a test split has the development set
    as its test set.
    """
    name, encoders = problem.dataset_filename(), problem.get_feature_encoders(data_dir)
    written: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for split in checks.SPLITS:
        paths = checks.data_files(problem, split, data_dir)
        for path in paths:
            count = sum(1 for _ in tf.io.tf_record_iterator(path))
            written.setdefault(split, {})[os.path.basename(path)] = {
                "bytes": os.path.getsize(path), "records": count}
            sources[os.path.basename(path)] = files.sha256(path)
        if split == "train":
            continue
        if not paths:
            console.say(f"{name} has no {split} split: its development set is the test set")
        source, reference = (os.path.join(data_dir, f"{name}.{split}.{kind}.txt")
                             for kind in ("source", "reference"))
        parallel_text.write_pairs(
            _decoded(paths or checks.data_files(problem, "dev", data_dir), encoders),
            source, reference)
    record = {"problem": name, "sources": sources, "settings": {}, "files": written,
              "vocabulary": {file: files.sha256(os.path.join(data_dir, file))
                             for file in checks.vocabulary_files(problem)}}
    files.write_atomically(checks.record_path(problem, data_dir),
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
    record_name = os.path.basename(checks.record_path(problem, data_dir))
    if os.path.exists(os.path.join(staging, record_name)):
        _move_into_place(staging, data_dir, record_name)         # this had been interrupted
    record = checks.read_record(problem, data_dir)
    if record is not None:
        _check_same_text(problem, record, sources, settings, data_dir)
        checks.check_data(problem, data_dir, record["files"])
    elif not os.path.exists(staging) and any(          # of stock t2t-datagen
            checks.data_files(problem, split, data_dir) for split in checks.SPLITS):
        checks.check_data(problem, data_dir, _shard_counts(problem))
    else:
        try:
            record = {"problem": problem.dataset_filename(), "sources": sources,
                      "settings": settings, **_generate(problem, data_dir, staging, tmp_dir)}
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)           # after a kill, the next call does
            raise
        if trained_length := getattr(problem, "trained_length", None):
            record["trained_length"] = trained_length
        files.write_atomically(os.path.join(staging, record_name),
                               json.dumps(record, indent=1, sort_keys=True) + "\n")
        _move_into_place(staging, data_dir, record_name)


def _move_into_place(staging: str, data_dir: str, record_name: str) -> None:
    """Moves the finished files, the record last."""
    for name in sorted(os.listdir(staging), key=lambda name: (name == record_name, name)):
        os.replace(os.path.join(staging, name), os.path.join(data_dir, name))
    os.rmdir(staging)


def _shard_counts(problem: TextProblem) -> dict[str, int]:
    """The splits of a problem and their numbers of files: {"train": 10, ...}."""
    counts = {split["split"]: split["shards"] for split in problem.dataset_splits}
    return {name: counts[split] for name, split in checks.SPLITS.items() if split in counts}


def _check_same_text(problem: TextProblem, record: dict[str, Any], sources: dict[str, str],
                     settings: dict[str, Any], data_dir: str) -> None:
    changed = [f"{name} changed" for name, digest in sources.items()
               if record["sources"].get(name) != digest]
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
    overlap = _Overlap("targets" if problem.was_reversed else "inputs")
    for split in ("dev", "test", *problem.extra_test_sets):
        source, reference, documents = (os.path.join(staging, f"{name}.{split}.{kind}.txt")
                                        for kind in ("source", "reference", "documents"))
        lines = problem.write_text(split, tmp_dir, source, reference)
        names = problem.documents(split, tmp_dir)
        if names is not None:
            _write_documents(names, lines, documents)
        overlap.add(split, source)
    written = {}
    with shards.workers(problem, staging, tmp_dir, scratch) as pool:
        for split, count in _shard_counts(problem).items():
            samples = problem.generate_samples(staging, tmp_dir, checks.SPLITS[split])
            if split == "train":
                samples = overlap.watch(samples)
            written[split] = shards.write_split(pool, problem, split, samples, count, staging,
                                                scratch)
    overlap.report(name)
    shutil.rmtree(scratch)
    return {"files": written,
            "vocabulary": {vocabulary: files.sha256(os.path.join(staging, vocabulary))
                           for vocabulary in checks.vocabulary_files(problem)}}


class _Overlap:
    """Counts the sources (`feature` of a sample) of held-out sets that the training text has."""

    def __init__(self, feature: str) -> None:
        self._feature = feature
        self._sources: dict[str, list[str]] = {}      # of each split
        self._in_training = dict[str, bool]()         # of each source

    def add(self, split: str, path: str) -> None:
        """Adds a held-out set, given the file of its sources."""
        self._sources[split] = [line.decode("utf-8").rstrip("\n")
                                for line in parallel_text.raw_lines(path)]
        self._in_training.update(dict.fromkeys(self._sources[split], False))

    def watch(self, samples: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
        """Yields the samples of the training text unchanged."""
        for sample in samples:
            if sample[self._feature] in self._in_training:
                self._in_training[sample[self._feature]] = True
            yield sample

    def report(self, name: str) -> None:
        """Says which sets share sources with the training text, in a line each."""
        for split, sources in self._sources.items():
            shared = sum(map(self._in_training.__getitem__, sources))
            if shared:
                console.say(f"{name}: the training text has {shared:,} of the {len(sources):,} "
                            f"sources of the {split} split")


def _write_documents(names: list[str], lines: int, path: str) -> None:
    """Writes the document of each line of a split."""
    if len(names) != lines:
        raise UserError(f"{os.path.basename(path)}: the problem names the documents of "
                        f"{len(names):,} lines, the text has {lines:,}")
    files.write_atomically(path, "".join(" ".join(name.split()) + "\n" for name in names))
