"""Do intervals hold for small and for large predictions? Coverage by quartile of the prediction.

Intervals of one width can cover nine in ten of all targets, and far fewer of the large ones. So
the rows are divided into four quarters by their predictions; each has a coverage of its own. Of
several targets each is judged alone, by its own predictions: what is too wide for one and too
narrow for another is right on average.

Eleven tests of a target, each at 0.05 / (11 x targets), find a share s of the rows that *fails*:

    90 %, in each quarter and in all    0.9 lies outside the Clopper-Pearson interval of s, and
                                        s outside `TOLERATED`
    50 %, in all                        the same of 0.5
    50 %, in each quarter               the same of the share in all rows: with heavy tails half
                                        of the targets is inside of less than 50 % everywhere
    PIT in ten bins of n/10 expected    chi^2 of the counts, and their total variation distance
                                        from uniform is above `TOLERATED_SHAPE`

The first conditions together hold by chance with a probability of at most 0.05 where the
intervals are right (Bonferroni), for independent rows. The second ones leave out what many rows
show, but nobody would act on.

Clopper & Pearson (1934).
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nas_evidence.maths.density import Density, Floats
from nas_evidence.maths.metrics import LEVEL

#: Shares that nobody would act on, by the probability of the intervals. Normal predictions of
#: targets with Student's noise of 5 degrees have 0.575 inside those of probability 0.5.
TOLERATED = {LEVEL: (0.86, 0.94), 0.5: (0.35, 0.65)}
#: Total variation distance of the PIT from uniform that nobody would act on. That noise
#: has 0.07, exponential noise 0.24.
TOLERATED_SHAPE = 0.15
#: Minimum number of rows that are divided into quarters.
FEWEST = 20
#: Minimum number of rows whose PIT is tested.
FEWEST_PIT = 50
_QUARTERS, _ALPHA = 4, 0.05
_TESTS = 2 * (_QUARTERS + 1) + 1
_BINS = 10


@dataclass(frozen=True)
class Quarter:
    """A quarter of the rows, those with similar predictions.

    n           rows
    low, high   least and largest prediction, in the unit of the target
    inside_50   share of the targets inside the intervals of probability 0.5
    inside_90   and inside those of probability 0.9
    """

    n: int
    low: float | None
    high: float | None
    inside_50: float
    inside_90: float


@dataclass(frozen=True)
class Failure:
    """Where the intervals of a target fail.

    quarter  its position; None for all rows together, and for the shape
    sign     1 for intervals that are too wide, -1 for too narrow ones, 0 for the shape: the PIT
    level    probability of the intervals; None for the shape
    """

    quarter: int | None
    sign: int
    level: float | None


def by_quartile(predictive: Density, targets: Floats) -> list[Quarter]:
    """Return the coverage of one target in each quarter of the rows, smallest predictions first.

    Nothing for fewer than `FEWEST` rows. Equal predictions are in an order drawn with a seed
    that the targets give: in that of a file sorted by its target, their quarters would differ.

    >>> from nas_evidence.maths.normals import Normals
    >>> rng = np.random.default_rng(0)
    >>> f = rng.normal(size=(4000, 1))
    >>> y = f + np.exp(f / 2) * rng.normal(size=(4000, 1))  # noisier where it is large
    >>> [round(one.inside_90, 1) for one in by_quartile(Normals.single(f, np.full(1, 1.3)), y)]
    [1.0, 1.0, 0.9, 0.7]

    Args:
        predictive: densities of n data and one column.
        targets: [n, 1].
    """
    n = len(targets)
    if n < FEWEST:
        return []
    mean = predictive.mean[:, 0]
    inside = []
    for level in (0.5, LEVEL):
        low, high = predictive.interval(level)
        inside.append(((low <= targets) & (targets <= high))[:, 0])
    order = np.lexsort((np.random.default_rng(zlib.crc32(targets.tobytes())).random(n), mean))
    return [
        Quarter(
            len(rows),
            float(mean[rows].min()),
            float(mean[rows].max()),
            *(float(one[rows].mean()) for one in inside),
        )
        for rows in np.array_split(order, _QUARTERS)
    ]


def failures(
    quarters: Sequence[Quarter], pit: Sequence[int], *, n_targets: int = 1
) -> list[Failure]:
    """Return where the intervals of a target fail, the quarters first; nothing if they hold.

    A quarter, or all rows, is named once: by the intervals of probability 0.9 if these fail. The
    shape is named alone, since wrong widths have a wrong shape.

    >>> even = [Quarter(100, None, None, 0.5, share) for share in (0.99, 0.9, 0.9, 0.7)]
    >>> [(one.quarter, one.sign) for one in failures(even, [40] * 10)]
    [(0, 1), (3, -1)]

    Args:
        quarters: of `by_quartile`; without any only the shape is judged.
        pit: counts of `n_pit` of the same target.
        n_targets: how many targets are judged, each at its part of the false alarms.
    """
    alpha, found = _ALPHA / (_TESTS * n_targets), list[Failure]()
    n = sum(one.n for one in quarters)
    if n:
        half = sum(one.n * one.inside_50 for one in quarters) / n
        most = sum(one.n * one.inside_90 for one in quarters) / n
        everything = Quarter(n, None, None, half, most)
        for place, one in [*enumerate(quarters), (None, everything)]:
            if sign := fails(one.inside_90, one.n, alpha=alpha):
                found.append(Failure(place, sign, LEVEL))
                continue
            expected = 0.5 if place is None else half
            if sign := fails(one.inside_50, one.n, level=0.5, alpha=alpha, expected=expected):
                found.append(Failure(place, sign, 0.5))
    if not found and has_another_shape(pit, alpha=alpha):
        found.append(Failure(None, 0, None))
    return found


def fails(
    inside: float,
    n: int,
    *,
    level: float = LEVEL,
    alpha: float = _ALPHA / _TESTS,
    expected: float | None = None,
) -> int:
    """Return 1 for intervals that are too wide for n rows, -1 for too narrow ones, else 0.

    >>> [fails(share, 400) for share in (0.76, 0.88, 0.9, 1.0)]
    [-1, 0, 0, 1]

    Args:
        inside: share of the targets inside the intervals.
        n: rows.
        level: probability of the intervals.
        alpha: probability of a false alarm of this test.
        expected: share to compare with, if not `level`.
    """
    low, high = clopper_pearson(inside * n, n, 1 - alpha)
    least, most = TOLERATED[level]
    right = level if expected is None else expected
    if high < right and inside < least:
        return -1
    return int(low > right and inside > most)


def has_another_shape(pit: Sequence[int], *, alpha: float = _ALPHA / _TESTS) -> bool:
    """Tell whether counts of the PIT in ten bins are far from uniform, beyond chance.

    >>> has_another_shape([52, 48] * 5), has_another_shape([100, 0] * 5)
    (False, True)
    """
    counts, n = np.array(pit, float), sum(pit)
    if n < FEWEST_PIT:
        return False
    expected = n / len(counts)
    chi_squared = float((np.square(counts - expected) / expected).sum())
    away = float(np.abs(counts / n - 1 / len(counts)).sum() / 2)
    from scipy.special import chdtrc  # late: who predicts reads stored comparisons alone

    return away > TOLERATED_SHAPE and float(chdtrc(len(counts) - 1, chi_squared)) < alpha


def clopper_pearson(k: float, n: int, level: float) -> tuple[float, float]:
    """Return the exact interval of a probability of which k of n trials are seen.

    >>> [round(end, 4) for end in clopper_pearson(8, 10, 0.95)]
    [0.4439, 0.9748]
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = float(betaincinv(k, n - k + 1, tail)) if k > 0 else 0.0
    return low, float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0


def n_pit(predictive: Density, targets: Floats) -> list[int]:
    """Return how many values of one target have their PIT in each of ten bins of equal width.

    The probability integral transform F(y) is uniform where predictions are calibrated (Dawid,
    1984; Gneiting, Balabdaoui & Raftery, 2007). More at both ends: too narrow; more in the middle:
    too wide.
    """
    bins = np.minimum((predictive.cdf(targets) * _BINS).astype(int), _BINS - 1)
    return [int(n) for n in np.bincount(bins.ravel(), minlength=_BINS)]
