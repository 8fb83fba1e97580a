"""Word-level models for small machines with pretrained embeddings that are not trained."""
from tensor2tensor.utils import registry
from tensor2tensor.utils.hparam import HParams

from rpr.hparams import base


@registry.register_hparams
def europarl_lite() -> HParams:
    """A model of 2+2 layers, width 300, 4 heads of 50, fixed word vectors, Nesterov momentum."""
    hparams = base.shaw2018("scaled_sinusoid", 16, heads_share_relative_embedding=False)
    hparams.num_hidden_layers = 2
    hparams.hidden_size = 300                                # that of the word vectors
    hparams.filter_size = 600
    hparams.num_heads = 4
    hparams.attention_key_channels = 200
    hparams.attention_value_channels = 200
    hparams.pretrained_source_embeddings = "vectors.translate_deen_europarl_words.de.vec"
    hparams.pretrained_target_embeddings = "vectors.translate_deen_europarl_words.en.vec"
    hparams.shared_embedding_and_softmax_weights = False
    hparams.symbol_modality_num_shards = 1
    hparams.masked_softmax = True
    hparams.norm_type = "layer_without_scale"
    hparams.layer_preprocess_sequence = "n"
    hparams.layer_postprocess_sequence = "da"
    hparams.layer_prepostprocess_dropout_broadcast_dims = "1"        # one mask for all positions
    hparams.loss_per_sentence = True
    hparams.optimizer = "momentum"
    hparams.optimizer_momentum_momentum = 0.9
    hparams.optimizer_momentum_nesterov = True
    hparams.clip_grad_norm = 1.0
    hparams.learning_rate_schedule = "constant*cosine_restarts"
    hparams.learning_rate_constant = 0.5
    hparams.learning_rate_restart_steps = 10000
    hparams.learning_rate_restart_t_mul = 2.0
    hparams.learning_rate_restart_m_mul = 0.9
    hparams.learning_rate_restart_alpha = 0.01
    return hparams


@registry.register_hparams
def europarl_full() -> HParams:
    """europarl_lite with the base model's 6+6 layers, 8 heads of 64 and feed-forward of 2,048."""
    hparams = europarl_lite()
    hparams.num_hidden_layers = 6
    hparams.filter_size = 2048
    hparams.num_heads = 8
    hparams.attention_key_channels = 512
    hparams.attention_value_channels = 512
    return hparams
