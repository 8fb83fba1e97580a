"""The position schemes: one file a family, one interface (`Scheme`), one registry (`SCHEMES`).

The functions of tensors in these files take their tables as arguments and make no variables: they
serve graphs, eager programs and `tf.function`.
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
from rpr.positions.scheme import Scheme, Sum

__all__ = ["SCHEMES", "Scheme", "absolute", "bias", "build", "deberta", "graph", "relative",
           "rotary", "transformer_xl", "unclipped"]

# The values that the hparam `position` takes; the first line of each docstring describes it.
SCHEMES = {
    "none": absolute.NoPosition,
    "sinusoid": absolute.Sinusoid,
    "scaled_sinusoid": absolute.ScaledSinusoid,
    "learned": absolute.Learned,
    "relative": relative.Relative,
    "relative_unclipped": relative_unclipped.RelativeUnclipped,
    "transformer_xl": transformer_xl.TransformerXL,
    "t5_bias": bias.T5Bias,
    "alibi": bias.Alibi,
    "rotary": rotary.Rotary,
    "deberta": deberta.Deberta,
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
      ValueError: an unknown name, one said twice, `none` beside another, two that cannot be
        together, one that cannot serve the compatibility, or a hparam of a scheme that is out of
        its range.
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
    schemes = {name: SCHEMES[name](hparams, side) for name in names}
    by_product = {}
    for name, scheme in schemes.items():
        by_product.setdefault(scheme.product, []).append(name)
    if len(by_product.get("whole", ())) > 1:
        if "graph" in by_product["whole"]:                   # of a decoder
            value, rest = "+".join(names), "+".join(name for name in names if name != "graph")
            raise ValueError(f"{said}: a decoder's own words have no edges, so that graph is "
                             f"relative there and cannot be summed with {rest}; give each side its "
                             f"own: encoder_position={value},decoder_position={rest}")
        raise ValueError(f"{said}: {' and '.join(by_product['whole'])} each compute the product of "
                         "query and key in their own way: take one of them")
    if "turns" in by_product and len(by_product.keys() - {None}) > 1:
        others = [*by_product.get("term", ()), *by_product.get("whole", ())]
        raise ValueError(f"{said}: {by_product['turns'][0]} turns the queries by their positions, "
                         f"and {' and '.join(others)} would read them turned: take one of them")
    if hparams.get("compatibility") == "additive":
        for name, scheme in schemes.items():
            if not scheme.additive:
                raise ValueError(f"{said}: {name} is defined by a product of query and key: not "
                                 "with compatibility=additive")
    return Sum(list(schemes.values()))
