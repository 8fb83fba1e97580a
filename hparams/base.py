"""The base model of Shaw et al. 2018 and the variants of its tables 1, 2 and 3."""
from tensor2tensor.models import transformer
from tensor2tensor.utils import registry
from tensor2tensor.utils.hparam import HParams

from rpr.models.declarations import add_position_hparams


def shaw2018(position: str, max_relative_position: int,
             heads_share_relative_embedding: bool) -> HParams:
    """The Transformer of Vaswani et al. 2017 with a choice of positions, on which all sets build.

    T2T's transformer_base_v1 has the paper's normalisation after each sub-layer, Adam with beta2
    0.98 and epsilon 1e-9, exactly its learning rate with a warm-up of 4,000 steps, label smoothing
    0.1, shared embeddings, 4,096 tokens a GPU, and dropout 0.1 in residuals and embeddings alone.

    Args:
      position: scheme name(s), joined by `+`.
      max_relative_position: the clipping distance k.
      heads_share_relative_embedding: one table per layer (True), or per layer and head (False).

    Returns:
      HParams.
    """
    return add_position_hparams(transformer.transformer_base_v1(), position, max_relative_position,
                                heads_share_relative_embedding)


def absolute(hparams: HParams) -> HParams:
    """Replaces the positions of a set by sinusoids and changes nothing else."""
    hparams.position = "sinusoid"
    return hparams


@registry.register_hparams
def rpr_base() -> HParams:
    """Base model of Shaw et al. 2018: relative positions, k=16, a table per layer and head."""
    hparams = shaw2018("relative", 16, heads_share_relative_embedding=False)
    hparams.filter_size = 1024
    return hparams


@registry.register_hparams
def rpr_base_absolute() -> HParams:
    """rpr_base with sinusoids in place of relative positions: the paper's baseline."""
    return absolute(rpr_base())


@registry.register_hparams
def rpr_base_relative_and_absolute() -> HParams:
    """rpr_base with relative positions and sinusoids together (section 4.2: no gain)."""
    hparams = rpr_base()
    hparams.position = "relative+sinusoid"
    return hparams


@registry.register_hparams
def rpr_base_keys_only() -> HParams:
    """rpr_base with a^K alone (table 3)."""
    hparams = rpr_base()
    hparams.relative_values = False
    return hparams


@registry.register_hparams
def rpr_base_values_only() -> HParams:
    """rpr_base with a^V alone (table 3)."""
    hparams = rpr_base()
    hparams.relative_keys = False
    return hparams


@registry.register_hparams
def rpr_base_no_relations() -> HParams:
    """rpr_base with neither a^K nor a^V: no position information at all (table 3)."""
    hparams = rpr_base_keys_only()
    hparams.relative_keys = False
    return hparams


def _register_clipping_distance(k: int) -> None:
    def clipped() -> HParams:
        hparams = rpr_base()
        hparams.max_relative_position = k
        return hparams

    clipped.__doc__ = f"rpr_base with the clipping distance k={k} (table 2)."
    registry.register_hparams(f"rpr_base_k{k}")(clipped)


for _k in (0, 1, 2, 4, 16, 64, 256):
    _register_clipping_distance(_k)
