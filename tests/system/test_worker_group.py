"""Processes of a training on several machines: begin together, start over, end together."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from rpr.training import worker_group

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
PROGRAM = """
import os, sys, time
from rpr.training import worker_group
from rpr.utils.errors import UserError
folder, port, index, fingerprint, failing = sys.argv[1:]
addresses = [f"127.0.0.1:{int(port) + 2 * i}" for i in range(3)]
group = worker_group.WorkerGroup(addresses, int(index), fingerprint, os.path.join(folder, "secret"))
try:
    group.join()
except UserError as error:
    sys.exit(f"refused: {error}")
with open(os.path.join(folder, f"joined.{index}"), "a") as log:
    log.write(f"{os.getpid()}\\n")
while not os.path.exists(os.path.join(folder, "finish")):
    if failing == "failing" and os.path.exists(os.path.join(folder, "fail")):
        group.fail("the loss is NaN at step 7")
        sys.exit(1)
    time.sleep(0.05)
group.leave()
"""


def wait_for(what, seconds=30):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


class Group:
    """Three processes over loopback."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.processes = [None] * 3

    def start(self, index, fingerprint="same", failing=""):
        self.processes[index] = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.folder, str(self.port), str(index), fingerprint,
             failing], stderr=subprocess.PIPE, text=True)

    def begin(self, failing=None):
        """Starts all, one of them such that it can fail, and waits until they have begun."""
        for index in range(3):
            self.start(index, failing="failing" if index == failing else "")
        wait_for(lambda: all(self.joined(index) == 1 for index in range(3)))

    def joined(self, index):
        """How often it has begun."""
        try:
            return len((self.folder / f"joined.{index}").read_text().splitlines())
        except FileNotFoundError:
            return 0

    def ends(self):
        """Exit codes and what was said."""
        told = [process.communicate(timeout=30)[1] for process in self.processes]
        return [process.returncode for process in self.processes], told

    def finish(self):
        (self.folder / "finish").touch()
        return self.ends()


@pytest.fixture
def group(tmp_path):
    group = Group(tmp_path)
    yield group
    for process in group.processes:
        if process and process.poll() is None:
            process.kill()
            process.communicate()


def test_all_begin_when_the_last_is_there_and_end_together(group):
    group.start(0)
    group.start(2)
    time.sleep(1)
    assert [group.joined(index) for index in range(3)] == [0, 0, 0]
    group.start(1)
    wait_for(lambda: all(group.joined(index) == 1 for index in range(3)))
    assert group.finish() == ([0, 0, 0], ["", "", ""])


def test_a_lost_worker_sends_all_back_to_the_start_in_the_same_processes(group):
    group.begin()
    group.processes[1].send_signal(signal.SIGKILL)
    group.processes[1].communicate()
    time.sleep(1)
    assert [group.joined(index) for index in range(3)] == [1, 1, 1]
    group.start(1)
    wait_for(lambda: all(group.joined(index) == 2 for index in range(3)))
    codes, told = group.finish()
    assert codes == [0, 0, 0]
    lost = f"lost 127.0.0.1:{group.port + 2}; resuming from the last checkpoint when it is back"
    assert lost in " ".join(told[0].split()) and lost in " ".join(told[2].split())
    assert len({*(group.folder / "joined.0").read_text().splitlines()}) == 1


def test_the_lost_one_is_named_though_others_start_over_for_it(monkeypatch, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    addresses = tuple(f"127.0.0.1:{port + 2 * index}" for index in range(3))
    told = []

    def start_over(why):                              # slower than the others are
        told.append(why)
        others[2].close()
        time.sleep(0.5)

    monkeypatch.setattr(worker_group, "_start_over", start_over)
    chief = worker_group.WorkerGroup(addresses, 0, "same", str(tmp_path / "secret"))
    joining = threading.Thread(target=chief.join)
    joining.start()
    others = {}
    for index in (1, 2):
        wait_for(lambda index=index: connect(others, index, port + 1))
        secret = (tmp_path / "secret").read_text().strip()
        others[index].sendall(f"join {index} same {secret}\n".encode())
    joining.join()
    others[1].close()
    wait_for(lambda: told)
    time.sleep(1)
    assert told[0] == f"lost {addresses[1]}" and f"lost {addresses[2]}" not in told


def connect(others, index, port):
    try:
        others[index] = socket.create_connection(("127.0.0.1", port))
    except ConnectionRefusedError:
        return False
    return True


def test_the_chiefs_death_ends_the_workers_with_one_line(group):
    group.begin()
    os.kill(group.processes[0].pid, signal.SIGKILL)
    codes, told = group.ends()
    assert codes == [-signal.SIGKILL, 1, 1]
    for line in told[1:]:
        assert len(line.splitlines()) == 1 and f"the chief, 127.0.0.1:{group.port}, ended" in line


def test_one_that_fails_ends_all_with_its_reason(group):
    group.begin(failing=2)
    (group.folder / "fail").touch()
    codes, told = group.ends()
    assert codes == [1, 1, 1]
    for line in told[:2]:
        assert f"127.0.0.1:{group.port + 4}: the loss is NaN at step 7" in line


def test_one_that_was_started_for_another_training_is_refused_by_all(group):
    for index in range(3):
        group.start(index, fingerprint="other" if index == 1 else "same")
    codes, told = group.ends()
    assert codes == [1, 1, 1]
    assert all("started with other flags" in line for line in told)


def test_one_that_was_started_again_with_the_right_flags_is_not_refused(monkeypatch, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    addresses = tuple(f"127.0.0.1:{port + 2 * index}" for index in range(3))
    chief = worker_group.WorkerGroup(addresses, 0, "same", str(tmp_path / "secret"))
    monkeypatch.setattr(chief, "_watch", lambda *_: None)     # it would start this process over
    joining = threading.Thread(target=chief.join, daemon=True)
    joining.start()
    others = {}
    for index, fingerprint in ((1, "other"), (1, "same"), (2, "same")):
        wait_for(lambda index=index: connect(others, index, port + 1))
        secret = (tmp_path / "secret").read_text().strip()
        others[index].sendall(f"join {index} {fingerprint} {secret}\n".encode())
        time.sleep(0.5)
    assert [others[index].recv(100) for index in (1, 2)] == [b"go\n", b"go\n"]
    joining.join()


def test_the_launcher_starts_a_killed_worker_again_and_passes_the_rest_on(tmp_path):
    program = """
import json, os, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
if task["type"] == "worker" and not os.path.exists("killed"):
    open("killed", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
if task["type"] == "chief":
    while not os.path.exists("told"):
        time.sleep(0.1)
    sys.exit(3)
with open("told.part", "w") as told:
    json.dump([os.environ["TF_CONFIG"], sys.argv[1:]], told)
os.rename("told.part", "told")
"""
    done = subprocess.run([SCRIPTS / "train_on_hosts", "localhost:4001,127.0.0.1", sys.executable,
                           "-c", program, "a b", "'$c'"], cwd=tmp_path, timeout=60,
                          capture_output=True, text=True)
    config, arguments = json.loads((tmp_path / "told").read_text())
    assert json.loads(config) == {
        "cluster": {"chief": ["localhost:4001"], "worker": ["127.0.0.1:2222"]},
        "task": {"type": "worker", "index": 0}}
    assert arguments == ["a b", "'$c'"]
    assert done.returncode == 3 and "127.0.0.1: ended with exit code 137" in done.stderr


def test_a_worker_that_fails_before_it_joins_ends_all(tmp_path):
    program = """
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker":
    sys.exit(1)
time.sleep(600)
"""
    done = subprocess.run([SCRIPTS / "train_on_hosts", "localhost:4001,127.0.0.1", sys.executable,
                           "-c", program], cwd=tmp_path, timeout=60, capture_output=True)
    assert done.returncode == 143, done.stderr        # SIGTERM


def test_a_slurm_job_starts_a_process_on_each_of_its_nodes(tmp_path):
    """With srun and scontrol that this machine has not: they write down what they were told."""
    for name, text in (("scontrol", "printf 'n1\\nn2\\n'"), ("srun", 'echo "$@" >>srun.log')):
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "scripts").symlink_to(SCRIPTS)
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}", SLURM_JOB_ID="7",
                       SLURM_JOB_NODELIST="n[1-2]")
    subprocess.run(["bash", "scripts/train.sbatch", "--worker_gpu=8"], cwd=tmp_path, check=True,
                   env=environment, timeout=60)
    told = sorted((tmp_path / "srun.log").read_text().splitlines(),
                  key=lambda line: "nodelist=n2" in line)
    assert len(told) == 2 and "--nodelist=n1 " in told[0] and "--nodelist=n2 " in told[1]
    assert all("n1:20014" in line and ".venv/bin/rpr train --worker_gpu=8" in line for line in told)


@pytest.fixture
def restarts(monkeypatch):
    """Why the chief would have started its process again: the reasons so far."""
    reasons = []
    monkeypatch.setattr(worker_group, "_start_over", reasons.append)
    return reasons


@pytest.fixture
def chief(tmp_path, restarts):
    """A chief that waits for one worker: its secret, port, thread, and a connection to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = worker_group.WorkerGroup([f"127.0.0.1:{port}", "127.0.0.1:1"], 0, "same",
                                     str(tmp_path / "secret"))
    thread = threading.Thread(target=group.join, daemon=True)
    thread.start()
    wait_for((tmp_path / "secret").exists)
    connections = {}
    wait_for(lambda: connect(connections, 0, port + 1))
    return tmp_path / "secret", port + 1, thread, connections[0]


def test_strangers_cannot_join_or_stop_the_start(chief, restarts):
    secret_path, port, thread, stranger = chief
    assert secret_path.stat().st_mode & 0o777 == 0o600
    secret = secret_path.read_text().strip()
    attempts = [b"join 1 same wrong\n", b"join 1 same\n", "join ² same x\n".encode(),
                b"failed \x1b[2J\n", b"\xff\n", f"join 7 same {secret}\n".encode(),
                b"x" * 100_000]
    for attempt in attempts:
        with socket.create_connection(("127.0.0.1", port)) as connection, \
                contextlib.suppress(ConnectionError):
            connection.sendall(attempt)
            connection.settimeout(5)
            assert connection.recv(10) == b""                # closed, without an answer
    assert thread.is_alive()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
    stranger.sendall(b"j")                                   # a byte, and no more
    with socket.create_connection(("127.0.0.1", port)) as worker:
        worker.sendall(f"join 1 same {secret}\n".encode())
        worker.settimeout(5)
        assert worker.recv(10) == b"go\n"                    # although the others are connected
    wait_for(lambda: restarts)                               # that worker is lost: see it here
    for connection in silent:
        connection.close()


def test_the_port_listens_on_the_address_of_the_cluster_only(chief):
    _, port, _, _ = chief
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
