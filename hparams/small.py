"""Models for a laptop: one that learns a small corpus in minutes, one for trying things out."""
from tensor2tensor.utils import registry
from tensor2tensor.utils.hparam import HParams

from rpr.hparams import base


@registry.register_hparams
def rpr_small() -> HParams:
    """A model of 3+3 layers, width 128, k=16, that learns a small corpus in minutes on a laptop."""
    hparams = base.shaw2018("relative", 16, heads_share_relative_embedding=False)
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


@registry.register_hparams
def rpr_small_absolute() -> HParams:
    """rpr_small with sinusoids in place of relative positions."""
    return base.absolute(rpr_small())


@registry.register_hparams
def rpr_tiny() -> HParams:
    """A model of 2+2 layers, width 32, k=4, for tests; it learns toy problems."""
    hparams = rpr_small()
    hparams.num_hidden_layers = 2
    hparams.hidden_size = 32
    hparams.filter_size = 64
    hparams.num_heads = 2
    hparams.max_relative_position = 4
    hparams.batch_size = 512
    hparams.learning_rate_constant = 0.2                     # peak: 0.01
    return hparams


@registry.register_hparams
def rpr_tiny_absolute() -> HParams:
    """rpr_tiny with sinusoids in place of relative positions."""
    return base.absolute(rpr_tiny())
