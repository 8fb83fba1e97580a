"""Hparams and trained models, from T2T's flags."""
import os
from typing import Any, NamedTuple

from tensor2tensor.utils import hparams_lib, trainer_lib

from rpr.problems.checks import check_data
from rpr.t2t import checkpoints, preflight, registration
from rpr.utils.errors import UserError
from rpr.utils.files import refuse_pattern


def build_hparams(flags: Any, decoding: bool = False) -> Any:
    """Builds hparams: the registered set, then --hparams. Everything else uses this function.

    If the output directory holds a model, the hparams must be those it was made with. Decoding
    takes them from its hparams.json, and --hparams may change only what concerns decoding.

    Args:
      flags: has model, hparams_set, hparams and output_dir.
      decoding: whether the model is to be used, not trained.

    Returns:
      HParams.

    Raises:
      UserError: an unknown name, a value out of range, or another model in the directory.
    """
    hparams = registration.registered_hparams(flags.hparams_set)
    overrides = preflight.parse_hparams(hparams, flags.hparams)
    output_dir = flags.output_dir and os.path.expanduser(flags.output_dir)
    if output_dir:
        preflight.check_same_hparams(
            output_dir, overrides if decoding else hparams.values(), decoding)
    if decoding and output_dir and preflight.saved_hparams(output_dir):
        hparams = hparams_lib.create_hparams_from_json(
            os.path.join(output_dir, "hparams.json"), hparams)
        hparams.parse(flags.hparams)
    preflight.check_supported(flags.model, hparams)
    return hparams


class TrainedModel(NamedTuple):
    """A trained model, ready to be built.

    Attributes:
      name: the registered model.
      hparams: with `data_dir`, `model_dir` and the hparams of the problem (vocabularies included).
      checkpoint: path without suffix.
    """
    name: str
    hparams: Any
    checkpoint: str


def find_trained_model(flags: Any) -> TrainedModel:
    """Finds and checks the trained model that T2T's flags name.

    Args:
      flags: has model, problem, hparams_set, hparams, data_dir, output_dir and checkpoint_path.
        Without a checkpoint_path, the last checkpoint of output_dir is used.

    Raises:
      UserError: a flag is missing, or model, data and checkpoint do not belong together.
    """
    for name in ("output_dir", "data_dir"):
        if not getattr(flags, name):
            raise UserError(f"--{name} is missing")
    output_dir, data_dir = map(os.path.expanduser, (flags.output_dir, flags.data_dir))
    refuse_pattern(output_dir, "--output_dir")
    refuse_pattern(data_dir, "--data_dir")
    registration.check_model(flags.model)
    problem = registration.find_problem(flags.problem)
    hparams = build_hparams(flags, decoding=True)
    check_data(problem, data_dir, ())
    preflight.check_same_training(output_dir, {
        "hparams_set": flags.hparams_set, "vocabulary": preflight.vocabularies(problem, data_dir)})
    flag = "checkpoint_path" if flags.checkpoint_path else "output_dir"
    checkpoint = checkpoints.find_checkpoint(
        flags.checkpoint_path or output_dir, flags.model, flag)
    hparams.add_hparam("data_dir", data_dir)
    hparams.add_hparam("model_dir", output_dir)
    trainer_lib.add_problem_hparams(hparams, problem)
    return TrainedModel(flags.model, hparams, checkpoint)
