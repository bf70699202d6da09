"""The rule that decides which trials at a rung are pruned; larger scores are better.

    halving   go on if rank <= max(1, floor(n / eta)), eta = reduction (Li et al. 2020)
    median    go on if score >= median of the others' scores (Golovin et al. 2017)

n counts the trial itself. Rank 1 is best and ties share a rank, so the order in which tied trials
arrive does not matter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Rule = Literal["halving", "median"]


@dataclass(frozen=True)
class RungVerdict:
    """Where a score stands among the others at its rung.

    rank    1 + number of others that are better
    n       scores compared, including its own
    middle  median of the others, -inf if there are none
    """

    rank: int
    n: int
    middle: float
    goes_on: bool


def judge(
    score: float, others: Sequence[float] | NDArray[np.float64], *, rule: Rule, reduction: int
) -> RungVerdict:
    """Return whether a trial with `score` goes on, compared with the `others` [n - 1].

    >>> judge(2.0, [3.0, 1.0, 0.0], rule="halving", reduction=3)
    RungVerdict(rank=2, n=4, middle=1.0, goes_on=False)
    >>> judge(2.0, [3.0, 1.0, 0.0], rule="median", reduction=3).goes_on
    True
    """
    known = np.asarray(others, np.float64)
    rank, n = 1 + int((known > score).sum()), len(known) + 1
    middle = float(np.median(known)) if len(known) else -math.inf
    goes_on = score >= middle if rule == "median" else rank <= n_kept(n, reduction)
    return RungVerdict(rank, n, middle, bool(goes_on))


def n_kept(n: int, reduction: int) -> int:
    """Return how many of `n` trials go on by halving: one in `reduction`, at least one."""
    return max(1, n // reduction)
