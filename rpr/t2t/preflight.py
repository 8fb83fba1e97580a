"""What is checked before T2T starts: T2T itself fails late, or silently does something else.

Every check raises `UserError` with one line and writes nothing.
"""
import difflib
import json
import os

from tensor2tensor.utils import registry

from problems import checks
from rpr.t2t import compat
from rpr.t2t.registration import find_problem, known, register
from rpr.utils import console, files
from rpr.utils.errors import UserError

TRAINED_WITH = "rpr.json"

# Hparams that change neither the model, its training nor its results.
_REPORTING = {"summarize_grads", "summarize_vars"}
# Hparams that a decoding may set on its own, whatever the training had.
_DECODING = _REPORTING | {"batch_size", "max_length", "sampling_method", "sampling_temp",
                          "sampling_keep_top_k", "eval_drop_long_sequences", "split_to_length"}


def parse_hparams(hparams, overrides):
    """Applies `name=value,...`; T2T answers an unknown name with a traceback or with nothing.

    Returns:
      The values that the overrides set, by name.
    """
    before = hparams.values()
    try:
        hparams.parse(overrides)
    except (ValueError, KeyError) as error:
        name = str(error).strip("'").split()[-1]
        if "Unknown hyperparameter" in str(error):
            near = difflib.get_close_matches(name, before, n=4, cutoff=0.5)
            raise UserError(f"--hparams={overrides}: no hparam '{name}'"
                            + (f"; nearest: {', '.join(near)}" if near else "")) from None
        raise UserError(f"--hparams={overrides}: {error}") from None
    named = {pair.split("=")[0].split("[")[0].strip() for pair in overrides.split(",")}
    return {name: value for name, value in hparams.values().items() if name in named}


def check_supported(model, hparams):
    """Refuses hparams that a model of this project cannot serve; T2T would fail at the first step.

    Args:
      model: the registered name.
      hparams: its hparams, as they were asked for.
    """
    check = getattr(registry.model(model), "check_hparams", None)
    if check:
        try:
            check(hparams)
        except ValueError as error:
            raise UserError(f"--hparams: {error}") from None


def saved_hparams(output_dir):
    """The values of an output directory's hparams.json, or None where there is none."""
    path = os.path.join(output_dir, "hparams.json")
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as text:
            return json.load(text)
    except ValueError as error:
        raise UserError(f"--output_dir={output_dir}: hparams.json is damaged: {error}") from None


def check_same_hparams(output_dir, asked, decoding=False):
    """Refuses an output directory whose hparams.json disagrees with what was asked.

    T2T lets the file win over the registered set, with no more than an INFO line.
    """
    saved = saved_hparams(output_dir)
    if saved is None:
        return
    free = _DECODING if decoding else _REPORTING
    asked = json.loads(json.dumps(asked, default=str))
    different = [f"{name}={value} (there: {saved[name]})" for name, value in sorted(asked.items())
                 if name in saved and name not in free and saved[name] != value]
    if different:
        raise UserError(f"--output_dir={output_dir} holds a model with other hparams: asked for "
                        f"{', '.join(different[:6])}{', ...' if len(different) > 6 else ''}; take "
                        "another directory, or the hparams that it was made with")


def check_same_training(output_dir, asked):
    """Refuses an output directory that was made with another model, problem or vocabulary.

    Args:
      output_dir: T2T's --output_dir.
      asked: as `remember_training` was given it; a part of it may be left out.
    """
    saved = trained_with(output_dir)
    if not saved:
        return
    for name, value in asked.items():
        if saved.get(name) == value:
            continue
        if name == "vocabulary":
            raise UserError(f"--data_dir: its vocabulary ({', '.join(value)}) is not the one that "
                            f"the model in --output_dir={output_dir} was trained with")
        raise UserError(f"--{name}={value}: --output_dir={output_dir} was trained with "
                        f"--{name}={saved.get(name)}")


def trained_with(output_dir):
    """What `remember_training` wrote; nothing in a directory of stock T2T's, or a new one."""
    return files.read_json(os.path.join(output_dir, TRAINED_WITH))


def remember_training(output_dir, **asked):
    """Writes what `check_same_training` compares (model, problem, hparams_set, vocabulary), and more."""
    files.write_atomically(os.path.join(output_dir, TRAINED_WITH),
                             json.dumps(asked, indent=1, sort_keys=True) + "\n")


def vocabularies(problem, data_dir):
    """SHA-256 of each vocabulary file of a text problem, by file name."""
    paths = {name: os.path.join(data_dir, name) for name in checks.vocabulary_files(problem)}
    return {name: files.sha256(path) for name, path in paths.items() if os.path.exists(path)}


def check_runs(runs):
    """Refuses runs that name a model, problem, hparams set or hparam that does not exist.

    Args:
      runs: `experiment.Run`s.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    logs = console.QuietLogs()
    try:
        compat.install()
        for usr_dir in dict.fromkeys(["", *(run.usr_dir for run in runs)]):
            register(usr_dir)
        from rpr.t2t import preflight, registration
        for run in runs:
            registration.check_choice("model", "model", run.model, known("model", run.model))
            find_problem(run.problem)
            known("hparams", run.hparams_set)
            hparams = registration.registered_hparams(run.hparams_set)
            preflight.parse_hparams(hparams, run.hparams)
            preflight.check_supported(run.model, hparams)
    finally:
        logs.end()
