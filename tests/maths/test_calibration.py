"""Measures of predictions, by hand and by brute force."""

import numpy as np
import pytest
from scipy import stats

from nas_evidence.maths.calibration import (
    auroc,
    classification_measures,
    entropy,
    interval_reliability,
    regression_measures,
    reliability,
)
from nas_evidence.maths.normals import Normals


def test_classification_measures_by_hand() -> None:
    p = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.9, 0.1]])
    found = classification_measures(p, np.array([0, 0, 1, 1]))
    assert found["accuracy"] == 0.75
    assert found["balanced_accuracy"] == 0.75
    assert found["log_loss"] == pytest.approx(-np.log([0.8, 0.6, 0.7, 0.1]).mean())
    # Every row has a bin of its own: |1 - 0.8|, |1 - 0.6|, |1 - 0.7|, |0 - 0.9|.
    assert found["calibration_error"] == pytest.approx((0.2 + 0.4 + 0.3 + 0.9) / 4)


def test_balanced_accuracy_counts_classes_equally() -> None:
    p = np.tile([[0.9, 0.1]], (10, 1))
    found = classification_measures(p, np.array([0] * 9 + [1]))
    assert (found["accuracy"], found["balanced_accuracy"]) == (0.9, 0.5)


def test_the_calibration_error_of_calibrated_probabilities_vanishes() -> None:
    generator = np.random.default_rng(0)
    p = generator.dirichlet([1, 1, 1], 100_000)
    labels = (p.cumsum(1) < generator.random((len(p), 1))).sum(1)
    assert reliability(p, labels).error < 0.01
    assert reliability(p**3 / (p**3).sum(1, keepdims=True), labels).error > 0.1


def test_coverage_of_true_gaussians_is_the_level() -> None:
    generator = np.random.default_rng(0)
    mean, std = generator.normal(size=(20_000, 1)), generator.gamma(2, size=(20_000, 1))
    targets = generator.normal(mean, std)
    found = regression_measures(Normals.single(mean, std), targets, level=0.8)
    assert found["coverage"] == pytest.approx(0.8, abs=0.01)
    assert found["nll"] == pytest.approx(-stats.norm.logpdf(targets, mean, std).mean())
    assert regression_measures(Normals.single(mean, std / 2), targets, level=0.8)["coverage"] < 0.6


def test_coverage_is_said_at_three_levels_and_by_hand() -> None:
    """|y| below 0.674, 1.645 and 1.96 standard deviations: 50, 90 and 95 %."""
    y = np.array([[0.6], [1.0], [1.7], [3.0]])
    found = regression_measures(Normals.single(np.zeros((4, 1)), np.ones((4, 1))), y)
    assert [found[f"coverage_{p}"] for p in (50, 90, 95)] == [0.25, 0.5, 0.75]


def test_intervals_of_true_gaussians_lie_on_the_diagonal() -> None:
    generator = np.random.default_rng(0)
    mean, std = generator.normal(size=(20_000, 1)), generator.gamma(2, size=(20_000, 1))
    y = generator.normal(mean, std)
    assert interval_reliability(Normals.single(mean, std), y).error < 0.01
    assert interval_reliability(Normals.single(mean, std * 3), y).error > 0.1


def test_auroc_is_the_share_of_pairs_in_the_right_order() -> None:
    generator = np.random.default_rng(0)
    one, other = generator.integers(0, 5, 30), generator.integers(2, 7, 20)
    pairs = (other[:, None] > one).mean() + 0.5 * (other[:, None] == one).mean()
    assert auroc(one, other) == pytest.approx(pairs)


def test_entropy_is_largest_for_equal_probabilities() -> None:
    assert entropy(np.array([[0.5, 0.5], [1.0, 0.0]])) == pytest.approx([np.log(2), 0.0])
