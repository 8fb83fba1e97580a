"""Embedded words that are read from a file and stay as they are.

The hparams `pretrained_source_embeddings` and `pretrained_target_embeddings` name files of word vectors
(`problems.vectors`), beside the data or by a whole path. The table is a variable that is not
trained: no optimizer sees it, checkpoints and averages hold it, and once there is a checkpoint the
file is not read again.
"""
import functools
import os

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.data_generators import text_encoder
from tensor2tensor.layers import modalities

from problems import vectors
from rpr.utils.errors import UserError

_SIDES = {"inputs": ("pretrained_source_embeddings", modalities.symbol_bottom),
          "targets": ("pretrained_target_embeddings", modalities.symbol_targets_bottom)}
_NAMED = 5                                            # of words without a vector


def use_pretrained_embeddings(hparams, vocabularies):
    """Lets a model take its embedded words from files, where its hparams name some.

    Args:
      hparams: of the model; changed in place.
      vocabularies: a function that gives T2T's encoders by feature.
    """
    for feature in _asked(hparams):
        stock = _SIDES[feature][1]
        hparams.bottom = {**hparams.bottom, feature: functools.partial(
            _bottom, feature, stock, vocabularies)}


def _asked(hparams):
    """The features whose embedded words come from files; `UserError` where that cannot be."""
    for feature, (hparam, _) in _SIDES.items():
        if not hparams.get(hparam):
            continue
        said = f"{hparam}={hparams.get(hparam)}"
        if hparams.shared_embedding_and_softmax_weights or hparams.get("shared_embedding"):
            raise UserError(f"{said}: a table of its own that is not trained; "
                            "shared_embedding_and_softmax_weights=False is needed")
        if hparams.symbol_modality_num_shards != 1:
            raise UserError(f"{said}: one table; symbol_modality_num_shards=1 is needed")
        yield feature


def _bottom(feature, stock, vocabularies, ids, hparams, symbols):
    """T2T's, over a table that is not trained."""
    def values(shape, dtype=tf.float32, partition_info=None):
        del dtype, partition_info

        def read():
            found = np.zeros(shape, np.float32)       # what is left over is T2T's vocab_divisor's
            words = _table(hparams, feature, vocabularies()[feature])
            found[:len(words)] = words
            return found

        # Run where there is no checkpoint; and a constant would be in every graph that is written.
        return tf.ensure_shape(tf.numpy_function(read, [], tf.float32), shape)

    def fixed(getter, name, *args, **kwargs):
        return getter(name, *args, **{**kwargs, "trainable": False, "initializer": values})

    with tf.variable_scope(tf.get_variable_scope(), custom_getter=fixed):
        return stock(ids, hparams, symbols)


def check(hparams, problem, data_dir):
    """Refuses files of vectors that cannot serve, before a training writes anything.

    Args:
      hparams: of the model.
      problem: a T2T problem.
      data_dir: of the training.
    """
    for feature in _asked(hparams):
        problem.get_feature_encoders(data_dir)
        _table(hparams, feature, problem.get_hparams(hparams).vocabulary[feature], data_dir)


def _table(hparams, feature, vocabulary, data_dir=None):
    """float32 [symbols, hidden]: see `table`."""
    hparam = _SIDES[feature][0]
    path = os.path.join(data_dir or hparams.get("data_dir") or "",
                        os.path.expanduser(hparams.get(hparam)))
    if not os.path.exists(path):
        raise UserError(f"{hparam}={hparams.get(hparam)}: there is no {path}")
    size = vectors.dimension(path)
    if size != hparams.hidden_size:
        raise UserError(f"{hparam}={hparams.get(hparam)}: vectors of {size} numbers; "
                        f"hidden_size={hparams.hidden_size}")
    return table(path, tuple(vocabulary.decode_list(range(vocabulary.vocab_size))))


@functools.lru_cache(2)                               # checked, then used
def table(path, words):
    """The vectors of a vocabulary.

    Padding is 0, which the decoder also begins with; an unknown word is the mean of all words; the
    end of a sentence is fastText's `</s>`, where the file has it, else a draw from a normal
    distribution of the words' mean and deviation.

    Args:
      path: a file of vectors.
      words: a tuple of the vocabulary's words, in the order of their ids.

    Returns:
      float32 [words, dimension].

    Raises:
      UserError: a word has no vector, or the file is not what it must be.
    """
    special = {text_encoder.PAD: None, text_encoder.EOS: vectors.END, vectors.UNKNOWN: None}
    names = [special.get(word, word) or f"\n{word}" for word in words]        # \n: in no file
    found = vectors.table(path, names)
    ordinary = np.array([word not in special for word in words])
    missing = [word for word, row, asked in zip(words, found, ordinary, strict=True)
               if asked and np.isnan(row[0])]
    if missing:
        raise UserError(f"{path}: {len(missing):,} of {ordinary.sum():,} words of the vocabulary "
                        f"have no vector in it: {', '.join(missing[:_NAMED])}"
                        + (", ..." if len(missing) > _NAMED else ""))
    known = found[ordinary].astype(np.float64)
    for place, word in enumerate(words):
        if word == text_encoder.PAD:
            found[place] = 0
        elif word == vectors.UNKNOWN:
            found[place] = known.mean(axis=0)
        elif word == text_encoder.EOS and np.isnan(found[place, 0]):
            found[place] = np.random.RandomState(0).normal(known.mean(), known.std(),
                                                           found.shape[1])
    return found
