"""Weights: how often each row occurs. The row is repeated, so that nothing can ignore its weight.

Training, curvature, scores, metrics and simple models see a table in which the row stands so
often; its copies are one unit, which no fold divides.
"""

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import Inputs, RawArrays
from nas_evidence.data.mapped import Array, MappedRows
from nas_evidence.data.units import Units
from nas_evidence.plumbing.foreign_text import on_one_line

#: Largest sum of weights.
MOST_ROWS = 1_000_000


def weights_of(values: pd.Series | Array, name: str | None, where: str) -> Array:
    """Return how often each row occurs, int64 [n].

    Raises:
        ValueError: unless all are whole numbers from 0 on that add up to 1 to `MOST_ROWS`.
    """
    cells = pd.Series(np.asarray(values)).reset_index(drop=True)
    numbers = np.asarray(pd.to_numeric(cells, errors="coerce").astype("float64"))
    if (bad := np.flatnonzero(~((numbers >= 0) & (numbers % 1 == 0)))).size:
        row = int(bad[0])
        raise ValueError(
            "weights say how often a row occurs, so they must be whole numbers from 0 on, but "
            f"{name!r} of {where} is {on_one_line(str(cells[row]))} in row {row}; correct it, or "
            "multiply all by one number and round"
        )
    total = float(numbers.sum())
    if not 0 < total <= MOST_ROWS:
        zero = ": row 0 and all others have weight 0" if total == 0 else ""
        raise ValueError(
            f"the weights {name!r} of {where} must add up to 1 to {MOST_ROWS:,} rows, but add up "
            f"to {total:,.0f}{zero}; scale them"
        )
    return numbers.astype(np.int64)


def repeated(raw: RawArrays, weights: Array, test_weights: Array | None) -> RawArrays:
    """Return a data set with each row as often as its weight says.

    The copies of a row are one unit, unless the row has a group or a time.
    """
    units = raw.units
    if units is None and (weights > 1).any():
        units = Units(np.arange(len(weights)))
    rows = np.repeat(np.arange(len(weights)), weights)
    raw = raw._replace(
        x_train=_rows(raw.x_train, rows),
        y_train=raw.y_train[rows],
        units=None if units is None else units.at(rows),
    )
    if test_weights is None:
        return raw
    rows = np.repeat(np.arange(len(test_weights)), test_weights)
    return raw._replace(x_test=_rows(raw.x_test, rows), y_test=raw.y_test[rows])


def _rows(x: Inputs, rows: Array) -> Inputs:
    return x.subset(rows) if isinstance(x, MappedRows) else x[rows]


def said_weights(name: str | None, weights: Array | None) -> list[str]:
    """Return what the user is told about the weights."""
    if weights is None:
        return []
    count = f"{len(weights)} rows for training count as {int(weights.sum())}"
    return [f"weights: column {name!r}, no feature; {count}"]
