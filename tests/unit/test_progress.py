"""The table that follows a study, on terminals of any size."""
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from rpr.experiments import progress

STATES = ["done"] * 3 + ["waiting"] * 3 + ["running", "failed"]


def printed(width, rows):
    found = [SimpleNamespace(name=f"max_relative_position-{i}-1-ab12cd",
                             run=SimpleNamespace(train_steps=1000)) for i in range(len(STATES))]
    of = {member.name: progress.Progress(state, "train", 250, 2.5, 3.25, 12.3, 60.0)
          for member, state in zip(found, STATES, strict=True)}
    out = io.StringIO()
    Console(file=out, width=width).print(progress.table(found, of, rows))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_numbers_are_whole_on_a_narrow_terminal(width):
    lines = printed(width, None)
    assert len(lines) == 1 + len(STATES)
    for i, line in enumerate(lines[1:]):
        assert f"position-{i}-1" in line and "250/1,000" in line and "3.250" in line
    # 750 steps at 2.5 a second are 5 minutes; only a run that trains has a time left.
    assert [("5:00" in line) for line in lines[1:]] == [state == "running" for state in STATES]


def test_what_runs_and_what_failed_stays_in_sight():
    lines = printed(80, 4)
    assert [int(line.split("-")[1]) for line in lines[1:]] == [6, 7, 0, 1]
