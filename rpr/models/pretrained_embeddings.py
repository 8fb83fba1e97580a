"""Pretrained word embeddings that are read from a file and not trained.

The hparams `pretrained_source_embeddings` and `pretrained_target_embeddings` name files of word
vectors (`rpr.problems.vectors`), relative to the data directory or absolute. No optimizer updates
the table; checkpoints and averages contain it. Once there is a checkpoint the file is not read
again.
"""
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import text_encoder
from tensor2tensor.layers import modalities

from rpr.problems import vectors
from rpr.utils.errors import UserError
from rpr.utils.interfaces import HParams, Problem

# feature -> (hparam, T2T's function that embeds the feature)
_SIDES = {"inputs": ("pretrained_source_embeddings", modalities.symbol_bottom),
          "targets": ("pretrained_target_embeddings", modalities.symbol_targets_bottom)}
_MAX_LISTED = 5                                       # words without a vector, in a message


def use_pretrained_embeddings(hparams: HParams, vocabularies: Callable[[], dict[str, Any]]) -> None:
    """Makes a model embed its symbols with the files that its hparams, changed in place, name.

    `vocabularies` returns T2T's encoders by feature.
    """
    for feature in _pretrained_features(hparams):
        hparams.bottom = {**hparams.bottom, feature: functools.partial(
            _bottom, feature, _SIDES[feature][1], vocabularies)}


def _pretrained_features(hparams: HParams) -> Iterator[str]:
    """The features that are embedded from files; refuses what other hparams do not allow."""
    for feature, (hparam, _) in _SIDES.items():
        if not hparams.get(hparam):
            continue
        setting = f"{hparam}={hparams.get(hparam)}"
        if hparams.shared_embedding_and_softmax_weights or hparams.get("shared_embedding"):
            raise UserError(f"{setting}: the table is not trained and cannot be shared; "
                            "shared_embedding_and_softmax_weights=False is needed")
        if hparams.symbol_modality_num_shards != 1:
            raise UserError(f"{setting}: the table has one shard; symbol_modality_num_shards=1 is "
                            "needed")
        yield feature


def _bottom(feature: str, t2t_bottom: Callable, vocabularies: Callable[[], dict[str, Any]],
            ids: tf.Tensor, hparams: HParams, symbols: int) -> tf.Tensor:
    """T2T's function over a table that is not trained."""
    def initial_value(shape: list[int], dtype: tf.DType = tf.float32,
                      partition_info: Any = None) -> tf.Tensor:
        del dtype, partition_info

        def read() -> np.ndarray:
            table = np.zeros(shape, np.float32)       # rows added by vocab_divisor stay zero
            rows = _checked_table(hparams, feature, vocabularies()[feature])
            table[:len(rows)] = rows
            return table

        # Runs only without a checkpoint. A constant would be part of every saved graph.
        return tf.ensure_shape(tf.numpy_function(read, [], tf.float32), shape)

    def not_trained(getter: Callable, name: str, *args: Any, **kwargs: Any) -> Any:
        return getter(name, *args, **{**kwargs, "trainable": False, "initializer": initial_value})

    with tf.variable_scope(tf.get_variable_scope(), custom_getter=not_trained):
        return t2t_bottom(ids, hparams, symbols)


def check(hparams: HParams, problem: Problem, data_dir: str) -> None:
    """Refuses files of vectors that do not fit the model, before a training writes anything."""
    for feature in _pretrained_features(hparams):
        problem.get_feature_encoders(data_dir)
        _checked_table(hparams, feature, problem.get_hparams(hparams).vocabulary[feature],
                       data_dir)


def _checked_table(hparams: HParams, feature: str, vocabulary: Any,
                   data_dir: str | None = None) -> np.ndarray:
    """float32 [symbols, hidden]: see `table`."""
    hparam = _SIDES[feature][0]
    path = os.path.join(data_dir or hparams.get("data_dir") or "",
                        os.path.expanduser(hparams.get(hparam)))
    if not os.path.exists(path):
        raise UserError(f"{hparam}={hparams.get(hparam)}: there is no {path}")
    size = vectors.dimension(path)
    if size != hparams.hidden_size:
        raise UserError(f"{hparam}={hparams.get(hparam)}: the vectors have {size} dimensions; "
                        f"hidden_size={hparams.hidden_size}")
    return table(path, tuple(vocabulary.decode_list(range(vocabulary.vocab_size))))


@functools.lru_cache(2)                               # read for the check, then for the variable
def table(path: str, words: tuple[str, ...]) -> np.ndarray:
    """The vectors in a file of the words of a vocabulary, by id: float32 [words, dimension].

    Padding is 0. An unknown word is the mean of all words. The end of a sentence is fastText's
    `</s>` if the file has it, and otherwise a draw from a normal distribution with the words' mean
    and deviation. A word without a vector and a damaged file are refused.
    """
    special = {text_encoder.PAD: None, text_encoder.EOS: vectors.END, vectors.UNKNOWN: None}
    # "\n" occurs in no file: a special word without a counterpart has no vector in it.
    names = [special.get(word, word) or f"\n{word}" for word in words]
    rows, by_id = vectors.table(path, names), np.array(words)
    absent, ordinary = np.isnan(rows[:, 0]), ~np.isin(by_id, list(special))
    missing = by_id[ordinary & absent]
    if missing.size:
        raise UserError(f"{path}: {len(missing):,} of {ordinary.sum():,} words of the vocabulary "
                        f"have no vector in it: {', '.join(missing[:_MAX_LISTED])}"
                        + (", ..." if len(missing) > _MAX_LISTED else ""))
    zero = by_id[ordinary & ~rows.any(axis=1)]
    if zero.size:                                     # the model would take it for padding
        raise UserError(f"{path}: the vector of {zero[0]} is zero")
    ordinary_rows = rows[ordinary].astype(np.float64)
    rows[by_id == text_encoder.PAD] = 0
    rows[by_id == vectors.UNKNOWN] = ordinary_rows.mean(axis=0)
    rows[(by_id == text_encoder.EOS) & absent] = np.random.RandomState(0).normal(
        ordinary_rows.mean(), ordinary_rows.std(), rows.shape[1])
    return rows
