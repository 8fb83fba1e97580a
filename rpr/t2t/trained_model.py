"""rpr.t2t.trained_model"""
import os
from typing import Any, NamedTuple

from rpr.t2t.registration import find_problem, known
from rpr.utils.errors import UserError


def build_hparams(flags, decoding=False):
    """The one place that builds T2T hparams: registered set, then --hparams.

    In an output directory that holds a model they must be those it was made with; when decoding,
    its hparams.json counts and --hparams may add what concerns decoding alone.
    """
    from tensor2tensor.utils import hparams_lib

    from rpr.t2t import preflight, registration
    known("hparams", flags.hparams_set)
    hparams = registration.registered_hparams(flags.hparams_set)
    named = preflight.parse_hparams(hparams, flags.hparams)
    output_dir = flags.output_dir and os.path.expanduser(flags.output_dir)
    if output_dir:
        preflight.check_same_hparams(output_dir, named if decoding else hparams.values(), decoding)
    if decoding and output_dir and preflight.saved_hparams(output_dir):
        hparams = hparams_lib.create_hparams_from_json(
            os.path.join(output_dir, "hparams.json"), hparams)
        hparams.parse(flags.hparams)
    preflight.check_supported(flags.model, hparams)
    return hparams


class TrainedModel(NamedTuple):
    """What a trained model is read from.

    Attributes:
      name: the registered model.
      hparams: with `data_dir`, `model_dir` and those of the problem, its vocabularies among them.
      checkpoint: path without suffix.
    """
    name: str
    hparams: Any
    checkpoint: str


def find_trained_model(flags):
    """Finds and checks the trained model that T2T's flags name.

    Args:
      flags: has model, problem, hparams_set, hparams, data_dir, output_dir, and checkpoint_path or
        None in it (then the last checkpoint of output_dir counts).

    Raises:
      UserError: a flag is missing, or what they name does not fit together.
    """
    from tensor2tensor.utils import trainer_lib

    from problems.checks import check_data
    from rpr.t2t import checkpoints, preflight, registration
    for name in ("output_dir", "data_dir"):
        if not getattr(flags, name):
            raise UserError(f"--{name} is missing")
    output_dir, data_dir = map(os.path.expanduser, (flags.output_dir, flags.data_dir))
    registration.check_choice("model", "model", flags.model, known("model", flags.model))
    problem = find_problem(flags.problem)
    hparams = build_hparams(flags, decoding=True)
    check_data(problem, data_dir, ())
    preflight.check_same_training(output_dir, {"hparams_set": flags.hparams_set,
                                         "vocabulary": preflight.vocabularies(problem, data_dir)})
    flag = "checkpoint_path" if flags.checkpoint_path else "output_dir"
    checkpoint = checkpoints.find_checkpoint(flags.checkpoint_path or output_dir, flags.model, flag)
    hparams.add_hparam("data_dir", data_dir)
    hparams.add_hparam("model_dir", output_dir)
    trainer_lib.add_problem_hparams(hparams, problem)
    return TrainedModel(flags.model, hparams, checkpoint)
