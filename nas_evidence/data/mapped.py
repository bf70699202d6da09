"""Inputs that stay on disk: rows of a .npy file, read when indexed.

Only the path is sent to other processes, not the data, so every machine of a study needs the file
at the same path.
"""

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_Rows = TypeVar("_Rows")


def arranged(x: Array) -> Array:
    """Return inputs as [n, d] or [n, C, H, W], uint8 or float32; copied only if necessary.

    With four axes, the last or the second holds the channels, as `channels_last` says.
    """
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # becomes inf, which the reader reports
            x = x.astype(np.float32, copy=False)
    if x.ndim == 3:
        x = x[:, None]
    elif channels_last(x):
        x = x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


def channels_last(x: Array) -> bool:
    """Return whether the last of four axes holds the channels.

    It does with a length of 1 or 3, and with the 4 of RGBA after two axes of another length that
    both share: [n, 32, 32, 4] is a square image, not 32 channels of 32 x 4.
    """
    if x.ndim != 4:
        return False
    rgba = x.shape[3] == 4 and x.shape[1] == x.shape[2] != 4
    return rgba or x.shape[3] in (1, 3)


class MappedRows:
    """Some or all rows of a file; indexing by a slice or by row numbers copies them."""

    def __init__(self, path: Path, rows: NDArray[np.int64] | None = None) -> None:
        self.path = path.resolve()
        self.rows = rows  # None for all
        self._stored = np.load(self.path, mmap_mode="r", allow_pickle=False)
        one = arranged(self._stored[:1])
        self.dtype = one.dtype
        n = len(self._stored) if rows is None else len(rows)
        self.shape: tuple[int, ...] = (n, *one.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | NDArray[np.int64]) -> Array:
        rows = index if self.rows is None else self.rows[index]
        return arranged(np.array(self._stored[rows]))

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedRows, (self.path, self.rows)

    def subset(self, rows: NDArray[np.int64]) -> "MappedRows":
        """Return a selection of these rows."""
        return MappedRows(self.path, rows if self.rows is None else self.rows[rows])


def rows_at(x: _Rows, rows: NDArray[np.int64]) -> _Rows:
    """Return some rows of an array, a table or a file; rows of a file stay in the file."""
    if isinstance(x, MappedRows):
        return x.subset(rows)  # type: ignore[return-value]
    return getattr(x, "iloc", x)[rows]  # type: ignore[index, no-any-return]


def stratified_rows(
    y: NDArray[np.int64], n_rows: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return `n_rows` row numbers, increasing, with the class proportions of `y`.

    Class c gets n_rows * n_c / n rows, rounded down; the rest go to the largest remainders, ties
    to the lower class. Rows are drawn at random within a class.

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


def random_rows(n_data: int, n_rows: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return `n_rows` of the row numbers 0..n_data-1 at random, increasing."""
    return np.sort(generator.permutation(n_data)[:n_rows])
