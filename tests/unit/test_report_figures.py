"""The figures of a report, also with hostile names."""
import dataclasses
import itertools
import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Text
from report_runs import read_scored, write_run, write_study

from rpr.evaluation.significance import ArmScore, Comparison
from rpr.report import html_page, model_analysis, model_plots, plots, results, tables

TABLE_NAMES = {f"{side}_{kind}" for side in model_analysis.SIDES for kind in model_analysis.KINDS}


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plots.pyplot.close("all")


def learned_arrays(layers):
    dice = np.random.default_rng(1)
    arrays = {name: dice.normal(size=(layers, 2, 33, 8)) for name in sorted(TABLE_NAMES)}
    return arrays | {f"{side}_attention": dice.random((layers, 2, 33))
                     for side in model_analysis.SIDES}


def study_of_equals(size, name="arm"):
    names = [f"{name} {number}" for number in range(size)]
    score = ArmScore(20.0, 0.1, 19.0, 21.0)
    study = results.StudyResults("equals", names[0], arms=[
        results.ArmResult(name, {}, None, [], scores={"bleu": score}, letters="a")
        for name in names])
    study.pairs = [results.ArmPair(first, second, Comparison(1.0, 0.5, 1.5, 0.01, "seeds", 0.02))
                   for first, second in itertools.combinations(names, 2)]
    return study


def test_bleu_by_k_has_a_place_for_0(clipping):
    axes = plots.plot_by_k(clipping, *plots.split_by_k(clipping)).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2", "16"]
    ticks = axes.get_xticks()
    assert ticks[0] < ticks[1] == 0 and ticks[2:].tolist() == [1, 4]
    by_k = {arm.settings["max_relative_position"]: arm for arm in clipping.arms}
    assert axes.lines[0].get_ydata().tolist() == [
        by_k[k].scores["bleu"].mean for k in (0, 1, 2, 16)]
    assert axes.get_ylim()[0] > 10                    # the differences at large k can be seen
    bars = [path.vertices[:, 1] for path in axes.collections[0].get_paths()]
    for k, (low, high) in zip((0, 1, 16), (bars[0], bars[1], bars[3]), strict=True):
        score = by_k[k].scores["bleu"]                # the bar that the table shows
        assert (low, high) == pytest.approx((score.mean - score.deviation,
                                             score.mean + score.deviation))


def test_arms_without_k_are_horizontal_lines_with_their_interval(tmp_path):
    arms = {}
    for k in (1, 4):
        write_run(tmp_path, f"k{k}", 0.1 * k, position="relative", max_relative_position=k)
        arms[f"max_relative_position={k}"] = ({"max_relative_position": k}, None, {1: f"k{k}"})
    for name in ("sinusoid", "none"):
        write_run(tmp_path, name, 0.2, position=name, max_relative_position=4)
        arms[name] = ({"position": name}, 12.5, {1: name})
    write_study(tmp_path, arms, "sinusoid")
    scored = read_scored(tmp_path)
    assert "bleu_by_k" in dict(plots.draw_study(scored))
    with_k, without_k = plots.split_by_k(scored)
    assert [arm.name for arm in without_k] == ["sinusoid", "none"]
    assert [arm.settings["max_relative_position"] for arm in with_k] == [1, 4]
    axes = plots.plot_by_k(scored, with_k, without_k).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    for arm in without_k:
        assert set(lines[arm.name].get_ydata()) == {arm.scores["bleu"].mean}
        assert any(patch.get_y() == arm.scores["bleu"].low and patch.get_height() == pytest.approx(
            arm.scores["bleu"].high - arm.scores["bleu"].low) for patch in axes.patches)


def test_arms_that_differ_in_more_than_k_give_no_curve():
    score = ArmScore(10.0, None, 9.0, 11.0)
    run = results.RunResult("run", 1, "done", scores={"bleu": 10.0})
    arms = [results.ArmResult(f"{k}{keys}", {"max_relative_position": k, "relative_keys": keys},
                              None, [run], scores={"bleu": score})
            for k in (1, 2) for keys in (True, False)]
    study = results.StudyResults("t", arms[0].name, arms=arms)
    assert plots.split_by_k(study) == ([], [])
    study.arms = arms[::2]
    assert len(plots.split_by_k(study)[0]) == 2


def test_an_ablation_of_k_by_accuracy_has_its_figure():
    arms = [results.ArmResult(
        f"max_relative_position={k}", {"max_relative_position": k}, 99.0,
        [results.RunResult(f"run{k}", 1, "done", scores={"accuracy": 10.0 * k})],
        scores={"accuracy": ArmScore(10.0 * k, None, 9.0, 51.0)}) for k in (1, 4)]
    study = results.StudyResults("t", arms[0].name, metrics=["accuracy"], arms=arms)
    axes = dict(plots.draw_study(study))["accuracy_by_k"].axes[0]
    assert axes.get_ylabel() == "Accuracy" and plots.TITLES["accuracy_by_k"]
    assert axes.lines[0].get_ydata().tolist() == [10.0, 40.0]
    assert not any(99 in line.get_ydata() for line in axes.lines)         # the published BLEU


@pytest.mark.parametrize("metric, documents, units", [
    ("bleu", 0, "sentences"), ("bleu", 9, "documents"), ("perplexity", 0, "texts")])
def test_the_bars_of_one_seed_name_what_their_interval_is_over(metric, documents, units):
    arms = [results.ArmResult(
        f"{k}", {"max_relative_position": k}, None,
        [results.RunResult(f"run{k}", 1, "done", scores={metric: 10.0})],
        scores={metric: ArmScore(10.0, None, 9.0, 11.0)}) for k in (1, 4)]
    study = results.StudyResults("t", "1", metrics=[metric], documents=documents, arms=arms)
    legend = plots.plot_by_k(study, arms, []).axes[0].get_legend().get_texts()
    assert legend[0].get_text() == f"relative positions, 95% interval over test {units}"


def test_many_arms_differ_in_colour_marker_or_line():
    arms = [results.ArmResult(f"arm {number}", {}, None, []) for number in range(30)]
    styles = [*plots.arm_styles(results.StudyResults("t", "arm 0", arms=arms)).values()]
    assert len({(style["color"], style["marker"], style["linestyle"]) for style in styles}) == 30
    assert len({(style["marker"], style["linestyle"]) for style in styles[:12]}) == 12
    assert len({style["color"] for style in styles[:10]}) == 10


def test_curves_show_the_range_over_seeds():
    runs = [results.RunResult("a", 1, "done", train_losses=[[step, loss] for step in range(1, 21)],
                              dev_losses=[[10, loss], [20, loss - 1]]) for loss in (3.0, 5.0)]
    runs[1].dev_losses.insert(1, [15, 4.0])
    study = results.StudyResults("t", "a", arms=[results.ArmResult("a", {}, None, runs)])
    train, dev = plots.plot_curves(study).axes
    assert set(train.lines[0].get_ydata()) == {4.0}
    assert dev.lines[0].get_xydata().tolist() == [[10, 4.0], [20, 3.0]]
    band = dev.collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} >= {(10, 3), (10, 5), (20, 2), (20, 4)}


def test_a_run_under_way_does_not_shorten_the_curves_of_finished_ones():
    runs = [results.RunResult(str(seed), seed, state, train_losses=[[1, 3.0], [last, 2.0]],
                              dev_losses=[[last, 2.0]])
            for seed, state, last in ((1, "done", 1000), (2, "running", 50))]
    arms = [results.ArmResult("a", {}, None, runs), results.ArmResult("b", {}, None, runs[1:])]
    train, dev = plots.plot_curves(results.StudyResults("t", "a", arms=arms)).axes
    assert [line.get_xdata()[-1] for line in (*train.lines, *dev.lines)] == [1000, 50, 1000, 50]
    many = [results.ArmResult(f"arm {number}", {}, None, runs[1:]) for number in range(31)]
    train, _ = plots.plot_curves(results.StudyResults("t", "arm 0", arms=many)).axes
    assert len(train.lines) == plots.MOST_CURVES


def test_a_figure_that_is_no_longer_drawn_goes(tmp_path):
    write_run(tmp_path, "a")
    (tmp_path / "plots").mkdir()
    for name in ("bleu_by_k.png", "bleu_by_k.svg", "curves.png", "mine.png"):
        (tmp_path / "plots" / name).touch()
    html_page.write_page(read_scored(tmp_path, "a"), str(tmp_path), [])
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert "mine.png" in names and not {name for name in names if name.startswith("bleu_by_k")}
    assert (tmp_path / "plots" / "curves.png").stat().st_size


def test_curves_show_the_bleu_of_checkpoints_also_from_a_record(tmp_path):
    for name, seed, bleu in (("a-1", 1, (5, 10.25)), ("a-2", 2, (7, 9)), ("b-1", 1, ())):
        run = write_run(tmp_path, name, seed=seed)
        (run / "dev").mkdir()
        for step, score in zip((100, 1000), bleu, strict=False):
            (run / "dev" / f"scores.{step}.json").write_text(json.dumps({"bleu": {"score": score}}))
    write_study(tmp_path, {"a": ({"x": 1}, None, {1: "a-1", 2: "a-2"}),
                           "b": ({"x": 2}, None, {1: "b-1"})}, "a")
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "results.json").write_text(tables.to_json(read_scored(tmp_path)))
    study = results.load_record(str(tmp_path / "record"))
    *_, panel = axes = plots.plot_curves(study).axes
    assert len(axes) == 3 and [line.get_label() for line in panel.lines] == ["a"]
    assert panel.lines[0].get_xydata().tolist() == [[100, 6.0], [1000, 9.625]]
    band = panel.collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} >= {(100, 5), (100, 7), (1000, 9), (1000, 10.25)}


def test_the_ranking_shows_each_difference_and_its_p(clipping):
    axes = plots.plot_ranking(clipping).axes[0]
    texts = {(text.get_position()[1], text.get_position()[0]): text.get_text()
             for text in axes.texts}
    best, *_, worst = sorted({pair.first for pair in clipping.pairs} | {
        pair.second for pair in clipping.pairs}, key=lambda name: -next(
            arm.scores["bleu"].mean for arm in clipping.arms if arm.name == name))
    pair = next(pair for pair in clipping.pairs if {pair.first, pair.second} == {best, worst})
    last = len({place[0] for place in texts}) - 1
    size = abs(pair.comparison.difference)
    assert texts[0, last].startswith(f"+{size:.1f}") and texts[last, 0].startswith(f"-{size:.1f}")
    assert texts[0, last].split("\n")[1] == plots._short_p(pair.comparison.p_holm)
    pair.comparison = dataclasses.replace(pair.comparison, p=None, p_holm=None)
    texts = [text.get_text() for text in plots.plot_ranking(clipping).axes[0].texts]
    assert f"+{size:.1f}\nno p" in texts and f"-{size:.1f}\nno p" in texts


def test_a_ranking_without_letters_does_not_speak_of_them():
    study = study_of_equals(2)
    for arm in study.arms:
        arm.letters = ""                              # there would be too many
    figure = plots.plot_ranking(study)
    assert figure.axes[0].get_yticklabels()[0].get_text() == "arm 0"
    assert "letter" not in figure.get_supxlabel()


def test_the_ranking_of_many_arms_has_colours_only():
    axes, colorbar = plots.plot_ranking(study_of_equals(plots.MOST_LABELLED + 1)).axes
    assert not axes.texts and len(axes.get_xticklabels()) == plots.MOST_LABELLED + 1
    assert colorbar.get_ylabel() == "difference in BLEU"
    cells = plots.plot_ranking(study_of_equals(plots.MOST_LABELLED)).axes[0].texts
    assert len(cells) == plots.MOST_LABELLED * (plots.MOST_LABELLED - 1)


@pytest.mark.parametrize("figure_of", [
    *(lambda size=size: plots.plot_ranking(study_of_equals(size))
      for size in (2, 3, 4, 9, plots.MOST_LABELLED + 1)),
    lambda: plots.plot_ranking(study_of_equals(2, "x" * 40)),
    lambda: model_plots.plot_similarity(learned_arrays(3), "keys")])
def test_all_text_lies_inside_the_figure(figure_of):
    figure = figure_of()
    figure.canvas.draw()
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text():
            box = text.get_window_extent()
            assert 0 <= box.x0 and box.x1 <= figure.bbox.x1, text.get_text()
            assert 0 <= box.y0 and box.y1 <= figure.bbox.y1, text.get_text()


def test_similarity_and_norms_by_hand():
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


def test_figures_of_tables_with_a_clipping_distance_for_each_direction():
    dice = np.random.default_rng(2)
    arrays = {"encoder_keys": dice.normal(size=(1, 1, 8, 4)),        # distances -5 to 2
              "decoder_keys": dice.normal(size=(1, 1, 8, 4)), "clip_left": np.array(5)}
    encoder, decoder = model_plots.plot_norms(arrays).axes[:2]
    assert encoder.lines[0].get_xdata().tolist() == list(range(-5, 3))
    assert decoder.lines[0].get_xdata().tolist() == list(range(-5, 1))
    np.testing.assert_allclose(decoder.lines[0].get_ydata(),
                               np.linalg.norm(arrays["decoder_keys"][0, 0, :6], axis=-1))
    encoder, decoder = model_plots.plot_similarity(arrays, "keys").axes[:2]
    assert [tick.get_text() for tick in encoder.get_yticklabels()] == ["-5", "0", "2"]
    assert [tick.get_text() for tick in decoder.get_yticklabels()] == ["-5", "0"]


def test_attention_of_all_models_has_one_scale_and_no_peak_of_far_distances():
    arrays, other = learned_arrays(2), learned_arrays(2)
    arrays["encoder_attention"][1, 0, 5] = 7.0
    arrays["encoder_attention"][0, 1, [0, -1]] = 9.0, 8.0    # all distances beyond the ends
    highest = model_plots.highest_shares([other, {}, arrays])
    assert highest["encoder"] == 7.0 and highest["decoder"] < 1.0
    for model in (arrays, other):
        encoder, *_, decoder = model_plots.plot_attention(model, highest).axes
        assert encoder.get_ylim() == (0, pytest.approx(1.05 * 7.0))
        assert decoder.get_ylim()[1] < 2
        assert encoder.lines[1].get_xdata().tolist() == list(range(-15, 16))
        np.testing.assert_array_equal(encoder.lines[1].get_ydata(),
                                      model["encoder_attention"][0, 1, 1:-1])
        assert decoder.lines[0].get_xdata().tolist() == list(range(-15, 1))
    left, right = model_plots.plot_attention(arrays, highest).axes[0].texts
    assert left.get_text().endswith("to 900%") and right.get_text().endswith("to 800%")


@settings(max_examples=25)
@given(st.one_of(st.text(max_size=12), st.sampled_from(
    ["$x^2$", "$", "$$", r"\$", r"a$\frac{1}$", "_x", "%", "<script>", "a\nb", "\x1b[2J", "\ud800",
     "^_{", r"\alpha"])))
def test_any_name_can_be_drawn_as_it_is(name):
    label = plots.arm_label(results.ArmResult(name, {}, None, []))
    text = Text(0, 0, label)
    figure = plots.pyplot.figure(figsize=(1, 1), dpi=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")               # the font lacks some letters
        axes = figure.add_subplot()
        line, = axes.plot([0, 1], label=label)
        axes.legend()
        figure.canvas.draw()
    plots.pyplot.close(figure)
    assert text._preprocess_math(label)[1] is False or "$" not in label
    assert not label.startswith("_") and "\n" not in label and line in axes.lines


def test_an_arm_of_a_grid_of_k_is_called_by_k():
    arm = results.ArmResult("max_relative_position=4", {"max_relative_position": 4}, None, [])
    assert plots.arm_label(arm) == "k = 4"
    assert len(plots.arm_label(results.ArmResult("x" * 99, {}, None, []))) == 32


def test_a_name_in_a_figure_is_no_markup_of_the_page(tmp_path):
    name = "--><script>a</script><!--"
    study = study_of_equals(2)
    study.arms[0].name = study.pairs[0].first = name
    plots.save(plots.plot_ranking(study), str(tmp_path / "figure"))
    picture = html_page.Picture("t", "figure.svg", None, False)
    svg = html_page._embedded([picture], str(tmp_path))["figure.svg"]
    assert svg.startswith("<svg") and "script" in svg and "<script" not in svg
    assert "-->" not in svg.replace(" -->", "") and "<!--" not in svg.replace("<!-- ", "")
