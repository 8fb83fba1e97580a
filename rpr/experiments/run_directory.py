"""The directory of a run: its files, its stages and its state.

docs/experiments.md lists the files. Besides them there are

    RUN/model/kept/               weights for RUN/dev, until they are scored (run.bleu_frequency)
    RUN/losses.test.jsonl         of a language model: the loss of each token of the text
    RUN/dev/hypotheses.STEP.txt   the development set, translated with the checkpoint at STEP,
    RUN/dev/scores.STEP.json      and its scores
"""
import glob
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from rpr.evaluation import ALL_METRICS
from rpr.experiments import gin_files
from rpr.experiments.config import Run, file_name
from rpr.utils import files, locks
from rpr.utils.errors import InvalidPath, InvalidValue, UserError
from rpr.utils.interfaces import ModelRequest

_STATUS = {"*": {"state": ("running", "done", "failed"), "input?": str, "started?": float,
                 "attempts?": int, "seconds?": float, "code?": float, "reason?": str}}
_SCORES = {"step?": int, "parameters?": (int, None), "exact?": (float, None),
           "seconds?": {"*": (float, None)},
           **{f"{name}?": {"score": float} for name in ALL_METRICS}}
_DEV_SCORES = {"bleu": {"score": float}}
_REMEDY = "remove it and run again: only the scores are computed again"


class Stage(NamedTuple):
    """One stage: `rpr ARGV` creates `output`. It is done when the process ended with code 0."""
    name: str
    argv: list[str]
    output: str


class RunDirectory:
    """The files of a run; `data_dir` has vocabulary and TFRecords, which runs may share."""

    def __init__(self, path: str, data_dir: str = "") -> None:
        self.path, self.data_dir = path, data_dir
        self.model = self.file("model")
        self.status, self.metrics = self.file("status.json"), self.file("metrics.jsonl")
        self.config, self.scores = self.file(gin_files.RUN_FILE), self.file("scores.json")
        self.data, self.lock = self.file("data.json"), self.file(".lock")
        self.source, self.reference, self.hypotheses = self.test_files()

    def file(self, *names: str) -> str:
        """The path of a file in the directory."""
        return os.path.join(self.path, *names)

    def load(self) -> Run:
        """The run of the directory; refuses a directory without one."""
        if not os.path.exists(self.config):
            raise InvalidPath(self.path, f"contains no run ({gin_files.RUN_FILE} is missing)")
        return gin_files.load_run(self.config)

    def test_files(self, test_set: str = "") -> tuple[str, str, str]:
        """Source, reference and hypotheses of a test set; sacreBLEU's have hypotheses only."""
        name = file_name(test_set or "test")
        source, reference, hypotheses = (self.file(f"{kind}.{name}.txt")
                                         for kind in ("source", "reference", "hypotheses"))
        return source, reference, hypotheses

    def losses_file(self, test_set: str = "") -> str:
        """The losses of a language model on a test set."""
        return self.file(f"losses.{file_name(test_set or 'test')}.jsonl")

    def documents_file(self, test_set: str = "") -> str:
        """The document of each sentence of a test set of the problem; it may be missing."""
        return self.file(f"documents.{file_name(test_set or 'test')}.txt")

    def record_of(self, kind: str, test_set: str) -> str:
        """The scores ("scores.json") or decoding metrics ("metrics.jsonl") of a test set."""
        stem, suffix = kind.split(".")
        return self.file(f"{stem}.{file_name(test_set)}.{suffix}" if test_set else kind)

    def checkpoint(self, run: Run) -> str:
        """The checkpoint that is decoded, without suffix: the average, or the last one."""
        return self.file("average" if run.average_checkpoints > 1 else "model",
                         f"model.ckpt-{run.train_steps}")

    def kept_checkpoint(self, step: int) -> str:
        """The weights that `rpr train` keeps for run.bleu_frequency, without suffix."""
        return os.path.join(self.model, "kept", f"model.ckpt-{step}")

    def refuse_links(self, test_set: str = "") -> None:
        """Refuses symbolic links, since a report must not show what they lead to, and pipes."""
        for path in (self.config, self.status, self.data, self.file("environment.json"),
                     *self.test_files(test_set), self.documents_file(test_set),
                     self.losses_file(test_set), self.record_of("metrics.jsonl", test_set),
                     self.record_of("scores.json", test_set)):
            _refuse_link(path)

    def is_trained(self) -> bool:
        """Whether there is a checkpoint, or a finished run that was copied without them."""
        return bool(glob.glob(os.path.join(glob.escape(self.model), "model.ckpt-*.index"))
                    or self.read_status().get("train", {}).get("state") == "done"
                    or "step" in self.read_scores())

    def read_status(self) -> dict[str, dict[str, Any]]:
        """status.json; empty before the first stage."""
        return files.read_json(self.status, _STATUS, "remove it and run again: finished "
                               "stages are checked and end quickly")

    def read_scores(self) -> dict[str, Any]:
        """scores.json; empty before the run has been scored."""
        return files.read_json(self.scores, _SCORES, _REMEDY)

    def read_dev_bleu(self) -> dict[int, float]:
        """{step: BLEU on the development set} of checkpoints, by step; refuses links and damage."""
        folder, bleu = self.file("dev"), {}
        _refuse_link(folder)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            match = re.fullmatch(r"scores\.(\d{1,10})\.json", name, re.ASCII)
            if match:
                path = os.path.join(folder, name)
                _refuse_link(path)
                bleu[int(match[1])] = files.read_json(path, _DEV_SCORES, _REMEDY)["bleu"]["score"]
        return dict(sorted(bleu.items()))


def _refuse_link(path: str) -> None:
    if os.path.islink(path):
        raise UserError(f"{path} is a symbolic link: a run's files must be in its directory")
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise UserError(f"{path} is a pipe or a device; expected a file")


def stages(run: Run, run_dir: RunDirectory) -> Iterator[Stage]:
    """The stages of a run, in order."""
    step, data_dir, every = run.train_steps, run_dir.data_dir, run.checkpoint_steps
    problem, model = _problem_flags(run, run_dir), _model_flags(run, run_dir)
    yield Stage("datagen", ["datagen", *problem, f"--tmp_dir={os.path.join(data_dir, 'download')}"],
                data_record(run, data_dir))
    yield Stage("train", ["train", *problem, *model, f"--train_steps={step}",
                          f"--random_seed={run.seed}", f"--local_eval_frequency={every}",
                          f"--iterations_per_loop={every}", f"--eval_steps={run.eval_steps}",
                          f"--eval_frequency={run.eval_frequency}",
                          f"--keep_checkpoint_max={run.average_checkpoints}",
                          f"--keep_checkpoint_every_n_steps={run.bleu_frequency}",
                          f"--metrics_file={run_dir.metrics}",
                          *(["--xla_compile"] if run.xla_compile else [])],
                os.path.join(run_dir.model, f"model.ckpt-{step}.index"))
    checkpoint, count = run_dir.checkpoint(run), run.average_checkpoints
    if count > 1:
        yield Stage("average", ["average", f"--model_dir={run_dir.model}",
                                f"--output_dir={os.path.dirname(checkpoint)}", f"--n={count}",
                                f"--min_steps={step - (count - 1) * every}"],
                    checkpoint + ".index")
    for test_set in ("", *run.test_sets):
        name = f" {test_set}" if test_set else ""
        source, reference, hypotheses = run_dir.test_files(test_set)
        text = [f"--decode_from_file={source}"]
        references = [f"--reference={reference}", *_flag("language_pair", run.language_pair)]
        of_sacrebleu, pair = sacrebleu_test_set(run, test_set)
        if pair:
            text = references = [f"--test_set={of_sacrebleu}", f"--language_pair={pair}"]
        metrics = run_dir.record_of("metrics.jsonl", test_set)
        if run.is_language_model:
            hypotheses, references = run_dir.losses_file(test_set), []
            yield Stage(f"decode{name}", [
                "perplexity", *problem, *_model_flags(run, run_dir, devices=False),
                f"--checkpoint_path={checkpoint}", f"--input={source}", f"--output={hypotheses}"],
                hypotheses)
        else:
            yield Stage(f"decode{name}", _decode(run, run_dir, text, checkpoint, hypotheses,
                                                metrics), hypotheses)
        scores = run_dir.record_of("scores.json", test_set)
        yield Stage(f"score{name}", ["score", hypotheses, *references, *_flag(
            "metrics", ",".join(run.metrics)), f"--json={scores}"], scores)


def dev_stages(run: Run, run_dir: RunDirectory, step: int) -> list[Stage]:
    """The stages that score the development set, translated with the checkpoint at `step`.

    They follow the stage "train", and no other stage follows them.
    """
    source, reference = dev_texts(run, run_dir)
    hypotheses, scores = (run_dir.file("dev", name)
                          for name in (f"hypotheses.{step}.txt", f"scores.{step}.json"))
    argv = _decode(run, run_dir, [f"--decode_from_file={source}"], run_dir.kept_checkpoint(step),
                   hypotheses, run_dir.file("dev", "metrics.jsonl"))
    return [Stage(f"decode step {step}", argv, hypotheses),
            Stage(f"score step {step}", ["score", hypotheses, f"--reference={reference}",
                                         *_flag("language_pair", run.language_pair),
                                         "--metrics=bleu", f"--json={scores}"], scores)]


def dev_texts(run: Run, run_dir: RunDirectory) -> tuple[str, str]:
    """Source and reference of the development set, as `rpr datagen` writes them."""
    source, reference = (os.path.join(run_dir.data_dir, f"{run.problem}.dev.{kind}.txt")
                         for kind in ("source", "reference"))
    return source, reference


def _flag(name: str, value: str) -> list[str]:
    return [f"--{name}={value}"] if value else []


def _problem_flags(run: Run, run_dir: RunDirectory) -> list[str]:
    return [f"--problem={run.problem}", f"--data_dir={run_dir.data_dir}",
            *_flag("t2t_usr_dir", run.usr_dir)]


def _model_flags(run: Run, run_dir: RunDirectory, devices: bool = True) -> list[str]:
    return [f"--model={run.model}", f"--hparams_set={run.hparams_set}", f"--hparams={run.hparams}",
            f"--output_dir={run_dir.model}", *([f"--worker_gpu={run.worker_gpu}"] * devices)]


def _decode(run: Run, run_dir: RunDirectory, text: list[str], checkpoint: str, hypotheses: str,
            metrics: str) -> list[str]:
    """`rpr decode` of a text (its flags) with a checkpoint and the run's beam search."""
    return ["decode", *_problem_flags(run, run_dir), *_model_flags(run, run_dir), *text,
            f"--checkpoint_path={checkpoint}", f"--decode_to_file={hypotheses}",
            f"--decode_hparams=beam_size={run.beam_size},alpha={run.alpha},"
            f"batch_size={run.decode_batch_size}", f"--metrics_file={metrics}"]


def sacrebleu_test_set(run: Run, test_set: str = "") -> tuple[str, str]:
    """Name and language pair in sacreBLEU of a test set ("": `run.test_set`); "" if not there."""
    if not test_set:
        return (run.test_set, run.language_pair) if run.test_set else ("", "")
    name, _, pair = test_set.partition(":")
    return (name, pair) if pair else ("", "")


def new_test_sets(run: Run, run_dir: RunDirectory) -> set[str]:
    """The test sets that `run` adds to a finished one; refuses them if the checkpoints are gone."""
    if not (os.path.exists(run_dir.config) and os.path.exists(run_dir.scores)):
        return set()
    known = gin_files.load_run(run_dir.config).test_sets
    new = {test_set for test_set in run.test_sets if test_set not in known
           and not os.path.exists(run_dir.record_of("scores.json", test_set))}
    if new and not os.path.exists(run_dir.checkpoint(run) + ".index"):
        raise UserError(f"run.test_sets: {run_dir.path} cannot decode {', '.join(sorted(new))}, "
                        "since its checkpoints are gone")
    return new


def data_record(run: Run, data_dir: str) -> str:
    """The record that `rpr datagen` writes last."""
    return os.path.join(data_dir, f"{run.problem}.datagen.json")


def state(run_dir: RunDirectory) -> str:
    """"running" (a process holds its lock), "done", "failed" or "waiting".

    A stage that was ended by a signal did not fail: it waits to be resumed.
    """
    if locks.is_held(run_dir.lock):
        return "running"
    if "step" in run_dir.read_scores():
        return "done"
    failed = any(entry["state"] == "failed" and entry.get("code", 1) >= 0
                 for entry in run_dir.read_status().values())
    return "failed" if failed else "waiting"


def last_stage(status: dict[str, dict[str, Any]]) -> str:
    """The stage of a status that began last, as training does again for more steps; "" if none."""
    return max(reversed(status), key=lambda name: status[name].get("started", 0.0), default="")


def find_model(path: str, data_dir: str | None = None, usr_dir: str | None = None
               ) -> tuple[Run, ModelRequest]:
    """The run of a run directory, and its model; of an unfinished run, the last checkpoint's.

    `data_dir` has vocabulary and TFRecords; None: where `rpr run` and `rpr study` put them.
    `usr_dir` is the user's own code. The one that the run names is not used: a directory made by
    somebody else must not choose which code runs.
    """
    run_dir = RunDirectory(path)
    run = run_dir.load()
    if run.usr_dir and not usr_dir:
        raise InvalidValue("t2t_usr_dir", None, f"{path} was trained with code of your own, in "
                           f"{run.usr_dir}")
    if not data_dir:
        candidates = [os.path.join(path, *up, "data") for up in ([".."], ["..", ".."])]
        data_dir = next((candidate for candidate in candidates
                         if os.path.exists(data_record(run, candidate))), None)
        if data_dir is None:
            raise InvalidValue("data_dir", None, f"no data of {run.problem} next to {path}")
    checkpoint = run_dir.checkpoint(run)
    return run, ModelRequest(
        model=run.model, problem=run.problem, hparams_set=run.hparams_set, hparams=run.hparams,
        data_dir=data_dir, output_dir=run_dir.model, t2t_usr_dir=usr_dir or "",
        checkpoint_path=checkpoint if os.path.exists(checkpoint + ".index") else "")
