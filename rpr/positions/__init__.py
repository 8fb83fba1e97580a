"""Position schemes: one interface (`Scheme`), one registry (`SCHEMES`, `register`, `build`).

Each module defines one scheme or a family of them. The functions take their tables as arguments and
make no variables, so they can be used in graphs, eagerly and in `tf.function`.
"""
from rpr.positions import (
    absolute,
    bias,
    deberta,
    graph,
    relative,
    relative_unclipped,
    rotary,
    transformer_xl,
)
from rpr.positions.layout import Layout
from rpr.positions.registry import SCHEMES, build, register
from rpr.positions.scheme import Scheme, SumOfSchemes

__all__ = ["SCHEMES", "Layout", "Scheme", "SumOfSchemes", "absolute", "bias", "build", "deberta",
           "graph", "register", "relative", "relative_unclipped", "rotary", "transformer_xl"]
