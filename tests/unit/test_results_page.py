"""docs/results.md agrees with the records in docs/results."""
import importlib.util

import pytest
from conftest import ROOT
from report_runs import read_scored, write_clipping_study

from rpr.report import tables

spec = importlib.util.spec_from_file_location("make_results_page",
                                              ROOT / "scripts" / "make_results_page.py")
make_results_page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_results_page)

PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_page_agrees_with_the_records():
    assert make_results_page.render(PAGE, ROOT / "docs" / "results") == PAGE, (
        "run scripts/make_results_page.py")


@pytest.fixture
def records(tmp_path):
    write_clipping_study(tmp_path / "study")
    record = tmp_path / "results" / "clipping"
    (record / "plots").mkdir(parents=True)
    (record / "plots" / "curves.png").touch()
    results = read_scored(tmp_path / "study")
    (record / "results.json").write_text(tables.to_json(results))
    results.title = "clipping, other test set"
    (record / "reports" / "other").mkdir(parents=True)
    (record / "reports" / "other" / "results.json").write_text(tables.to_json(results))
    return tmp_path / "results"


def test_a_record_becomes_a_section_with_its_table_and_figure(records):
    page = make_results_page.render(PAGE, records)
    assert page != PAGE and make_results_page.render(page, records) == page
    assert "### clipping\n" in page and page.count("| 16 | 2 | ") == 2
    assert page.index("### clipping\n") < page.index("#### clipping, other test set\n")
    assert "![clipping: curves](results/clipping/plots/curves.png)" in page
    assert "1,000 steps; 7 runs, 0.2 hours in all; 60 test sentences; 2020-09-13" in page
    assert make_results_page.render(page, ROOT / "docs" / "results") == PAGE


def test_a_changed_record_is_found(records):
    page = make_results_page.render(PAGE, records)
    record = records / "clipping" / "results.json"
    record.write_text(record.read_text().replace('"steps": 1000', '"steps": 999'))
    assert make_results_page.render(page, records) != page
