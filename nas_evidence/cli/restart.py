"""Go on after Ray has died on this machine: a new process in the place of this one, or a sentence.

Ray ends a process whose raylet is gone, from its own threads and without a word. Everything that
the study needs is on disk before each step, so the process can be replaced (`exec`) at any moment;
the process id, the terminal and the parent stay the same.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nas_evidence.cli.terminal import err, typed

#: Restarts in one run, and the variable that counts them.
MOST = 3
_COUNT = "NAS_EVIDENCE_RESTARTS"


def go_on_without_cluster(place: str, options: Sequence[str], address: str | None) -> None:
    """Replace this process by one that resumes the study, or end it with one sentence.

    Args:
        place: the study.
        options: what the next run also needs.
        address: the cluster that was joined, None if it was our own.
    """
    again = ["resume", place, *options]
    n = int(os.environ.get(_COUNT, "0")) + 1
    stored = "finished trials are stored, and the others have their last checkpoint"
    if address is None and n <= MOST:
        err.print(f"\nRay has died on this machine; {stored}. Starting it again ({n} of {MOST}).")
        _flush()
        script = (
            [sys.argv[0]] if Path(sys.argv[0]).name == "nas-evidence" else ["-m", "nas_evidence"]
        )
        command = [sys.executable, *script, *again]  # it prints commands as this one does
        os.execve(sys.executable, command, {**os.environ, _COUNT: str(n)})
    what = f"Ray has died on this machine, {MOST} times"
    if address:
        what = f"the cluster {address} is lost: its head or Ray on this machine has died"
    err.print(
        f"\nerror: {what}; {stored}. Details: logs/ray.log and "
        f"logs/driver.log of the study. Continue: {typed(*again)}"
    )
    _flush()
    os._exit(1)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
