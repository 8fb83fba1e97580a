"""Makes the vocabulary and the TFRecords of a problem, whole or not at all.

T2T's own way leaves, when it is killed, files that the next run takes for finished: a half-written
vocabulary, some shards shuffled and others not. Here everything is made in a staging directory
beside the data; finished files move into place, the record that says so last.

The same text gives the same bytes: neither the vocabulary nor the order of the examples depends on
anything but the text and the problem's name.
"""
import contextlib
import glob
import json
import os
import random
import shutil

import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import generator_utils

from problems import checks, files
from rpr import console, metrics
from rpr.errors import UserError


def generate(problem, data_dir, tmp_dir):
    """Makes the data of a problem, unless it is there.

    A vocabulary that lies in data_dir already is used, as T2T does, if it is a whole one. Data
    without a record (stock t2t-datagen made it) is kept if it is sound.

    Args:
      problem: a T2T text problem that has `sources` and `write_text`, as
        `translation.TranslationProblem` describes them.
      data_dir: where the data goes.
      tmp_dir: where downloads are kept.

    Raises:
      UserError: there is data that is damaged, or made from other text.
    """
    try:
        os.makedirs(data_dir, exist_ok=True)
        os.makedirs(tmp_dir, exist_ok=True)
        _generate_once(problem, data_dir, tmp_dir)
    except (OSError, tf.errors.OpError) as error:     # a full disk, a read-only directory
        raise UserError(f"datagen of {problem.dataset_filename()} in --data_dir={data_dir} "
                        f"stopped: {error}; the same command starts it again") from error


def _generate_once(problem, data_dir, tmp_dir):
    staging = checks.staging_path(problem, data_dir)
    record_name = os.path.basename(checks.record_path(problem, data_dir))
    with files.locked(staging):
        if os.path.exists(os.path.join(staging, record_name)):
            _move(staging, data_dir, record_name)     # where a kill had stopped that
        record = checks.read_record(problem, data_dir)
        if record is not None:
            _same_data(problem, record, data_dir, tmp_dir)
            checks.check_data(problem, data_dir, record["files"])
        elif _made_by_another(problem, data_dir, staging):
            checks.check_data(problem, data_dir, _splits(problem))
        else:
            shutil.rmtree(staging, ignore_errors=True)
            os.mkdir(staging)
            record = _generate(problem, data_dir, staging, tmp_dir)
            metrics.write_atomically(os.path.join(staging, record_name),
                                     json.dumps(record, indent=1, sort_keys=True) + "\n")
            _move(staging, data_dir, record_name)


def _move(staging, data_dir, record_name):
    """Moves finished files into place, the record last."""
    for name in sorted(os.listdir(staging), key=lambda name: (name == record_name, name)):
        os.replace(os.path.join(staging, name), os.path.join(data_dir, name))
    os.rmdir(staging)


def _splits(problem):
    """The splits of a problem: {"train": number of files, ...}."""
    shards = {split["split"]: split["shards"] for split in problem.dataset_splits}
    return {name: shards[split] for name, split in checks.SPLITS.items() if split in shards}


def _made_by_another(problem, data_dir, staging):
    return not os.path.exists(staging) and any(
        glob.glob(problem.filepattern(data_dir, split)) for split in checks.SPLITS.values())


def _settings(problem):
    return {name: getattr(problem, name, None) for name in ("approx_vocab_size", "packed_length")}


def _same_data(problem, record, data_dir, tmp_dir):
    changed = [f"{name} changed" for name, found in problem.sources(tmp_dir).items()
               if record["sources"].get(name) != found]
    changed += [f"{name} was {record['settings'].get(name)}, now it is {found}"
                for name, found in _settings(problem).items()
                if record["settings"].get(name) != found]
    if changed:
        raise UserError(f"--data_dir={data_dir} holds other data of {problem.dataset_filename()} "
                        f"({'; '.join(changed[:4])}): take another directory, or remove it")


def _generate(problem, data_dir, staging, tmp_dir):
    """Fills the staging directory; returns the record."""
    name = problem.dataset_filename()
    for vocabulary in checks.vocabulary_files(problem):
        given = os.path.join(data_dir, vocabulary)
        if os.path.exists(given):
            if given.endswith(".subwords"):
                checks.check_subwords(given)
            shutil.copyfile(given, os.path.join(staging, vocabulary))
            console.terminal.print(f"{name}: the vocabulary {given} was there; it is used",
                                   highlight=False, soft_wrap=True)
    sources = problem.sources(tmp_dir)
    console.terminal.print(f"{name}: vocabulary", highlight=False)
    problem.get_or_create_vocab(staging, tmp_dir)
    written = {split: _write_split(problem, split, shards, staging, tmp_dir)
               for split, shards in _splits(problem).items()}
    for split in ("dev", "test"):                     # what `rpr run` decodes and scores
        problem.write_text(split, tmp_dir, os.path.join(staging, f"{name}.{split}.source.txt"),
                           os.path.join(staging, f"{name}.{split}.reference.txt"))
    return {"problem": name, "sources": sources, "settings": _settings(problem),
            "files": written,
            "vocabulary": {vocabulary: files.sha256(os.path.join(staging, vocabulary))
                           for vocabulary in checks.vocabulary_files(problem)}}


def _write_split(problem, split, shards, staging, tmp_dir):
    """Writes the files of a split; train is shuffled, dev and test keep their order.

    Returns:
      {file name: {"bytes": ..., "records": ...}}
    """
    name = problem.dataset_filename()
    paths = [os.path.join(staging, generator_utils.sharded_name(f"{name}-{split}", shard, shards))
             for shard in range(shards)]
    samples = problem.generate_encoded_samples(staging, tmp_dir, checks.SPLITS[split])
    with contextlib.ExitStack() as stack, console.Task(f"{name}: {split}", None, "pairs") as task:
        writers = [stack.enter_context(tf.io.TFRecordWriter(path)) for path in paths]
        count = 0
        for count, sample in enumerate(samples, start=1):
            # A map's order in a message is not fixed otherwise.
            record = generator_utils.to_example(sample).SerializeToString(deterministic=True)
            writers[count % shards].write(record)
            if count % 1000 == 0:
                task.update(count)
        task.update(count)
    if not count:
        raise UserError(f"--problem={name}: the {split} split is empty")
    for shard, path in enumerate(paths):
        records = list(tf.io.tf_record_iterator(path))
        if split == "train":
            random.Random(f"{name} {shard}").shuffle(records)
        if problem.packed_length:
            records = problem._pack_fn()(records)
        with tf.io.TFRecordWriter(path) as writer:
            for record in records:
                writer.write(record)
    return {os.path.basename(path): {"bytes": os.path.getsize(path),
                                     "records": checks.count_records(path)} for path in paths}
