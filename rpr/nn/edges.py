"""rpr.nn.edges"""
import tensorflow.compat.v1 as tf

from rpr.nn.ops import shape_list


def split_edges(ids):
    """Takes apart words and edges that came as one row of numbers, as a line of text gives them.

    A row is the ids of the words and the end of sentence (1), then for each edge its two places and
    its label, each 2 more than it is, another 1, and zeros.

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


def dense_edges(triples, length):
    """The matrix of edges that are given as triples.

    Args:
      triples: integers [batch, 3 * edges], (i, j, label) after each other, each (i, j) once; a
        triple whose label is 0, or with a place at `length` or beyond it, is left out.
      length: number of elements.

    Returns:
      int32 [batch, length, length], 0 where there is no edge.
    """
    batch = shape_list(triples)[0]
    triples = tf.reshape(tf.cast(triples, tf.int32), [batch, -1, 3])
    example = tf.broadcast_to(tf.range(batch)[:, None, None], tf.shape(triples[..., :1]))
    places = tf.concat([example, triples[..., :2]], axis=2)  # [batch, edges, 3]
    there = tf.reduce_max(triples[..., :2], axis=2) < length
    return tf.scatter_nd(tf.boolean_mask(places, there),
                         tf.boolean_mask(triples[..., 2], there), [batch, length, length])
