"""Labels: targets that are classes, as numbers 0..C-1 with the names of the classes.

A class weight says what an error on a row of the class costs. It decides which class is predicted
(`maths/decisions.py`), and changes neither training nor scores.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nas_evidence.data.arrays import stratified_rows
from nas_evidence.data.mapped import Array
from nas_evidence.data.targets import LISTED, ClassName, Targets, listed_weights, numbers_of
from nas_evidence.maths.target_scale import TargetScale
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import TargetScaleName

if TYPE_CHECKING:
    import pandas as pd

rows_of = stratified_rows


def leak(values: "pd.Series", y: Array, rows: Array) -> str:
    """Return how a feature gives labels away, in words."""
    from nas_evidence.data.leaks import of_labels  # late: it imports pandas

    return of_labels(values, y, rows)


def read(y: Array, y_test: Array, where: str, scale: TargetScaleName) -> Targets:
    """Return labels int64 [n]; see `Reading`."""
    if y.ndim == 2:
        raise UserError(
            "labels-not-one-per-row",
            f"{where}: a classification needs one label per row, but the shape is "
            f"{list(y.shape)} and the rows are not one-hot; give one column, or task = regression",
        )
    names, labels, test_labels = _classes(y, y_test, where)
    numbers = all(isinstance(name, int) and not isinstance(name, bool) for name in names)
    change = "; task=regression to change" if numbers else ""
    return Targets("classification", labels, test_labels, names, said_classes(names), change)


def tested(y: Array, n: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Return about n rows with the proportions of the classes; one row alone is in training."""
    in_test = np.zeros(len(y), dtype=bool)
    in_test[stratified_rows(y, n, generator)] = True
    for label in set(y[in_test].tolist()) - set(y[~in_test].tolist()):
        in_test[y == label] = False
    return in_test


def outputs(
    y: Array, y_all: Array, n_classes: int
) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    """Return the number of classes; labels are not scaled."""
    found = n_classes or int(y_all.max()) + 1
    return found, np.zeros(found), np.ones(found)


def seen(y: Array, scale: TargetScale) -> Array:
    """Return the labels as they are."""
    return y


def _classes(y: Array, y_test: Array, where: str) -> tuple[tuple[ClassName, ...], Array, Array]:
    named, test_named = _names(y, where), _names(y_test, where)
    found = sorted(set(named), key=_natural)
    if len(found) < 2:
        raise UserError(
            "one-class",
            f"{where}: a classification needs at least 2 classes, but every training row has "
            f"{found[0]!r}; name another target, or add rows of other classes",
        )
    if len(found) > max(2, len(y) // 2):
        remedy = "give task = regression" if numbers_of(y) is not None else "group the values"
        raise UserError(
            "too-many-classes",
            f"{where}: {len(found)} different values in {len(y)} rows are not classes, the first "
            f"is {found[0]!r}; name another target, or {remedy}",
        )
    number: dict[ClassName, int] = {value: i for i, value in enumerate(found)}
    unknown = [value for value in test_named if value not in number]
    if unknown:
        raise UserError(
            "unknown-test-label",
            f"{where}: test labels must be among the training labels, but {unknown[0]!r} is not; "
            "remove those test rows, or train on such a row",
        )
    labels = (np.array([number[v] for v in part], dtype=np.int64) for part in (named, test_named))
    train, test = labels
    return tuple(found), train, test


def _natural(name: ClassName) -> tuple[bool, list[tuple[int, str]], str]:
    """Return a key that puts numbers before text, "2" before "10", and "007" before "7"."""
    if not isinstance(name, str):
        return False, [(int(name), "")], ""
    words = re.split(r"(^-?\d+|\d+)", name)
    parts = [(int(word), "") if i % 2 else (0, word) for i, word in enumerate(words)]
    return True, parts, name  # a set has another order in each process


def _names(y: Array, where: str) -> list[ClassName]:
    if y.dtype.kind == "b":
        return [bool(v) for v in y]
    if y.dtype.kind in "iuf":
        if y.dtype.kind == "f" and (y != np.round(y)).any():
            row = int(np.flatnonzero(y != np.round(y))[0])
            raise UserError(
                "labels-not-whole",
                f"{where}: labels must be whole numbers or text, but row {row} has "
                f"{y[row]:g}; give task = regression for real targets",
            )
        return [int(v) for v in y]  # not by way of float64, which merges those above 2^53
    return [str(v) for v in y]


def said_classes(names: Sequence[ClassName]) -> str:
    """Return in words which classes there are."""
    shown = (repr(n) if str(n) != str(n).strip() else n for n in names[:LISTED])
    listed = ", ".join(map(shortened, shown)) + ", ..." * (len(names) > LISTED)
    return f"classification, {len(names)} classes: {listed}"


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
        ValueError: for a class that the data do not have, or "balanced" with a class
            without training rows.

    >>> class_weights(np.array([0, 0, 0, 1]), ["no", "yes"], "balanced").round(3).tolist()
    [0.667, 2.0]
    """
    if not isinstance(asked, str):
        if unknown := [name for name in asked if name not in names]:
            known = shortened(", ".join(names))
            raise UserError(
                "class-weight-unknown-class",
                f"`class_weight` must name classes of the target, but there is no class "
                f"{unknown[0]!r}; there are {known}",
            )
        return np.array([asked.get(name, 1.0) for name in names])
    counts = np.bincount(y, minlength=len(names))
    if not counts.all():
        missing = names[int(counts.argmin())]
        raise UserError(
            "class-weight-missing-class",
            '`class_weight = "balanced"` needs training rows of every class, but class '
            f"{missing!r} has none; give weights by class",
        )
    return np.asarray(len(y) / (len(counts) * counts))


def said_class_weights(class_weight: Mapping[str, float]) -> str:
    """Return what the user is told about the class weights."""
    return (
        f"class weights: {listed_weights(class_weight)}; the class with the largest "
        "weight times probability is predicted; training and scores are as without them"
    )
