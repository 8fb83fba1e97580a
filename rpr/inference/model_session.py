"""A model in a graph and a session of its own, run on arrays of symbol ids.

The graph is built once: teacher-forced logits, attention weights, and the beam search share the
weights. Ids are those of the problem's vocabularies; 0 is padding and 1 ends a sentence.
"""
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

from rpr import positions
from rpr.models import declarations, incremental
from rpr.models.beam_search import EOS_ID
from rpr.t2t import checkpoints, preflight
from rpr.utils.errors import UserError
from rpr.utils.interfaces import HParams, Vocabulary

# Ids of each sentence; an array has zeros after the end.
Sentences = Sequence[Sequence[int] | np.ndarray] | np.ndarray


class AttentionWeights(NamedTuple):
    """Attention weights, float32 [layers, batch, heads, queries, keys].

    `encoder` and `decoder` are self-attention, `cross` is the decoder's attention to the encoder.
    The decoder's query i predicts token i from the tokens before it. An array is [0] where the
    model has no attention of that kind.
    """
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


class ModelSession:
    """A model with its graph and its session.

    Args:
      name: registered name of the model.
      hparams: T2T hparams with `problem_hparams`.
      checkpoint: path without suffix; None initialises the weights randomly.
      beam_size: hypotheses that the search keeps; 1 searches greedily.
      alpha: exponent of the length penalty (Wu et al. 2016, equation 14).
      extra_length: tokens by which a hypothesis may be longer than its source.
      seed: seed of the random initialisation.

    Raises:
      UserError: the problem has no source text, or the checkpoint is another model's.
    """

    def __init__(self, name: str, hparams: HParams, checkpoint: str | None = None,
                 beam_size: int = 4, alpha: float = 0.6, extra_length: int = 100, seed: int = 1
                 ) -> None:
        problem = hparams.problem_hparams
        if "inputs" not in problem.modality:
            raise UserError(f"{hparams.problem.name}: the problem has no source text")
        preflight.check_reads_source(hparams)
        # The most positions that the scheme of each stack has; None: no limit.
        self._longest = {side: positions.build(hparams, side).longest
                         for side in declarations.sides(hparams) if "position" in hparams}
        self._in_one_row = bool(hparams.get("decoder_only"))     # source and target
        self._symbols = dict(problem.vocab_size)
        if problem.get("edges_in_text", False):       # edges are numbers, not symbols
            self._symbols["inputs"] = 2**31
        with tf.Graph().as_default():
            tf.set_random_seed(seed)
            self._inputs = tf.placeholder(tf.int32, [None, None], "inputs")
            self._targets = tf.placeholder(tf.int32, [None, None], "targets")
            spaces = {space: tf.constant(getattr(problem, space))
                      for space in ("input_space_id", "target_space_id")}
            model = registry.model(name)(hparams, tf.estimator.ModeKeys.EVAL, problem)
            source = {"inputs": self._inputs[:, :, None, None], **spaces}
            # Like `infer`: splits a row of ids into words and the edges between them.
            prepared = (model.prepare_features(source)
                        if isinstance(model, incremental.IncrementalDecoder) else source)
            logits, _ = model({**prepared, "targets": self._targets[:, :, None, None]})
            self._logits = tf.cast(logits[:, :, 0, 0], tf.float32)
            # Read before `infer` adds the tensors of its loop, which cannot be fetched.
            self._attention = _attention_by_kind(getattr(model, "attention_weights", {}))
            log_probabilities = tf.nn.log_softmax(self._logits)
            self._target_log_probabilities = tf.gather(
                log_probabilities, self._targets, batch_dims=2)
            with tf.variable_scope(tf.get_variable_scope(), reuse=True):
                model.set_mode(tf.estimator.ModeKeys.PREDICT)
                inferred = model.infer(source, beam_size=beam_size, top_beams=1, alpha=alpha,
                                       decode_length=extra_length)
            batch = tf.shape(self._inputs)[0]
            ids, scores = tf.reshape(inferred["outputs"], [batch, -1]), inferred["scores"]
            if scores is None:                        # of T2T's greedy search without a cache
                scores = _greedy_scores(ids, inferred["logits"])
            # T2T's search without a cache gives the scores of all beams, the best one first.
            self._hypotheses = ids, tf.reshape(scores, [batch, -1])[:, 0]
            self._session = tf.Session(config=tf.ConfigProto(
                allow_soft_placement=True, gpu_options=tf.GPUOptions(allow_growth=True)))
            if checkpoint is None:
                self._session.run(tf.global_variables_initializer())
            else:
                checkpoints.saver(checkpoint).restore(self._session, checkpoint)

    @property
    def has_self_attention(self) -> bool:
        """Whether the model records self-attention in both encoder and decoder."""
        return all(self._attention[:2])

    @property
    def longest_source(self) -> int | None:
        """The most ids of a source that `search` takes; None: no limit."""
        if not self._in_one_row:
            return self._longest.get("inputs")
        limit = self._longest.get("targets")
        return None if limit is None else limit - 1

    def logits(self, inputs: Sentences, targets: Sentences) -> np.ndarray:
        """Teacher-forced logits, float32 [batch, target length, symbols]; row i predicts target i.

        Inputs and targets are lists of ids, or int [batch, length] with 0 after the end.
        """
        return self._session.run(self._logits, self._feed(inputs, targets))

    def log_probabilities(self, inputs: Sentences, targets: Sentences, *, found: bool = False
                          ) -> np.ndarray:
        """Log probability of each target token given those before it; arguments as of `logits`.

        float32 [batch, target length]; entries at padding mean nothing. `found`: the targets are
        hypotheses of a search, which may have chosen the symbol 0, or one beyond the vocabulary
        (`vocab_divisor`), after few steps of training.
        """
        return self._session.run(self._target_log_probabilities,
                                 self._feed(inputs, targets, found))

    def search(self, inputs: Sentences) -> tuple[np.ndarray, np.ndarray]:
        """The best hypothesis of each sentence: ids, int32 [batch, length], and scores, float32.

        They do not depend on the other sentences. Ids after the first end mark mean nothing. Zeros
        follow a hypothesis that was cut at its length limit.
        """
        features = self._as_features("inputs", inputs)
        if self._in_one_row:
            self._check_length("targets", features.shape[1] + 1, "inputs with the first target")
        return self._session.run(self._hypotheses, {self._inputs: features})

    def attention(self, inputs: Sentences, targets: Sentences, *, found: bool = False
                  ) -> AttentionWeights:
        """Teacher-forced weights of all layers and heads; arguments as of `log_probabilities`.

        Rows and columns after a sentence's end are padding.
        """
        if not any(self._attention):
            raise UserError("this model does not record its attention weights")
        fetched = self._session.run(self._attention, self._feed(inputs, targets, found))
        return AttentionWeights(*(np.asarray(layers, np.float32) for layers in fetched))

    def save(self, directory: str) -> None:
        """Writes a SavedModel, which TensorFlow loads without T2T and rpr.

        Its signature `serving_default` takes `inputs`, int32 [batch, length] with 0 after the end,
        and returns `outputs` and `scores` as `search` does. `log_probabilities` also takes
        `targets`, and returns `log_probabilities`. The directory must be new or empty.
        """
        outputs, scores = self._hypotheses
        signature = tf.saved_model.predict_signature_def
        with self._session.graph.as_default():
            builder = tf.saved_model.Builder(directory)
            builder.add_meta_graph_and_variables(self._session, [tf.saved_model.SERVING], {
                "serving_default": signature(
                    {"inputs": self._inputs}, {"outputs": outputs, "scores": scores}),
                "log_probabilities": signature(
                    {"inputs": self._inputs, "targets": self._targets},
                    {"log_probabilities": self._target_log_probabilities})})
            builder.save()

    def _feed(self, inputs: Sentences, targets: Sentences, found: bool = False
              ) -> dict[tf.Tensor, np.ndarray]:
        features = self._as_features("inputs", inputs), self._as_features("targets", targets, found)
        if len(features[0]) != len(features[1]):
            raise UserError(f"{len(features[0])} inputs and {len(features[1])} targets: there "
                            "must be as many")
        if self._in_one_row:
            self._check_length("targets", int(sum((ids > 0).sum(axis=1) for ids in features).max()),
                               "inputs and targets together")
        return dict(zip((self._inputs, self._targets), features, strict=True))

    def _as_features(self, name: str, sentences: Sentences, found: bool = False) -> np.ndarray:
        """Checked sentences, int32 [batch, length]."""
        try:
            rows = [np.asarray(sentence) for sentence in sentences]
        except (TypeError, ValueError):               # not a sequence, or one of unlike items
            rows = []
        if not rows or any(row.ndim != 1 or row.size and not np.issubdtype(row.dtype, np.integer)
                           for row in rows):
            raise UserError(f"{name}: must be one or more sentences, each a list of whole numbers")
        largest = max((int(row.max()) for row in rows if row.size), default=0)
        if not found and any(((row[:-1] == 0) & (row[1:] != 0)).any() for row in rows):
            raise UserError(f"{name}: 0 is padding and must not precede other ids of a sentence")
        if not found and largest >= self._symbols[name] or any((row < 0).any() for row in rows):
            raise UserError(f"{name}: ids must be from 0 to {self._symbols[name] - 1}")
        self._check_length(name, max(map(len, rows)), name)
        return pad(rows)

    def _check_length(self, side: str, length: int, what: str) -> None:
        limit = self._longest.get(side)
        if limit is not None and length > limit:
            raise UserError(f"{what}: a sentence of {length} ids; the model's position scheme has "
                            f"positions for max_length={limit}")


def _greedy_scores(ids: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Log probability of hypotheses up to their end marks, float32 [batch].

    ids: int [batch, length]; logits: [batch, length, 1, 1, symbols].
    """
    log_probabilities = tf.gather(
        tf.nn.log_softmax(tf.cast(logits[:, :, 0, 0], tf.float32)), ids, batch_dims=2)
    ends_before = tf.cumsum(tf.cast(tf.equal(ids, EOS_ID), tf.int32), axis=1, exclusive=True)
    return tf.reduce_sum(
        tf.where(tf.equal(ends_before, 0), log_probabilities, tf.zeros_like(log_probabilities)),
        axis=1)


def list_of_strings(name: str, sentences: Iterable[str]) -> list[str]:
    """The sentences as a list, which a pandas Series is not."""
    lines = list(sentences) if isinstance(sentences, Iterable) else [None]
    if isinstance(sentences, str) or not all(isinstance(line, str) for line in lines):
        raise UserError(f"{name}: must be a list of strings")
    return lines


def encode(vocabulary: Vocabulary, text: str) -> list[int]:
    """The ids of a text; a vocabulary of bytes has none for half a surrogate pair."""
    try:
        return vocabulary.encode(text)
    except UnicodeEncodeError as error:
        raise UserError(f"{text[:40]!r} is not text that UTF-8 can encode ({error.reason})"
                        ) from None


def pad(sentences: Sentences) -> np.ndarray:
    """Sentences as int32 [sentences, longest], zeros after the end."""
    ids = np.zeros([len(sentences), max(map(len, sentences))], np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        row[:len(sentence)] = sentence
    return ids


def _attention_by_kind(recorded: Mapping[str, tf.Tensor]) -> tuple[list[tf.Tensor], ...]:
    """T2T's attention tensors [batch, heads, queries, keys] by layer: encoder, decoder, cross."""
    kinds: dict[str, dict[int, tf.Tensor]] = {
        "encoder/self": {}, "decoder/self": {}, "decoder/encdec": {}}
    for name, tensor in recorded.items():
        match = re.search(r"/(encoder|decoder)/(?:layer_(\d+)/)?(self|encdec)_attention/", name)
        if match and not name.endswith("/logits"):
            stack, layer, kind = match.groups()
            kinds[f"{stack}/{kind}"][int(layer or 0)] = tensor
    return tuple([layers[number] for number in sorted(layers)] for layers in kinds.values())
