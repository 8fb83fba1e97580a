"""rpr.experiments.run_directory"""
import fcntl
import os
import types
from typing import NamedTuple

from rpr.utils import files
from rpr.utils.errors import UserError


class Stage(NamedTuple):
    """`rpr` with `argv` makes `output`; done when that is there and the process ended well."""
    name: str
    argv: list
    output: str


class RunDirectory:
    """The files of a run.

    Args:
      path: the run's directory.
      data_dir: vocabulary and TFRecords; runs may share it.
    """

    def __init__(self, path, data_dir):
        self.path, self.data_dir = path, data_dir
        self.model = self.file("model")
        self.status, self.metrics = self.file("status.json"), self.file("metrics.jsonl")
        self.config, self.scores = self.file("config.gin"), self.file("scores.json")
        self.source, self.reference, self.hypotheses = (
            self.file(f"{name}.test.txt") for name in ("source", "reference", "hypotheses"))

    def file(self, *names):
        return os.path.join(self.path, *names)

    def checkpoint(self, run):
        """The checkpoint that the run's score is of, without suffix: averaged, or the last."""
        return self.file("average" if run.average_checkpoints > 1 else "model",
                         f"model.ckpt-{run.train_steps}")


def stages(run, run_dir):
    """The stages of a run, in order.

    Args:
      run: a `Run`.
      run_dir: its `RunDirectory`.
    """
    step = run.train_steps
    problem = [f"--problem={run.problem}", f"--data_dir={run_dir.data_dir}"]
    model = [f"--model={run.model}", f"--hparams_set={run.hparams_set}",
             f"--hparams={run.hparams}", f"--output_dir={run_dir.model}",
             f"--worker_gpu={run.worker_gpu}"]
    every = run.checkpoint_steps
    yield Stage("datagen", ["datagen", *problem,
                            f"--tmp_dir={os.path.join(run_dir.data_dir, 'download')}"],
                os.path.join(run_dir.data_dir, f"{run.problem}.datagen.json"))
    yield Stage("train", ["train", *problem, *model, f"--train_steps={step}",
                          f"--random_seed={run.seed}", f"--local_eval_frequency={every}",
                          f"--iterations_per_loop={every}", f"--eval_steps={run.eval_steps}",
                          f"--eval_throttle_seconds={run.eval_seconds}",
                          f"--keep_checkpoint_max={run.average_checkpoints}",
                          f"--metrics_file={run_dir.metrics}"],
                os.path.join(run_dir.model, f"model.ckpt-{step}.index"))
    checkpoint = run_dir.checkpoint(run)
    if run.average_checkpoints > 1:
        yield Stage("average", ["average", f"--model_dir={run_dir.model}",
                                f"--output_dir={os.path.dirname(checkpoint)}", f"--n={run.average_checkpoints}",
                                f"--min_steps={step - (run.average_checkpoints - 1) * every}"],
                    checkpoint + ".index")
    what = [f"--decode_from_file={run_dir.source}"]
    against = [f"--reference={run_dir.reference}"]
    if run.test_set:
        against = what = [f"--test_set={run.test_set}", f"--language_pair={run.language_pair}"]
    yield Stage("decode", ["decode", *problem, *model, *what, f"--checkpoint_path={checkpoint}",
                           f"--decode_to_file={run_dir.hypotheses}",
                           f"--decode_hparams=beam_size={run.beam_size},alpha={run.alpha},"
                           f"batch_size={run.decode_batch_size}",
                           f"--metrics_file={run_dir.metrics}"], run_dir.hypotheses)
    yield Stage("score", ["score", run_dir.hypotheses, *against, f"--json={run_dir.scores}"],
                run_dir.scores)


def state(run_dir):
    """"running" (a process holds its lock), "done", "failed" or "waiting".

    A stage that a signal ended did not fail: it waits to be gone on with.
    """
    try:
        with open(run_dir.file(".lock"), encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except FileNotFoundError:
        return "waiting"
    if "step" in files.read_json(run_dir.scores):
        return "done"
    failed = any(entry["state"] == "failed" and entry["code"] >= 0
                 for entry in files.read_json(run_dir.status).values())
    return "failed" if failed else "waiting"


def find_trained_model(run_directory, data_dir=None):
    """The run of a run's directory, and the flags that name its trained model.

    Args:
      run_directory: as `rpr run` makes it.
      data_dir: vocabulary and TFRecords; None: where `rpr run` and `rpr study` put them.

    Returns:
      `experiment.Run`, and an object as `rpr.t2t.trained_model.find_trained_model` takes it. An unfinished run gives
      its last checkpoint.
    """
    from rpr.experiments import config
    run_dir = RunDirectory(run_directory, data_dir)
    if not os.path.exists(run_dir.config):
        raise UserError(f"{run_directory}: there is no run in it (no config.gin)")
    run = config.load_run(run_dir.config)
    if data_dir is None:
        places = [os.path.join(run_directory, *up, "data") for up in ([".."], ["..", ".."])]
        data_dir = next((place for place in places if os.path.exists(
            os.path.join(place, f"{run.problem}.datagen.json"))), None)
        if data_dir is None:
            raise UserError(f"--data_dir is missing: no data of {run.problem} beside "
                            f"{run_directory}")
    checkpoint = run_dir.checkpoint(run)
    return run, types.SimpleNamespace(
        model=run.model, problem=run.problem, hparams_set=run.hparams_set, hparams=run.hparams,
        data_dir=data_dir, output_dir=run_dir.model,
        checkpoint_path=checkpoint if os.path.exists(checkpoint + ".index") else None)
