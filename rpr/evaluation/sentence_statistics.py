"""Sufficient statistics of whole test sets: in blocks, on all cores, cached beside the hypotheses.

Blocks keep memory small. The cache of `hyp.txt` is `.hyp.txt.statistics.npz` in the same directory.
It is used only for the same lines, references, metric and version of sacreBLEU; it may be removed.
"""
import concurrent.futures
import contextlib
import hashlib
import multiprocessing
import os
import signal
import stat
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rpr.evaluation.metrics import Metric
from rpr.utils import files, processes

BLOCK_LINES = 500
BLOCK_HYPOTHESES = 5000                               # of all systems
LEAST_PARALLEL_LINES = 4000                           # of all systems; fewer take one process

_worker_metrics: dict[str, Metric] = {}


def sentence_statistics(metrics: Sequence[Metric], systems: Mapping[str, Sequence[str]],
                        references: Sequence[Sequence[str]],
                        paths: Mapping[str, str] | None = None
                        ) -> dict[str, dict[str, np.ndarray]]:
    """Sufficient statistics of every sentence of every system.

    Args:
      metrics: what to compute.
      systems: {name: lines}, of the same sentences.
      references: the lines of each reference.
      paths: {name: file that holds the system's lines}; statistics are cached beside these files.

    Returns:
      {metric's name: {system's name: [sentences, counts], float64}}.
    """
    paths = paths or {}
    reference_digest = _digest(references)
    caches = {name: _Cache(path, _digest([systems[name]]) + reference_digest)
              for name, path in paths.items()}
    results: dict[str, dict[str, np.ndarray]] = {metric.name: {} for metric in metrics}
    missing: dict[str, list[str]] = {metric.name: [] for metric in metrics}
    for name, lines in systems.items():
        cached = caches[name].read(metrics, len(lines)) if name in caches else {}
        for metric in metrics:
            if metric.name in cached:
                results[metric.name][name] = cached[metric.name]
            else:
                missing[metric.name].append(name)
    _compute(metrics, missing, systems, references, results)
    for name, cache in caches.items():
        if any(name in names for names in missing.values()):
            cache.write(metrics, {metric.name: results[metric.name][name] for metric in metrics})
    return results


def _compute(metrics: Sequence[Metric], missing: Mapping[str, Sequence[str]],
             systems: Mapping[str, Sequence[str]], references: Sequence[Sequence[str]],
             results: Mapping[str, dict[str, np.ndarray]]) -> None:
    """Fills in the missing statistics."""
    sentences = len(references[0])
    size = max(1, min(BLOCK_LINES, BLOCK_HYPOTHESES // len(systems)))
    names = [metric.name for metric in metrics if missing[metric.name]]
    tasks = [(name, [systems[system][start:start + size] for system in missing[name]],
              [lines[start:start + size] for lines in references])
             for name in names for start in range(0, sentences, size)]
    blocks: dict[str, list[list[np.ndarray]]] = {name: [] for name in names}
    with _task_map(metrics, sentences * len(systems)) as task_map:
        for task, block in zip(tasks, task_map(_compute_block, tasks), strict=True):
            blocks[task[0]].append(block)
    for name in names:
        for system, parts in zip(missing[name], zip(*blocks[name], strict=True), strict=True):
            results[name][system] = np.concatenate(parts)


@contextlib.contextmanager
def _task_map(metrics: Sequence[Metric], lines: int) -> Iterator:
    """`map`, or that of a pool of processes where that pays and forking is safe."""
    cores = len(os.sched_getaffinity(0))
    _worker_metrics.update({metric.name: metric for metric in metrics})
    if (lines < LEAST_PARALLEL_LINES or cores < 2 or threading.active_count() > 1
            or "tensorflow" in sys.modules):          # threads do not survive a fork
        yield map
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        cores, multiprocessing.get_context("fork"), _start_worker, (os.getpid(),))
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(parent: int) -> None:
    processes.die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)      # the parent answers Ctrl-C


def _compute_block(task: tuple[str, list[Sequence[str]], list[Sequence[str]]]
                   ) -> list[np.ndarray]:
    name, systems, references = task
    return _worker_metrics[name].sentence_statistics(systems, references)


def _digest(texts: Sequence[Sequence[str]]) -> str:
    """SHA-256 of lines."""
    digest = hashlib.sha256()
    for lines in texts:
        for line in lines:
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
        digest.update(b"\0\n")
    return digest.hexdigest()


class _Cache:
    """The statistics of one file of hypotheses.

    Args:
      path: the file of hypotheses.
      text_digest: of its lines and the references.
    """

    def __init__(self, path: str, text_digest: str) -> None:
        folder, name = os.path.split(path)
        self._hypotheses = path
        self._path = os.path.join(folder, f".{name}.statistics.npz")
        self._text_digest = text_digest

    def _key(self, metric: Metric) -> str:
        made_of = f"{self._text_digest} {metric.signature()}"
        return f"{metric.name}-{hashlib.sha256(made_of.encode()).hexdigest()}"

    def read(self, metrics: Sequence[Metric], sentences: int) -> dict[str, np.ndarray]:
        """{metric's name: statistics} of what is cached; anything unexpected is ignored."""
        statistics = {}
        try:
            if not stat.S_ISREG(os.lstat(self._path).st_mode):
                return {}
            with np.load(self._path, allow_pickle=False) as archive:
                sizes = {info.filename: info.file_size for info in archive.zip.infolist()}
                for metric in metrics:
                    key = self._key(metric)
                    limit = sentences * metric.counts * 8 + 1000
                    if sizes.get(f"{key}.npy", limit + 1) > limit:
                        continue
                    array = archive[key]
                    if array.shape == (sentences, metric.counts) and array.dtype.kind in "if":
                        statistics[metric.name] = array.astype(np.float64)
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return {}
        return statistics

    def write(self, metrics: Sequence[Metric], statistics: Mapping[str, np.ndarray]) -> None:
        """Replaces the cache; does nothing where the directory cannot be written."""
        if not os.path.isfile(self._hypotheses):      # a pipe, for example
            return
        arrays = {}
        for metric in metrics:
            values = statistics[metric.name]
            counts = values.astype(np.int32)
            arrays[self._key(metric)] = counts if np.array_equal(counts, values) else values
        with contextlib.suppress(OSError), files.atomic_path(self._path) as temporary, \
                open(temporary, "wb") as out:
            np.savez(out, **arrays)
