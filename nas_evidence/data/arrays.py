"""Data as numpy arrays: what a source returns, stratified subsets, and scaling.

Labels of the test part have one use here: `max_test` picks its rows in proportion to them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class RawArrays(NamedTuple):
    """A data set as read: images [n, C, H, W] or vectors [n, d], uint8 or float32; labels [n]."""

    x_train: Array
    y_train: NDArray[np.int64]
    x_test: Array
    y_test: NDArray[np.int64]


@dataclass(frozen=True)
class ArrayData:
    """A data set as asked for, not yet normalised.

    mean, std  float32, of the training part only: per channel [C, 1, 1] for images, per feature
               [d] for vectors; std is 1 where the training part is constant
    """

    name: str
    x_train: Array
    y_train: NDArray[np.int64]
    x_test: Array
    y_test: NDArray[np.int64]
    n_classes: int
    input_shape: tuple[int, ...]  # (C, H, W) or (d,)
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @property
    def n_train(self) -> int:
        """Number of training examples."""
        return len(self.x_train)


def stratified_rows(
    y: NDArray[np.int64], n_rows: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return `n_rows` row numbers, increasing, with the classes in their proportions in `y`.

    Class c gets n_rows * n_c / n, rounded down; what remains goes to the largest remainders, the
    lower class first. Which rows of a class is random.

    >>> y = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1])
    >>> rows = stratified_rows(y, 3, np.random.default_rng(0))
    >>> y[rows].tolist()
    [0, 0, 1]
    """
    counts = np.bincount(y)
    quotas, remainders = np.divmod(n_rows * counts, len(y))
    largest = np.argsort(-remainders, kind="stable")[: n_rows - quotas.sum()]
    quotas[largest] += 1
    chosen = [
        generator.permutation(np.flatnonzero(y == label))[:quota]
        for label, quota in enumerate(quotas)
    ]
    return np.sort(np.concatenate(chosen))


def moments(x: Array) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mean and standard deviation over the examples, and over the pixels of images.

    Both broadcast to one example. The standard deviation is 1 where all values are equal. Sums
    are in float64, by slices, so that no float64 copy of the data is made.
    """
    axes = (0, 2, 3) if x.ndim == 4 else (0,)
    n_values = x.size // x.shape[1]
    slices = [x[start : start + 4096] for start in range(0, len(x), 4096)]
    mean = sum(part.sum(axes, dtype=np.float64, keepdims=True) for part in slices) / n_values
    variance = sum(np.square(part - mean).sum(axes, keepdims=True) for part in slices) / n_values
    constant = x.max(axes, keepdims=True) == x.min(axes, keepdims=True)
    std = np.where(constant, 1.0, np.sqrt(variance))
    return mean[0].astype(np.float32), std[0].astype(np.float32)
