"""Bad inputs, as data in *.toml: one clear line, and nothing written. README.md has the format."""
import fnmatch
import hashlib
import os
import pathlib
import shutil
import tomllib

import pytest
from conftest import server

HERE = pathlib.Path(__file__).parent
KEYS = {"name", "command", "says", "files", "links", "directories", "remove", "truncate", "code",
        "lines", "changes", "env", "stdin", "seconds"}
FIXTURES = ("trained", "data", "run", "study")


def cases():
    for path in sorted(HERE.glob("*.toml")):
        for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            assert set(case) <= KEYS, f"{path.name}: {case['name']}: {set(case) - KEYS}"
            yield pytest.param(case, id=f"{path.stem}: {case['name']}")


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    """Fixtures that cases copy: {name: function that returns its directory}."""
    import finished_runs
    folder = tmp_path_factory.mktemp("finished")
    return finished_runs.Makers(folder, request)


def snapshot(folder):
    """{path: content, target or kind} of everything below a directory."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "directory"
    return found


def arrange(case, folder, finished, request):
    """Prepares the directory of a case; returns its arguments."""
    words = {"dir": str(folder), "root": str(HERE.parents[1])}
    for name in FIXTURES:
        if any(f"{{{name}}}" in arg for arg in case["command"]):
            source = (request.getfixturevalue("trained").output_dir if name == "trained"
                      else finished.make(name))
            shutil.copytree(source, folder / name, symlinks=True)
            words[name] = str(folder / name)
    for name in case.get("remove", []):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in case.get("directories", []):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, text in case.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes.fromhex(text[4:]) if text.startswith("hex:") else
                         text.replace("{dir}", str(folder)).encode())
    for name, target in case.get("links", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target.replace("{dir}", str(folder)))
    for name, size in case.get("truncate", {}).items():
        os.truncate(folder / name, size)
    argv = case["command"]
    for name, path in words.items():
        argv = [arg.replace(f"{{{name}}}", path) for arg in argv]
    return argv


@pytest.mark.parametrize("case", cases())
def test_a_hostile_input_is_refused_in_one_line(case, finished, tmp_path, request):
    folder = tmp_path / "case"
    folder.mkdir()
    argv = arrange(case, folder, finished, request)
    before = snapshot(folder)
    done = server().run(argv, cwd=folder, env={**os.environ, **case.get("env", {})},
                        stdin=case.get("stdin", ""), seconds=case.get("seconds", 60))
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    shown = f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    code = case.get("code", 1)
    assert done.returncode == code, shown
    wanted = case.get("lines", int(code != 0))
    assert wanted < 0 or len(lines) == wanted, shown
    for word in case["says"]:
        assert word in done.stderr, shown
    assert not {"\x1b", "\x07"} & {*done.stderr, *done.stdout}, shown
    after = snapshot(folder)
    for name in {*before, *after}:
        if before.get(name) != after.get(name):
            assert any(fnmatch.fnmatch(name, pattern) for pattern in case.get("changes", [])), name
