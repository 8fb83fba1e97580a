"""The registry of position schemes, and how the hparam `position` becomes a scheme."""
import copy
import functools
import inspect
import re
from collections.abc import Callable

from rpr.positions.combinations import HeadGroups, LayerGroups, SumOfSchemes
from rpr.positions.scheme import HOOKS, Scheme
from rpr.utils.errors import nearest
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

# The values of the hparam `position`. The first line of each docstring is shown by `rpr list`.
SCHEMES: dict[str, type[Scheme]] = {}


def register(name: str) -> Callable[[type[Scheme]], type[Scheme]]:
    """A class decorator: makes a scheme available as `position=name`, with its hparams.

    Raises ValueError if the name is taken or cannot be written in --hparams, if another scheme
    declares an hparam of the same name in another way, or if the class cannot be a scheme.
    """
    if not isinstance(name, str):
        raise ValueError('a position scheme needs a name: write @positions.register("a_name") '
                         f"above {getattr(name, '__name__', name)}")

    def add(scheme: type[Scheme]) -> type[Scheme]:
        if name in SCHEMES:
            raise ValueError(f"position scheme {name!r} is registered already")
        problem = _problem(name, scheme)
        if problem:
            raise ValueError(f"position scheme {name!r}: {problem}")
        SCHEMES[name] = scheme
        return scheme
    return add


def _problem(name: str, scheme: type[Scheme]) -> str:
    """Why a class cannot be registered under a name, in words; empty: it can be."""
    if not (isinstance(scheme, type) and issubclass(scheme, Scheme)):
        return f"{getattr(scheme, '__name__', scheme)} must derive from rpr.positions.Scheme"
    sides = scheme.sides
    if not (isinstance(sides, tuple) and sides and set(sides) <= _SIDES.keys()):
        return (f"sides = {sides!r}: must be a tuple of inputs, targets and cross, such as "
                "('targets',)")
    if not (isinstance(scheme.settings, tuple)
            and all(isinstance(setting, Setting) for setting in scheme.settings)):
        return "settings: must be a tuple of Setting, such as (Setting(...),)"
    declared = {setting.name: setting for setting in declared_settings()}
    for setting in scheme.settings:
        if declared.get(setting.name, setting) != setting:
            return (f"another scheme declares the hparam {setting.name} with another default, "
                    "range or help")
        if not isinstance(setting.default, bool | int | float | str):
            return (f"the default {setting.name}={setting.default}: must be True or False, a "
                    "number or text")
        error = setting.error(setting.default)
        if error:
            return f"the default {error}"
    for word in (name, *(setting.name for setting in scheme.settings)):
        if not word.isidentifier():
            return f"{word!r}: a name consists of letters, digits and _"
    if name != "none" and not any(_overrides(scheme, hook) for hook in HOOKS):
        return f"{scheme.__name__} overrides none of the methods {', '.join(HOOKS)}"
    for method in ("__init__", "states", *HOOKS):
        own = inspect.getattr_static(scheme, method)
        taken = [*inspect.signature(getattr(Scheme, method)).parameters]
        try:
            if inspect.isfunction(own):
                inspect.signature(own).bind(*taken)
        except TypeError:
            return f"{method}() must take {', '.join(taken[1:]) or 'nothing'}"
    return ""


def _overrides(scheme: type[Scheme], hook: str) -> bool:
    return getattr(scheme, hook) is not getattr(Scheme, hook)


def declared_settings() -> tuple[Setting, ...]:
    """The hparams that registered schemes declare, each once."""
    return tuple(dict.fromkeys(
        setting for scheme in SCHEMES.values() for setting in scheme.settings))


# {side: what `position` is for there}
_SIDES = {"inputs": "the encoder (encoder_position)", "targets": "the decoder (decoder_position)",
          "cross": "the attention to the encoder (cross_position)"}
_HPARAM = {"inputs": "encoder_position", "targets": "decoder_position", "cross": "cross_position"}


def names_in(position: str) -> set[str]:
    """The names of schemes in a value of the hparam `position`."""
    return {name.strip() for part in position.split(":") for name in part.split("@")[0].split("+")}


def works_in(name: str, hparams: HParams, side: str) -> bool:
    """Whether a scheme is for a side; `unidirectional_encoder` takes those for the decoder, too."""
    sides = {side, "targets"} if side == "inputs" and hparams.get(
        "unidirectional_encoder") else {side}
    return not sides.isdisjoint(SCHEMES[name].sides)


def unused_settings(position: str) -> set[str]:
    """The names of hparams of schemes that `position`, such as relative+sinusoid, does not use.

    There are none if it contains a scheme that is not registered.
    """
    names = names_in(position)
    if not names <= SCHEMES.keys():
        return set()
    used = {setting for name in names for setting in _settings_of(SCHEMES[name])}
    return {setting for scheme in SCHEMES.values() for setting in _settings_of(scheme)} - used


def _settings_of(scheme: type[Scheme]) -> list[str]:
    return [*(setting.name for setting in scheme.settings), *scheme.t2t_settings]


def build(hparams: HParams, side: str) -> Scheme:
    """Makes the scheme of one side, for one pass through its stack.

    The hparam `encoder_position` or `decoder_position` names it; if that is empty, `position`. The
    attention to the encoder has `cross_position`. A value consists of parts `SCHEMES@WHERE`, joined
    by `:`. SCHEMES is a name, or several joined by `+`. WHERE is a layer `4`, layers `1-3`,
    `every4` (layers 4, 8, ...) or `heads1-4`; a part without WHERE is for the rest. Each head of
    each layer has the first part that names it.

    The side is `inputs` (the encoder), `targets` (the decoder) or `cross`. `Scheme.at` gives the
    scheme of a layer. Raises ValueError for a value that has another form, for schemes that cannot
    be used there or together, and for an hparam of a scheme that is outside its range.
    """
    hparam = _HPARAM[side]
    value = hparams.get(hparam)
    if not value:
        hparam, value = "position", "none" if side == "cross" else hparams.position
    setting = f"{hparam}={value}"
    parts = [_Part(part, setting) for part in value.split(":")]
    if len(parts) == 1 and parts[0].is_rest:
        return _sum(parts[0].names, hparams, side, setting)
    for hook in ("place", "embed"):
        # By their classes: a group of heads may have other numbers of heads and channels.
        users = [{name for name in part.names if _overrides(SCHEMES[name], hook)}
                 for part in parts]
        for name in users[0].union(*users) - users[0].intersection(*users):
            raise ValueError(f"{setting}: {name} acts before the first layer, on all heads, so it "
                             "must be in every part")
    # The stacks that share `position` may have different numbers of layers.
    layers = max(_layers(hparams, each) for each in (side, "inputs", "targets")
                 if each == side or hparam == "position" and not hparams.get(_HPARAM[each]))
    used = {_part_of(parts, layer + 1, head + 1)
            for layer in range(layers) for head in range(hparams.num_heads)}
    for part in parts:
        if part not in used:
            raise ValueError(f"{setting}: leave out '{part.text}', which no head has "
                             f"(num_heads={hparams.num_heads}, layers: {layers})")
        for kind, count in (("layers", layers), ("heads", hparams.num_heads)):
            if part.last(kind) > count:
                raise ValueError(f"{setting}: '{part.text}' goes beyond the last of {count} {kind}")

    @functools.cache                                         # one object for all layers
    def scheme_of(part: _Part, heads: tuple[int, int]) -> SumOfSchemes:
        return _sum(part.names, _of_heads(hparams, heads), side, setting, heads)

    stack: list[Scheme] = []
    for layer in range(1, _layers(hparams, side) + 1):
        groups = _head_groups(layer, parts, hparams.num_heads, setting)
        sums = {heads: scheme_of(part, heads) for heads, part in groups.items()}
        if len({scheme.depth_factor for scheme in sums.values()}) > 1:
            raise ValueError(f"{setting}: the heads of a layer have keys of different depths")
        if len(sums) > 1 and hparams.get("compatibility") == "additive" and side != "cross":
            raise ValueError(f"{setting}: compatibility=additive needs one scheme for all heads")
        stack.append(HeadGroups(sums) if len(sums) > 1 else next(iter(sums.values())))
    return LayerGroups(stack)


class _Part:
    """A part `SCHEMES@WHERE` of a value of the hparam `position`."""

    def __init__(self, text: str, setting: str) -> None:
        self.text = text.strip()
        schemes, *conditions = (word.strip() for word in text.split("@"))
        self.names = _checked_names(schemes, setting)
        self.is_rest = not conditions
        self._bounds: dict[str, tuple[int, int]] = {}
        for condition in conditions:
            match = re.fullmatch(r"(heads)?([1-9]\d*)(?:-([1-9]\d*))?|(every)([1-9]\d*)", condition)
            if not match or int(match[3] or match[2] or 0) < int(match[2] or 0):
                raise ValueError(f"{setting}: '@{condition}' must be a layer such as 4, layers such"
                                 " as 1-3, every4 for each fourth layer, or heads such as heads1-4")
            first, kind = int(match[2] or match[5]), match[1] or match[4] or "layers"
            if kind in self._bounds:
                raise ValueError(f"{setting}: '{self.text}' names {kind} twice; write two parts")
            self._bounds[kind] = first, int(match[3] or first)

    def last(self, kind: str) -> int:
        """The last of the `layers` or `heads` that it names; 0: it names none."""
        return self._bounds.get(kind, (0, 0))[1]

    def includes(self, layer: int, head: int) -> bool:
        """Whether this part is for a head of a layer, both counted from 1."""
        first_layer, last_layer = self._bounds.get("layers", (layer, layer))
        first_head, last_head = self._bounds.get("heads", (head, head))
        every, _ = self._bounds.get("every", (1, 1))
        return (first_layer <= layer <= last_layer and first_head <= head <= last_head
                and layer % every == 0)


def _layers(hparams: HParams, side: str) -> int:
    stack = "encoder" if side == "inputs" else "decoder"
    return hparams.get(f"num_{stack}_layers") or hparams.num_hidden_layers


def _part_of(parts: list[_Part], layer: int, head: int) -> _Part | None:
    return next((part for part in parts if part.includes(layer, head)), None)


def _head_groups(layer: int, parts: list[_Part], heads: int, setting: str
                 ) -> dict[tuple[int, int], _Part]:
    """The part of each group of neighbouring heads: {(first, last + 1): part}, from 0."""
    groups: dict[tuple[int, int], _Part] = {}
    for head in range(heads):
        part = _part_of(parts, layer, head + 1)
        if part is None:
            raise ValueError(f"{setting}: no part is for head {head + 1} of layer {layer}; add a "
                             "part without @ for the rest, such as :none")
        first, end = next(reversed(groups), (0, 0))
        if groups and groups[first, end] is part:
            del groups[first, end]
        else:
            first = head
        groups[first, head + 1] = part
    return groups


def _of_heads(hparams: HParams, heads: tuple[int, int]) -> HParams:
    """The hparams of a model that has only these heads."""
    first, end = heads
    if end - first == hparams.num_heads:
        return hparams
    part = copy.copy(hparams)
    for name in ("attention_key_channels", "attention_value_channels"):
        channels = hparams.get(name) or hparams.hidden_size
        part.set_hparam(name, channels // hparams.num_heads * (end - first))
    part.set_hparam("num_heads", end - first)
    return part


def _sum(names: list[str], hparams: HParams, side: str, setting: str,
         heads: tuple[int, int] = (0, 0)) -> SumOfSchemes:
    """The checked sum of the schemes with these names, for all heads or for a group."""
    schemes = {}
    for name in names:
        if not works_in(name, hparams, side):
            where = " and ".join(_SIDES[each] for each in SCHEMES[name].sides)
            raise ValueError(f"{setting}: {name} works only in {where}")
        for each in SCHEMES[name].settings:
            error = each.error(hparams.get(each.name))
            if error:
                raise ValueError(f"{error} (position={name})")
        schemes[name] = SCHEMES[name](hparams, side)
        schemes[name].label = f"{name}_{heads[0] + 1}_{heads[1]}" if heads[1] else name
    for scheme in schemes.values():
        scheme.partners = [other for other in schemes.values() if other is not scheme]
        for other in scheme.partners:
            drawn = scheme.draws_among and hparams.get(scheme.draws_among)
            if drawn and other.longest is not None and drawn > other.longest:
                raise ValueError(f"{setting}: {scheme.draws_among}={drawn} must be at most the "
                                 f"{other.longest} positions of {other.label} (max_length)")
    _check_sum(schemes, setting)
    if hparams.get("compatibility") == "additive" and side != "cross":
        for name, scheme in schemes.items():
            drops = scheme.uses("logits") and not scheme.uses("pair_vectors")
            if drops or scheme.uses("rotate"):
                raise ValueError(f"{setting}: {name} is defined by a product of query and key, so "
                                 "it cannot be used with compatibility=additive")
    return SumOfSchemes(list(schemes.values()))


def _checked_names(schemes: str, setting: str) -> list[str]:
    names = [name.strip() for name in schemes.split("+")]
    allowed = f"allowed are {', '.join(SCHEMES)}, and sums such as relative+sinusoid"
    for name in names:
        if name not in SCHEMES:
            raise ValueError(f"{setting}: no scheme is called {name!r}"
                             f"{nearest(name, SCHEMES) or f'; {allowed}'}")
    if len(set(names)) < len(names):
        raise ValueError(f"{setting} names a scheme twice; {allowed}")
    if len(names) > 1 and "none" in names:
        raise ValueError(f"{setting}: none cannot be part of a sum; {allowed}")
    return names


# {hook that one scheme of a sum may use, or replace: what it does}
_ONE_USER = {"logits": "replace the product of query and key",
             "values": "replace the weighted sum of the values", "place": "give the positions",
             "rotate": "rotate queries and keys", "adjust": "join logits and biases",
             "normalize": "give the attention weights"}


def _check_sum(schemes: dict[str, Scheme], setting: str) -> None:
    """At most one scheme replaces a product, and rotation goes with content-free schemes only."""
    for hook, words in _ONE_USER.items():
        users = [name for name, scheme in schemes.items() if scheme.uses(hook)
                 and (hook not in ("logits", "values") or scheme.replaces(hook))]
        if len(users) > 1:
            raise ValueError(f"{setting}: {' and '.join(users)} each {words}: choose one of them")
    for name, scheme in schemes.items():
        reading = [other for other in schemes if schemes[other].uses("adjust")]
        if scheme.masks and reading:
            raise ValueError(f"{setting}: {name} masks pairs by its bias, and {reading[0]} would "
                             "read that: choose one of them")
    rotating = [name for name, scheme in schemes.items() if scheme.uses("rotate")]
    content = [name for name, scheme in schemes.items()
               if scheme.uses("logits") and name not in rotating]
    if rotating and content:
        raise ValueError(f"{setting}: {rotating[0]} rotates queries and keys, and "
                         f"{' and '.join(content)} would use the rotated ones: choose one of them")
