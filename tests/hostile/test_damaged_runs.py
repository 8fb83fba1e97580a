"""A finished study in which one file was damaged in one way: one line, or the same result.

The environment variable RPR_DAMAGED_RUNS is the number of examples: 15 by default.
"""
import contextlib
import io
import json
import os
import re
import shutil
import signal

import finished_runs
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rpr import api, cli
from rpr.report import html_page

EXAMPLES = int(os.environ.get("RPR_DAMAGED_RUNS", "15"))
SECONDS = 60                                          # after which a reader counts as hanging
SECRET = "the secret of another file"
# Numbers, texts and other values of JSON and gin after which a file goes on.
VALUE = re.compile(rb"""(?<=[:=\[] )('[^'\n]*'|"[^"\n]*"|-?\d[\d.e+-]*|true|null|\{\}|\[\])""")
HUGE = ["1" + "0" * 400, "1e999", "-1", "9223372036854775808", "NaN", "-Infinity", "1e308", "0",
        "0.5", "2" * 5000]
OTHER_TYPES = ["[]", "{}", '"x"', "null", "true", "1.5", '""', '[1, "a"]', '{"a": 1}', "None",
               '"a\\u0000b"', '"\\ud800"', '"\\u001b[31m"', "[" * 900 + "]" * 900, "[" * 99_999]

BYTES = [b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\n", b"\x1b[31m", b"\xe2\x80\xae"]
DTYPES = ["float32", "int8", "bool", "complex64", "U3", "float64"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study with every file that a reader opens, and what its readers say of it."""
    folder = tmp_path_factory.mktemp("damaged") / "study"
    finished_runs.write_study(folder)
    for run in (folder / "runs").iterdir():
        (run / "data.json").write_text(json.dumps({"problem": "p", "sources": {
            "train source": {"path": "x", "lines": 3, "sha256": "0"}}}))
        (run / "environment.json").write_text(json.dumps({"python": "3.11", "rpr": {"commit": "c"},
                                                          "gpus": []}))
        (run / "code.json").write_text(json.dumps({"usr_dir": "x", "files": {"a.py": "0"}}))
        (run / "documents.test.txt").write_text("a\n" * 6 + "b\n" * 6)
        for name, content in (("model/hparams.json", {"position": "relative", "max_length": 20}),
                              ("dev/scores.10.json", {"bleu": {"score": 3.0}})):
            (run / name).parent.mkdir()
            (run / name).write_text(json.dumps(content))
        np.savez(run / "learned.npz", **arrays(np.random.RandomState(0)))
    (folder.parent / "secret").write_text(SECRET + "\n")
    return folder, read(folder, draws=False)


def arrays(dice, shape=(2, 4, 33), kind="float32"):
    """What an analysis of a model finds, or arrays of another shape and type."""
    return {**{f"{side}_attention": np.asarray(dice.rand(*shape)).astype(kind)
               for side in ("encoder", "decoder")},
            "encoder_keys": dice.rand(*shape, 4).astype(kind), "clip_left": np.array(8),
            "source_lengths": np.arange(1, 13), "source_sha256": np.array("x")}


def read(folder, draws=True):
    """What the report, the status and the Python API say of a study: results or one line each.

    Args:
      folder: of the study.
      draws: whether the report draws figures, which takes most of its time.

    Returns:
      [(exit code, lines of the error stream)], and {run: (state, seed)}.
    """
    ended, rows = [], None
    for argv in (["report", str(folder)], ["study", "--status", str(folder)]):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), (
                pytest.MonkeyPatch.context()) as patch:
            if not draws:
                patch.setattr(html_page, "write_page", lambda *_: "no page")
            code = cli.main(argv)
        assert "\x1b" not in out.getvalue() + err.getvalue()
        ended.append((code, err.getvalue().splitlines()))
    with contextlib.suppress(cli.UserError):
        rows = {row["directory"]: (row["state"], row["seed"]) for row in api.rows(str(folder))}
    return ended, rows


def in_other_file(data, text):
    """Other content for a file, drawn from `data`: bytes, or None where the damage does not fit."""
    values = [match.span() for match in VALUE.finditer(text)]
    kind = data.draw(st.sampled_from(["cut", "huge", "type", "bytes", "empty"]))
    at = data.draw(st.integers(0, len(text)))
    if kind == "cut":
        return text[:at]
    if kind == "bytes":
        return text[:at] + data.draw(st.sampled_from(BYTES)) + text[at:]
    if kind == "empty" or not values:
        return b""
    start, end = data.draw(st.sampled_from(values))
    new = data.draw(st.sampled_from(HUGE if kind == "huge" else OTHER_TYPES))
    return text[:start] + new.encode() + text[end:]


def damage(data, folder, path):
    """Damages a file in one way."""
    kind = data.draw(st.sampled_from(["content"] * 4 + ["link", "pipe", "directory", "missing"]))
    if path.suffix == ".npz" and kind == "content":
        shape = data.draw(st.lists(st.integers(0, 20), max_size=4))
        dtype = data.draw(st.sampled_from(DTYPES))
        np.savez(path, **arrays(np.random.RandomState(0), shape, dtype) | data.draw(
            st.sampled_from([{}, {"encoder_keys": np.full((2, 1, 3, 4), np.nan, "float32")},
                             {"clip_left": np.array(-5)}, {"source_lengths": np.full(12, -7)}])))
        return
    text = path.read_bytes()
    path.unlink()
    if kind == "content":
        path.write_bytes(in_other_file(data, text))
    elif kind == "link":
        path.symlink_to(folder.parent / data.draw(st.sampled_from(["secret", "nothing", "."])))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()


@settings(max_examples=EXAMPLES, derandomize=EXAMPLES < 100, database=None,
          phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.data())
def test_one_damaged_file_gives_one_line_or_the_same_result(study, data):
    good, (good_ended, good_rows) = study
    folder = good.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder, symlinks=True)
    for run in (folder / "runs").iterdir():
        os.utime(run / "learned.npz")                 # not older than the scores
    names = sorted(str(path.relative_to(good)) for path in good.rglob("*") if path.is_file()
                   and "plots" not in path.parts)
    name = data.draw(st.sampled_from(names))
    damage(data, folder, folder / name)

    def stop(*_):
        raise TimeoutError(f"a reader hangs at {name}")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        ended, rows = read(folder, draws=name.endswith(".npz"))
    finally:
        signal.alarm(0)
    for (code, lines), (_, good_lines) in zip(ended, good_ended, strict=True):
        assert code in (0, 1) and not any("traceback" in line for line in lines), (name, lines)
        if code:
            assert len(lines) == 1 and "/copy" in lines[0], (name, lines)
        else:
            assert len(lines) <= len(good_lines) + 2, (name, lines)
    for path in folder.glob("results.*"):
        if path.name != name:
            assert SECRET not in path.read_text(errors="replace")
    if ended[0][0] == 0:
        parsed = json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail)
        bleu = {run["path"]: run["scores"].get("bleu")
                for arm in parsed["arms"] for run in arm["runs"]}
        assert all(value is None or 0 <= value <= 100 for value in bleu.values())
    if rows is not None and not name.endswith((".gin", "study.json")):
        assert [seed for _, seed in rows.values()] == [seed for _, seed in good_rows.values()]
