"""Targets of any kind, as labels 0..C-1 with class names or as real numbers.

The task is inferred where it is not given: text and booleans are classes; whole numbers, whatever
their type, are classes if few of them occur; other numbers are real targets. One-hot rows are
labels. What was inferred is said in one sentence that names the option that changes it.

A class weight says what an error on a row of the class costs. It decides which class is predicted
(`maths/decisions.py`), and changes neither training nor scores.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from nas_evidence.data.exact_text import to_numeric
from nas_evidence.data.mapped import Array
from nas_evidence.data.typed import merged_objects, typed_column
from nas_evidence.maths.target_scale import TargetScale
from nas_evidence.plumbing.foreign_text import on_one_line, shortened
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import NEEDS_CLASSES, TargetScaleName, scale_of_classes

#: Maximum number of different whole numbers that are taken for classes.
MOST_CLASSES = 20
#: Maximum number of different whole numbers from 0 or 1 on that are never taken for counts.
MOST_RANKS = 10
#: Least skewness of a target that is called skewed.
SKEWED = 1.0
#: Class names listed in a sentence.
_LISTED = 8
ClassName = str | int | bool
TaskName = Literal["classification", "regression"]


@dataclass(frozen=True)
class Targets:
    """Targets of the training and test rows.

    train, test  labels int64 [n], or real targets float64 [n, C]; test may be empty
    classes      the values that labels 0..C-1 stand for; empty for real targets
    said         what the task is
    change       how to change it if it was inferred, else empty
    """

    train: Array
    test: Array
    classes: tuple[ClassName, ...]
    said: str
    change: str = ""

    @property
    def sentence(self) -> str:
        """Return what the task is, and how to change it."""
        return self.said + self.change


def targets_of(
    train: ArrayLike,
    test: ArrayLike | None,
    *,
    task: TaskName | None,
    where: str,
    integers_are_labels: bool = False,
    categories: bool = False,
    scale: TargetScaleName = "identity",
) -> Targets:
    """Return targets as labels or real numbers.

    Args:
        train: of the training rows: [n], [n, 1], one-hot [n, C] or real [n, C], of any type.
        test: the same of the test rows, or None.
        task: "classification" or "regression"; None to infer it.
        where: the place of the targets, for messages: "target 'price' in mine.csv".
        integers_are_labels: take integers 0..C-1, all used, for labels however many there are.
        categories: whether their source says that they are categories.
        scale: on which real targets are modelled.

    Raises:
        ValueError: if the targets are neither labels nor real numbers, or do not fit the scale;
            names the place.
    """
    y, one_hot = _flat(typed_targets(train, where), where)
    y_test = y[:0] if test is None else _flat(typed_targets(test, where), where)[0]
    if y.ndim != y_test.ndim or y.shape[1:] != y_test.shape[1:]:
        raise UserError(
            f"{where}: training and test targets must have as many columns, but have shapes "
            f"{list(y.shape)} and {list(y_test.shape)}"
        ).with_code("target-columns-differ")
    for part in (y, y_test):
        _check_complete(part, where)
    asked = task
    if task is None:
        if one_hot or categories or (integers_are_labels and _is_numbered(y)):
            task = "classification"
        else:
            task = inferred(y)
    if task == "regression":
        real = (_real(part, where) for part in (y, y_test))
        train_real, test_real = real
        _check_varies(train_real, where)
        for part, rows in ((train_real, "row"), (test_real, "test row")):
            check_support(part, scale, where, rows)
        change = "" if asked or y.ndim == 2 else "; --task classification to change"
        return Targets(train_real, test_real, (), _said_real(train_real), change)
    if scale != "identity":
        raise scale_of_classes(scale, f"the values of {where}")
    if y.ndim == 2:
        raise UserError(
            f"{where}: a classification needs one label per row, but the shape is "
            f"{list(y.shape)} and the rows are not one-hot; give one column, or task = regression"
        ).with_code("labels-not-one-per-row")
    names, labels, test_labels = _classes(y, y_test, where)
    numbers = all(isinstance(name, int) and not isinstance(name, bool) for name in names)
    change = "; --task regression to change" if asked is None and numbers else ""
    return Targets(labels, test_labels, names, said_classes(names), change)


def check_unordered(values: object, task: TaskName | None, where: str) -> None:
    """Check that targets are no grades, whose order no likelihood here knows, nor of two types.

    Raises:
        ValueError: for ordered categories, unless the task is given, and for labels such as 1
            and "1" that no table keeps apart; names the remedies.
    """
    if isinstance(values, pd.Series | np.ndarray) and values.dtype == object:
        check_of_one_type(np.asarray(values), where)
    kind = getattr(values, "dtype", None)
    if task is None and isinstance(kind, pd.CategoricalDtype) and kind.ordered:
        grades = ", ".join(shortened(name) for name in kind.categories[:_LISTED])
        raise UserError(
            f"{where} holds ordered grades ({grades}), and there is no likelihood for their "
            "order; give task = classification to ignore it, or their numbers "
            "(.cat.codes) for a regression"
        ).with_code("ordered-grades")


def check_of_one_type(y: Array, where: str) -> None:
    """Check that no label occurs as text and as another type.

    Raises:
        ValueError: if one does, such as 1 and "1"; names it.
    """
    if (twice := merged_objects(y[~pd.isna(y)])) is not None:
        raise UserError(
            f"{where} holds {twice} as text and as another type, and labels of both could not be "
            "told apart; write all of one type"
        ).with_code("labels-of-two-types")


def typed_targets(values: ArrayLike, where: str) -> Array:
    """Return an array; Python objects as what all are (`typed.py`), labels as they stay apart."""
    y = np.asarray(values)
    if y.dtype.kind not in "Om" or not y.size:
        return y
    if y.dtype == object:
        check_of_one_type(y, where)
    found, _ = typed_column(pd.Series(y.ravel()))
    return np.asarray(found.to_numpy()).reshape(y.shape)


def _flat(y: Array, where: str) -> tuple[Array, bool]:
    """Return targets [n] or [n, C], and whether they were one-hot."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or y.size == 0 or not len(y):
        raise UserError(
            f"{where}: targets must be one value per row [n], one-hot or real [n, C], but the "
            f"shape is {list(y.shape)}"
        ).with_code("target-shape")
    if y.ndim == 2 and y.dtype.kind in "biuf" and ((y == 0) | (y == 1)).all():
        if (y.sum(1) == 1).all():
            return y.argmax(1), True
        if y.dtype.kind == "b":
            row = int(np.flatnonzero(y.sum(1) != 1)[0])
            raise UserError(
                f"{where}: one-hot rows must have exactly one true value, but row {row} has "
                f"{int(y[row].sum())}; several labels per row are not supported"
            ).with_code("several-labels-per-row")
    return y, False


def _check_complete(y: Array, where: str) -> None:
    missing = pd.isna(y)
    missing = missing.any(1) if missing.ndim == 2 else missing
    if missing.any():
        rows = np.flatnonzero(missing)
        raise UserError(
            f"{where}: {len(rows)} of {len(y)} rows have no value, the first at row {rows[0]}; "
            "remove those rows"
        ).with_code("target-missing-in-rows")


def _is_numbered(y: Array) -> bool:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        return False
    found = np.unique(y)
    return bool(found[0] == 0 and found[-1] == len(found) - 1)


def _numbers(y: Array) -> Array | None:
    if y.dtype.kind in "biuf":
        return y.astype(np.float64)
    try:
        return np.asarray(to_numeric(pd.Series(y.ravel()))).astype(np.float64).reshape(y.shape)
    except (TypeError, ValueError):
        return None


def inferred(y: ArrayLike) -> TaskName:
    """Return the task that complete targets [n] or [n, C] have if none is given."""
    y = np.asarray(y)
    if y.ndim == 2:
        return "regression"
    if y.dtype.kind not in "iuf":
        return "classification"
    if y.dtype.kind == "f" and (not np.isfinite(y).all() or (y != np.round(y)).any()):
        return "regression"
    values, rows = np.unique(y, return_counts=True)
    if len(values) > min(MOST_CLASSES, len(y) // 2) or _are_counts(values, rows):
        return "regression"
    return "classification"


def _are_counts(values: Array, rows: Array) -> bool:
    """Tell whether whole numbers look like counts: many from 0 or 1, the large ones rare."""
    gaps = values[-1] - values[0] >= len(values)
    return bool(len(values) > MOST_RANKS and values[0] in (0, 1) and (gaps or rows[-1] == 1))


def _real(y: Array, where: str) -> Array:
    numbers = _numbers(y)
    if numbers is None:
        shown = next(v for v in y.ravel() if _numbers(np.array([v], dtype=object)) is None)
        few = y.ndim == 1 and len(set(y)) <= len(y) // 2
        remedy = "give --task classification" if few else "name another target"
        raise UserError(
            f"{where}: a regression needs numbers, but there is {str(shown)!r}; {remedy}, or "
            "correct the value"
        ).with_code("regression-of-text")
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(numbers.astype(np.float32)).all(1))
    if len(bad):
        raise UserError(
            f"{where}: targets must be finite in float32, but {len(bad)} of {len(y)} rows are "
            f"not, the first at row {bad[0]}; remove those rows, or give the targets another unit"
        ).with_code("target-not-finite")
    return numbers


def _check_varies(y: Array, where: str) -> None:
    if len(y) > 1 and (y.min(0) == y.max(0)).all():
        raise UserError(
            f"{where}: all {len(y)} training targets are {y[0, 0]:g}, so there is nothing to "
            "learn; name another target"
        ).with_code("target-constant")


def check_support(y: Array, scale: TargetScaleName, where: str, rows: str = "row") -> None:
    """Check that real targets [n, C] are in the support of a scale that has no parameter.

    Raises:
        ValueError: if one is not; names its value, row and column.
    """
    if scale != "log" or (y > 0).all():
        return
    row, column = map(int, np.argwhere(~(y > 0))[0])
    several = f" of column {column}" if y.shape[1] > 1 else ""
    raise UserError(
        f"{where}: target_scale = log needs values above 0, but {rows} {row} has "
        f"{y[row, column]:g}{several}; give shifted_log (the logarithm of the value plus a "
        "constant) or yeo_johnson"
    ).with_code("target-outside-scale")


def _classes(y: Array, y_test: Array, where: str) -> tuple[tuple[ClassName, ...], Array, Array]:
    named, test_named = _names(y, where), _names(y_test, where)
    found = sorted(set(named), key=_natural)
    if len(found) < 2:
        raise UserError(
            f"{where}: a classification needs at least 2 classes, but every training row has "
            f"{found[0]!r}; name another target, or add rows of other classes"
        ).with_code("one-class")
    if len(found) > max(2, len(y) // 2):
        remedy = "give task = regression" if _numbers(y) is not None else "group the values"
        raise UserError(
            f"{where}: {len(found)} different values in {len(y)} rows are not classes, the first "
            f"is {found[0]!r}; name another target, or {remedy}"
        ).with_code("too-many-classes")
    number: dict[ClassName, int] = {value: i for i, value in enumerate(found)}
    unknown = [value for value in test_named if value not in number]
    if unknown:
        raise UserError(
            f"{where}: test labels must be among the training labels, but {unknown[0]!r} is not; "
            "remove those test rows, or train on such a row"
        ).with_code("unknown-test-label")
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
                f"{where}: labels must be whole numbers or text, but row {row} has "
                f"{y[row]:g}; give task = regression for real targets"
            ).with_code("labels-not-whole")
        return [int(v) for v in y]  # not by way of float64, which merges those above 2^53
    return [str(v) for v in y]


def said_classes(names: Sequence[ClassName]) -> str:
    """Return in words which classes there are."""
    shown = (repr(n) if str(n) != str(n).strip() else n for n in names[:_LISTED])
    listed = ", ".join(map(shortened, shown)) + ", ..." * (len(names) > _LISTED)
    return f"classification, {len(names)} classes: {listed}"


def skewed_columns(y: Array) -> dict[int, float]:
    """Return the skewness of each real target [n, C] that is positive and skewed, by column.

    Positive: all values are above 0. Skewed: mean (y - mean y)^3 / std^3 is at least `SKEWED`.

    >>> found = skewed_columns(np.array([[1.0, -1.0], [2.0, 0.0], [1.0, 1.0], [30.0, 9.0]]))
    >>> {column: round(skewness, 2) for column, skewness in found.items()}
    {0: 1.15}
    """
    found = {}
    for k, column in enumerate(y.T):
        std = float(column.std())
        if std > 0 and (column > 0).all():
            skewness = float((((column - column.mean()) / std) ** 3).mean())
            if skewness >= SKEWED:
                found[k] = skewness
    return found


def said_scale(scale: TargetScale) -> str:
    """Return in words on which scale real targets are modelled."""
    return f"scale of the target: {scale.name}; change it with --target-scale"


def _said_real(y: Array) -> str:
    low, high = y.min(), y.max()
    columns = f"{y.shape[1]} targets" if y.shape[1] > 1 else "target"
    counts = (
        "; they look like counts, and a likelihood for counts is missing"
        if _look_like_counts(y)
        else ""
    )
    return f"regression, {columns} from {low:.4g} to {high:.4g}{counts}"


def _look_like_counts(y: Array) -> bool:
    """Tell whether real targets [n, C] are whole numbers from 0 or 1 on that repeat."""
    if y.min() not in (0, 1) or (y != np.round(y)).any():
        return False
    return MOST_RANKS < len(np.unique(y)) <= y.size // 2


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


def said_class_weights(class_weight: Mapping[str, float]) -> str:
    """Return what the user is told about the class weights."""
    return (
        f"class weights: {listed_weights(class_weight)}; the class with the largest "
        "weight times probability is predicted; training and scores are as without them"
    )


def listed_weights(class_weight: Mapping[str, float]) -> str:
    """Return class weights as text.

    >>> listed_weights({"no": 2 / 3, "yes": 2.0})
    'no 0.6667, yes 2'
    """
    return shortened(", ".join(f"{on_one_line(k)} {w:.4g}" for k, w in class_weight.items()))
