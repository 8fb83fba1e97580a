"""What a run was made from: its corpus and the user's own code, recorded and compared.

    RUN/data.json    {"problem", "sources": {"train source": {"path", "lines", "sha256"}}}
    RUN/code.json    {"usr_dir", "files": {"my_scheme.py": SHA-256}}
"""
import dataclasses
import functools
import gzip
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import zlib
from typing import Any

from rpr.experiments import gin_files
from rpr.experiments.config import TEXT_FILES, Run
from rpr.experiments.run_directory import RunDirectory, data_record
from rpr.utils import files
from rpr.utils.console import say
from rpr.utils.errors import InvalidValue, UserError

_SOURCE = {"sha256": str, "path?": str, "lines?": int}
_DATA = {"problem": str, "sources": {"*": _SOURCE}}
_DATAGEN = {"sources": {"*": (str, {"*": (str, int, None)})},
            "settings?": {"approx_vocab_size?": (int, None)}}
_CODE = {"usr_dir": str, "files": {"*": str}}
_TENSORFLOW = ("tensorflow", "tensorflow-cpu")
_PACKAGES = ("numpy", "tensor2tensor", "sacrebleu", "gin-config")
# A training keeps the number of threads that it started with, wherever it is resumed.
_HARMLESS = ("command", "cores")
_TIMEOUT = 10.0                                       # seconds


def check_corpus(run: Run, run_dir: RunDirectory) -> None:
    """Refuses to resume a run, finished or not, whose corpus has changed.

    Raises:
      UserError: names the file that changed, and what the run was made from.
    """
    _check_vocabulary(run, run_dir)
    recorded = files.read_json(run_dir.data, _DATA)
    if not recorded:
        return
    current = {name: _file_facts(path)["sha256"] for name, path in text_files(run).items()}
    if not current:
        current = {name: facts["sha256"] for name, facts in _datagen_sources(run, run_dir).items()}
    for name, facts in recorded["sources"].items():
        if name in current and current[name] != facts["sha256"]:
            path = text_files(run).get(name, run_dir.data_dir)
            raise UserError(f"{run_dir.path} was made from other text: {name} {path} has SHA-256 "
                            f"{current[name][:12]}..., the run's has {facts['sha256'][:12]}...; "
                            "give the text of the run, or take another directory")
    for name in sorted(current.keys() ^ recorded["sources"].keys()
                       if current and recorded["sources"] else ()):
        change = "is new" if name in current else "is missing"
        raise UserError(f"{run_dir.path} was made from other text: {name} {change}; give the text "
                        "of the run, or take another directory")


def _check_vocabulary(run: Run, run_dir: RunDirectory) -> None:
    record = files.read_json(data_record(run, run_dir.data_dir), _DATAGEN,
                             "remove it and generate the data again")
    made = record.get("settings", {}).get("approx_vocab_size")
    if run.text_vocab_size and made not in (None, run.text_vocab_size):
        raise UserError(f"run.text_vocab_size = {run.text_vocab_size}: the data in "
                        f"{run_dir.data_dir} was made with {made}; take another directory")


def record_corpus(run: Run, run_dir: RunDirectory) -> None:
    """Writes RUN/data.json from the record of `rpr datagen`, unless it is there."""
    if os.path.exists(run_dir.data):
        return
    sources, paths = _datagen_sources(run, run_dir), text_files(run)
    for name, facts in sources.items():
        if name in paths and "lines" not in facts:
            now = _file_facts(paths[name])
            if now["sha256"] != facts["sha256"]:
                raise UserError(f"{paths[name]}: it is not the {name} from which the data in "
                                f"{run_dir.data_dir} was made")
            facts |= now
    files.write_atomically(run_dir.data, json.dumps(
        {"problem": run.problem, "sources": sources}, indent=1) + "\n")


def text_files(run: Run) -> dict[str, str]:
    """{"train source": path}: the text files of `translate_text_files`; empty for other problems.

    They are named by the run, else by environment variables.

    Raises:
      UserError: there is no such file.
    """
    if run.problem != "translate_text_files":
        return {}
    paths = {}
    for setting, variable in TEXT_FILES.items():
        path = getattr(run, setting) or os.environ.get(variable)
        if path:
            name = setting.removeprefix("text_").replace("_", " ")
            paths[name if " " in name else f"train {name}"] = os.path.abspath(path)
            if not os.path.isfile(path):
                raise UserError(f"run.{setting} or {variable} = {path}: there is no such file")
    return paths


def with_usr_dir(run: Run, usr_dir: str | None, gin_file: str) -> Run:
    """The run of a gin file with the usr_dir of the command line, if that names one.

    Raises:
      UserError: only `gin_file` names a usr_dir, and it is in a run or study directory. Such a
        file may come from somebody else and must not choose which code runs.
    """
    if usr_dir is None:
        if run.usr_dir and gin_files.is_record(gin_file):
            raise InvalidValue("t2t_usr_dir", None, f"{gin_file} was made with code of your own, "
                               f"in {run.usr_dir}")
        usr_dir = run.usr_dir
    if not usr_dir:
        return run
    usr_dir = os.path.abspath(os.path.expanduser(usr_dir))
    digests(usr_dir)
    return dataclasses.replace(run, usr_dir=usr_dir)


def record_code(run: Run, run_dir: RunDirectory) -> None:
    """Writes RUN/code.json: the user's own files, by content. Says what changed since then."""
    if not run.usr_dir:
        return
    path = run_dir.file("code.json")
    current, before = digests(run.usr_dir), files.read_json(path, _CODE)
    if before:
        changed = [name for name in sorted({*current, *before["files"]})
                   if current.get(name) != before["files"].get(name)]
        if changed:
            say(f"{run_dir.path}: changed in run.usr_dir since this run began: "
                f"{', '.join(changed[:6])}", style="yellow")
        return
    files.write_atomically(path, json.dumps({"usr_dir": run.usr_dir, "files": current},
                                            indent=1) + "\n")


def digests(usr_dir: str) -> dict[str, str]:
    """{relative path: SHA-256} of the Python files below a directory."""
    if not os.path.isdir(usr_dir):
        raise UserError(f"run.usr_dir = {usr_dir}: there is no such directory")
    hashes = {}
    for directory, _, names in os.walk(usr_dir):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(directory, name)
                hashes[os.path.relpath(path, usr_dir)] = files.sha256(path)
    return dict(sorted(hashes.items()))


def _datagen_sources(run: Run, run_dir: RunDirectory) -> dict[str, dict[str, Any]]:
    """The sources in the record of `rpr datagen`; empty if there is no record, or an old one."""
    path = data_record(run, run_dir.data_dir)
    record = files.read_json(path, _DATAGEN, "remove it and generate the data again")
    sources = record.get("sources", {})
    return {name: {"sha256": facts} if isinstance(facts, str) else dict(facts)
            for name, facts in sources.items()
            if isinstance(facts, str) or isinstance(facts.get("sha256"), str)}


def _file_facts(path: str) -> dict[str, Any]:
    status = os.stat(path)
    return _facts_of(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _facts_of(path: str, *_: int) -> dict[str, Any]:
    """Path, lines and SHA-256 of a text file; the cache is valid until the file changes."""
    opened: Any = gzip.open if path.endswith(".gz") else open
    lines, end = 0, b"\n"                             # the last line may lack a line feed
    try:
        with opened(path, "rb") as text:
            while block := text.read(1 << 20):
                lines, end = lines + block.count(b"\n"), block[-1:]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    return {"path": path, "lines": lines + (end != b"\n"), "sha256": files.sha256(path)}


def record_environment(run_dir: RunDirectory) -> None:
    """Writes RUN/environment.json; if it is there, says what differs from it now."""
    path = run_dir.file("environment.json")
    recorded, current = files.read_json(path), describe_environment()
    if not recorded:
        files.write_atomically(path, json.dumps(current, indent=1) + "\n")
        return
    changes = [f"{name} {_show(recorded[name])} -> {_show(current[name])}"
               for name in current if name not in _HARMLESS
               and name in recorded and recorded[name] != current[name]]
    if changes:
        say(f"{run_dir.path}: resumed in another environment, so the last bits may differ: "
            f"{'; '.join(changes)}", style="yellow")


def describe_environment() -> dict[str, Any]:
    """The environment of this process, as JSON values."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "tensorflow": next(filter(None, map(_version, _TENSORFLOW)), ""),
        **{name: _version(name) for name in _PACKAGES},
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") not in ("0", "false"),
        "deterministic_ops": os.environ.get("TF_DETERMINISTIC_OPS", "0").lower() in ("1", "true"),
        "rpr": {"version": _version("rpr"), **_git_state()},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": (_output("nvidia-smi", "--query-gpu=name,driver_version",
                         "--format=csv,noheader") or "").splitlines(),
    }


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return value.get("commit", "")[:12] + ("" if value.get("clean", True) else " with changes")
    return str(value)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _git_state() -> dict[str, Any]:
    """The commit that this code was checked out from, and whether its files are unchanged; empty
    where git cannot say."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.path.exists(os.path.join(root, ".git")):
        return {}
    commit = _output("git", "-C", root, "rev-parse", "HEAD")
    changes = _output("git", "-C", root, "status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return {}
    return {"commit": commit.strip(), "clean": not changes.strip()}


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines
                         if line.startswith("model name")), platform.processor())
    except OSError:
        return platform.processor()


def _output(*command: str) -> str | None:
    """The output of a program; None if it is missing or fails."""
    # A git hook's GIT_DIR names another repository.
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("GIT_")}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT,
                              check=True, env=environment).stdout
    except (OSError, subprocess.SubprocessError):
        return None
