"""The report on runs whose translations are made up; on real runs in test_experiment.py."""
import base64
import csv
import json
import os
import re
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_scoring import SENTENCES, damaged

from rpr.cli import report
from rpr.evaluation import scoring, significance
from rpr.report import (
    comparison,
    html_page,
    length_buckets,
    model_analysis,
    model_plots,
    plots,
    results,
    study_reader,
    tables,
    tensorboard,
)
from rpr.utils.errors import UserError

REFERENCE = [f"{line} {number}" for number, line in enumerate(SENTENCES * 12)]
TABLE_NAMES = {f"{side}_{kind}" for side in model_analysis.SIDES for kind in model_analysis.KINDS}
SOURCE = [" ".join(["word"] * (1 + number % 30)) for number in range(len(REFERENCE))]


def write_run(folder, name, share=0.2, seed=1, done=True, status=None, **hparams):
    """A run directory whose translations lack a share of the reference's words."""
    run = folder / name
    (run / "model").mkdir(parents=True)
    (run / "config.gin").write_text(
        f"run.problem = 'p'\nrun.hparams_set = 'h'\nrun.train_steps = 1000\nrun.seed = {seed}\n")
    (run / "status.json").write_text(json.dumps(
        status or {"train": {"state": "done", "seconds": 120.0}}))
    events = [{"event": "start", "step": 0, "parameters": 1234567, "time": 0.0}]
    events += [{"event": "train", "step": step, "loss": 900 / (step + 99) + share,
                "steps_per_second": 4.0 - share, "time": 1.0} for step in range(10, 1001, 10)]
    events += [{"event": "eval", "step": step, "loss": 900 / (step + 99)} for step in (500, 1000)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (run / "model" / "hparams.json").write_text(json.dumps(
        {"relative_keys": True, "max_length": 20, **hparams}))
    if done:
        for kind, lines in (("source", SOURCE), ("reference", REFERENCE),
                            ("hypotheses", damaged(REFERENCE, share, seed))):
            (run / f"{kind}.test.txt").write_text("".join(line + "\n" for line in lines))
        (run / "scores.json").write_text('{"step": 1000, "exact": 25.0}')
    return run


def write_study(folder, arms, baseline):
    """study.json for {arm: (changes, paper, {seed: run's directory})}."""
    (folder / "study.json").write_text(json.dumps({"baseline": baseline, "arms": [
        {"name": name, "changes": changes, "paper_bleu": paper,
         "runs": [{"seed": seed, "directory": run} for seed, run in runs.items()]}
        for name, (changes, paper, runs) in arms.items()]}))
    (folder / "study.gin").write_text("study.baseline = '<k>'\n")


def collect(folder, baseline=None):
    found = study_reader.read_study(str(folder), baseline)
    comparison.score_runs(found, str(folder))
    return found


@pytest.fixture(scope="module")
def clipping(tmp_path_factory):
    """A study of k with two seeds an arm: k = 2 is half done, k = 4 failed."""
    folder = tmp_path_factory.mktemp("studies") / "clip_50%"
    arms = {}
    for k, share in ((16, 0.1), (0, 0.4), (1, 0.11), (2, 0.2), (4, 0.3)):
        for seed in (1, 2):
            failed = {"train": {"state": "failed", "code": 1, "seconds": 9.0,
                                "reason": "Traceback\nNaN in step 30_0"}}
            write_run(folder, f"runs/k{k}-{seed}", share, seed, max_relative_position=k,
                      done=not (k == 4 or (k, seed) == (2, 2)),
                      status=failed if k == 4 else None)
        arms[f"max_relative_position={k}"] = (
            {"max_relative_position": k}, 25.5 if k else None,
            {seed: f"runs/k{k}-{seed}" for seed in (1, 2)})
        (folder / f"runs/k{k}-1/.lock").touch()
        (folder / f"runs/k{k}-2/.lock").touch()
    write_study(folder, arms, "max_relative_position=16")
    return folder, collect(folder)


def test_one_seed_is_sacrebleus_paired_bootstrap(tmp_path):
    for name, share in (("a", 0.1), ("b", 0.12), ("c", 0.3)):
        write_run(tmp_path, name, share, seed=3)
    found = collect(tmp_path, "b")
    assert [arm.name for arm in found.arms] == ["b", "a", "c"]
    theirs = scoring.score({arm.name: damaged(REFERENCE, {"a": 0.1, "b": 0.12, "c": 0.3}[arm.name],
                                              3) for arm in found.arms},
                           {"reference": REFERENCE}, ("bleu", "chrf"), paired="bootstrap")
    for arm, system in zip(found.arms, theirs, strict=True):
        for metric in ("bleu", "chrf"):
            ours, expected = getattr(arm, metric), system.scores[metric]
            assert ours.mean == pytest.approx(expected.score, abs=1e-9)
            assert ours.deviation is None
            assert ours.p == expected.p_value
            assert (ours.high - ours.low) / 2 == pytest.approx(expected.interval, abs=1e-4)
            assert found.signatures[scoring.METRICS[metric]] == expected.signature
    assert 0.01 < found.arms[1].bleu.p < 1 and found.arms[2].bleu.p < 0.01


def test_a_resample_keeps_the_seeds_of_a_sentence_together():
    scorer = significance.Scorer("bleu", {"reference": REFERENCE}, "", "")
    systems = [damaged(REFERENCE, 0.2, seed) for seed in (1, 2)]
    resampled = np.array([scorer.resampled(scorer.statistics(lines)) for lines in systems])
    draws = np.random.default_rng(12345).choice(len(REFERENCE), (1000, len(REFERENCE)))
    for draw, scores in list(zip(draws, resampled.T, strict=True))[:5]:
        for lines, score in zip(systems, scores, strict=True):
            again = scoring.score({"x": [lines[place] for place in draw]},
                                  {"y": [REFERENCE[place] for place in draw]}, ("bleu",))
            assert score == pytest.approx(again[0].scores["bleu"].score, abs=1e-9)
    one = significance.estimate([20.0, 23.0], resampled)
    assert (one.mean, one.deviation) == (21.5, pytest.approx(1.5 * 2 ** 0.5))
    ordered = np.sort(resampled.mean(axis=0))
    assert (one.low, one.high) == (ordered[25], ordered[974])
    same = significance.estimate([20.0, 23.0], resampled)
    significance.compare(same, resampled, one, resampled)
    assert (same.difference, same.difference_low, same.p) == (0.0, 0.0, 1.0)


def test_holm_by_hand():
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.9, 0.6]) == [1.0, 1.0] and significance.holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_never_lowers_p(values):
    corrected = significance.holm(values)
    assert all(value <= more <= 1 for value, more in zip(values, corrected, strict=True))
    pairs = sorted(zip(values, corrected, strict=True))
    assert [more for _, more in pairs] == sorted(corrected)
    assert min(corrected) == min(1, len(values) * min(values))


@given(st.lists(st.integers(1, 400), min_size=1, max_size=300))
def test_every_sentence_lies_in_one_bucket(values):
    values = np.array(values)
    found = length_buckets.make_buckets(values)
    inside = sum(bucket.contains(values).astype(int) for bucket in found)
    assert inside.tolist() == [1] * len(values)
    assert [bucket.sentences for bucket in found] == [
        int(bucket.contains(values).sum()) for bucket in found]
    assert len(values) < 20 or min(bucket.sentences for bucket in found) >= 10
    for lower, upper in zip(found, found[1:], strict=False):
        assert upper.low == lower.high + 1


def test_a_study_is_summed_up_over_its_seeds(clipping):
    _, found = clipping
    assert [arm.settings for arm in found.arms] == [
        {"max_relative_position": k} for k in (16, 0, 1, 2, 4)]
    baseline, zero, one, half, failed = found.arms
    scores = [run.bleu for run in baseline.runs]
    assert baseline.bleu.mean == pytest.approx(sum(scores) / 2)
    assert baseline.bleu.deviation == pytest.approx(abs(scores[0] - scores[1]) / 2 ** 0.5)
    assert baseline.bleu.difference is None and baseline.relative_speed == 1.0
    assert zero.bleu.difference == pytest.approx(zero.bleu.mean - baseline.bleu.mean)
    assert zero.bleu.difference_low < zero.bleu.difference < zero.bleu.difference_high < 0
    assert zero.bleu.p < 0.01 and zero.bleu.p_holm == pytest.approx(3 * zero.bleu.p)
    assert zero.relative_speed == pytest.approx(3.6 / 3.9, abs=1e-4)
    assert zero.bleu.p <= one.bleu.p < one.bleu.p_holm
    assert (len(half.done), half.bleu.deviation) == (1, None)
    assert failed.bleu is None and failed.parameters == 1234567
    assert found.unfinished[0].startswith("runs/k2-2: waiting")
    assert found.unfinished[1] == "runs/k4-1: failed (train: NaN in step 30_0)"


def test_the_tables_say_the_same(clipping):
    _, found = clipping
    text = tables.to_markdown(found)
    header, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert header.startswith("| k | seeds | BLEU | paper | difference [95%] | p | p (Holm) | chrF "
                             "| exact | loss | parameters |")
    cells = [cell.strip() for cell in rows[1].split("|")[1:-1]]
    zero = found.arms[1]
    assert cells[0] == "0" and cells[2] == f"{zero.bleu.mean:.1f} ± {zero.bleu.deviation:.1f}"
    assert cells[9] == f"{900 / 1099:.2f}"
    assert cells[4].startswith(f"{zero.bleu.difference:.1f} [")
    assert rows[0].split("|")[6].strip() == "baseline" and "1 of 2" in rows[3]
    assert found.signatures["BLEU"] in text and "NaN in step 30_0" in text
    lines = list(csv.DictReader(tables.to_csv(found).splitlines()))
    assert float(lines[1]["loss"]) == pytest.approx(900 / 1099, abs=1e-4)
    assert float(lines[1]["bleu_mean"]) == zero.bleu.mean and lines[4]["bleu_mean"] == ""
    assert [float(run) for run in lines[1]["bleu_runs"].split(";")] == [
        run.bleu for run in zero.runs]
    loaded = json.loads(tables.to_json(found))
    assert loaded["arms"][1]["bleu"]["p_holm"] == zero.bleu.p_holm
    assert len(loaded["arms"][1]["bleu_by_length"]) == len(loaded["buckets"])


def test_latex_escapes_what_a_name_may_hold(clipping):
    text = tables.to_latex(clipping[1])
    assert r"$k$ & seeds & BLEU & paper & difference [95\%] & $p$" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({line.count(" & ") for line in body}) == 1 and r"$\pm$" in body[1]
    assert re.search(r"& \$-\$\d+\.\d \[\$-\$\d", body[2])
    hostile = r"a_b & 50% {#} $x^2$ ~ \textbf | <"
    assert tables._latex(hostile) == (
        r"a\_b \& 50\% \{\#\} \$x\textasciicircum{}2\$ \textasciitilde{} \textbackslash{}textbf "
        r"\textbar{}\allowbreak{} \textless{}")
    assert "30_0" not in re.sub("%.*", "", text)


def test_settings_that_an_arm_leaves_are_read_from_its_model(tmp_path):
    write_run(tmp_path, "runs/both-1")
    write_run(tmp_path, "runs/values-1", 0.3, relative_keys=False)
    write_study(tmp_path, {"both": ({"max_relative_position": 16}, None, {1: "runs/both-1"}),
                           "values only": ({"max_relative_position": 16, "relative_keys": False},
                                           None, {1: "runs/values-1"})}, "both")
    found = collect(tmp_path)
    assert [arm.settings for arm in found.arms] == [{"relative_keys": True},
                                                    {"relative_keys": False}]
    assert tables.to_markdown(found).splitlines()[3].startswith("| values only | no |")
    assert collect(tmp_path, "values only").arms[0].bleu.difference > 0


def test_what_cannot_be_compared_is_refused(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path, name)
    with pytest.raises(UserError, match="--baseline is missing: one of one, two"):
        study_reader.read_study(str(tmp_path), None)
    with pytest.raises(UserError, match="--baseline=three: one of one, two"):
        study_reader.read_study(str(tmp_path), "three")
    (tmp_path / "two" / "reference.test.txt").write_text("other\n" * len(REFERENCE))
    with pytest.raises(UserError, match="two was scored on other text"):
        collect(tmp_path, "one")
    with pytest.raises(UserError, match="no such directory"):
        study_reader.read_study(str(tmp_path / "nothing"), None)
    with pytest.raises(UserError, match="neither a study"):
        study_reader.read_study(str(tmp_path / "one"), None)


def test_nothing_done_is_a_report_too(tmp_path):
    write_run(tmp_path, "one", done=False)
    shutil.rmtree(tmp_path / "one" / "model")
    (tmp_path / "one" / "metrics.jsonl").unlink()
    report.main([str(tmp_path), "--baseline=one"])
    assert "one: waiting" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "report.html").exists()


def learned_arrays(layers):
    dice = np.random.default_rng(1)
    arrays = {name: dice.normal(size=(layers, 2, 33, 8)) for name in TABLE_NAMES}
    return arrays | {f"{side}_attention": dice.random((layers, 2, 33))
                     for side in model_analysis.SIDES}


def test_every_plot_is_drawn_and_the_page_holds_them(clipping, capsys):
    folder, _ = clipping
    np.savez(folder / "runs/k16-1/learned.npz", source_lengths=np.arange(len(SOURCE)) % 30 + 1,
             **learned_arrays(1))
    report.main([str(folder), "--skip_model_analysis"])
    assert "runs/k4-1: failed" in capsys.readouterr().out
    drawn = {path.stem for path in (folder / "plots").glob("*.png")}
    assert drawn == {path.stem for path in (folder / "plots").glob("*.svg")} == {
        "curves", "bleu_by_k", "bleu_by_length", *(f"{kind}_k16-1" for kind in (
            "attention", "norms", "similarity_keys", "similarity_values"))}
    html = (folder / "report.html").read_text()
    assert html.count("<img") == len(drawn) and "clip_50%" in html and "&lt;k&gt;" in html
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert len(pictures) == len(drawn) and b"<svg" in base64.b64decode(pictures[0])
    assert not re.search(r'(?:src|href)="(?!data:)|url\(|@import|<script', html)
    assert json.loads((folder / "results.json").read_text())["trained_length"] == 20


def test_bleu_by_k_has_a_place_for_0(clipping):
    figure = plots.plot_bleu_by_k(clipping[1])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2", "16"]
    ticks = axes.get_xticks()
    assert ticks[0] < ticks[1] == 0 and ticks[2:].tolist() == [1, 4]
    line = axes.lines[0]
    by_k = {arm.settings["max_relative_position"]: arm for arm in clipping[1].arms}
    assert line.get_ydata().tolist() == [by_k[k].bleu.mean for k in (0, 1, 2, 16)]
    plots.pyplot.close(figure)


def test_the_pictures_of_a_model_show_its_numbers():
    arrays = learned_arrays(2)
    figure = model_plots.plot_similarity(arrays, "keys")
    table = arrays["decoder_keys"][1, 0][:17]          # a decoder sees 0 and what lies behind
    image = figure.axes[3].images[0].get_array()[:, :17]
    expected = [[one @ other / np.linalg.norm(one) / np.linalg.norm(other) for other in table]
                for one in table]
    np.testing.assert_allclose(image, expected, atol=1e-12)
    line = model_plots.plot_norms(arrays).axes[0].lines[1]
    np.testing.assert_allclose(line.get_ydata(),
                               np.linalg.norm(arrays["encoder_keys"][0, 1], axis=-1))
    assert line.get_xdata().tolist() == list(range(-16, 17))
    arrays["encoder_attention"][1, 0, 5] = 7.0          # the last panel has the peak
    for axes in model_plots.plot_attention(arrays).axes:
        low, high = axes.get_ylim()
        assert low == 0 and high > max(line.get_ydata().max() for line in axes.lines)
    plots.pyplot.close("all")


def test_tensorboard_compares_the_arms(clipping):
    folder, found = clipping
    tensorboard.write_events(found, str(folder))
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
    events = plugin_event_multiplexer.EventMultiplexer()
    events.AddRunsFromDirectory(str(folder))
    events.Reload()
    provider = data_provider.MultiplexerDataProvider(events, str(folder))
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
    assert set(groups) == {arm.name for arm in found.arms}
    for arm in found.arms[:3]:
        group = groups[arm.name]
        assert len(group.sessions) == 2
        assert group.hparams["max_relative_position"].number_value == (
            arm.settings["max_relative_position"])
        values = {value.name.tag: value.value for value in group.metric_values}
        assert values["test/BLEU"] == pytest.approx(arm.bleu.mean, rel=1e-6)
    failed = groups["max_relative_position=4"].sessions
    assert [session.status for session in failed] == [api_pb2.STATUS_FAILURE] * 2


def test_tables_are_read_from_a_checkpoint(trained):
    import tensorflow as tf
    checkpoint = tf.train.latest_checkpoint(str(trained.output_dir))
    found = model_analysis.relative_tables(checkpoint)
    hparams = json.loads((trained.output_dir / "hparams.json").read_text())
    shape = found["encoder_keys"].shape
    assert set(found) == TABLE_NAMES
    assert (shape[0], shape[2]) == (hparams["num_hidden_layers"],
                                    2 * hparams["max_relative_position"] + 1)
    name = ("rpr_transformer/body/decoder/layer_0/self_attention/multihead_attention/"
            "dot_product_attention_relative/relative_positions_values/embeddings")
    reader = tf.train.load_checkpoint(checkpoint)
    if name not in reader.get_variable_to_shape_map():
        name = name.replace("rpr_", "")
    np.testing.assert_array_equal(found["decoder_values"][0].ravel(),
                                  reader.get_tensor(name).ravel())


def test_a_picture_is_part_of_the_page(tmp_path):
    (tmp_path / "a.svg").write_text("<svg/>")
    found = results.StudyResults("<t>", "a", arms=[results.ArmResult("a", {}, None, [])])
    picture = html_page.Picture("x", os.fspath(tmp_path / "a.svg"), "a", False)
    text = html_page.render_page(found, [picture], "")
    assert base64.b64encode(b"<svg/>").decode() in text and "<title>&lt;t&gt;</title>" in text
