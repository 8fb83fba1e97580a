"""The small Transformer of Wu et al. 2021 (Good for Misconceived Reasons) for Multi30k."""
from tensor2tensor.utils import registry
from tensor2tensor.utils.hparam import HParams

from rpr.hparams import base, small


@registry.register_hparams
def rpr_multi30k() -> HParams:
    """A model of 4+4 layers, width 128, k=16, dropout 0.3, about 2.6 million parameters."""
    hparams = small.rpr_small()
    hparams.num_hidden_layers = 4
    hparams.filter_size = 256
    hparams.layer_prepostprocess_dropout = 0.3
    hparams.attention_dropout = 0.0
    hparams.relu_dropout = 0.0
    hparams.batch_size = 4096
    hparams.learning_rate_constant = 0.2236                  # peak: 0.005
    hparams.learning_rate_warmup_steps = 2000
    return hparams


@registry.register_hparams
def rpr_multi30k_absolute() -> HParams:
    """rpr_multi30k with sinusoids in place of relative positions."""
    return base.absolute(rpr_multi30k())
