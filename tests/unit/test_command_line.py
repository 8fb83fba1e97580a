"""How the command line names what checks refuse, and what --help shows."""
import json
import os
import re
import signal
import subprocess
import sys
import tarfile

import pytest
from conftest import refused, rpr_command

from rpr import cli
from rpr.cli import models, report, run, schemes, score, study, track
from rpr.cli.arguments import Parser
from rpr.conformance import checks
from rpr.experiments import config, gin_files, provenance, studies
from rpr.experiments.run_directory import RunDirectory
from rpr.utils.errors import InvalidPath, InvalidValue, UserError


@pytest.mark.parametrize("error, command, argv, line", [
    (InvalidValue("n", 0, "must be at least 1"), "rpr average", ["--n=0"],
     "--n=0: must be at least 1"),
    (InvalidValue("data_dir", None), "rpr decode", [], "--data_dir is missing"),
    (InvalidValue("model", "x", "no such model"), "rpr run", ["a.gin"],
     "run.model = x: no such model"),
    (InvalidValue("devices", 9, "there are 2"), "rpr study", ["a.gin", "--devices=9"],
     "--devices=9: there are 2"),
    (InvalidPath("in", "it is empty"), "rpr decode", ["--input=in"], "--input=in: it is empty"),
    (InvalidPath("in", "it is empty"), "t2t-decoder", ["--decode_from_file", "in"],
     "--decode_from_file=in: it is empty"),
    (InvalidPath("in", "it is empty"), "rpr decode", ["--wait", "run", "x"], "in: it is empty"),
    (InvalidPath(".", "it is empty"), "rpr report", [".", "--skip_model_analysis"],
     ".: it is empty"),
    (UserError("x is damaged"), "rpr run", ["x"], "x is damaged"),
])
def test_a_name_or_path_is_spelled_as_its_user_does(error, command, argv, line, capsys):
    def refuse(_):
        raise error
    assert cli.run_command(command, refuse, argv) == 1
    assert capsys.readouterr().err == f"{command}: {line}\n"


def test_the_python_interface_shows_names_without_flags():
    assert str(InvalidValue("beam_size", 0, "must be at least 1")) == (
        "beam_size=0: must be at least 1")


def test_an_unknown_command_names_the_nearest(capsys):
    assert cli.main(["stdy"]) == 1
    assert "rpr: no command 'stdy'; nearest: study" in capsys.readouterr().err
    assert cli.main(["xyzzy"]) == 1
    assert "there are run, study" in capsys.readouterr().err


def test_the_version_names_the_commit_if_git_knows_it(capsys, monkeypatch):
    assert cli.main(["--version"]) == 0
    assert re.match(r"rpr \d+\.\d+\.\d+.*, Python 3\.\d+\.\d+, TensorFlow 2\.\d+",
                    capsys.readouterr().out)
    monkeypatch.setattr(provenance, "_git_state", lambda: {"commit": 40 * "f", "clean": False})
    cli.main(["--version"])
    assert f" (commit {12 * 'f'}, with changes), Python" in capsys.readouterr().out


def test_an_unknown_flag_names_the_nearest():
    parser = Parser(prog="x")
    parser.add_argument("--beam_size")
    with pytest.raises(UserError, match="--beam=3; nearest: --beam_size"):
        parser.parse_args(["--beam=3"])


@pytest.mark.parametrize("parser", [
    report.main_parser, schemes.benchmark_parser, schemes.check_scheme_parser, score.judge_parser])
def test_the_description_of_a_command_is_wrapped(parser):
    assert max(map(len, parser().format_help().splitlines())) <= 100


@pytest.mark.parametrize("command, unread", [
    ("train", "eval_timeout_mins"), ("decode", "gpu_automatic_mixed_precision"),
    ("evaluate", "gpu_automatic_mixed_precision"), ("bleu", "source"), ("datagen", "task_id")])
def test_help_has_what_the_command_reads_and_the_default_directory_of_downloads(command, unread):
    text = rpr_command(command, "--help", env={**os.environ, "XDG_CACHE_HOME": "/cache"}).stdout
    assert f"--{unread}=" not in text and "t2t_datagen" not in text
    assert ("--tmp_dir=/cache/rpr\n" in text) == (command in ("train", "datagen"))


def test_a_list_of_problems_leaves_out_what_is_excluded():
    done = rpr_command("datagen", "--problem=length_copy_10,toy_reverse_repeats_rev,",
                       "--exclude_problems=copy", "--only_list")
    assert done.stdout == "toy_reverse_repeats\n"


def test_help_shows_flags_that_work_and_their_nearest():
    text = rpr_command("train", "--help").stdout
    for name in ("tpu_job_name", "use_tpu", "ps_gpu", "decode_from_file", "cloud_mlengine"):
        assert f"--{name}" not in text
    assert "--train_steps" in text and "--optionally_use_dist_strat" in text
    assert "nearest: --train_steps" in refused("train", "--train_step=3")


def test_an_unknown_scheme_names_the_nearest_and_the_flag_for_own_ones():
    line = refused("check-scheme", "relativ")
    assert "no scheme is called 'relativ'; nearest: relative" in line
    assert line.endswith("; a scheme of your own needs --t2t_usr_dir=DIR")


@pytest.mark.parametrize("argv, says", [
    (["list", "schems"], "KIND: 'schems': must be one of models, hparams, problems, schemes"),
    (["perplexity", "run"], "--input"), (["check-scheme"], "scheme"),
    (["benchmark", "alibi", "--cores=0"], "--cores: '0'")])
def test_a_wrong_argument_is_refused_without_tensorflow(argv, says, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "rpr.cli.launcher", raising=False)
    assert cli.main(argv) == 1
    assert f"rpr {argv[0]}: " in (line := capsys.readouterr().err) and says in line
    assert "rpr.cli.launcher" not in sys.modules


@pytest.mark.parametrize("command, flag, says", [
    ("check-scheme", "--set=position=rotary",
     "--set=position=rotary: position must be 'alibi' here"),
    ("benchmark", "--set=alibi_factor=2,decoder_position=none",
     "decoder_position=none: decoder_position must be '' here"),
    ("benchmark", "--cores=9999", "--cores=9999: there are ")])
def test_a_wrong_flag_is_refused_before_the_checks(command, flag, says, tmp_path):
    assert says in refused(command, "alibi", flag, cwd=tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("parser, argv, name", [
    (schemes.benchmark_parser, ["alibi"], "study_dir"),
    (schemes.benchmark_parser, ["alibi"], "record"),
    (schemes.benchmark_parser, ["alibi"], "recipe"),
    (models.export_parser, ["--format=safetensors"], "to")])
def test_a_path_may_begin_with_a_tilde(parser, argv, name):
    args = parser().parse_args([*argv, f"--{name}=~/x"])
    assert getattr(args, name) == os.path.expanduser("~/x")


@pytest.mark.parametrize("scheme, given, name", [
    ("relative", ["relative_keys=False", "relative_values=0"], "none"),
    ("relative", ["relative_keys=False,relative_values=False"], "none"),
    ("relative", ["relative_keys=False"], "relative,relative_keys=False"),
    ("none", [], "position=none"),                    # "none" is `relative` without its terms there
    ("alibi", [], "alibi")])
def test_a_benchmark_finds_a_scheme_among_the_recorded_arms(scheme, given, name):
    args = schemes.benchmark_parser().parse_args(
        [scheme, *(f"--set={pair}" for pair in given)])
    recipe = gin_files.load_study(args.recipe)
    recorded = {schemes._digest(run.name) for run in studies.study_runs(*recipe, "")}
    study, run = schemes._study(args, schemes._overrides(args), {"encoder", "decoder"}, recorded)
    assert study.baseline == name
    assert study.arms[name]["position"] == scheme
    assert set(study.arms) == {name, *recipe[0].arms} and studies.study_runs(study, run, "")


def test_a_benchmark_writes_nothing_into_the_study_of_another_recipe(tmp_path, monkeypatch):
    recipe, other = map(gin_files.resolve, ("recipe:small_schemes", "recipe:length_copy"))
    record, study_dir = tmp_path / "runs.tar.xz", tmp_path / "b"
    with tarfile.open(record, "w:xz") as tar:
        for study_run in studies.study_runs(*gin_files.load_study(recipe), ""):
            tar.add(__file__, f"runs/{study_run.name}/status.json")
    begun = study_dir / "runs" / "x-1-000000"
    begun.mkdir(parents=True)
    (begun / "status.json").write_text("{}")
    there = gin_files.load_study(other)
    (study_dir / "study.gin").write_text("".join(map(gin_files.as_gin, there)))
    before = sorted(study_dir.rglob("*"))
    monkeypatch.setattr(schemes, "_show_checks", lambda _: [
        checks.Result("x", side) for side in ("encoder", "decoder")])
    args = schemes.benchmark_parser().parse_args(
        ["fire", f"--record={record}", f"--study_dir={study_dir}"])
    with pytest.raises(UserError, match="holds another run: problem = "):
        schemes.benchmark(args)
    assert sorted(study_dir.rglob("*")) == before


@pytest.mark.parametrize("argv, directory", [
    (["alibi"], "runs/benchmark-alibi"),
    (["alibi", "--recipe=recipe:small_table1"], "runs/benchmark-small_table1-alibi")])
def test_the_directory_of_a_benchmark_names_another_recipe(argv, directory, monkeypatch):
    def refuse(path):
        raise UserError(path)
    monkeypatch.setattr(schemes.files, "refuse_unusable", refuse)
    with pytest.raises(UserError, match=f"^{directory}$"):
        schemes.benchmark(schemes.benchmark_parser().parse_args(argv))


@pytest.mark.parametrize("end", [b"", bytes(20_000)])
def test_a_damaged_record_of_a_benchmark_is_refused(tmp_path, end):
    (tmp_path / "metrics.jsonl").write_text(os.urandom(40_000).hex())
    record = tmp_path / "runs.tar.xz"
    with tarfile.open(record, "w:xz") as tar:
        tar.add(tmp_path / "metrics.jsonl", "runs/a-1-000000/metrics.jsonl")
    assert schemes._recorded(str(record)) == {"000000": "a-1-000000"}
    record.write_bytes(record.read_bytes()[:30_000] + end)
    with pytest.raises(InvalidPath, match="not an archive of runs"):
        schemes._recorded(str(record))


def killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_check_of_runs_that_is_killed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_check", killed)        # as the kernel does when memory is short
    described = config.Run("p", "h", 100, checkpoint_steps=50)
    with pytest.raises(UserError, match=r"the process that checks runs was killed \(out of memory"):
        run.check_new_runs([(described, RunDirectory(str(tmp_path)))])


def test_a_negative_hparam_is_not_a_flag(tmp_path):
    line = refused("train", f"--output_dir={tmp_path}/m", f"--data_dir={tmp_path}",
                   "--model=rpr_transformer", "--problem=translate_text_files",
                   "--hparams_set=rpr_tiny", "--hp_dropout", "-0.5")
    assert "dropout=-0.5" in line and "no such flag" not in line


def test_a_tracker_gets_the_scores_in_every_metric_once(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setitem(track._TRACKERS, "mine", lambda *_: track._Tracked(
        "id", lambda values, step: sent.append((values, step)), lambda: None))
    run_dir = RunDirectory(str(tmp_path))
    (tmp_path / "config.gin").write_text(
        "run.problem = 'p'\nrun.hparams_set = 'h'\nrun.train_steps = 1000\n")
    for scores in ({"accuracy": {"score": 90.0}, "edit_distance": {"score": 5.0}},
                   {"accuracy": {"score": 90.0}, "edit_distance": {"score": 4.0}}):
        (tmp_path / "scores.json").write_text(json.dumps({"step": 1000, **scores}))
        assert [track._send(run_dir, "mine", None, "p") for _ in range(2)] == [1, 0]
    assert sent == [({"test/accuracy": 90.0, "test/edit_distance": 5.0}, 1000),
                    ({"test/accuracy": 90.0, "test/edit_distance": 4.0}, 1000)]


def test_a_tracker_gets_the_loss_of_older_evaluations_that_reports_show(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setitem(track._TRACKERS, "mine", lambda *_: track._Tracked(
        "id", lambda values, step: sent.append(values), lambda: None))
    (tmp_path / "config.gin").write_text(
        "run.problem = 'p'\nrun.hparams_set = 'h'\nrun.train_steps = 1000\n")
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(
        {"event": event, "step": 1000, "loss": 1.5, **more}) + "\n" for event, more in (
            ("train", {}), ("eval", {"neg_log_perplexity": -1.75}), ("eval", {}))))
    track._send(RunDirectory(str(tmp_path)), "mine", None, "p")
    assert sent == [{"train/loss": 1.5}, {"eval/loss": 1.75, "eval/neg_log_perplexity": -1.75},
                    {"eval/loss": 1.5}]


@pytest.mark.parametrize("path", ["runs/a", "runs/a/", "./runs/../runs/a", "~/runs/a"])
def test_a_run_takes_the_training_of_a_directory_however_it_is_written(tmp_path, monkeypatch, path):
    taken = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(run, "check_new_runs", lambda _: None)
    monkeypatch.setattr(run, "complete_run", lambda *given: taken.append(given[-1]))
    (tmp_path / "x.gin").write_text(
        "run.problem = 'p'\nrun.hparams_set = 'h'\nrun.train_steps = 1000\n")
    run.main(["x.gin"])
    run.main(["x.gin", f"--training_of={path}"])
    assert taken == [None, str(tmp_path / "runs" / "a")]


@pytest.mark.parametrize("command, argv, flag", [
    (run.main, ["x.gin"], "--training_of=nowhere"), (study.main, [], "--status=nowhere")])
def test_a_directory_without_a_run_or_study_is_named_with_its_flag(
        tmp_path, monkeypatch, capsys, command, argv, flag):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "check_new_runs", lambda _: None)
    (tmp_path / "x.gin").write_text(
        "run.problem = 'p'\nrun.hparams_set = 'h'\nrun.train_steps = 1000\n")
    assert cli.run_command("rpr x", command, [*argv, flag]) == 1
    name = flag.partition("=")[0]
    assert re.match(f"rpr x: {name}=.*nowhere: contains no (run|study)",
                    capsys.readouterr().err)
    assert os.listdir(tmp_path) == ["x.gin"]


@pytest.mark.parametrize("line, words", [("rpr stu", "study"), ("rpr study --sm", "--smoke")])
def test_a_shell_completes_commands_and_flags(tmp_path, line, words):
    pytest.importorskip("argcomplete")
    subprocess.run([sys.executable, "-m", "rpr.cli"], check=True, env={
        **os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer")})
    assert (tmp_path / "answer").read_text().strip() == words
