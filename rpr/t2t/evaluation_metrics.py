"""Metrics of T2T's evaluations that do not depend on how sentences are grouped into batches.

Approximate BLEU and ROUGE compare the most probable symbol at each position, given the expected
symbols before it, with the expected one. T2T's functions count padding and average over batches.
Those here ignore padding; BLEU counts n-grams of all sentences, ROUGE is the mean over sentences.
The accuracy per sentence leaves out rows that only fill a batch.
"""
import collections
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import metrics as t2t_metrics
from tensor2tensor.utils import rouge

MetricFunction = Callable[[tf.Tensor, dict[str, tf.Tensor], tf.Tensor], tuple[tf.Tensor, Any]]

_ORDERS = 4                                           # n-grams of 1 to 4 symbols


def loss_per_token(metrics: dict[str, tuple[tf.Tensor, Any]]) -> tuple[tf.Tensor, Any] | None:
    """(value, update operation) of the loss in nats per token, minus T2T's `neg_log_perplexity`.

    `metrics` has the same of each metric. None unless exactly one is `neg_log_perplexity`.
    """
    found = [metric for name, metric in metrics.items() if name.endswith("/neg_log_perplexity")]
    return (-found[0][0], found[0][1]) if len(found) == 1 else None


def accuracy_per_sequence(predictions: tf.Tensor, labels: tf.Tensor,
                          weights_fn: Callable[[tf.Tensor], tf.Tensor]
                          ) -> tuple[tf.Tensor, tf.Tensor]:
    """T2T's `padded_sequence_accuracy`, float32 [batch], and its weights: 0 for a row of padding.

    T2T takes such a row for a correct sentence. `predictions` are logits [batch, length, 1, 1,
    vocabulary], `labels` ids [batch, length, 1, 1]; `weights_fn` gives the weight of each id.
    """
    correct, _ = t2t_metrics.padded_sequence_accuracy(predictions, labels, weights_fn)
    weights = weights_fn(labels)
    counted = tf.reduce_any(tf.not_equal(weights, 0), axis=list(range(1, weights.shape.rank)))
    return correct, tf.to_float(counted)


def _approximate_bleu(logits: tf.Tensor, features: dict[str, tf.Tensor], labels: tf.Tensor
                      ) -> tuple[tf.Tensor, Any]:
    """T2T's `approx_bleu_score` (smoothed, on symbols) over the sentences of all batches.

    `logits` are [batch, length, 1, 1, vocabulary]; `labels` ids, [batch, length, 1, 1], 0 after the
    end; `features` are unused.
    """
    counts, update = _summed(_of_batch(_bleu_counts, logits, labels, 2 * _ORDERS + 2))
    return _in_python(_bleu, [counts], []), update


def _rouge(score: Callable[[list, list], float]) -> MetricFunction:
    """The mean over sentences of one of T2T's ROUGE scores; arguments as `_approximate_bleu`."""
    def metric(logits: tf.Tensor, features: dict[str, tf.Tensor], labels: tf.Tensor
               ) -> tuple[tf.Tensor, Any]:
        def total(predicted: np.ndarray, expected: np.ndarray) -> list[float]:
            scores = [score([ours], [theirs]) for ours, theirs in _sentences(predicted, expected)]
            return [float(np.sum(scores)), len(scores)]

        total_and_count, update = _summed(_of_batch(total, logits, labels, 2))
        return tf.math.divide_no_nan(total_and_count[0], total_and_count[1]), update
    return metric


OF_SENTENCES: dict[str, MetricFunction] = {
    "approx_bleu_score": _approximate_bleu, "rouge_2_fscore": _rouge(rouge.rouge_n),
    "rouge_L_fscore": _rouge(rouge.rouge_l_sentence_level)}


def _summed(values: tf.Tensor) -> tuple[tf.Tensor, tf.Operation]:
    """The sum of `values`, float64 [size], over all batches, and its update operation."""
    with tf.variable_scope(None, "sum"):
        total = tf.get_local_variable("total", values.shape, values.dtype, tf.zeros_initializer())
    return tf.identity(total), tf.assign_add(total, values)


def _of_batch(function: Callable[[np.ndarray, np.ndarray], list], logits: tf.Tensor,
              labels: tf.Tensor, size: int) -> tf.Tensor:
    """A function of predicted and expected ids, int [batch, length]: float64 [size]."""
    predicted = tf.argmax(logits, axis=-1, output_type=tf.int32)
    batch = [tf.squeeze(ids, [2, 3]) for ids in (predicted, labels)]
    return _in_python(function, batch, [size])


def _in_python(function: Callable, arguments: list[tf.Tensor], shape: list[int]) -> tf.Tensor:
    result = tf.py_func(lambda *values: np.asarray(function(*values), np.float64), arguments,
                        tf.float64, stateful=False)
    result.set_shape(shape)
    return result


def _sentences(predicted: np.ndarray, expected: np.ndarray) -> Iterator[tuple[list, list]]:
    """Predicted and expected ids of each sentence, without padding."""
    for ours, theirs in zip(predicted, expected, strict=True):
        if theirs.any():                              # else the row only fills the batch
            length = int(np.flatnonzero(theirs)[-1]) + 1
            yield ours[:length].tolist(), theirs[:length].tolist()


def _bleu_counts(predicted: np.ndarray, expected: np.ndarray) -> list[int]:
    """Matching and predicted n-grams of each order, then predicted and expected symbols."""
    matches, possible, lengths = [0] * _ORDERS, [0] * _ORDERS, [0, 0]
    for ours, theirs in _sentences(predicted, expected):
        lengths = [lengths[0] + len(ours), lengths[1] + len(theirs)]
        for order in range(1, _ORDERS + 1):
            counts = [collections.Counter(tuple(ids[at:at + order])
                                          for at in range(len(ids) - order + 1))
                      for ids in (ours, theirs)]
            matches[order - 1] += (counts[0] & counts[1]).total()
            possible[order - 1] += counts[0].total()
    return [*matches, *possible, *lengths]


def _bleu(counts: np.ndarray) -> float:
    """BLEU from `_bleu_counts`, smoothed as in T2T's `compute_bleu`."""
    matches, possible = counts[:_ORDERS], counts[_ORDERS:2 * _ORDERS]
    predicted, expected = counts[2 * _ORDERS:]
    smooth, logs = 1.0, []
    for matching, total in zip(matches, possible, strict=True):
        if total:
            if not matching:
                smooth *= 2
            logs.append(math.log((matching or 1 / smooth) / total))
    if not logs or not predicted:
        return 0.0
    return math.exp(sum(logs) / _ORDERS + min(0.0, 1 - expected / predicted))
