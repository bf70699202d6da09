"""Faults outside the trials: full disks, and simulated crashes at every write-ahead step.

With NAS_EVIDENCE_CRASH_AT=<name> in the environment the process kills itself (SIGKILL) the first
time it passes that crash point, with <name>:<n> the n-th time. The crash tests use this. With
NAS_EVIDENCE_SAVE_EVERY=<seconds> a trial writes its checkpoints that often; 0 after each slice.
"""

import errno
import math
import os
import re
import resource
import signal
from collections import Counter
from pathlib import Path

from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError

#: The steps of a trial, in order, each named after what has just happened.
CRASH_POINTS = (
    "asked",  # the proposal is in the log
    "launched",  # the executor has it
    "reported",  # a slice has ended
    "parked",  # off its worker until its batch reaches the rung, or there is budget again
    "ended",  # the record has arrived, nothing is written
    "model",  # the weights are in models/
    "written",  # the Parquet files are written
    "told",  # the log knows the result
    "removed",  # the attempt folders are removed
)
_PASSED: Counter[str] = Counter()
#: Seconds of work after which a trial writes a checkpoint: what a kill may cost.
_SAVE_EVERY = 2.0
_ELSE = "give its place as the URI file:///..., which needs less of a file system"
#: What makes a disk useless to a study, each with the remedy.
_FULL = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there",
    errno.EIO: "check the disk",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`)",
    errno.EMFILE: "raise the limit on open files (`ulimit -n`)",
    errno.ENFILE: "raise the limit on open files (`ulimit -n`)",
    errno.ENOLCK: _ELSE,
    errno.ENOTSUP: _ELSE,
    errno.EXDEV: _ELSE,
}
#: What is in the place of a file or folder of the study.
_OTHER = {
    errno.EISDIR: "move that folder away",
    errno.ENOTDIR: "move away the file that is where a folder belongs",
    errno.EEXIST: "move away the file that is where a folder belongs",
    errno.ENAMETOOLONG: "give it a shorter name",
}
_FULL_TEXT = re.compile(
    rf"\[Errno ({'|'.join(map(str, _FULL))})\]"
    "|No space left|quota exceeded",
    re.IGNORECASE,
)


class StudyStoppedError(UserError):
    """The study cannot continue now; nothing is lost."""


class StoreError(StudyStoppedError):
    """The store cannot be used now; nothing of the study is lost."""


def crash_point(name: str) -> None:
    """Pass a step after which a test may kill this process, by `NAS_EVIDENCE_CRASH_AT`."""
    assert name in CRASH_POINTS
    wanted, _, count = os.environ.get("NAS_EVIDENCE_CRASH_AT", "").partition(":")
    if wanted == name:
        _PASSED[name] += 1
        if _PASSED[name] >= int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)


def seconds_between_checkpoints() -> float:
    """Return after how much work a trial writes a checkpoint; see `NAS_EVIDENCE_SAVE_EVERY`.

    Raises:
        ValueError: if it is no number of seconds from 0 on.
    """
    given = os.environ.get("NAS_EVIDENCE_SAVE_EVERY", "")
    try:
        seconds = float(given) if given.strip() else _SAVE_EVERY
    except ValueError:
        seconds = math.nan
    if seconds >= 0:
        return seconds
    raise UserError(
        "save-every",
        "NAS_EVIDENCE_SAVE_EVERY in the environment must be a number of seconds from 0 on, but is "
        f"{shortened(given)!r}; correct it, or unset it for {_SAVE_EVERY:g}",
    )


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that a disk is of no use now.

    Libraries that write files themselves, as torch and safetensors do, have no type for it.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return bool(_FULL_TEXT.search(str(error)))


def is_read_only(error: BaseException | str) -> bool:
    """Return whether an error means that a place may not be written."""
    read_only = {errno.EROFS, errno.EACCES, errno.EPERM}
    if isinstance(error, OSError):
        return error.errno in read_only
    return bool(re.search("Read-only file system", str(error)))


def is_out_of_place(error: BaseException) -> bool:
    """Return whether a place cannot be: a file where a folder belongs, or a name too long."""
    return isinstance(error, OSError) and error.errno in _OTHER


def is_memory_limited() -> bool:
    """Return whether this process may not map as much memory as there is (`ulimit -v`)."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def about_disk(error: BaseException | str, folder: Path | None = None) -> str:
    """Return one sentence about a disk that cannot be written: what, where, and the remedy.

    Args:
        error: or the cause of a loss.
        folder: the place, if the error does not name it.
    """
    if isinstance(error, OSError) and error.errno is not None:
        number, why, name = error.errno, error.strerror, error.filename
    elif cause := re.search(r"\[Errno (\d+)\] (.+?)(?:: '(.+)')?$", str(error)):
        number, why, name = int(cause[1]), cause[2], cause[3]
    else:
        number, why, name = errno.ENOSPC, str(error).splitlines()[0], None
    remedy = (
        "give this user the right to do so, or another folder"
        if is_read_only(error)
        else (_FULL | _OTHER).get(number, "free space there")
    )
    does = "write" if number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) else "read or write"
    where = f" at {name or folder}" if name or folder else ""
    why = (why or "an error").rstrip(".")
    return f"cannot {does}{where}: {why}; {remedy}, then run the command again. Nothing is lost."


def disk_stop(folder: Path, error: BaseException | str) -> StudyStoppedError:
    """Return the error that stops a study because its disk is full, failing or read-only."""
    return StudyStoppedError("disk-not-usable", about_disk(error, folder))
