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


@registry.register_hparams
def ruoss2023() -> HParams:
    """The encoder of Ruoss et al. 2023 without a decoder: 5 layers, width 64, 8 heads, post-norm.

    From github.com/google-deepmind/randomized_positional_encodings: Adam with rate 1e-3, gradients
    clipped to norm 1, 128 sequences. Sums of layers have dropout 0.1.
    """
    hparams = base.shaw2018("none", 16, heads_share_relative_embedding=False)
    hparams.answer_symbol = 2                                # _ of the tasks
    hparams.num_encoder_layers = 5
    hparams.hidden_size = 64
    hparams.num_heads = 8
    hparams.filter_size = 256
    hparams.symbol_modality_num_shards = 1
    hparams.label_smoothing = 0.0
    hparams.batch_size = 128                                 # sequences
    hparams.use_fixed_batch_size = True
    hparams.max_length = 2048                                # positions that are drawn from
    hparams.learning_rate_schedule = "constant"
    hparams.learning_rate_constant = 0.001
    hparams.optimizer_adam_beta2 = 0.999
    hparams.optimizer_adam_epsilon = 1e-8
    hparams.clip_grad_norm = 1.0
    return hparams
