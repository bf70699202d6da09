"""What pruning would have done, replayed on trials that ran to completion.

    scores [R, n]  trial i at rung r, larger is better, NaN if unknown; rungs in order of time

The rule is the scheduler's, in `maths/pruning_rule.py`. A trial without a score goes on. `cohort`
compares all trials at a rung at once, so their order does not matter.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nas_evidence.maths.pruning_rule import Rule, judge, n_kept


@dataclass(frozen=True)
class Cut:
    """One cohort at one rung; `place` [n] ranks known scores from 1, unknown ones are 0."""

    n: int
    n_kept: int
    place: NDArray[np.int64]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Tell which trials go on [n]."""
        return self.place <= self.n_kept


def cohort(scores: ArrayLike, *, rule: Rule, reduction: int) -> Cut:
    """Return which trials with `scores` [n] at one rung go on; ties share a place.

    >>> cohort([3.0, 1.0, 2.0, 0.0, 4.0, -1.0], rule="halving", reduction=3).kept.tolist()
    [True, False, False, False, True, False]
    """
    values = np.asarray(scores, np.float64)
    finite = np.isfinite(values)
    known = values[finite]
    judged = [
        judge(one, np.delete(known, i), rule=rule, reduction=reduction)
        for i, one in enumerate(known)
    ]
    place = np.zeros(len(values), np.int64)
    place[finite] = [one.rank for one in judged]
    n_on = sum(one.goes_on for one in judged)
    return Cut(len(known), n_on if rule == "median" else n_kept(len(known), reduction), place)


def stopping_rungs(
    scores: ArrayLike, *, rule: Rule, reduction: int, startup_trials: int
) -> NDArray[np.int64]:
    """Return the rung [n] at which each trial is stopped, R for those that run to the end.

    Trials arrive in the order of the columns, as a single worker would run them. No trial is
    stopped at a rung before `startup_trials` trials, including itself, have reached it.
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
            goes_on = early or judge(score, before, rule=rule, reduction=reduction).goes_on
            before.append(score)
            if not goes_on:
                stopped[trial] = rung
                break
    return stopped
