"""Errors that the command line answers with one line, and how a process tells why it failed."""
import errno
import os
import re
import traceback

# Environment variable with the file descriptor for failure reasons; a pipe works when the disk is
# full.
REASON_PIPE = "RPR_REASON_PIPE"
LONGEST_REASON = 2000                                 # characters

_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}

_IN_THE_WAY = {errno.EEXIST: "a file is there, where a directory is needed",
               errno.EISDIR: "a directory is there, where a file is needed",
               errno.ENOTDIR: "one of its parents is a file, not a directory"}

# TensorFlow's errors of a path, such as "/proc/x; No such file or directory".
_PATH_ERROR = re.compile(r"([^;\n]*); (" + "|".join(map(os.strerror, (
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG))) + ")")


class UserError(Exception):
    """Bad input. One line that names the flag or file, its value and what is allowed."""


def send_failure_reason(reason: str | BaseException) -> None:
    """Tells the parent process, if it listens, why this process fails.

    Args:
      reason: a line, or an exception (its place and message are sent).
    """
    pipe = os.environ.get(REASON_PIPE)
    if pipe:
        if isinstance(reason, BaseException):
            reason = "".join(traceback.format_exception(reason)[-2:]).strip()
        os.write(int(pipe), reason[:LONGEST_REASON].encode(errors="replace"))


def resource_error(error: BaseException) -> str | None:
    """One line on a full or read-only disk, a path that cannot be used, or too little memory.

    Args:
      error: of Python or of TensorFlow.

    Returns:
      The line, or None if the error has another cause.
    """
    if isinstance(error, OSError):
        if error.errno in _CANNOT_WRITE:
            cause = f"{error.filename or 'cannot write'}: {os.strerror(error.errno)}"
        elif error.filename and error.errno:
            return f"{error.filename}: {_IN_THE_WAY.get(error.errno) or os.strerror(error.errno)}"
        else:
            return None
    else:                                             # TensorFlow has its own classes of errors
        causes = ("OOM when allocating", *map(os.strerror, _CANNOT_WRITE))
        lines = (line.strip() for line in str(error).splitlines()
                 if any(cause in line for cause in causes))
        cause = next(lines, "")
        if not cause:
            line = _PATH_ERROR.match(str(error))
            return f"{line[1]}: {line[2]}" if line else None
        if causes[0] in cause:
            return f"out of memory: {cause}; a smaller batch_size needs less"
    return f"{cause}; finished stages and checkpoints are kept, and the same command resumes"
