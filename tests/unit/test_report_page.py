"""The files of a report: the page, the figures in it, and TensorBoard's event files."""
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from report_runs import SOURCE, damage, read_scored, write_clipping_study, write_run
from test_report_figures import TABLE_NAMES, learned_arrays
from test_report_tables import CONTROL

from rpr.cli import report
from rpr.evaluation import test_sets
from rpr.experiments.run_directory import RunDirectory
from rpr.report import html_page, model_analysis, results, tables
from rpr.utils.errors import UserError

WORDS = st.lists(st.sampled_from(["a", "b", "c", "<b>", "&", "\x1b"]), max_size=8).map(" ".join)


@pytest.fixture(scope="module")
def clipping(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies") / "clip_50%"
    write_clipping_study(folder)
    run = folder / "runs/k16-1"
    np.savez(run / "learned.npz", source_lengths=np.arange(len(SOURCE)) % 30 + 1,
             source_sha256=np.array(test_sets.digest([SOURCE])),
             **learned_arrays(1))
    for name, problem, lines, digest in (("k16-1", "p", 26607, "ab"), ("k0-1", "p", 26607, "ab"),
                                         ("k4-2", "other", 105, "cd")):
        source = {"path": "/corpus/<x>.en", "lines": lines, "sha256": digest * 32}
        (folder / "runs" / name / "data.json").write_text(json.dumps(
            {"problem": problem, "sources": {"train source": source}}))
    for name in ("k16-1", "k0-1"):
        (folder / "runs" / name / "environment.json").write_text(json.dumps(
            {"commit": "f00d", "packages": {"tensorflow": "2.15.1"}}))
    return folder


def embedded(page):
    return re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)


def test_every_figure_is_drawn_and_the_page_holds_them(clipping, capsys):
    report.main([str(clipping), "--skip_model_analysis", "--columns=bleu,p"])
    assert "runs/k4-1: failed" in capsys.readouterr().out
    drawn = {path.stem for path in (clipping / "plots").glob("*.png")}
    assert drawn == {path.stem for path in (clipping / "plots").glob("*.svg")} == {
        "curves", "bleu_by_k", "bleu_by_length", "ranking", *(f"{kind}_k16-1" for kind in (
            "attention", "norms", "similarity_keys", "similarity_values"))}
    page = (clipping / "report.html").read_text()
    assert len(embedded(page)) == 4 and b"<svg" in base64.b64decode(embedded(page)[0])
    assert page.count("<svg") == len(drawn) - 4       # those of the study can be explored
    script, = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in page   # no other script runs
    assert "clip_50%" in page and "study.baseline = &#39;&lt;k&gt;&#39;" in page
    assert not re.search(r'(?:src|href)="(?!data:|#)|url\((?!#)|@import|<script[^>]', page)
    settings = page[page.index("<h2>Settings</h2>"):page.index("<h2>The data</h2>")]
    assert re.search("train_steps</td><td[^>]*>1000<", settings)
    assert re.search("beam_size</td><td[^>]*>4<", settings)
    sources = re.findall(r">(\w+: )?train source<", page)
    assert sorted(sources) == ["", "other: "], sources
    for part in ("26,607", "/corpus/&lt;x&gt;.en", "ab" * 32, "cd" * 32, "environment of 2 runs",
                 "packages tensorflow", "2.15.1", "2020-09-13", "60 test sentences", "<del>"):
        assert part in page, part
    assert json.loads((clipping / "results.json").read_text())["trained_length"] == 20
    assert (clipping / "results.md").read_text().startswith("| BLEU | p |\n")


def test_columns_of_the_data_that_are_empty_are_left_out():
    study = results.StudyResults("t", "a", arms=[results.ArmResult("a", {}, None, [])],
                                 corpus={"train": {"sha256": "ab" * 32}})
    page = html_page.render_page(study, [], ".")
    headings = re.findall("<th[^>]*>([^<]*)</th>", page[page.index("<h2>The data</h2>"):])
    assert headings == ["set", "SHA-256"]


def test_the_page_says_what_intervals_are_over():
    arm = results.ArmResult("a", {}, None, [])
    study = results.StudyResults("t", "a", arms=[arm], sentences=80, documents=62)
    assert "80 test sentences · 62 documents<" in html_page.render_page(study, [], ".")
    arm.by_test_set = {"test": 1.0, "other": 2.0}
    assert "· 62 documents or single sentences<" in html_page.render_page(study, [], ".")


def test_figures_of_runs_of_one_name_have_names_of_their_own():
    names = {html_page._plot_name("attention", results.RunResult(path, 1, "done"))
             for path in ("runs/a", "runs/old/a", "../other/runs/a")}
    assert len(names) == 3 and "attention_a" in names


@pytest.mark.parametrize("flag", ["--test_set=other", "--tokenize=char"])
def test_nothing_is_scored_before_a_run_is_done(tmp_path, flag):
    write_run(tmp_path, "a", done=False, status={"train": {"state": "running"}})
    with pytest.raises(UserError, match="no run is done yet, so --test_set and --tok"):
        report.main([str(tmp_path), "--baseline=a", flag])
    assert not (tmp_path / "reports").exists()


def test_chosen_arms_of_several_studies_make_one_report(clipping, tmp_path):
    other = tmp_path / "other"
    write_clipping_study(other)
    report.main([str(other), str(clipping), "--arms=max_relative_position=16",
                 f"--arms={clipping.name}: max_relative_position=0", "--skip_model_analysis"])
    made = results.load_record(str(other))
    assert [arm.name for arm in made.arms] == ["max_relative_position=16",
                                               "clip_50%: max_relative_position=0"]
    assert [arm.settings["max_relative_position"] for arm in made.arms] == [16, 0]
    assert made.title == "other and clip_50%" and (other / "report.html").exists()


def test_a_downloaded_record_is_shown_again(clipping, tmp_path, capsys):
    report.main([str(clipping), "--skip_model_analysis"])
    shutil.copy(clipping / "results.json", tmp_path)
    report.main([str(tmp_path)])
    assert capsys.readouterr().out
    for name in ("results.json", "results.md", "results.tex", "results.csv", "plots/curves.svg",
                 "plots/bleu_by_k.svg", "plots/ranking.svg"):
        assert (tmp_path / name).read_bytes() == (clipping / name).read_bytes(), name
    for flag in ("--baseline=max_relative_position=0", "--plot_model=max_relative_position=0"):
        with pytest.raises(UserError, match="--plot_model and --sample_translations need the runs"):
            report.main([str(tmp_path), flag])


@pytest.mark.parametrize("flags, told", [
    (["--language_pair=en-de"], "--language_pair=en-de: only with --tokenize"),
    (["--language_pair=ende", "--tokenize=moses_lowercase"], "language_pair=ende: two language"),
    (["--plot_model=max_relative_position=0", "--tokenize=char"],
     "plot_model=max_relative_position=0: not with --test_set or --tokenize")])
def test_flags_that_do_not_go_together_are_refused(clipping, flags, told):
    with pytest.raises(UserError, match=told):
        report.main([str(clipping), "--skip_model_analysis", *flags])


def test_models_of_chosen_arms_are_drawn(clipping):
    argv = [str(clipping), "--skip_model_analysis"]
    report.main(argv)
    report.main([*argv, "--plot_model=max_relative_position=0"])
    page = (clipping / "report.html").read_text()
    assert page.count("<svg") == 4                    # of the study; this model is not analysed
    links = re.findall('<a href="([^"]*)"', page)     # the baseline's, from the first report
    assert links == [f"plots/{kind}_k16-1.png" for kind in (
        "attention", "norms", "similarity_keys", "similarity_values")]
    assert all((clipping / link).exists() for link in links)
    scores = clipping / "runs/k16-1/scores.json"
    for name in ("scores.json", "learned.npz"):       # scored again, then analysed again
        os.utime(scores.with_name(name), (2e9, 2e9))
    report.main([*argv, "--plot_model=max_relative_position=0"])
    page = (clipping / "report.html").read_text()
    assert "<a href" not in page and "The trained models" not in page
    for name in ("scores.json", "learned.npz"):
        os.utime(scores.with_name(name))
    with pytest.raises(UserError, match="--plot_model=x: one of max_relative_position=16"):
        report.main([str(clipping), "--plot_model=x"])


def test_runs_without_checkpoints_are_named_in_one_line_and_not_analysed(clipping, monkeypatch,
                                                                        capsys):
    def spawn(*args, **kwargs):
        raise AssertionError("a process was started")
    monkeypatch.setattr(model_analysis.processes, "spawn", spawn)
    run_dirs = [model_analysis.RunDirectory(str(clipping / "runs" / name))
                for name in ("k16-1", "k0-1", "k1-1")]
    model_analysis.analyse_models(run_dirs)           # k16-1 was analysed before
    said = "".join(capsys.readouterr())
    assert said.split("\n") == [
        "models not analysed, since their runs have no checkpoint: k0-1, k1-1", ""]


@pytest.mark.parametrize("place, value", [(8, 99), (8, 14), (6, 1), (4, 255)])
def test_a_damaged_analysis_counts_as_none(tmp_path, place, value):
    """`place` is that of a byte of the archive's directory: method, flags, or version."""
    run_dir = RunDirectory(str(tmp_path))
    np.savez(run_dir.file(model_analysis.CACHE), **learned_arrays(1))
    (tmp_path / "scores.json").write_text("{}")
    for name in ("scores.json", model_analysis.CACHE):
        os.utime(tmp_path / name, (1e9, 1e9))
    assert model_analysis.load(run_dir)
    content = bytearray((tmp_path / model_analysis.CACHE).read_bytes())
    # The members' own headers have these fields, too, two bytes earlier.
    content[content.index(b"PK\1\2") + place + 2] = content[place] = value
    (tmp_path / model_analysis.CACHE).write_bytes(content)
    assert not model_analysis.load(run_dir)


def test_figures_beyond_the_size_of_a_page_are_linked(tmp_path, monkeypatch):
    (tmp_path / "plots").mkdir()
    for name in "ab":
        (tmp_path / "plots" / f"{name}.svg").write_text("<svg/>" * 10)
    study = results.StudyResults("<t>", "a", arms=[results.ArmResult("a", {}, None, [])])
    pictures = [html_page.Picture(name, f"plots/{name}.svg", "a", False) for name in "ab"]
    monkeypatch.setattr(html_page, "MOST_EMBEDDED", 100)
    page = html_page.render_page(study, pictures, str(tmp_path))
    assert embedded(page) == [base64.b64encode(b"<svg/>" * 10).decode()]
    assert '<a href="plots/b.png">b</a>' in page and "<title>&lt;t&gt;</title>" in page
    assert "default-src 'none'; img-src data:;" in page       # nothing runs, nothing is fetched


def test_a_study_of_many_arms_makes_a_small_page(tmp_path):
    arms = []
    for number in range(1000):
        runs = [results.RunResult(f"runs/{number}", 1, "done",
                                  scores={"bleu": float(number % 50)})]
        arms.append(results.ArmResult(f"arm {number}", {"a": number}, None, runs))
    study = results.StudyResults("many", "arm 0", arms=arms, study_gin="x = 1\n" * 10**6)
    page = html_page.render_page(study, [], str(tmp_path))
    assert "arm 999" in page and len(page) < 5_000_000
    featured = study.featured(10)
    assert len(featured) == 10 and featured[0] is arms[0]
    assert all(arm.done[0].scores["bleu"] == 49 for arm in featured[1:])


def test_nothing_done_is_a_report_too(tmp_path):
    write_run(tmp_path, "one", done=False)
    shutil.rmtree(tmp_path / "one" / "model")
    (tmp_path / "one" / "metrics.jsonl").unlink()
    report.main([str(tmp_path), "--baseline=one"])
    assert "one: waiting" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "report.html").exists()


def test_differences_by_hand():
    assert list(html_page.differences("the cat <sat>", "the dog <sat> down")) == [
        ("", "the"), ("del", "dog"), ("ins", "cat"), ("", "<sat>"), ("del", "down")]
    assert list(html_page.differences("", "x")) == [("del", "x")]


@given(WORDS, WORDS)
def test_differences_have_the_words_of_both_texts(hypothesis, reference):
    parts = list(html_page.differences(hypothesis, reference))
    for text, tags in ((hypothesis, ("", "ins")), (reference, ("", "del"))):
        assert [word for tag, words in parts if tag in tags for word in words.split()] == (
            text.split())


@given(st.text(max_size=20))
@example("\x1b[31m<script>alert('&\"')</script>\ud800\n")
@example("a^K")
def test_no_text_is_markup(text):
    """Every value of the page, in an element or an attribute."""
    runs = [results.RunResult(f"runs/{text}", 1, "done", empty=1), results.RunResult(
        text, 2, "failed", text)]
    arm = results.ArmResult(text, {text: text}, None, runs)
    study = results.StudyResults(
        text, text, text, text, {text: {"path": text, "sha256": text, "lines": 3}},
        [{text: {text: [text]}}], text, 3, signatures={text: text}, arms=[arm],
        samples=[results.Sample(text, text + " x", {text: text})])
    page = html_page.render_page(study, [], ".", [html_page.Picture(text, "a.svg", text, False)])
    plain = html_page.render_page(results.StudyResults(
        "t", "t", "t", "t", {"t": {"path": "t", "sha256": "t", "lines": 3}}, [{"t": {"t": ["t"]}}],
        "t", 3, signatures={"t": "t"}, samples=[results.Sample("t", "t x", {"t": "t"})],
        arms=[results.ArmResult("t", {"t": "t"}, None, runs)]), [], ".",
        [html_page.Picture("t", "a.svg", "t", False)])

    def tags(html):
        return set(re.findall(r"<([a-z]\w*)", html))
    assert tags(page) <= tags(plain) | {"sup"}
    assert not CONTROL.search(page) and page.encode()


def test_a_damaged_cache_of_a_model_is_made_again(clipping):
    run_dir = model_analysis.RunDirectory(str(clipping / "runs/k16-1"))
    assert set(model_analysis.load(run_dir)) > TABLE_NAMES
    broken = model_analysis.RunDirectory(str(clipping / "runs/k0-1"))
    (clipping / "runs/k0-1/learned.npz").write_bytes(b"PK\x03\x04broken")
    assert model_analysis.load(broken) == {}
    (clipping / "runs/k0-1/learned.npz").unlink()


def test_writing_a_report_follows_no_link(tmp_path):
    write_run(tmp_path, "one")
    (tmp_path / "private").write_text("mine")
    for name in ("results.json", "report.html", "results.tex"):
        (tmp_path / name).symlink_to(tmp_path / "private")
    report.main([str(tmp_path), "--baseline=one", "--skip_model_analysis"])
    assert (tmp_path / "private").read_text() == "mine"
    assert results.load_record(str(tmp_path)).baseline == "one"


def test_tensorboard_compares_the_arms(clipping):
    scored = read_scored(clipping)
    tables.write_events(scored, str(clipping))
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
    events = plugin_event_multiplexer.EventMultiplexer()
    events.AddRunsFromDirectory(str(clipping))
    events.Reload()
    provider = data_provider.MultiplexerDataProvider(events, str(clipping))
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = context.RequestContext()
    experiment = backend.experiment_from_metadata(
        request, "", True, backend.hparams_metadata(request, ""), [])
    infos = {info.name: info for info in experiment.hparam_infos}
    assert set(infos) == {"arm", "max_relative_position"}
    assert infos["max_relative_position"].type == api_pb2.DATA_TYPE_FLOAT64
    names = [info.name for info in experiment.metric_infos]
    asked = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=100, aggregation_type=api_pb2.AGGREGATION_AVG,
        allowed_statuses=[api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE],
        col_params=[api_pb2.ColParams(metric=name) for name in names])
    groups = {group.name: group for group in list_session_groups.Handler(
        request, backend, "", asked).run().session_groups}
    assert set(groups) == {arm.name for arm in scored.arms}
    for arm in scored.arms[:3]:
        group = groups[arm.name]
        assert len(group.sessions) == 2
        assert group.hparams["max_relative_position"].number_value == (
            arm.settings["max_relative_position"])
        values = {value.name.tag: value.value for value in group.metric_values}
        assert values["test/BLEU"] == pytest.approx(arm.scores["bleu"].mean, rel=1e-6)
    failed = groups["max_relative_position=4"].sessions
    assert [session.status for session in failed] == [api_pb2.STATUS_FAILURE] * 2


def test_settings_have_one_type_for_tensorboard():
    assert tables._of_one_type([1, 2.5, None]) == [1.0, 2.5, None]
    assert tables._of_one_type([True, None]) == [True, None]
    assert tables._of_one_type([True, 1, [2], "\x1b"]) == ["True", "1", "[2]", "\ufffd"]


def test_events_of_a_run_outside_the_study_are_not_written(clipping, tmp_path):
    write_run(tmp_path, "other", hypotheses=damage(["x"] * len(SOURCE), 0.0, 1))
    tables.write_events(read_scored(clipping, against=tmp_path / "other"), str(clipping))
    assert not (tmp_path / "other" / tables.EVENTS).exists()


def test_a_model_of_another_study_has_pictures_of_its_own():
    names = {html_page._plot_name("norms", results.RunResult(path, 1, "done"))
             for path in ("relative", "../quickstart/relative", "../more/relative")}
    assert len(names) == 3 and "norms_relative" in names


def test_a_reader_that_closes_the_pipe_loses_no_file(tmp_path):
    write_run(tmp_path, "one")
    command = [sys.executable, "-m", "rpr.cli", "report", str(tmp_path), "--baseline=one",
               "--skip_model_analysis"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        _, errors = process.communicate()
    assert process.returncode and not errors
    assert {"results.json", "report.html", "results.tex"} <= set(os.listdir(tmp_path))


@pytest.mark.parametrize("name", [
    "config.gin", "status.json", "metrics.jsonl", "hypotheses.test.txt", "learned.npz"])
def test_a_pipe_in_place_of_a_file_stops_no_report(name, tmp_path):
    write_run(tmp_path, "one")
    (tmp_path / "one" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "one" / name)
    command = [str(tmp_path), "--baseline=one", "--skip_model_analysis"]
    if name == "learned.npz":
        report.main(command)
        return
    with pytest.raises(UserError, match=f"{name}.*(pipe|regular file)|there is no run"):
        report.main(command)


def test_a_pipe_in_place_of_a_record_or_study_is_refused(tmp_path):
    for name in ("results.json", "study.json"):
        folder = tmp_path / name[:5]
        folder.mkdir()
        os.mkfifo(folder / name)
        with pytest.raises(UserError):
            report.main([str(folder)])


def test_a_matplotlibrc_of_the_directory_is_not_obeyed(tmp_path):
    write_run(tmp_path, "one")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.figsize: 90, 90\n")
    code = ("from rpr.report import plots; import matplotlib; "
            "print(matplotlib.rcParams['text.usetex'], matplotlib.rcParams['figure.figsize'][0])")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, check=True)
    assert done.stdout.split() == ["False", "6.4"]


@pytest.mark.parametrize("damage_of", [
    {"encoder_keys": np.zeros(3)}, {"unknown": np.zeros(3)}, {"source_lengths": np.zeros((2, 2))}])
def test_learned_arrays_of_another_shape_are_not_used(damage_of, tmp_path):
    write_run(tmp_path, "one")
    path = tmp_path / "one" / model_analysis.CACHE
    np.savez(path, **damage_of)
    assert model_analysis.load(RunDirectory(str(tmp_path / "one"))) == {}
