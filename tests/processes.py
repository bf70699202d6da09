"""Other processes: forked, listed, waited for."""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], object], what: str = "it", seconds: float = 600) -> None:
    """Return when the condition holds; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Tell whether a process runs: one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes() -> dict[int, tuple[int, int, str]]:
    """Return parent, session and command of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                given = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                command = given.decode(errors="replace")
                if stat[0] != "Z":
                    found[int(entry.name)] = (int(stat[1]), int(stat[3]), command)
    return found


def members(session: int) -> dict[int, str]:
    """Return the living processes of a session: pid -> command."""
    return {pid: command for pid, (_, its, command) in processes().items() if its == session}


def in_a_process(do: Callable[[], object], *, crash_at: str = "") -> int:
    """Return how a process ended that did it: 0, or minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ["NAS_EVIDENCE_CRASH_AT"] = crash_at
            do()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
