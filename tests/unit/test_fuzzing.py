"""Files with changed bytes, strings of hparams and lines of text: read, or refused in one line."""
import gzip
import shutil

import pytest
import report_runs
import tiny_models
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rpr.evaluation import test_sets
from rpr.experiments import run_directory
from rpr.inference import file_checks
from rpr.problems import text_files
from rpr.report import comparison, study_reader
from rpr.t2t import preflight
from rpr.utils import metrics_log
from rpr.utils.errors import UserError

bounded = settings(max_examples=100)


def assert_read_or_refused(read, *words):
    """One line that has the words, or no error at all."""
    try:
        read()
    except UserError as error:
        assert "\n" not in str(error) and all(word in str(error) for word in words), str(error)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of two finished runs."""
    folder = tmp_path_factory.mktemp("fuzzing") / "study"
    for name, share in (("a", 0.1), ("b", 0.3)):
        run = report_runs.write_run(folder, f"runs/{name}", share)
        (run / "environment.json").write_text('{"python": "3.11", "rpr": {"commit": "c"}}')
        (run / "data.json").write_text('{"problem": "p", "sources": {"train source": '
                                       '{"path": "x", "lines": 3, "sha256": "0"}}}')
        metrics_log.append_checksums(str(run / "model"), 1000, {"w": "0"})
    report_runs.write_study(folder, {name: ({"position": name}, None, {1: f"runs/{name}"})
                                     for name in "ab"}, "a")
    return folder


@settings(max_examples=50)
@given(st.data())
def test_any_changed_file_of_a_study_is_read_or_named(study, data):
    copy = study.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(study, copy)
    names = sorted(path.relative_to(study) for path in study.rglob("*") if path.is_file())
    path = copy / data.draw(st.sampled_from(names))
    text = bytearray(path.read_bytes())
    for at, new in data.draw(st.lists(st.tuples(st.integers(0, len(text)), st.binary(max_size=8)),
                                      max_size=3)):
        text[at:at + len(new)] = new
    path.write_bytes(text[:data.draw(st.just(len(text)) | st.integers(0, len(text)))])
    run_dir = run_directory.RunDirectory(str(copy / "runs" / "a"), str(copy / "data"))
    for read in (lambda: run_directory.state(run_dir),
                 lambda: metrics_log.last(run_dir.metrics),
                 lambda: run_directory.find_model(run_dir.path, "data"),
                 lambda: metrics_log.read_checksums(run_dir.model),
                 lambda: comparison.score_runs(study_reader.read_study(str(copy)), str(copy))):
        assert_read_or_refused(read, str(copy))


names = st.sampled_from(sorted(tiny_models.hparams().values())) | st.text(max_size=5)
hparam_values = st.text(max_size=6) | (st.integers() | st.floats() | st.booleans()).map(str) | (
    st.lists(st.integers(), max_size=3).map(str))


@bounded
@given(st.lists(st.tuples(names, st.sampled_from(["=", "", "==", "[0]="]), hparam_values),
                max_size=3))
@example([("activation_dtype", "==", "\n")])
def test_any_string_of_hparams_is_accepted_or_refused(parts):
    overrides = ",".join(map("".join, parts))

    def parse():
        hparams = tiny_models.hparams()
        preflight.parse_hparams(hparams, overrides)
        preflight.check_supported("rpr_transformer", hparams)

    assert_read_or_refused(parse)


lines = st.lists(st.text(max_size=10).map(str.encode) | st.binary(max_size=10) | st.just(b"a b"),
                 max_size=6).map(b"\n".join)


@bounded
@given(lines, lines, st.booleans())
def test_any_lines_of_text_are_read_or_refused(tmp_path_factory, source, target, is_packed):
    folder = tmp_path_factory.getbasetemp()
    paths = [str(folder / f"{side}{'.gz' * is_packed}") for side in ("source", "target")]
    for path, content in zip(paths, (source, target), strict=True):
        with open(path, "wb") as out:
            out.write(gzip.compress(content)[:200] if is_packed else content)
    assert_read_or_refused(lambda: text_files.check_pair(*paths), str(folder))
    assert_read_or_refused(lambda: test_sets.read_lines(paths[0]), paths[0])
    assert_read_or_refused(lambda: file_checks.check_input(paths[0]), paths[0])
