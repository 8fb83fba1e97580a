"""What a run and a study do: their settings with types, defaults, ranges and meanings."""
import dataclasses
import itertools
import math
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from rpr.evaluation import ALL_METRICS, LOSS_METRICS
from rpr.evaluation.test_sets import LANGUAGE_PAIR
from rpr.utils.console import printable
from rpr.utils.errors import UserError, nearest
from rpr.utils.settings import Setting

MOST_ARMS = 1000
LONGEST_NAME = 100                                    # characters of an arm's name
_HIGHEST_SEED = 2**32 - 1                             # of NumPy

# Settings that name text files, and the environment variables of `TEXT_PROBLEMS`.
TEXT_FILES = {"text_source": "RPR_TEXT_SOURCE", "text_target": "RPR_TEXT_TARGET",
              "text_dev_source": "RPR_TEXT_DEV_SOURCE", "text_dev_target": "RPR_TEXT_DEV_TARGET",
              "text_test_source": "RPR_TEXT_TEST_SOURCE",
              "text_test_target": "RPR_TEXT_TEST_TARGET"}

# Problems of text files of one's own; language models have no target side.
TEXT_PROBLEMS = ("translate_text_files", "graph_text_files", "lm_text_files",
                 "lm_text_files_characters")

# Settings that may change when a run is resumed. Not the decoding batch: padding and the longest
# hypothesis depend on it. Files may be moved: what counts is their content, which a run records.
MUTABLE_FIELDS = {"eval_frequency", "bleu_frequency", "metrics", "test_sets", "usr_dir",
                  *TEXT_FILES}
_OF_TRANSLATION = ("test_set", "language_pair", "bleu_frequency", "beam_size", "alpha",
                   "decode_batch_size")
LONGEST_TEXT = 10_000                                 # characters
# What no arm sets: a record must not choose which code runs, and a study makes its data once.
_OF_ALL_ARMS = {
    "seed": "the seed; use study.seeds",
    "metrics": "metrics; all arms are compared by those of run.metrics",
    "usr_dir": "usr_dir; all arms use run.usr_dir",
    **{name: f"{name}; all arms share the data: set run.{name}, or make another study"
       for name in (*TEXT_FILES, "text_vocab_size")}}
# Halves of surrogate pairs, but for those that stand for the bytes of a path.
_HALF_PAIR = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_LARGEST = 2**63 - 1                                  # number that an arm sets


def setting(meaning: str, default: Any = dataclasses.MISSING, *, low: float | None = None,
            high: float | None = None) -> Any:
    """A field of a dataclass of settings, with its range; it is required without a default."""
    value = {"default_factory": dict} if isinstance(default, dict) else {"default": default}
    return dataclasses.field(metadata={"help": meaning, "minimum": low, "maximum": high}, **value)


def with_tuple(value: Any, declared: Setting) -> Any:
    """The value; a list as a tuple where the setting is one."""
    is_list = isinstance(declared.default, tuple) and isinstance(value, list)
    return tuple(value) if is_list else value


def _check_types_and_ranges(settings: Any, prefix: str) -> None:
    for field, declared in declarations(type(settings), prefix):
        value = with_tuple(getattr(settings, field.name), declared)
        object.__setattr__(settings, field.name, value)       # the dataclass is frozen
        _check_value(value, declared)


def _check_value(value: Any, declared: Setting) -> None:
    if not declared.accepts(value):
        raise UserError(f"{declared.name} = {shown(value)}: {declared.required(value)}")
    if isinstance(value, str):
        _check_text(value, declared.name)


def _check_text(value: str, name: str, longest: int = LONGEST_TEXT) -> None:
    """Refuses text with control characters, or longer than `longest` characters."""
    if printable(value) != value or _HALF_PAIR.search(value):
        raise UserError(f"{name} = {shown(value)}: it contains control characters")
    if len(value) > longest:
        raise UserError(f"{name} = {shown(value)}: at most {longest:,} characters, it has "
                        f"{len(value):,}")


def shown(value: Any) -> str:
    """A value for an error message: one line, not too long."""
    text = printable(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _some(names: list[str]) -> str:
    """The names; the first and the last ones if there are many."""
    return ", ".join(names if len(names) <= 8 else [*names[:4], "...", *names[-4:]])


def describe(kinds: Iterable[tuple[str, type]]) -> str:
    """All settings as lines for `--help`, from pairs of a prefix ("run") and a dataclass."""
    lines = ["settings of the gin file:"]
    for prefix, kind in kinds:
        for field, declared in declarations(kind, prefix):
            default = "required" if _is_required(field) else f"default {declared.default!r}"
            lines += [f"  {declared.name} ({declared.allowed()}, {default})",
                      textwrap.fill(declared.help, 96, initial_indent=" " * 6,
                                    subsequent_indent=" " * 6)]
    return "\n".join(lines)


def declarations(kind: type, prefix: str) -> Iterator[tuple[dataclasses.Field, Setting]]:
    """Fields and declarations, called PREFIX.FIELD; the default of a required one is empty."""
    for field in dataclasses.fields(kind):
        default: Any = field.default
        if default is dataclasses.MISSING:
            empty: Any = typing.get_origin(field.type) or field.type
            default = empty()
        yield field, Setting(f"{prefix}.{field.name}", default, **field.metadata)


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def file_name(test_set: str) -> str:
    """The name of a test set as a part of file names."""
    return re.sub("[/:]", "_", test_set)


@dataclasses.dataclass(frozen=True)
class Run:
    """The settings of a run; `UserError`: a value is out of range, or two do not fit together."""
    problem: str = setting("T2T problem: the data (rpr list problems)")
    hparams_set: str = setting("T2T hparams set (rpr list hparams)")
    train_steps: int = setting("optimizer steps", low=1, high=10**9)
    model: str = setting("T2T model (rpr list models)", "rpr_transformer")
    hparams: str = setting("hparams that differ from the set: name=value,...", "")
    seed: int = setting("seed of Python, NumPy and TensorFlow", 1, low=0, high=_HIGHEST_SEED)
    checkpoint_steps: int = setting("steps between checkpoints; divides train_steps", 1000, low=1)
    eval_frequency: int = setting("evaluate the first checkpoint at or after each multiple of "
                                  "this many steps, and the last one, on the development set", 1000,
                                  low=1, high=10**9)
    bleu_frequency: int = setting("steps from one checkpoint to the next whose BLEU on the "
                                  "development set is computed after the training; a multiple of "
                                  "checkpoint_steps; 0: none", 0, low=0, high=10**9)
    eval_steps: int = setting("batches of an evaluation, at most", 100, low=1, high=10**9)
    average_checkpoints: int = setting("last checkpoints that are averaged; 1: the last one is "
                                       "decoded", 1, low=1, high=1000)
    beam_size: int = setting("hypotheses of the beam search", 4, low=1, high=1000)
    alpha: float = setting("length penalty of the beam search (Wu et al. 2016)", 0.6, low=0,
                           high=10)
    decode_batch_size: int = setting("sentences decoded together", 32, low=1, high=100_000)
    test_set: str = setting("test set of sacreBLEU, such as wmt14/full; empty: the problem's own "
                            "test split", "")
    test_sets: tuple[str, ...] = setting("further test sets to decode and score: names of the "
                                         "problem's, or NAME:PAIR of sacreBLEU's, such as "
                                         "wmt21:en-de", ())
    metrics: tuple[str, ...] = setting(f"what is computed of the test sets, of "
                                       f"{', '.join(ALL_METRICS)}; a report compares the arms by "
                                       "the first; empty: BLEU, chrF and TER", ())
    language_pair: str = setting("such as en-de; test_set needs it, and its target language "
                                 "chooses BLEU's tokenizer (zh, ja, ko)", "")
    worker_gpu: int = setting("GPUs of one run; each gets a batch of its own", 1, low=1, high=1024)
    xla_compile: bool = setting("compile the training step with XLA; this changes the batches",
                                False)
    usr_dir: str = setting("directory with problems, hparams sets, models and position schemes of "
                           "your own (T2T's t2t_usr_dir)", "")
    text_source: str = setting("source side of the training text, for translate_text_files and "
                               "graph_text_files; the text of lm_text_files and "
                               "lm_text_files_characters; also RPR_TEXT_SOURCE", "")
    text_target: str = setting("its target side, not of language models; also RPR_TEXT_TARGET", "")
    text_dev_source: str = setting("source side of the development set; also RPR_TEXT_DEV_SOURCE, "
                                   "else part of the training text", "")
    text_dev_target: str = setting("its target side; also RPR_TEXT_DEV_TARGET", "")
    text_test_source: str = setting("source side of the test set; also RPR_TEXT_TEST_SOURCE, else "
                                    "part of the training text", "")
    text_test_target: str = setting("its target side; also RPR_TEXT_TEST_TARGET", "")
    text_vocab_size: int = setting("approximate number of sub-words of text files; 0: "
                                   "RPR_TEXT_VOCAB_SIZE, else 8192", 0, low=0, high=10**7)

    def __post_init__(self) -> None:
        _check_types_and_ranges(self, "run")
        steps, every = self.train_steps, self.checkpoint_steps
        for name in ("problem", "hparams_set", "model"):
            self._refuse_if(not re.fullmatch(r"\w[\w.-]*", getattr(self, name)), name,
                            "it must be a name")
        self._refuse_if(steps % every, "checkpoint_steps",
                        f"it must divide run.train_steps = {steps}")
        self._refuse_if(self.average_checkpoints * every > steps, "average_checkpoints",
                        f"a training of {steps} steps has {steps // every} checkpoint"
                        f"{'s' * (steps // every != 1)}")
        self._refuse_if(self.bleu_frequency % every or self.bleu_frequency > steps,
                        "bleu_frequency", "it must be 0 or a multiple of run.checkpoint_steps = "
                        f"{every}, up to run.train_steps = {steps}")
        self._refuse_if(self.test_set and not self.language_pair, "test_set",
                        "run.language_pair is missing, such as en-de")
        self._refuse_if(self.language_pair and not re.fullmatch(LANGUAGE_PAIR, self.language_pair),
                        "language_pair", "two language codes, such as en-de")
        for test_set in self.test_sets:
            if not isinstance(test_set, str) or not re.fullmatch(r"\w[\w./-]*(:[\w-]+)?", test_set):
                raise UserError(f"run.test_sets: {shown(test_set)} is neither NAME nor NAME:PAIR")
        self._refuse_if(
            len({"test", *map(file_name, self.test_sets)}) <= len(self.test_sets), "test_sets",
            "different names are needed; test is the problem's own test split")
        for metric in self.metrics:
            if not isinstance(metric, str) or metric not in ALL_METRICS:
                raise UserError(f"run.metrics: {shown(metric)} is not one of "
                                f"{', '.join(ALL_METRICS)}")
        self._refuse_if(len(set(self.metrics)) < len(self.metrics), "metrics",
                        "a metric is given twice")
        if self.is_language_model:
            self._refuse_if(
                not set(self.metrics) <= set(LOSS_METRICS), "metrics",
                f"{' and '.join(LOSS_METRICS)} are of language models, and go with no other metric")
            self._refuse_if(any(":" in name for name in self.test_sets), "test_sets",
                            "a language model has test sets of its problem only, without :PAIR")
            for name in _OF_TRANSLATION:
                if getattr(self, name) != getattr(Run, name):      # the default
                    raise UserError(f"run.{name}: a language model translates nothing; leave it "
                                    "out")
        for name in (*TEXT_FILES, "text_vocab_size"):
            if getattr(self, name) and self.problem not in TEXT_PROBLEMS:
                raise UserError(f"run.{name} is a setting of the problems "
                                f"{', '.join(TEXT_PROBLEMS)}, not of run.problem = {self.problem}"
                                f"{nearest(self.problem, TEXT_PROBLEMS)}")
        self._refuse_if(self.text_vocab_size and self.problem == "lm_text_files_characters",
                        "text_vocab_size", f"the vocabulary of {self.problem} is bytes")
        for name in TEXT_FILES:
            target = name.replace("source", "target")
            if self.problem.startswith("lm_"):
                if getattr(self, target):
                    raise UserError(f"run.{target}: {self.problem} has text_source only")
            elif bool(getattr(self, name)) != bool(getattr(self, target)):
                raise UserError(f"run.{name} and run.{target}: set both or neither")

    def _refuse_if(self, is_wrong: object, name: str, problem: str) -> None:
        if is_wrong:
            raise UserError(f"run.{name} = {shown(getattr(self, name))}: {problem}")

    @property
    def is_language_model(self) -> bool:
        """Whether texts are scored, not decoded."""
        return bool(set(self.metrics) & set(LOSS_METRICS))

    @property
    def metric(self) -> str:
        """The metric by which the arms of a study are compared."""
        return (self.metrics or ("bleu",))[0]

    def bleu_steps(self) -> range:
        """The steps of the checkpoints whose BLEU on the development set is computed."""
        every = self.bleu_frequency
        return range(every, self.train_steps + 1, every) if every else range(0)

    def environment(self) -> dict[str, str]:
        """The environment variables that the settings for text files set."""
        variables = {variable: getattr(self, name) for name, variable in TEXT_FILES.items()}
        variables["RPR_TEXT_VOCAB_SIZE"] = str(self.text_vocab_size or "")
        return {variable: value for variable, value in variables.items() if value}

    def identity(self) -> dict[str, Any]:
        """{name: value}: what makes it this run, without defaults and MUTABLE_FIELDS."""
        return {field.name: getattr(self, field.name) for field, declared in declarations(Run, "")
                if field.name not in MUTABLE_FIELDS
                and (_is_required(field) or getattr(self, field.name) != declared.default)}


@dataclasses.dataclass(frozen=True)
class Study:
    """Arms, each a base run with other settings, and seeds; `UserError`: one is not allowed."""
    baseline: str = setting("the arm that all others are compared with")
    grid: dict[str, Any] = setting("{setting: (value, ...)}: an arm for each combination, called "
                                   "\"setting=value,...\". A setting is a run.* name or an hparam",
                                   {})
    arms: dict[str, Any] = setting(f"{{name: {{setting: value}}}}: more arms, at most {MOST_ARMS} "
                                   "in all", {})
    seeds: tuple[int, ...] = setting("each arm is trained once with each", (1,))
    looks: tuple[int, ...] = setting("numbers of seeds, such as (3, 4, 6, 8), after which arms "
                                     "that are decided stop; the last is that of study.seeds; "
                                     "empty: all arms get all seeds", ())
    margin: float = setting("with study.looks: an arm is decided once it is shown to differ from "
                            "the baseline by more, or by less, than so many points of the first "
                            "metric", 0.0, low=0)
    tune: dict[str, Any] = setting("{hparam: (value, ...)}: each arm is trained with every "
                                   "combination of these and judged with the one of the least loss "
                                   "on the development set", {})
    paper_bleu: dict[str, float] = setting("{arm: BLEU} of the paper, shown next to ours", {})
    length_buckets: tuple[int, ...] = setting("longest source of each group in tables by length, "
                                              "such as (10, 20, 40); longer sources are one more "
                                              "group; empty: chosen by the report", ())

    def __post_init__(self) -> None:
        _check_types_and_ranges(self, "study")
        for field, varied in (("grid", self.grid), ("tune", self.tune)):
            for name, values in varied.items():
                if not isinstance(values, tuple | list) or not values:
                    raise UserError(f"study.{field}: {shown(name)} needs a tuple of values, not "
                                    f"{shown(values)}")
        for name, settings in self.arms.items():
            if not isinstance(settings, dict):
                raise UserError(f"study.arms: {shown(name)} needs a dict of settings, not "
                                f"{shown(settings)}")
        count = len(self.arms) + (math.prod(map(len, self.grid.values())) if self.grid else 0)
        if not 1 <= count <= MOST_ARMS:
            raise UserError(f"study.grid and study.arms describe {count:,} arms: from 1 to "
                            f"{MOST_ARMS:,} are allowed")
        if (tried := math.prod(map(len, self.tune.values()))) > MOST_ARMS:
            raise UserError(f"study.tune describes {tried:,} settings: at most {MOST_ARMS:,} are "
                            "allowed")
        for seed in self.seeds:
            _check_value(seed, Setting("study.seeds: seed", 0, minimum=0, maximum=_HIGHEST_SEED))
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"study.seeds = {shown(self.seeds)}: different whole numbers are "
                            "needed")
        for length in self.length_buckets:
            _check_value(length, Setting("study.length_buckets: length", 1, minimum=1))
        if sorted(set(self.length_buckets)) != list(self.length_buckets):
            raise UserError(f"study.length_buckets = {shown(self.length_buckets)}: rising whole "
                            "numbers are needed")
        changes = self.changes()
        self._check_looks(len(changes))
        for name, settings in [*changes.items(), *(("study.tune", each) for each in self.tuned())]:
            _check_arm(name, settings)
        for name in self.tune:
            if name in Run.__dataclass_fields__:
                raise UserError(f"study.tune: {name} is a setting of a run; only hparams of the "
                                "training can be chosen by the loss")
            for arm, settings in changes.items():
                if name in settings:
                    raise UserError(f"study: arm {arm!r} sets {name}, which study.tune chooses")
        for field, name in (("baseline", self.baseline),
                            *(("paper_bleu", name) for name in self.paper_bleu)):
            if name not in changes:
                raise UserError(f"study.{field}: no arm {shown(name)}{nearest(name, changes)}; "
                                f"there are {_some(list(changes))}")
        for name, bleu in self.paper_bleu.items():
            _check_value(bleu, Setting(f"study.paper_bleu[{name!r}]", 0.0, minimum=0, maximum=100))

    def _check_looks(self, arms: int) -> None:
        looks = f"study.looks = {shown(self.looks)}"
        for seeds in self.looks:
            _check_value(seeds, Setting("study.looks: number of seeds", 2, minimum=2))
        if self.looks and (sorted(set(self.looks)) != list(self.looks)
                           or self.looks[-1] != len(self.seeds)):
            raise UserError(f"{looks}: rising whole numbers are needed, the last of which is "
                            f"{len(self.seeds)}, the number of study.seeds")
        if self.looks and (self.tune or arms < 2):
            raise UserError(f"{looks}: not with " + ("study.tune" if self.tune else "a single arm"))
        if self.margin and not self.looks:
            raise UserError(f"study.margin = {self.margin:g}: needs study.looks")

    def tuned(self) -> list[dict[str, Any]]:
        """The settings that each arm tries: {hparam: value}; one empty dict without `tune`."""
        return [dict(zip(self.tune, values, strict=True))
                for values in itertools.product(*self.tune.values())]

    def changes(self) -> dict[str, dict[str, Any]]:
        """{arm: {setting: value}}, the arms of the grid first."""
        arms = {}
        for values in itertools.product(*self.grid.values()) if self.grid else ():
            changes = dict(zip(self.grid, values, strict=True))
            arms[",".join(f"{name}={value}" for name, value in changes.items())] = changes
        for name, changes in self.arms.items():
            if name in arms:
                raise UserError(f"study.arms: {shown(name)} is an arm of the grid already")
            arms[name] = changes
        return arms


def _check_arm(name: Any, changes: dict[Any, Any]) -> None:
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"study.arms: {shown(name)}: the name of an arm must be text")
    _check_text(name, "study: arm", LONGEST_NAME)
    for setting_name, value in changes.items():
        if not isinstance(setting_name, str) or not setting_name:
            raise UserError(f"study: arm {name!r}: {shown(setting_name)} is not a setting")
        _check_text(setting_name, f"study: arm {name!r}: setting", LONGEST_NAME)
        items = value if isinstance(value, tuple | list) else (value,)
        if not all(isinstance(item, str | int | float | bool | None) for item in items):
            raise UserError(f"study: arm {name!r}: {setting_name} = {shown(value)}: text, a "
                            "number, True, False or a list of these is needed")
        for item in items:
            if isinstance(item, int | float) and not abs(item) <= _LARGEST:
                raise UserError(f"study: arm {name!r}: {setting_name} = {shown(item)}: it must be "
                                f"a number up to {_LARGEST:,}")
            _check_text(str(item), f"study: arm {name!r}: {setting_name}")
        if setting_name == "hparams" and not isinstance(value, str):
            raise UserError(f"study: arm {name!r}: hparams = {shown(value)}: must be text")
        if setting_name in _OF_ALL_ARMS:
            raise UserError(f"study: arm {name!r} sets {_OF_ALL_ARMS[setting_name]}")
