"""One device, towers, mirrored replicas, several machines, accumulated batches: one training."""
import dataclasses
import gzip
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import gpu_kernels
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from conftest import CORPUS, rpr_command
from test_worker_group import SCRIPTS, wait_for

from rpr.training import devices, model_flops, trainer
from rpr.training.devices import DeviceRequest
from rpr.utils import metrics_log
from rpr.utils.errors import UserError

# An epoch is a step: in whatever order the pipeline shuffles, each step sees the same 40 sentences.
# The devices' shares differ in tokens.
SENTENCES = 40
STEPS = 20
PROBLEM = """
from tensor2tensor.utils import registry
from rpr.problems import text_files

@registry.register_problem
class Forty(text_files.TranslateTextFiles):
    pass
"""
# Adam divides by the gradient's size: with its usual epsilon one that is nothing but rounding would
# go either way.
EXACT = ("layer_prepostprocess_dropout=0.0,use_fixed_batch_size=True,max_length=10000,"
         "batch_shuffle_size=0,num_hidden_layers=1,learning_rate_warmup_steps=4,learning_rate_constant=0.02,"
         "optimizer_adam_epsilon=0.0001")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """`rpr train` flags of 40 pairs."""
    folder = tmp_path_factory.mktemp("forty")
    environment = dict(os.environ, RPR_TEXT_VOCAB_SIZE="300")
    for split, part in (("train", ""), ("dev", "DEV_"), ("test", "TEST_")):
        for language, side in (("en", "SOURCE"), ("de", "TARGET")):
            with gzip.open(CORPUS / f"train.en-de.{language}.gz", "rt", encoding="utf-8") as lines:
                text = [next(lines) for _ in range(SENTENCES)]
            path = folder / f"{split}.{language}"
            path.write_text("".join(text if split == "train" else text[:4]), encoding="utf-8")
            environment[f"RPR_TEXT_{part}{side}"] = str(path)
    (folder / "own_problem").mkdir()
    (folder / "own_problem" / "__init__.py").write_text(PROBLEM)
    flags = ["--problem=forty", f"--t2t_usr_dir={folder}/own_problem", f"--data_dir={folder}/data"]
    rpr_command("datagen", *flags, f"--tmp_dir={folder}/tmp", env=environment)
    return flags


def arguments(data, output_dir, batch_size, *more, hparams=""):
    return [*data, f"--output_dir={output_dir}", "--model=rpr_transformer",
            "--hparams_set=rpr_tiny", f"--hparams={EXACT},batch_size={batch_size}{hparams}",
            f"--train_steps={STEPS}", "--schedule=train", "--random_seed=1", *more]


@pytest.fixture(scope="module")
def one_device(data, tmp_path_factory):
    """A training on one device, with a profile. The others start from its weights: initial ones
    depend on the graph."""
    output_dir = tmp_path_factory.mktemp("one") / "model"
    rpr_command("train", *arguments(data, output_dir, SENTENCES, "--profile"))
    return output_dir


def outcome(output_dir):
    """The losses of the steps that are recorded, and the weights."""
    losses = {event["step"]: event["loss"] for event in events(output_dir, "train")}
    path = str(output_dir / f"model.ckpt-{STEPS}")
    reader = tf.train.load_checkpoint(path)
    return losses, {name: reader.get_tensor(name) for name, _ in tf.train.list_variables(path)
                    if name.startswith("transformer/") and "training" not in name}


def events(output_dir, kind):
    return [event for event in metrics_log.read(str(output_dir / "metrics.jsonl"))
            if event["event"] == kind]


def assert_same_training(output_dir, one_device):
    """Losses, which fall by 1, and weights, which move by 0.1, to 1e-3."""
    (losses, weights), (expected, expected_weights) = outcome(output_dir), outcome(one_device)
    assert losses == pytest.approx(expected, abs=1e-3) and sorted(losses) == [10, 20]
    assert losses[20] < losses[10] - 0.2
    assert set(weights) == set(expected_weights)
    for name, value in weights.items():
        np.testing.assert_allclose(value, expected_weights[name], atol=1e-3, err_msg=name)
    for event in events(output_dir, "train"):
        assert event["target_tokens_per_second"] > 0 and event["peak_memory"] > 1e8


@pytest.mark.parametrize("mode, hparams", [
    (["--cpu_devices=2"], ""), (["--cpu_devices=2", "--optionally_use_dist_strat"], ""),
    ([], ",optimizer=multistep_adam,optimizer_multistep_accumulate_steps=2")],
    ids=["towers", "mirrored", "accumulated"])
def test_two_batches_train_as_one_of_both(mode, hparams, data, one_device, tmp_path):
    """T2T loaded in TF2 mode would train variables of each tower's own, and say nothing."""
    rpr_command("train", *arguments(data, tmp_path / "model", SENTENCES // 2, *mode,
                                    f"--warm_start_from={one_device}/model.ckpt-0",
                                    hparams=hparams))
    assert_same_training(tmp_path / "model", one_device)
    assert gpu_kernels.lacking_in(tmp_path / "model") == []


def test_two_machines_train_as_one_device_even_if_one_is_killed(data, one_device, tmp_path):
    """Over loopback; the worker is killed in the midst, comes back, and all go on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    output_dir = tmp_path / "model"
    machines = ",".join(f"127.0.0.1:{port + 2 * index}" for index in range(2))

    def start(index):
        config = subprocess.run([SCRIPTS / "tf_config", machines, str(index)],
                                capture_output=True, text=True, check=True).stdout
        return subprocess.Popen(
            [sys.executable, "-m", "rpr.cli", "train",
             *arguments(data, output_dir, SENTENCES // 2, "--local_eval_frequency=4",
                        "--iterations_per_loop=1", f"--warm_start_from={one_device}/model.ckpt-0")],
            env=dict(os.environ, TF_CONFIG=config), stderr=subprocess.PIPE, text=True)

    processes = [start(0), start(1)]
    try:
        wait_for((output_dir / "model.ckpt-4.index").exists, 800)
        processes[1].send_signal(signal.SIGKILL)
        processes[1].communicate()
        processes[1] = start(1)
        told = [process.communicate(timeout=800)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], told
    assert "lost 127.0.0.1" in told[0]
    first, again = (event["step"] for event in events(output_dir, "start"))
    assert first == 0 and 4 <= again < STEPS
    assert_same_training(output_dir, one_device)
    assert not [*output_dir.rglob("*.meta"), *output_dir.rglob("graph.pbtxt")]


def test_the_model_flops_are_those_of_the_batches(one_device, data):
    """Each step has the 40 sentences, padded to the longest."""
    records = [tf.train.Example.FromString(record).features.feature
               for path in (pathlib.Path(data[-1].partition("=")[2])).glob("*-train-*")
               for record in tf.python_io.tf_record_iterator(str(path))]
    source, target = (max(len(record[side].int64_list.value) for record in records)
                      for side in ("inputs", "targets"))
    assert len(records) == SENTENCES
    symbols, = (shape[0] for name, shape in tf.train.list_variables(
        str(one_device / "model.ckpt-0")) if name.endswith("/shared/weights_0"))
    needed = model_flops.model_flops(tiny_models.hparams(num_hidden_layers=1), symbols, SENTENCES,
                                     source, target)
    for event in events(one_device, "train"):
        expected = needed * event["steps_per_second"] / 1e12          # rounded to 4 digits
        assert event["model_tflops"] == pytest.approx(expected, abs=1e-6)
        assert event["model_tflops"] > 0 and "mfu" not in event       # on a CPU


def test_a_profile_is_written_for_tensorboard(one_device):
    assert list(one_device.glob("plugins/profile/*/*.xplane.pb"))


def test_going_on_with_other_devices_is_said_or_refused(data, one_device, capfd):
    """Without a training: what it would go on from is in the directory."""
    request, hparams = DeviceRequest(4), tiny_models.hparams("rpr_tiny", batch_size=20)
    trainer.report_changes(str(one_device), request, hparams)
    said = " ".join(capfd.readouterr().err.split())
    assert "4 devices; the steps so far had 1. A batch now has 4 x 20 sub-words" in said
    assert "threads" not in said
    request = dataclasses.replace(request, intra_op_threads=77)
    trainer.report_changes(str(one_device), request, hparams)
    assert "resuming with 77 threads; the steps so far had" in capfd.readouterr().err
    request = dataclasses.replace(request, mirrored=True)
    with pytest.raises(UserError, match="was trained on one device or in towers and cannot resume "
                                        "mirrored .*warm_start_from"):
        trainer.report_changes(str(one_device), request, hparams)


@pytest.fixture
def hparams():
    return tiny_models.hparams()


def cluster_of(**jobs):
    return json.dumps({"cluster": jobs, "task": {"type": "chief", "index": 0}})


@pytest.mark.parametrize("text, told", [
    ("{", "expected JSON"), ("{}", "expected JSON"),
    (cluster_of(chief=["a:1"], worker=["b:1"], ps=["c:1"]), "parameter servers"),
    (cluster_of(worker=["b:1"]), "one chief"),
    (cluster_of(chief=["a:1"], evaluator=["b:1"]), "one chief"),
    (cluster_of(chief=["a:1"], worker=["b:1"]).replace('"index": 0', '"index": 1'), "no chief 1"),
    (cluster_of(chief=["a:1"], worker=["b:1"]).replace('"chief", "index"', '["chief"], "index"'),
     r"no \['chief'\] 0"),
    (cluster_of(chief=["a:1"], worker=["b:1"]).replace('"index": 0', '"index": Infinity'),
     "expected JSON"),
    (cluster_of(chief=["a"], worker=["b:1"]), "address 'a'; expected host:port"),
    (cluster_of(chief=["a:1"], worker=["b:x"]), "address 'b:x'; expected host:port"),
    (cluster_of(chief=["a:65535"], worker=["b:1"]), "a port from 1 to 65534")])
def test_a_cluster_that_cannot_train_is_refused(text, told, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match=told):
        devices.training_cluster()


def test_a_chief_alone_is_one_machine(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", cluster_of(chief=["a:1"], worker=[]))
    assert devices.training_cluster() is None and DeviceRequest().count == 1
    assert "TF_CONFIG" not in os.environ


@pytest.mark.parametrize("change, told", [
    (dict(optimizer_multistep_accumulate_steps=2), "multistep_adam and a number of batches go"),
    (dict(optimizer="MultistepAdam"), "multistep_adam and a number of batches go"),
    (dict(optimizer="multistep_adam", optimizer_multistep_accumulate_steps=2, clip_grad_norm=5.0),
     "clip_grad_norm=5.0 with optimizer=multistep_adam"),
    (dict(activation_dtype="float16"), "activation_dtype=float16: float32 or bfloat16"),
    (dict(weight_dtype="bfloat16"), "weight_dtype=bfloat16: weights are float32"),
    (dict(activation_dtype="bfloat16", gpu_automatic_mixed_precision=True), "one of the two")])
def test_what_would_compute_something_else_is_refused(change, told, hparams):
    hparams.override_from_dict(change)
    with pytest.raises(UserError, match=told):
        devices.check(DeviceRequest(), hparams)


def test_a_checkpoint_between_the_batches_of_a_step_is_refused(hparams):
    devices.check(DeviceRequest(), hparams, save_checkpoints_secs=60)
    hparams.override_from_dict(dict(optimizer="multistep_adam",
                                    optimizer_multistep_accumulate_steps=2))
    with pytest.raises(UserError, match="save_checkpoints_secs=60: with optimizer=multistep_adam"):
        devices.check(DeviceRequest(), hparams, save_checkpoints_secs=60)


def test_what_replicas_would_each_do_alone_is_refused(hparams):
    hparams.clip_grad_norm = 5.0
    devices.check(DeviceRequest(), hparams)
    mirrored = DeviceRequest(2, cpu_devices=2, mirrored=True)
    with pytest.raises(UserError, match="clip_grad_norm=5.0 with optionally_use_dist_strat"):
        devices.check(mirrored, hparams)
    hparams.override_from_dict(dict(clip_grad_norm=0.0, optimizer="multistep_adam",
                                    optimizer_multistep_accumulate_steps=2))
    with pytest.raises(UserError, match="only one device and towers accumulate"):
        devices.check(mirrored, hparams)


def test_towers_of_which_one_would_train_are_refused(hparams):
    hparams.no_data_parallelism = True
    devices.check(DeviceRequest(), hparams)
    with pytest.raises(UserError, match="no_data_parallelism=True with 2 devices"):
        devices.check(DeviceRequest(2, cpu_devices=2), hparams)
