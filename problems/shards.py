"""Writes the TFRecords of a problem, on all cores.

One process reads the text in order and distributes it in chunks. Workers encode the chunks; the
results are appended, in order, to one file per shard. Then workers shuffle the shards. The bytes
depend only on the text, not on the number of workers.

Memory holds a few chunks, and 16 bytes for each record of the shards that are being shuffled. The
disk holds the finished data, and the shards that are being shuffled a second time.
"""
import array
import collections
import concurrent.futures
import contextlib
import functools
import itertools
import multiprocessing
import os
import random
import re
import signal
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import generator_utils, text_encoder

from rpr.problems import checks
from rpr.utils import console
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.interfaces import TextProblem
from rpr.utils.processes import die_with

# Characters. T2T counts every substring of every word, so its time and memory grow with the square
# of the longest word. A longer word counts as its beginning.
LONGEST_COUNTED_WORD = 100

# T2T's tokens: runs of letters and digits (str.isalnum), and runs of anything else. A single space
# between two words is implied.
_find_tokens = re.compile(r"[^\W_]+|(?! [^\W_])[\W_]+|\A ").findall
_find_long_words = re.compile(rf"[^\W_]{{{LONGEST_COUNTED_WORD + 1},}}"
                              rf"|[\W_]{{{LONGEST_COUNTED_WORD + 1},}}")
# Tokens whose ids are cached. The number of different tokens grows with the text.
_CACHE_SIZE = 2**18
_CHUNK_PAIRS = 5000

Pool = concurrent.futures.ProcessPoolExecutor


@contextlib.contextmanager
def workers(problem: TextProblem, data_dir: str, tmp_dir: str, scratch: str) -> Iterator[Pool]:
    """Processes, one per available core, that have loaded the problem and its vocabulary.

    They are forked: a problem need not be picklable, and they inherit the lock on the data. The
    vocabulary is in data_dir; `scratch` is for temporary files.
    """
    pool = Pool(_worker_count(), multiprocessing.get_context("fork"), _Worker.start,
                (problem, data_dir, tmp_dir, scratch, os.getpid()))
    try:
        pool.submit(os.getpid).result()               # fork before progress lines start threads
        yield pool
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UserError(f"datagen of {problem.dataset_filename()}: a worker process was killed "
                        "(out of memory?); the same command starts it again") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _worker_count() -> int:
    return len(os.sched_getaffinity(0))


def write_split(pool: Pool, problem: TextProblem, split: str, samples: Iterable[dict[str, str]],
                shard_count: int, staging: str, scratch: str) -> dict[str, dict[str, int]]:
    """Writes the files of a split to `staging`; train is shuffled, dev and test keep their order.

    The samples are its text, as the problem's `generate_samples` yields it. Returns
    {file name: {"bytes": ..., "records": ...}}. A split without text is refused.
    """
    name = problem.dataset_filename()
    ordered = [os.path.join(scratch, f"{split}-{shard}") for shard in range(shard_count)]
    _encode_split(pool, name, split, samples, ordered)
    paths = [os.path.join(staging,
                          generator_utils.sharded_name(f"{name}-{split}", shard, shard_count))
             for shard in range(shard_count)]
    seeds = [f"{name} {shard}" if split == "train" else None for shard in range(shard_count)]
    futures = [pool.submit(_finish, *arguments)
               for arguments in zip(ordered, paths, seeds, strict=True)]
    with console.Task(f"{name}: {split}, shuffling", shard_count, "files") as task:
        for count, _ in enumerate(concurrent.futures.as_completed(futures), start=1):
            task.update(count)
    records = [future.result() for future in futures]
    return {os.path.basename(path): {"bytes": os.path.getsize(path), "records": count}
            for path, count in zip(paths, records, strict=True)}


def _encode_split(pool: Pool, name: str, split: str, samples: Iterable[dict[str, str]],
                  paths: list[str]) -> None:
    """Encodes the text of a split into one file of TFRecord frames per shard, in order."""
    pairs = 0
    with (contextlib.ExitStack() as stack,
          console.Task(f"{name}: {split}", None, "pairs") as task):
        shard_files = [stack.enter_context(open(path, "wb")) for path in paths]
        for count, encoded in _encode_in_order(pool, split, samples, len(paths)):
            for file, frames in zip(shard_files, encoded, strict=True):
                file.write(frames)
            pairs += count
            task.update(pairs)
    if not pairs:
        raise InvalidValue("problem", name, f"the {split} split is empty; if the text has only a "
                           "few dozen lines, or few different ones, give files for the development "
                           "and test sets")


def _encode_in_order(pool: Pool, split: str, samples: Iterable[dict[str, str]],
                     shard_count: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields (number of pairs, [frames of each shard]) for one chunk after the other."""
    samples = iter(samples)
    pending: collections.deque[Any] = collections.deque()
    first = 0
    while chunk := list(itertools.islice(samples, _CHUNK_PAIRS)):
        pending.append((len(chunk), pool.submit(_encode, split, chunk, first, shard_count)))
        first += len(chunk)
        while len(pending) > 2 * _worker_count() or pending and pending[0][1].done():
            count, future = pending.popleft()
            yield count, future.result()
    for count, future in pending:
        yield count, future.result()


# In a worker process.

class _Worker:
    """The state of a worker process."""

    problem: TextProblem
    data_dir = tmp_dir = scratch_file = ""

    @classmethod
    def start(cls, problem: TextProblem, data_dir: str, tmp_dir: str, scratch: str, parent: int
              ) -> None:
        """Loads the vocabulary; runs once in each process."""
        die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent ends this process
        encoder = problem.get_or_create_vocab(data_dir, tmp_dir)
        if type(encoder) is text_encoder.SubwordTextEncoder:      # not one of its subclasses
            encoder = SubwordEncoder(encoder.filename)
        problem.get_or_create_vocab = lambda *_, **__: encoder    # do not load it for every chunk
        cls.problem, cls.data_dir, cls.tmp_dir = problem, data_dir, tmp_dir
        cls.scratch_file = os.path.join(scratch, f"worker-{os.getpid()}")


def _encode(split: str, samples: list[dict[str, str]], first: int, shard_count: int) -> list[bytes]:
    """Encodes samples to TFRecord frames, as they are in a file: those of each shard.

    Samples are distributed one by one; `first` of the split were before these.
    """
    problem = _Worker.problem
    records: list[list[bytes]] = [[] for _ in range(shard_count)]
    problem.generate_samples = lambda *_, **__: iter(samples)
    encoded = problem.generate_encoded_samples(_Worker.data_dir, _Worker.tmp_dir,
                                               checks.SPLITS[split])
    for number, sample in enumerate(encoded, start=first + 1):
        records[number % shard_count].append(_serialize(sample))
    with tf.io.TFRecordWriter(_Worker.scratch_file) as writer:    # it can only write to files
        for record in itertools.chain.from_iterable(records):
            writer.write(record)
    with open(_Worker.scratch_file, "rb") as written:
        return [written.read(sum(checks.FRAME_BYTES + len(record) for record in shard))
                for shard in records]


def _serialize(sample: dict[str, list[int]]) -> bytes:
    # Deterministic: otherwise the order of a map in a message varies.
    return generator_utils.to_example(sample).SerializeToString(deterministic=True)


def _finish(ordered: str, path: str, seed: str | None) -> int:
    """Writes a finished shard from a file of frames in the order of the text, which is removed.

    Returns the number of its records. Without a seed of the shuffle the order is kept.
    """
    starts = array.array("Q", checks.frame_starts(ordered))
    order = array.array("L", range(len(starts) - 1))
    if seed is not None:
        random.Random(seed).shuffle(order)
    with open(ordered, "rb") as file:
        # pread: seeking would discard the buffer at every jump
        frames = (os.pread(file.fileno(), starts[index + 1] - starts[index], starts[index])
                  for index in order)
        if _Worker.problem.packed_length:
            count = _write_packed(path, frames)
        else:
            count = len(order)
            with open(path, "wb", buffering=checks.BUFFER_BYTES) as out:
                out.writelines(frames)
    os.unlink(ordered)
    return count


def _write_packed(path: str, frames: Iterable[bytes]) -> int:
    """Packs several sentences into an example, as T2T does; returns the number of examples."""
    def samples() -> Iterator[dict[str, list[int]]]:
        for frame in frames:
            features = tf.train.Example.FromString(frame[12:-4]).features.feature
            yield {name: list(features[name].int64_list.value) for name in features}

    count = 0
    with tf.io.TFRecordWriter(path) as writer:
        for sample in _Worker.problem._maybe_pack_examples(samples()):
            writer.write(_serialize(sample))
            count += 1
    return count


# Sub-words: T2T's encoding with the same ids, computed faster, and bounded cost for long words.

def shorten_long_words(text: str) -> list[str]:
    """Cuts words to LONGEST_COUNTED_WORD characters, for building a vocabulary.

    Returns the text and each character that it lost: a vocabulary has every character of its text.
    """
    lost: set[str] = set()

    def shorten(match: re.Match[str]) -> str:
        lost.update(match[0][LONGEST_COUNTED_WORD:])
        return match[0][:LONGEST_COUNTED_WORD]

    short = _find_long_words.sub(shorten, text)
    return [short, *sorted(lost - set(short))]


class SubwordEncoder(text_encoder.SubwordTextEncoder):
    """T2T's `SubwordTextEncoder` with tokens found by a regular expression and cached ids.

    T2T examines every character in Python; this is where stock t2t-datagen spends its time.
    """

    def __init__(self, filename: str) -> None:
        super().__init__(filename)
        self._ids = functools.lru_cache(_CACHE_SIZE)(self._token_ids)

    def encode(self, s: str) -> list[int]:
        ids: list[int] = []
        for token in _find_tokens(text_encoder.native_to_unicode(s)):
            ids += self._ids(token)
        return ids

    def _token_ids(self, token: str) -> list[int]:
        return self._escaped_token_to_subtoken_ids(
            text_encoder._escape_token(token, self._alphabet))
