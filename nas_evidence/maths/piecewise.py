"""Bins of numbers, and the piecewise-linear encoding by them.

    e_t(x) = 0 below bin t, 1 above, (x - b_{t-1}) / (b_t - b_{t-1}) within

Gorishniy, Rubachev & Babenko (2022), "On Embeddings for Numerical Features in Tabular Deep
Learning", equation 1. The edges b of a column are quantiles of its training rows. Differs from the
paper: outside all bins the encoding stays at 0 and 1, and each e_t is standardised over the
training rows, so that one prior precision fits the first layer of a network.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

#: Most bins of a column.
MOST_BINS = 8
#: Fewest different values of a column that gets bins: two are a flag, which a bin only repeats.
_FEWEST_VALUES = 3
#: Fewest bins of a column: one alone is the number itself.
_FEWEST_BINS = 2
#: Least width of a bin: a narrower one may count as 0 where numbers below 1e-38 do.
_LEAST_WIDTH = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Bins:
    """The bins of all columns, a column's own in order; M in all.

    column     that each belongs to, int64 [M]
    low, high  its edges, float32 [M], low < high
    mean, std  of its encoding on the training rows, float32 [M], std > 0
    """

    column: NDArray[np.int64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.column)

    @property
    def bins(self) -> "Bins":
        """The bins themselves, as those of training rows."""
        return self


class HasBins(Protocol):
    """Bins, or training rows that they are made from when they are asked for."""

    @property
    def bins(self) -> Bins:
        """The bins."""


def edges_of(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the edges of up to `MOST_BINS` bins between quantiles of numbers [n]; none for few.

    >>> edges_of(np.arange(9, dtype=np.float32))[:3], edges_of(np.float32([0, 1, 1]))
    (array([0., 1., 2.], dtype=float32), array([], dtype=float32))
    """
    found = np.zeros(0, np.float32)
    if len(np.unique(values)) >= _FEWEST_VALUES:
        at = np.linspace(0, 1, MOST_BINS + 1)
        found = np.unique(np.quantile(values.astype(np.float64), at).astype(np.float32))
        found = found[np.append(True, np.diff(found) >= _LEAST_WIDTH)]
    return found if len(found) > _FEWEST_BINS else found[:0]


def bins_of(
    x: NDArray[np.float32],
    numbers: NDArray[np.bool_],
    known: NDArray[np.bool_] | None = None,
) -> Bins:
    """Return the bins of some columns.

    Args:
        x: the training rows as networks see them [n, d].
        numbers: which columns may have bins [d].
        known: which values are no replacement of a missing one [n, d]; None for all.
    """
    column, low, high, mean, std = [], [], [], [], []
    for at in np.flatnonzero(numbers):
        values = np.ascontiguousarray(x[:, at])
        edges = edges_of(values if known is None else values[known[:, at]])
        for below, above in pairwise(edges):
            with np.errstate(over="ignore"):  # far outside of a narrow bin: infinite, then 1 or 0
                ramp = np.clip((values - below) / (above - below), 0, 1).astype(np.float64)
            column.append(at)
            low.append(below)
            high.append(above)
            mean.append(ramp.mean())
            std.append(ramp.std())
    return Bins(
        np.array(column, np.int64),
        *(np.array(one, np.float32) for one in (low, high, mean, std)),
    )
