"""A limit on the time of a whole search."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nas_evidence.plumbing.user_error import UserError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Share of the time that simple models may take from the trials.
_MOST_BESIDE = 0.25


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
        raise UserError(
            "time-limit-form",
            f"a time limit must be a time such as 90s, 10m or 2h, but got {text!r}",
        )
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


@dataclass
class TimeLimit:
    """What is left of a time, and how much of it for trials.

    seconds  from `begun` to the end
    after    seconds that what must follow the trials takes: report and export
    begun    on the monotonic clock
    """

    seconds: float
    after: float = 0.5
    begun: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Return the seconds until the end."""
        return self.seconds - (time.monotonic() - self.begun)

    def for_trials(self) -> float:
        """Return the seconds left for trials: without what follows them.

        Simple models take as long as the report.
        """
        return self.left() - max(self.after, min(2 * self.after, _MOST_BESIDE * self.seconds))

    def for_models(self) -> AbstractContextManager[None]:
        """Return `stopping` for simple models, which leave report and export their time."""
        return self.stopping(max(1.0, self.left() - self.after))

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
