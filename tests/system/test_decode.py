"""`rpr decode` of a file: T2T's bytes, on several devices and after a crash; `rpr evaluate`."""
import glob
import io
import json
import os
import re
import shutil
import sys
import time

import numpy as np
import pytest
from conftest import refused, rpr_command, started

from rpr.inference import batches, file_decoder
from rpr.inference.file_decoder import DecodeRequest
from rpr.utils import metrics_log
from rpr.utils.errors import REASON_PIPE, UserError


@pytest.fixture(scope="module")
def command(trained, lively, tmp_path_factory):
    """The flags of a decoding of 60 sentences, 3 at a time; and the folder of the source."""
    folder = tmp_path_factory.mktemp("decode")
    lines = (trained.text.folder / "train.en").read_text(encoding="utf-8").splitlines()[:59]
    (folder / "in").write_text("\n".join([*lines[:7], "", *lines[7:]]) + "\n", encoding="utf-8")
    return folder, [*trained.flags, f"--checkpoint_path={lively}",
                    f"--decode_from_file={folder}/in",
                    "--decode_hparams=beam_size=2,alpha=0.6,batch_size=3,extra_length=9"]


@pytest.fixture(scope="module")
def by_t2t(command):
    """What T2T's own decoding of the file writes; without --decode_to_file it runs."""
    folder, flags = command
    rpr_command("decode", *flags)
    path, = (path for path in folder.iterdir() if path.name.endswith(".decodes"))
    return path.read_bytes()


def test_ctranslate2_searches_as_tensorflow_does(command, tmp_path):
    pytest.importorskip("ctranslate2")
    _, flags = command
    greedy = [*flags, "--decode_hparams=beam_size=1,alpha=0.6,batch_size=3,extra_length=9",
              f"--metrics_file={tmp_path}/metrics"]
    for engine in ("tensorflow", "ctranslate2"):
        rpr_command("decode", *greedy, f"--decode_to_file={tmp_path}/{engine}",
                    f"--engine={engine}")
    by_tensorflow, by_ctranslate2 = ((tmp_path / engine).read_text().splitlines()
                                     for engine in ("tensorflow", "ctranslate2"))
    assert len(set(by_tensorflow)) > 10 and by_ctranslate2[7] == ""     # of an empty line
    assert by_ctranslate2[:7] + by_ctranslate2[8:] == by_tensorflow[:7] + by_tensorflow[8:]
    assert [event["engine"] for event in metrics_log.read(str(tmp_path / "metrics"))] == [
        "tensorflow", "ctranslate2"]
    beams = [*flags, "--engine=ctranslate2"]
    rpr_command("decode", *beams, f"--decode_to_file={tmp_path}/two", "--worker_gpu=2")
    rpr_command("decode", *beams, f"--decode_to_file={tmp_path}/one")
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert "num_samples=2" in refused("decode", *beams, f"--decode_to_file={tmp_path}/one",
                                      "--decode_hparams=num_samples=2,batch_size=3")


def test_a_killed_decoding_goes_on_from_what_was_decoded(command, by_t2t, tmp_path):
    _, flags = command
    flags = [*flags, f"--decode_to_file={tmp_path}/out", f"--metrics_file={tmp_path}/metrics"]
    process, deadline = started("decode", *flags), time.time() + 120
    while not (tmp_path / "out.parts" / "1.json").exists():
        assert process.poll() is None and time.time() < deadline
        time.sleep(0.005)
    process.kill()
    assert not (tmp_path / "out").exists()
    rpr_command("decode", *flags)
    assert (tmp_path / "out").read_bytes() == by_t2t
    event, = metrics_log.read(str(tmp_path / "metrics"))
    assert event["sentences"] <= 54


def test_two_devices_write_what_t2t_writes_and_a_shard_has_files_of_its_own(command, by_t2t,
                                                                           tmp_path):
    folder, flags = command
    (folder / "in001").write_bytes((folder / "in").read_bytes())
    flags = [*flags, f"--decode_to_file={tmp_path}/out", "--decode_shards=2", "--worker_id=1"]
    rpr_command("decode", *flags, f"--metrics_file={tmp_path}/metrics",
                f"--worker_gpu={min(2, len(os.sched_getaffinity(0)))}")
    assert (tmp_path / "out001").read_bytes() == by_t2t and by_t2t.count(b"\n") == 60
    event, = metrics_log.read(str(tmp_path / "metrics"))
    assert event["sentences"] == 60 and event["tokens"] > 60 and 0 <= event["cut"] < 60
    assert sorted(os.listdir(tmp_path)) == ["metrics", "out001"]
    flags = [flag for flag in flags if not flag.startswith("--decode_from_file")]
    line = refused("decode", *flags, "--test_set=wmt14", "--language_pair=en-de")
    assert "--decode_shards=2" in line


def decoding_of(tmp_path, settings, sentences=None):
    """The batches of a decoding to OUT of 7 sentences, 3 at a time."""
    sentences = sentences or [f"sentence {number}" for number in range(7)]
    made = batches.Batches(str(tmp_path / "out"), sentences, 3, settings)
    with made.prepared():
        return made


def test_a_decoding_that_fails_leaves_only_finished_batches(tmp_path):
    made = decoding_of(tmp_path, ["a checkpoint"])
    with pytest.raises(ZeroDivisionError), made.prepared():
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    with pytest.raises(ZeroDivisionError), made.prepared():
        made.save([0], iter([{"outputs": np.array([1])}] * 3), first_symbol)
        raise ZeroDivisionError
    assert decoding_of(tmp_path, ["a checkpoint"]).missing() == [1, 2]


def first_symbol(prediction):
    return str(prediction["outputs"][0])


def test_finished_batches_of_other_settings_are_discarded(tmp_path):
    made = decoding_of(tmp_path, ["a checkpoint"])
    predictions = ({"outputs": np.array([number, 5, 0])} for number in range(1, 8))   # 1 ends
    assert made.missing() == [0, 1, 2] and made.missing(1, 2) == [1]
    made.save([0, 1], predictions, first_symbol)
    assert decoding_of(tmp_path, ["a checkpoint"]).missing() == [2]
    assert made.tokens([0, 1]) == 11 and made.sentences([2]) == ["sentence 6"]
    made.save([2], predictions, first_symbol)
    made.assemble({number: 6 - number for number in range(7)}, "\n")
    assert (tmp_path / "out").read_text() == "7\n6\n5\n4\n3\n2\n1\n"
    assert os.listdir(tmp_path) == ["out"]
    decoding_of(tmp_path, ["a checkpoint"]).save([0], iter([{"outputs": np.array([1])}] * 3),
                                                 first_symbol)
    assert decoding_of(tmp_path, ["a checkpoint"]).missing() == [1, 2]
    assert decoding_of(tmp_path, ["another"]).missing() == [0, 1, 2]


@pytest.mark.parametrize("content", ["thesis.txt", "0.json", "sub/0.json"])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path, content):
    path = tmp_path / "out.parts" / content
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(UserError, match="out.parts is there, but rpr decode did not make it"):
        decoding_of(tmp_path, ["a checkpoint"])
    assert path.read_text() == "mine"


def test_our_folder_with_a_users_file_in_it_is_left_alone(tmp_path):
    decoding_of(tmp_path, ["a checkpoint"])
    (tmp_path / "out.parts" / "notes").write_text("mine")
    with pytest.raises(UserError, match="did not make it"):
        decoding_of(tmp_path, ["another"])
    assert (tmp_path / "out.parts" / "notes").exists()


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path):
    decoding_of(tmp_path, ["a checkpoint"])
    os.rename(tmp_path / "out.parts", tmp_path / "elsewhere")
    os.symlink("elsewhere", tmp_path / "out.parts")
    with pytest.raises(UserError, match="did not make it"):
        decoding_of(tmp_path, ["another"])
    assert os.listdir(tmp_path / "elsewhere")


def test_two_decodings_to_one_output_do_not_mix(tmp_path):
    sentences = ["a sentence"]
    with batches.Batches(str(tmp_path / "out"), sentences, 3, ["a checkpoint"]).prepared():
        for settings in (["a checkpoint"], ["another"]):
            with pytest.raises(UserError, match="out.parts: another process is using it"), \
                    batches.Batches(str(tmp_path / "out"), sentences, 3, settings).prepared():
                pass
    assert decoding_of(tmp_path, ["another"]).missing() == [0, 1, 2]


def test_a_folder_that_was_killed_before_its_key_was_written_is_used(tmp_path):
    (tmp_path / "out.parts").mkdir()
    (tmp_path / "out.parts" / ".rpr-decode-key.0123456789abcdef.tmp").touch()
    assert decoding_of(tmp_path, ["a checkpoint"]).missing() == [0, 1, 2]


def test_waiting_for_several_devices_looks_for_one_batch_per_device(tmp_path, monkeypatch):
    """Not for every batch: the cost of waiting must not grow with the file. GPUs stay hidden."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    made = decoding_of(tmp_path, [], [f"sentence {number}" for number in range(300)])
    polls, looked, missing = iter(range(10**6)), [], made.missing()

    class Worker:
        """A decoder that finishes one batch whenever it is polled."""

        def __init__(self, argv, env, **_):
            self.stdin = io.BytesIO()
            assert env["CUDA_VISIBLE_DEVICES"] == ""
            part, parts = map(int, env["RPR_DECODE_PART"].split("/"))
            self._todo = missing[part::parts]

        def poll(self):
            next(polls)
            if not self._todo:
                return 0
            made.save(self._todo[:1], iter([{"outputs": np.array([3, 1])}] * 3), first_symbol)
            del self._todo[0]
            return None

        def kill(self):
            pass

        wait = kill

    exists = os.path.exists
    monkeypatch.setattr(file_decoder.processes, "spawn", Worker)
    monkeypatch.setattr(file_decoder, "_POLL_SECONDS", 0)
    monkeypatch.setattr(file_decoder.os.path, "exists",
                        lambda path: looked.append(path) or exists(path))
    request = DecodeRequest((), False, "tensorflow", "", "in", "out", False, 2, None, False, {})
    file_decoder._decode_on_devices(request, made, missing)
    assert len(looked) <= 100 + next(polls)          # batches, and a look per device and poll
    monkeypatch.undo()
    assert made.missing() == []


def test_a_failed_decoder_is_named_and_inherits_no_pipe_for_its_reason(tmp_path, monkeypatch):
    """Its parent reads its output instead: the pipe's descriptor is closed in it."""
    failing = ("import sys; from rpr.utils import errors; errors.send_failure_reason('x'); "
               "sys.exit('no such model')")
    monkeypatch.setattr(file_decoder.processes, "command",
                        lambda *_: [sys.executable, "-c", failing])
    monkeypatch.setenv(REASON_PIPE, "999")
    made = decoding_of(tmp_path, [])
    request = DecodeRequest((), False, "tensorflow", "", "in", "out", False, 2, None, False, {})
    with pytest.raises(UserError, match=r"on device \d ended with exit code 1: no such model;"):
        file_decoder._decode_on_devices(request, made, made.missing())


@pytest.fixture(scope="module")
def run(trained, lively, tmp_path_factory):
    """The directory of a run with an averaged checkpoint, and its data next to it."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "data").symlink_to(trained.text.data_dir)
    average = folder / "run" / "average"
    average.mkdir(parents=True)
    (folder / "run" / "model").symlink_to(trained.output_dir)
    for path in glob.glob(lively + "*"):
        shutil.copy(path, average)
    (folder / "run" / "config.gin").write_text(
        "run.problem = 'translate_text_files'\nrun.hparams_set = 'rpr_tiny'\n"
        "run.train_steps = 20\nrun.checkpoint_steps = 10\nrun.average_checkpoints = 2\n"
        "run.beam_size = 2\nrun.decode_batch_size = 3\n", encoding="utf-8")
    return folder / "run"


def test_a_run_directory_decodes_without_flags(command, by_t2t, run, tmp_path):
    folder, _ = command
    done = rpr_command("decode", run, f"--input={folder}/in", "--decode_hparams=extra_length=9",
                       f"--worker_gpu={min(2, len(os.sched_getaffinity(0)))}")
    assert done.stdout.encode() == by_t2t
    done = rpr_command("decode", run, f"--input={folder}/in", f"--output={tmp_path}/out",
                       "--decode_hparams=extra_length=9,eos_penalty=1.5")
    assert "eos_penalty=1.5 has no effect" in done.stderr
    assert (tmp_path / "out").read_bytes() == by_t2t and os.listdir(tmp_path) == ["out"]


def test_a_run_directory_is_evaluated_and_the_command_ends(run, trained, tmp_path):
    done = rpr_command("evaluate", run, "--eval_steps=2", f"--json={tmp_path}/metrics.json")
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["checkpoint"] == str(run / "average" / "model.ckpt-20")
    assert metrics["loss"] > 0 and metrics["global_step"] == 20
    assert json.loads(done.stdout.splitlines()[-1]) == metrics
    assert f"{metrics['accuracy']:.4f}" in done.stdout
    newest = rpr_command(*trained.flags, "--eval_steps=2", launcher="t2t-eval").stdout
    assert newest.splitlines()[0] == str(trained.output_dir / "model.ckpt-20")
    assert json.loads(newest.splitlines()[-1])["loss"] != metrics["loss"]


def test_the_test_split_of_a_problem_is_decoded(trained, lively, tmp_path):
    command = ["decode", *trained.flags, f"--checkpoint_path={lively}", "--eval_use_test_set",
               f"--output={tmp_path}/out", "--decode_hparams=beam_size=2,extra_length=9"]
    rpr_command(*command, f"--metrics_file={tmp_path}/metrics")
    targets, = tmp_path.glob("out.*.targets")
    references = (trained.text.folder / "test.de").read_text(encoding="utf-8").splitlines()
    assert sorted(targets.read_text(encoding="utf-8").splitlines()) == sorted(references)
    event, = metrics_log.read(str(tmp_path / "metrics"))
    assert event["sentences"] == len(references) < event["tokens"]
    shutil.copytree(trained.text.data_dir, tmp_path / "data")
    for path in (tmp_path / "data").glob("*-test-*"):
        path.unlink()
    assert "-test-00000-of-00001 is missing" in refused(*command, f"--data_dir={tmp_path}/data")


def test_interactive_decoding_prints_hypotheses_and_no_warnings(trained, lively):
    command = ["decode", *trained.flags, f"--checkpoint_path={lively}", "--decode_interactive",
               "--decode_hparams=beam_size=2,extra_length=9"]
    rpr_command(*command, stdin="")                   # ends at once
    done = rpr_command(*command, stdin="Click the button.\nq\n")
    hypothesis = re.sub(r"INTERACTIVE MODE.*?\n>", "", done.stdout, flags=re.DOTALL).strip()
    assert hypothesis and "INTERACTIVE MODE" in done.stdout
    assert not done.stderr.strip()
