"""The big models of Shaw et al. 2018, table 1."""
from tensor2tensor.utils import registry
from tensor2tensor.utils.hparam import HParams

from rpr.hparams import base


@registry.register_hparams
def rpr_big_ende() -> HParams:
    """Big model of Shaw et al. 2018, English-German: k=8, a table per layer, dropout 0.3."""
    hparams = base.shaw2018("relative", 8, heads_share_relative_embedding=True)
    hparams.hidden_size = 1024
    hparams.filter_size = 4096
    hparams.num_heads = 16
    hparams.layer_prepostprocess_dropout = 0.3
    return hparams


@registry.register_hparams
def rpr_big_ende_absolute() -> HParams:
    """rpr_big_ende with sinusoids in place of relative positions."""
    return base.absolute(rpr_big_ende())


@registry.register_hparams
def rpr_big_enfr() -> HParams:
    """Big model of Shaw et al. 2018, English-French: as rpr_big_ende with dropout 0.1."""
    hparams = rpr_big_ende()
    hparams.layer_prepostprocess_dropout = 0.1
    return hparams


@registry.register_hparams
def rpr_big_enfr_absolute() -> HParams:
    """rpr_big_enfr with sinusoids in place of relative positions."""
    return base.absolute(rpr_big_enfr())
