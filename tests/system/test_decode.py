"""`rpr decode` of a file: T2T's bytes, on several devices and after a crash."""
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import refused, rpr_command

from rpr.inference import batches
from rpr.utils import metrics_log


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


def test_two_devices_write_what_t2t_writes(command, by_t2t, tmp_path):
    _, flags = command
    rpr_command("decode", *flags, f"--decode_to_file={tmp_path}/out", "--worker_gpu=2",
                f"--metrics_file={tmp_path}/metrics")
    assert (tmp_path / "out").read_bytes() == by_t2t and by_t2t.count(b"\n") == 60
    event, = metrics_log.read(str(tmp_path / "metrics"))
    assert event["sentences"] == 60 and event["tokens"] > 60 and 0 <= event["cut"] < 60
    assert sorted(os.listdir(tmp_path)) == ["metrics", "out"]


def test_a_killed_decoding_goes_on_from_what_was_decoded(command, by_t2t, tmp_path):
    _, flags = command
    flags = [*flags, f"--decode_to_file={tmp_path}/out", f"--metrics_file={tmp_path}/metrics"]
    process = subprocess.Popen([sys.executable, "-m", "rpr.cli", "decode", *flags],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 120
    while not (tmp_path / "out.parts" / "1.json").exists():
        assert process.poll() is None and time.time() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out").exists()
    rpr_command("decode", *flags)
    assert (tmp_path / "out").read_bytes() == by_t2t
    event, = metrics_log.read(str(tmp_path / "metrics"))
    assert event["sentences"] <= 54


def test_a_shard_has_files_of_its_own(command, by_t2t, tmp_path):
    folder, flags = command
    (folder / "in001").write_bytes((folder / "in").read_bytes())
    flags = [*flags, f"--decode_to_file={tmp_path}/out", "--decode_shards=2", "--worker_id=1"]
    rpr_command("decode", *flags)
    assert (tmp_path / "out001").read_bytes() == by_t2t and os.listdir(tmp_path) == ["out001"]
    flags = [flag for flag in flags if not flag.startswith("--decode_from_file")]
    said = refused("decode", *flags, "--test_set=wmt14", "--language_pair=en-de")
    assert "--decode_shards=2" in said


def test_batches_of_another_make_are_dropped(tmp_path):
    sentences = [f"sentence {number}" for number in range(7)]

    def begun(made_from, sentences=sentences):
        made = batches.Batches(str(tmp_path / "out"), sentences, 3, made_from)
        made.prepare()
        return made

    made = begun(["a checkpoint"])
    results = ({"outputs": [number, 5, 0]} for number in range(1, 8))
    assert made.missing() == [0, 1, 2] and made.missing(1, 2) == [1]
    made.save([0, 1], results, lambda result: str(result["outputs"][0]))
    assert begun(["a checkpoint"]).missing() == [2] and made.tokens([0, 1]) == 12
    assert made.sentences([2]) == sentences[6:]
    made.save([2], results, lambda result: str(result["outputs"][0]))
    assert made.count_cut() == 6                      # only the first has the end mark
    made.assemble({number: 6 - number for number in range(7)}, "\n")
    assert (tmp_path / "out").read_text() == "7\n6\n5\n4\n3\n2\n1\n"
    assert os.listdir(tmp_path) == ["out"]
    begun(["a checkpoint"]).save([0], iter([{"outputs": [1]}] * 3), json.dumps)
    assert begun(["a checkpoint"]).missing() == [1, 2]
    assert begun(["another"]).missing() == [0, 1, 2]


def test_devices_need_a_file(trained):
    assert "--worker_gpu=2" in refused("decode", *trained.flags, "--worker_gpu=2")


def test_interactive_decoding_prints_hypotheses_and_no_warnings(trained, lively):
    done = rpr_command("decode", *trained.flags, f"--checkpoint_path={lively}",
                       "--decode_interactive", "--decode_hparams=beam_size=2,extra_length=9",
                       input="Click the button.\nq\n")
    hypothesis = re.sub(r"INTERACTIVE MODE.*?\n>", "", done.stdout, flags=re.DOTALL).strip()
    assert hypothesis and "INTERACTIVE MODE" in done.stdout
    assert not done.stderr.strip()
