"""Devices of this machine: which there are, and leases that two pools never share."""
import os
import sys

import pytest

from rpr.experiments import config, local_pool
from rpr.utils.errors import UserError


def test_gpus_are_what_cuda_visible_devices_leaves(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert local_pool.this_machine() == ("GPU", ["2", "3"], 2)
    assert local_pool.this_machine(devices=1) == ("GPU", ["2", "3"], 1)
    assert local_pool.this_machine(cores=1).kind == "core"
    with pytest.raises(UserError, match="devices=3: there are 2"):
        local_pool.this_machine(devices=3)
    with pytest.raises(UserError, match="worker_gpu = 4: at most 2 here"):
        local_pool.this_machine().check(
            [config.Run("p", "h", 100, checkpoint_steps=50, worker_gpu=4)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,-1,1")      # CUDA stops there
    assert local_pool.this_machine().names == ["0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    cores = sorted(os.sched_getaffinity(0))
    assert local_pool.this_machine() == ("core", cores, len(cores))


@pytest.fixture
def show_devices(monkeypatch, tmp_path):
    """Processes of a pool print the devices that they may use, and wait."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho \"$CUDA_VISIBLE_DEVICES\"; exec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(local_pool, "PREFIX", f"\0{os.path.basename(tmp_path)}-")
    return tmp_path / "log"


def test_two_pools_never_lease_the_same_gpu(show_devices):
    machine = local_pool.Machine("GPU", ["0", "1", "2"], 3)
    with local_pool.Pool(machine) as one, local_pool.Pool(machine) as other:
        assert one.start("a", [], show_devices, gpus=2)
        assert not other.start("b", [], show_devices, gpus=2)
        assert other.start("c", [], show_devices, gpus=1)
        assert not one.start("d", [], show_devices, gpus=1)
        assert [job.names for p in (one, other) for job in p.running] == [["0", "1"], ["2"]]
    with local_pool.Pool(machine) as again:
        assert again.start("e", [], show_devices, gpus=3)


def test_a_lease_ends_with_the_process_that_was_killed(show_devices):
    machine = local_pool.Machine("GPU", ["0"], 1)
    with local_pool.Pool(machine) as one, local_pool.Pool(machine) as other:
        one.start("a", [], show_devices, gpus=1)
        one.running[0].process.kill()
        one.running[0].process.wait()
        assert one.ended() == [("a", "exit code -9")]
        assert other.start("b", [], show_devices, gpus=1)


def test_a_process_says_why_it_failed_although_it_can_write_no_log(monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport os\n"
                      'os.write(int(os.environ["RPR_REASON_PIPE"]), b"no room")\nos._exit(120)\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with local_pool.Pool(local_pool.Machine("GPU", ["0"], 1)) as workers:
        workers.start("a", [], tmp_path / "log", gpus=1)
        workers.running[0].process.wait()
        assert workers.ended() == [("a", "no room")]


def test_each_process_has_a_core_of_its_own(show_devices, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")   # --cores on a machine with a GPU
    cores = sorted(os.sched_getaffinity(0))
    machine = local_pool.Machine("core", cores, len(cores))
    with local_pool.Pool(machine) as workers:
        for core in machine.names:
            assert workers.start(core, [], show_devices, gpus=8)
            process = workers.running[-1].process.pid
            assert os.sched_getaffinity(process) == {core}
            with open(f"/proc/{process}/environ") as variables:
                assert "CUDA_VISIBLE_DEVICES=" in variables.read().split("\0")
        assert not workers.start("more", [], show_devices, gpus=1)


def test_pools_of_fewer_processes_than_devices_avoid_each_other(show_devices):
    for kind, names in (("core", sorted(os.sched_getaffinity(0))), ("GPU", ["0", "1"])):
        if len(names) < 2:
            continue
        machine = local_pool.Machine(kind, names, 1)
        with local_pool.Pool(machine) as one, local_pool.Pool(machine) as other, \
                local_pool.Pool(machine._replace(names=names[:2])) as third:
            for pool in (one, other):
                assert pool.start("a", [], show_devices, gpus=1)
                assert not pool.start("b", [], show_devices, gpus=1)
            assert [pool.running[0].names for pool in (one, other)] == [names[:1], names[1:2]]
            # Cores are shared rather than waited for.
            assert third.start("a", [], show_devices, gpus=1) == (kind == "core")


def test_another_user_cannot_take_a_leased_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(local_pool, "PREFIX", f"\0{os.path.basename(tmp_path)}-")
    if os.getuid():
        pytest.skip("only root can start a process of another user")

    def as_nobody():
        """What another user finds, in a fork."""
        found, answer = os.pipe()
        child = os.fork()
        if not child:
            os.setuid(65534)
            lease = local_pool.lease("GPU", "0")
            os.write(answer, f"{lease is not None} {local_pool.lease_holder('GPU', '0')}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(answer)
        with os.fdopen(found) as text:
            return text.read().split()
    lease = local_pool.lease("GPU", "0")
    assert as_nobody() == ["False", "process", str(os.getpid()), "of", "root"]
    lease.close()
    assert as_nobody()[0] == "True"
