"""Messages on the terminal: as they are, without markup and without control codes."""
import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rpr.utils import console

TITLE, CLIPBOARD = "\x1b]0;title\x07", "\x1b]52;c;cm0gLXJm\x07"


@pytest.fixture
def screen(monkeypatch):
    """What a terminal would get."""
    out = io.StringIO()
    monkeypatch.setattr(console, "terminal", Console(file=out, force_terminal=True, width=80))
    return out


@pytest.mark.parametrize("text", ["[/job:worker/replica:0/task:1] lost", "runs/[old]/a: done",
                                  "[red]x[/b]", ":smile: 12:34"])
def test_markup_is_text(screen, text):
    console.say(text, style="bold")
    assert text in screen.getvalue()


@pytest.mark.parametrize("text", [TITLE, CLIPBOARD, "\x9b31m", "a\rb", "\u202eabc"])
def test_control_codes_do_not_reach_the_terminal(screen, text):
    console.say(f"runs/{text}: failed")
    shown = screen.getvalue()
    assert not any(code in shown for code in "\x1b\x07\x9b\r\u202e") and "\ufffd" in shown


@given(st.text())
def test_printable_text_stays_and_has_no_controls(text):
    clean = console.printable(text)
    assert len(clean) == len(text)
    for before, after in zip(text, clean, strict=True):
        assert after == before or after == "\ufffd"
        assert after.isprintable() or ord(after) > 0x9f
    assert console.printable("a\tb\nc", lines=True) == "a\tb\nc"


def shell(command, **env):
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **env})


def test_a_closed_pipe_ends_quietly():
    done = shell(f"{sys.executable} -m rpr.cli run --help | true; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.strip() in ("0", "141") and done.stderr == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_error(closed):
    done = shell(f"({sys.executable} -m rpr.cli run --help {closed}); echo $?")
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


def test_text_that_the_locale_cannot_encode(tmp_path):
    done = shell(f"{sys.executable} -m rpr.cli run {tmp_path}/größe.gin", LC_ALL="C")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "no such gin file" in done.stderr


def test_an_unexpected_error_is_in_a_log(monkeypatch, capsys):
    from rpr import cli

    def fails(argv):
        raise ZeroDivisionError("division\nby zero")
    assert cli.run_command("rpr x", fails, []) == 1
    line, = capsys.readouterr().err.splitlines()
    number = fails.__code__.co_firstlineno + 1        # a test is taken for code of the user's own
    assert line.startswith(f"rpr x: {__file__}, line {number}: ZeroDivisionError: division; the "
                           "traceback is in /")
    with open(line.split(" is in ")[1], encoding="utf-8") as log:
        assert "Traceback" in log.read()
    os.unlink(line.split(" is in ")[1])
    assert cli.run_command("rpr x", int, "x") == 1    # it has no line of its own
    assert "rpr x: unexpected ValueError: invalid literal" in capsys.readouterr().err
