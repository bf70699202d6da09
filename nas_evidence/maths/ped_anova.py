"""Which parameters of an architecture matter: PED-ANOVA (Watanabe, Bansal and Hutter, 2023).

How does the distribution of parameter d among the best trials differ from that among all trials?
The Pearson divergence of the two densities, on a grid of k = 1..m,

    D_d = sum_k q_k (p_k / q_k - 1)^2         p among the best [m], q among all [m]

is, up to a factor, the variance that a functional ANOVA assigns to parameter d for the function
"is among the best" (their equation 12). Densities are mixtures of one kernel per trial and one
broad kernel, so that p_k / q_k stays bounded where there are no trials. Kernels of ordered values
are normal, truncated at the ends of the grid, with Scott's rule for the width; those of categories
are point masses.

D is never negative, so a parameter without influence still has D > 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_NARROWEST = 0.5 / 1.64  # of a normal kernel: 90 % of it lies in its own cell


@dataclass(frozen=True)
class Grid:
    """The grid of one parameter: m cells, ordered or categorical."""

    cells: int
    ordered: bool


def pearson_divergence(cells: Integers, axis: Grid, *, n_best: int) -> float:
    """Return D of the first `n_best` trials from all; `cells` [n] are those of the best first."""
    best, everywhere = density(cells[:n_best], axis), density(cells, axis)
    return float((everywhere * (best / everywhere - 1) ** 2).sum())


def density(cells: Integers, axis: Grid) -> Floats:
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
