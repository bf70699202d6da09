"""Matrices of tests: a sample runs in `make test`, all of it in `make matrices`."""

from collections.abc import Iterable, Sequence

import pytest

#: Not in the sample.
REST = pytest.mark.matrix


def pairs(one: Iterable[object], other: Iterable[object]) -> list[object]:
    """Return all pairs; in the sample are as few as hold each value of both at least once."""
    left, right = list(one), list(other)
    sample = {(i % len(left), i % len(right)) for i in range(max(len(left), len(right)))}
    return [
        pytest.param(a, b, marks=[] if (i, j) in sample else REST)
        for i, a in enumerate(left)
        for j, b in enumerate(right)
    ]


def sampled(rows: Sequence[tuple[object, ...]], *, every: int) -> list[object]:
    """Return all rows, of which every so many-th is in the sample."""
    return [pytest.param(*row, marks=REST if i % every else []) for i, row in enumerate(rows)]
