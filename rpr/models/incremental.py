"""What a model of sentences is while it decodes: a function from the last word to the next one's
logits. Beam search, greedy search and ensembles ask for nothing else."""
import tensorflow.compat.v1 as tf
from tensor2tensor.layers import common_layers, modalities

from rpr.models import beam_search


class IncrementalDecoder:
    """Goes before a T2TModel from symbols to symbols among the bases of a model.

    Such a model says `init_body_step`; with `init_step` it takes part in an ensemble.
    """

    def prepare_features(self, features):
        """A copy of the features that T2T's decoder reads, as `init_step` takes them."""
        features = dict(features)
        self._fill_problem_hparams_features(features)
        return features

    def init_body_step(self, features, beams):
        """Reads the sources.

        Args:
          features: as `prepare_features` gives them, `inputs` int32 [batch, length, 1, 1].
          beams: how many hypotheses of each sentence there will be.

        Returns:
          a function of embedded words [batch * beams, 1, hidden] and of the caches that gives the
          body's output [batch * beams, 1, 1, hidden] and the caches after this step, to be called
          in the scope `body`; the caches before the first step.
        """
        raise NotImplementedError

    def target_vocab_size(self):
        """How many symbols there are to choose from."""
        count = self._problem_hparams.vocab_size["targets"]
        return count + -count % self._hparams.get("vocab_divisor", 1)

    def init_step(self, features, beams):
        """The model as `rpr.models.beam_search` takes it; to be called in the variable scope of its name.

        Args:
          features: as `prepare_features` gives them.
          beams: how many hypotheses of each sentence there are.

        Returns:
          a function of the symbols chosen last, int32 [batch * beams], and of the caches that gives
          float logits [batch * beams, symbols] and the caches after this step; the caches before
          the first step, tensors [batch * beams, ...].
        """
        hparams, symbols = self._hparams, self.target_vocab_size()
        scope = hparams.name.get("targets", modalities.get_name(
            modalities.ModalityType.SYMBOL))(hparams, symbols)
        bottom = hparams.bottom.get("targets", modalities.symbol_targets_bottom)
        body, caches = self.init_body_step(features, beams)

        def step(ids, caches):
            with tf.variable_scope(scope):
                x = bottom(ids[:, None, None, None], hparams, symbols)
            with tf.variable_scope("body"):
                x, caches = body(common_layers.flatten4d3d(x), caches)
            with tf.variable_scope(scope):
                logits = modalities.symbol_top(x, None, hparams, symbols)
            return tf.reshape(logits, [-1, symbols]), caches

        return step, caches

    def search(self, features, decode_length, beam_size, top_beams, alpha):
        """The best sentences, as T2T's `infer` gives them; see `search`."""
        step, caches = self.init_step(features, beam_size)
        batch, length = common_layers.shape_list(features["inputs"])[:2]
        return beam_search.search(step, caches, batch, length + features.get(
            "decode_length", decode_length), beam_size, top_beams, alpha)
