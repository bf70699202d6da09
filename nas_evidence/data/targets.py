"""Targets of any kind: which kind they are, and the reading of each kind.

The task is inferred where it is not given: text and booleans are classes; whole numbers, whatever
their type, are classes if few of them occur; other numbers are real targets. One-hot rows are
labels. What was inferred is said in one sentence that names the option that changes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nas_evidence.data.mapped import Array
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
#: Class names listed in a sentence.
LISTED = 8
ClassName = str | int | bool


@dataclass(frozen=True)
class Targets:
    """Targets of the training and test rows.

    task         what they are
    train, test  as its reading makes them; test may be empty
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


class Reading(Protocol):
    """How targets of one kind are read: a module, that of its declaration."""

    def read(self, y: Array, y_test: Array, where: str, scale: TargetScaleName) -> Targets:
        """Return complete targets [n] or [n, C] of any type as those of this kind.

        Raises:
            ValueError: if they are none, or do not fit the scale; names the place.
        """

    def rows_of(self, y: Array, n: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return n row numbers at random, increasing."""

    def tested(self, y: Array, n: int, generator: np.random.Generator) -> NDArray[np.bool_]:
        """Return which of the rows are split off for testing, about n."""

    def outputs(
        self, y: Array, y_all: Array, n_classes: int
    ) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return how many classes or columns there are, and mean and std of each.

        Args:
            y: of the training rows.
            y_all: the same before `max_train` took some of them.
            n_classes: how many classes have names.
        """

    def seen(self, y: Array, scale: TargetScale) -> Array:
        """Return targets as networks see them."""

    def leak(self, values: "pd.Series", y: Array, rows: Array) -> str:
        """Return how a feature gives the target away, in words; empty if it does not.

        Args:
            values: the feature, of the training rows.
            y: their targets.
            rows: row numbers in random order, for what takes long.
        """


def reading_of(kind: TargetKind) -> Reading:
    """Return how targets of a kind are read."""
    found: Reading = import_module(kind.reading)
    return found


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
            "target-columns-differ",
            f"{where}: training and test targets must have as many columns, but have shapes "
            f"{list(y.shape)} and {list(y_test.shape)}",
        )
    for part, place in ((y, where), (y_test, f"test rows, {where}")):
        _check_complete(part, place)
    asked = task
    if task is None:
        if one_hot or categories or (integers_are_labels and _is_numbered(y)):
            task = "classification"
        else:
            task = inferred(y)
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
        check_of_one_type(np.asarray(values), where)
    kind = getattr(values, "dtype", None)
    if task is None and isinstance(kind, pd.CategoricalDtype) and kind.ordered:
        grades = ", ".join(shortened(name) for name in kind.categories[:LISTED])
        raise UserError(
            "ordered-grades",
            f"{where} holds ordered grades ({grades}), and there is no likelihood for their "
            "order; give task = classification to ignore it, or their numbers "
            "(.cat.codes) for a regression",
        )


def check_of_one_type(y: Array, where: str) -> None:
    """Check that no label occurs as text and as another type.

    Raises:
        ValueError: if one does, such as 1 and "1"; names it.
    """
    import pandas as pd

    from nas_evidence.data.typed import merged_objects

    if (twice := merged_objects(y[~pd.isna(y)])) is not None:
        raise UserError(
            "labels-of-two-types",
            f"{where} holds {twice} as text and as another type, and labels of both could not be "
            "told apart; write all of one type",
        )


def typed_targets(values: ArrayLike, where: str) -> Array:
    """Return an array; Python objects as what all are (`typed.py`), labels as they stay apart."""
    y = np.asarray(values)
    if y.dtype.kind not in "Om" or not y.size:
        return y
    if y.dtype == object:
        check_of_one_type(y, where)
    import pandas as pd

    from nas_evidence.data.typed import names_half_characters, typed_column

    with names_half_characters(where, y.ravel()):
        found, _ = typed_column(pd.Series(y.ravel()))
    return np.asarray(found.to_numpy()).reshape(y.shape)


def _flat(y: Array, where: str) -> tuple[Array, bool]:
    """Return targets [n] or [n, C], and whether they were one-hot."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or y.size == 0 or not len(y):
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


def _check_complete(y: Array, where: str) -> None:
    import pandas as pd

    missing = np.atleast_2d(pd.isna(y).T).any(0)
    if missing.any():
        rows = np.flatnonzero(missing)
        raise UserError(
            "target-missing-in-rows",
            f"{where}: {len(rows)} of {len(y)} rows have no value, the first at row {rows[0]}; "
            "remove those rows",
        )


def _is_numbered(y: Array) -> bool:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        return False
    found = np.unique(y)
    return bool(found[0] == 0 and found[-1] == len(found) - 1)


def numbers_of(y: Array) -> Array | None:
    """Return targets as float64, None if some are no numbers."""
    if y.dtype.kind in "biuf":
        return y.astype(np.float64)
    import pandas as pd

    from nas_evidence.data.exact_text import to_numeric

    try:
        return np.asarray(to_numeric(pd.Series(y.ravel()))).astype(np.float64).reshape(y.shape)
    except (TypeError, ValueError):
        return None


def inferred(y: ArrayLike) -> Task:
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
    if not len(values):
        return False
    gaps = values[-1] - values[0] >= len(values)
    return bool(len(values) > MOST_RANKS and values[0] in (0, 1) and (gaps or rows[-1] == 1))


def listed_weights(class_weight: Mapping[str, float]) -> str:
    """Return class weights as text.

    >>> listed_weights({"no": 2 / 3, "yes": 2.0})
    'no 0.6667, yes 2'
    """
    return shortened(", ".join(f"{on_one_line(k)} {w:.4g}" for k, w in class_weight.items()))
