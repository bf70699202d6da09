"""Do intervals hold for small and for large predictions? Coverage by quartile of the prediction.

Intervals of one width can cover nine in ten of all targets, and far fewer of the large ones. So
the rows are divided into four quarters by their predictions; each has a coverage of its own.

A quarter *fails* if both hold for its share s of targets inside the intervals of probability 0.9:

    0.9 lies outside the Clopper-Pearson interval of s, at 1 - 0.05 / 4
    s lies outside `TOLERATED`

The first rarely holds where the intervals are right: in any of the four quarters together with a
probability of at most 0.05 (Bonferroni), for independent rows. The second leaves out what many
rows show, but nobody would act on. Only the intervals of probability 0.9 are tested.

Several targets are divided each by its own predictions, and pooled. The share of n rows is then
counted as that of n values, not of n C, since the errors of a row may be alike.

Clopper & Pearson (1934).
"""

import zlib
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from nas_evidence.maths.metrics import LEVEL
from nas_evidence.maths.normals import Floats, Normals
from nas_evidence.maths.target_scale import OnScale

#: Shares that nobody would act on.
TOLERATED = (0.86, 0.94)
#: Fewest rows that are divided into quarters.
FEWEST = 20
_QUARTERS, _ALPHA = 4, 0.05


@dataclass(frozen=True)
class Quarter:
    """A quarter of the rows, those with similar predictions.

    n           rows
    low, high   least and largest prediction, in the unit of the target; None for several targets
    inside_50   share of the targets inside the intervals of probability 0.5
    inside_90   and inside those of probability 0.9
    """

    n: int
    low: float | None
    high: float | None
    inside_50: float
    inside_90: float


def by_quartile(predictive: Normals | OnScale, targets: Floats) -> list[Quarter]:
    """Return the coverage in each quarter of the rows, smallest predictions first.

    Nothing for fewer than `FEWEST` rows. Equal predictions are divided at random, with a seed that
    the targets give: in the order of the rows, a file that is sorted by its target would put large
    targets into one quarter and fail intervals that are right.

    >>> rng = np.random.default_rng(0)
    >>> f = rng.normal(size=(4000, 1))
    >>> y = f + np.exp(f / 2) * rng.normal(size=(4000, 1))  # noisier where it is large
    >>> [round(one.inside_90, 1) for one in by_quartile(Normals.single(f, np.full(1, 1.3)), y)]
    [1.0, 1.0, 0.9, 0.7]

    Args:
        predictive: densities of n data and C columns.
        targets: [n, C].
    """
    n, several = len(targets), targets.shape[1] > 1
    if n < FEWEST:
        return []
    mean = predictive.mean
    inside = []
    for level in (0.5, LEVEL):
        low, high = predictive.interval(level)
        inside.append((low <= targets) & (targets <= high))
    ties = np.random.default_rng(zlib.crc32(targets.tobytes())).random(mean.shape)
    quarters = np.array_split(np.lexsort((ties, mean), axis=0), _QUARTERS)
    found = []
    for rows in quarters:
        own = np.take_along_axis(mean, rows, 0)
        half, most = (float(np.take_along_axis(one, rows, 0).mean()) for one in inside)
        least, largest = (None, None) if several else (float(own.min()), float(own.max()))
        found.append(Quarter(len(rows), least, largest, half, most))
    return found


def fails(inside: float, n: int) -> int:
    """Return 1 for intervals that are too wide in a quarter, -1 for too narrow ones, else 0.

    >>> [fails(share, 400) for share in (0.76, 0.88, 0.9, 1.0)]
    [-1, 0, 0, 1]

    Args:
        inside: share of the targets inside the intervals of probability 0.9.
        n: rows of the quarter.
    """
    low, high = clopper_pearson(inside * n, n, 1 - _ALPHA / _QUARTERS)
    if high < LEVEL and inside < TOLERATED[0]:
        return -1
    return int(low > LEVEL and inside > TOLERATED[1])


def clopper_pearson(k: float, n: int, level: float) -> tuple[float, float]:
    """Return the exact interval of a probability of which k of n trials are seen.

    >>> [round(end, 4) for end in clopper_pearson(8, 10, 0.95)]
    [0.4439, 0.9748]
    """
    tail = (1 - level) / 2
    low = float(betaincinv(k, n - k + 1, tail)) if k > 0 else 0.0
    return low, float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0


def n_pit(predictive: Normals | OnScale, targets: Floats) -> list[int]:
    """Return how many targets have their PIT in each of ten bins of equal width.

    The probability integral transform F(y) is uniform where predictions are calibrated (Dawid,
    1984; Gneiting, Balabdaoui & Raftery, 2007). More at both ends: too narrow; more in the middle:
    too wide.
    """
    bins = np.minimum((predictive.cdf(targets) * 10).astype(int), 9)
    return [int(n) for n in np.bincount(bins.ravel(), minlength=10)]
