"""Whole studies through the real command line."""
import fcntl
import json
import os
import re
import shutil
import signal
import tarfile
import time

import make_record
import pytest
from conftest import ROOT, python_script, refused, rpr_command, started
from report_runs import damage
from test_experiment import SETTINGS, STAGES, nothing_outlives_it, status

from rpr.experiments import gin_files, studies
from rpr.report.study_reader import read_study
from rpr.utils import metrics_log

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
        "bad": {"optimizer": "multistep_adam"}, "relative": {},
        "nan": {"learning_rate_constant": 1e12}})
    text.give(folder / "out")
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
    text.give(tmp_path / "s")
    done = rpr_command("study", gin, f"--study_dir={tmp_path}/s", "--smoke")
    assert "s-smoke: done; all stages work" in done.stderr.replace("\n", "")
    relative, greedy = runs(tmp_path / "s-smoke").values()
    assert [name for name in status(greedy)] == STAGES
    assert os.path.samefile(*(run / "model" / "model.ckpt-20.index" for run in (relative, greedy)))
    assert len((greedy / "hypotheses.test.txt").read_text().splitlines()) == 8
    shown = rpr_command(*plan).stderr
    assert "2 runs, 1 training to do" in shown and "about 0." in shown


def test_a_tuned_study_resumes_with_more_settings(text, tmp_path):
    """The results of the first two are written by hand; the third is trained, and is the best."""
    gin = write_study(tmp_path / "x.gin", {"relative": {}}, beam_size=1, average_checkpoints=1)
    study_dir, rates = tmp_path / "s", "study.tune={{'learning_rate_constant': {}}}"
    text.give(study_dir)
    overrides = [rates.format("(1e-6, 1e-5)")]
    for member, loss in zip(studies.study_runs(
            *gin_files.load_study(str(gin), overrides), str(study_dir)), (9.0, 8.0), strict=True):
        finish(member, *texts_of(text))
        metrics_log.append(member.run_dir.metrics, "eval", step=20, loss=loss)

    def files():
        return {path: path.read_bytes() for path in study_dir.glob("runs/*/*") if path.is_file()}

    plan = ["study", gin, f"--study_dir={study_dir}", "--set"]
    assert "begins" not in rpr_command(*plan, *overrides).stderr
    arm, = json.loads((study_dir / "results.json").read_text())["arms"]
    assert arm["settings"] == {"learning_rate_constant": 1e-5}
    assert [run["tuned"] for run in arm["others"]] == [{"learning_rate_constant": 1e-6}]
    assert (arm["runs"][0]["loss"], arm["others"][0]["loss"]) == (8.0, 9.0)
    before = files()
    done = rpr_command(*plan, rates.format("(1e-6, 1e-5, 0.1)"))
    assert done.stderr.count(": begins") == 1
    assert {path: content for path, content in files().items() if path in before} == before
    arm, = json.loads((study_dir / "results.json").read_text())["arms"]
    assert arm["settings"] == {"learning_rate_constant": 0.1} and 0 < arm["runs"][0]["loss"] < 8
    assert len(arm["runs"]) == 1 and len(arm["others"]) == 2


def test_a_study_with_looks_goes_on_with_what_is_undecided(text, tmp_path):
    """Killed in the run after the first look; the runs' results are written by hand."""
    gin = write_study(tmp_path / "x.gin", {"relative": {}, "greedy": {"beam_size": 1},
                                           "bad": {"hparams": "position=none"}})
    overrides = ["study.seeds=(1, 2, 3)", "study.looks=(2, 3)"]
    plan = ["study", gin, f"--study_dir={tmp_path}/s", f"--set={overrides[0]}",
            f"--set={overrides[1]}"]
    planned = studies.study_runs(*gin_files.load_study(str(gin), overrides), str(tmp_path / "s"))
    text.give(tmp_path / "s")
    for member in planned[:7]:
        finish(member, *texts_of(text))
    process, deadline = started(*plan), time.time() + 280
    try:
        while not re.search(r"greedy-3-\S*: begins\n", process.read("err")):
            assert process.poll() is None and time.time() < deadline, process.read("err")
            time.sleep(0.05)
    finally:
        stop(process)
    assert "greedy open after 2 seeds, bad decided after 2 seeds" in (
        process.read("err").splitlines()[0])
    nothing_outlives_it()
    finish(planned[7], *texts_of(text))
    for path in planned[0].run_dir.test_files()[:2]:  # copied without its text
        os.unlink(path)
    done = rpr_command(*plan)
    assert "greedy open after 3 seeds, bad decided after 2 seeds" in done.stderr
    assert "begins" not in done.stderr
    assert "8 of 8 runs done" in rpr_command("study", "--status", tmp_path / "s").stderr
    results = json.loads((tmp_path / "s" / "results.json").read_text())
    assert [(len(arm["runs"]), arm["answer"], arm["looked"]) for arm in results["arms"]] == [
        (3, "", 0), (3, "open", 3), (2, "yes", 2)]


def texts_of(text):
    """Source and reference."""
    return [(text.folder / f"test.{language}").read_text() for language in ("en", "de")]


def stop(process):
    """kill -9, unless it has ended."""
    if process.poll() is None:
        process.kill()


def finish(member, source, reference):
    """The files of a finished run; those of the arm "bad" have no right word."""
    os.makedirs(member.run_dir.path, exist_ok=True)
    lines = damage(reference.splitlines(), 0.1, len(member.name) + member.run.seed)
    hypotheses = "".join(f"{'x' if member.arm == 'bad' else line}\n" for line in lines)
    for path, content in zip((member.run_dir.config, member.run_dir.scores,
                              *member.run_dir.test_files("test")),
                             (gin_files.as_gin(member.run), '{"step": 20}', source, reference,
                              hypotheses), strict=True):
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)


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
    assert "accumulate_steps=0" in bad["reason"] and bad["reason"] in done.stderr
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
        process = started("study", gin, f"--study_dir={study_dir}", "--retry_failed")
        try:
            deadline = time.time() + 280
            while (status(runs(study_dir)["bad"])["train"]["attempts"] < 2
                   or status(runs(study_dir)["bad"])["train"]["state"] == "running"):
                assert process.poll() is None and time.time() < deadline
                time.sleep(0.1)
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            stop(process)
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


def test_a_benchmark_trains_the_new_scheme_alone(finished, tmp_path):
    gin, study_dir, _ = finished
    record, page = tmp_path / "runs.tar.xz", tmp_path / "b" / "report.html"
    make_record.pack_runs(study_dir, read_study(str(study_dir)), record, without_text=False)
    done = rpr_command("benchmark", "log_distance", "--set=log_distance_c=0.5", f"--recipe={gin}",
                       f"--record={record}", f"--study_dir={page.parent}",
                       f"--t2t_usr_dir={ROOT}/docs/examples/log_distance")
    assert "not recorded with all of the seeds [1]: bad, nan" in done.stderr.replace("\n", " ")
    assert re.search(r"decoder *cached = whole *pass", done.stdout)
    new, old = runs(page.parent).values()
    assert status(old) == status(runs(study_dir)["relative"])
    assert [name for name in status(new)] == STAGES
    assert "Checks of log_distance,log_distance_c=0.5" in page.read_text()
    assert "cached = whole" in page.read_text()
    assert "2 of 2 runs" in rpr_command("study", "--status", page.parent).stderr


def test_a_benchmark_needs_its_record(tmp_path):
    (tmp_path / "x.tar.xz").write_text("")
    for record, problem in (("there", "no such record$"), ("x.tar.xz", "not an archive of runs$")):
        message = refused("benchmark", "alibi", f"--record={tmp_path}/{record}",
                          f"--study_dir={tmp_path}/b")
        assert f"--record={tmp_path}/{record}" in message and re.search(problem, message)
    assert os.listdir(tmp_path) == ["x.tar.xz"]


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
