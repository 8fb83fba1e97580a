import json
import re
import sys
import types

import bench_step
import pytest
from conftest import python_script


def bench(*argv):
    return python_script("bench_step.py", *argv)


def test_it_measures_steps_beside_t2t(tmp_path):
    done = bench("--shapes=tiny:6", "--words=24", "--variants=absolute,absolute_xla,t2t,cope",
                 "--seconds=0", "--starts=0", f"--json={tmp_path}/records")
    assert not done.returncode, done.stderr
    records = json.loads((tmp_path / "records").read_text())
    steps = {x["variant"]: x for x in records if x["what"] == "training step"}
    assert set(steps) == {"absolute", "absolute_xla", "t2t", "cope"}
    assert all(min(x["seconds"], x["cpu_seconds"]) > 0 and 0 < x["share_of_peak"] < 1
               for x in steps.values())
    # The products by hand, of a model of 2 + 2 layers, 24 places a side: projections, attention,
    # feed-forward and logits; and twice that for gradients.
    products = 24 * (2 * (4 + 8) * 32 ** 2 + 2 * 3 * 2 * 6 * 32 + 4 * 2 * 32 * 64 + 32 * 64)
    for name, x in steps.items():                    # cope has products of its own
        assert 0.9 * 3 * 2 * products < x["flop"] < (1.2 if name == "cope" else 1.02) * 6 * products
        assert x["model_flop"] == 3 * 2 * products


def test_steps_are_written_before_the_starts_which_may_fail(tmp_path, monkeypatch):
    step = {"what": "training step"}
    monkeypatch.setattr(bench_step, "_step", lambda *_: types.SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(bench_step, "_steps", lambda *_: [step])
    monkeypatch.setattr(bench_step, "_starts", lambda _: sys.exit("no training step came"))
    with pytest.raises(SystemExit):
        bench_step.main(["--shapes=tiny:6", f"--json={tmp_path}/records"])
    assert json.loads((tmp_path / "records").read_text()) == [step]


def test_it_measures_decoding_beside_t2t(tmp_path):
    done = python_script("bench_decoding.py", "--size=tiny", "--sentences=3", "--more=1",
                         f"--json={tmp_path}/records")
    assert not done.returncode, done.stderr
    records = {x["variant"]: x for x in json.loads((tmp_path / "records").read_text())}
    assert records["absolute"]["ratio_to_t2t"] > 0 and records["t2t"]["ratio_to_t2t"] == 1
    assert re.search(r"([1-9]\d*) of \1 hypotheses are the same", done.stdout), done.stdout


@pytest.mark.parametrize("flag", ["--shapes=large:3", "--shapes=base:2", "--variants=ours"])
def test_what_it_does_not_measure_is_refused(flag):
    done = bench(flag)
    assert done.returncode == 2 and flag in done.stderr.splitlines()[-1]
