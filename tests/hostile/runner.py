"""Runs `rpr` commands in forks of one process that has imported TensorFlow and T2T.

Reads a JSON object per line from the standard input: {"argv", "cwd", "env", "stdin", "seconds"};
writes one per line: {"code", "out", "err"}; `code` is null if the command was killed after
`seconds`.
"""
import json
import os
import signal
import sys
import time


def preload():
    """Imports what takes long, but no module that defines flags: commands define them."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from rpr.t2t import compat
    compat.install()
    import rpr
    rpr.register()
    import sacrebleu  # noqa: F401
    from tensor2tensor.utils import decoding, trainer_lib  # noqa: F401

    from rpr.report import results  # noqa: F401


def run(case):
    """Runs a case in a fork; returns its exit code and what it printed."""
    base = os.path.join(case["cwd"], os.pardir, os.path.basename(case["cwd"]))
    paths = {name: f"{base}.{name}" for name in ("in", "out", "err")}
    with open(paths["in"], "w", encoding="utf-8") as text:
        text.write(case["stdin"])
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _become(case, paths)
    code = _wait(child, case["seconds"])
    out, err = (open(paths[name], encoding="utf-8", errors="replace").read()
                for name in ("out", "err"))
    return {"code": code, "out": out, "err": err}


def _become(case, paths):
    """In the child: runs the command and ends."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(case["cwd"])
        os.environ.update(case["env"])
        for number, (name, flags) in enumerate((("in", os.O_RDONLY),
                                                ("out", os.O_WRONLY | os.O_CREAT),
                                                ("err", os.O_WRONLY | os.O_CREAT))):
            descriptor = os.open(paths[name], flags, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)
        from rpr import cli
        from rpr.utils import console
        console.terminal.file = sys.stderr
        sys.argv = ["rpr", *case["argv"]]
        try:
            code = cli.main(case["argv"])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code or 0)


def _wait(child, seconds):
    deadline = time.time() + seconds
    while time.time() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)                                     # nothing else may write between the answers
    preload()
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line))) + "\n")
