"""A limit on the time of a whole search, on a machine that may become slow meanwhile."""

import hashlib
import os
import re
import signal
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Seconds of work by which the speed of the machine is measured, how often, and how many count:
#: their median, so that a single slow one ends no search.
_PROBE, _EVERY, _PROBES = 0.05, 2.0, 5
#: Bytes that are hashed at once; a thread waits up to 5 ms for the interpreter after each.
_BLOCK = 1 << 25


def seconds_of(text: str | float) -> float:
    """Return the seconds that a time stands for.

    >>> [seconds_of(text) for text in ("90", "90s", "10m", "1.5h", 600)]
    [90.0, 90.0, 600.0, 5400.0, 600.0]

    Raises:
        ValueError: if it is no time above 0.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)\s*([smh]?)", str(text).strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds:
        raise ValueError(f"a time limit must be a time such as 90s, 10m or 2h, but got {text!r}")
    return seconds


def seconds_running() -> float:
    """Return the seconds since this process began; its work alone where the system has no more."""
    worked = time.process_time()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError, ValueError, IndexError):
        return worked
    return max(worked, since_boot - ticks / os.sysconf("SC_CLK_TCK"))


def slowness() -> float:
    """Return the wall seconds that a second of work takes now, at least 1.

    The work is a hash, for which other threads of this process need not stop: they do not count.
    """
    began, worked, block = time.perf_counter(), time.thread_time(), bytes(_BLOCK)
    while time.thread_time() - worked < _PROBE:
        hashlib.sha256(block)
    return max(1.0, (time.perf_counter() - began) / (time.thread_time() - worked))


@dataclass
class TimeLimit:
    """What is left of a time, and how much of it for trials.

    seconds   from `begun` to the end
    work      seconds that what must follow the trials takes on idle cores
    optional  the same of what follows if there is time for it
    begun     on the monotonic clock
    """

    seconds: float
    work: float = 0.5
    optional: float = 0.0
    begun: float = field(default_factory=time.monotonic)
    _slow: deque[float] = field(default_factory=lambda: deque(maxlen=_PROBES))
    _probed: float = 0.0

    def left(self) -> float:
        """Return the seconds until the end."""
        return self.seconds - (time.monotonic() - self.begun)

    def for_trials(self) -> float:
        """Return the seconds left for trials: without what follows them, at the present speed."""
        return self.left() - self.expected(self.work + self.optional)

    def expected(self, work: float) -> float:
        """Return the seconds in which so much work is done at the present speed."""
        if not self._slow or time.monotonic() - self._probed > _EVERY:
            self._slow.extend(slowness() for _ in range(1 if self._slow else _PROBES))
            self._probed = time.monotonic()
        return work * statistics.median(self._slow)

    @contextmanager
    def stopping(self, seconds: float) -> Iterator[None]:
        """Raise TimeoutError in what is inside after so many seconds; in the main thread alone."""

        def stop(signum: int, frame: object) -> None:
            raise TimeoutError(f"no result after {seconds:.0f} s")

        old = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, seconds), 0.2)  # one in __del__ is lost
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
