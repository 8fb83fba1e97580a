"""Writes the TFRecords of a problem on all cores, and goes on where a kill stopped it.

One process reads the text, in order, and hands it out in chunks; the workers encode them; what they
give back is added, in order, to a file a shard. Then each shard is shuffled by a worker. So the
bytes depend on nothing but the text: not on how many workers there are, nor on what was killed.

Memory holds a few chunks, and 16 bytes for each record of the shards in work; on disk lies what
will be there in the end, and the shards in work once more.

`progress.json` says up to which chunk the files hold everything. Whoever goes on cuts off what was
added to them after it was written.
"""
import array
import collections
import concurrent.futures
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import struct
import time

import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import generator_utils, text_encoder

from problems import checks, subwords
from rpr.utils import console, files
from rpr.utils.errors import UserError
from rpr.utils.processes import die_with

_CHUNK = 5000                                         # pairs
_SAVE_SECONDS = 2.0
_FRAME = 16                                           # bytes of a TFRecord beside its contents
_COPIED = 1 << 20                                     # bytes that are written at a time


class Progress:
    """What is done by now, in a file. A `key` that has changed since makes all of it void.

    Args:
      path: the file.
      key: what the work depends on; for JSON.
    """

    def __init__(self, path, key):
        self._path = path
        try:
            with open(path, encoding="utf-8") as text:
                self._content = json.load(text)
        except (FileNotFoundError, ValueError):
            self._content = {}
        self.resumed = self._content.get("key") == json.loads(json.dumps(key))
        if not self.resumed:
            self._content = {"key": key, "splits": {}}

    def __getitem__(self, split):
        """{"chunks": in the files, "sizes": bytes of each, "complete": whether that is all}."""
        return self._content["splits"].get(split, {"chunks": 0, "sizes": None, "complete": False})

    def save(self, split=None, **done):
        """Notes what is done of a split."""
        if split:
            self._content["splits"][split] = done
        files.write_atomically(self._path, json.dumps(self._content) + "\n")


@contextlib.contextmanager
def workers(problem, data_dir, tmp_dir, folder):
    """Processes, one a core that may be used, that know the problem and its vocabulary.

    They are forks: a problem need not be picklable, and the lock on the data is theirs too.

    Args:
      problem: a T2T text problem whose vocabulary is in data_dir.
      data_dir: where the vocabulary is.
      tmp_dir: where downloads are kept.
      folder: for files that nobody needs afterwards.
    """
    pool = concurrent.futures.ProcessPoolExecutor(
        len(os.sched_getaffinity(0)), multiprocessing.get_context("fork"), _Worker.begin,
        (problem, data_dir, tmp_dir, folder, os.getpid()))
    try:
        pool.submit(os.getpid).result()               # fork before progress lines have threads
        yield pool
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UserError(f"datagen of {problem.dataset_filename()}: a worker died (out of memory?); "
                        "the same command goes on from here") from error
    finally:
        pool.shutdown(cancel_futures=True)


def write_split(pool, problem, split, shards, staging, tmp_dir, folder, progress):
    """Writes the files of a split; train is shuffled, dev and test keep their order.

    Args:
      pool: `workers`.
      problem: a T2T text problem.
      split: "train", "dev" or "test".
      shards: number of files.
      staging: where the files go, each when it is whole.
      tmp_dir: where downloads are kept.
      folder: for files that are not whole yet.
      progress: a `Progress`, kept beside them.

    Returns:
      {file name: {"bytes": ..., "records": ...}}

    Raises:
      UserError: there is no text, or it cannot be read or encoded.
    """
    name = problem.dataset_filename()
    raw = [os.path.join(folder, f"{split}-{shard}") for shard in range(shards)]
    if not progress[split]["complete"]:
        _encode_split(pool, problem, split, raw, staging, tmp_dir, progress)
    paths = [os.path.join(staging, generator_utils.sharded_name(f"{name}-{split}", shard, shards))
             for shard in range(shards)]
    seeds = [f"{name} {shard}" if split == "train" else None for shard in range(shards)]
    futures = [pool.submit(_finish, *each) for each in zip(raw, paths, seeds, strict=True)]
    with console.Task(f"{name}: {split}, order", shards, "files") as task:
        for count, _ in enumerate(concurrent.futures.as_completed(futures), start=1):
            task.update(count)
    records = [future.result() for future in futures]
    return {os.path.basename(path): {"bytes": os.path.getsize(path), "records": count}
            for path, count in zip(paths, records, strict=True)}


def _encode_split(pool, problem, split, raw, staging, tmp_dir, progress):
    """Encodes the text of a split into one file a shard, from where an earlier try got to."""
    name, done = problem.dataset_filename(), progress[split]
    sizes = done["sizes"] or [0] * len(raw)
    there = [os.path.getsize(path) if os.path.exists(path) else 0 for path in raw]
    if any(found < size for found, size in zip(there, sizes, strict=True)):
        done, sizes = {"chunks": 0}, [0] * len(raw)   # the machine went down before they were saved
    pairs = chunks = done["chunks"]
    pairs *= _CHUNK
    if chunks:
        console.terminal.print(f"{name}: {split} goes on after {pairs:,} pairs", highlight=False)
    samples = itertools.islice(
        problem.generate_samples(staging, tmp_dir, checks.SPLITS[split]), pairs, None)
    with (contextlib.ExitStack() as stack,
          console.Task(f"{name}: {split}", None, "pairs", begun=pairs) as task):
        out = [stack.enter_context(open(path, "ab")) for path in raw]
        for file, size in zip(out, sizes, strict=True):
            file.truncate(size)
            file.seek(0, os.SEEK_END)
        saved = time.monotonic()
        for count, encoded in _in_order(pool, split, samples, pairs, len(raw)):
            for file, frames in zip(out, encoded, strict=True):
                file.write(frames)
            chunks, pairs = chunks + 1, pairs + count
            task.update(pairs)
            if time.monotonic() - saved >= _SAVE_SECONDS and count == _CHUNK:
                _save(progress, split, chunks, out)
                saved = time.monotonic()
        if not pairs:
            raise UserError(f"--problem={name}: the {split} split is empty")
        _save(progress, split, chunks, out, complete=True)


def _save(progress, split, chunks, out, complete=False):
    for file in out:
        file.flush()
    progress.save(split, chunks=chunks, sizes=[file.tell() for file in out], complete=complete)


def _in_order(pool, split, samples, first, shards):
    """Yields (pairs, [frames for each shard]) of one chunk after the other."""
    pending = collections.deque()
    while chunk := list(itertools.islice(samples, _CHUNK)):
        pending.append((len(chunk), pool.submit(_encode, split, chunk, first, shards)))
        first += len(chunk)
        while len(pending) > 2 * pool._max_workers or pending and pending[0][1].done():
            count, future = pending.popleft()
            yield count, future.result()
    for count, future in pending:
        yield count, future.result()


# In a worker.

class _Worker:
    """What a worker knows."""

    problem = data_dir = tmp_dir = scratch = None

    @classmethod
    def begin(cls, problem, data_dir, tmp_dir, folder, parent):
        die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent ends us
        encoder = problem.get_or_create_vocab(data_dir, tmp_dir)
        if type(encoder) is text_encoder.SubwordTextEncoder:      # not a class derived from it
            encoder = subwords.SubwordEncoder(encoder.filename)
        problem.get_or_create_vocab = lambda *_, **__: encoder    # loaded once, not with each chunk
        cls.problem, cls.data_dir, cls.tmp_dir = problem, data_dir, tmp_dir
        cls.scratch = os.path.join(folder, f"worker-{os.getpid()}")


def _encode(split, samples, first, shards):
    """The frames, as they stand in a TFRecord file, of samples: [bytes, one a shard].

    Args:
      split: "train", "dev" or "test".
      samples: what the problem's `generate_samples` yields.
      first: how many samples of the split come before.
      shards: number of files.
    """
    problem, records = _Worker.problem, [[] for _ in range(shards)]
    problem.generate_samples = lambda *_, **__: iter(samples)
    encoded = problem.generate_encoded_samples(_Worker.data_dir, _Worker.tmp_dir,
                                               checks.SPLITS[split])
    for number, sample in enumerate(encoded, start=first + 1):
        records[number % shards].append(_record(sample))
    with tf.io.TFRecordWriter(_Worker.scratch) as writer:         # it only writes files
        for record in itertools.chain.from_iterable(records):
            writer.write(record)
    with open(_Worker.scratch, "rb") as written:
        return [written.read(sum(_FRAME + len(record) for record in shard)) for shard in records]


def _record(sample):
    # A map's order in a message is not fixed otherwise.
    return generator_utils.to_example(sample).SerializeToString(deterministic=True)


def _finish(raw, path, seed):
    """Makes a file of a data set of a shard's frames; returns the number of its records.

    Args:
      raw: the frames, in the order of the text; removed.
      path: the file; if it is there, nothing is left to do.
      seed: of the order; None keeps it.
    """
    if os.path.exists(path):
        return checks.count_records(path)
    starts = array.array("Q", _starts(raw))
    order = array.array("L", range(len(starts) - 1))
    if seed is not None:
        random.Random(seed).shuffle(order)
    with open(raw, "rb") as frames:
        # pread leaves no buffer behind at each jump
        ordered = (os.pread(frames.fileno(), starts[place + 1] - starts[place], starts[place])
                   for place in order)
        if _Worker.problem.packed_length:
            count = _write_packed(raw + ".part", ordered)
        else:
            count = len(order)
            with open(raw + ".part", "wb", buffering=_COPIED) as out:
                out.writelines(ordered)
    os.replace(raw + ".part", path)
    os.unlink(raw)
    return count


def _starts(path):
    """Where each frame of a file begins; at last, where the file ends."""
    position, size = 0, os.path.getsize(path)
    with open(path, "rb", buffering=_COPIED) as frames:
        while position < size:
            yield position
            length, = struct.unpack("<Q", frames.read(8))
            position += _FRAME + length
            frames.seek(_FRAME - 8 + length, os.SEEK_CUR)
    yield position


def _write_packed(path, frames):
    """Several sentences an example, as T2T packs them; returns the number of examples."""
    def samples():
        for frame in frames:
            features = tf.train.Example.FromString(frame[12:-4]).features.feature
            yield {name: list(features[name].int64_list.value) for name in features}

    count = 0
    with tf.io.TFRecordWriter(path) as writer:
        for sample in _Worker.problem._maybe_pack_examples(samples()):
            writer.write(_record(sample))
            count += 1
    return count
