"""The tables of a report in every format, also with hostile names."""
import csv
import dataclasses
import io
import itertools
import json
import os
import re
import shutil
import subprocess

import matplotlib
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from report_runs import read_scored, write_run, write_study
from rich.console import Console

from rpr.evaluation.significance import Comparison
from rpr.report import columns, comparison, results, tables
from rpr.utils.errors import UserError

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")
HOSTILE = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(
    ["$", "%", "_", "\n", "<script>", "</td>", "|", "[x](http://y)", "`", "=1+1", "@", "\\", "^",
     "{", "}", "&", "#", "~", "*", "\x1b]52;c;x\x07", "\x9b2J", "a", "k=4", "-", "+", '"', "'", "[",
     "\ud800", "![](x)", "<!--"]), max_size=6).map("".join))


def study_of(*names, setting="s", title="t"):
    """Results with arms of these names, and the names as settings and notes."""
    arms = [results.ArmResult(name, {setting: name}, None, [
        results.RunResult("run", 1, "failed", note=name)]) for name in names]
    return results.StudyResults(title, names[0], signatures={"BLEU": "x"}, arms=arms)


def test_markdown(clipping):
    text = tables.to_markdown(clipping)
    header, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert header.startswith(r"| k | seeds | BLEU | paper | difference \[95%\] | p | p (Holm) "
                             "| rank | chrF | exact | loss | parameters |")
    cells = [cell.strip() for cell in rows[1].split("|")[1:-1]]
    zero = clipping.arms[1]
    score, difference = zero.scores["bleu"], zero.differences["bleu"].difference
    assert cells[0] == "0" and cells[2] == f"{score.mean:.1f} ± {score.deviation:.1f}"
    assert cells[10] == f"{900 / 1099:.2f}"
    assert cells[4].startswith(rf"{difference:.1f} \[")
    assert rows[0].split("|")[5].strip() == "baseline" and "1 of 2" in rows[3]
    assert clipping.signatures["BLEU"] in text and "NaN in step 30_0" in text


@pytest.mark.parametrize("stands_out", [True, False])
def test_a_note_names_the_arms_whose_own_variances_count(clipping, stands_out):
    baseline, arm, *_ = clipping.arms
    arm = dataclasses.replace(arm, differences={"bleu": dataclasses.replace(
        arm.differences["bleu"], stands_out=stands_out)})
    text = tables.to_markdown(dataclasses.replace(clipping, arms=[baseline, arm]))
    assert ("=0 and the baseline vary more than the other arms" in text) == stands_out


@pytest.mark.parametrize(("low", "seeds_needed", "sentence_variance", "says"), [
    (-1.0, 12, 0.0, "needs 12 seeds per arm"), (-1.0, None, 1.0, "The test set is too small"),
    (-1.0, None, 0.0, "needs more than 1,000 seeds per arm"), (2.0, None, 1.0, None)])
def test_the_note_about_seeds_is_about_close_arms(clipping, low, seeds_needed, sentence_variance,
                                                  says):
    pair = results.ArmPair("k = 1", "k = 2", Comparison(
        3.0, low, 4.0, 0.01, "seeds", seed_variance=1e4, sentence_variance=sentence_variance))
    text = tables.to_markdown(dataclasses.replace(clipping, pairs=[pair],
                                                  seeds_needed=seeds_needed))
    assert ("with a power of 0.8" in text) == (says is not None) and (says or "") in text


@pytest.mark.parametrize(("found", "says"), [
    ([4, 18], "4 to 18"), ([141, None], "141 to more than 1,000")])
def test_the_note_about_seeds_gives_their_range(clipping, found, says):
    text = tables.to_markdown(dataclasses.replace(clipping, seeds_needed=293, seeds_range=found))
    assert f"needs 293 seeds per arm at the variance observed (80% interval: {says})." in text


def test_csv_and_json_are_not_rounded(clipping):
    zero = clipping.arms[1]
    lines = list(csv.DictReader(tables.to_csv(clipping).splitlines()))
    assert float(lines[1]["loss"]) == pytest.approx(900 / 1099, abs=1e-4)
    assert float(lines[1]["bleu_mean"]) == zero.scores["bleu"].mean and lines[4]["bleu_mean"] == ""
    assert float(lines[1]["bleu_difference_p_holm"]) == zero.differences["bleu"].p_holm
    assert float(lines[1]["bleu_difference"]) == zero.differences["bleu"].difference
    assert [float(run) for run in lines[1]["bleu_runs"].split(";")] == [
        run.scores["bleu"] for run in zero.runs]
    loaded = json.loads(tables.to_json(clipping))
    assert loaded["arms"][1]["differences"]["bleu"]["p_holm"] == zero.differences["bleu"].p_holm
    assert len(loaded["arms"][1]["by_length"]) == len(loaded["buckets"])


def test_latex(clipping):
    text = tables.to_latex(clipping)
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = [line for line in lines if line.endswith(r"\\")]
    assert body[0].strip().startswith(
        r"$k$ & BLEU & difference [95\%] & $p$ (Holm) & rank & chrF")
    assert len({line.count(" & ") for line in body}) == 1 and r"$\pm$" in body[1]
    assert re.search(r"& \$-\$\d+\.\d \[\$-\$\d", body[2])
    assert re.search(r"& \$0\.\d{4}\$ &", body[2])
    caption = next(line for line in lines if "caption" in line)
    assert caption.strip() == r"\caption{clip\_50\%: 60 test sentences}"
    below = next(line for line in lines if "parbox" in line)
    assert lines.index(below) < lines.index(caption) and "two-sided test" in below
    assert r"\toprule" in text and r"\label{tab:clip-50}" in text
    code = "\n".join(lines)
    assert "nrefs:1" not in code and "% BLEU nrefs:1" in text and "30_0" not in code
    assert "; $p$: two-sided" in code and r"$p$ (Holm) $\le$ 0.05" in code


def test_latex_fits_the_width_of_a_page(clipping):
    """Widths of Computer Modern, which is LaTeX's font, with 6 points on each side of a column."""
    path = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "cmr10.ttf")
    wide = dataclasses.replace(clipping, arms=[dataclasses.replace(
        arm, name="relative_unclipped and more", settings={}) for arm in clipping.arms])
    for study in (clipping, wide):
        chosen = tables._fitting(study)
        assert len(chosen) >= 3 and {"bleu", "difference"} <= {column.key for column in chosen}
        texts = [TextPath((0, 0), max((column.heading, *column.cells), key=len), size=9,
                          prop=FontProperties(fname=path)) for column in chosen]
        widths = [text.get_extents().width + 12 for text in texts]
        assert 200 < sum(widths) <= 345


def test_latex_has_the_other_metrics_that_fit(clipping):
    other = dataclasses.replace(clipping, metrics=["chrf", "bleu"], arms=[
        dataclasses.replace(arm, differences={"chrf": arm.differences["bleu"]}
                            if arm.differences else {}) for arm in clipping.arms])
    for study in (clipping, other):
        keys = [column.key for column in tables._fitting(study)]
        assert set(study.metrics) <= set(keys) and len(keys) == 6


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
def test_latex_compiles_within_the_margins(clipping, tmp_path):
    names = ["a_b & 50% {#} $x^2$ ~ \\textbf | < \"q\" `", "[1cm] ≤ ± × é", "*"]
    hostile = study_of(*names, title="50%_$")
    (tmp_path / "page.tex").write_text("\n".join([
        r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}",
        tables.to_latex(clipping), tables.to_latex(hostile), r"\end{document}"]))
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"],
                          cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_model_flops_are_shown_where_a_run_has_them(tmp_path):
    for arm, flops in (("old", []), ("cpu", [{"model_tflops": 0.0123}]), ("gpu", [
            {"model_tflops": rate, "mfu": rate / 500} for rate in (90.0, 101.0, 150.0)])):
        run = write_run(tmp_path, f"runs/{arm}")
        text = [json.dumps({"event": "train", "step": 1001, "loss": 3.0, **fields}) + "\n"
                for fields in flops]
        with open(run / "metrics.jsonl", "a", encoding="utf-8") as metrics:
            metrics.writelines(text)
    write_study(tmp_path, {arm: ({}, None, {1: f"runs/{arm}"}) for arm in ("old", "cpu", "gpu")},
                "old")
    study = read_scored(tmp_path)
    shown = {column.heading: column.cells for column in columns.columns(study)}
    assert (shown["TFLOP/s"], shown["MFU"]) == (["", "0.0123", "101"], ["", "", "0.202"])
    lines = list(csv.DictReader(tables.to_csv(study).splitlines()))
    assert [line["model_tflops"] for line in lines] == ["", "0.0123", "101.0"]
    assert [line["mfu"] for line in lines] == ["", "", "0.202"]
    old, _, gpu = json.loads(tables.to_json(study))["arms"]
    assert gpu["mfu"] == gpu["runs"][0]["mfu"] == 0.202 and old["mfu"] is None
    assert "MFU: their share of the dense peak" in tables.to_markdown(study)
    study.arms, study.pairs = study.arms[:1], []
    assert not re.search("TFLOP|MFU", tables.to_markdown(study))


@pytest.mark.parametrize("width", [70, 80, 200])
def test_a_table_too_wide_for_the_terminal_is_divided(width):
    arms = [results.ArmResult(name, {}, None, [results.RunResult(
        f"{name}-{rate}", 1, "done", loss=rate, scores={"bleu": 20.0 + rate},
        tuned={"learning_rate_constant": rate, "label_smoothing": 0.1})
        for rate in (1.25, 2.5, 3.75, 4.0, 5.0, 6.0)]) for name in ("absolute", "relative " * 6)]
    for arm in arms:
        arm.runs, arm.others = arm.runs[:1], arm.runs[1:]
    out = io.StringIO()
    tables.print_tables(Console(file=out, width=width), results.StudyResults(
        "t", "absolute", signatures={"BLEU": "x"}, arms=arms))
    shown = [line.rstrip() for line in out.getvalue().splitlines() if "baseline" not in line]
    for rate in (1.25, 2.5, 3.75, 4.0, 5.0, 6.0):
        place = next(place for place, line in enumerate(shown)
                     if f"learning_rate_constant={rate}, label_smoothing=0.1" in line)
        first, second = shown[place + 2:place + 4]
        assert shown[place].split()[0] == "model" and first.split()[0] == "absolute"
        for line in (first, second):
            assert f"{rate:.3f} ({20 + rate:.1f})" in line


def test_columns_can_be_chosen(clipping):
    chosen = columns.choose(clipping, ["max_relative_position", "bleu", "p_holm"])
    text = tables.to_latex(clipping, chosen)
    assert r"    $k$ & BLEU & $p$ (Holm) \\" in text and "speed" not in text
    assert tables.to_markdown(clipping, chosen).startswith("| k | BLEU | p (Holm) |\n")
    with pytest.raises(UserError, match="columns=blue: one of model, max_relative_position, se"):
        columns.choose(clipping, ["blue"])
    assert columns.choose(clipping, ["model"])[0].cells[1] == "max_relative_position=0"
    assert "p (Holm): corrected" in tables.to_markdown(clipping, chosen)
    assert "loss: last evaluation" not in tables.to_markdown(clipping, chosen)
    empty = study_of("a", "b")
    with pytest.raises(UserError, match="columns=bleu,p_holm: no arm has a value there"):
        columns.choose(empty, ["bleu", "p_holm"])
    assert not any("speed" in note.keys for note in columns.notes(empty))


def test_a_grid_of_models_has_their_names():
    """The column of the arms' names is called model, too."""
    study = study_of("model=a", "model=b")
    for arm in study.arms:
        arm.settings = {"model": arm.name[-1]}
    for chosen in (columns.columns(study)[0], *columns.choose(study, ["run.model"])):
        assert (chosen.heading, chosen.cells) == ("run.model", ["a", "b"])
    assert columns.choose(study, ["model"])[0].cells == ["model=a", "model=b"]
    study.arms[0].name = study.baseline = "best"
    assert [column.cells for column in columns.columns(study)[:2]] == [
        ["best", "model=b"], ["a", "b"]]


def test_latex_escapes_by_hand():
    assert columns.latex_text(r"a_b & 50% {#} $x^2$ ~ \textbf | <") == (
        r"a\_b \& 50\% \{\#\} \$x\textasciicircum{}2\$ \textasciitilde{} \textbackslash{}textbf "
        r"\textbar{}\allowbreak{} \textless{}")
    assert columns.latex_text("[1cm]") == "{[}1cm]"


@given(HOSTILE, HOSTILE, HOSTILE)
@example("p", "", "")                                 # also the key of a column of p-values
def test_no_name_leaves_its_cell(name, other, title):
    study = study_of(name, other + "!", setting=name or "s", title=title)
    markdown, tex = tables.to_markdown(study), tables.to_latex(study)
    sheet = tables.to_csv(study)
    for text in (markdown, tex):
        assert not CONTROL.search(text)
        text.encode()                                 # no lone surrogates
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    columns_of = {len(re.sub(r"\\\\|\\\|", "", line).split("|")) for line in rows}
    assert len(rows) == 4 and len(columns_of) == 1
    assert not re.search(r"(?<!\\)(?:\\\\)*(?<!\\)<|(?<!\\)(?:\\\\)*\]\(", markdown)
    code = [line for line in tex.splitlines() if not line.startswith("%")]
    bare = re.sub(r"\\[\\&%$#_{}]|\$[a-z^AKV]+\$|\$\\\w+\$|\$[-+]\$|\\allowbreak\{\}", "",
                  "\n".join(code))
    assert "$" not in bare and "#" not in bare and "%" not in bare and "_" not in bare
    assert len([line for line in code if line.endswith(r"\\")]) == 3
    for row in csv.reader(io.StringIO(sheet)):
        for cell in row:
            assert not cell.startswith(("=", "+", "@", "\t", "\r")) and not (
                cell.startswith("-") and not re.fullmatch(r"-?\d+(\.\d+)?", cell))


def test_a_default_of_an_arm_that_waits_is_that_of_the_others(tmp_path):
    """A default of a setting depends on nothing but the hparams set."""
    arms = {"both": {}, "keys": {"values": False}, "values": {"keys": False},
            "other": {"keys": False, "hparams_set": "other"}}
    write_run(tmp_path, "both", keys=True, values=True)
    write_run(tmp_path, "keys", keys=True, values=False)

    def cells(*names):
        write_study(tmp_path, {name: (arms[name], None, {1: name}) for name in names}, "both")
        rows = csv.DictReader(tables.to_csv(read_scored(tmp_path)).splitlines())
        return [(row["keys"], row["values"]) for row in rows]

    assert cells("both", "keys", "values") == [("True", "True"), ("True", "False"),
                                               ("False", "True")]
    assert cells("both", "keys", "other")[-1] == ("False", "")


def test_settings_of_a_users_own_scheme_are_empty_for_other_schemes(tmp_path):
    """The report does not load the scheme: it goes by the name."""
    arms = {}
    for name, position, slope in (("a", "own", 2.0), ("b", "own+sinusoid", 3.0),
                                  ("c", "alibi", 1.0)):
        write_run(tmp_path, name, position=position, own_slope=slope, ownership=slope)
        arms[name] = {"position": position, "own_slope": slope, "ownership": slope}, None, {1: name}
    write_study(tmp_path, arms, "c")
    rows = list(csv.DictReader(tables.to_csv(read_scored(tmp_path)).splitlines()))
    assert [(row["own_slope"], row["ownership"]) for row in rows] == [
        ("2.0", "2.0"), ("3.0", "3.0"), ("", "1.0")]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300))
def test_every_sentence_is_in_one_bucket(values):
    lengths = np.array(values)
    buckets = results.make_buckets(lengths)
    inside = sum(bucket.contains(lengths).astype(int) for bucket in buckets)
    assert inside.tolist() == [1] * len(lengths)
    assert [bucket.sentences for bucket in buckets] == [
        int(bucket.contains(lengths).sum()) for bucket in buckets]
    assert buckets[0].low >= 0
    assert len(lengths) < 20 or min(bucket.sentences for bucket in buckets) >= 10
    for lower, upper in zip(buckets, buckets[1:], strict=False):
        assert upper.low == lower.high + 1
    assert buckets[-1].high == max(values)            # beyond the training only if a sentence is


def test_an_empty_source_is_in_the_first_chosen_bucket():
    buckets = results.make_buckets(np.array([0, 1, 4, 5, 12]), [4, 10])
    assert [(bucket.low, bucket.sentences) for bucket in buckets] == [(0, 3), (5, 1), (11, 1)]
    assert results.make_buckets(np.array([2]), [4]) == [results.Bucket(1, 2, 1)]


def test_no_part_of_a_cell_begins_like_a_formula():
    assert columns.csv_text("\uff1d1+1") == "'\uff1d1+1"
    assert columns.csv_text("a; =1+1;b") == "a; '=1+1;b"
    assert columns.csv_text("-1") == "'-1" and columns.csv_text("a=1;b-1") == "a=1;b-1"


def test_letters_by_hand():
    means = {"a": 3.0, "b": 2.0, "c": 1.0}
    assert comparison.letters_of(means, []) == {"a": "a", "b": "a", "c": "a"}
    assert comparison.letters_of(means, [("a", "c")]) == {"a": "a", "b": "ab", "c": "b"}
    assert comparison.letters_of(means, [("a", "b"), ("a", "c"), ("c", "b")]) == {
        "a": "a", "b": "b", "c": "c"}
    assert comparison.letters_of({}, []) == {}
    # Arms that differ within triples only: 3 ** 8 sets of arms do not differ.
    names = [f"{group}{place}" for group in range(8) for place in "abc"]
    different = [pair for pair in itertools.combinations(names, 2) if pair[0][0] == pair[1][0]]
    assert comparison.letters_of(dict.fromkeys(names, 1.0), different) == {}
    few = [pair for pair in different if pair[0][0] in "0123"]
    assert len(set("".join(comparison.letters_of(dict.fromkeys(names, 1.0), few)["4a"]))) > 52


@given(st.integers(2, 8).flatmap(lambda count: st.tuples(
    st.lists(st.floats(0, 50), min_size=count, max_size=count),
    st.sets(st.sampled_from(list(itertools.combinations(range(count), 2)))))))
def test_two_arms_share_a_letter_if_and_only_if_they_do_not_differ(drawn):
    values, different = drawn
    means = {str(index): value for index, value in enumerate(values)}
    letters = comparison.letters_of(means, [(str(one), str(two)) for one, two in different])
    for one, two in itertools.combinations(range(len(values)), 2):
        shared = set(letters[str(one)]) & set(letters[str(two)])
        assert bool(shared) == ((one, two) not in different)
    assert "a" in letters[max(means, key=means.__getitem__)]
