"""Models for generated problems that are learned in minutes on one core."""
from tensor2tensor.utils import registry
from tensor2tensor.utils.hparam import HParams

from rpr.hparams import base


@registry.register_hparams
def toy_reverse() -> HParams:
    """A model of 2+2 layers, width 128, 8 heads, sinusoids, that learns toy_reverse_repeats."""
    hparams = base.shaw2018("sinusoid", 16, heads_share_relative_embedding=False)
    hparams.num_hidden_layers = 2
    hparams.hidden_size = 128
    hparams.num_heads = 8
    hparams.filter_size = 256
    hparams.symbol_modality_num_shards = 1
    hparams.norm_after_embedding = True
    hparams.label_smoothing = 0.0
    hparams.batch_size = 32                                  # sequences
    hparams.use_fixed_batch_size = True
    hparams.learning_rate_warmup_steps = 400
    hparams.optimizer_adam_epsilon = 1e-5
    hparams.clip_grad_norm = 5.0
    return hparams


@registry.register_hparams
def toy_graph() -> HParams:
    """A model of 4+2 layers, width 64, edges between its inputs, that learns graph_paths."""
    hparams = base.shaw2018("graph", 8, heads_share_relative_embedding=False)
    hparams.num_edge_labels = 9                                  # none, and four in both directions
    hparams.num_encoder_layers = 4
    hparams.num_decoder_layers = 2
    hparams.hidden_size = 64
    hparams.num_heads = 4
    hparams.filter_size = 128
    hparams.symbol_modality_num_shards = 1
    hparams.layer_preprocess_sequence = "n"
    hparams.layer_postprocess_sequence = "da"
    hparams.layer_prepostprocess_dropout = 0.0               # no example is seen twice
    hparams.label_smoothing = 0.0
    hparams.batch_size = 64                                  # graphs
    hparams.use_fixed_batch_size = True
    hparams.learning_rate_schedule = "constant*linear_warmup*rsqrt_decay"
    hparams.learning_rate_constant = 0.1
    hparams.learning_rate_warmup_steps = 400
    return hparams
