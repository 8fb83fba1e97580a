"""gin at the edge: a file becomes an `experiment.Run`, or that and a `study.Study`."""
import dataclasses
import itertools
import os

import gin
from rpr.utils.errors import UserError


def load_run(path, bindings=()):
    """The run that a gin file describes.

    Args:
      path: a file of lines `run.NAME = VALUE`, the names being the fields of `experiment.Run`.
      bindings: further lines, which win over the file.

    Raises:
      UserError: no such file, an unknown name, a value that is missing or not allowed.
    """
    return _load(path, bindings, study=False)[0]


def load_study(path, bindings=()):
    """The study that a gin file describes, and the run that its arms change.

    Args:
      path: a file of lines `run.NAME = VALUE` and `study.NAME = VALUE`, the names being the fields
        of `experiment.Run` and `study.Study`.
      bindings: further lines, which win over the file.

    Returns:
      `study.Study`, `experiment.Run`.

    Raises:
      UserError: as `load_run` does.
    """
    run, study = _load(path, bindings, study=True)
    return study, run


def _load(path, bindings, study):
    if not os.path.exists(path):
        raise UserError(f"{path}: there is no such gin file")
    gin.clear_config()
    gin.add_config_file_search_path(os.path.dirname(os.path.abspath(path)))
    try:
        gin.parse_config_files_and_bindings([path], list(bindings))
        if _describes_a_study() != study:
            raise UserError("it describes a study: rpr study runs it" if not study else
                            "it describes a single run: rpr run runs it")
        return _configured_run(), _configured_study() if study else None
    except Exception as error:                        # gin raises whatever the text provokes
        line = (str(error).strip() or type(error).__name__).splitlines()[0].strip()
        raise UserError(f"{path}: {line}") from None


def _describes_a_study():
    for field in dataclasses.fields(Study):
        try:
            gin.query_parameter(f"study.{field.name}")
            return True
        except ValueError:
            pass
    return False


def as_gin(described, name="run"):
    """The resolved configuration of a run or a study as gin lines."""
    return "".join(f"{name}.{field} = {value!r}\n"
                   for field, value in dataclasses.asdict(described).items())


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run does. Everything else of it follows from this.

    Attributes:
      problem: T2T problem.
      hparams_set: T2T hparams set.
      train_steps: optimizer steps.
      model: T2T model.
      hparams: overrides, `name=value,...`.
      seed: of Python, NumPy and TensorFlow.
      checkpoint_steps: steps from checkpoint to checkpoint; divides `train_steps`.
      eval_seconds: evaluations on the development set are at least so long apart; the last
        checkpoint always is evaluated.
      eval_steps: batches of an evaluation at most.
      average_checkpoints: the last checkpoints that are averaged; 1 decodes the last one as it is.
      beam_size, alpha: beam search and its length penalty (Wu et al. 2016).
      decode_batch_size: sentences.
      test_set, language_pair: a test set of sacreBLEU, such as wmt14/full and en-de; empty for the
        problem's own test split.
      worker_gpu: GPUs, each with a batch of its own.
    """
    problem: str
    hparams_set: str
    train_steps: int
    model: str = "rpr_transformer"
    hparams: str = ""
    seed: int = 1
    checkpoint_steps: int = 1000
    eval_seconds: int = 600
    eval_steps: int = 100
    average_checkpoints: int = 1
    beam_size: int = 4
    alpha: float = 0.6
    decode_batch_size: int = 32
    test_set: str = ""
    language_pair: str = ""
    worker_gpu: int = 1

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not field.type and not (field.type is float and type(value) is int):
                raise UserError(f"run.{field.name} = {value!r}: a {field.type.__name__} is needed")
        for name in ("train_steps", "checkpoint_steps", "eval_steps", "average_checkpoints", "beam_size",
                     "decode_batch_size", "worker_gpu"):
            if getattr(self, name) < 1:
                raise UserError(f"run.{name} = {getattr(self, name)}: at least 1")
        if self.train_steps % self.checkpoint_steps:
            raise UserError(f"run.checkpoint_steps = {self.checkpoint_steps}: it has to divide "
                            f"run.train_steps = {self.train_steps}")
        if self.average_checkpoints * self.checkpoint_steps > self.train_steps:
            raise UserError(f"run.average_checkpoints = {self.average_checkpoints}: a training of {self.train_steps} steps "
                            f"has {self.train_steps // self.checkpoint_steps} checkpoints")
        if bool(self.test_set) != bool(self.language_pair):
            raise UserError("run.test_set and run.language_pair go together")


# What may differ when a run is gone on with. Not the decoding batch: padding and the longest
# hypothesis depend on it.
MUTABLE_FIELDS = {"eval_seconds": "--eval_throttle_seconds"}


@dataclasses.dataclass(frozen=True)
class Study:
    """What a study compares. A setting is a field of `experiment.Run`, else a hparam.

    Attributes:
      baseline: the arm that the others are compared with.
      grid: {setting: values}; an arm for each combination, called "setting=value,...".
      arms: {name: {setting: value}}; further arms.
      seeds: each arm is trained once with each.
      paper_bleu: {arm: BLEU}, to be shown beside ours.
    """
    baseline: str
    grid: dict = dataclasses.field(default_factory=dict)
    arms: dict = dataclasses.field(default_factory=dict)
    seeds: tuple = (1,)
    paper_bleu: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for field, kinds, what in (("baseline", str, "a name"), ("grid", dict, "a dict"),
                                   ("arms", dict, "a dict"), ("paper_bleu", dict, "a dict"),
                                   ("seeds", (tuple, list), "a tuple of numbers")):
            if not isinstance(getattr(self, field), kinds):
                raise UserError(f"study.{field} = {getattr(self, field)!r}: {what} is needed")
        for name, values in self.grid.items():
            if not isinstance(values, tuple | list) or not values:
                raise UserError(f"study.grid: {name!r} needs a tuple of values, not {values!r}")
        for name, changes in self.arms.items():
            if not isinstance(changes, dict):
                raise UserError(f"study.arms: {name!r} needs a dict of settings, not {changes!r}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(
                type(seed) is int for seed in self.seeds):
            raise UserError(f"study.seeds = {self.seeds!r}: different whole numbers are needed")
        names = self.changes()
        for field, wanted in (("baseline", [self.baseline]), ("paper_bleu", self.paper_bleu)):
            for name in wanted:
                if name not in names:
                    raise UserError(f"study.{field}: no arm '{name}'; one of {', '.join(names)}")
        for name, changes in names.items():
            if "seed" in changes:
                raise UserError(f"study: arm '{name}' sets the seed; that is what study.seeds does")

    def changes(self):
        """{arm: {setting: value}}, those of the grid first."""
        found = {}
        if self.grid:
            for values in itertools.product(*self.grid.values()):
                changes = dict(zip(self.grid, values, strict=True))
                found[",".join(f"{name}={value}" for name, value in changes.items())] = changes
        for name, changes in self.arms.items():
            if name in found:
                raise UserError(f"study.arms: '{name}' is an arm of the grid already")
            found[name] = changes
        return found


_configured_run = gin.external_configurable(Run, name="run")
_configured_study = gin.external_configurable(Study, name="study")
