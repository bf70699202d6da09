"""What pruning would have done, replayed on trials that ran to their end.

    scores [R, n]  larger is better, NaN where unknown: trial i at rung r, rungs in order of time

    halving   at a rung, the best 1/eta of all trials seen there go on (Li et al. 2020)
    median    those at least as good as the median of the others go on (Golovin et al. 2017)

A trial of unknown score goes on: nothing speaks against it. In the `cohort` all trials stand at
the rung together, so that the order in which they came does not matter.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rule = Literal["halving", "median"]


@dataclass(frozen=True)
class Cut:
    """One cohort at one rung; `place` counts from 1 among the known scores [n], 0 for unknown."""

    n: int
    n_kept: int
    place: NDArray[np.int64]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Tell which trials go on [n]."""
        return self.place <= self.n_kept


def cohort(scores: ArrayLike, *, rule: Rule, reduction: int) -> Cut:
    """Return who of all trials with `scores` [n] at one rung goes on; ties share a place.

    >>> cohort([3.0, 1.0, 2.0, 0.0, 4.0, -1.0], rule="halving", reduction=3).kept.tolist()
    [True, False, False, False, True, False]
    """
    values = np.asarray(scores, np.float64)
    known = values[np.isfinite(values)]
    place = np.zeros(len(values), np.int64)
    finite = np.isfinite(values)
    place[finite] = 1 + len(known) - np.searchsorted(np.sort(known), values[finite], side="right")
    n_kept = kept_of(len(known), reduction)
    if rule == "median":
        n_kept = sum(
            len(known) < 2 or one >= np.median(np.delete(known, i)) for i, one in enumerate(known)
        )
    return Cut(len(known), n_kept, place)


def kept_of(n: int, reduction: int) -> int:
    """Return how many of `n` trials go on by halving: one in `reduction`, and always one."""
    return max(1, n // reduction)


def stopping_rungs(
    scores: ArrayLike, *, rule: Rule, reduction: int, startup_trials: int
) -> NDArray[np.int64]:
    """Return the rung [n] at which each trial is stopped, R for those that run to the end.

    Trials come one after another, in the order of the columns, as one worker would run them; no
    trial is stopped at a rung before `startup_trials`, itself included, were seen there.
    """
    table = np.asarray(scores, np.float64)  # [R, n]
    seen: list[list[float]] = [[] for _ in table]
    stopped = np.full(table.shape[1], len(table), np.int64)
    for trial in range(table.shape[1]):
        for rung, before in enumerate(seen):
            score = float(table[rung, trial])
            if not np.isfinite(score):
                continue
            early = not before or len(before) + 1 < startup_trials
            goes_on = early or _goes_on(score, before, rule, reduction)
            insort(before, score)
            if not goes_on:
                stopped[trial] = rung
                break
    return stopped


def _goes_on(score: float, before: list[float], rule: Rule, reduction: int) -> bool:
    """Tell whether a trial goes on, given the scores of those before it, sorted."""
    if rule == "median":
        return score >= median(before)
    n_better = len(before) - bisect_left(before, np.nextafter(score, np.inf))
    return n_better < kept_of(len(before) + 1, reduction)
