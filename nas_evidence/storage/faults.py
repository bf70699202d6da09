"""Faults outside the trials: full disks, and simulated crashes at every write-ahead step.

With NAS_EVIDENCE_CRASH_AT=<arrow> in the environment the process kills itself (SIGKILL) the first
time it passes that arrow, with <arrow>:<n> the n-th time. The crash tests use this.
"""

import errno
import os
import re
import resource
import signal
from collections import Counter
from pathlib import Path

#: The steps of a trial, in order, each named after what has just happened.
ARROWS = (
    "asked",  # the proposal is in the journal
    "assigned",  # assignment.json is written
    "launched",  # the executor has it
    "reported",  # a slice has ended, its checkpoint is written
    "parked",  # off its worker until its batch reaches the rung, or there is budget again
    "ended",  # the record has arrived, nothing is written
    "model",  # the weights are in models/
    "written",  # the Parquet files are written
    "told",  # the journal knows the result
    "removed",  # the attempt folders are removed
)
_PASSED: Counter[str] = Counter()
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
_FULL_TEXT = re.compile(
    rf"\[Errno ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EIO})\]"
    "|No space left|quota exceeded|disk is full|disk I/O error",
    re.IGNORECASE,
)

_MEMORY = re.compile(
    r"allocate memory|not enough memory|out of memory|failed to map segment|bad_alloc|"
    r"can't start new thread",
    re.IGNORECASE,
)


class StudyStoppedError(ValueError):
    """The study cannot continue now; nothing is lost."""


def arrow(name: str) -> None:
    """Kill this process if the environment says so."""
    assert name in ARROWS
    wanted, _, count = os.environ.get("NAS_EVIDENCE_CRASH_AT", "").partition(":")
    if wanted == name:
        _PASSED[name] += 1
        if _PASSED[name] >= int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)


def is_disk_full(error: BaseException | str) -> bool:
    """Return whether an error, or the cause of a loss, means that a disk is full or failing."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return bool(_FULL_TEXT.search(str(error)))


def is_read_only(error: BaseException) -> bool:
    """Return whether an error means that a place may not be written."""
    read_only = {errno.EROFS, errno.EACCES, errno.EPERM}
    if isinstance(error, OSError):
        return error.errno in read_only
    return bool(re.search("readonly database|Read-only file system", str(error)))


def is_memory_full(error: BaseException) -> bool:
    """Return whether an error means that memory is used up, or limited."""
    no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or no_memory or bool(_MEMORY.search(str(error)))


def is_memory_limited() -> bool:
    """Return whether this process may not map as much memory as there is (`ulimit -v`)."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def about_disk(error: BaseException) -> str:
    """Return one sentence about a disk that cannot be written: what, where, and the remedy."""
    why = (getattr(error, "strerror", None) or str(error).splitlines()[0]).rstrip(".")
    where = f" at {name}" if (name := getattr(error, "filename", None)) else ""
    remedy = (
        "give this user the right to do so, or another folder"
        if is_read_only(error)
        else "free space there"
    )
    denied = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM)
    does = "read or write" if denied else "write"
    return f"cannot {does}{where}: {why}; {remedy}, then run the command again. Nothing is lost."


def disk_stop(folder: Path, error: BaseException | str) -> StudyStoppedError:
    """Return the error that stops a study because its disk is full or failing."""
    where = getattr(error, "filename", None) or folder
    return StudyStoppedError(
        f"the disk cannot be written: {error} (at {where}). The study stopped and nothing is "
        f"lost: finished trials are stored, the others resume from checkpoints. Free space below "
        f"{folder}, then resume it."
    )
