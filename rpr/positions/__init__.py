"""Position schemes: one interface (`Scheme`), one registry (`SCHEMES`, `register`, `build`).

Each module defines one scheme or a family of them. The functions take their tables as arguments and
make no variables, so they can be used in graphs, eagerly and in `tf.function`.
"""
from rpr.positions import (
    absolute,
    bias,
    contextual,
    disentangled,
    normalizations,
    pairs,
    placement,
    relative,
    rotary,
)
from rpr.positions.layout import Layout
from rpr.positions.registry import SCHEMES, build, declared_settings, register
from rpr.positions.scheme import Scheme
from rpr.utils.settings import Setting

__all__ = ["SCHEMES", "Layout", "Scheme", "Setting", "absolute", "bias", "build", "contextual",
           "declared_settings", "disentangled", "normalizations", "pairs", "placement", "register",
           "relative", "rotary"]
