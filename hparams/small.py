"""Models for small machines: for small corpora, for trying things out, with word vectors."""
from tensor2tensor.utils import registry
from tensor2tensor.utils.hparam import HParams

from rpr.hparams.base import absolute_variant, shaw2018, variant


@registry.register_hparams
def rpr_small() -> HParams:
    """A model of 3+3 layers, width 128, k=16, that learns a small corpus in minutes on a laptop."""
    hparams = shaw2018("relative", 16, heads_share_relative_embedding=False)
    hparams.num_hidden_layers = 3
    hparams.hidden_size = 128
    hparams.filter_size = 512
    hparams.num_heads = 4
    hparams.batch_size = 2048
    hparams.symbol_modality_num_shards = 1
    # A short training needs a high learning rate, which pre-norm tolerates. The constant has the
    # smallest development loss with absolute positions; with relative positions 0.2 is slightly
    # better: gin/small_tuning.gin.
    hparams.layer_preprocess_sequence = "n"
    hparams.layer_postprocess_sequence = "da"
    hparams.learning_rate_schedule = "constant*linear_warmup*rsqrt_decay"
    hparams.learning_rate_constant = 0.1                     # peak: 0.005
    hparams.learning_rate_warmup_steps = 400
    return hparams


absolute_variant(rpr_small)
absolute_variant(variant(
    "rpr_tiny", rpr_small, "A model of 2+2 layers, width 32, k=4, for tests; it learns toy "
    "problems.", num_hidden_layers=2, hidden_size=32, filter_size=64, num_heads=2,
    max_relative_position=4, batch_size=512, learning_rate_constant=0.2))    # peak: 0.01

# The small Transformer of Wu et al. 2021 (Good for Misconceived Reasons).
absolute_variant(variant(
    "rpr_multi30k", rpr_small, "A model of 4+4 layers, width 128, k=16, dropout 0.3, about 2.6 "
    "million parameters.", num_hidden_layers=4, filter_size=256, layer_prepostprocess_dropout=0.3,
    attention_dropout=0.0, relu_dropout=0.0, batch_size=4096, learning_rate_warmup_steps=2000,
    learning_rate_constant=0.2236))                          # peak: 0.005


@registry.register_hparams
def europarl_lite() -> HParams:
    """A model of 2+2 layers, width 300, 4 heads of 50, fixed word vectors, Nesterov momentum."""
    hparams = shaw2018("scaled_sinusoid", 16, heads_share_relative_embedding=False)
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


variant("europarl_full", europarl_lite, "europarl_lite with the base model's 6+6 layers, 8 heads "
        "of 64 and feed-forward of 2,048.", num_hidden_layers=6, filter_size=2048, num_heads=8,
        attention_key_channels=512, attention_value_channels=512)
