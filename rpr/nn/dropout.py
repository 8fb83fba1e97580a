"""Dropout whose masks are a function of the seed, the batch and the place in the model.

TensorFlow's dropout draws from a generator whose state ends with the process. Here there is no
state: a mask is the output of a counter-based generator (Philox; Salmon et al. 2011), keyed by the
seed and the name of the place, with the number of the batch as its counter. A resumed training
therefore draws the masks of an uninterrupted one, and two models of a study draw equal masks at
places of equal name and shape.
"""
import collections
import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list

_PHILOX = 1                                           # TensorFlow's number of the algorithm
_active = threading.local()                           # replicas are built in a thread each


@contextlib.contextmanager
def reproducible_masks(seed: int, batch: tf.Tensor) -> Iterator[None]:
    """Within this context the masks of `dropout` are a function of seed, batch and variable scope.

    `batch` is an int64 scalar, a number that no other batch of the training has.
    """
    # Within a mask the generator counts in the lower word.
    counter = tf.bitcast(tf.stack([tf.zeros_like(batch), batch]), tf.uint64)
    _active.masks = seed, counter, collections.Counter()
    try:
        yield
    finally:
        _active.masks = None


def dropout(x: tf.Tensor, rate: float, broadcast_dims: Sequence[int] = ()) -> tf.Tensor:
    """Dropout; elements are dropped independently except along `broadcast_dims`.

    Along those axes all elements share one decision. The rate, the probability of dropping an
    element, in [0, 1), is rounded to a multiple of 2^-16. Kept elements are divided by one minus
    the rounded rate. Outside `reproducible_masks`, masks follow TensorFlow's seeds.
    """
    dropped = min(round(rate * 2 ** 16), 2 ** 16 - 1)
    if not dropped:
        return x
    shape = shape_list(x)
    for axis in broadcast_dims:
        shape[axis] = 1
    kept = random_integers(shape, tf.uint16) >= tf.constant(dropped, tf.uint16)
    return tf.where_v2(kept, x * tf.constant(2 ** 16 / (2 ** 16 - dropped), x.dtype),
                       tf.zeros([], x.dtype))


def random_integers(shape: list, dtype: tf.DType, name: str = "") -> tf.Tensor:
    """Independent uniform values, uint16 or uint32, as reproducible as the masks of `dropout`.

    Each 64-bit output of the generator makes four or two values. Within `reproducible_masks` all
    calls with a `name` get the same values; without one, each call gets others.
    """
    masks = getattr(_active, "masks", None)
    if masks:
        seed, counter, uses = masks
        place = name or tf.get_variable_scope().name
        if not name:
            uses[place] += 1                                 # towers share their scopes
        key = tf.constant([stable_hash(seed, place, uses[place])], tf.uint64)
    else:
        key = tf.bitcast(tf.random.uniform([1], tf.int64.min, tf.int64.max, tf.int64), tf.uint64)
        counter = tf.zeros([2], tf.uint64)
    count, per_word = tf.reduce_prod(shape), 8 // dtype.size
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[(count + per_word - 1) // per_word], key=key, counter=counter, alg=_PHILOX,
        dtype=tf.uint64)
    return tf.reshape(tf.reshape(tf.bitcast(words, dtype), [-1])[:count], shape)


def stable_hash(*parts: int | str) -> int:
    """A hash of 64 bits of the parts in their order."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little")
