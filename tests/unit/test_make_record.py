"""What leaves the machine: a record of a study (scripts/make_record.py), metrics for trackers."""
import json
import sys
import tarfile

import make_record
import pytest
from conftest import python_script, rpr_command
from report_runs import write_clipping_study, write_run

from rpr.cli import track
from rpr.utils import metrics_log
from rpr.utils.errors import UserError


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    study = tmp_path_factory.mktemp("runs") / "clipping"
    write_clipping_study(study)
    for run in study.glob("runs/*"):
        (run / "environment.json").write_text(json.dumps(
            {"command": ["/opt/rpr/cli/__main__.py", f"--run_dir={run}"], "cpu": "A/B"}))
        (run / "model" / "model.ckpt-1000.index").touch()
    return study


def archived(record):
    with tarfile.open(record / "runs.tar.xz") as tar:
        return {member.name: tar.extractfile(member).read().decode() for member in tar}


def test_a_record_has_the_report_and_the_finished_runs(study, tmp_path):
    record = tmp_path / "results" / "clipping"
    rpr_command("report", study, "--skip_model_analysis")
    python_script("make_record.py", study, record)
    files = archived(record)
    first = json.loads((study / "study.json").read_text())["arms"][0]["runs"][0]["directory"]
    for name in ("source.test.txt", "reference.test.txt", "hypotheses.test.txt", "config.gin"):
        assert files[f"{first}/{name}"] == (study / first / name).read_text()
    assert json.loads(files[f"{first}/environment.json"]) == {
        "command": ["__main__.py", f"--run_dir={first.split('/')[-1]}"], "cpu": "A/B"}
    done = {str(path.parent.relative_to(study)) for path in study.glob("runs/*/scores.json")}
    assert {"/".join(name.split("/")[:2]) for name in files} == done | {"study.json"}
    with tarfile.open(record / "runs.tar.xz") as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    rpr_command("report", tmp_path / "unpacked", "--skip_model_analysis")
    tables = [(folder / "results.csv").read_text().splitlines()
              for folder in (study, tmp_path / "unpacked")]
    assert tables[0][:-1] == tables[1][:-1]           # the last arm is not finished
    assert not [name for name in files if "ckpt" in name]
    for name in ("results.json", "results.csv", "results.tex", "plots/curves.png",
                 "plots/ranking.png", "plots/bleu_by_length.png"):
        assert (record / name).read_bytes() == (study / name).read_bytes()
    before = (record / "runs.tar.xz").read_bytes()
    python_script("make_record.py", study, record)
    assert (record / "runs.tar.xz").read_bytes() == before
    assert [path.name for path in record.parent.iterdir()] == ["clipping"]
    rpr_command("report", record)


def test_a_record_is_of_the_study_alone(study, tmp_path):
    other = write_run(tmp_path, "other")
    rpr_command("report", study, f"--against={other}", "--skip_model_analysis")
    done = python_script("make_record.py", study, tmp_path / "record")
    assert done.returncode == 1 and "run from outside the study" in done.stderr
    assert "without --against" in done.stderr and not (tmp_path / "record").exists()


def test_paths_of_the_machine_stay_out(study, tmp_path):
    gin, config = study / "study.gin", study / "runs" / "k16-1" / "config.gin"
    data, before = config.with_name("data.json"), (gin.read_text(), config.read_text())
    gin.write_text(before[0] + "run.text_source = '/home/ann/a project/train.en'\n")
    config.write_text(before[1] + "run.usr_dir = '/home/somebody/code'\n")
    data.write_text(json.dumps({"problem": "p", "sources": {"train source": {
        "path": "/home/ann/a project/train.en", "lines": 3, "sha256": "0"}}}))
    rpr_command("report", study, "--skip_model_analysis")
    python_script("make_record.py", study, tmp_path / "record")
    gin.write_text(before[0])
    config.write_text(before[1])
    data.unlink()
    assert archived(tmp_path / "record")["runs/k16-1/config.gin"] == (
        before[1] + "run.usr_dir = 'code'\n")
    report = (tmp_path / "record" / "results.json").read_text()
    assert "/home" not in report
    assert json.loads(report)["corpus"]["train source"]["path"] == "train.en"


def test_paths_in_the_reason_of_a_failure_are_cut():
    note = '"note": "train: /home/ann/runs/x: 1/2 of it, '
    assert make_record.cut_paths(note + 'see /a/b.txt"\n "source": "and /or/ so"') == (
        '"note": "train: x: 1/2 of it, see b.txt"\n "source": "and /or/ so"')


def test_paths_in_the_comments_of_the_table_are_cut():
    text = "% not done: a: failed (/home/ann/x: no space)\n/a/b\n"
    assert make_record.cut_paths_of_notes(text) == text.replace("/home/ann/", "")


def test_a_record_is_a_directory(study, tmp_path):
    (tmp_path / "record").write_text("notes\n")
    done = python_script("make_record.py", study, tmp_path / "record")
    assert done.returncode == 1 and "record is a file: name a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_text_that_must_not_be_passed_on_stays_out(study, tmp_path):
    rpr_command("report", study, "--skip_model_analysis")
    done = python_script("make_record.py", study, tmp_path / "clipping", "--without_text")
    assert done.returncode == 1 and "--sample_translations=0" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_study_without_a_report_is_refused(tmp_path):
    done = python_script("make_record.py", tmp_path, tmp_path / "record")
    assert done.returncode == 1 and "has no results.json: rpr report" in done.stderr
    assert not list(tmp_path.iterdir())


def test_only_a_record_is_replaced(study, tmp_path):
    rpr_command("report", study, "--skip_model_analysis")
    (tmp_path / "results" / "other").mkdir(parents=True)
    before = sorted(study.rglob("*"))
    for target, problem in ((tmp_path / "results", "results is not a record, since it has other"),
                            (study, "clipping is not a record, since it has "),
                            (tmp_path / "results" / "..", ".. is not a record, since it has resu")):
        done = python_script("make_record.py", study, target)
        assert done.returncode == 1 and problem in done.stderr
    assert sorted(study.rglob("*")) == before and (tmp_path / "results" / "other").exists()
    python_script("make_record.py", study, tmp_path / "results" / "other")
    assert (tmp_path / "results" / "other" / "results.json").exists()


class FakeAim:
    """Aim's public API, as far as it is used."""
    runs = []

    class Run:
        def __init__(self, run_hash, experiment):
            self.hash, self.experiment, self.tracked = run_hash or "a1", experiment, []
            FakeAim.runs.append(self)

        def __setitem__(self, name, value):
            self.settings = value

        def track(self, value, name, step):
            self.tracked.append((name, step, value))

        def close(self):
            self.tracked.append("closed")


def test_a_tracker_gets_each_record_once(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "aim", FakeAim)
    run_dir = next(path.parent for path in sorted(study.glob("runs/*/scores.json")))
    scores = json.loads((run_dir / "scores.json").read_text())
    (run_dir / "scores.json").write_text(json.dumps(scores | {"bleu": {"score": 12.5}}))
    track.main([str(run_dir), "--to=aim", "--project=p"])
    run, = FakeAim.runs
    losses = [(f"{event['event']}/loss", event["step"], event["loss"])
              for event in metrics_log.events(str(run_dir / "metrics.jsonl")) if "loss" in event]
    assert losses and set(losses) < set(run.tracked) and run.tracked[-1] == "closed"
    assert ("test/bleu", scores["step"], 12.5) in run.tracked
    assert run.experiment == "p" and run.settings["problem"]
    track.main([str(run_dir), "--to=aim", "--project=p"])
    assert len(FakeAim.runs) == 1
    metrics_log.append(str(run_dir / "metrics.jsonl"), "train", step=9999, loss=1.5)
    track.main([str(run_dir), "--to=aim", "--project=p"])
    assert FakeAim.runs[1].hash == "a1"
    assert FakeAim.runs[1].tracked == [("train/loss", 9999, 1.5), "closed"]


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_trackers_work_offline(study, monkeypatch, tmp_path, tracker):
    pytest.importorskip(tracker)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    track.main([str(study), f"--to={tracker}"])
    assert len(list(tmp_path.rglob("*.wandb" if tracker == "wandb" else "loss"))) > 1


def test_a_tracker_that_is_not_installed_is_named(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"to=wandb: needs wandb: pip install -e '\.\[wandb\]'"):
        track.main([str(study), "--to=wandb"])
