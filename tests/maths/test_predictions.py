"""Claims about metrics: scikit-learn says the same, and confidence that is right costs nothing."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn import metrics

from nas_evidence.maths.predictions import (
    calibration,
    class_losses,
    class_metrics,
    confusion,
    gap_variance_of_classes,
    gap_variance_of_reals,
    named,
    paired_difference,
    real_metrics,
    recall,
)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_metrics_of_classes_are_those_of_scikit_learn(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    p = rng.dirichlet(np.ones(n_classes), size=300)
    y = rng.integers(n_classes, size=300)
    y[:60] = 0  # imbalanced
    found, guess = class_metrics(p, y), p.argmax(1)
    assert_allclose(found["log_loss"], metrics.log_loss(y, p), rtol=1e-9)
    assert_allclose(found["balanced_accuracy"], metrics.balanced_accuracy_score(y, guess))
    assert_allclose(list(recall(p, y).values()), metrics.recall_score(y, guess, average=None))
    assert (confusion(p, y) == metrics.confusion_matrix(y, guess)).all()
    assert_allclose(class_losses(p, y).mean(), found["log_loss"])
    assert ("roc_auc" in found) == (n_classes == 2)
    if n_classes == 2:
        assert_allclose(found["roc_auc"], metrics.roc_auc_score(y, p[:, 1].round(1)), atol=0.02)
        tied = class_metrics(p.round(1), y)["roc_auc"]
        assert_allclose(tied, metrics.roc_auc_score(y, p[:, 1].round(1)))


def test_calibrated_predictions_have_almost_no_calibration_error() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=40_000)
    y = (p.cumsum(1) < rng.random((len(p), 1))).sum(1)
    assert class_metrics(p, y)["ece"] < 0.01
    sharp = p**3 / (p**3).sum(1, keepdims=True)
    assert class_metrics(sharp, y)["ece"] > 0.1
    assert sum(one.n for one in calibration(p, y)) == len(y)


def test_metrics_of_real_targets_are_those_of_scikit_learn_and_intervals_cover() -> None:
    rng = np.random.default_rng(0)
    f = rng.normal(size=(5000, 2))
    noise = np.array([0.5, 2.0])
    y = f + noise * rng.normal(size=f.shape)
    found = real_metrics(f, noise, y)
    assert_allclose(found["rmse"], metrics.mean_squared_error(y, f) ** 0.5)
    assert_allclose(found["mae"], metrics.mean_absolute_error(y, f))
    assert_allclose(
        found["r2"], metrics.r2_score(y, f, multioutput="variance_weighted"), atol=0.02
    )
    assert abs(found["coverage"] - 0.9) < 4 * np.sqrt(0.09 / y.size)
    assert real_metrics(f, noise / 3, y)["coverage"] < 0.6
    assert "r2" not in named(real_metrics(f[:1], noise, y[:1]))  # one datum has no spread


def test_a_paired_difference_has_the_error_of_the_mean() -> None:
    mean, error = paired_difference(np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 0.0]))
    assert (mean, error) == (2.0, pytest.approx(1 / np.sqrt(3)))


def test_the_expected_variance_of_a_gap_between_classifiers_is_that_of_drawn_labels() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(3), size=4), rng.dirichlet(np.ones(3), size=4)
    found = gap_variance_of_classes(np.log(p), np.log(q))
    n = 40_000
    for i in range(4):
        drawn = np.concatenate([rng.choice(3, n, p=p[i]), rng.choice(3, n, p=q[i])])
        gap = np.log(p[i, drawn]) - np.log(q[i, drawn])
        error = np.std((gap - gap.mean()) ** 2) / np.sqrt(2 * n)
        assert found[i] == pytest.approx(gap.var(), abs=4 * error)
    assert gap_variance_of_classes(np.log(q), np.log(p)) == pytest.approx(found)
    assert gap_variance_of_classes(np.log(p), np.log(p)) == pytest.approx(0.0)


def test_the_expected_variance_of_a_gap_between_regressions_is_that_of_drawn_targets() -> None:
    rng = np.random.default_rng(0)
    means, stds = rng.normal(size=(2, 3, 2)), rng.uniform(0.5, 1.5, size=(2, 3, 2))
    one, other = (means[0], stds[0]), (means[1], stds[1])
    found = gap_variance_of_reals(one, other)
    n = 40_000
    drawn = np.concatenate([rng.normal(m, s, size=(n, 3, 2)) for m, s in (one, other)])
    gap = (norm.logpdf(drawn, *one) - norm.logpdf(drawn, *other)).sum(-1)  # [2 n, 3]
    error = np.std((gap - gap.mean(0)) ** 2, axis=0) / np.sqrt(2 * n)
    assert (abs(found - gap.var(0)) < 4 * error).all()
    assert gap_variance_of_reals(other, one) == pytest.approx(found)
    assert gap_variance_of_reals(one, one) == pytest.approx(0.0)
    # In closed form: standard normals a distance d apart differ by d (y - d / 2).
    unit = (np.zeros((1, 1)), np.ones((1, 1)))
    apart = gap_variance_of_reals(unit, (np.full((1, 1), 3.0), np.ones((1, 1))))
    assert apart == pytest.approx(3.0**2 * (1 + 3.0**2 / 4))
