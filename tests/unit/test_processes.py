"""Processes end with the one that started them, whenever that is killed."""
import functools
import os
import signal
import subprocess
import sys
import time

import pytest

from rpr.utils import processes

PARENT = """
import os
from rpr.utils import processes
child = processes.spawn([], before=lambda: os.execvp("sleep", ["sleep", "60"]))
print(child.pid, flush=True)
child.wait()
"""


def ended(pid):
    """Whether a process is gone; nobody may have asked for its exit code."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_child_is_killed_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert not ended(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.time() + 10
    while not ended(child):
        assert time.time() < deadline
        time.sleep(0.01)


def test_a_child_whose_parent_was_killed_before_it_began_does_not_begin():
    gone = subprocess.Popen(["true"])
    gone.wait()
    began = time.time()
    child = subprocess.Popen(["sleep", "60"], preexec_fn=functools.partial(
        processes.die_with, gone.pid))
    assert child.wait(30) == 1 and time.time() - began < 30
    assert subprocess.run(["true"], preexec_fn=functools.partial(
        processes.die_with, os.getpid()), check=False).returncode == 0


@pytest.mark.parametrize("options", [{}, {"env": {**os.environ, "RPR_REASON_PIPE": "99"}}])
def test_a_process_does_not_write_to_a_pipe_that_it_did_not_get(monkeypatch, options):
    monkeypatch.setenv("RPR_REASON_PIPE", "99")       # of a process further up
    child = processes.spawn(["stdy"], stderr=subprocess.PIPE, text=True, **options)
    assert child.communicate()[1] == "rpr: no command 'stdy'; nearest: study, list\n"
    assert child.returncode == 1


def test_tensorflow_loads_no_library_of_the_working_directory():
    """It loads libtfkernel*.so of the directory tensorflow/core/kernels below the first word after
    `python` that is not an option; after -m, that is a path in the working directory."""
    for module in ("rpr.cli.__main__", "rpr.report.model_analysis"):
        program = next(word for word in processes.command([], module)[1:] if word[0] != "-")
        assert os.path.isabs(program) and os.path.isfile(program)
    assert "--xla_gpu_cuda_data_dir=/" in os.environ["XLA_FLAGS"]   # else ./cuda_sdk_lib


def test_modules_in_the_working_directory_are_not_imported(tmp_path):
    names = ("numpy", "usercustomize", "sitecustomize", "tensorflow", "rpr", "sacrebleu", "gin")
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"open('{tmp_path}/ran', 'w')\n")
    (tmp_path / "x.pth").write_text(f"import os; open('{tmp_path}/ran', 'w')\n")
    program = os.path.join(os.path.dirname(sys.executable), "rpr")
    code = ("from rpr.utils.processes import spawn\n"
            "raise SystemExit(spawn(['--version']).wait())")
    for argv in ([program, "report", "."], [sys.executable, "-P", "-c", code]):
        subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False)
        assert not (tmp_path / "ran").exists(), argv
