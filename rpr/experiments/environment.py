"""The environment of a run: versions, processor, GPUs and command line.

    RUN/environment.json    written when the run starts

The same configuration and seed give the same bits only in the same environment, so a resumed run
says what changed.
"""
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from typing import Any

from rpr.experiments.run_directory import RunDirectory
from rpr.utils import files
from rpr.utils.console import say

_TENSORFLOW = ("tensorflow", "tensorflow-cpu")
_PACKAGES = ("numpy", "tensor2tensor", "sacrebleu", "gin-config")
# A training keeps the number of threads that it started with, wherever it is resumed.
_HARMLESS = ("command", "cores")
_TIMEOUT = 10.0                                       # seconds


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
