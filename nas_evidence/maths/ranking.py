"""How well a score ranks: Spearman, Kendall, regret, each with what resampling says of it.

    rho      Spearman's: correlation of the ranks (ties share their mean rank)
    tau      Kendall's tau-b: concordant minus discordant pairs, corrected for ties
    regret_k max_i y_i - max of y_i over the k best by score: the target lost by trusting it;
             ties in the score count against it: among equals the worst target comes first

    x score [n]    y target [n]    both larger is better, so the sign of rho means what it says
    c counts [B, n]: how often resample b holds datum i

Intervals are bootstrap percentiles over ONE resampling plan for all scores of a group, so that two
scores can be compared resample by resample. With s_ij = sign(x_i - x_j) the centred ranks in a
resample are sum_j c_j s_ij / 2, so that no resample is ever sorted:

    rho = sum_i c_i X_i Y_i / sqrt(sum_i c_i X_i^2 sum_i c_i Y_i^2)    X = s^x c,  Y = s^y c
    tau = c' (s^x * s^y) c  / sqrt(c' |s^x| c   c' |s^y| c)            * elementwise

(Spearman 1904; Kendall 1945; Efron 1979.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]

#: Below this many pairs a correlation says nothing and is undefined.
MIN_PAIRS = 5
N_RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A bootstrap percentile interval."""

    low: float
    high: float


@dataclass(frozen=True)
class RankStatistics:
    """How one score ranks one target.

    rho, tau, regret are None, or empty, where undefined; `reason` then says why in words.
    n pairs were used; n_missing were dropped, one of their values missing.
    """

    n: int
    n_missing: int
    rho: float | None = None
    rho_interval: Interval | None = None
    tau: float | None = None
    tau_interval: Interval | None = None
    regret: Mapping[int, float] | None = None
    reason: str = ""


def resampling_plan(n: int, *, seed: int, n_resamples: int = N_RESAMPLES) -> Floats:
    """Return counts [n_resamples, n]: how often each of n data is drawn, with replacement."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(n, size=(n_resamples, n)) if n else np.empty((n_resamples, 0), int)
    cells = drawn + n * np.arange(n_resamples)[:, None]
    counts = np.bincount(cells.ravel(), minlength=n * n_resamples)
    return counts.reshape(n_resamples, n).astype(np.float64)


def rank_statistics(
    score: ArrayLike, target: ArrayLike, *, plan: Floats, regret_at: Sequence[int] = (1, 3)
) -> RankStatistics:
    """Return how `score` [n] ranks `target` [n], with intervals from `plan` [B, n].

    Missing values (NaN) are dropped pairwise and counted. Undefined for fewer than five pairs and
    where score or target is constant.
    """
    x, y, kept = _complete_pairs(score, target)
    n, n_missing = len(x), int((~kept).sum())
    reason = undefined_reason(x, y)
    if reason:
        return RankStatistics(n, n_missing, reason=reason)
    counts = plan[:, kept]
    return RankStatistics(
        n,
        n_missing,
        rho=float(stats.spearmanr(x, y).statistic),
        rho_interval=_interval(_resampled_rho(x, y, counts)),
        tau=float(stats.kendalltau(x, y).statistic),
        tau_interval=_interval(_resampled_tau(x, y, counts)),
        regret={k: regret(x, y, k) for k in regret_at},
    )


def undefined_reason(score: Floats, target: Floats) -> str:
    """Return why rank statistics of complete pairs are undefined, or an empty string."""
    n = len(score)
    if n < MIN_PAIRS:
        return f"only {n} with both values, at least {MIN_PAIRS} needed"
    if np.ptp(score) == 0:
        return f"the score is the same for all {n}"
    if np.ptp(target) == 0:
        return f"the target is the same for all {n}"
    return ""


def regret(score: ArrayLike, target: ArrayLike, k: int) -> float:
    """Return the target lost by trusting the k best by score, in units of the target.

    Ties in the score count against it.

    >>> regret([3.0, 2.0, 1.0], [0.50, 0.75, 0.25], 1)
    0.25
    """
    x, y = np.asarray(score, np.float64), np.asarray(target, np.float64)
    best_first = np.lexsort((y, -x))  # among equal scores the smallest target first
    return float(y.max() - y[best_first[:k]].max())


def share_at_least_as_good(
    rival: ArrayLike, score: ArrayLike, target: ArrayLike, *, plan: Floats
) -> float | None:
    """Return the share of resamples in which `rival` has at least the rho of `score`.

    None where either rho is undefined on the data for which all three values are known.
    """
    x, z, y = (np.asarray(values, np.float64) for values in (score, rival, target))
    kept = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
    x, y, z, counts = x[kept], y[kept], z[kept], plan[:, kept]
    if undefined_reason(x, y) or undefined_reason(z, y):
        return None
    of_score, of_rival = _resampled_rho(x, y, counts), _resampled_rho(z, y, counts)
    both = np.isfinite(of_score) & np.isfinite(of_rival)
    return float((of_rival[both] >= of_score[both] - 1e-12).mean()) if both.any() else None


def _complete_pairs(
    score: ArrayLike, target: ArrayLike
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    x, y = np.asarray(score, np.float64), np.asarray(target, np.float64)
    kept = np.isfinite(x) & np.isfinite(y)
    return x[kept], y[kept], kept


def _centred_ranks(values: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return twice the centred ranks in each resample [B, n], and its ordered pairs untied [B]."""
    _, level = np.unique(values, return_inverse=True)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=-1))
    mass = np.add.reduceat(counts[:, order], starts, axis=1)  # [B, levels]
    up_to = mass.cumsum(1)
    total = up_to[:, -1:]
    ranks = 2 * up_to - mass - total  # what lies below a level minus what lies above it
    return ranks[:, level], total[:, 0] ** 2 - (mass**2).sum(1)


def _resampled_rho(x: Floats, y: Floats, counts: Floats) -> Floats:
    x_ranks, y_ranks = _centred_ranks(x, counts)[0], _centred_ranks(y, counts)[0]
    above = (counts * x_ranks * y_ranks).sum(1)
    below = (counts * x_ranks**2).sum(1) * (counts * y_ranks**2).sum(1)
    return _ratio(above, below)


def _resampled_tau(x: Floats, y: Floats, counts: Floats) -> Floats:
    signs = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    concordant = ((counts @ signs) * counts).sum(1)
    return _ratio(concordant, _centred_ranks(x, counts)[1] * _centred_ranks(y, counts)[1])


def _ratio(above: Floats, below: Floats) -> Floats:
    """Return above / sqrt(below), NaN for a resample in which one side is constant."""
    ratio = np.full_like(above, np.nan)
    np.divide(above, np.sqrt(below), out=ratio, where=below > 0)
    return ratio.clip(-1, 1)


def _interval(resampled: Floats) -> Interval | None:
    finite = resampled[np.isfinite(resampled)]
    if len(finite) < len(resampled) / 2:
        return None
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))
