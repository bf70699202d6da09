"""How well a score ranks: Spearman, Kendall and regret, with bootstrap intervals.

    rho      Spearman's: correlation of the ranks (ties share their mean rank)
    partial  Spearman's, given a third quantity z:
             (rho_xy - rho_xz rho_yz) / sqrt((1 - rho_xz^2) (1 - rho_yz^2))
    tau      Kendall's tau-b: concordant minus discordant pairs, corrected for ties
    regret_k max_i y_i - max of y_i over the k best by score: the loss in the target from
             trusting the score; among ties in the score the worst target comes first

    x score [n]    y target [n]    both larger is better, so the sign of rho means what it says
    c counts [B, n]: how often resample b contains datum i; internally [n, B], so that sorting
      the data moves whole rows of memory

Intervals are bootstrap percentiles. Below 12 pairs these are too short (at rho 0.97 and 6 pairs
they hold it in 73 % of samples), so those of correlations also hold Fisher's interval,

    tanh(atanh r ± 1.96 s)    s^2 = (1 + r^2 / 2) / (n - 3)  rho
                                    0.437 / (n - 4)          tau
    |r| at most 1 - 2 / (n (n - 1)), half a step of tau below 1; the partial rho with n - 1

(Bonett and Wright 2000; Fieller, Hartley and Pearson 1957). Both are of pairs drawn at random.
All scores of a group use ONE resampling plan, so two scores can be compared resample by resample.
With s_ij = sign(x_i - x_j) the centred ranks in a resample are sum_j c_j s_ij / 2, so no resample
needs sorting:

    rho = sum_i c_i X_i Y_i / sqrt(sum_i c_i X_i^2 sum_i c_i Y_i^2)    X = s^x c,  Y = s^y c
    tau = c' (s^x * s^y) c  / sqrt(c' |s^x| c   c' |s^y| c)            * elementwise

The regret in a resample is over its distinct data. Resamples with an undefined value are ignored.
An infinite value has a place in the order, first or last; only NaN is missing. The regret of a
choice is infinite where its best target is -inf and another is not.
Of more than 600 data, resamples of a correlation are of 600 of them, drawn at random, and the
interval is shrunk by sqrt(600 / n) around the correlation of all (m out of n; Bickel, Goetze and
van Zwet 1997). Of so many data each is in a resample with probability 1 - 1/e, independently.
(Spearman 1904; Kendall 1945; Efron 1979.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.special import comb

Floats = NDArray[np.float64]

#: A correlation of fewer pairs is undefined.
MIN_PAIRS = 5
MAX_RESAMPLES = 2000
MIN_RESAMPLES = 500
RESAMPLED_CELLS = 600_000
#: Maximum number of data that are resampled.
MOST_RESAMPLED = 600
#: Of so many data the best that decide a regret in a resample: fewer than ten of 64 never occur.
_DECIDE = 64
LEVEL = 0.95
#: Minimum number of pairs for which a percentile interval is long enough by itself.
FEW = 12


@dataclass(frozen=True)
class Interval:
    """A bootstrap percentile interval."""

    low: float
    high: float


@dataclass(frozen=True)
class RankStatistics:
    """How one score ranks one target.

    rho, tau, regret are None, or empty, where undefined; `reason` then says why.

    `regret` and its intervals are keyed by k. `partial` is None without a third quantity, or
    where that quantity determines score or target completely.
    n pairs were used; n_missing were dropped because a value was missing.
    """

    n: int
    n_missing: int
    rho: float | None = None
    rho_interval: Interval | None = None
    tau: float | None = None
    tau_interval: Interval | None = None
    regret: Mapping[int, float] | None = None
    regret_intervals: Mapping[int, Interval | None] | None = None
    partial: float | None = None
    partial_interval: Interval | None = None
    reason: str = ""


def resampling_plan(n: int, *, seed: int, n_resamples: int | None = None) -> Floats:
    """Return counts [B, n]: how often each of n data is drawn, with replacement.

    B is `n_resamples`, by default MAX_RESAMPLES for few data and less for many, where intervals
    are narrow. Of many data only MOST_RESAMPLED are drawn from, and as many are drawn.
    """
    if n_resamples is None:
        n_resamples = min(MAX_RESAMPLES, max(MIN_RESAMPLES, RESAMPLED_CELLS // max(n, 1)))
    rng, m = np.random.default_rng(seed), min(n, MOST_RESAMPLED)
    drawn = rng.integers(m, size=(n_resamples, m)) if n else np.empty((n_resamples, 0), int)
    if m < n:
        drawn = rng.choice(n, m, replace=False)[drawn]
    cells = drawn + n * np.arange(n_resamples)[:, None]
    counts = np.bincount(cells.ravel(), minlength=n * n_resamples).reshape(n_resamples, n)
    return np.ascontiguousarray(counts.T, np.float64).T


def rank_statistics(
    score: ArrayLike,
    target: ArrayLike,
    *,
    plan: Floats,
    given: ArrayLike | None = None,
    regret_at: Sequence[int] = (1, 3, 10),
) -> RankStatistics:
    """Return how `score` [n] ranks `target` [n], with intervals from `plan` [B, n].

    Pairs with a missing value (NaN) are dropped and counted. Undefined for fewer than five pairs
    or a constant score or target. The partial correlation is given `given` [n].
    """
    x, y, kept = _complete_pairs(score, target)
    n, n_missing = len(x), int((~kept).sum())
    reason = undefined_reason(x, y)
    if reason:
        return RankStatistics(n, n_missing, reason=reason)
    few, counts = _resampled(plan, kept)
    x_few, y_few = x[few], y[few]
    x_ranks, x_pairs = _centred_ranks(x_few, counts)
    y_ranks, y_pairs = _centred_ranks(y_few, counts)
    rho = _correlation(x_ranks, y_ranks, counts)
    partial = partial_interval = None
    if given is not None:
        taken_out = np.asarray(given, np.float64)[kept]
        partial = _partial(x, y, taken_out)
        if partial is not None:
            z_ranks = _centred_ranks(taken_out[few], counts)[0]
            of_z = (_correlation(ranks, z_ranks, counts) for ranks in (x_ranks, y_ranks))
            of_few = _partial(x_few, y_few, taken_out[few]) if len(few) < n else partial
            shrunk = _shrunk(_without(rho, *of_z), partial, of_few, len(few) / n)
            partial_interval = _of_rho(shrunk, partial, n - 1)
    of_all, tau = (float(f(x, y).statistic) for f in (stats.spearmanr, stats.kendalltau))
    in_resamples = _ratio(_concordant(x_few, y_few, counts), x_pairs * y_pairs)
    if len(few) < n:
        of_few, tau_few = (f(x_few, y_few).statistic for f in (stats.spearmanr, stats.kendalltau))
        rho = _shrunk(rho, of_all, of_few, len(few) / n)
        in_resamples = _shrunk(in_resamples, tau, tau_few, len(few) / n)
    decide, present = few, counts > 0
    if len(few) < n:
        decide, present = _deciding(x, y), _present(len(plan))
    return RankStatistics(
        n,
        n_missing,
        rho=of_all,
        rho_interval=_of_rho(rho, of_all, n),
        tau=tau,
        tau_interval=_widened(_interval(in_resamples), tau, n, 0.437 / max(n - 4, 1)),
        regret={k: regret(x, y, k) for k in regret_at},
        regret_intervals={
            k: _interval(_resampled_regret(x[decide], y[decide], k, present)) for k in regret_at
        },
        partial=partial,
        partial_interval=partial_interval,
    )


def random_statistics(
    target: ArrayLike, *, regret_at: Sequence[int] = (1, 3, 10)
) -> RankStatistics:
    """Return the statistics of a random order of `target` [n]: mean and central 95 %.

    rho and tau use the spread of their normal limit. The best of k drawn from n is the i-th
    smallest with probability C(i-1, k-1) / C(n, k).
    """
    y = np.asarray(target, np.float64)
    n_missing = int(np.isnan(y).sum())
    y = np.sort(y[~np.isnan(y)])
    n = len(y)
    reason = undefined_reason(np.arange(n, dtype=np.float64), y)
    if reason:
        return RankStatistics(n, n_missing, reason=reason)
    z = float(stats.norm.ppf((1 + LEVEL) / 2))
    rho, tau = z / np.sqrt(n - 1), z * np.sqrt((4 * n + 10) / (9 * n * (n - 1)))
    lost, regret, ends = _lost(y[-1], y), {}, {}
    for k in regret_at:
        below = comb(np.arange(1, n + 1), min(k, n)) / comb(n, min(k, n))  # P(best is <= i-th)
        likely = (share := np.diff(below, prepend=0.0)) > 0
        regret[k] = float(share[likely] @ lost[likely])
        most, least = lost[np.searchsorted(below, np.array([1 - LEVEL, 1 + LEVEL]) / 2 - 1e-12)]
        ends[k] = Interval(float(least), float(most))
    return RankStatistics(
        n,
        n_missing,
        rho=0.0,
        rho_interval=Interval(-min(float(rho), 1.0), min(float(rho), 1.0)),
        tau=0.0,
        tau_interval=Interval(-min(float(tau), 1.0), min(float(tau), 1.0)),
        regret=regret,
        regret_intervals=ends,
    )


def spearman(
    score: ArrayLike, target: ArrayLike, *, plan: Floats
) -> tuple[float, Interval | None] | None:
    """Return Spearman's rho with its interval, or None where it is undefined."""
    x, y, kept = _complete_pairs(score, target)
    if undefined_reason(x, y):
        return None
    rho = float(stats.spearmanr(x, y).statistic)
    return rho, _of_rho(_resampled_rho(x, y, *_resampled(plan, kept)), rho, len(x))


def undefined_reason(score: Floats, target: Floats) -> str:
    """Return why rank statistics of complete pairs are undefined, or an empty string."""
    n = len(score)
    if n < MIN_PAIRS:
        return f"only {n} with both values, at least {MIN_PAIRS} needed"
    if (score == score[0]).all():
        return f"the score is the same for all {n}"
    if (target == target[0]).all():
        return f"the target is the same for all {n}"
    return ""


def regret(score: ArrayLike, target: ArrayLike, k: int) -> float:
    """Return the loss from picking the k best by score, in units of the target.

    Ties in the score count against it.

    >>> regret([3.0, 2.0, 1.0], [0.50, 0.75, 0.25], 1)
    0.25
    """
    x, y = np.asarray(score, np.float64), np.asarray(target, np.float64)
    best_first = np.lexsort((y, -x))  # among equal scores the smallest target first
    return float(_lost(y.max(), y[best_first[:k]].max()))


def _lost(best: ArrayLike, chosen: ArrayLike) -> Floats:
    """Return best minus chosen, 0 where they are equal and perhaps both infinite."""
    best, chosen = np.broadcast_arrays(np.asarray(best, np.float64), chosen)
    lost: Floats = np.subtract(best, chosen, out=np.zeros(best.shape), where=best != chosen)
    return lost


def share_at_least_as_good(
    rival: ArrayLike, score: ArrayLike, target: ArrayLike, *, plan: Floats
) -> float | None:
    """Return the share of resamples in which `rival` has at least the rho of `score`.

    None if either rho is undefined on the data where all three values are known.
    """
    x, z, y = (np.asarray(values, np.float64) for values in (score, rival, target))
    kept = ~(np.isnan(x) | np.isnan(y) | np.isnan(z))
    x, y, z = x[kept], y[kept], z[kept]
    if undefined_reason(x, y) or undefined_reason(z, y):
        return None
    of_score, of_rival = (_resampled_rho(own, y, *_resampled(plan, kept)) for own in (x, z))
    both = np.isfinite(of_score) & np.isfinite(of_rival)
    return float((of_rival[both] >= of_score[both] - 1e-12).mean()) if both.any() else None


def _complete_pairs(
    score: ArrayLike, target: ArrayLike
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    x, y = np.asarray(score, np.float64), np.asarray(target, np.float64)
    kept = ~(np.isnan(x) | np.isnan(y))
    return x[kept], y[kept], kept


def _centred_ranks(values: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return twice the centred ranks in each resample [n, B], and its untied pairs [B]."""
    _, level = np.unique(values, return_inverse=True)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=-1))
    mass = counts[order]  # [levels, B]
    if len(starts) < len(order):
        mass = np.add.reduceat(mass, starts, axis=0)
    ranks = mass.cumsum(0)
    total = ranks[-1].copy()
    ranks *= 2
    ranks -= mass
    ranks -= total  # number below a level minus number above it
    return ranks[level], total**2 - np.einsum("nb,nb->b", mass, mass)


def _correlation(x_ranks: Floats, y_ranks: Floats, counts: Floats) -> Floats:
    weighted = counts * x_ranks
    above = np.einsum("nb,nb->b", weighted, y_ranks)
    x_square = np.einsum("nb,nb->b", weighted, x_ranks)
    return _ratio(above, x_square * np.einsum("nb,nb,nb->b", counts, y_ranks, y_ranks))


def _resampled(plan: Floats, kept: NDArray[np.bool_]) -> tuple[NDArray[np.intp], Floats]:
    """Return which of the data that are kept are drawn from, and their counts [m, B]."""
    counts = plan.T[kept]
    if plan.shape[1] <= MOST_RESAMPLED:
        return np.arange(len(counts)), counts
    few = np.flatnonzero(counts.any(1))
    return few, counts[few]


def _resampled_rho(x: Floats, y: Floats, few: NDArray[np.intp], counts: Floats) -> Floats:
    """Return rho of all pairs in each resample [B], from resamples of a `few`."""
    found = _correlation(
        _centred_ranks(x[few], counts)[0], _centred_ranks(y[few], counts)[0], counts
    )
    if len(few) == len(x):
        return found
    of_all, of_few = (stats.spearmanr(x[i], y[i]).statistic for i in (slice(None), few))
    return _shrunk(found, of_all, of_few, len(few) / len(x))


def _shrunk(resampled: Floats, of_all: float, of_few: float | None, share: float) -> Floats:
    """Return a statistic in resamples of a share of the data as it would be in those of all."""
    if share == 1:
        return resampled
    shrunk: Floats = of_all + np.sqrt(share) * (resampled - (of_all if of_few is None else of_few))
    return shrunk


def _present(n_resamples: int) -> NDArray[np.bool_]:
    """Return which of the deciding data are in each resample of many data [2 _DECIDE, B]."""
    drawn = np.random.default_rng(0).random((2 * _DECIDE, n_resamples))
    present: NDArray[np.bool_] = drawn < 1 - np.exp(-1)
    return present


def _deciding(x: Floats, y: Floats) -> NDArray[np.intp]:
    """Return which data are the first by score or by target, 2 _DECIDE of them."""
    first = np.lexsort((y, -x))[:_DECIDE]
    best = np.argsort(-y, kind="stable")[: 2 * _DECIDE]
    return np.concatenate([first, best[~np.isin(best, first)][:_DECIDE]])


def _partial(x: Floats, y: Floats, z: Floats) -> float | None:
    """Return the partial correlation of x and y given z, None where undefined."""
    if np.isnan(z).any() or (z == z[0]).all():
        return None
    pairs = ((x, y), (x, z), (y, z))
    value = _without(*(np.array([stats.spearmanr(a, b).statistic]) for a, b in pairs))[0]
    return float(value) if np.isfinite(value) else None


def _without(xy: Floats, xz: Floats, yz: Floats) -> Floats:
    """Return the partial correlations of x and y given z from the three correlations [B]."""
    left = (1 - xz**2) * (1 - yz**2)
    return _ratio(xy - xz * yz, np.where(left < 1e-12, 0.0, left))  # z determines x or y


def _concordant(x: Floats, y: Floats, counts: Floats) -> Floats:
    ranks = (np.unique(values, return_inverse=True)[1] for values in (x, y))
    of_x, of_y = (np.sign(levels[:, None] - levels) for levels in ranks)
    signs = (of_x * of_y).astype(np.float64)
    concordant: Floats = np.einsum("nb,nb->b", signs @ counts, counts)
    return concordant


def _resampled_regret(x: Floats, y: Floats, k: int, present: NDArray[np.bool_]) -> Floats:
    best_first = np.lexsort((y, -x))
    present = present[: len(x)][best_first]
    values = np.where(present, y[best_first, None], -np.inf)
    chosen = np.where(present.cumsum(0, np.int32) <= k, values, -np.inf)
    return _lost(values.max(0), chosen.max(0))


def _ratio(above: Floats, below: Floats) -> Floats:
    """Return above / sqrt(below), NaN for a resample in which x or y is constant."""
    ratio = np.full_like(above, np.nan)
    np.divide(above, np.sqrt(below), out=ratio, where=below > 0)
    return ratio.clip(-1, 1)


def _interval(resampled: Floats) -> Interval | None:
    known = resampled[~np.isnan(resampled)]
    if len(known) < len(resampled) / 2:
        return None
    between: tuple[Any, Any] = ("lower", "higher") if np.isinf(known).any() else ("linear",) * 2
    ends = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    low, high = (
        np.quantile(known, end, method=how) for end, how in zip(ends, between, strict=True)
    )
    return Interval(float(low), float(high))


def _of_rho(resampled: Floats, rho: float, n: int) -> Interval | None:
    return _widened(_interval(resampled), rho, n, (1 + rho**2 / 2) / max(n - 3, 1))


def _widened(found: Interval | None, value: float, n: int, variance: float) -> Interval | None:
    """Return an interval of a correlation of n pairs; of few it also holds Fisher's."""
    if found is None or n >= FEW:
        return found
    most = 1 - 2 / (n * (n - 1))
    ends = np.arctanh(np.clip(value, -most, most)) + np.array([-1, 1]) * (
        stats.norm.ppf((1 + LEVEL) / 2) * np.sqrt(variance)
    )
    low, high = np.tanh(ends)
    return Interval(min(found.low, float(low)), max(found.high, float(high)))
