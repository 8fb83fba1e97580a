"""Studies as jobs of submitit, where that is installed (the extra `slurm`)."""
import json
import os
import pickle
import signal
import sys
import threading
import time

import pytest
from conftest import refused, rpr_command
from test_experiment import status
from test_study import runs, write_study

from rpr.experiments import slurm


def test_without_submitit_one_line_says_how_to_get_it(tmp_path):
    (tmp_path / "submitit.py").write_text("raise ModuleNotFoundError")
    gin = write_study(tmp_path / "x.gin", {"relative": {}})
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    line = refused("study", gin, f"--study_dir={tmp_path}/study", "--cluster=local",
                   env={**os.environ, "PYTHONPATH": path}, forked=False)
    assert "pip install -e '.[slurm]'" in line
    assert not (tmp_path / "study").exists()


@pytest.fixture
def submitit():
    return pytest.importorskip("submitit")


@pytest.mark.parametrize("option", ["partition_x=1", "slurm_partitionx=gpu", "timeout_min"])
def test_a_wrong_parameter_is_refused(submitit, tmp_path, option):
    gin = write_study(tmp_path / "x.gin", {"relative": {}})
    line = refused("study", gin, f"--study_dir={tmp_path}/study", "--cluster=local",
                   "--submitit_option", option)
    assert option in line and not (tmp_path / "study").exists()


def test_a_job_that_is_preempted_before_its_process_is_queued_as_it_is(tmp_path):
    pytest.importorskip("submitit")
    queued = slurm.RunJob(["list"], str(tmp_path / "log")).checkpoint().function
    assert (queued.argv, queued.log) == (["list"], str(tmp_path / "log"))


def test_a_job_that_is_preempted_stops_and_is_queued_as_it_is(submitit, tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho begun; exec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    job = slurm.RunJob(["run", "x.gin"], str(tmp_path / "log"))
    queued = []

    def preempted(*_):
        queued.append(job.checkpoint().function)
        raise InterruptedError

    def preempt():
        while not (tmp_path / "log").exists() or "begun" not in (tmp_path / "log").read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, preempted)
    threading.Thread(target=preempt).start()
    with pytest.raises(InterruptedError):
        job()
    signal.signal(signal.SIGUSR2, before)
    assert [pickle.loads(pickle.dumps(again)).argv for again in queued] == [["run", "x.gin"]]


def test_a_study_as_jobs(submitit, text, tmp_path):
    gin = write_study(tmp_path / "x.gin", {"relative": {}}, average_checkpoints=1)
    text.give(tmp_path / "study")
    flags = ["--cluster=local", "--submitit_option", "timeout_min=5"]
    rpr_command("study", gin, f"--study_dir={tmp_path}/study", *flags)
    run = runs(tmp_path / "study")["relative"]
    assert [entry["state"] for entry in status(run).values()] == ["done"] * 4
    assert json.loads((run / "scores.json").read_text())["step"] == 20
    done = rpr_command("study", gin, f"--study_dir={tmp_path}/study", *flags)
    assert "begins" not in done.stderr
