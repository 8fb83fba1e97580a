"""A run through the real command line, whole and killed with kill -9 in every stage."""
import hashlib
import json
import os
import re
import shutil
import time

import pytest
from conftest import refused, rpr_command, server, started

import rpr
from rpr.utils import metrics_log
from rpr.utils.errors import UserError

STAGES = ["datagen", "train", "average", "decode", "score"]
AT_40 = ["decode step 40", "score step 40"]           # run.bleu_frequency of `undisturbed`
SETTINGS = {"problem": "translate_text_files", "hparams_set": "rpr_tiny",
            "hparams": "num_hidden_layers=1", "train_steps": 60, "checkpoint_steps": 20,
            "average_checkpoints": 2, "beam_size": 2, "eval_steps": 1}


def write_gin(path, **changes):
    path.write_text("".join(f"run.{name} = {value!r}\n"
                            for name, value in {**SETTINGS, **changes}.items()), encoding="utf-8")
    return path


def status(run_dir):
    return json.loads((run_dir / "status.json").read_text())


def checkpoints(run_dir):
    return sorted(path.name for folder in ("model", "average") for path in
                  (run_dir / folder).iterdir() if path.name.endswith(".index"))


@pytest.fixture(scope="module")
def undisturbed(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    gin = write_gin(folder / "run.gin", bleu_frequency=40)
    done = rpr_command("run", gin, f"--run_dir={folder}/relative")
    return gin, folder / "relative", done


def test_a_run_leaves_what_explains_it(undisturbed):
    gin, run_dir, done = undisturbed
    assert {"config.gin", "status.json", "metrics.jsonl", "scores.json", "source.test.txt",
            "reference.test.txt", "hypotheses.test.txt"} <= set(os.listdir(run_dir))
    assert [(name, entry["state"], entry["attempts"]) for name, entry in status(run_dir).items()
            ] == [(name, "done", 1) for name in STAGES + AT_40]
    assert not list(run_dir.glob("model/*.meta")), "a killed training would lack some"
    scores = json.loads((run_dir / "scores.json").read_text())
    assert (scores["step"], scores["lines"]) == (60, 12) and 0 <= scores["exact"] <= 100
    assert "version:" in scores["bleu"]["signature"]
    events = metrics_log.read(str(run_dir / "metrics.jsonl"))
    assert [e["step"] for e in events if e["event"] == "train"] == [10, 20, 30, 40, 50, 60]
    assert [e["step"] for e in events if e["event"] == "eval"][-1] == 60
    assert scores["bleu"]["signature"] in done.stdout


def test_a_finished_run_is_not_repeated(undisturbed):
    gin, run_dir, _ = undisturbed

    def times():
        return {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")
                if path.is_file() and path.name != ".lock"}
    before = times()
    done = rpr_command("run", gin, f"--run_dir={run_dir}")
    assert done.stderr.count("is done") == len(STAGES + AT_40)
    assert times() == before


def test_more_steps_give_the_same_bits_as_if_asked_for_at_once(undisturbed, tmp_path):
    """In the directory of the run, and in one that shares its training."""
    gin, run_dir, _ = undisturbed
    shutil.copytree(run_dir.parent, tmp_path / "runs")
    longer, at_once = tmp_path / "runs" / "relative", tmp_path / "at_once"
    done = rpr_command("run", gin, f"--run_dir={longer}", "--set", "run.train_steps=80", "--set",
                       "run.bleu_frequency=20")
    assert "decode step 40 is done" in done.stderr and status(longer)["train"]["attempts"] == 1
    assert json.loads((longer / "scores.json").read_text())["step"] == 80
    assert checkpoints(longer) == ["model.ckpt-60.index", "model.ckpt-80.index",
                                   "model.ckpt-80.index"]
    done = rpr_command(
        "train", "--problem=translate_text_files", f"--data_dir={tmp_path}/runs/data",
        "--model=rpr_transformer", "--hparams_set=rpr_tiny", f"--output_dir={at_once}",
        "--hparams=num_hidden_layers=1", "--train_steps=80", "--local_eval_frequency=20",
        "--schedule=train")
    assert "checkpoints are 100 steps apart (--iterations_per_loop), not 20" in done.stderr
    assert (metrics_log.read_checksums(str(at_once))[80]
            == metrics_log.read_checksums(str(longer / "model"))[80])
    losses = [[event["loss"] for event in metrics_log.events(str(path / "metrics.jsonl"))
               if event["event"] == "train"] for path in (at_once, longer)]
    assert losses[0] == losses[1] and len(losses[0]) == 8

    shared = tmp_path / "runs" / "greedy"
    rpr_command("run", gin, f"--run_dir={shared}", f"--training_of={longer}", "--set",
                "run.train_steps=80", "--set", "run.beam_size=1", "--set",
                "run.average_checkpoints=1")
    weights = "model/model.ckpt-80.data-00001-of-00002"
    assert os.path.samefile(shared / weights, longer / weights)
    assert len(list((shared / "model").glob("*.index"))) == 1 and not (shared / "average").exists()
    assert [event["step"] for event in metrics_log.events(str(shared / "metrics.jsonl"))
            if event["event"] == "start"] == [0, 60]
    line = refused("run", gin, f"--run_dir={tmp_path}/other", f"--training_of={longer}",
                   f"--data_dir={tmp_path}/runs/data", "--set", "run.seed=2")
    assert "is another training: seed = 2 (there: 1)" in line
    assert not (tmp_path / "other").exists()


def test_a_run_from_python(undisturbed, capsys):
    gin, run_dir, _ = undisturbed
    scores = rpr.run(str(gin), str(run_dir), settings={"run.bleu_frequency": 40})
    assert scores == json.loads((run_dir / "scores.json").read_text())
    assert "score step 40 is done" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"holds another run: seed = 2 \(there: 1\)"):
        rpr.run(str(gin), str(run_dir), settings={"run.seed": 2})
    with pytest.raises(UserError, match="nowhere: no such file"):
        rpr.run(str(gin), str(run_dir), settings={
            name: run_dir / "nowhere" for name in ("run.text_source", "run.text_target")})
    with pytest.raises(UserError, match="it describes a single run: use rpr run"):
        rpr.study(str(gin), str(run_dir), dry_run=True)
    curves = rpr.curves(str(run_dir.parent))
    assert {len(column) for column in curves.values()} == {8}
    is_dev = curves["curve"] == "development loss"
    assert list(curves["step"][is_dev]) == [60] and 0 < curves["value"][is_dev][0] < 20
    assert set(curves["arm"]) == {"relative"} and curves["seed"].dtype.kind == "i"


def test_the_corpus_is_recorded_and_compared_after_the_end(undisturbed, text, tmp_path,
                                                           monkeypatch):
    gin, run_dir, _ = undisturbed
    sources = json.loads((run_dir / "data.json").read_text())["sources"]
    path = text.folder / "train.en"
    assert sources["train source"] == {
        "path": str(path), "lines": 300,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert len(sources) == 6
    other = tmp_path / "other.en"
    other.write_text(path.read_text(encoding="utf-8") + "One more.\n", encoding="utf-8")
    monkeypatch.setenv("RPR_TEXT_SOURCE", str(other))
    line = refused("run", gin, f"--run_dir={run_dir}")
    assert f"was made from other text: train source {other}" in line


def test_a_changed_configuration_is_refused_with_the_difference(undisturbed):
    gin, run_dir, _ = undisturbed
    line = refused("run", gin, f"--run_dir={run_dir}", "--set", "run.alpha=0.7")
    assert "alpha = 0.7 (there: 0.6)" in line
    done = rpr_command("run", gin, f"--run_dir={run_dir}", "--set", "run.eval_frequency=5", "--set",
                       "run.bleu_frequency=20")
    assert done.stderr.count("is done") == len(STAGES + AT_40)
    assert "no development BLEU at 2 of 3 steps" in done.stderr


def test_the_development_set_is_scored_with_the_weights_of_a_checkpoint(undisturbed, text,
                                                                        tmp_path):
    """The checkpoint of that step is still there: it gives the same translations."""
    _, run_dir, _ = undisturbed
    assert not (run_dir / "model" / "kept").exists()
    source, reference = (run_dir.parent / "data" / f"translate_text_files.dev.{kind}.txt"
                         for kind in ("source", "reference"))
    assert source.read_text() == (text.folder / "dev.en").read_text()
    rpr_command("decode", f"--output_dir={run_dir}/model", f"--data_dir={run_dir.parent}/data",
                "--problem=translate_text_files", "--model=rpr_transformer",
                "--hparams_set=rpr_tiny", f"--checkpoint_path={run_dir}/model/model.ckpt-40",
                "--decode_hparams=beam_size=2,alpha=0.6,batch_size=32", f"--input={source}",
                f"--output={tmp_path}/again.txt", f"--metrics_file={tmp_path}/metrics.jsonl")
    hypotheses = run_dir / "dev" / "hypotheses.40.txt"
    assert (tmp_path / "again.txt").read_bytes() == hypotheses.read_bytes()
    done = rpr_command("score", hypotheses, f"--reference={reference}", "--metrics=bleu", "--json")
    scores = json.loads((run_dir / "dev" / "scores.40.json").read_text())
    assert json.loads(done.stdout)["bleu"] == scores["bleu"] and scores["lines"] == 20


def test_a_further_test_set_is_decoded_scored_and_reported(undisturbed, tmp_path, monkeypatch):
    gin, run_dir, _ = undisturbed
    monkeypatch.setenv("RPR_TEST_SETS", str(tmp_path / "test_sets"))
    runs = tmp_path / "runs"
    shutil.copytree(run_dir.parent, runs)
    rpr_command("test-set", "add", "tiny", run_dir / "source.test.txt",
                run_dir / "reference.test.txt", "--language_pair=en-de")
    done = rpr_command("run", gin, f"--run_dir={runs / 'relative'}", "--set",
                       "run.test_sets=('tiny:en-de',)")
    # Nothing else is decoded again; the weights at step 40 are gone.
    assert "decode is done" in done.stderr and "decode step 40 is done" in done.stderr
    first, second = (json.loads((runs / "relative" / name).read_text())
                     for name in ("scores.json", "scores.tiny_en-de.json"))
    assert first["bleu"]["score"] == second["bleu"]["score"] and first["step"] == 60
    assert "score tiny:en-de" in first["seconds"]
    rpr_command("report", runs, "--baseline=relative", "--test_set=tiny:en-de",
                "--tokenize=moses_lowercase", "--language_pair=en-de")
    record = json.loads((runs / "reports" / "tiny_en-de-moses_lowercase" / "results.json"
                         ).read_text())
    assert record["title"] == "runs, tiny:en-de, moses_lowercase" and record["sentences"] == 12
    assert "test:tiny" in record["signatures"]["BLEU"]
    line = refused("report", runs, "--baseline=relative", "--test_set=other")
    assert "--test_set=other" in line and "tiny:en-de" in line
    rpr_command("test-set", "add", "twin", run_dir / "source.test.txt",
                run_dir / "reference.test.txt", "--language_pair=en-de")
    done = rpr_command("run", gin, f"--run_dir={runs / 'relative'}", "--set",
                       "run.test_sets=('twin:en-de', 'tiny:en-de')")
    assert "decode tiny:en-de is done" in done.stderr, "one before it changed its input"


def start_and_kill(gin, run_dir, until):
    """Starts the run, kills it with kill -9 as soon as `until(status)`; returns what it ran."""
    process = started("run", gin, f"--run_dir={run_dir}")
    deadline = time.time() + 120
    while not ((run_dir / "status.json").exists() and until(status(run_dir))):
        assert process.poll() is None and time.time() < deadline
        time.sleep(0.01)
    ran = {name for _, parent, name in server().processes() if parent == process.pid}
    process.kill()
    nothing_outlives_it()
    return ran


def nothing_outlives_it():
    deadline = time.time() + 10
    while server().processes():
        assert time.time() < deadline, "a process outlived what was killed"
        time.sleep(0.1)


def running(stage):
    return lambda entries: entries.get(stage, {}).get("state") == "running"


def test_killed_in_every_stage_it_ends_as_if_undisturbed(undisturbed, tmp_path):
    """In training twice: between checkpoints, and in the evaluation of the last one."""
    gin, whole, _ = undisturbed
    run_dir = tmp_path / "relative"

    def evaluations():
        return [event["step"] for event in metrics_log.read(str(run_dir / "metrics.jsonl"))
                if event["event"] == "eval"]

    def trained_to(step):
        # TensorFlow writes the state, what a training goes on from, and then removes the oldest of
        # three checkpoints. A kill between the two leaves that one there.
        state = run_dir / "model" / "checkpoint"
        oldest = run_dir / "model" / f"model.ckpt-{step - 40}.index"
        return lambda entries: (running("train")(entries) and state.exists()
                                and f"ckpt-{step}" in state.read_text() and not oldest.exists())

    start_and_kill(gin, run_dir, running("datagen"))
    for step in (20, 60):
        assert start_and_kill(gin, run_dir, trained_to(step)) == {"rpr train"}
    assert 60 not in evaluations()
    for stage in STAGES[2:] + AT_40:
        start_and_kill(gin, run_dir, running(stage))
        assert status(run_dir)["train"]["attempts"] == 3, "it trained again"
    rpr_command("run", gin, f"--run_dir={run_dir}")

    for name, entry in status(run_dir).items():
        assert entry["state"] == "done" and entry["attempts"] <= (3 if name == "train" else 2), name
    assert evaluations()[-1] == 60 and evaluations().count(60) == 1
    assert checkpoints(run_dir) == checkpoints(whole)
    events = metrics_log.read(str(run_dir / "metrics.jsonl"))
    starts = [e["step"] for e in events if e["event"] == "start"]
    assert starts[0] == 0 and min(starts[1:]) >= 20, "training began again"
    steps = [e["step"] for e in events if e["event"] == "train"]
    assert steps == sorted(set(steps)) and steps[-1] == 60
    assert set(os.listdir(run_dir)) == set(os.listdir(whole))
    for name in ("hypotheses.test.txt", "reference.test.txt", "dev/hypotheses.40.txt"):
        assert (run_dir / name).read_bytes() == (whole / name).read_bytes()
    scores = [json.loads((path / "scores.json").read_text()) for path in (run_dir, whole)]
    assert scores[0]["bleu"] == scores[1]["bleu"]
    for name in os.listdir(whole.parent / "data"):
        if name.endswith((".log", ".lock")):
            continue
        if (whole.parent / "data" / name).is_file():
            assert (tmp_path / "data" / name).read_bytes() == (
                whole.parent / "data" / name).read_bytes(), name


def test_one_process_at_a_time(undisturbed):
    import fcntl
    gin, run_dir, _ = undisturbed
    with open(run_dir / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another process" in refused("run", gin, f"--run_dir={run_dir}")


def test_hparams_that_are_refused_leave_no_directory(text, tmp_path):
    gin = write_gin(tmp_path / "run.gin", hparams="max_relative_position=-1")
    line = refused("run", gin, f"--run_dir={tmp_path}/run")
    assert "max_relative_position=-1" in line and os.listdir(tmp_path) == ["run.gin"]
    (tmp_path / "run").mkdir()
    earlier = write_gin(tmp_path / "run" / "config.gin", hparams="num_heads=2").read_text()
    assert "num_head=2" in refused("run", gin, f"--run_dir={tmp_path}/run", "--set",
                                   'run.hparams="num_head=2"')
    assert os.listdir(tmp_path / "run") == ["config.gin"]
    assert (tmp_path / "run" / "config.gin").read_text() == earlier


def test_the_report_compares_the_runs_below_a_directory(undisturbed, tmp_path):
    _, whole, _ = undisturbed
    study = tmp_path / "study"
    for name in ("absolute", "relative"):
        shutil.copytree(whole, study / name)
    (study / "data").symlink_to(whole.parent / "data")
    worse = (study / "absolute" / "reference.test.txt").read_text(encoding="utf-8").splitlines()
    (study / "relative" / "hypotheses.test.txt").write_text(
        "".join(line + "\n" for line in [worse[0] + " x", *worse[1:]]), encoding="utf-8")
    done = rpr_command("report", study, "--baseline=absolute", "--plot_model=relative",
                       env={**os.environ, "COLUMNS": "120"}, forked=False)
    assert "BLEU" in done.stdout and "nrefs:1|case" in done.stdout
    record = json.loads((study / "results.json").read_text())
    one, other = record["arms"]
    assert (one["name"], other["name"], record["length_unit"]) == (
        "absolute", "relative", "sub-words")
    assert [step for step, _ in one["runs"][0]["dev_bleu"]] == [40]
    assert not one["differences"] and 99.999 > other["scores"]["bleu"]["mean"] > 80
    difference = other["differences"]["bleu"]
    assert difference["low"] > 0 and difference["p"] is None        # one seed
    assert (study / "results.md").read_text().count("\n| ") == 3
    drawn = {path.stem for path in (study / "plots").glob("*.png")}
    assert {"curves", "attention_relative", "norms_relative", "similarity_keys_relative"} <= drawn
    assert "one of absolute, relative" in refused("report", study, "--baseline=rel")
    (study / "relative" / "reference.test.txt").write_text("other\n" * 12)
    assert "other text" in refused("report", study, "--baseline=absolute", "--skip_model_analysis")


def test_a_run_records_its_environment_and_its_training_can_be_verified(undisturbed):
    _, run_dir, _ = undisturbed
    environment = json.loads((run_dir / "environment.json").read_text())
    assert environment["command"][1:2] == ["run"] and environment["tensorflow"]
    done = rpr_command("verify", run_dir)
    assert re.search(r"equal bit for bit: 2 losses, and \d+ tensors at steps 0, 20",
                     " ".join(done.stderr.split()))
