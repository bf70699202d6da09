"""Matrices of tests: a sample runs in `make test`, all of it in `make matrices`."""

from collections.abc import Iterable, Mapping, Sequence

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


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Mark as `REST` what is not in the sample of a test that has the mark `crossed`."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("crossed"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        sample = sample_of([case.callspec.params for case in cases])
        for i, case in enumerate(cases):
            if i not in sample:
                case.add_marker(REST)


def sample_of(cases: Sequence[Mapping[str, object]]) -> set[int]:
    """Return the numbers of cases that hold each value of each parameter at least once.

    They are as few as a greedy choice finds: first those whose values are all new.
    """
    values = [{(name, repr(value)) for name, value in case.items()} for case in cases]
    seen, sample = set[tuple[str, str]](), set[int]()
    for n_new in range(len(values[0]), 0, -1):
        for i, own in enumerate(values):
            if len(own - seen) >= n_new:
                sample.add(i)
                seen |= own
    return sample


def sampled(rows: Sequence[tuple[object, ...]], *, every: int) -> list[object]:
    """Return all rows, of which every so many-th is in the sample."""
    return [pytest.param(*row, marks=REST if i % every else []) for i, row in enumerate(rows)]
