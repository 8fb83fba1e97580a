"""Studies: expansion into runs, the pool, and a whole study through the real command line."""
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import pytest
from conftest import python_script, refused, rpr_command
from hypothesis import given
from hypothesis import strategies as st
from test_experiment import SETTINGS, STAGES, status

from rpr.experiments import config, gin_files, local_pool, run_directory, studies
from rpr.utils import locks
from rpr.utils.errors import UserError

BASE = config.Run("p", "h", 100, hparams="dropout=0.1,boundaries=[1,2],max_length=20",
                      checkpoint_steps=50)
ARMS = {"absolute": {"position": "sinusoid"}, "relative": {"position": "relative"}}


def test_a_grid_is_the_product_of_its_settings():
    names = list(config.Study("a=1,b=3", grid={"a": (1, 2), "b": [3]}, arms=ARMS).changes())
    assert names == ["a=1,b=3", "a=2,b=3", "absolute", "relative"]


def test_a_setting_is_a_field_of_the_run_or_a_hparam():
    run = studies.resolve(BASE, {"average_checkpoints": 2, "max_length": 30, "relative_keys": False,
                               "widths": [1, 2]}, seed=7)
    assert (run.average_checkpoints, run.seed, run.problem) == (2, 7, "p")
    assert run.hparams == ("boundaries=[1,2],dropout=0.1,max_length=30,relative_keys=False,"
                           "widths=[1,2]")


def test_an_arm_may_set_hparams_as_text_and_by_name():
    text = "position=alibi,dropout=0.1"
    assert studies.resolve(BASE, {"hparams": text}, 1).hparams == text
    assert studies.resolve(BASE, {"hparams": text, "num_heads": 4}, 1).hparams == (
        "dropout=0.1,num_heads=4,position=alibi")
    with pytest.raises(UserError, match="study: hparams of arm 'b': 'alibi' is not NAME=VALUE"):
        studies.study_runs(config.Study("a", arms={"a": {}, "b": {"hparams": "alibi"}}), BASE, "x")


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "average_checkpoints"]), st.integers(1, 2)),
       st.dictionaries(st.sampled_from(["a", "b", "c", "average_checkpoints"]), st.integers(1, 2)),
       st.integers(1, 2), st.integers(1, 2))
def test_two_runs_share_a_directory_if_and_only_if_they_are_the_same(one, other, seed1, seed2):
    runs = [studies.resolve(BASE, changes, seed)
            for changes, seed in ((one, seed1), (other, seed2))]
    assert (studies.run_id("x", runs[0]) == studies.run_id("x", runs[1])) == (
        ({"average_checkpoints": 1, **one}, seed1) == ({"average_checkpoints": 1, **other}, seed2))


def test_what_may_change_in_a_run_does_not_change_its_directory():
    other = dataclasses.replace(BASE, eval_frequency=5)
    assert studies.run_id("both a^K, a^V", BASE) == studies.run_id("both a^K, a^V", other)
    assert studies.run_id("both a^K, a^V", BASE).startswith("both-a-K-a-V-1-")


@pytest.mark.parametrize("wrong, words", [
    (dict(baseline="none"), ["study.baseline", "'none'", "absolute, relative"]),
    (dict(paper_bleu={"big": 1}), ["study.paper_bleu", "'big'"]),
    (dict(seeds=()), ["study.seeds"]),
    (dict(seeds=(1, 1)), ["study.seeds", "different"]),
    (dict(seeds=1), ["study.seeds = 1"]),
    (dict(grid={"a": 1}), ["study.grid", "'a'"]),
    (dict(arms={**ARMS, "x": 1}), ["study.arms", "'x'"]),
    (dict(arms={**ARMS, "x": {"seed": 1}}), ["'x'", "study.seeds"]),
    (dict(grid={"a": (1,)}, arms={**ARMS, "a=1": {}}), ["'a=1'", "already"]),
])
def test_a_wrong_study_is_refused_by_name(wrong, words):
    with pytest.raises(UserError) as error:
        config.Study(**{"baseline": "absolute", "arms": ARMS, **wrong})
    for word in words:
        assert word in str(error.value)


def test_arms_that_are_the_same_run_are_refused():
    described = config.Study("a", arms={"a": {"x": 1}, "b": {"x": 1}})
    with pytest.raises(UserError, match="'a' and 'b' are the same run"):
        studies.study_runs(described, BASE, "study")


def test_the_same_directory_takes_more_arms_but_no_other_run(tmp_path):
    few = studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path))
    more = studies.prepare(config.Study("absolute", arms={**ARMS, "none": {"position": "none"}},
                                     seeds=(1, 2), paper_bleu={"none": 12.5}), BASE, str(tmp_path))
    assert {m.directory for m in few} < {m.directory for m in more} and len(more) == 6
    written = json.loads((tmp_path / "study.json").read_text())
    assert written["baseline"] == "absolute"
    assert [(arm["name"], arm["paper_bleu"], [run["seed"] for run in arm["runs"]])
            for arm in written["arms"]] == [("absolute", None, [1, 2]), ("relative", None, [1, 2]),
                                            ("none", 12.5, [1, 2])]
    for arm in written["arms"]:
        for run in arm["runs"]:
            there = gin_files.load_run(str(tmp_path / run["directory"] / "config.gin"))
            assert there.seed == run["seed"] and f"position={arm['changes']['position']}" in (
                there.hparams)
    (tmp_path / few[0].directory / "status.json").write_text("{}")        # it has begun
    with pytest.raises(UserError, match=r"alpha = 0\.5 \(there: 0\.6\)"):
        studies.prepare(config.Study("absolute", arms=ARMS), dataclasses.replace(BASE, alpha=0.5),
                      str(tmp_path))


def test_gpus_are_what_cuda_visible_devices_leaves(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert local_pool.this_machine() == ("GPU", ["2", "3"])
    assert local_pool.this_machine(devices=1) == ("GPU", ["2"])
    assert local_pool.this_machine(cores=1).kind == "core"
    with pytest.raises(UserError, match="devices=3: there are 2"):
        local_pool.this_machine(devices=3)
    with pytest.raises(UserError, match="worker_gpu = 4: at most 2 here"):
        local_pool.this_machine().check([dataclasses.replace(BASE, worker_gpu=4)])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert local_pool.this_machine() == ("core", sorted(os.sched_getaffinity(0)))


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
    machine = local_pool.Machine("GPU", ["0", "1", "2"])
    with local_pool.Pool(machine) as one, local_pool.Pool(machine) as other:
        assert one.start("a", [], show_devices, gpus=2)
        assert not other.start("b", [], show_devices, gpus=2)
        assert other.start("c", [], show_devices, gpus=1)
        assert not one.start("d", [], show_devices, gpus=1)
        assert [job.names for p in (one, other) for job in p.running] == [["0", "1"], ["2"]]
    with local_pool.Pool(machine) as again:
        assert again.start("e", [], show_devices, gpus=3)


def test_a_lease_ends_with_the_process_that_was_killed(show_devices):
    machine = local_pool.Machine("GPU", ["0"])
    with local_pool.Pool(machine) as one, local_pool.Pool(machine) as other:
        one.start("a", [], show_devices, gpus=1)
        one.running[0].process.kill()
        one.running[0].process.wait()
        assert one.ended() == [("a", -9)]
        assert other.start("b", [], show_devices, gpus=1)


def test_each_process_has_a_core_of_its_own(show_devices, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")   # --cores on a machine with a GPU
    machine = local_pool.Machine("core", sorted(os.sched_getaffinity(0)))
    with local_pool.Pool(machine) as workers:
        for core in machine.names:
            assert workers.start(core, [], show_devices, gpus=8)
            process = workers.running[-1].process.pid
            assert os.sched_getaffinity(process) == {core}
            with open(f"/proc/{process}/environ") as variables:
                assert "CUDA_VISIBLE_DEVICES=" in variables.read().split("\0")
        assert not workers.start("more", [], show_devices, gpus=1)


TINY = {**SETTINGS, "train_steps": 20, "checkpoint_steps": 10, "eval_frequency": 1000}


def write_study(path, arms, baseline="relative", **changes):
    path.write_text("".join(f"run.{name} = {value!r}\n"
                            for name, value in {**TINY, **changes}.items())
                    + f"study.baseline = {baseline!r}\nstudy.arms = {arms!r}\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """A study with two arms that fail."""
    folder = tmp_path_factory.mktemp("study")
    gin = write_study(folder / "tiny.gin", {
        "bad": {"optimizer_multistep_accumulate_steps": 2}, "relative": {},
        "nan": {"learning_rate_constant": 1e12}})
    return gin, folder / "out", rpr_command("study", gin, f"--study_dir={folder}/out", check=False)


def runs(study_dir):
    return {arm["name"]: study_dir / run["directory"] for arm in
            json.loads((study_dir / "study.json").read_text())["arms"] for run in arm["runs"]}


def test_a_smoke_test_goes_through_all_stages_and_measures_the_hours(text, tmp_path):
    gin = write_study(tmp_path / "x.gin", {"relative": {}, "greedy": {"beam_size": 1}},
                      train_steps=36_000)
    plan = ["study", gin, f"--study_dir={tmp_path}/s", "--dry_run"]
    assert "the hours are unknown" in rpr_command(*plan).stderr
    assert os.listdir(tmp_path) == ["x.gin"]
    done = rpr_command("study", gin, f"--study_dir={tmp_path}/s", "--smoke")
    assert "s-smoke: done; all stages work" in done.stderr.replace("\n", "")
    relative, greedy = runs(tmp_path / "s-smoke").values()
    assert [name for name in status(greedy)] == STAGES
    assert os.path.samefile(*(run / "model" / "model.ckpt-20.index" for run in (relative, greedy)))
    assert len((greedy / "hypotheses.test.txt").read_text().splitlines()) == 8
    shown = rpr_command(*plan).stderr
    assert "2 runs, 1 trainings to do" in shown and "about 0." in shown


def test_a_failed_run_does_not_stop_the_others(finished):
    _, study_dir, done = finished
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "2 of 3 runs are not done: bad-1-" in last
    assert [(name, entry["state"], entry["attempts"]) for name, entry in
            status(runs(study_dir)["relative"]).items()] == [
                (name, "done", int(name != "datagen")) for name in STAGES]


def test_a_failed_run_says_why(finished):
    _, study_dir, done = finished
    bad, nan = (status(runs(study_dir)[name])["train"] for name in ("bad", "nan"))
    assert (bad["state"], bad["code"]) == (nan["state"], nan["code"]) == ("failed", 1)
    assert "accumulate_steps=2" in bad["reason"] and bad["reason"] in done.stderr
    assert "the loss is NaN at step" in nan["reason"]
    assert nan["reason"].endswith(f"{runs(study_dir)['nan']}/model/model.ckpt-0")


def test_the_status_shows_every_run(finished):
    _, study_dir, _ = finished
    shown = rpr_command("study", "--status", study_dir).stderr
    rows = {line.split()[0].split("-")[0]: line for line in shown.splitlines()[1:4]}
    assert "done" in rows["relative"] and "20/20" in rows["relative"]
    assert "train failed" in rows["bad"] and "train failed" in rows["nan"]
    assert "1 of 3 runs done, 2 failed" in shown and "the loss is NaN" in shown


def test_what_is_finished_or_failed_is_not_repeated(finished):
    gin, study_dir, _ = finished
    before = {name: status(run) for name, run in runs(study_dir).items()}
    done = rpr_command("study", gin, f"--study_dir={study_dir}", "--set", "run.bleu_frequency=10",
                       check=False)
    assert done.returncode == 1 and "begins" not in done.stderr
    assert "run.bleu_frequency came too late for these finished runs" in done.stderr
    assert {name: status(run) for name, run in runs(study_dir).items()} == before
    nan = runs(study_dir)["nan"] / ".lock"
    with open(nan) as lock:                           # as if another pool had taken that one
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [sys.executable, "-m", "rpr.cli", "study", gin, f"--study_dir={study_dir}",
             "--retry_failed"], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        try:
            deadline = time.time() + 280
            while (status(runs(study_dir)["bad"])["train"]["attempts"] < 2
                   or status(runs(study_dir)["bad"])["train"]["state"] == "running"):
                assert process.poll() is None and time.time() < deadline
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()
    assert status(runs(study_dir)["nan"]) == before["nan"], "it was run beside another pool"


def test_a_study_goes_on_from_copies_without_models_and_test_text(finished, tmp_path):
    gin, study_dir, _ = finished
    copy, record = tmp_path / "copy", tmp_path / "record"
    rpr_command("report", study_dir, "--skip_model_analysis", "--sample_translations=0")
    python_script("make_record.py", study_dir, record, "--without_text")
    with tarfile.open(record / "runs.tar.xz") as tar:
        assert not [name for name in tar.getnames() if "source" in name or "reference" in name]
        tar.extractall(copy, filter="data")
    for run in (study_dir / "runs").iterdir():        # failed ones, which a record does not hold
        if not (copy / "runs" / run.name).exists():
            shutil.copytree(run, copy / "runs" / run.name)
    before = {name: status(run) for name, run in runs(study_dir).items()}
    done = rpr_command("study", gin, f"--study_dir={copy}", check=False)
    assert done.returncode == 1 and "begins" not in done.stderr
    assert {name: status(run) for name, run in runs(copy).items()} == before
    relative = str(runs(copy)["relative"].relative_to(copy))
    for name in ("source.test.txt", "reference.test.txt"):
        assert (copy / relative / name).read_bytes() == (study_dir / relative / name).read_bytes()
    rpr_command("report", copy, "--skip_model_analysis")
    assert "relative" in (copy / "results.csv").read_text()
    assert (copy / "results.csv").read_text() == (record / "results.csv").read_text()


def test_copied_runs_stay_whole_if_the_data_of_a_new_study_is_refused(finished, tmp_path,
                                                                       monkeypatch):
    gin, study_dir, _ = finished
    copied = runs(study_dir)["relative"].relative_to(study_dir)
    folder = tmp_path / "new" / copied
    shutil.copytree(study_dir / copied, folder)
    (folder / "data.json").unlink()                   # else the corpus is compared first
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setenv("RPR_TEXT_SOURCE", str(gin))   # fewer lines than the other side
    done = rpr_command("study", gin, f"--study_dir={tmp_path}/new", check=False)
    assert done.returncode == 1 and "lines" in done.stderr
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_that_another_process_holds_is_left_to_it(finished):
    _, study_dir, _ = finished
    where = run_directory.RunDirectory(str(runs(study_dir)["relative"]), "")
    assert run_directory.state(where) == "done"
    with open(where.file(".lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run_directory.state(where) == "running"


def test_a_setting_that_does_not_exist_is_refused_before_anything_is_written(tmp_path):
    gin = write_study(tmp_path / "x.gin", {"relative": {"max_relative_positon": 3}})
    line = refused("study", gin, f"--study_dir={tmp_path}/study")
    assert "no hparam 'max_relative_positon'; nearest: max_relative_position" in line
    assert not (tmp_path / "study").exists()


def test_a_study_that_is_refused_for_its_data_leaves_no_directory(text, tmp_path, monkeypatch):
    lines = (text.folder / "train.en").read_text(encoding="utf-8").splitlines()
    (tmp_path / "train.en").write_text("\n".join(["", *lines[1:]]) + "\n", encoding="utf-8")
    monkeypatch.setenv("RPR_TEXT_SOURCE", str(tmp_path / "train.en"))
    gin = write_study(tmp_path / "x.gin", {"relative": {}})
    done = rpr_command("study", gin, f"--study_dir={tmp_path}/study", check=False)
    assert done.returncode == 1 and "train.en" in done.stderr and "empty" in done.stderr
    assert not (tmp_path / "study").exists()


def test_the_status_shows_data_generation(tmp_path):
    runs = studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path))
    assert studies.data_line(runs, str(tmp_path)) == ""
    problem = BASE.problem
    (tmp_path / "datagen.json").write_text(json.dumps(
        {"problem": problem, "state": "running", "started": time.time() - 120, "reason": ""}))
    with locks.lock(str(tmp_path / ".datagen.lock")):
        assert studies.data_line(runs, str(tmp_path)) == f"data of {problem}: begun 2 min ago"
    # By Ctrl-C or a kill.
    assert studies.data_line(runs, str(tmp_path)) == f"data of {problem}: stopped"
    # Then by `rpr run` for one of the runs.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{problem}.datagen.json").write_text("{}")
    assert studies.data_line(runs, str(tmp_path)) == ""
    # Data of other text is there and stays; generating it again failed.
    (tmp_path / "datagen.json").write_text(json.dumps(
        {"problem": problem, "state": "failed", "started": time.time(), "reason": "other text"}))
    assert studies.data_line(runs, str(tmp_path)) == f"data of {problem}: failed: other text"


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
            lease = local_pool.lease_gpu("0")
            os.write(answer, f"{lease is not None} {local_pool.lease_holder('0')}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(answer)
        with os.fdopen(found) as text:
            return text.read().split()
    lease = local_pool.lease_gpu("0")
    assert as_nobody() == ["False", "process", str(os.getpid()), "of", "root"]
    lease.close()
    assert as_nobody()[0] == "True"


def test_a_study_and_a_run_are_not_mistaken_for_each_other(finished, tmp_path):
    gin, _, _ = finished
    assert "rpr study" in refused("run", gin, f"--run_dir={tmp_path}/run")
    single = tmp_path / "run.gin"
    single.write_text("".join(f"run.{name} = {value!r}\n" for name, value in TINY.items()))
    assert "rpr run" in refused("study", single, f"--study_dir={tmp_path}/study")
    assert not (tmp_path / "study").exists() and not (tmp_path / "run").exists()


def test_runs_that_a_study_leaves_out_are_named(tmp_path):
    described = config.Study("absolute", arms=ARMS, seeds=(1, 2))
    both = {study_run.directory for study_run in studies.prepare(described, BASE, str(tmp_path))}
    assert studies.runs_outside(str(tmp_path), both) == []
    fewer = studies.prepare(config.Study("absolute", arms=ARMS), BASE, str(tmp_path))
    directories = {study_run.directory for study_run in fewer}
    outside = studies.runs_outside(str(tmp_path), directories)
    assert set(outside) == both - directories and len(outside) == len(ARMS)


def test_an_arm_sets_neither_the_seed_nor_the_code(tmp_path):
    for setting in ("seed", "usr_dir"):
        with pytest.raises(UserError, match=f"arm 'a' sets (the )?{setting}"):
            config.Study("a", arms={"a": {setting: str(tmp_path)}})


def test_text_in_a_hparam_keeps_its_spaces():
    changes = {"pretrained_source_embeddings": "/data/my vectors/en.vec", "kernel_sizes": [3, 5]}
    run = studies.resolve(dataclasses.replace(BASE, hparams=""), changes, 1)
    assert run.hparams == (
        "kernel_sizes=[3,5],pretrained_source_embeddings=/data/my vectors/en.vec")
