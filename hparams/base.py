"""The models of Shaw et al. 2018: base and big, and the variants of tables 1, 2 and 3."""
from collections.abc import Callable
from typing import Any

from tensor2tensor.models import transformer
from tensor2tensor.utils import registry
from tensor2tensor.utils.hparam import HParams

from rpr.models.declarations import add_position_hparams


def shaw2018() -> HParams:
    """The Transformer of Vaswani et al. 2017 with relative positions, on which all sets build.

    T2T's transformer_base_v1 has the paper's normalisation after each sub-layer, Adam with beta2
    0.98 and epsilon 1e-9, exactly its learning rate with a warm-up of 4,000 steps, label smoothing
    0.1, shared embeddings, 4,096 tokens a GPU, and dropout 0.1 in residuals and embeddings alone.
    The clipping distance k is 16; each head of each layer has a table.
    """
    return add_position_hparams(transformer.transformer_base_v1(), "relative", 16,
                                heads_share_relative_embedding=False)


def variant(name: str, of: Callable[[], HParams], doc: str, **changes: Any
            ) -> Callable[[], HParams]:
    """Registers a set that is another one with some values changed; returns its function."""
    def changed() -> HParams:
        hparams = of()
        for hparam, value in changes.items():
            setattr(hparams, hparam, value)
        return hparams

    changed.__name__, changed.__doc__ = name, doc
    return registry.register_hparams(name)(changed)


def absolute_variant(of: Callable[[], HParams], note: str = "") -> None:
    """Registers NAME_absolute: the set NAME with sinusoids and nothing else changed."""
    variant(f"{of.__name__}_absolute", of,
            f"{of.__name__} with sinusoids in place of relative positions{note}.",
            position="sinusoid")


rpr_base = variant(
    "rpr_base", shaw2018, "Base model of Shaw et al. 2018: relative positions, k=16, a table per "
    "layer and head.", filter_size=1024)
absolute_variant(rpr_base, ": the paper's baseline")
variant("rpr_base_relative_and_absolute", rpr_base, "rpr_base with relative positions and "
        "sinusoids together (section 4.2: no gain).", position="relative+sinusoid")
variant("rpr_base_keys_only", rpr_base, "rpr_base with a^K alone (table 3).",
        relative_values=False)
variant("rpr_base_values_only", rpr_base, "rpr_base with a^V alone (table 3).",
        relative_keys=False)
variant("rpr_base_no_relations", rpr_base, "rpr_base with neither a^K nor a^V: no position "
        "information at all (table 3).", relative_keys=False, relative_values=False)
for _k in (0, 1, 2, 4, 16, 64, 256):
    variant(f"rpr_base_k{_k}", rpr_base, f"rpr_base with the clipping distance k={_k} (table 2).",
            max_relative_position=_k)

rpr_big_ende = variant(
    "rpr_big_ende", shaw2018, "Big model of Shaw et al. 2018, English-German: k=8, a table per "
    "layer, dropout 0.3.", max_relative_position=8, heads_share_relative_embedding=True,
    hidden_size=1024, filter_size=4096, num_heads=16, layer_prepostprocess_dropout=0.3)
absolute_variant(rpr_big_ende)
absolute_variant(variant(
    "rpr_big_enfr", rpr_big_ende, "Big model of Shaw et al. 2018, English-French: as rpr_big_ende "
    "with dropout 0.1.", layer_prepostprocess_dropout=0.1))
