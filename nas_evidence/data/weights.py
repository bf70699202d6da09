"""Weights: how often each row occurs. The row is repeated, so that nothing can ignore its weight.

Training, curvature, scores, metrics and simple models see a table in which the row stands so
often; its copies are one unit, which no fold divides.

    weights       of a row: frequencies, so that an evidence is that of the larger table
    class_weight  of a class: what its errors cost, so that no score is an evidence of the data
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import Inputs, RawArrays
from nas_evidence.data.mapped import Array, MappedRows
from nas_evidence.data.units import Units
from nas_evidence.plumbing.foreign_text import on_one_line, shortened
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import NEEDS_CLASSES

#: Largest sum of weights.
MOST_ROWS = 1_000_000
#: "balanced" ends when no class is more frequent than another by more than a tenth; it tries up to
#: so many times the least copies, while there are not more than so many times the rows.
_NEAR, _MOST_FINER, _MOST_TIMES = 1.1, 8, 5


def weights_of(values: pd.Series | Array, name: str | None, where: str) -> Array:
    """Return how often each row occurs, int64 [n].

    Raises:
        ValueError: unless all are whole numbers from 0 on that add up to 1 to `MOST_ROWS`.
    """
    cells = pd.Series(np.asarray(values)).reset_index(drop=True)
    numbers = np.asarray(pd.to_numeric(cells, errors="coerce").astype("float64"))
    if (bad := np.flatnonzero(~((numbers >= 0) & (numbers % 1 == 0)))).size:
        row = int(bad[0])
        raise UserError(
            "weights say how often a row occurs, so they must be whole numbers from 0 on, but "
            f"{name!r} of {where} is {on_one_line(str(cells[row]))} in row {row}; correct it, or "
            "multiply all by one number and round"
        ).with_code("weight-not-whole")
    total = float(numbers.sum())
    if not 0 < total <= MOST_ROWS:
        zero = ": row 0 and all others have weight 0" if total == 0 else ""
        raise UserError(
            f"the weights {name!r} of {where} must add up to 1 to {MOST_ROWS:,} rows, but add up "
            f"to {total:,.0f}{zero}; scale them"
        ).with_code("weights-sum")
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


def balanced(counts: Array) -> Array:
    """Return how often the rows of each class have to occur for equal classes, int64 [C].

    Equal within a tenth where few copies allow that; scikit-learn's "balanced" in whole numbers.

    Args:
        counts: rows of each class [C]; a class without rows gets 1.

    >>> balanced(np.array([90, 10])).tolist()
    [1, 9]
    """
    present = counts[counts > 0]
    best, times = np.inf, np.ones(len(counts), np.int64)
    for finer in range(1, _MOST_FINER + 1):
        found = np.maximum(1, np.round(finer * counts.max() / np.maximum(counts, 1)))
        found = np.where(counts > 0, found, 1).astype(np.int64)
        rows = present * found[counts > 0]
        ratio, total = rows.max() / rows.min(), rows.sum() / present.sum()
        if ratio < best - 1e-9 and (finer == 1 or total <= _MOST_TIMES):
            best, times = ratio, found
        if best <= _NEAR:
            break
    return np.asarray(times // np.gcd.reduce(times[counts > 0]))


def class_multiples(raw: RawArrays, asked: Mapping[str, int] | str) -> dict[str, int]:
    """Return how often each row of a class occurs, by the name of the class.

    Args:
        raw: the data, of which the training rows decide what is balanced.
        asked: "balanced", or numbers by class.

    Raises:
        ValueError: for real targets, a class that the data do not have, or too many rows.
    """
    if np.issubdtype(raw.y_train.dtype, np.floating):
        raise UserError(NEEDS_CLASSES).with_code("class-weight-of-numbers")
    highest = max(int(y.max()) for y in (raw.y_train, raw.y_test) if len(y))
    counts = np.bincount(raw.y_train, minlength=max(len(raw.meaning.classes), highest + 1))
    names = [str(name) for name in raw.meaning.classes or range(len(counts))]
    if isinstance(asked, str):
        times = balanced(counts)
    else:
        if unknown := [name for name in asked if name not in names]:
            known = shortened(", ".join(names))
            raise UserError(
                f"`class_weight` must name classes of the target, but there is no class "
                f"{unknown[0]!r}; there are {known}"
            ).with_code("class-weight-unknown-class")
        times = np.array([asked.get(name, 1) for name in names])
    if (total := int((times * counts).sum())) > MOST_ROWS:
        raise UserError(
            f"`class_weight` would make {total:,} rows of {len(raw.y_train):,}, more than "
            f"{MOST_ROWS:,}; give smaller numbers"
        ).with_code("class-weight-too-many-rows")
    return {name: int(n) for name, n in zip(names, times, strict=True)}


def with_classes_weighed(raw: RawArrays, times: Mapping[str, int]) -> RawArrays:
    """Return data with the rows of each class as often as it weighs, and what the user is told."""
    of_class = np.array([*times.values()])
    found = repeated(raw, of_class[raw.y_train], of_class[raw.y_test])
    listed = shortened(", ".join(f"{on_one_line(name)} {n}" for name, n in times.items()))
    said = (
        f"class weights: {listed}, so that {len(raw.y_train)} rows for training count as "
        f"{len(found.y_train)}; no score is then an evidence, and a cross-validation ranks"
    )
    meaning = replace(raw.meaning, said=(*raw.meaning.said, said), class_weight=dict(times))
    return found._replace(meaning=meaning)
