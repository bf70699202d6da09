"""Waiting for other processes."""

import time
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
