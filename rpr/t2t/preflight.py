"""Checks before T2T starts. T2T itself fails late, or silently does something else.

Every check raises `UserError` with one line and writes nothing.
"""
import json
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tensor2tensor.utils import registry

from rpr.models import declarations, live_hparams
from rpr.problems import checks
from rpr.t2t import registration
from rpr.utils import console, files
from rpr.utils.errors import InvalidPath, InvalidValue, UserError, nearest
from rpr.utils.interfaces import DecodeHParams, HParams, ModelRequest, Problem

TRAINED_WITH = "rpr.json"
_BOOLEANS = ("true", "True", "false", "False", "1", "0")

# Hparams that change neither the model, its training nor its results.
_REPORTING = {"summarize_grads", "summarize_vars", "use_pad_remover"}     # off if compiled
# Hparams that decoding may change.
_DECODING = _REPORTING | {
    "activation_dtype", "batch_size", "max_length", "sampling_method", "sampling_temp",
    "sampling_keep_top_k", "eval_drop_long_sequences", "split_to_length"}


def parse_hparams(hparams: HParams | DecodeHParams, overrides: str, setting: str = "hparams"
                  ) -> dict[str, Any]:
    """Applies overrides, `name=value,...`, to hparams; `setting` names them in errors.

    Returns the values that they set, by name.
    """
    if console.printable(overrides) != overrides:
        raise InvalidValue(setting, console.printable(overrides), "it contains control "
                           "characters")
    before = hparams.values()
    given = [(name.split("[")[0].strip(), value.strip())
             for name, _, value in (pair.partition("=") for pair in overrides.split(","))]
    for name, value in given:                         # T2T takes every number but 0 for true
        if isinstance(before.get(name), bool) and value not in _BOOLEANS:
            raise InvalidValue(setting, overrides, f"{name}={value}: must be true or false")
    try:
        hparams.parse(overrides)
    except (ValueError, KeyError, TypeError) as error:
        name = str(error).strip("'").split()[-1]
        if "Unknown hyperparameter" in str(error):
            raise InvalidValue(setting, overrides,
                               f"no hparam '{name}'{nearest(name, before)}") from None
        raise InvalidValue(setting, overrides, str(error)) from None
    return {name: value for name, value in hparams.values().items() if name in dict(given)}


def check_supported(model: str, hparams: HParams, decoding: bool = False) -> HParams:
    """Refuses hparams that are out of range or that a model of this project does not support.

    `decoding`: the model is trained, and its batches are not packed. Returns the hparams as the
    model reads them, which for `rpr_transformer` includes its own in a set of T2T.
    """
    check, checked = getattr(registry.model(model), "check_hparams", None), None
    if check:
        try:
            checked = check(hparams)
        except ValueError as error:
            raise UserError(str(error)) from None
    if not decoding and hparams.get("pack_dataset") and hparams.get("use_custom_ops"):
        raise UserError("use_custom_ops=True with pack_dataset=True: T2T's package does not "
                        "contain its operation; add use_custom_ops=False")
    # That of a user's own model need not return any.
    return checked if isinstance(checked, type(hparams)) else hparams


def say_what_has_no_effect(given: Mapping[str, Any], dead: Mapping[str, str]) -> None:
    """Names, on the terminal and in the log, the given settings that nothing reads.

    `dead` is {name: why, in words that continue "... has no effect"}; it may have other names, too.
    """
    for name, why in dead.items():
        if name in given:
            line = f"{name}={given[name]} has no effect {why}"
            console.say(line, style="yellow")
            logging.getLogger("tensorflow").warning(line)          # for train.log


def say_if_nothing_is_sampled(hparams: HParams, beam_size: int, is_ensemble: bool = False) -> None:
    """Names on the terminal a sampling_method that the search of a trained model does not read."""
    method = hparams.get("sampling_method", "argmax")
    if method != "argmax" and (beam_size > 1 or is_ensemble):
        why = "in an ensemble" if is_ensemble else (
            f"with beam_size={beam_size}; with beam_size=1 symbols are drawn")
        console.say(f"sampling_method={method} has no effect {why}", style="yellow")


def check_reads_source(hparams: HParams) -> None:
    """Refuses a model whose target begins with its source; only T2T's decoder supplies that."""
    if hparams.get("prepend_mode", "none") != "none":
        raise UserError(f"prepend_mode={hparams.prepend_mode}: only rpr decode uses such a model, "
                        "and not in an ensemble")


def saved_hparams(output_dir: str) -> dict[str, Any] | None:
    """The values in an output directory's hparams.json, or None if there is none."""
    path = os.path.join(output_dir, "hparams.json")
    return files.read_json(path, dict, "restore it, or train in another directory") or None


def check_same_hparams(output_dir: str, requested: dict[str, Any], decoding: bool = False) -> None:
    """Refuses an output directory whose hparams.json disagrees with the requested hparams.

    T2T lets the file override the registered set, with only an INFO line. `decoding` allows the
    hparams that decoding may change.
    """
    saved = saved_hparams(output_dir)
    if saved is None:
        return
    free = _DECODING | declarations.free_after_training() if decoding else _REPORTING
    requested = json.loads(json.dumps(requested, default=str))
    different = [f"{name}={value} (there: {saved[name]})"
                 for name, value in sorted(requested.items())
                 if name in saved and name not in free and saved[name] != value]
    if different:
        raise InvalidPath(output_dir, "holds a model with other hparams: requested "
                          f"{', '.join(different[:6])}{', ...' if len(different) > 6 else ''}; "
                          "take another directory, or the hparams that it was made with")


def check_same_training(output_dir: str, data_dir: str, requested: dict[str, Any]) -> None:
    """Refuses an output directory that was made with another model, problem or vocabulary.

    A value that is absent there equals False. The requested vocabulary is that of `data_dir`.
    """
    saved = trained_with(output_dir)
    if not saved:
        return
    for name, value in requested.items():
        if saved.get(name, False) == value:
            continue
        if name == "vocabulary":
            raise InvalidPath(data_dir, f"its vocabulary ({', '.join(value)}) is not the one that "
                              f"the model in {output_dir} was trained with")
        raise InvalidValue(name, value, f"{output_dir} was trained with {name}={saved.get(name)}")


def trained_with(output_dir: str) -> dict[str, Any]:
    """What `remember_training` wrote; empty for a new directory or one of T2T's own trainer."""
    return files.read_json(os.path.join(output_dir, TRAINED_WITH))


def remember_training(output_dir: str, **values: Any) -> None:
    """Writes model, problem, hparams_set, vocabulary and further values of a training."""
    files.write_atomically(os.path.join(output_dir, TRAINED_WITH),
                           json.dumps(values, indent=1, sort_keys=True) + "\n")


def vocabularies(problem: Problem, data_dir: str) -> dict[str, str]:
    """SHA-256 of each vocabulary file of a text problem, by file name."""
    paths = {name: os.path.join(data_dir, name) for name in checks.vocabulary_files(problem)}
    return {name: files.sha256(path) for name, path in paths.items() if os.path.exists(path)}


def check_runs(runs: Sequence[ModelRequest]) -> tuple[list[dict[str, Any]], list[str]]:
    """Refuses runs with an unknown model, problem, hparams set or hparam, or a value out of range.

    `compat.install` must have been called. Returns the hparams that each run's training reads, and
    a line for each hparam that no run reads of those that set it to the same value.
    """
    read = []
    why_dead: dict[str, list[str]] = {}               # by setting; "" if a run reads it
    for usr_dir in dict.fromkeys(["", *(run.t2t_usr_dir for run in runs)]):
        registration.register(usr_dir)
    for run in runs:
        registration.check_registered("model", run.model)
        problem = registration.find_problem(run.problem)
        if run.problem.endswith(("_rev", "_copy")):
            raise UserError(f"run.problem = {run.problem}: T2T's suffixes _rev and _copy work with "
                            "rpr train and rpr decode only; define a problem with the languages "
                            "swapped")
        hparams = registration.registered_hparams(run.hparams_set)
        overrides = parse_hparams(hparams, run.hparams)
        checked = check_supported(run.model, hparams)
        dead = live_hparams.without_effect(run.model, checked, problem)
        read.append({name: value for name, value in hparams.values().items() if name not in dead})
        if "position" in dead and not hasattr(registry.model(run.model), "check_hparams"):
            overrides.setdefault("position", hparams.position)    # of our set; T2T's model
        for name, value in overrides.items():
            why_dead.setdefault(f"{name}={value}", []).append(dead.get(name, ""))
    return read, [f"{setting} has no effect {reasons[0]}" for setting, reasons in why_dead.items()
                  if all(reasons)]
