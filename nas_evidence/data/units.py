"""Groups, times and weights of rows.

    groups   groups=COL: folds and the test split hold whole groups
    times    time_column=COL: blocks in time, each predicted from the earlier ones; the test rows
             are the latest
    weights  weights=COL: how often each row occurs. Training, scores, metrics and simple models
             see a table in which it stands so often; no fold divides its copies

Every division is a list of rows in an order, cut into parts. Here the order keeps units together,
and a cut moves to the nearest place between two units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nas_evidence.data.mapped import Array
from nas_evidence.data.targets import numbers_of, typed_cells
from nas_evidence.plumbing.foreign_text import on_one_line
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.divisions import fewest_parts
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # functions that read import it: a worker has its units as numbers
    import pandas as pd

#: Largest sum of weights.
MOST_ROWS = 1_000_000


@dataclass(frozen=True, eq=False)
class Units:
    """The unit of each row: its group, or its time.

    of       int64 [n], from 0 without gaps; of times in their order
    in_time  whether units are times, so that only earlier ones may predict later ones
    """

    of: Array
    in_time: bool = False

    @property
    def count(self) -> int:
        """Number of different units."""
        return int(self.of.max()) + 1

    def at(self, rows: Array) -> "Units":
        """Return the units of some rows, by index or mask."""
        return Units(np.unique(self.of[rows], return_inverse=True)[1], self.in_time)

    def ordered(self, rows: Array, ranks: Array) -> Array:
        """Return the rows [n] with each unit in one piece.

        Args:
            rows: all rows in random order [n].
            ranks: a random permutation of the units [count]; times have their own order.
        """
        ranks = np.arange(self.count) if self.in_time else ranks
        return np.asarray(rows[np.argsort(ranks[self.of[rows]], kind="stable")])

    def cuts(self, order: Array, wanted: Sequence[int]) -> list[int]:
        """Return the places between units that are nearest to the wanted ones, increasing.

        Args:
            order: of the rows, see `ordered`.
            wanted: where to cut, increasing, in 1..n-1.

        Raises:
            ValueError: if there are fewer units than parts.
        """
        places = 1 + np.flatnonzero(np.diff(self.of[order]))
        if len(places) < len(wanted):
            raise too_few(self, len(wanted) + 1)
        cuts, first = [], 0
        for k, cut in enumerate(wanted):
            last = len(places) - (len(wanted) - 1 - k)
            first += 1 + int(np.abs(places[first:last] - cut).argmin())
            cuts.append(int(places[first - 1]))
        return cuts


def too_few(units: Units, needed: int) -> UserError:
    """Return the error for data with fewer units than parts."""
    what = "times" if units.in_time else "groups"
    option = "time_column (--time-column)" if units.in_time else "`groups`"
    return UserError(
        "too-few-units",
        f"the folds and the test split need at least {needed} {what}, but the data have "
        f"{units.count}; set plan.folds=2 for fewer folds, choose other `estimators`, or leave "
        f"{option} out",
    )


def check_units(spec: StudySpec, units: Units | None, n_data: int) -> None:
    """Check that the training rows have a group, or a time, for each part of their divisions.

    Raises:
        ValueError: if not; says both numbers.
    """
    needed = fewest_parts(spec.plan, spec.estimators, n_data)
    if units is not None and units.count < needed:
        raise too_few(units, needed)


def units_of(spec: DatasetSpec, values: "pd.Series | Array | None", where: str) -> Units | None:
    """Return the units of all rows that came with the training table; None if none are asked for.

    Args:
        spec: says whether `values` are groups or times.
        values: of the column that it names [n].
        where: its place, for messages.

    Raises:
        ValueError: if a group is missing, or a time is missing or cannot be read; names the row.
    """
    if values is None:
        return None
    import pandas as pd

    cells = typed_cells(values, where)
    in_time = spec.time_column is not None
    keys = pd.Series(_times(cells)) if in_time else cells
    if (bad := np.flatnonzero(keys.isna())).size:
        row = int(bad[0])
        name, what = (spec.time_column, "time") if in_time else (spec.groups, "group")
        shown = "is missing" if pd.isna(cells[row]) else f"is {on_one_line(str(cells[row]))!r}"
        few = "that row" if len(bad) == 1 else f"the {len(bad)} rows without a {what}"
        remedy = f"correct or remove {few}"
        if in_time and len(bad) == len(keys):
            remedy = "write times as numbers, or as 2024-01-31, 31.1.2024 or 1/31/2024"
        raise UserError(
            "unit-of-row", f"the {what} {name!r} of {where} {shown} in row {row}; {remedy}"
        )
    return Units(np.asarray(pd.factorize(keys, sort=in_time)[0], np.int64), in_time)


def _times(cells: "pd.Series") -> Array:
    """Return times as numbers [n], NaN for what is none."""
    from nas_evidence.data.cells import PARTS, dates_of, order_of, parts_of

    if order := order_of(cells.dropna()):
        return parts_of(dates_of(cells, order))[PARTS[0]]
    numbers = numbers_of(cells)
    return np.where(np.isinf(numbers), np.nan, numbers)


def said_units(spec: DatasetSpec, units: Units | None) -> list[str]:
    """Return what the user is told about the groups or times."""
    if units is None:
        return []
    if units.in_time:
        return [
            f"times: {units.count} in column {spec.time_column!r}, no feature; each block is "
            "predicted from the earlier ones"
        ]
    return [f"groups: {units.count} in column {spec.groups!r}, no feature; none is divided"]


def weights_of(values: "pd.Series | Array", name: str | None, where: str) -> Array:
    """Return how often each row occurs, int64 [n].

    Raises:
        ValueError: unless all are whole numbers from 0 on that add up to 1 to `MOST_ROWS`.
    """
    cells = typed_cells(values, where)
    numbers = numbers_of(cells)
    if (bad := np.flatnonzero(~((numbers >= 0) & (numbers % 1 == 0)))).size:
        row = int(bad[0])
        raise UserError(
            "weight-not-whole",
            "weights are counts of rows, so they must be whole numbers from 0 on, but "
            f"{name!r} of {where} is {on_one_line(str(cells[row]))} in row {row}; correct it, or "
            "multiply all by one number and round",
        )
    total = float(numbers.sum())
    if not 0 < total <= MOST_ROWS:
        zero = ": row 0 and all others have weight 0" if total == 0 else ""
        raise UserError(
            "weights-sum",
            f"the weights {name!r} of {where} must add up to 1 to {MOST_ROWS:,} rows, but add up "
            f"to {total:,.0f}{zero}; scale them",
        )
    return numbers.astype(np.int64)


def said_weights(name: str | None, weights: Array | None) -> list[str]:
    """Return what the user is told about the weights."""
    if weights is None:
        return []
    count = f"{len(weights)} rows for training count as {int(weights.sum())}"
    return [f"weights: column {name!r}, no feature; {count}"]
