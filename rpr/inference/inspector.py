"""A look into a trained model: translations with their probabilities, and where its heads look.

A model is built once, in a graph and a session of its own, and sentences are fed to it.
"""
import re
from typing import NamedTuple

import numpy as np

from rpr.utils.errors import UserError

EOS = 1                                               # T2T's end of a sentence


class Translation(NamedTuple):
    """Attributes:
      text: the best hypothesis.
      score: what the beam search ranks it by: its log probability over ((5 + n) / 6)^alpha, n its
        tokens with the end mark (Wu et al. 2016, equation 14); without its end mark, after as many
        tokens as were allowed, or with a beam of 1: the log probability.
      ids: int [n], with the end mark where there is one.
      tokens: the n sub-words as text.
      probabilities: float32 [n], the model's probability of each after those before it.
    """
    text: str
    score: float
    ids: np.ndarray
    tokens: list
    probabilities: np.ndarray


class AttentionWeights(NamedTuple):
    """Attention weights, float32 [layers, batch, heads, len_q, len_k].

    Attributes:
      encoder: of the encoder's self-attention.
      decoder: of the decoder's self-attention; query i predicts token i from those before it.
      cross: of the decoder's attention to the encoder.
    """
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


class Inspector:
    """A trained model with its graph, session and vocabularies.

    Args:
      trained: `rpr.t2t.trained_model.TrainedModel`.
      beam_size, alpha: of the beam search.
      extra_length: how many tokens longer than its source a hypothesis may be.

    Raises:
      UserError: it reads no source text.
    """

    def __init__(self, trained, beam_size=4, alpha=0.6, extra_length=100):
        import tensorflow.compat.v1 as tf
        from tensor2tensor.utils import registry
        hparams = trained.hparams
        self._vocabularies = hparams.problem_hparams.vocabulary
        if "inputs" not in self._vocabularies:
            raise UserError(f"{hparams.problem.name}: the problem has no source text")
        with tf.Graph().as_default():
            self._source = tf.placeholder(tf.int32, [None, None, 1, 1], "source")
            self._target = tf.placeholder(tf.int32, [None, None, 1, 1], "target")
            spaces = {name: tf.constant(getattr(hparams.problem_hparams, name))
                      for name in ("input_space_id", "target_space_id")}
            model = registry.model(trained.name)(
                hparams, tf.estimator.ModeKeys.EVAL, hparams.problem_hparams)
            logits, _ = model({"inputs": self._source, "targets": self._target, **spaces})
            forced = tf.nn.log_softmax(tf.cast(logits[:, :, 0, 0], tf.float32))
            # [batch, len_targets]
            self._log_probabilities = tf.gather(forced, self._target[:, :, 0, 0], batch_dims=2)
            # Before the decoding loop adds tensors of its own, which cannot be fetched.
            self._weights = _attention_weights(getattr(model, "attention_weights", {}))
            with tf.variable_scope(tf.get_variable_scope(), reuse=True):
                model.set_mode(tf.estimator.ModeKeys.PREDICT)
                found = model.infer({"inputs": self._source, **spaces}, beam_size=beam_size,
                                    top_beams=1, alpha=alpha, decode_length=extra_length)
            self._found = found["outputs"], found["scores"]
            config = tf.ConfigProto(allow_soft_placement=True)
            config.gpu_options.allow_growth = True
            self._session = tf.Session(config=config)
            tf.train.Saver().restore(self._session, trained.checkpoint)

    @property
    def attends_to_itself(self):
        """Whether the model records self-attention, in encoder and decoder."""
        return all(self._weights[:2])

    def encode(self, text, side="inputs"):
        """The ids of a line of text with the end mark, as a list; side: "inputs" or "targets"."""
        return [*self._vocabularies[side].encode(text.strip()), EOS]

    def tokens(self, ids, side="targets"):
        """The sub-words of ids as text; the end mark is shown as such."""
        names = self._vocabularies[side].decode_list(list(ids))
        return ["⏎" if number == EOS else name for number, name in zip(ids, names, strict=True)]

    def translate(self, text):
        """The best hypothesis for one sentence, a `Translation`."""
        source = _batch([self.encode(text)])
        ids, score = self._session.run(self._found, {self._source: source})
        ids = ids.reshape(-1)
        ends = np.flatnonzero(ids == EOS)
        words = ids[:ends[0]] if len(ends) else ids
        ids = ids[:ends[0] + 1] if len(ends) else ids
        log_probabilities = self._session.run(
            self._log_probabilities, {self._source: source, self._target: _batch([ids])})[0]
        return Translation(self._vocabularies["targets"].decode(words), float(np.ravel(score)[0]),
                           ids, self.tokens(ids), np.exp(log_probabilities))

    def attention(self, sources, targets):
        """Where every head of every layer looks.

        Args:
          sources, targets: lists of as many sentences, each a list of ids.

        Returns:
          `AttentionWeights`; rows and columns beyond a sentence's end are padding. Where a model has no
          self-attention, [0].

        Raises:
          UserError: it does not record its attention.
        """
        if not any(self._weights):
            raise UserError("this model does not record its attention weights")
        fetched = self._session.run(self._weights, {self._source: _batch(sources),
                                                    self._target: _batch(targets)})
        return AttentionWeights(*(np.asarray(layers, np.float32) for layers in fetched))


def _batch(sentences):
    """Lists of ids as int32 [sentences, longest, 1, 1], zeros after."""
    ids = np.zeros([len(sentences), max(map(len, sentences)), 1, 1], np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[:len(sentence), 0, 0] = sentence
    return ids


def _attention_weights(recorded):
    """T2T's dict of attention tensors as three lists, a tensor [batch, heads, len_q, len_k] a
    layer: encoder, decoder, cross."""
    kinds = {"encoder/self": {}, "decoder/self": {}, "decoder/encdec": {}}
    for name, tensor in recorded.items():
        match = re.search(r"/(encoder|decoder)/(?:layer_(\d+)/)?(self|encdec)_attention/",
                          name)
        if match and not name.endswith("/logits"):
            stack, layer, kind = match.groups()
            kinds[f"{stack}/{kind}"][int(layer or 0)] = tensor
    return tuple([layers[number] for number in sorted(layers)] for layers in kinds.values())
