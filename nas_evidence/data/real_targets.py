"""Real targets: numbers [n, C], which networks see standardised on a scale."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nas_evidence.data.arrays import random_rows
from nas_evidence.data.mapped import Array
from nas_evidence.data.targets import MOST_RANKS, Targets, numbers_of
from nas_evidence.maths.target_scale import TargetScale
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.dataset import TargetScaleName
from nas_evidence.spec.likelihoods import TARGET_KINDS

if TYPE_CHECKING:
    import pandas as pd

#: Least skewness of a target that is called skewed.
SKEWED = 1.0


def leak(values: "pd.Series", y: Array, rows: Array) -> str:
    """Return how a feature gives real targets away, in words."""
    from nas_evidence.data.leaks import of_real_targets  # late: it imports pandas

    return of_real_targets(values, y, rows)


def read(y: Array, y_test: Array, where: str, scale: TargetScaleName) -> Targets:
    """Return real targets float64 [n, C]; see `Reading`."""
    train, test = real_numbers(y, where), real_numbers(y_test, f"test rows, {where}")
    check_varies(train, where)
    for part, rows in ((train, "row"), (test, "test row")):
        check_support(part, scale, where, rows)
    change = "" if y.ndim == 2 else "; task=classification to change"
    return Targets("regression", train, test, (), _said_real(train), change)


def rows_of(y: Array, n: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return n of the rows at random, increasing."""
    return random_rows(len(y), n, generator)


def tested(y: Array, n: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Return n of the rows at random."""
    in_test = np.zeros(len(y), dtype=bool)
    in_test[random_rows(len(y), n, generator)] = True
    return in_test


def outputs(
    y: Array, y_all: Array, n_classes: int
) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns, with mean and std of each; the std of a constant is 1."""
    return y.shape[1], y.mean(0), np.where(y.min(0) == y.max(0), 1.0, y.std(0))


def seen(y: Array, scale: TargetScale) -> Array:
    """Return targets on the scale, standardised, float32 [n, C]; 0 outside its support."""
    z = scale.standardised(y)
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(z), z, 0.0).astype(np.float32)


def real_numbers(y: Array, where: str) -> Array:
    """Return targets as finite numbers float64 [n, C]."""
    numbers = numbers_of(y)
    if numbers is None:
        shown = next(v for v in y.ravel() if numbers_of(np.array([v], dtype=object)) is None)
        few = y.ndim == 1 and len(set(y)) <= len(y) // 2
        remedy = "give task=classification" if few else "name another target"
        raise UserError(
            "regression-of-text",
            f"{where}: a regression needs numbers, but there is {str(shown)!r}; {remedy}, or "
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


def check_varies(y: Array, where: str) -> None:
    """Check that not all targets are equal, and that each column varies by enough for float32."""
    spread = y.max(0) - y.min(0)
    if len(y) > 1 and not spread.any():
        raise UserError(
            "target-constant",
            f"{where}: all {len(y)} training targets are {y[0, 0]:g}, so there is nothing to "
            "learn; name another target",
        )
    least = float(np.finfo(np.float32).tiny)
    if (few := spread[(spread > 0) & (spread < least)]).size:
        raise UserError(
            "target-span-too-small",
            f"{where}: the training targets span {few[0]:.3g}, but float32 holds no less than "
            f"{least:.3g}; give the targets another unit",
        )


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
    low, high = y.min(), y.max()
    columns = f"{y.shape[1]} targets" if y.shape[1] > 1 else "target"
    counts = ""
    if _look_like_counts(y):
        known = "counts" in TARGET_KINDS
        remedy = ": give task=counts" if known else ", and a likelihood for counts is missing"
        counts = f"; they look like counts{remedy}"
    return f"regression, {columns} from {low:.4g} to {high:.4g}{counts}"


def _look_like_counts(y: Array) -> bool:
    """Tell whether real targets [n, C] are whole numbers from 0 or 1 on that repeat."""
    if y.min() not in (0, 1) or (y != np.round(y)).any():
        return False
    return MOST_RANKS < len(np.unique(y)) <= y.size // 2
