"""The one error that the command line answers with a single line, and why a process failed."""
import errno
import os
import traceback

# Names the pipe in which a stage tells the run why it fails: a disk may be full.
REASON_PIPE = "RPR_REASON_PIPE"
LONGEST_REASON = 2000                                 # characters

_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


class UserError(Exception):
    """Bad input. One line: names the flag, the value and what is allowed."""


def send_failure_reason(reason):
    """Tells the process that waits for this one why it fails.

    Args:
      reason: a line, or an exception, of which the place and the message are told.
    """
    pipe = os.environ.get(REASON_PIPE)
    if pipe:
        if isinstance(reason, BaseException):
            reason = "".join(traceback.format_exception(reason)[-2:]).strip()
        os.write(int(pipe), reason[:LONGEST_REASON].encode())


def resource_error(error):
    """One line, where a full or a read-only disk or too little memory is the cause; else None."""
    if isinstance(error, OSError):
        if error.errno not in _CANNOT_WRITE:
            return None
        what = f"{error.filename or 'cannot write'}: {os.strerror(error.errno)}"
    else:                                             # TensorFlow has errors of its own for it
        causes = ("OOM when allocating", *map(os.strerror, _CANNOT_WRITE))
        what = next((line.strip() for line in str(error).splitlines()
                     if any(cause in line for cause in causes)), None)
        if what is None:
            return None
        if causes[0] in what:
            return f"out of memory: {what}; a smaller batch_size needs less"
    return f"{what}; what was finished before is whole, and the same command goes on from there"
