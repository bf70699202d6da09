"""Which trials are still begun where the time of a search is limited.

A trial is begun if it is expected to end in time, as the last ones did. A search whose first
architectures race leaves them a share of its time.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable

from nas_evidence.spec.record import Stage

#: Share of all trials that the race has by default: a third of those of the search.
_RACE_SHARE = 0.25
#: Trials whose mean time is expected of the next: the machine may have become slower.
_RECENT = 5


class Deadline:
    """The seconds left, and the times of the last trials.

    limited   there is a limit
    searched  nothing more is proposed
    full      no trial of the race is begun
    ended_whole  no network of all rows is begun
    over      what runs is stopped; what has a checkpoint is continued by the next run
    """

    def __init__(self, left: Callable[[], float] | None) -> None:
        """Take the function that returns the seconds left for trials; None without a limit."""
        self._left, self._total, self.limited = left, math.inf, left is not None
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._began: dict[int, float] = {}
        self.searched = self.full = self.ended_whole = self.over = False

    def begin(self) -> None:
        """Note that trials may begin from now on."""
        self._total = self.left()

    def left(self) -> float:
        """Return the seconds left for trials."""
        left = math.inf if self._left is None else self._left()
        self.over |= left <= 0
        return left

    def launched(self, trial_id: int, now: float) -> None:
        """Note when a trial began."""
        self._began[trial_id] = now

    def ended(self, trial_id: int, now: float) -> None:
        """Note when it ended."""
        self._recent.append(now - self._began.pop(trial_id, now))

    def fits(self, stage: Stage, *, races: bool, follows: bool) -> bool:
        """Return whether a trial is expected to end in time; if not, none of its kind is begun.

        Args:
            stage: when it runs.
            races: whether time is limited, and a race would follow if the search ended now.
            follows: whether time is limited, and the leader is trained on all rows then.
        """
        each = statistics.mean(self._recent) if self._recent else 0.0
        reserved = _RACE_SHARE * self._total if races and stage == "search" else 0.0
        reserved += each if follows and stage != "whole" else 0.0
        fits = self.left() > reserved + each
        if not fits:
            self.cut(stage)
        return fits

    def has_room(self, seconds: float) -> bool:
        """Return whether a slice of a trial may begin that takes so long.

        Until a trial has ended, any: a search without one has nothing to report.
        """
        return not self._recent or seconds <= self.left()

    def cut(self, stage: Stage) -> None:
        """Note that a trial of this kind has to wait for the next run."""
        self.searched, self.full = True, self.full or stage != "search"
        self.ended_whole |= stage == "whole"
