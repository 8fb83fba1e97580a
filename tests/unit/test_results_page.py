"""docs/results.md agrees with the records in docs/results."""
import json
import re

import check_numbers
import make_results_page
import pytest
from conftest import ROOT
from report_runs import read_scored, write_clipping_study

from rpr.report import tables
from rpr.report.results import ArmResult, RunResult, StudyResults

PAGE, LENGTH_PAGE = ROOT / "docs" / "results.md", ROOT / "docs" / "length_results.md"


def test_the_pages_agree_with_the_records():
    pages = make_results_page.render(ROOT / "docs", ROOT / "docs" / "results")
    assert len(pages) > 4
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run scripts/make_results_page.py"


@pytest.fixture
def record(tmp_path):
    write_clipping_study(tmp_path / "study")
    record = tmp_path / "results" / "clipping"
    (record / "plots").mkdir(parents=True)
    (record / "plots" / "curves.png").touch()
    results = read_scored(tmp_path / "study")
    (record / "results.json").write_text(tables.to_json(results))
    results.title = "clipping, other test set"
    (record / "reports" / "other").mkdir(parents=True)
    (record / "reports" / "other" / "results.json").write_text(tables.to_json(results))
    return record


def test_a_record_becomes_a_section_and_a_page(record):
    pages = make_results_page.render(ROOT / "docs", record.parent)
    page, own = pages[PAGE], pages[record / "README.md"]
    assert list(pages) == [PAGE, LENGTH_PAGE, record / "README.md"]
    assert "There is no record yet." in pages[LENGTH_PAGE]
    assert "### clipping\n" in page
    assert (page.count("| 16 | 2 | "), own.count("| 16 | 2 | ")) == (1, 2)
    assert "1,000 steps; 7 runs, 0.2 hours in all; 60 test sentences; 2020-09-13; [all " in page
    assert "(results/clipping/README.md)" in page
    before, rest = PAGE.read_text(encoding="utf-8").split(make_results_page.BEGIN)
    assert page.startswith(before) and page.endswith(rest.split(make_results_page.END)[1])
    assert own.index("# clipping\n") < own.index("## clipping, other test set\n")
    assert "![clipping: curves](plots/curves.png)" in own and "loss: last evaluation" in own


def test_the_runs_and_hours_are_those_of_all_settings_tried():
    def run(name, state, seed=1):
        return RunResult(name, seed, state, steps=9, seconds={"train": 3600.0})

    arm = ArmResult("a", {}, None, [run("a-1", "done")],
                    others=[run("a-2", "done"), run("a-4", "failed")])
    assert make_results_page.facts(StudyResults("x", "a", arms=[arm])) == (
        "9 steps; 2 runs, 2.0 hours in all")


def test_a_changed_record_is_found(record):
    pages = make_results_page.render(ROOT / "docs", record.parent)
    results = record / "results.json"
    results.write_text(results.read_text().replace('"steps": 1000', '"steps": 999'))
    changed = make_results_page.render(ROOT / "docs", record.parent)
    assert all(changed[path] != text for path, text in pages.items() if path != LENGTH_PAGE)


def test_numbers_in_the_text_are_those_of_a_record(capsys):
    assert check_numbers.main([]) == 0, capsys.readouterr().out


def test_a_number_without_a_record_is_found(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("# Page\n\n## Precision: `small_precision`\n\n27.9 BLEU against 27.5, in CUDA "
                    "12.2;\nlosses of 1.91 and 1.75, `99.1`.\n\n## More\n\n777.7; published: 41.02")
    records = [check_numbers.recorded(values)
               for values in (check_numbers.of_arms, check_numbers.of_runs)]
    found = [line.split(": ")[1] for line in check_numbers.missing(page, *records)]
    assert found == ["1.75", "777.7"]


def intervals(results):
    """(difference, low, high) of all intervals in the JSON of a report, as text, both ways round.

    The difference, or the mean, is without its sign: the interval shows it.
    """
    if isinstance(results, list):
        return set().union(*map(intervals, results))
    if not isinstance(results, dict):
        return set()
    found = set().union(*map(intervals, results.values()))
    value = results.get("mean") if results.get("difference") is None else results["difference"]
    if value is not None and results.get("low") is not None:
        size, low, high = f"{abs(value):.1f}", results["low"], results["high"]
        found |= {(size, f"{low:+.1f}", f"{high:+.1f}"), (size, f"{-high:+.1f}", f"{-low:+.1f}")}
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/discussion.md",
                                  "docs/which_scheme.md", "gin/small_table1.gin",
                                  "gin/small_table1_enfr.gin", "gin/multi30k_ende_lc.gin"])
def test_intervals_in_the_text_are_those_of_a_record(page):
    recorded = set().union(*(intervals(json.loads(path.read_text(encoding="utf-8")))
                             for path in (ROOT / "docs" / "results").rglob("results.json")))
    text = (ROOT / page).read_text(encoding="utf-8")
    text = text.replace("\\", "").replace("\n#", "").replace("\u2212", "-")
    interval = r"\[([-+]?\d+\.\d), ([-+]?\d+\.\d)\]"
    shown = re.findall(r"(\d+\.\d)(?: BLEU)?,?\s+" + interval, text)
    assert len(shown) == len(re.findall(interval, text)) > 0
    assert set(shown) <= recorded, set(shown) - recorded
