"""The registry of position schemes, and how the hparam `position` becomes a scheme."""
from collections.abc import Callable

from rpr.positions.scheme import Scheme, SumOfSchemes
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

# The values of the hparam `position`. The first line of each docstring is shown by `rpr list`.
SCHEMES: dict[str, type[Scheme]] = {}


def register(name: str) -> Callable[[type[Scheme]], type[Scheme]]:
    """A class decorator: makes a scheme available as `position=name`, with its hparams.

    Raises:
      ValueError: the name is taken or cannot be written in --hparams, or another scheme declares
        an hparam of the same name in another way.
    """
    def add(scheme: type[Scheme]) -> type[Scheme]:
        if name in SCHEMES:
            raise ValueError(f"position scheme {name!r} is registered already")
        if not name.isidentifier():
            raise ValueError(f"position scheme {name!r}: a name consists of letters, digits and _")
        declared = {setting.name: setting for setting in declared_settings()}
        for setting in scheme.settings:
            if declared.get(setting.name, setting) != setting:
                raise ValueError(f"position scheme {name!r}: another scheme declares the hparam "
                                 f"{setting.name} with another default, range or help")
        SCHEMES[name] = scheme
        return scheme
    return add


def declared_settings() -> tuple[Setting, ...]:
    """The hparams that registered schemes declare, each once."""
    return tuple(dict.fromkeys(
        setting for scheme in SCHEMES.values() for setting in scheme.settings))


def unused_settings(position: str) -> set[str]:
    """The hparams of schemes that `position`, such as relative+sinusoid, does not use.

    Returns:
      names; none if `position` contains a scheme that is not registered.
    """
    names = [name.strip() for name in position.split("+")]
    if not all(name in SCHEMES for name in names):
        return set()
    used = {setting for name in names for setting in _settings_of(SCHEMES[name])}
    return {setting for scheme in SCHEMES.values() for setting in _settings_of(scheme)} - used


def _settings_of(scheme: type[Scheme]) -> list[str]:
    return [*(setting.name for setting in scheme.settings), *scheme.t2t_settings]


def build(hparams: HParams, side: str, has_edges: bool = True) -> Scheme:
    """Makes the scheme of one side, for one pass through its stack.

    The hparam `encoder_position` or `decoder_position` names it; if that is empty, `position`.

    Args:
      hparams: the model's hyperparameters.
      side: `inputs` (the encoder) or `targets` (the decoder).
      has_edges: whether the encoder's input has labelled edges, as far as that is known.

    Returns:
      the sum of the schemes that the hparam names.

    Raises:
      ValueError: the name is unknown, repeated, or `none` in a sum; the schemes cannot be summed;
        a scheme does not support the compatibility function; or an hparam of a scheme is outside
        its range.
    """
    hparam = {"inputs": "encoder_position", "targets": "decoder_position"}[side]
    hparam = hparam if hparams.get(hparam) else "position"
    value = hparams.get(hparam)
    names = [name.strip() for name in value.split("+")]
    _check_names(names, f"{hparam}={value}")
    _check_settings(names, hparams)
    schemes = {name: SCHEMES[name](hparams, side) for name in names}
    others = [name for name, scheme in schemes.items() if name != "graph" and (
        name == "relative" or scheme.query_key_method == "scores")]
    if side == "inputs" and not has_edges and "graph" in schemes and others:
        raise ValueError(f"{hparam}={value}: the source has no edges, so graph is relative there "
                         f"and cannot be summed with {others[0]}")
    _check_sum(schemes, f"{hparam}={value}", side)
    if hparams.get("compatibility") == "additive":
        for name, scheme in schemes.items():
            drops = (type(scheme).pair_vectors is Scheme.pair_vectors
                     and scheme.query_key_method in ("scores", "score_term"))
            if not scheme.supports_additive or drops:
                raise ValueError(f"{hparam}={value}: {name} is defined by a product of query and "
                                 "key, so it cannot be used with compatibility=additive")
    return SumOfSchemes(list(schemes.values()))


def _check_names(names: list[str], setting: str) -> None:
    allowed = f"allowed are {', '.join(SCHEMES)}, and sums such as relative+sinusoid"
    for name in names:
        if name not in SCHEMES:
            raise ValueError(f"{setting}: no scheme is called {name!r}; {allowed}")
    if len(set(names)) < len(names):
        raise ValueError(f"{setting} names a scheme twice; {allowed}")
    if len(names) > 1 and "none" in names:
        raise ValueError(f"{setting}: none cannot be part of a sum; {allowed}")


def _check_settings(names: list[str], hparams: HParams) -> None:
    for name in names:
        for setting in SCHEMES[name].settings:
            error = setting.error(hparams.get(setting.name))
            if error:
                raise ValueError(f"{error} (position={name})")


def _check_sum(schemes: dict[str, Scheme], setting: str, side: str) -> None:
    """At most one scheme replaces a product, and rotation goes with content-free schemes only."""
    by_method: dict[str | None, list[str]] = {}
    for name, scheme in schemes.items():
        by_method.setdefault(scheme.query_key_method, []).append(name)
    replacing = by_method.get("scores", [])
    same_tables = side == "targets" and {"graph", "relative"} <= schemes.keys()
    if len(replacing) > 1 or same_tables:
        if "graph" in schemes and side == "targets":
            both, rest = "+".join(schemes), "+".join(name for name in schemes if name != "graph")
            raise ValueError(
                f"{setting}: the decoder's words have no edges, so graph is relative there and "
                f"cannot be summed with {rest}; set the sides separately: "
                f"encoder_position={both},decoder_position={rest}")
        raise ValueError(f"{setting}: {' and '.join(replacing)} each replace the product "
                         "of query and key: choose one of them")
    weighting = [name for name, scheme in schemes.items() if scheme.replaces_weighted_sum]
    if len(weighting) > 1:
        raise ValueError(f"{setting}: {' and '.join(weighting)} each replace the weighted sum of "
                         "the values: choose one of them")
    content = [*by_method.get("score_term", ()), *by_method.get("scores", ())]
    if "rotate" in by_method and content:
        raise ValueError(f"{setting}: {by_method['rotate'][0]} rotates queries and keys, and "
                         f"{' and '.join(content)} would use the rotated ones: choose one of them")
