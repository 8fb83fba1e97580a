"""Messages on the terminal: as they are, without markup and without control codes."""
import errno
import io
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tensor2tensor.utils import contrib

from rpr.utils import console, errors

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


@pytest.mark.parametrize("update, line", [
    ((3,), "x: 3/10 lines"), ((3, "", 30), "x: 3/10 lines, 0.5 min left"),
    ((3, "2/s", 30), "x: 3/10 lines 2/s, 0.5 min left")])
def test_progress_in_a_pipe(monkeypatch, update, line):
    monkeypatch.setattr(console, "terminal", Console(file=io.StringIO(), width=80))
    monkeypatch.setattr(console.Task, "PLAIN_SECONDS", 0)
    console.Task("x", 10, "lines").update(*update)
    assert console.terminal.file.getvalue() == f"{line}\n"


def shell(command, **env):
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **env})


def test_a_log_has_a_name_only_if_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(console, "terminal", Console(stderr=True))
    monkeypatch.setattr(console.QuietLogs, "kept_path", None)
    logs = console.QuietLogs()
    os.write(2, b"of TensorFlow\n")
    assert os.listdir(tmp_path) == []                 # a kill would leave nothing behind
    logs.end(keep=True)
    path = console.write_traceback(ValueError("x"))
    assert [str(left) for left in tmp_path.iterdir()] == [path]
    with open(path) as log:
        assert log.readlines() == ["of TensorFlow\n", "ValueError: x\n"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_file_gets_a_table_with_all_of_its_text(is_terminal):
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=is_terminal, width=80)
    table = Table("run", "stage")
    table.add_row(Text("k=16," * 20, no_wrap=True, overflow="ellipsis"), "done")
    console.for_tables(terminal).print(table)
    assert ("k=16," * 20 in out.getvalue()) == (not is_terminal)


def test_a_closed_pipe_ends_quietly():
    done = shell(f"{sys.executable} -m rpr.cli run --help | true; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.strip() in ("0", "141") and done.stderr == ""


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_error(closed):
    done = shell(f"({sys.executable} -m rpr.cli run --help {closed}); echo $?")
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


def test_text_that_the_locale_cannot_encode(tmp_path):
    done = shell(f"{sys.executable} -m rpr.cli run {tmp_path}/größe.gin", LC_ALL="C")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "no such gin file" in done.stderr


@pytest.mark.parametrize("error", [
    MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"),
    ImportError("libtensorflow_cc.so.2: failed to map segment from shared object"),
    np.core._exceptions._ArrayMemoryError((1 << 40,), np.dtype(float))])
def test_too_little_memory_is_named(error):
    assert errors.resource_error(error).startswith("out of memory")
    caused = ImportError("Error importing numpy")
    caused.__cause__ = error
    assert errors.resource_error(caused).startswith("out of memory")


@pytest.mark.parametrize("use", [lambda: contrib.seq2seq().AttentionWrapper,
                                 lambda: contrib.layers().rev_block])
def test_what_tensorflow_2_lacks_is_named(use):
    with pytest.raises((ModuleNotFoundError, AttributeError)) as lacking:
        use()
    assert "tf.contrib" in errors.resource_error(lacking.value)


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


@pytest.mark.parametrize("has_log", [True, False])
def test_an_unexpected_error_without_room_for_its_log_is_one_line(monkeypatch, capsys, tmp_path,
                                                                  has_log):
    from rpr import cli
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    monkeypatch.setattr(console.QuietLogs, "kept_path", "/dev/full" if has_log else None)
    assert cli.run_command("rpr x", int, "x") == 1
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith("rpr x: unexpected ValueError: invalid literal")
    assert "; its traceback cannot be written: " in line
    assert ("No space left" if has_log else "No such file") in line


def test_a_disk_without_room_for_temporary_files_is_named(monkeypatch, capsys):
    from rpr import cli
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [])
    assert cli.run_command("rpr x", lambda _: tempfile.TemporaryFile(), []) == 1
    assert capsys.readouterr().err == (
        "rpr x: No usable temporary directory found in []: set TMPDIR to one with room\n")
