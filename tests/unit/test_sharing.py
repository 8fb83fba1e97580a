"""Trainings that runs share: which run waits for which, what is taken, what is refused."""
import contextlib
import dataclasses
import json
import os
from pathlib import Path

import pytest

from rpr.experiments import config, gin_files, pipeline, run_directory, scheduler, sharing, studies
from rpr.experiments.progress import of, plan, seconds_left
from rpr.utils.errors import UserError

BASE = config.Run("p", "h", 40, checkpoint_steps=10, average_checkpoints=2)
ARMS = {"single": {"average_checkpoints": 1}, "wide": {"beam_size": 8},
        "mean": {"average_checkpoints": 4}, "other": {"position": "alibi"}}


def train(run_dir, run, schedule="constant*rsqrt_decay"):
    """Leaves what a finished training leaves."""
    os.makedirs(os.path.join(run_dir.model, "eval"), exist_ok=True)
    Path(run_dir.config).write_text(gin_files.as_gin(run))
    for step in range(run.train_steps, 0, -10)[:run.average_checkpoints]:
        for suffix in ("index", "data-00000-of-00001"):
            with open(os.path.join(run_dir.model, f"model.ckpt-{step}.{suffix}"), "w") as file:
                file.write(f"{run.seed} {step}")
    for name, content in (("model/hparams.json", {"learning_rate_schedule": schedule}),
                          ("status.json", {"train": {"state": "done", "input": "h"}}),
                          ("metrics.jsonl", {"event": "train", "step": run.train_steps})):
        Path(run_dir.file(name)).write_text(json.dumps(content) + "\n")
    with open(run_dir.metrics, "a") as file:
        file.write('{"event": "decode", "cut": 3}\n')


def finish(study_run):
    """Leaves what a run of 60 minutes leaves, 50 of them for its training."""
    run, run_dir = study_run.run, study_run.run_dir
    train(run_dir, run)
    Path(run_dir.status).write_text(json.dumps({
        "train": {"state": "done", "seconds": 3000.0},
        "decode": {"state": "done", "seconds": 600.0}}))
    Path(run_dir.scores).write_text(json.dumps({"step": run.train_steps}))
    Path(run_dir.metrics).write_text(json.dumps(
        {"event": "train", "step": run.train_steps, "steps_per_second": run.train_steps / 3000}))


def take(run, run_dir, source):
    sharing.take(run, sharing.check(run, run_dir, source), run_dir, source)
    sharing.begin(run_dir)


class Workers:
    """Runs that end when `finish` is called; each trains unless it shares a training."""

    def __init__(self):
        self.running, self.trained = [], []

    def start(self, key, argv, log, gpus):
        source = [arg.partition("=")[2] for arg in argv if arg.startswith("--training_of")]
        if source:
            take(key.run, key.run_dir, run_directory.RunDirectory(source[0]))
        else:
            self.trained.append(key.arm)
        self.running.append((key, None))
        return True

    def finish(self):
        for key, _ in self.running:
            if not key.run_dir.is_trained():
                train(key.run_dir, key.run)
            Path(key.run_dir.scores).write_text(json.dumps({"step": key.run.train_steps}))
        self.running = []


def names(started):
    return [study_run.arm for study_run in started]


def test_arms_that_differ_in_decoding_wait_for_one_training(tmp_path):
    study = config.Study("single", arms=ARMS)
    runs, workers = studies.prepare(study, BASE, str(tmp_path)), Workers()
    queue = scheduler._Queue(runs, workers, [], False)
    assert names(queue.start_some()) == ["mean", "other"]      # the first keeps most checkpoints
    assert names(queue.start_some()) == []
    workers.finish()
    assert names(queue.start_some()) == ["single", "wide"]
    workers.finish()
    assert workers.trained == ["mean", "other"] and not queue.waiting
    kept = {study_run.arm: [int(path.stem.rpartition("-")[2]) for path in Path(
        study_run.run_dir.model).glob("model.ckpt-*.index")] for study_run in runs}
    assert {arm: len(steps) for arm, steps in kept.items()} == {
        "single": 1, "wide": 2, "mean": 4, "other": 2}
    weights = [os.path.join(study_run.run_dir.model, "model.ckpt-40.data-00000-of-00001")
               for study_run in runs]
    assert os.path.samefile(weights[0], weights[2]) and not os.path.samefile(*weights[2:])
    with open(runs[0].run_dir.metrics) as events:
        assert [json.loads(line)["event"] for line in events] == ["train"]

    more = dataclasses.replace(BASE, train_steps=60)
    runs = studies.prepare(study, more, str(tmp_path))
    queue = scheduler._Queue(runs, workers, [], False)
    assert names(queue.start_some()) == ["mean", "other"]      # they go on to more steps
    assert workers.trained == ["mean", "other"]


def test_a_plan_counts_no_training_that_is_there(tmp_path):
    runs = studies.prepare(config.Study("wide", arms=ARMS), BASE, str(tmp_path))
    assert plan(runs, 1, [], False)[1].startswith("4 runs, 2 trainings to do")
    train(runs[0].run_dir, runs[0].run)               # its one checkpoint is too few for others
    assert plan(runs, 1, [], False)[1].startswith("4 runs, 2 trainings to do")
    train(runs[2].run_dir, runs[2].run)               # its four checkpoints serve the second arm
    assert plan(runs, 1, [], False)[1].startswith("4 runs, 1 training to do")


def test_a_plan_counts_the_steps_that_are_left(tmp_path):
    study = config.Study("wide", arms=ARMS)
    runs = studies.prepare(study, BASE, str(tmp_path))
    finish(runs[2])
    for study_run in runs[:2]:                        # killed before the step 40
        os.makedirs(study_run.run_dir.model)
        Path(study_run.run_dir.model, "model.ckpt-10.index").touch()
        Path(study_run.run_dir.status).write_text('{"train": {"state": "running"}}')
        Path(study_run.run_dir.metrics).write_text('{"event": "train", "step": 10}\n')
    table, line = plan(runs, 1, [], False)
    assert [list(column.cells) for column in table.columns[2:]] == [
        ["1"] * 4, ["0", "0", "1", "0"], ["1", "1", "0", "1"], ["0.8", "0.8", "0.0", "1.0"]]
    assert line == "4 runs, 3 trainings to do, 1 at a time: about 2.5 hours"
    Path(runs[0].run_dir.status).write_text('{"train": {"state": "failed"}}')
    for retry_failed, count in ((False, 2), (True, 3)):        # as `studies.unfinished`
        assert f" {count} trainings to do" in plan(runs, 1, [], retry_failed)[1]
    longer = studies.prepare(study, dataclasses.replace(BASE, train_steps=60), str(tmp_path))
    assert plan(longer, 1, [runs[2]], False)[1].startswith("4 runs, 2 trainings to do")


def test_runs_that_share_a_training_only_need_time_to_decode(tmp_path):
    runs = studies.prepare(config.Study("mean", arms=ARMS), BASE, str(tmp_path))[:3]

    def minutes():
        return seconds_left(runs, {each.name: of(each) for each in runs}, 1,
                            studies.trainings(str(tmp_path))) / 60

    finish(runs[2])                                   # training: 50 minutes, the rest: 10
    assert minutes() == pytest.approx(20)
    take(runs[0].run, runs[0].run_dir, runs[2].run_dir)
    Path(runs[0].run_dir.status).write_text('{"train": {"state": "running"}}')
    assert minutes() == pytest.approx(20)
    os.unlink(os.path.join(runs[2].run_dir.model, "model.ckpt-30.index"))
    assert minutes() == pytest.approx(70)             # now the second run has to train


def test_another_run_trains_if_the_one_that_should_has_failed(tmp_path):
    runs, workers = studies.prepare(config.Study("wide", arms=ARMS), BASE, str(tmp_path)), Workers()
    Path(runs[2].run_dir.status).write_text(json.dumps({"train": {"state": "failed", "code": 1}}))
    queue = scheduler._Queue(runs, workers, [], False)
    assert names(queue.start_some()) == ["wide", "other"]
    workers.finish()
    assert names(queue.start_some()) == ["single"] and workers.trained == ["wide", "other"]


def test_a_smoke_test_has_every_arm_that_differs_in_more_than_steps():
    arms = {"a": {"train_steps": 80}, "b": {"beam_size": 8}, "c": {"average_checkpoints": 3},
            "d": {"checkpoint_steps": 20}}
    base = dataclasses.replace(BASE, test_set="wmt14", language_pair="en-de", bleu_frequency=40,
                               test_sets=("more", "wmt21:en-de"))
    study, run = studies.shortened(config.Study("d", arms=arms, seeds=(3, 4)), base)
    assert study.arms == {"b": {"beam_size": 8}, "c": {"average_checkpoints": 3}, "d": {}}
    assert (study.seeds, run.train_steps, run.test_set, run.test_sets, run.bleu_frequency) == (
        (3,), 20, "", ("more",), 0)


@pytest.mark.parametrize("schedule, reason", [
    ("constant*linear_decay", r"depends on the last step .*: linear_decay\)"),
    ("single_cycle_cos_decay", "single_cycle_cos_decay"), ("constant", "")])
def test_more_steps_need_a_rate_that_does_not_depend_on_the_last_one(tmp_path, schedule, reason):
    runs = studies.prepare(config.Study("wide", arms=ARMS), BASE, str(tmp_path))
    train(runs[1].run_dir, runs[1].run, schedule)
    longer = dataclasses.replace(BASE, train_steps=60)
    Path(runs[1].run_dir.scores).write_text("{}")
    if reason:
        with pytest.raises(UserError, match=f"cannot go on from 40 to .*{reason}"):
            pipeline._check_config(dataclasses.replace(runs[1].run, train_steps=60),
                                   runs[1].run_dir)
        with pytest.raises(UserError, match=f"train_steps = 60: .*{reason}.*study directory"):
            studies.prepare(config.Study("wide", arms=ARMS), longer, str(tmp_path))
        assert os.path.exists(runs[1].run_dir.scores)
    else:
        pipeline._check_config(dataclasses.replace(runs[1].run, train_steps=60), runs[1].run_dir)
        assert not os.path.exists(runs[1].run_dir.scores)


def test_what_cannot_be_shared_is_refused(tmp_path):
    source, new = (run_directory.RunDirectory(str(tmp_path / name)) for name in ("a", "b"))
    train(source, BASE)
    for change, reason in (({"seed": 2}, "another training: seed = 2"),
                           ({"train_steps": 20}, "40 steps, more than"),
                           ({"average_checkpoints": 3}, "its checkpoint at step 20 is gone")):
        with pytest.raises(UserError, match=reason):
            take(dataclasses.replace(BASE, **change), new, source)
    os.unlink(os.path.join(source.model, "model.ckpt-40.index"))
    os.symlink("model.ckpt-30.index", os.path.join(source.model, "model.ckpt-40.index"))
    os.makedirs(new.path)
    with pytest.raises(UserError, match="is a symbolic link"):
        take(BASE, new, source)
    assert not new.is_trained()
    Path(source.status).write_text(json.dumps({"train": {"state": "running"}}))
    with pytest.raises(UserError, match="it is not finished"):
        take(BASE, new, source)
    with pytest.raises(UserError, match="contains no run"):
        take(BASE, source, new)


@pytest.mark.parametrize("changes, taken, kept", [
    ({"average_checkpoints": 1}, [20], ["model.ckpt-40.index"]),
    ({"beam_size": 8}, [], [])])
def test_development_scores_are_shared_while_the_other_run_computes_them(
        tmp_path, monkeypatch, changes, taken, kept):
    base = dataclasses.replace(BASE, bleu_frequency=20)
    source, new = (run_directory.RunDirectory(str(tmp_path / name), str(tmp_path / "data"))
                   for name in ("a", "b"))
    train(source, base)
    os.makedirs(source.file("dev"))
    os.makedirs(os.path.join(source.model, "kept"))
    Path(source.kept_checkpoint(40) + ".index").touch()
    decoding = pipeline.Pipeline(base, source, 0)
    for stage in decoding._dev_stages(20):
        Path(stage.output).write_text('{"bleu": {"score": 1.0}}')
        decoding._note(stage, {"state": "done"})
    run = dataclasses.replace(base, **changes)
    monkeypatch.setattr(pipeline.Pipeline, "complete", lambda *_: None)

    def killed(*_):
        raise KeyboardInterrupt

    for name in ("take_dev_scores", "__init__"):
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(pipeline.Pipeline, name, killed)
            pipeline.complete_run(run, new, training_of=source.path)
    pipeline.complete_run(run, new, training_of=source.path)
    assert list(new.read_dev_bleu()) == taken
    folder = os.path.join(new.model, "kept")
    assert (os.listdir(folder) if os.path.isdir(folder) else []) == kept
    shared = pipeline.Pipeline(run, new, 0)
    assert all(shared.is_done(stage) for step in taken for stage in shared._dev_stages(step))
    assert not os.path.exists(new.file("model.new"))


def test_an_unfinished_copy_of_a_training_is_removed(tmp_path, monkeypatch):
    source, new = (run_directory.RunDirectory(str(tmp_path / name), str(tmp_path / "data"))
                   for name in ("a", "b"))
    train(source, BASE)
    os.makedirs(new.path)
    sharing.take(BASE, BASE, new, source)             # killed, and then trained for itself
    monkeypatch.setattr(pipeline.Pipeline, "complete", lambda *_: None)
    pipeline.complete_run(BASE, new)
    assert not new.is_trained() and not [
        name for name in os.listdir(new.path) if name.startswith("model")]
