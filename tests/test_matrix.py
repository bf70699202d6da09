"""Samples of matrices of tests."""

import itertools

import pytest
from matrix import pairs, sample_of


@pytest.mark.parametrize("sizes", [(3,), (4, 2), (2, 3, 4), (5, 5)])
def test_a_sample_of_crossed_parameters_has_each_value_in_as_few_cases_as_can_be(
    sizes: tuple[int, ...],
) -> None:
    cases = [dict(enumerate(case)) for case in itertools.product(*map(range, sizes))]
    found = [cases[i] for i in sample_of(cases)]
    for k, size in enumerate(sizes):
        assert {case[k] for case in found} == {*range(size)}
    assert len(found) == max(sizes)


def test_a_sample_of_pairs_has_each_value_of_both() -> None:
    found = [one.values for one in pairs("abc", "xy") if not one.marks]
    assert {a for a, _ in found} == {*"abc"}
    assert {b for _, b in found} == {*"xy"}
    assert len(found) == 3
