"""Reads a finished run's model and caches the result in RUN/learned.npz, which may be removed.

| array | shape | content |
| --- | --- | --- |
| `encoder_keys`, `encoder_values`, `decoder_keys`, `decoder_values` | [layers, tables, 2k + 1, depth] | tables a^K and a^V; one table if the heads share it |
| `clip_left` | [] | row r of a table belongs to the distance r - clip_left; k, unless a direction has its own clipping distance |
| `encoder_attention`, `decoder_attention` | [layers, heads, 2 * MAX_DISTANCE + 1] | see `attention_by_distance` |
| `source_lengths` | [sentences] | test sources in sub-words, end-of-sentence symbol included |
| `source_sha256` | [] | of those sources |

TensorFlow's graphs are process-wide, so each model is analysed in a process of its own:
`python -m rpr.report.model_analysis RUN USR_DIR`.
"""  # noqa: E501
import contextlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rpr.evaluation import test_sets
from rpr.experiments import gin_files
from rpr.experiments.run_directory import RunDirectory, find_model
from rpr.utils import files, processes
from rpr.utils.console import Task, say
from rpr.utils.errors import UserError

if TYPE_CHECKING:                                     # it imports TensorFlow
    from rpr.inference.inspector import Inspector

MAX_DISTANCE = 16                                     # larger distances count as this one
SIDES = ("encoder", "decoder")
KINDS = ("keys", "values")
CACHE = "learned.npz"                                 # of a run directory
_LARGEST = 1 << 28                                    # bytes of all arrays
_MOST_HEADS = 4096                                    # of all layers


def load(run_dir: RunDirectory) -> dict[str, np.ndarray]:
    """The cached arrays of a run; empty if there are none or they are older than its scores."""
    path = run_dir.file(CACHE)
    if os.path.islink(path) or not os.path.isfile(path) or (
            os.path.getmtime(path) < os.path.getmtime(run_dir.scores)):
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _LARGEST:
                return {}
        with np.load(path) as loaded:
            arrays = dict(loaded)
    except Exception:                                 # damaged, in any way: it is made again
        return {}
    return arrays if _is_as_made(arrays) else {}


def _is_as_made(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether arrays have the shapes, types and ranges that an analysis gives them."""
    dimensions = {**{f"{side}_{kind}": 4 for side in SIDES for kind in KINDS},
                  **{f"{side}_attention": 3 for side in SIDES},
                  "clip_left": 0, "source_lengths": 1, "source_sha256": 0}
    if any(dimensions.get(name) != array.ndim for name, array in arrays.items()):
        return False
    drawn = [array for array in arrays.values() if array.ndim > 2]
    tables = [array for array in drawn if array.ndim == 4]
    left = arrays.get("clip_left", np.array(0))
    lengths = arrays.get("source_lengths", np.ones(0, int))
    return (all(array.dtype.kind == "f" and array.size and np.isfinite(array).all()
                and array.shape[0] * array.shape[1] <= _MOST_HEADS for array in drawn)
            and all(array.shape[2] == 2 * MAX_DISTANCE + 1 for array in drawn if array.ndim == 3)
            and left.dtype.kind in "iu" and all(0 <= left < table.shape[2] for table in tables)
            and lengths.dtype.kind in "iu" and bool(((lengths > 0) & (lengths < 1 << 24)).all()))


def source_lengths(source: Sequence[str],
                   run_dirs: Iterable[RunDirectory]) -> tuple[np.ndarray, str]:
    """Lengths, int [sentences], and their unit: sub-words if some model was analysed, else words.

    Sub-words include the end-of-sentence symbol, as T2T's max_length does.
    """
    digest = test_sets.digest([source])
    for run_dir in run_dirs:
        arrays = load(run_dir)
        lengths = arrays.get("source_lengths")
        if (lengths is not None and lengths.shape == (len(source),)
                and str(arrays.get("source_sha256", "")) == digest):
            return lengths, "sub-words"
    return np.array([len(line.split()) for line in source]), "words"


def analyse_models(run_dirs: Iterable[RunDirectory], usr_dir: str | None = None) -> None:
    """Analyses the models of finished runs that have no cached arrays.

    A model that cannot be analysed is reported in one line and left out. Runs that were copied
    without their checkpoints are left out together. `usr_dir` holds the user's own code.
    """
    new = [run_dir for run_dir in run_dirs if not load(run_dir)]
    missing = [run_dir for run_dir in new if os.path.exists(
        f"{run_dir.checkpoint(gin_files.load_run(run_dir.config))}.index")]
    others = ", ".join(os.path.basename(run_dir.path) for run_dir in new if run_dir not in missing)
    if others:
        say(f"models not analysed, since their runs have no checkpoint: {others}", style="yellow")
    with Task("analysing models", len(missing), "models") as task:
        for number, run_dir in enumerate(missing, 1):
            process = processes.spawn([run_dir.path, usr_dir or ""],
                                      module="rpr.report.model_analysis", text=True,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            errors = process.communicate()[1]
            if process.returncode:
                lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
                say(f"{run_dir.path}: model not analysed: {lines[-1]}", style="yellow")
            task.update(number)


def attention_by_distance(model: "Inspector", source: Sequence[str], target: Sequence[str],
                          max_length: int, sentences: int = 64,
                          max_distance: int = MAX_DISTANCE) -> dict[str, np.ndarray]:
    """How far the heads of a model look, in evenly spaced test sentences.

    The decoder reads the references, so that all models of a study are compared on the same text.
    Sentences of more than `max_length` sub-words are skipped. Larger distances than `max_distance`
    count as this one.

    Returns:
      {"encoder": a, "decoder": a}, each float64 [layers, heads, 2 * max_distance + 1]: the share of
      attention that a query i gives to the keys at distance j - i = -max_distance ...
      max_distance, averaged over all queries that are not padding. The shares of a head sum to 1.

    Raises:
      UserError: the model has no self-attention, or every sentence is too long.
    """
    from rpr.inference.batches import until_end
    from rpr.inference.inspector import sum_by_distance
    if not model.has_self_attention:
        raise UserError("the model has no self-attention")
    pairs = list(zip(source, target, strict=True))
    chosen = [pairs[index] for index in
              np.linspace(0, len(pairs) - 1, min(sentences, len(pairs))).astype(int)]
    encoded = [(model.encode(source_line), model.encode(target_line, "targets"))
               for source_line, target_line in chosen]
    encoded = [pair for pair in encoded if max(map(len, pair)) <= max_length]
    if not encoded:
        raise UserError(f"no test sentence of at most max_length={max_length} tokens")
    totals: dict[str, np.ndarray] = {}
    queries = dict.fromkeys(SIDES, 0)
    for pair in encoded:
        weights = model.attention(*([ids] for ids in pair))
        for side, ids in zip(SIDES, pair, strict=True):
            length = len(until_end(ids))
            sums = sum_by_distance(getattr(weights, side)[:, 0, :, :length, :length], max_distance)
            totals[side] = totals[side] + sums if side in totals else sums
            queries[side] += length
    return {side: total / queries[side] for side, total in totals.items()}


def _analyse(run_dir: RunDirectory, usr_dir: str | None) -> dict[str, np.ndarray]:
    """All arrays of a run, whose data is next to it."""
    from rpr.inference.inspector import Inspector, relative_tables
    from rpr.positions import relative
    from rpr.t2t import trained_model
    run, request = find_model(run_dir.path, None, usr_dir)
    trained = trained_model.find_trained_model(request)
    arrays: dict[str, np.ndarray] = {}
    with contextlib.suppress(UserError):              # other numbers of tables in other layers
        arrays = relative_tables(run_dir.checkpoint(run))
    if arrays:
        arrays["clip_left"] = np.array(relative.clip_of(trained.hparams, "left"))
    if run.test_set:
        source = test_sets.test_set_source(run.test_set, run.language_pair)
        target = next(iter(test_sets.test_set_references(run.test_set, run.language_pair).values()))
    else:
        source, target = map(test_sets.read_lines, (run_dir.source, run_dir.reference))
    encoder = trained.hparams.problem_hparams.vocabulary["inputs"]
    arrays["source_lengths"] = np.array([len(encoder.encode(line)) + 1 for line in source])
    arrays["source_sha256"] = np.array(test_sets.digest([source]))
    with contextlib.suppress(UserError):              # a model that does not record attention
        attention = attention_by_distance(Inspector(trained, beam_size=1), source, target,
                                          trained.hparams.max_length or sys.maxsize)
        arrays |= {f"{side}_attention": shares.astype(np.float32)
                   for side, shares in attention.items()}
    return arrays


def main(path: str, usr_dir: str = "") -> None:
    """Writes RUN/learned.npz."""
    from rpr.t2t import compat
    compat.install()                                  # before anything imports T2T
    run_dir = RunDirectory(path)
    arrays = _analyse(run_dir, usr_dir or None)
    with files.atomic_path(run_dir.file(CACHE)) as path, open(path, "wb") as out:
        np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
