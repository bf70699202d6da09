"""What can go wrong around a study: full disks, and crashes at every write-ahead step.

With NAS_EVIDENCE_CRASH_AT=<arrow> in the environment the process kills itself (SIGKILL) the first
time that it passes that arrow, with <arrow>:<n> the n-th time. Crash tests need nothing else.
"""

import errno
import os
import re
import signal
from collections import Counter
from pathlib import Path

#: The steps of a trial, in order; a name says what has just happened.
ARROWS = (
    "asked",  # the proposal is in the database
    "assigned",  # assignment.json is written
    "launched",  # the executor has it
    "reported",  # a slice is over, its checkpoint written
    "parked",  # off its worker until its batch has reached the rung, or there is budget again
    "ended",  # the record is here, nothing of it written
    "model",  # the weights are in models/
    "written",  # the Parquet files are there
    "told",  # the database knows the result
    "removed",  # the attempt folders are gone
)
_PASSED: Counter[str] = Counter()
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
_FULL_TEXT = re.compile(
    rf"\[Errno ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EIO})\]"
    "|No space left|quota exceeded|disk is full|disk I/O error",
    re.IGNORECASE,
)


class StudyStoppedError(ValueError):
    """The study cannot go on now, and nothing of it is lost."""


def arrow(name: str) -> None:
    """Die here if the environment asks for it."""
    assert name in ARROWS
    wanted, _, count = os.environ.get("NAS_EVIDENCE_CRASH_AT", "").partition(":")
    if wanted == name:
        _PASSED[name] += 1
        if _PASSED[name] >= int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)


def is_disk_full(error: BaseException | str) -> bool:
    """Tell whether an error, or the cause of a loss, says that a disk takes no more."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return bool(_FULL_TEXT.search(str(error)))


def disk_stop(folder: Path, error: BaseException | str) -> StudyStoppedError:
    """Return the stop of a study whose disk takes no more."""
    where = getattr(error, "filename", None) or folder
    return StudyStoppedError(
        f"the disk takes no more: {error} (at {where}). The study stopped and nothing is lost: "
        f"what is finished is stored, the rest goes on from its checkpoints. Free space below "
        f"{folder}, then resume it."
    )
