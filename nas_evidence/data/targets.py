"""Targets: which kind they are, and how those of each kind are read.

The task is inferred where it is not given: text and booleans are classes; whole numbers, whatever
their type, are classes if few of them occur; other numbers are real targets. One-hot rows are
labels. What was inferred is said in one sentence that names the option that changes it.

A row without a target, or without one of several, is left out before anything is decided.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nas_evidence.data.mapped import Array, random_rows, rows_at, stratified_rows
from nas_evidence.maths.target_scale import TargetScale
from nas_evidence.plumbing.foreign_text import on_one_line, shortened
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import TargetScaleName, scale_of_others
from nas_evidence.spec.likelihoods import TARGET_KINDS, TargetKind, Task

if TYPE_CHECKING:  # functions that read import it: a worker has its targets as numbers
    import pandas as pd

#: Maximum number of different whole numbers that are taken for classes.
MOST_CLASSES = 20
#: Maximum number of different whole numbers from 0 or 1 on that are never taken for counts.
MOST_RANKS = 10
#: Largest share of rows without a target that is left out.
MOST_LACKING = 0.2
#: Least skewness of a target that is called skewed.
SKEWED = 1.0
#: Class names listed in a sentence.
_LISTED = 8
ClassName = str | int | bool


@dataclass(frozen=True)
class Targets:
    """Targets of the training and test rows.

    task         what they are
    train, test  labels int64 [n] or real targets float64 [n, C]; test may be empty
    classes      the values that labels 0..C-1 stand for; empty for others
    said         what the task is
    change       how to change it if it was inferred, else empty
    """

    task: Task
    train: Array
    test: Array
    classes: tuple[ClassName, ...]
    said: str
    change: str = ""

    @property
    def sentence(self) -> str:
        """Return what the task is, and how to change it."""
        return self.said + self.change


class Labels:
    """How classes are read: as labels 0..C-1, with the names of the classes."""

    rows_of = staticmethod(stratified_rows)

    def read(self, y: Array, y_test: Array, where: str, scale: TargetScaleName) -> Targets:
        """Return complete targets [n] of any type as labels.

        Raises:
            ValueError: if they are no classes, or those of the test are others; names the place.
        """
        if y.ndim == 2:
            raise UserError(
                "labels-not-one-per-row",
                f"{where}: a classification needs one label per row, but the shape is "
                f"{list(y.shape)} and the rows are not one-hot; give one column, or task = "
                "regression",
            )
        named = _names(y, where)
        found = sorted(set(named), key=_natural)
        if len(found) < 2:
            raise UserError(
                "one-class",
                f"{where}: a classification needs at least 2 classes, but every training row has "
                f"{found[0]!r}; name another target, or add rows of other classes",
            )
        if len(found) > max(2, len(y) // 2):
            words = np.isnan(numbers_of(y)).any()
            remedy = "group the values" if words else "give task = regression"
            raise UserError(
                "too-many-classes",
                f"{where}: {len(found)} different values in {len(y)} rows are not classes, the "
                f"first is {found[0]!r}; name another target, or {remedy}",
            )
        number = {value: i for i, value in enumerate(found)}
        places = labels_of(y_test, found)
        if None in places:
            unknown = str(y_test[places.index(None)])
            raise UserError(
                "unknown-test-label",
                f"{where}: test labels must be among the training labels, but {unknown!r} is "
                "not; remove those test rows, or train on such a row",
            )
        real = all(isinstance(name, int) and not isinstance(name, bool) for name in found)
        change = "; task=regression to change" if real else ""
        train, test = (np.array(p, np.int64) for p in ([number[v] for v in named], places))
        return Targets("classification", train, test, tuple(found), _said_classes(found), change)

    def tested(self, y: Array, n: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        """Return about n rows with the shares of the classes; one row alone is in training."""
        in_test = _mask(y, stratified_rows(y, n, generator))
        for label in set(y[in_test].tolist()) - set(y[~in_test].tolist()):
            in_test[y == label] = False
        return in_test

    def outputs(
        self, y: Array, y_all: Array, n_classes: int
    ) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return the number of classes, named or in all rows; labels are not scaled."""
        found = n_classes or int(y_all.max()) + 1
        return found, np.zeros(found), np.ones(found)

    def seen(self, y: Array, scale: TargetScale) -> Array:
        """Return the labels as they are."""
        return y

    def leak(self, values: "pd.Series", y: Array, rows: Array) -> str:
        """Return how a feature gives labels away, in words."""
        from nas_evidence.data.leaks import of_labels  # late: it imports pandas

        return of_labels(values, y, rows)


class RealTargets:
    """How real targets are read: as numbers [n, C], which networks see standardised on a scale."""

    def read(self, y: Array, y_test: Array, where: str, scale: TargetScaleName) -> Targets:
        """Return complete targets [n] or [n, C] as float64 [n, C].

        Raises:
            ValueError: if some are no finite numbers, all are equal, or one is outside the scale.
        """
        train, test = real_numbers(y, where), real_numbers(y_test, f"test rows, {where}")
        _check_varies(train, where)
        for part, rows in ((train, "row"), (test, "test row")):
            _check_support(part, scale, where, rows)
        change = "" if y.ndim == 2 else "; task=classification to change"
        return Targets("regression", train, test, (), _said_real(train), change)

    def rows_of(self, y: Array, n: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return n of the rows at random, increasing."""
        return random_rows(len(y), n, generator)

    def tested(self, y: Array, n: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        """Return n of the rows at random."""
        return _mask(y, self.rows_of(y, n, generator))

    def outputs(
        self, y: Array, y_all: Array, n_classes: int
    ) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return the columns, with mean and std of each; the std of a constant is 1."""
        return y.shape[1], y.mean(0), np.where(y.min(0) == y.max(0), 1.0, y.std(0))

    def seen(self, y: Array, scale: TargetScale) -> Array:
        """Return targets on the scale, standardised, float32 [n, C]; 0 outside its support."""
        z = scale.standardised(y)
        with np.errstate(over="ignore"):
            return np.where(np.isfinite(z), z, 0.0).astype(np.float32)

    def leak(self, values: "pd.Series", y: Array, rows: Array) -> str:
        """Return how a feature gives real targets away, in words."""
        from nas_evidence.data.leaks import of_real_targets  # late: it imports pandas

        return of_real_targets(values, y, rows)


Reading = Labels | RealTargets
_READINGS: Mapping[Task, Reading] = {"classification": Labels(), "regression": RealTargets()}


def reading_of(kind: TargetKind) -> Reading:
    """Return how targets of a kind are read."""
    return _READINGS[kind.task]


def _mask(y: Array, rows: Array) -> NDArray[np.bool_]:
    found = np.zeros(len(y), dtype=bool)
    found[rows] = True
    return found


# --- from targets as given to those of a kind


def with_targets(rows: Any) -> tuple[Any, list[str]]:
    """Return rows as read without those that lack a target, and sentences that count these.

    Groups, times and weights stay those of their rows, and a table keeps its index.

    Args:
        rows: a `RowsRead` of `assembly.py`.

    Raises:
        ValueError: if more than `MOST_LACKING` of the training or test rows lack one.
    """
    said, weights = [], list(rows.weights)
    for k, (x, y, part) in enumerate((("x", "y", ""), ("x_test", "y_test", "test "))):
        values = getattr(rows, y)
        lacking = np.zeros(0, bool) if values is None else lack_target(values, rows.place)
        if not lacking.any():
            continue
        n, first = int(lacking.sum()), int(lacking.argmax())
        if n > MOST_LACKING * len(lacking):
            raise UserError(
                "target-missing-in-rows",
                f"{rows.place}: {n} of {len(lacking)} {part}rows have no value, the first is row "
                f"{first}; at most {MOST_LACKING:.0%} of the rows are left out: give their "
                "targets, or remove them",
            )
        said.append(f"left out: {n} of {len(lacking)} {part}rows, as they have no target; the "
                    f"first is row {first}")  # fmt: skip
        known = np.flatnonzero(~lacking)
        weights[k] = None if weights[k] is None else rows_at(weights[k], known)
        update = {x: rows_at(getattr(rows, x), known), y: values[known], "weights": (*weights,)}
        if k == 0 and rows.units is not None:
            update["units"] = rows_at(rows.units, known)
        rows = replace(rows, **update)
    if said:  # row numbers of later errors count these rows alone
        also = " (rows with a target)"
        rows = replace(rows, where=rows.where + also, place=rows.place + also)
    return rows, said


def lack_target(y: ArrayLike, where: str) -> NDArray[np.bool_]:
    """Return which rows of targets [n] or [n, C] lack one; an empty text is none."""
    import pandas as pd

    y = typed_targets(y, where)
    missing = np.char.strip(y) == "" if y.dtype.kind == "U" else pd.isna(y)
    return np.asarray(np.atleast_2d(missing.T).any(0))


def targets_of(
    train: ArrayLike,
    test: ArrayLike | None,
    *,
    task: Task | None,
    where: str,
    integers_are_labels: bool = False,
    categories: bool = False,
    scale: TargetScaleName = "identity",
) -> Targets:
    """Return targets as those of their kind.

    Args:
        train: of the training rows, none missing: [n], [n, 1], one-hot [n, C] or real [n, C], of
            any type.
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
            "target-columns-differ",
            f"{where}: training and test targets must have as many columns, but have shapes "
            f"{list(y.shape)} and {list(y_test.shape)}",
        )
    labels = one_hot or categories or (integers_are_labels and _is_numbered(y))
    asked, task = task, task or ("classification" if labels else inferred(y))
    kind = TARGET_KINDS[task]
    if scale != "identity" and not kind.scaled:
        raise scale_of_others(scale, kind, f"the values of {where}")
    found = reading_of(kind).read(y, y_test, where, scale)
    return replace(found, change="") if asked else found


def check_unordered(values: object, task: Task | None, where: str) -> None:
    """Check that targets are no grades, whose order no likelihood here knows, nor of two types.

    Raises:
        ValueError: for ordered categories, unless the task is given, and for labels such as 1
            and "1" that no table keeps apart; names the remedies.
    """
    import pandas as pd

    if isinstance(values, pd.Series | np.ndarray) and values.dtype == object:
        _check_of_one_type(np.asarray(values), where)
    kind = getattr(values, "dtype", None)
    if task is None and isinstance(kind, pd.CategoricalDtype) and kind.ordered:
        grades = ", ".join(shortened(name) for name in kind.categories[:_LISTED])
        raise UserError(
            "ordered-grades",
            f"{where} holds ordered grades ({grades}), and there is no likelihood for their "
            "order; give task = classification to ignore it, or their numbers "
            "(.cat.codes) for a regression",
        )


def _check_of_one_type(y: Array, where: str) -> None:
    import pandas as pd

    from nas_evidence.data.typed import merged_objects

    if (twice := merged_objects(y[~pd.isna(y)])) is not None:
        raise UserError(
            "labels-of-two-types",
            f"{where} holds {twice} as text and as another type, and labels of both could not be "
            "told apart; write all of one type",
        )


def typed_cells(values: "pd.Series | Array", where: str) -> "pd.Series":
    """Return values [n] as a column of the types of `typed.py`, numbered from 0."""
    import pandas as pd

    from nas_evidence.data.typed import names_half_characters, typed_column

    with names_half_characters(where, np.asarray(values)):
        return typed_column(pd.Series(values).reset_index(drop=True))[0]


def typed_targets(values: ArrayLike, where: str) -> Array:
    """Return an array; Python objects as what all are (`typed.py`), labels as they stay apart."""
    y = np.asarray(values)
    if y.dtype.kind not in "Om" or not y.size:
        return y
    if y.dtype == object:
        _check_of_one_type(y, where)
    return column_values(typed_cells(y.ravel(), where).infer_objects()).reshape(y.shape)


def column_values(column: "pd.Series") -> Array:
    """Return a column as an array [n]; whole numbers beside gaps stay whole."""
    whole = column.dtype.kind in "biu" and not isinstance(column.dtype, np.dtype)
    return np.asarray(column.astype(object) if whole and column.hasnans else column)


def _flat(y: Array, where: str) -> tuple[Array, bool]:
    """Return targets [n] or [n, C], and whether they were one-hot."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or not y.size:
        raise UserError(
            "target-shape",
            f"{where}: targets must be one value per row [n], one-hot or real [n, C], but the "
            f"shape is {list(y.shape)}",
        )
    if y.ndim == 2 and y.dtype.kind in "biuf" and ((y == 0) | (y == 1)).all():
        if (y.sum(1) == 1).all():
            return y.argmax(1), True
        if y.dtype.kind == "b":
            row = int(np.flatnonzero(y.sum(1) != 1)[0])
            raise UserError(
                "several-labels-per-row",
                f"{where}: one-hot rows must have exactly one true value, but row {row} has "
                f"{int(y[row].sum())}; several labels per row are not supported",
            )
    return y, False


def _is_numbered(y: Array) -> bool:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        return False
    found = np.unique(y)
    return bool(found[0] == 0 and found[-1] == len(found) - 1)


def numbers_of(values: ArrayLike) -> NDArray[np.float64]:
    """Return values as numbers of the same shape; NaN for what is none."""
    y = np.asarray(values)
    if y.dtype.kind in "biuf":
        return y.astype(np.float64)
    import pandas as pd

    from nas_evidence.data.exact_text import to_numeric

    found = to_numeric(pd.Series(y.ravel()), errors="coerce").astype("float64")
    return np.asarray(found).reshape(y.shape)


def inferred(y: ArrayLike) -> Task:
    """Return the task that complete targets [n] or [n, C] have if none is given."""
    y = np.asarray(y)
    if y.ndim == 2:
        return "regression"
    if y.dtype.kind not in "iuf":
        return "classification"
    if not np.isfinite(y).all() or (y != np.round(y)).any():
        return "regression"
    many = len(np.unique(y)) > min(MOST_CLASSES, len(y) // 2)
    return "regression" if many or _are_counts(y) else "classification"


def _are_counts(y: Array) -> bool:
    """Tell whether numbers look like counts: whole, many from 0 or 1, the large ones rare."""
    values, rows = np.unique(y, return_counts=True)
    if not MOST_RANKS < len(values) <= y.size // 2 or values[0] not in (0, 1):
        return False
    rare = values[-1] - values[0] >= len(values) or rows[-1] == 1
    return bool(rare and (values == np.round(values)).all())


# --- classes


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
        if len(bad := np.flatnonzero(y != np.round(y))):
            raise UserError(
                "labels-not-whole",
                f"{where}: labels must be whole numbers or text, but row {bad[0]} has "
                f"{y[bad[0]]:g}; give task = regression for real targets",
            )
        return [int(v) for v in y]  # not by way of float64, which merges those above 2^53
    return [str(v) for v in y]


def labels_of(values: Array, classes: Sequence[ClassName]) -> list[int | None]:
    """Return the place among the classes of each value, None of another one.

    A value is a class by its text; else, where all classes are numbers that float64 keeps apart,
    by its number.
    """
    import pandas as pd

    from nas_evidence.data.exact_text import as_numbers

    place = {str(name): i for i, name in enumerate(classes)}
    found = [place.get(str(value)) for value in values.ravel()]
    if None in found:
        own = as_numbers(pd.Series(classes, dtype=object)).tolist()
        number = {x: i for i, x in enumerate(own) if abs(x) < 2**53}
        if len(number) == len(place):
            found = [*map(number.get, as_numbers(pd.Series(values.ravel(), dtype=object)))]
    return found


def _said_classes(names: Sequence[ClassName]) -> str:
    shown = (repr(n) if str(n) != str(n).strip() else n for n in names[:_LISTED])
    listed = ", ".join(map(shortened, shown)) + ", ..." * (len(names) > _LISTED)
    return f"classification, {len(names)} classes: {listed}"


def class_weights(
    y: Array, names: Sequence[str], asked: Mapping[str, float] | str
) -> NDArray[np.float64]:
    """Return the weight of each class [C]: what an error on one of its rows costs.

    "balanced" is n / (K n_k), as in scikit-learn; a class that a mapping does not name gets 1.
    Weights decide which class is predicted (`maths/decisions.py`), and change neither training nor
    scores.

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


def listed_weights(class_weight: Mapping[str, float]) -> str:
    """Return class weights as text.

    >>> listed_weights({"no": 2 / 3, "yes": 2.0})
    'no 0.6667, yes 2'
    """
    return shortened(", ".join(f"{on_one_line(k)} {w:.4g}" for k, w in class_weight.items()))


def said_class_weights(class_weight: Mapping[str, float]) -> str:
    """Return what the user is told about the class weights."""
    return (
        f"class weights: {listed_weights(class_weight)}; the class with the largest "
        "weight times probability is predicted; training and scores are as without them"
    )


# --- real targets


def real_numbers(y: Array, where: str) -> Array:
    """Return targets as finite numbers float64 [n, C].

    Raises:
        ValueError: if one is no number, or not finite in float32; names the row.
    """
    import pandas as pd

    numbers = numbers_of(y)
    if (words := y[np.isnan(numbers) & ~pd.isna(y)]).size:
        few = y.ndim == 1 and len(set(y)) <= len(y) // 2
        remedy = "give task=classification" if few else "name another target"
        raise UserError(
            "regression-of-text",
            f"{where}: a regression needs numbers, but there is {str(words[0])!r}; {remedy}, or "
            "correct the value",
        )
    numbers = np.atleast_2d(numbers.T).T
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(numbers.astype(np.float32)).all(1))
    if len(bad):
        raise UserError(
            "target-not-finite",
            f"{where}: targets must be finite in float32, but {len(bad)} of {len(y)} rows are "
            f"not, the first at row {bad[0]}; remove those rows, or give the targets another unit",
        )
    return numbers


def _check_varies(y: Array, where: str) -> None:
    """Check that not all targets are equal, and that each column varies by enough for float32."""
    spread, least = y.max(0) - y.min(0), float(np.finfo(np.float32).tiny)
    few = spread[spread < least]
    if len(y) > 1 and (few.any() or not spread.any()):
        raise UserError(
            "target-constant",
            f"{where}: the training targets span {few.max():.3g}, from {y.min():g} on, so there "
            f"is nothing to learn (float32 holds no less than {least:.3g}); name another target, "
            "or give the targets another unit",
        )


def _check_support(y: Array, scale: TargetScaleName, where: str, rows: str) -> None:
    """Check that real targets [n, C] are in the support of a scale that has no parameter."""
    if scale != "log" or (y > 0).all():
        return
    row, column = map(int, np.argwhere(~(y > 0))[0])
    several = f" of column {column}" if y.shape[1] > 1 else ""
    raise UserError(
        "target-outside-scale",
        f"{where}: target_scale = log needs values above 0, but {rows} {row} has "
        f"{y[row, column]:g}{several}; give shifted_log (the logarithm of the value plus a "
        "constant) or yeo_johnson",
    )


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
    return f"scale of the target: {scale.name}; change it with target_scale (--target-scale)"


def _said_real(y: Array) -> str:
    columns = f"{y.shape[1]} targets" if y.shape[1] > 1 else "target"
    counts = "; they look like counts, and a likelihood for counts is missing"
    counts = counts if _are_counts(y) else ""
    return f"regression, {columns} from {y.min():.4g} to {y.max():.4g}{counts}"
