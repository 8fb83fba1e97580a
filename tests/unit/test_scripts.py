"""Scripts: bad input ends in one line, every Python script has --help."""
import json
import os
import re
import shutil
import subprocess
import types

import bench_export
import bench_scale
import pytest
from conftest import ROOT, python_script

SCRIPTS, RECORD = ROOT / "scripts", str(ROOT / "docs" / "results" / "length_copy")
# Files without a shebang are modules that scripts import.
PYTHON_SCRIPTS = sorted(path.name for path in SCRIPTS.glob("*.py")
                        if path.read_text().startswith("#!"))


def run(name, *arguments):
    if name.endswith(".py"):
        return python_script(name, *arguments)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    return subprocess.run(["bash", str(SCRIPTS / name), *arguments], capture_output=True,
                          text=True, timeout=120, env=environment, check=False)


@pytest.mark.parametrize(("command", "says"), [
    (["tf_config", "a,b", "7"], "tf_config: INDEX=7: a,b has the indices 0 to 1"),
    (["tf_config", "a,b", "one"], "INDEX=one: a,b has the indices 0 to 1"),
    (["tf_config", "a,b", "99999999999999999999"], "has the indices 0 to 1"),
    (["tf_config", "a,b,a:2222", "0"], "a,b,a:2222 names a:2222 twice"),
    (["tf_config", "", "0"], "HOSTS is empty"),
    (["tf_config", "a,,b", "0"], "'' is not HOST[:PORT]"),
    (["tf_config", 'a"b', "0"], "'a\"b' is not HOST[:PORT]"),
    (["tf_config", "a:port", "0"], "'a:port' is not HOST[:PORT]"),
    (["tf_config", "-oProxyCommand=x", "0"], "is not HOST[:PORT]"),
    (["train_on_hosts", "a;b", "true"], "'a;b' is not HOST[:PORT]"),
    (["train.sbatch", "--worker_gpu=8"], "train.sbatch: not in a Slurm job; submit it: sbatch"),
    (["expression_graphs.py", "/dev/null/x"], "Not a directory"),
    (["verdicts.py", "nowhere.csv", "nowhere"], "verdicts.py: [Errno 2] No such file or directory"),
    (["verdicts.py", __file__, RECORD], "verdicts.py: 'problem' is missing"),
    (["verdicts.py", str(ROOT / "docs/predictions/length_ruoss.csv"), RECORD],
     "length_ruoss.csv predicts nothing of length_copy_10"),
    (["plot_learning_rate.py", __file__, "--hparams_set=rpr_small"], "is not a PNG file"),
    (["small_vectors.py", "x", "--problem=toy_reverse_repeats_5"], "not a problem of words"),
])
def test_bad_input_ends_in_one_line(command, says):
    done = run(*command)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and len(lines) == 1 and says in lines[0], done.stderr
    assert not done.stdout


@pytest.mark.parametrize(("command", "says"), [
    (["tf_config"], "scripts/tf_config HOST[:PORT]"),
    (["train_on_hosts", "a"], "scripts/train_on_hosts HOST[:PORT]"),
    (["expression_graphs.py", "x", "0"], "pairs=0: at least 1"),
    (["expression_graphs.py", "x", "many"], "pairs: invalid int value"),
    (["bench_attention.py", "--lengths=0"], "--lengths: '0': must be"),
    (["bench_data.py", "datagen", "--folder=x", "--pairs=-1"], "--pairs: '-1': must be"),
    (["bench_step.py", "--words=0"], "--words: '0': must be"),
    (["calibrate_significance.py", "--trials=3"], "--trials: '3': must be"),
    (["bench_step.py", "--variants=torch", "--torch_python=nothing"],
     "--variants=torch: nothing has no PyTorch; see --torch_python"),
    (["gpu_check.py", "--schemes=tape"], "--schemes=tape: allowed are none, sinusoid"),
    (["bench_step.py", "--json=/no/x"], "--json: /no/x: there is no directory /no"),
    (["bench_attention.py", "--json=/"], "--json: /: is a directory"),
    (["bench_decoding.py", "--json=/nowhere/x"], "--json: /nowhere/x: there is no directory"),
    (["gpu_check.py", "--out=/nowhere/x"], "--out: /nowhere/x: there is no directory /nowhere"),
    (["bench_scale.py", "--sizes", "1"], "--sizes: '1': must be"),
    (["small_vectors.py", "x", "--dimension=0"], "--dimension: '0': must be"),
])
def test_a_wrong_use_is_explained(command, says):
    done = run(*command)
    assert done.returncode == 2 and says in done.stderr


def test_each_process_of_a_cluster_has_its_task():
    tasks = [json.loads(run("tf_config", "a,b:7,c", str(index)).stdout) for index in range(3)]
    assert all(task["cluster"] == {"chief": ["a:2222"], "worker": ["b:7", "c:2222"]}
               for task in tasks)
    assert [task["task"] for task in tasks] == [
        {"type": "chief", "index": 0}, {"type": "worker", "index": 0},
        {"type": "worker", "index": 1}]


@pytest.mark.parametrize("name", PYTHON_SCRIPTS)
def test_python_scripts_are_ordinary_programs_with_help(name):
    path = SCRIPTS / name
    assert path.read_text(encoding="utf-8").startswith("#!/usr/bin/env python3\n")
    assert os.access(path, os.X_OK)
    done = run(name, "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: ") and not done.stderr


def test_other_scripts_are_shell_scripts():
    for path in SCRIPTS.iterdir():
        if (path.is_file() and path.suffix not in (".py", ".png")
                and not path.name.startswith("Dockerfile")):
            assert path.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n"), path.name


@pytest.mark.parametrize("name", ["source", "target"])
def test_expressions_replace_no_file_and_leave_none_of_two(name, tmp_path):
    (tmp_path / name).write_text("mine")
    done = run("expression_graphs.py", str(tmp_path))
    assert done.returncode == 1 and "exists" in done.stderr
    assert (tmp_path / name).read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_equal_sizes_have_no_exponent(monkeypatch, capsys):
    monkeypatch.setattr(bench_scale, "measure", lambda row, size: (size / 2, 7))
    monkeypatch.setattr("sys.argv", ["bench_scale.py", "--rows=score", "--sizes", "4", "4", "8"])
    bench_scale.main()
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split("|")[2:6] for line in lines] == [
        [" 4 ", " 2.0 ", " 7 ", "  "], [" 4 ", " 2.0 ", " 7 ", "  "],
        [" 8 ", " 4.0 ", " 7 ", " 1.00 "]]


@pytest.mark.parametrize(("beam", "searched"), [(1, [1]), (4, [4, 1])])
def test_a_greedy_export_is_measured_once_and_has_bleu(beam, searched, tmp_path, monkeypatch,
                                                       capsys):
    (tmp_path / "text").write_text("a\n")
    found, beams = [types.SimpleNamespace(ids=[5])], []
    settings = {"beam_size": beam, "alpha": 0.6, "extra_length": 5}
    tokens = types.SimpleNamespace(encode=lambda line: [5], decode=lambda ids: "a")
    monkeypatch.setattr(bench_export, "Translator", lambda folder: types.SimpleNamespace(
        source=tokens, target=tokens, settings=settings))
    monkeypatch.setattr(bench_export.run_directory, "find_model", lambda run: (None, None))
    monkeypatch.setattr(bench_export.trained_model, "find_trained_model",
                        lambda request: types.SimpleNamespace(name="", hparams="", checkpoint=""))
    monkeypatch.setattr(bench_export, "ModelSession", lambda *values: beams.append(values[3]))
    monkeypatch.setattr(bench_export, "compare",
                        lambda *_: ([[5]], [found], [[1.0, 1.0], [1.0, 1.0]]))
    monkeypatch.setattr("sys.argv", ["bench_export.py", "run", "to", *[str(tmp_path / "text")] * 2])
    bench_export.main()
    printed = capsys.readouterr().out
    assert beams == searched and printed.count("original: BLEU") == 1
    assert printed.count("ties of 0") == 1


def test_verdicts_of_a_record(tmp_path):
    (tmp_path / "predictions.csv").write_text(
        "problem,arm,published,low,high,published_for\nlength_copy_10,sinusoid,5,3,4.5,\n"
        "length_copy_10,rotary,9,2,90,\nlength_copy_10,none,100,1,2,for 10 tokens\n"
        "length_copy_10,alibi,1,0,2,\nlength_sort_10,none,1,0,2,\n")
    done = run("verdicts.py", str(tmp_path / "predictions.csv"),
               str(ROOT / "docs/results/length_copy"))
    assert done.stdout.splitlines()[4:] == [
        "| sinusoid | 5 | 3–4.5 | 4.1 [1.6, 6.5] | 3 | 5.1 | right | inside |",
        "| rotary | 9 | 2–90 | 0.3 [-1.1, 1.8] | 3 | 1.0 | wrong | outside |",
        "| none | 100 | 1–2 | 0.0 [0.0, 0.0] | 3 | 0.0 | wrong | for 10 tokens |",
        "| alibi | 1 | 0–2 | not run | 0 |  |  |  |", ""]


@pytest.fixture
def set_up(tmp_path):
    """Runs scripts/setup in a small checkout, on a machine without a GPU, with this `uv`."""
    root, programs, log = tmp_path / "root", tmp_path / "bin", tmp_path / "log"
    (root / "scripts").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(SCRIPTS / "setup", root / "scripts")
    for name in ("setup.py", "requirements-cpu.lock", "requirements-gpu.lock"):
        (root / name).write_text(name)
    for name, content in (("uv", f'echo "$@" >>{log}'), ("nvidia-smi", "exit 9")):
        (programs / name).write_text(f"#!/usr/bin/env bash\n{content}\n")
        (programs / name).chmod(0o755)

    def call(*arguments, uv=""):
        log.write_text("")
        with open(programs / "uv", "a") as file:
            file.write(f"{uv}\n")
        done = subprocess.run(["bash", str(root / "scripts" / "setup"), *arguments], check=False,
                              capture_output=True, text=True, env=os.environ | {
                                  "PATH": f"{programs}:{os.environ['PATH']}"})
        locks = re.findall(r"-r requirements-(\w+)\.lock", log.read_text())
        return done.returncode, locks, (root / ".venv" / "mine").exists()
    call.mine = root / ".venv" / "mine"
    return call


def test_setup_keeps_the_device_and_makes_another_environment_for_another(set_up):
    assert set_up("cuda") == (2, [], False)
    assert set_up() == (0, ["cpu"], False)                   # no GPU was found
    set_up.mine.touch()
    assert set_up() == set_up("cpu") == (0, [], True)
    assert set_up("gpu") == (0, ["gpu"], False)
    set_up.mine.touch()
    assert set_up() == (0, [], True)
    (set_up.mine.parent.parent / "setup.py").write_text("changed")
    assert set_up() == (0, ["gpu"], True)
    assert set_up("cpu", uv="exit 7") == (7, [], False)      # stopped before anything was installed
    assert set_up(uv="exit 7") == (7, [], False)
    assert (set_up.mine.parent / "rpr.lock").read_text().startswith("cpu unfinished ")
