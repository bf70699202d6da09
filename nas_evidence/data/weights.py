"""Weights of rows, which are counts, and of classes, which are costs.

Training, curvature, scores, metrics and simple models see a table in which a row stands as often
as it weighs, so nothing can ignore its weight; its copies are one unit, which no fold divides. A
class weight says what an error on a row of the class costs. It decides which class is predicted
(`maths/decisions.py`), and changes neither training nor scores.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nas_evidence.data.arrays import Inputs, Meaning, RawArrays
from nas_evidence.data.mapped import Array, MappedRows
from nas_evidence.data.units import Units
from nas_evidence.plumbing.foreign_text import on_one_line, shortened
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import NEEDS_CLASSES

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
        raise UserError(
            "weights are counts of rows, so they must be whole numbers from 0 on, but "
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


def class_weights(
    y: Array, names: Sequence[str], asked: Mapping[str, float] | str
) -> NDArray[np.float64]:
    """Return the weight of each class [C]: what an error on one of its rows costs.

    "balanced" is n / (K n_k), as in scikit-learn; a class that a mapping does not name gets 1.

    Args:
        y: labels of the training rows [n].
        names: of the classes [C].
        asked: "balanced", or weights by class.

    Raises:
        ValueError: for real targets, a class that the data do not have, or "balanced" with a class
            without training rows.

    >>> class_weights(np.array([0, 0, 0, 1]), ["no", "yes"], "balanced").round(3).tolist()
    [0.667, 2.0]
    """
    if np.issubdtype(y.dtype, np.floating):
        raise UserError(NEEDS_CLASSES).with_code("class-weight-of-numbers")
    if not isinstance(asked, str):
        if unknown := [name for name in asked if name not in names]:
            known = shortened(", ".join(names))
            raise UserError(
                f"`class_weight` must name classes of the target, but there is no class "
                f"{unknown[0]!r}; there are {known}"
            ).with_code("class-weight-unknown-class")
        return np.array([asked.get(name, 1.0) for name in names])
    counts = np.bincount(y, minlength=len(names))
    if not counts.all():
        missing = names[int(counts.argmin())]
        raise UserError(
            '`class_weight = "balanced"` needs training rows of every class, but class '
            f"{missing!r} has none; give weights by class"
        ).with_code("class-weight-missing-class")
    return np.asarray(len(y) / (len(counts) * counts))


def said_class_weights(meaning: Meaning) -> str:
    """Return what the user is told about the class weights."""
    return (
        f"class weights: {listed_weights(meaning.class_weight)}; the class with the largest "
        "weight times probability is predicted; training and scores are as without them"
    )


def listed_weights(class_weight: Mapping[str, float]) -> str:
    """Return class weights as text.

    >>> listed_weights({"no": 2 / 3, "yes": 2.0})
    'no 0.6667, yes 2'
    """
    return shortened(", ".join(f"{on_one_line(k)} {w:.4g}" for k, w in class_weight.items()))
