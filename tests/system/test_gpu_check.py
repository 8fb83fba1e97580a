"""scripts/gpu_check.py: a small version on the CPU; a part that fails stops no other."""
import json
import os
import time
import types

import gpu_check
import numpy as np
from conftest import ROOT, server

from rpr.utils import metrics_log


def test_all_parts_run_on_the_cpu(tmp_path):
    done = server().run(["--device=cpu", f"--out={tmp_path}/check.json"],
                        script=ROOT / "scripts" / "gpu_check.py", seconds=800)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "check.json").read_text())
    parts = record["parts"]
    assert record["device"] == "cpu" and list(parts) == [
        name for name in gpu_check.PARTS if name not in gpu_check.GPU_ONLY]
    exact = parts["exactness"]["records"]["relative"]
    assert max(exact["float32"]) < 1e-5 and 0 < max(exact[gpu_check.ROUNDED]) < 1e-4
    assert 1e-4 < exact["bfloat16"][0] < 0.5
    assert parts["training"]["records"][-1]["step"] == 10
    assert 1e5 < parts["memory"]["records"]["tiny:6"] < 1e8
    lines = done.stdout.splitlines()
    for part in parts.values():
        assert part["rows"]
        for what, value in part["rows"]:
            assert f"| {what} | {value} |" in lines


def test_the_time_of_a_compiled_training_has_no_data_generation_in_it(tmp_path, monkeypatch):
    clock = [0.0]

    def spawn(command, **_):
        clock[0] += 100 if command[0] == "datagen" or "--generate_data" in command else 7
        (tmp_path / "data").mkdir(exist_ok=True)
        for flag in command:
            if flag.startswith("--output_dir="):
                metrics_log.append(f"{flag.partition('=')[2]}/metrics.jsonl", "train", step=10,
                                   steps_per_second=2.0, time=clock[0])
        return types.SimpleNamespace(returncode=0, communicate=lambda: (None, ""))

    monkeypatch.setattr(gpu_check.processes, "spawn", spawn)
    monkeypatch.setattr(gpu_check, "time", types.SimpleNamespace(time=lambda: clock[0]))
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    for name in ("cold", "warm"):
        (tmp_path / name).mkdir()
    found = gpu_check.compiled(types.SimpleNamespace(device="cpu", folder=str(tmp_path)))
    assert [value for _, value in found.rows] == ["2.00 steps/s, step 10 after 7 s"] * 2


def explode(options):
    raise ValueError("no such device\nand more")


def hang(options):
    time.sleep(60)


def crash(options):
    os._exit(3)


def test_a_part_that_fails_is_recorded_and_the_others_go_on(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu_check, "PARTS", {
        "explode": (explode, 20), "hang": (hang, 0.5), "crash": (crash, 20),
        "versions": (gpu_check.versions, 20)})
    out = tmp_path / "check.json"
    parts = "--parts=explode,hang,crash,versions"
    assert gpu_check.main(["--device=cpu", f"--out={out}", parts]) == 1
    parts = json.loads(out.read_text())["parts"]
    assert parts["explode"]["error"] == "ValueError: no such device\nand more"
    assert parts["hang"]["error"] == "took longer than 0.5 seconds" and parts["hang"]["seconds"] < 9
    assert parts["crash"]["error"] == "ended with exit code 3"
    assert "error" not in parts["versions"]
    assert "| explode | failed: ValueError: no such device |" in capfd.readouterr().out


def test_a_part_of_all_schemes_records_those_that_it_did_in_its_time(tmp_path, monkeypatch):
    def outputs(options, device, scheme, precision, change=0.0):
        time.sleep(0.05)
        return np.zeros([1, 1, 1]), np.float64(1)

    monkeypatch.setattr(gpu_check, "_outputs", outputs)
    monkeypatch.setattr(gpu_check, "PARTS", {"exactness": (gpu_check.exactness, 2)})
    out, names = tmp_path / "check.json", list(gpu_check.positions.SCHEMES)
    assert not gpu_check.main(["--device=cpu", f"--out={out}", f"--schemes={','.join(names)}"])
    part = json.loads(out.read_text())["parts"]["exactness"]
    done = list(part["records"])
    assert part["seconds"] < 2 and 1 <= len(done) < len(names) and done == names[:len(done)]
    assert part["rows"][-1] == ["exactness", f"{len(done)} of {len(names)} schemes"]


def test_the_parts_take_at_most_63_minutes_and_the_first_ones_10():
    seconds = [seconds for _, seconds in gpu_check.PARTS.values()]
    assert sum(seconds) <= 63 * 60 and sum(seconds[:3]) <= 10 * 60
