"""`rpr translate` through the command line, and its pictures."""
import io

import numpy as np
import pytest
from conftest import rpr_command

from rpr.cli import models
from rpr.inference import inspector, model_session
from rpr.utils.errors import UserError


@pytest.fixture(scope="module")
def flags(trained, lively):
    return [*trained.flags, f"--checkpoint_path={lively}"]


def test_lines_become_lines(flags, tmp_path):
    lines = ["Click the button.", "", "Costs 5$ or 6$ a year"]
    done = rpr_command("translate", *flags, "--beam_size=2", f"--show_attention={tmp_path}/a",
                       stdin="".join(line + "\n" for line in lines), forked=False)
    rows = [row.split("\t") for row in done.stdout.splitlines()]
    assert len(rows) == 3 and all(len(row) == 3 for row in rows)
    for _, score, probabilities in rows:
        assert float(score) < 0 and all(0 <= float(p) <= 1 for p in probabilities.split())
    assert "tensorflow" not in done.stderr
    pictures = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert pictures == [f"{number}.{kind}.png" for number in (1, 2, 3)
                        for kind in ("cross", "decoder", "encoder")]
    assert (tmp_path / "a" / "1.cross.png").read_bytes().startswith(b"\x89PNG")


def test_words_probabilities_and_score_stand_in_one_line():
    translation = inspector.Translation("portugal , spain", -0.1284, np.zeros(4), [],
                                   np.array([0.8981, 0.9374, 0.5, 1.0]))
    assert models._to_line(translation) == (
        "portugal , spain [0.898 0.937 0.500 1.000] Score: -0.128")


def test_byte_order_marks_and_line_ends_are_no_part_of_a_sentence(monkeypatch):
    text = io.BytesIO(b"\xef\xbb\xbfA dog.\r\nTwo.\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(text))
    assert list(models._read_lines()) == ["A dog.", "Two."]


def test_a_tab_in_a_translation_does_not_add_a_column():
    translation = inspector.Translation("a\tb", -1.0, np.zeros(1), ["a"], np.array([0.5]))
    assert models._to_text(translation) == "a b\t-1.0000\t0.5000"


def test_a_model_must_be_named():
    with pytest.raises(UserError, match="--output_dir"):
        models.translate([])


def test_a_picture_has_a_panel_for_each_head_and_every_label():
    weights = np.random.RandomState(0).dirichlet(np.ones(3), [2, 4, 5]).astype("f")
    figure = inspector._attention_figure(weights, list("abcde"), ["x", "$5", " ( "], "title")
    assert len(figure.axes) == 8
    for panel, rows in zip(figure.axes, weights.reshape(8, 5, 3), strict=True):
        np.testing.assert_array_equal(panel.images[0].get_array(), rows)
    bottom = figure.axes[4]
    assert [label.get_text() for label in bottom.get_xticklabels()] == ["x", r"\$5", "␣(␣"]
    assert {label.get_rotation() for label in bottom.get_xticklabels()} == {90}
    assert [label.get_text() for label in bottom.get_yticklabels()] == list("abcde")


def test_pictures_of_a_long_sentence_stay_small():
    weights = np.zeros([6, 8, 150, 150], "f")
    figure = inspector._attention_figure(weights, ["token"] * 150, ["token"] * 150, "title")
    assert (figure.get_size_inches() * figure.dpi).max() <= 12001


def test_kinds_of_weights_all_have_a_title():
    assert set(inspector.TITLES) == set(model_session.AttentionWeights._fields)
