"""The position schemes: one file a family, one interface (`Scheme`), one registry (`SCHEMES`).

The functions of tensors in `absolute`, `relative` and `graph` take their tables as arguments and
make no variables: they serve graphs, eager programs and `tf.function`.
"""
from rpr.positions import absolute, graph, relative
from rpr.positions.scheme import Scheme, Sum

__all__ = ["SCHEMES", "Scheme", "absolute", "build", "graph", "relative"]

# The values that the hparam `position` takes; the first line of each docstring describes it.
SCHEMES = {
    "none": absolute.NoPosition,
    "sinusoid": absolute.Sinusoid,
    "learned": absolute.Learned,
    "relative": relative.Relative,
    "graph": graph.Graph,
}


def build(hparams, side):
    """Makes the scheme of one side, for one pass through its stack.

    The hparam `encoder_position` or `decoder_position` names it; where that is empty, `position`.

    Args:
      hparams: the model's hyperparameters.
      side: `inputs` (the encoder) or `targets` (the decoder).

    Returns:
      a `Scheme`.

    Raises:
      ValueError: an unknown name, one said twice, `none` beside another, or a hparam of a scheme
        that is out of its range.
    """
    hparam = {"inputs": "encoder_position", "targets": "decoder_position"}[side]
    hparam = hparam if hparams.get(hparam) else "position"
    said = f"{hparam}={hparams.get(hparam)}"
    names = [name.strip() for name in hparams.get(hparam).split("+")]
    allowed = f"allowed are {', '.join(SCHEMES)}, and sums such as relative+sinusoid"
    for name in names:
        if name not in SCHEMES:
            raise ValueError(f"{said}: no scheme is called {name!r}; {allowed}")
    if len(set(names)) < len(names):
        raise ValueError(f"{said} names a scheme twice; {allowed}")
    if len(names) > 1 and "none" in names:
        raise ValueError(f"{said}: none stands alone; {allowed}")
    return Sum([SCHEMES[name](hparams, side) for name in names])
