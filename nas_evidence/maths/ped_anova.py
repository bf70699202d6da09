"""Which parameters of an architecture matter: PED-ANOVA (Watanabe, Bansal and Hutter, 2023).

How does the distribution of parameter d among the best trials differ from that among all trials?
The Pearson divergence of the two densities, on a grid of k = 1..m,

    D_d = sum_k q_k (p_k / q_k - 1)^2         p among the best [m], q among all [m]

is, up to a factor, the variance that a functional ANOVA assigns to parameter d for the function
"is among the best" (their equation 12). Densities are mixtures of one kernel per trial and one
broad kernel, so that p_k / q_k stays bounded where there are no trials. Kernels of ordered values
are normal, truncated at the ends of the grid, with Scott's rule for the width; those of categories
are point masses.

D is never negative, so a parameter without influence still has D > 0. `chance` says how often the
same number of randomly chosen trials differs as much.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Share of the trials that counts as the best, and the smallest number that does.
BEST_SHARE = 0.25
MIN_BEST = 4
#: With fewer trials than this there is no result.
MIN_TRIALS = 10
N_SHUFFLES = 500
_NARROWEST = 0.5 / 1.64  # of a normal kernel: 90 % of it lies in its own cell


@dataclass(frozen=True)
class Axis:
    """The grid of one parameter: m cells, ordered or categorical."""

    cells: int
    ordered: bool


@dataclass(frozen=True)
class Importance:
    """How much one parameter matters.

    divergence  D above, 0 if the best are distributed like all trials
    share       of the sum over all parameters
    chance      share of random choices with at least this divergence
    """

    divergence: float
    share: float
    chance: float


def ped_anova(
    positions: Mapping[str, ArrayLike],
    score: ArrayLike,
    *,
    axes: Mapping[str, Axis],
    seed: int,
    n_best: int | None = None,
    n_shuffles: int = N_SHUFFLES,
) -> dict[str, Importance]:
    """Return how much each parameter decides which trials are among the best by `score` [n].

    Empty if fewer than MIN_TRIALS trials have a score.

    Args:
        positions: the cell 0..m-1 of each trial [n], by parameter.
        score: larger is better; trials without one (NaN) are left out.
        axes: the grid of each parameter.
        seed: for the random choices behind `chance`.
        n_best: how many count as the best; by default a quarter.
        n_shuffles: random choices behind `chance`, which is at least 1 / (n_shuffles + 1).
    """
    values = np.asarray(score, np.float64)
    known = np.isfinite(values)
    n = int(known.sum())
    if n < MIN_TRIALS:
        return {}
    n_best = n_best or max(MIN_BEST, math.ceil(BEST_SHARE * n))
    best = np.argsort(-values[known], kind="stable")[:n_best]
    rng = np.random.default_rng(seed)
    shuffles = [rng.permutation(n)[:n_best] for _ in range(n_shuffles)]
    found = {}
    for name, axis in axes.items():
        cells = np.asarray(positions[name], np.int64)[known]
        everywhere = density(cells, axis)
        own, *others = (
            pearson_divergence(density(cells[chosen], axis), everywhere)
            for chosen in (best, *shuffles)
        )
        at_least = sum(other >= own - 1e-12 for other in others)
        found[name] = (own, (1 + at_least) / (1 + len(others)))
    total = sum(own for own, _ in found.values())
    return {
        name: Importance(own, own / total if total > 0 else 0.0, chance)
        for name, (own, chance) in found.items()
    }


def holm(chances: Sequence[float]) -> list[float]:
    """Return p values corrected for testing all of them (Holm 1979), in the same order.

    The probability that any of several parameters without influence falls below a level is at
    most that level.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    corrected, highest = [0.0] * len(chances), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - place) * chances[i]))
        corrected[i] = highest
    return corrected


def pearson_divergence(best: Floats, everywhere: Floats) -> float:
    """Return sum_k q_k (p_k / q_k - 1)^2 of densities p = `best` [m] and q = `everywhere` [m]."""
    return float((everywhere * (best / everywhere - 1) ** 2).sum())


def density(cells: Integers, axis: Axis) -> Floats:
    """Return the mixture [m] of a kernel at each of `cells` [n] and one broad kernel."""
    counts = np.bincount(cells, minlength=axis.cells).astype(np.float64)
    if not axis.ordered:
        return (counts + 1 / axis.cells) / (len(cells) + 1)
    grid = np.arange(axis.cells, dtype=np.float64)
    kernels = _normal_kernels(grid, _width(cells), axis.cells)  # one per cell [m, m]
    broad = _normal_kernels(np.array([(axis.cells - 1) / 2]), float(axis.cells), axis.cells)
    mixture: Floats = (counts @ kernels + broad[0]) / (len(cells) + 1)
    return mixture


def _width(cells: Integers) -> float:
    """Return the width of a kernel by Scott's rule, robust to outliers."""
    n, ascending = len(cells), np.sort(cells)
    quartiles = ascending[min(3 * n // 4, n - 1)] - ascending[max(n // 4 - 1, 0)]
    deviation = cells.std(ddof=1) if n > 1 else 0.0
    return float(max(1.059 * min(quartiles / 1.34, deviation) * n**-0.2, _NARROWEST))


def _normal_kernels(centres: Floats, width: float, m: int) -> Floats:
    """Return the mass of normals at `centres` [c] in each cell [c, m], truncated at the ends."""
    edges = np.arange(m + 1) - 0.5
    below = ndtr((edges - centres[:, None]) / width)
    mass: Floats = np.diff(below, axis=1)
    mass /= mass.sum(axis=1, keepdims=True)
    return mass


def ordered_cells(
    values: Sequence[float], *, low: float, high: float, log: bool, m: int
) -> Integers:
    """Return the cell 0..m-1 of each value on a grid from `low` to `high`, logarithmic if `log`.

    >>> ordered_cells([1, 4, 16], low=1, high=16, log=True, m=5).tolist()
    [0, 2, 4]
    """
    at = np.asarray(values, np.float64)
    if log:
        at, low, high = np.log(at), math.log(low), math.log(high)
    if high <= low or m < 2:
        return np.zeros(len(at), np.int64)
    step = (high - low) / (m - 1)
    # just below the middle, so that ties go to the lower cell whatever the rounding
    return np.clip(np.ceil((at - low) / step - 0.5 - 1e-9), 0, m - 1).astype(np.int64)
