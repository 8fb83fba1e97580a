"""The same configuration and seed give the same bits, interrupted or not, through the command line.

Every run records a checksum of each tensor of each checkpoint; these are compared.
"""
import os
import random
import shutil
import time

import pytest
import tensorflow.compat.v1 as tf
from conftest import refused, rpr_command, server, started, train

from rpr.utils import locks, metrics_log

STEPS, EVERY = 40, 10
SMALL = "--hparams=batch_size=256,max_length=64,num_hidden_layers=1"


def arguments(text, output_dir, *more):
    """`rpr train` with a checkpoint every 10 steps."""
    return [*text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny", SMALL,
            f"--output_dir={output_dir}", f"--train_steps={STEPS}", "--random_seed=3",
            f"--local_eval_frequency={EVERY}", f"--iterations_per_loop={EVERY}",
            "--intra_op_parallelism_threads=2", *more]


def events(output_dir, kind, *fields):
    return [tuple(event[field] for field in fields)
            for event in metrics_log.read(str(output_dir / "metrics.jsonl"))
            if event["event"] == kind]


def assert_equal(output_dir, expected, last=STEPS):
    """All tensors of all checkpoints, and all losses, up to a step."""
    ours, theirs = (metrics_log.read_checksums(str(path)) for path in (output_dir, expected))
    assert last in ours and last in theirs and len(ours[last]) > 100
    for step in ours.keys() & theirs.keys():
        different = {name for name in ours[step] if ours[step][name] != theirs[step].get(name)}
        assert ours[step].keys() == theirs[step].keys() and not different, (step, different)
    losses = dict(events(expected, "train", "step", "loss"))
    assert all(losses[step] == loss for step, loss in events(output_dir, "train", "step", "loss"))


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A training that nothing interrupts."""
    output_dir = tmp_path_factory.mktemp("whole") / "model"
    train(text, output_dir, *arguments(text, output_dir, "--log_batches"), steps=STEPS)
    return output_dir


def resumed_copy(output_dir, copy, step):
    """A copy of a model's directory as it was when the checkpoint at `step` was the last one."""
    shutil.copytree(output_dir, copy)
    for path in copy.glob("model.ckpt-*"):
        if int(path.name.split("-")[1].split(".")[0]) > step:
            path.unlink()
    tf.train.update_checkpoint_state(str(copy), str(copy / f"model.ckpt-{step}"))
    (copy / "checksums.jsonl").unlink()
    return copy


def test_killed_at_random_moments_and_evaluated_it_ends_as_undisturbed(text, whole, tmp_path):
    dice, output_dir = random.Random(5), tmp_path / "killed"
    command = ["train", *arguments(
        text, output_dir, f"--eval_frequency={EVERY}", "--eval_steps=2", "--log_batches")]
    kills = 0
    while kills < 2:
        process = started(*command)
        begun = events_written(output_dir)
        while process.poll() is None and events_written(output_dir) <= begun + 3:
            time.sleep(0.02)                          # in the midst of steps
        time.sleep(dice.random())
        if process.poll() is not None:
            assert process.returncode == 0
            break
        process.kill()
        kills += 1
    rpr_command(*command)
    assert_equal(output_dir, whole)
    assert kills and len(events(output_dir, "start", "step")) >= 2
    assert events(output_dir, "eval", "step") == [(10,), (20,), (30,), (STEPS,)]
    assert events(output_dir, "batch", "number", "sha256") == events(
        whole, "batch", "number", "sha256")


def events_written(output_dir):
    """Lines of the metrics file."""
    try:
        return len((output_dir / "metrics.jsonl").read_bytes().splitlines())
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("mode", [
    [",optimizer=multistep_adam,optimizer_multistep_accumulate_steps=2", "--cpu_devices=2"],
    ["", "--cpu_devices=2", "--optionally_use_dist_strat"]], ids=["accumulated in towers",
                                                                  "mirrored"])
def test_resumed_from_a_checkpoint_on_two_devices_it_ends_as_undisturbed(mode, text, tmp_path):
    hparams, *flags = mode
    mode = [f"{SMALL},position=sinusoid{hparams}", *flags]
    train(text, tmp_path / "whole", *mode)
    resumed = resumed_copy(tmp_path / "whole", tmp_path / "resumed", 10)
    (resumed / ".hparams.json.0123456789abcdef.tmp").touch()
    train(text, resumed, *mode)
    assert events(resumed, "start", "step") == [(0,), (10,)]
    assert not list(resumed.glob(".*.tmp"))
    # Also that of step 10, which it lacks, as after a kill before it was written.
    assert set(metrics_log.read_checksums(str(resumed))) == {10, 20}
    assert_equal(resumed, tmp_path / "whole", 20)


def test_compiled_and_resumed_it_ends_as_undisturbed(text, tmp_path, monkeypatch):
    """XLA on a CPU, one shape: no step has a program of its own, however many words it has."""
    mode = ["--hparams=batch_size=256,min_length=26,max_length=32,num_hidden_layers=1,"
            "position=sinusoid", "--xla_compile"]
    train(text, tmp_path / "whole", *mode)
    resumed = resumed_copy(tmp_path / "whole", tmp_path / "resumed", 10)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path}/xla --xla_dump_hlo_as_text")
    rpr_command("train", *text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
                f"--output_dir={resumed}", "--train_steps=20", "--schedule=train",
                "--local_eval_frequency=10", "--iterations_per_loop=10", *mode, forked=False)
    assert_equal(resumed, tmp_path / "whole", 20)
    assert "Compiled cluster using XLA" in (resumed / "train.log").read_text()
    programs = list((tmp_path / "xla").glob("*.before_optimizations.txt"))
    assert len([path for path in programs if path.stat().st_size > 100_000]) < 10
    line = refused("train", *text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
                   mode[0], f"--output_dir={resumed}")
    assert "was trained with xla_compile=True" in line


def test_arms_share_batches_and_initial_values(text, whole, tmp_path):
    """As those of a study with one seed."""
    arm = tmp_path / "arm"
    train(text, arm, *arguments(text, arm, "--log_batches", SMALL + ",position=sinusoid",
                                "--stop_at_step=10"))
    batches = events(arm, "batch", "number", "sha256")
    assert len(set(batches)) == 10 and batches == events(whole, "batch", "number", "sha256")[:10]
    ours, theirs = (metrics_log.read_checksums(str(path))[0] for path in (arm, whole))
    common = ours.keys() & theirs.keys()
    assert len(common) > 100 and {name: ours[name] for name in common} == {
        name: theirs[name] for name in common}
    assert events(arm, "train", "loss") != events(whole, "train", "loss")[:1]


def test_another_seed_is_refused_when_it_resumes(text, whole):
    assert "--random_seed=4" in refused("train", *arguments(text, whole, "--random_seed=4"))


def test_the_threads_of_the_first_start_are_kept(text, whole, tmp_path):
    """Sums depend on them, so a machine with more cores must not change them."""
    resumed = resumed_copy(whole, tmp_path / "resumed", 30)
    train(text, resumed, *[flag for flag in arguments(text, resumed) if "threads" not in flag],
          steps=STEPS)
    assert '"threads": 2' in (resumed / "rpr.json").read_text()
    assert_equal(resumed, whole)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one thread anyway")
def test_a_number_of_threads_gives_the_same_bits_on_any_number_of_cores(text, tmp_path):
    """The batches are so large that the sums of two threads differ from those of one."""
    cores = os.sched_getaffinity(0)
    for name, allowed in (("one", {min(cores)}), ("all", cores)):
        os.sched_setaffinity(0, allowed)
        try:
            rpr_command("train", *text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
                        "--hparams=batch_size=2048,num_hidden_layers=1",
                        f"--output_dir={tmp_path / name}", "--train_steps=4",
                        "--local_eval_frequency=4", "--schedule=train", "--random_seed=3",
                        "--intra_op_parallelism_threads=1", forked=name == "all")
        finally:
            os.sched_setaffinity(0, cores)
    assert_equal(tmp_path / "all", tmp_path / "one", last=4)


def test_deterministic_operations_can_be_required(text, whole, tmp_path):
    """TF_DETERMINISTIC_OPS=1, for GPUs: TensorFlow then refuses each graph that has no seed."""
    output_dir, sentence = tmp_path / "model", tmp_path / "sentence.txt"
    sentence.write_text("Open the file.\n")
    environment = {**os.environ, "TF_DETERMINISTIC_OPS": "1"}
    (tmp_path / "required.py").write_text(
        "from tensorflow.python.framework import config\nassert config.is_op_determinism_enabled()")
    assert not server().run([], script=tmp_path / "required.py", env=environment).returncode
    model = [*text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny", SMALL,
             f"--output_dir={output_dir}"]
    for command in (["train", *arguments(text, output_dir, "--stop_at_step=10",
                                         "--eval_frequency=10", "--eval_steps=1")],
                    ["decode", *model, f"--input={sentence}", f"--output={tmp_path}/out.txt"],
                    ["evaluate", *model, "--eval_steps=1"]):
        rpr_command(*command, env=environment)
    assert_equal(output_dir, whole, last=10)
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 1


def test_two_trainings_do_not_share_a_directory(text, whole, tmp_path):
    with locks.lock(str(whole / ".train.lock")):
        line = refused("train", *arguments(text, whole))
    assert "another process is using it" in line
