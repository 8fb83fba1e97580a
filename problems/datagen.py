"""Makes the vocabulary and the TFRecords of a problem, whole or not at all.

T2T's own way leaves, when it is killed, files that the next run takes for finished: a half-written
vocabulary, some shards shuffled and others not. Here everything is made in a staging directory
beside the data; finished files move into place, the record that says so last. What is not finished
lies in a folder of the staging directory, `unfinished`, and the next try goes on with it if it is
of the same text.

The same text gives the same bytes: neither the vocabulary nor the order of the examples depends on
anything but the text and the problem's name.
"""
import glob
import json
import os
import shutil

import tensorflow.compat.v1 as tf

from problems import checks, shards
from rpr.utils import console, files
from rpr.utils.errors import UserError

_UNFINISHED = "unfinished"


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
            record = _generate(problem, data_dir, staging, tmp_dir)
            files.write_atomically(os.path.join(staging, record_name),
                                     json.dumps(record, indent=1, sort_keys=True) + "\n")
            _move(staging, data_dir, record_name)


def _move(staging, data_dir, record_name):
    """Moves finished files into place, the record last."""
    shutil.rmtree(os.path.join(staging, _UNFINISHED), ignore_errors=True)
    for name in sorted(os.listdir(staging), key=lambda name: (name == record_name, name)):
        os.replace(os.path.join(staging, name), os.path.join(data_dir, name))
    os.rmdir(staging)


def _splits(problem):
    """The splits of a problem: {"train": number of files, ...}."""
    counts = {split["split"]: split["shards"] for split in problem.dataset_splits}
    return {name: counts[split] for name, split in checks.SPLITS.items() if split in counts}


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
    """Fills the staging directory, from where an earlier try got to; returns the record."""
    name = problem.dataset_filename()
    sources, settings = problem.sources(tmp_dir), _settings(problem)
    given = _given_vocabulary(problem, data_dir)
    folder = os.path.join(staging, _UNFINISHED)
    progress = shards.Progress(
        os.path.join(folder, "progress.json"),
        {"sources": sources, "settings": settings, "splits": _splits(problem),
         "vocabulary": {vocabulary: files.sha256(path) for vocabulary, path in given.items()}})
    if not progress.resumed:
        shutil.rmtree(staging, ignore_errors=True)
        os.makedirs(folder)
        progress.save()
    _make_vocabulary(problem, given, staging, tmp_dir, folder)
    with shards.workers(problem, staging, tmp_dir, folder) as pool:
        written = {split: shards.write_split(pool, problem, split, count, staging, tmp_dir, folder,
                                             progress)
                   for split, count in _splits(problem).items()}
    for split in ("dev", "test"):                     # what `rpr run` decodes and scores
        problem.write_text(split, tmp_dir, os.path.join(staging, f"{name}.{split}.source.txt"),
                           os.path.join(staging, f"{name}.{split}.reference.txt"))
    return {"problem": name, "sources": sources, "settings": settings, "files": written,
            "vocabulary": {vocabulary: files.sha256(os.path.join(staging, vocabulary))
                           for vocabulary in checks.vocabulary_files(problem)}}


def _given_vocabulary(problem, data_dir):
    """The vocabulary files that lie in data_dir before: {name: path}."""
    given = {name: os.path.join(data_dir, name) for name in checks.vocabulary_files(problem)}
    given = {name: path for name, path in given.items() if os.path.exists(path)}
    for path in given.values():
        if path.endswith(".subwords"):
            checks.check_subwords(path)
    return given


def _make_vocabulary(problem, given, staging, tmp_dir, folder):
    """Puts the vocabulary into the staging directory, each file whole, unless it is there."""
    name, names = problem.dataset_filename(), checks.vocabulary_files(problem)
    if names and all(os.path.exists(os.path.join(staging, vocabulary)) for vocabulary in names):
        return
    made = os.path.join(folder, "vocabulary")
    shutil.rmtree(made, ignore_errors=True)
    os.mkdir(made)
    for vocabulary, path in given.items():
        shutil.copyfile(path, os.path.join(made, vocabulary))
        console.terminal.print(f"{name}: the vocabulary {path} was there; it is used",
                               highlight=False, soft_wrap=True)
    console.terminal.print(f"{name}: vocabulary", highlight=False)
    problem.get_or_create_vocab(made, tmp_dir)
    for vocabulary in sorted(os.listdir(made)):       # "vectors..." before their "vocab..."
        os.replace(os.path.join(made, vocabulary), os.path.join(staging, vocabulary))
