"""What a run was made from: its corpus and the user's own code, recorded and compared.

    RUN/data.json    {"problem", "sources": {"train source": {"path", "lines", "sha256"}},
                     "trained_length": N, where the problem says what its longest source is}
    RUN/code.json    {"usr_dir", "files": {"my_scheme.py": SHA-256}}
"""
import contextlib
import dataclasses
import functools
import gzip
import importlib.metadata
import os
import platform
import subprocess
import sys
import zlib
from typing import Any

from rpr.experiments import gin_files
from rpr.experiments.config import TEXT_FILES, TEXT_PROBLEMS, Run
from rpr.experiments.run_directory import RunDirectory, data_record
from rpr.utils import files
from rpr.utils.console import say
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.interfaces import EXAMPLES

_SOURCE = {"sha256": str, "path?": str, "lines?": int}
_DATA = {"problem": str, "sources": {"*": _SOURCE}}
_DATAGEN = {"sources": {"*": (str, {"*": (str, int, None)})},
            "settings?": {"approx_vocab_size?": (int, None)}, "trained_length?": int}
_CODE = {"usr_dir": str, "files": {"*": str}}
_TENSORFLOW = ("tensorflow", "tensorflow-cpu")
_PACKAGES = ("numpy", "tensor2tensor", "sacrebleu", "gin-config")
# A training keeps the number of threads that it started with, wherever it is resumed.
_HARMLESS = ("command", "cores")
_TIMEOUT = 10.0                                       # seconds


def check_corpus(run: Run, run_dir: RunDirectory) -> None:
    """Refuses to resume a run, finished or not, whose corpus has changed."""
    record, sources = _made_from(run, run_dir)
    size = record.get("settings", {}).get("approx_vocab_size")
    if run.text_vocab_size and size not in (None, run.text_vocab_size):
        raise UserError(f"run.text_vocab_size = {run.text_vocab_size}: the data in "
                        f"{run_dir.data_dir} was made with {size}; take another directory")
    recorded = files.read_json(run_dir.data, _DATA).get("sources", {})
    if not recorded:
        return
    paths = text_files(run)
    current = {name: _file_facts(path) for name, path in paths.items()} or sources
    for name in sorted(current.keys() | recorded.keys() if current else ()):
        now, before = (facts.get(name, {}).get("sha256", "") for facts in (current, recorded))
        if name == EXAMPLES and not (now and before):           # older records lack it
            continue
        if now != before:
            change = (f"{paths.get(name, run_dir.data_dir)} has SHA-256 {now[:12]}..., the run's "
                      f"has {before[:12]}..." if now and before
                      else "is new" if now else "is missing")
            raise UserError(f"{run_dir.path} was made from other text: {name} {change}; give the "
                            "text of the run, or take another directory")


def record_corpus(run: Run, run_dir: RunDirectory) -> None:
    """Writes RUN/data.json from the record of `rpr datagen`, unless it is there."""
    if os.path.exists(run_dir.data):
        return
    record, sources = _made_from(run, run_dir)
    paths = text_files(run)
    for name, facts in sources.items():
        if name in paths and "lines" not in facts:
            now = _file_facts(paths[name])
            if now["sha256"] != facts["sha256"]:
                raise UserError(f"{paths[name]}: it is not the {name} from which the data in "
                                f"{run_dir.data_dir} was made")
            facts |= now
    length = {"trained_length": record["trained_length"]} if "trained_length" in record else {}
    files.write_json(run_dir.data, {"problem": run.problem, "sources": sources, **length})


def text_files(run: Run) -> dict[str, str]:
    """{"train source": path}: the text files of `TEXT_PROBLEMS`; empty for other problems.

    They are named by the run, else by environment variables, and must exist.
    """
    if run.problem not in TEXT_PROBLEMS:
        return {}
    paths = {}
    for setting, variable in TEXT_FILES.items():
        path = getattr(run, setting) or os.environ.get(variable)
        if path and not (run.is_language_model and setting.endswith("target")):
            name = setting.removeprefix("text_").replace("_", " ")
            paths[name if " " in name else f"train {name}"] = os.path.abspath(path)
            if not os.path.isfile(path):
                raise UserError(f"run.{setting} or {variable} = {path}: no such file")
    return paths


def with_usr_dir(run: Run, usr_dir: str | None, gin_file: str) -> Run:
    """The run of a gin file with the usr_dir of the command line, if that names one.

    A file in a run or study directory may come from somebody else and must not choose which code
    runs: if it alone names a usr_dir, it is refused.
    """
    if not usr_dir:
        if run.usr_dir and gin_files.is_record(gin_file):
            raise InvalidValue("t2t_usr_dir", None, f"a file named {os.path.basename(gin_file)} is "
                               "a record, which may not choose what code is imported; that of "
                               f"{gin_file} is in {run.usr_dir}")
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
    path, current = run_dir.file("code.json"), digests(run.usr_dir)
    before = files.read_json(path, _CODE).get("files")
    if before is None:
        files.write_json(path, {"usr_dir": run.usr_dir, "files": current})
        return
    changed = [name for name in sorted({*current, *before})
               if current.get(name) != before.get(name)]
    if changed:
        say(f"{run_dir.path}: changed in run.usr_dir since this run began: "
            f"{', '.join(changed[:6])}", style="yellow")


def digests(usr_dir: str) -> dict[str, str]:
    """{relative path: SHA-256} of the Python files below a directory."""
    if not os.path.isdir(usr_dir):
        raise UserError(f"run.usr_dir = {usr_dir}: no such directory")
    paths = sorted(os.path.join(directory, name) for directory, _, names in os.walk(usr_dir)
                   for name in names if name.endswith(".py"))
    return {os.path.relpath(path, usr_dir): files.sha256(path) for path in paths}


def _made_from(run: Run, run_dir: RunDirectory
               ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The record of `rpr datagen`, and the sources in it."""
    record = files.read_json(data_record(run, run_dir.data_dir), _DATAGEN,
                             "remove it and generate the data again")
    sources = {name: {"sha256": facts} if isinstance(facts, str) else dict(facts)
               for name, facts in record.get("sources", {}).items()}
    return record, {name: facts for name, facts in sources.items()
                    if isinstance(facts.get("sha256"), str)}


def _file_facts(path: str) -> dict[str, Any]:
    """Path, lines and SHA-256 of a text file."""
    status = os.stat(path)
    return _read_facts(path, status.st_size, status.st_mtime_ns)


@functools.cache
def _read_facts(path: str, *_: int) -> dict[str, Any]:
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
        files.write_json(path, current)
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
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() not in ("0", "false"),
        "deterministic_ops": os.environ.get("TF_DETERMINISTIC_OPS", "0").lower() in ("1", "true"),
        "rpr": {"version": _version("rpr"), **_git_state()},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": (_output("nvidia-smi", "--query-gpu=name,driver_version",
                         "--format=csv,noheader") or "").splitlines(),
    }


def _show(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return value.get("commit", "")[:12] + ("" if value.get("clean", True) else " with changes")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _git_state() -> dict[str, Any]:
    """The commit of this code, and whether its files are unchanged; {} if git cannot say."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.path.exists(os.path.join(root, ".git")):
        return {}
    commit = _output("git", "-C", root, "rev-parse", "HEAD")
    changes = _output("git", "-C", root, "status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return {}
    return {"commit": commit.strip(), "clean": not changes.strip()}


def _cpu_model() -> str:
    """Its name and numbers: virtual machines give unlike processors one name, such as AMD EPYC."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    if "model name" not in found:
        return platform.processor()
    numbers = [f"{name} {found[key]}" for name, key in (("family", "cpu family"),
                                                        ("model", "model")) if key in found]
    return found["model name"] + (f" ({', '.join(numbers)})" if numbers else "")


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
