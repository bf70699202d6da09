"""Claims about paired differences: the interval covers what it says, and holds rare mistakes."""

import math

import comparison_coverage
import numpy as np
import pytest
from scipy import stats

from nas_evidence.maths.paired import expected_variance_of_classes, paired_interval


def test_without_skewness_the_interval_is_students() -> None:
    values = np.random.default_rng(0).normal(size=40)
    values = np.concatenate([values, -values])
    found = paired_interval(values + 3.0)
    error = values.std(ddof=1) / np.sqrt(80)
    assert found == pytest.approx((3.0, *stats.t.interval(0.95, 79, 3.0, error)))


def test_skewness_moves_the_end_on_its_side_alone() -> None:
    values = np.random.default_rng(1).exponential(size=60)
    mean, low, high = paired_interval(values)
    error = values.std(ddof=1) / np.sqrt(60)
    below, above = stats.t.interval(0.95, 59, mean, error)
    assert low == pytest.approx(below)
    assert high > above + 0.2 * error
    assert paired_interval(-values) == pytest.approx((-mean, -high, -low))


def test_the_further_end_undoes_halls_transformation() -> None:
    values = np.random.default_rng(2).exponential(size=30)
    mean, _, high = paired_interval(values)
    n, skewness = 30, stats.skew(values)
    a, b = skewness / (3 * math.sqrt(n)), skewness / (6 * math.sqrt(n))
    t = (mean - high) / values.std(ddof=1) * math.sqrt(n)
    assert t + a * t**2 + a**2 * t**3 / 3 + b == pytest.approx(-stats.t.ppf(0.975, n - 1))


def test_one_datum_says_nothing_and_equal_models_do_not_differ() -> None:
    assert paired_interval(np.array([2.0])) == (2.0, -math.inf, math.inf)
    assert paired_interval(np.zeros(9)) == (0.0, 0.0, 0.0)
    assert paired_interval(np.full(9, 0.1) + 1e-17 * np.arange(9)) == pytest.approx((0.1,) * 3)


def test_the_expected_variance_is_that_of_labels_drawn_from_the_believed_mixture() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(3), size=60), rng.dirichlet(np.ones(3), size=60)
    y = (p.cumsum(1) < rng.random((60, 1))).sum(1)
    # The weight by brute force: sampled from its prior, weighed by the likelihood.
    w = rng.random(40_000)
    rows = np.arange(60)
    logs = np.log(np.outer(w, p[rows, y]) + np.outer(1 - w, q[rows, y])).sum(1)
    weight = np.average(w, weights=np.exp(logs - logs.max()))
    mixed, n = weight * p + (1 - weight) * q, 400_000
    row = rng.integers(60, size=n)
    drawn = (mixed[row].cumsum(1) < rng.random((n, 1))).sum(1)
    gaps = np.log(p[row, drawn] / q[row, drawn])
    error = np.std((gaps - gaps.mean()) ** 2) / np.sqrt(n)
    found = expected_variance_of_classes(p, q, y)
    assert found == pytest.approx(gaps.var(), abs=4 * error + 0.01 * found)


def test_a_mistake_too_rare_to_be_seen_counts_for_labels() -> None:
    sure, even = np.tile([0.99, 0.01], (120, 1)), np.tile([0.97, 0.03], (120, 1))
    y = np.zeros(120, np.int64)  # as both expect with probability 0.03 to 0.3
    gaps = np.log(sure[:, 0] / even[:, 0])
    alone = paired_interval(gaps)
    held = paired_interval(gaps, expected_variance=expected_variance_of_classes(sure, even, y))
    assert alone.low == pytest.approx(alone.high)
    assert held.low < 0.0 < held.high


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("situation", comparison_coverage.REAL)
def test_the_interval_of_real_targets_covers_within_two_points_at_any_noise_ratio(
    situation: str, ratio: float
) -> None:
    n_times = 2000  # four standard errors of a coverage of 0.95 are 0.02
    found = comparison_coverage.coverage_of("real", situation, ratio, 50, n_times, seed=1)
    assert found.covered == pytest.approx(0.95, abs=0.02 + 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("situation", comparison_coverage.LABELS)
def test_the_interval_of_classes_covers_at_least_two_points_less_than_it_says(
    situation: str,
) -> None:
    found = comparison_coverage.coverage_of("labels", situation, 0.3, 60, 1000, seed=1)
    assert found.covered > 0.95 - 0.02 - 0.03  # four standard errors
