"""Builds hparams, and finds trained models."""
import dataclasses
import os
from typing import NamedTuple

from tensor2tensor.utils import hparams_lib, trainer_lib

from rpr.models import live_hparams
from rpr.problems.checks import check_data
from rpr.t2t import checkpoints, preflight, registration
from rpr.utils.errors import InvalidValue
from rpr.utils.files import refuse_unusable
from rpr.utils.interfaces import HParams, ModelRequest


def build_hparams(request: ModelRequest, decoding: bool = False) -> HParams:
    """Builds hparams from the registered set and the overrides.

    If the output directory holds a model, the hparams must be those it was made with. Decoding
    takes them from its hparams.json, and overrides may change only what concerns decoding; it gets
    them as the model reads them.
    """
    hparams = registration.registered_hparams(request.hparams_set)
    overrides = preflight.parse_hparams(hparams, request.hparams)
    output_dir = request.output_dir and os.path.expanduser(request.output_dir)
    if output_dir:
        preflight.check_same_hparams(
            output_dir, overrides if decoding else hparams.values(), decoding)
    if decoding and output_dir and preflight.saved_hparams(output_dir):
        hparams = hparams_lib.create_hparams_from_json(
            os.path.join(output_dir, "hparams.json"), hparams)
        hparams.parse(request.hparams)
    checked = preflight.check_supported(request.model, hparams, decoding)
    if not decoding:
        problem = registration.find_problem(request.problem) if request.problem else None
        preflight.say_what_has_no_effect(
            overrides, live_hparams.without_effect(request.model, checked, problem))
    return checked if decoding else hparams


class TrainedModel(NamedTuple):
    """A trained model, ready to be built.

    The hparams have `data_dir`, `model_dir` and the hparams of the problem, with its vocabularies.
    """
    name: str                                         # registered
    hparams: HParams
    checkpoint: str                                   # path without suffix
    request: ModelRequest                             # with this checkpoint, and paths without ~


def find_trained_model(request: ModelRequest) -> TrainedModel:
    """Finds a trained model; refuses model, data and checkpoint that do not belong together."""
    registration.register(request.t2t_usr_dir)
    for name in ("output_dir", "data_dir"):
        if not getattr(request, name):
            raise InvalidValue(name, None)
    output_dir, data_dir = map(os.path.expanduser, (request.output_dir, request.data_dir))
    refuse_unusable(output_dir)
    refuse_unusable(data_dir)
    registration.check_registered("model", request.model)
    problem = registration.find_problem(request.problem)
    hparams = build_hparams(request, decoding=True)
    check_data(problem, data_dir, ())
    preflight.check_same_training(output_dir, data_dir, {
        "hparams_set": request.hparams_set,
        "vocabulary": preflight.vocabularies(problem, data_dir)})
    checkpoint = checkpoints.find_checkpoint(request.checkpoint_path or output_dir, request.model)
    hparams.add_hparam("data_dir", data_dir)
    hparams.add_hparam("model_dir", output_dir)
    trainer_lib.add_problem_hparams(hparams, problem)
    return TrainedModel(request.model, hparams, checkpoint, dataclasses.replace(
        request, checkpoint_path=checkpoint, output_dir=output_dir, data_dir=data_dir))
