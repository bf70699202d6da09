"""Bins of numbers: edges and encodings against plain Python, and the columns that get none."""

import statistics
from itertools import pairwise

import numpy as np
import pytest

from nas_evidence.maths.piecewise import MOST_BINS, bins_of, edges_of

TINY = float(np.finfo(np.float32).tiny)


def by_the_paper(x: float, edges: list[float]) -> list[float]:
    """Equation 1 of Gorishniy et al. (2022), held between 0 and 1 outside of all bins."""
    found = []
    for low, high in pairwise(edges):
        found.append(0.0 if x < low else 1.0 if x >= high else (x - low) / (high - low))
    return found


def test_edges_are_the_quantiles_of_the_standard_library() -> None:
    values = np.random.default_rng(0).lognormal(size=101).astype(np.float32)
    inner = statistics.quantiles(values.tolist(), n=MOST_BINS, method="inclusive")
    expected = [float(values.min()), *inner, float(values.max())]
    np.testing.assert_allclose(edges_of(values), expected, rtol=1e-6)


def test_moments_are_those_of_equation_1_on_the_training_rows() -> None:
    x = np.random.default_rng(1).normal(size=(60, 2)).astype(np.float32)
    found = bins_of(x, np.array([True, True]))
    assert found.column.tolist() == [0] * 8 + [1] * 8
    for column in range(2):
        own = found.column == column
        edges = [*found.low[own].tolist(), float(found.high[own][-1])]
        ramps = np.array([by_the_paper(value, edges) for value in x[:, column].tolist()])
        np.testing.assert_allclose(found.mean[own], ramps.mean(0), rtol=1e-5)
        np.testing.assert_allclose(found.std[own], ramps.std(0), rtol=1e-5)


@pytest.mark.parametrize(
    "values",
    [
        [3.0] * 20,  # constant
        [0.0, 1.0] * 10,  # a flag
        [0.0] * 97 + [1.0, 2.0, 3.0],  # all quantiles but one are the same: one bin
        [0.0, TINY / 4, TINY / 2] * 7,  # as close as numbers that may count as 0
        [],
    ],
)  # fmt: skip
def test_columns_without_two_bins_have_none(values: list[float]) -> None:
    assert len(edges_of(np.array(values, np.float32))) == 0


def test_whole_numbers_of_nine_values_have_a_bin_between_two_neighbours() -> None:
    values = np.repeat(np.arange(9, dtype=np.float32), 10)
    assert edges_of(values).tolist() == values[::10].tolist()


def test_numbers_that_float32_just_tells_apart_have_bins_of_finite_moments() -> None:
    one = np.float32(1)
    step = np.nextafter(one, np.float32(2)) - one
    near = one + step * np.arange(9, dtype=np.float32)
    wide = np.float32([-3e38, -1e38, 0, 1e-38, 1, 2, 3, 1e38, 1.2e38])
    found = bins_of(np.stack([near, wide], 1), np.array([True, True]))
    assert (found.high > found.low).all()
    assert np.isfinite(found.mean).all()
    assert (found.std > 0).all()
    assert set(found.column.tolist()) == {0, 1}


def test_replacements_of_missing_values_have_no_say_in_the_edges() -> None:
    x = np.arange(40, dtype=np.float32)[:, None]
    known = np.ones((80, 1), dtype=bool)
    known[40:] = False
    filled = np.concatenate([x, np.full((40, 1), 7, np.float32)])
    found = bins_of(filled, np.array([True]), known)
    np.testing.assert_array_equal(found.low, edges_of(x[:, 0])[:-1])
    assert not np.array_equal(found.low, edges_of(filled[:, 0])[:-1])
    ramp = np.clip((filled - found.low) / (found.high - found.low), 0, 1)  # of all rows
    np.testing.assert_allclose(found.mean, ramp.mean(0), rtol=1e-5)


def test_columns_that_are_no_numbers_have_no_bins() -> None:
    x = np.random.default_rng(2).normal(size=(30, 3)).astype(np.float32)
    assert set(bins_of(x, np.array([False, True, False])).column.tolist()) == {1}
