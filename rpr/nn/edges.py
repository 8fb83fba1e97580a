"""Labelled edges between words: from one row of ids to a matrix of labels."""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list


def split_edges(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Separates words and edges that were encoded as one row of ids, as for a line of text.

    A row consists of the ids of the words, the end of sentence (1), three ids for each edge (the
    positions of its two ends and its label, each plus 2), another 1, and zeros.

    Args:
      ids: int32 [batch, length].

    Returns:
      the words with their 1, int32 [batch, words], and the labels of the edges between them,
      int32 [batch, words, words].
    """
    ends = tf.equal(ids, 1)
    word = tf.equal(tf.cumsum(tf.cast(ends, tf.int32), axis=1, exclusive=True), 0) & (ids > 0)
    words = tf.ragged.boolean_mask(ids, word).to_tensor()
    edges = tf.ragged.boolean_mask(ids, ~word & (ids > 1)).to_tensor(default_value=2) - 2
    return words, dense_edges(edges, shape_list(words)[1])


def dense_edges(triples: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """The matrix of edges that are given as triples.

    Args:
      triples: integers [batch, 3 * edges]: (i, j, label) for each edge, one after the other. Each
        (i, j) occurs at most once. A triple with label 0 or a position >= length is ignored.
      length: number of elements.

    Returns:
      int32 [batch, length, length], 0 where there is no edge.
    """
    batch = shape_list(triples)[0]
    triples = tf.reshape(tf.cast(triples, tf.int32), [batch, -1, 3])
    example = tf.broadcast_to(tf.range(batch)[:, None, None], tf.shape(triples[..., :1]))
    indices = tf.concat([example, triples[..., :2]], axis=2)         # [batch, edges, 3]
    valid = tf.reduce_max(triples[..., :2], axis=2) < length
    return tf.scatter_nd(tf.boolean_mask(indices, valid),
                         tf.boolean_mask(triples[..., 2], valid), [batch, length, length])
