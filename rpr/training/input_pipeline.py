"""The batches of a training, read from T2T's data files in the order of `rpr.training.data_order`.

T2T's own pipeline shuffles with Python's global random state, lets threads decide which file is
read next, and starts from the beginning whenever a training resumes. Here the files are scanned
once for the place and the lengths of each record; then each batch is read by its number. Padding,
bucket boundaries and batch sizes are T2T's, with two exceptions. If the step is compiled, the
buckets are few and all batches of a bucket have one shape. With `use_fixed_batch_size` there are
buckets as well; T2T mixes all lengths then.

Where a problem does not have one example per record (packed batches, targets that are split), T2T's
pipeline is used, in a fixed order; a resumed training then reads and discards the batches that it
has seen.
"""
import mmap
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import problem as t2t_problem
from tensor2tensor.utils import data_reader

from rpr.problems.checks import has_one_example_per_record
from rpr.training.data_order import DataOrder, few_boundaries
from rpr.utils.console import say
from rpr.utils.errors import UserError
from rpr.utils.interfaces import HParams, Problem

BATCH_NUMBER = "batch_number"                         # a feature: int64 scalar
_FRAME, _HEADER = 16, 12                              # bytes of a TFRecord around and before data
_SCAN_BATCH = 1024                                    # records
_READ_AHEAD = 8                                       # batches
_SIDES = ("inputs", "targets")

InputFunction = Callable[[Any, Any], Any]


class Stream(NamedTuple):
    """Which batches of a training this process reads: first, first + step, first + 2 step, ...

    `step` is the number of processes that read, each its own share.
    """
    seed: int
    first: int
    step: int


def reproducible_input(problem: Problem, hparams: HParams, data_dir: str,
                       stream: Callable[[], Stream], few_shapes: bool = False) -> InputFunction:
    """An Estimator's input function whose batches are a function of seed and number.

    `stream` is called whenever the Estimator starts reading. With `few_shapes` all batches of a
    bucket have one shape, see `few_boundaries`. The features include BATCH_NUMBER.
    """
    def input_fn(params: Any, config: Any) -> Any:
        del params
        towers = config.data_parallelism.n if config.data_parallelism else 1
        paths = sorted(tf.gfile.Glob(problem.filepattern(data_dir, tf.estimator.ModeKeys.TRAIN)))
        if has_one_example_per_record(problem, hparams) and all(map(os.path.isfile, paths)):
            dataset = _indexed(problem, hparams, data_dir, paths, towers, stream(), config,
                               few_shapes)
        elif few_shapes:
            raise UserError("xla_compile: packed and split examples and problems with their own "
                            "input have batches of too many shapes")
        else:
            if hparams.split_to_length:
                _check_split(problem, hparams.split_to_length, paths, config.session_config)
            dataset = _sequential(problem, hparams, data_dir, stream(), config)
        options = tf.data.Options()
        if not config.train_distribute:               # a strategy schedules its input itself
            options.experimental_warm_start = True
        options.autotune.enabled = False              # it takes a thread; the numbers are given
        options.deterministic = True
        return dataset.with_options(options)

    return input_fn


@tf.autograph.experimental.do_not_convert             # no Python control flow depends on tensors
def _indexed(problem: Problem, hparams: HParams, data_dir: str, paths: Sequence[str], towers: int,
             stream: Stream, config: Any, few_shapes: bool) -> Any:
    """Batches read by their numbers."""
    if not hparams.get("data_dir"):                   # as T2T's `Problem.dataset` before it reads
        (hparams.set_hparam if "data_dir" in hparams else hparams.add_hparam)("data_dir", data_dir)
    problem.get_hparams(hparams)

    def example(record: tf.Tensor) -> dict:
        features = problem.preprocess_example(problem.decode_example(record),
                                              tf.estimator.ModeKeys.TRAIN, hparams)
        return data_reader.cast_ints_to_int32(problem.maybe_reverse_and_copy(features))

    fields = _unprocessed_fields(problem, hparams)

    def length(serialized: tf.Tensor) -> tf.Tensor:
        if fields:
            return _lengths(serialized, fields, problem)
        return tf.map_fn(lambda record: _lengths_of_example(example(record)), serialized, tf.int64)

    records = Records(paths, *_scan(paths, length, config.session_config))
    order = _order(problem, hparams, records.lengths, towers, stream.seed, few_shapes)
    longest = np.array([records.lengths[ids, 1:].max(axis=0) for ids in order.buckets])
    if few_shapes:
        say(f"rpr train: compiling the step for {len(longest)} shapes of batches, each when it "
            "first occurs; the first steps take seconds each")

    def read(number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return records.read(order.batch(int(number))), longest[order.bucket(int(number))]

    def batch(number: tf.Tensor) -> tuple[dict, tf.Tensor]:
        serialized, lengths = tf.numpy_function(read, [number], [tf.string, tf.int64])
        serialized.set_shape([None])
        examples = tf.data.Dataset.from_tensor_slices(serialized).map(example)
        shapes = None
        if few_shapes:
            shapes = {name: [lengths[int(name == "targets")] if size is None else size
                             for size in shape.as_list()]
                      for name, shape in tf.data.get_output_shapes(examples).items()}
        padded = data_reader.padded_batch(examples, tf.size(serialized, out_type=tf.int64), shapes)

        features = data_reader.standardize_shapes(tf.data.experimental.get_single_element(padded))
        targets = features[hparams.get("labels_feature_name", "targets")]
        return {**features, BATCH_NUMBER: number}, targets

    numbers = tf.data.Dataset.range(stream.first, 1 << 62, stream.step)
    return numbers.map(batch, num_parallel_calls=_cores()).prefetch(_READ_AHEAD)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class Records:
    """Random access to the records of TFRecord files.

    Args:
      paths: the files.
      sizes: int64 [records], bytes of each record, file by file.
      lengths: int [records, 3], the lengths of each example: the longest feature, source, target.
      counts: int [files], records of each file.
    """

    def __init__(self, paths: Sequence[str], sizes: np.ndarray, lengths: np.ndarray,
                 counts: np.ndarray) -> None:
        self.lengths = lengths
        self._sizes = sizes
        self._file = np.repeat(np.arange(len(paths)), counts)
        ends = np.cumsum(sizes + _FRAME)
        before = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(counts)[:-1]])]
        self._begins = ends - sizes - _FRAME + _HEADER - before[self._file]
        self._maps = []
        for path in paths:
            with open(path, "rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                                  if os.path.getsize(path) else b"")

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The records of ids, int [count], as bytes: object [count]."""
        places = zip(self._file[ids].tolist(), self._begins[ids].tolist(),
                     self._sizes[ids].tolist(), strict=True)
        return np.array([self._maps[file][begin:begin + size] for file, begin, size in places],
                        dtype=object)


def _unprocessed_fields(problem: Problem, hparams: HParams) -> dict | None:
    """The fields of a problem's records if all are ids that reach the model as they are."""
    fields, decoders = problem.example_reading_spec()
    unprocessed = (
        type(problem).preprocess_example is t2t_problem.Problem.preprocess_example
        and hparams.max_input_seq_length <= 0 and hparams.max_target_seq_length <= 0
        and hparams.prepend_mode == "none" and decoders is None
        and all(field == tf.VarLenFeature(tf.int64) for field in fields.values()))
    return fields if unprocessed else None


def _lengths(serialized: tf.Tensor, fields: dict, problem: Problem) -> tf.Tensor:
    """The lengths of unprocessed examples, without decoding one by one: int64 [batch, 3]."""
    features = tf.io.parse_example(serialized, fields)
    lengths = problem.maybe_reverse_and_copy({name: tf.sparse.reduce_sum(
        tf.SparseTensor(x.indices, tf.ones_like(x.values), x.dense_shape), axis=1)
        for name, x in features.items()})
    longest = tf.reduce_max(tf.stack(list(lengths.values())), axis=0)
    longest = tf.maximum(longest, 1)                  # as T2T, which adds a key to each example
    return tf.stack([longest, *(lengths.get(side, tf.zeros_like(longest)) for side in _SIDES)], 1)


def _lengths_of_example(features: dict) -> tf.Tensor:
    """The lengths of an example: int64 [3]."""
    return tf.stack([tf.to_int64(data_reader.example_length(features)), *(
        tf.size(features[side], out_type=tf.int64) if side in features
        else tf.constant(0, tf.int64) for side in _SIDES)])


def _scan(paths: Sequence[str], length: Callable[[tf.Tensor], tf.Tensor], session_config: Any
          ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes, lengths and counts as `Records` takes them. Verifies the records' checksums.

    `length` returns the lengths of a batch of records, int64 [batch, 3]. The configuration must be
    that of the training: the first session of a process sets the number of threads for all.
    """
    def measure(file: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
        sizes = tf.to_int64(tf.strings.length(serialized))
        return tf.concat([tf.stack([file, sizes], axis=1), length(serialized)], axis=1)

    def records(file: tf.Tensor, path: tf.Tensor) -> Any:
        return tf.data.TFRecordDataset(path, buffer_size=1 << 20).map(
            lambda record: (file, record))

    with tf.Graph().as_default(), tf.Session(config=session_config) as session:
        tf.set_random_seed(1)         # TF_DETERMINISTIC_OPS=1 asks for one, though nothing is drawn
        numbered = (np.arange(len(paths)), np.array(paths, dtype=object))
        dataset = tf.data.Dataset.from_tensor_slices(numbered).flat_map(records).batch(
            _SCAN_BATCH).map(measure, num_parallel_calls=_cores())
        following = tf.data.make_one_shot_iterator(dataset.prefetch(2)).get_next()
        rows = [np.zeros([0, 5], np.int64)]
        try:
            while True:
                rows.append(session.run(following))
        except tf.errors.OutOfRangeError:
            pass
    table = np.concatenate(rows)
    return table[:, 1], table[:, 2:], np.bincount(table[:, 0], minlength=len(paths))


def _check_split(problem: Problem, length: int, paths: Sequence[str], session_config: Any) -> None:
    """Refuses training examples of which T2T cannot make examples of one length."""
    fields = {name: field for name, field in problem.example_reading_spec()[0].items()
              if name in _SIDES and field == tf.VarLenFeature(tf.int64)}
    if not fields:
        return
    _, lengths, _ = _scan(paths, lambda serialized: _lengths(serialized, fields, problem),
                          session_config)
    unequal = (len(fields) == 2) & (lengths[:, 1] != lengths[:, 2])
    bad = int(np.count_nonzero(unequal | (lengths[:, 1:] % length).any(axis=1)))
    if bad:
        raise UserError(f"split_to_length={length}: the lengths of {bad:,} of {len(lengths):,} "
                        "training examples are not multiples of it, or those of source and target "
                        "differ")


def _order(problem: Problem, hparams: HParams, lengths: np.ndarray, towers: int, seed: int,
           few_shapes: bool) -> DataOrder:
    """The order of the examples that T2T would use, in T2T's buckets or in few."""
    sides, lengths = lengths[:, 1:], lengths[:, 0]
    in_one_row = hparams.get("decoder_only") and getattr(problem, "has_inputs", True)
    if in_one_row:
        lengths = sides.sum(axis=1)
    used = (lengths >= hparams.min_length) & (lengths <= problem.max_length(hparams))
    if used.sum() < towers:
        raise UserError(f"{used.sum()} training examples have {hparams.min_length} to "
                        f"{problem.max_length(hparams)} sub-words (min_length, max_length); "
                        f"expected at least {towers}, one per device")
    scheme = data_reader.hparams_to_batching_scheme(
        hparams, shard_multiplier=towers,
        length_multiplier=problem.get_hparams().batch_size_multiplier)
    boundaries, sizes = scheme["boundaries"], scheme["batch_sizes"]
    if few_shapes:
        lengths = sides.max(axis=1)
        boundaries = few_boundaries(sides[used])
        together = 2 if in_one_row else 1             # sides of that length in a row
        sizes = [max(1, hparams.batch_size // (together * longest)) * towers for longest in (
            *(boundary - 1 for boundary in boundaries), int(lengths[used].max()))]
    if hparams.use_fixed_batch_size:                  # a count of sentences
        sizes = [hparams.batch_size * towers] * len(sizes)
    return DataOrder(np.flatnonzero(used), lengths[used], boundaries, sizes, seed, towers)


@tf.autograph.experimental.do_not_convert
def _sequential(problem: Problem, hparams: HParams, data_dir: str, stream: Stream, config: Any
                ) -> Any:
    """T2T's own batches, in an order that depends on the seed only; those before `first` are read
    and discarded."""
    random.seed(stream.seed)                          # T2T shuffles the file names with it
    batches = problem.input_fn(tf.estimator.ModeKeys.TRAIN, hparams, data_dir=data_dir,
                               config=config)

    def number(index: tf.Tensor, batch: tuple) -> tuple[dict, tf.Tensor]:
        return {**batch[0], BATCH_NUMBER: index}, batch[1]

    return batches.enumerate().map(number).shard(stream.step, stream.first % stream.step).skip(
        stream.first // stream.step)
