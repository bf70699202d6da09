"""Claims about metrics: scikit-learn says the same, by one rule everywhere; and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics
from sklearn.preprocessing import label_binarize

from nas_evidence.exporting.predicted import Prediction
from nas_evidence.maths.decisions import accuracy, decided
from nas_evidence.maths.metrics import (
    auroc,
    best_thresholds,
    class_metrics,
    confusion,
    coverage_by_level,
    entropy,
    interval_reliability,
    log_losses,
    metrics_of_each,
    named,
    real_metrics,
    recall,
    reliability,
)
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import fit


def test_report_and_predict_say_the_log_loss_of_scikit_learn_of_a_certain_mistake() -> None:
    p, y = np.array([[1.0, 0.0], [0.9, 0.1], [0.2, 0.8]]), np.array([1, 0, 1])
    said = metrics.log_loss(y, p)
    predicted = Prediction(classes=(0, 1), targets=("y",), level=0.9, probabilities=p)
    found = predicted.metrics(y)
    assert found["log_loss"] == pytest.approx(said, rel=1e-12)
    assert predicted.losses(y).mean() == pytest.approx(said, rel=1e-12)
    assert found == predicted.measures(y)


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "f1"])
@pytest.mark.parametrize("ties", [1, 4])
@pytest.mark.parametrize("weights", [None, (0.7, 3.0)])
def test_the_best_threshold_is_that_of_a_search_over_all(
    metric: str, ties: int, weights: tuple[float, float] | None
) -> None:
    w = None if weights is None else np.array(weights)
    rng = np.random.default_rng(3)
    y = (rng.random(80) < 0.15).astype(int)
    positive = (0.3 * rng.random(80) + 0.25 * y).round(ties)
    p = np.stack([1 - positive, positive], 1)
    at = best_thresholds(p, y, w)[metric]

    def reached(threshold: float | None) -> float:
        return class_metrics(p, y, threshold=threshold, class_weights=w)[metric]

    assert reached(at) == pytest.approx(max(map(reached, [*np.unique(positive), 2.0])))
    assert reached(at) > reached(None) or metric == "accuracy"


def test_more_classes_or_a_single_one_have_no_threshold() -> None:
    p = np.full((4, 3), 1 / 3)
    assert best_thresholds(p, np.array([0, 1, 2, 0])) == {}
    assert best_thresholds(p[:, :2], np.zeros(4, dtype=int)) == {}


@pytest.mark.parametrize("n_classes", [2, 5])
def test_metrics_of_classes_are_those_of_scikit_learn(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    p = rng.dirichlet(np.ones(n_classes), size=300)
    y = rng.integers(n_classes, size=300)
    y[:60] = 0  # imbalanced
    found, guess = class_metrics(p, y), p.argmax(1)
    assert_allclose(found["log_loss"], metrics.log_loss(y, p), rtol=1e-9)
    assert_allclose(found["accuracy"], metrics.accuracy_score(y, guess))
    assert_allclose(found["balanced_accuracy"], metrics.balanced_accuracy_score(y, guess))
    assert_allclose(list(recall(guess, y).values()), metrics.recall_score(y, guess, average=None))
    assert (confusion(guess, y, n_classes) == metrics.confusion_matrix(y, guess)).all()
    assert_allclose(log_losses(p, y).mean(), found["log_loss"])
    average = "binary" if n_classes == 2 else "macro"
    assert_allclose(found["f1"], metrics.f1_score(y, guess, average=average))
    for own in (p, p.round(1)):  # also with ties
        found = class_metrics(own, y)
        score = own[:, 1] if n_classes == 2 else own
        against = label_binarize(y, classes=range(n_classes))
        assert_allclose(found["roc_auc"], metrics.roc_auc_score(against, score))
        precision = metrics.average_precision_score(against, score)
        assert_allclose(found["average_precision"], precision)


def test_the_calibration_error_by_hand() -> None:
    p = np.array([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.9, 0.1]])
    # Every row has a bin of its own: |1 - 0.8|, |1 - 0.6|, |1 - 0.7|, |0 - 0.9|.
    found = class_metrics(p, np.array([0, 0, 1, 1]))["ece"]
    assert found == pytest.approx((0.2 + 0.4 + 0.3 + 0.9) / 4)


def test_calibrated_predictions_have_almost_no_calibration_error() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=40_000)
    y = (p.cumsum(1) < rng.random((len(p), 1))).sum(1)
    assert class_metrics(p, y)["ece"] < 0.01
    assert class_metrics(p, y)["ece"] == pytest.approx(reliability(p, y).error)
    sharp = p**3 / (p**3).sum(1, keepdims=True)
    assert class_metrics(sharp, y)["ece"] > 0.1
    assert reliability(p, y).count.sum() == len(y)


def test_metrics_of_real_targets_are_those_of_scikit_learn_and_intervals_cover() -> None:
    rng = np.random.default_rng(0)
    f = rng.normal(size=(5000, 2))
    noise = np.array([0.5, 2.0])
    y = f + noise * rng.normal(size=f.shape)
    unit = np.array([2.0, 3.0])
    found = real_metrics(Normals.single(f, noise), y, unit=unit)
    of_columns = metrics.mean_squared_error(y, f, multioutput="raw_values")
    assert_allclose(found["rmse"], np.sqrt(of_columns).mean())  # root_mean_squared_error
    assert_allclose(found["mae"], metrics.mean_absolute_error(y, f))
    assert_allclose(found["r2"], metrics.r2_score(y, f))
    of_scaled = stats.norm.logpdf(y / unit, f / unit, noise / unit)
    assert_allclose(found["log_loss"], -of_scaled.sum(1).mean())
    assert abs(found["coverage"] - 0.9) < 4 * np.sqrt(0.09 / y.size)
    assert real_metrics(Normals.single(f, noise / 3), y, unit=unit)["coverage"] < 0.6
    assert real_metrics(Normals.single(f, noise), y, unit=unit, level=0.5)["coverage"] < 0.6
    one = real_metrics(Normals.single(f[:1], noise), y[:1], unit=unit)
    assert "r2" not in named(one)  # one datum has no spread


def test_r2_of_a_constant_column_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(20, 2)), rng.normal(size=(20, 2))
    y[:, 1] = 3.0
    for predicted in (f, np.c_[f[:, 0], np.full(20, 3.0)]):
        found = real_metrics(Normals.single(predicted, np.ones(2)), y, unit=np.ones(2))
        assert_allclose(found["r2"], metrics.r2_score(y, predicted))


@pytest.mark.parametrize("name", ["identity", "log", "yeo_johnson"])
def test_each_of_several_targets_has_the_metrics_of_itself_alone(name: str) -> None:
    rng = np.random.default_rng(0)
    g = rng.normal(size=(60, 2))
    y, unit = np.exp(g + rng.normal(size=g.shape)), np.array([2.0, 30.0])
    scale = fit(name, y)
    both = scale.density(scale.forward(y) + 0.3, np.array([0.5, 2.0]))
    each = metrics_of_each(both, y, unit=unit)
    for k, found in enumerate(each):
        own = fit(name, y[:, [k]])
        density = own.density(own.forward(y[:, [k]]) + 0.3, np.array([[0.5, 2.0][k]]))
        alone = real_metrics(density, y[:, [k]], unit=unit[[k]])
        assert {name: found[name] for name in alone} == pytest.approx(alone)
    whole = real_metrics(both, y, unit=unit)
    for metric in ("rmse", "mae", "r2", "crps", "coverage"):
        assert whole[metric] == pytest.approx(np.mean([one[metric] for one in each]))
    assert whole["log_loss"] == pytest.approx(sum(one["log_loss"] for one in each))


def test_the_log_loss_of_real_targets_is_that_of_standardised_ones() -> None:
    rng = np.random.default_rng(0)
    f, std = rng.normal(size=(50, 2)), np.array([3.0, 0.1])
    y = f + rng.normal(size=f.shape)
    density = Normals.single(f, np.array([1.0, 2.0]))
    predicted = Prediction(density=density, unit=std)
    losses, found = predicted.losses(y), predicted.metrics(y)
    by_hand = -stats.norm.logpdf(y / std, f / std, np.array([1.0, 2.0]) / std).sum(1)
    assert_allclose(losses, by_hand)
    assert found["log_loss"] == pytest.approx(by_hand.mean())


def test_coverage_is_said_at_three_levels_and_by_hand() -> None:
    """|y| below 0.674, 1.645 and 1.96 standard deviations: 50, 90 and 95 %."""
    y = np.array([[0.6], [1.0], [1.7], [3.0]])
    found = coverage_by_level(Normals.single(np.zeros((4, 1)), np.ones((4, 1))), y)
    assert found == {"coverage_50": 0.25, "coverage_90": 0.5, "coverage_95": 0.75}


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


# --- class weights are costs: each datum gets the class of least expected cost


#: Two to five classes, their weights over six decades.
WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=5).map(np.array)


def drawn(n: int, n_classes: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(n_classes), rng.integers(n_classes, size=n - n_classes)])
    return rng.dirichlet(np.full(n_classes, 0.5), size=n), y


@pytest.mark.slow
@given(WEIGHTS, st.integers(0, 2**31))
def test_the_class_decided_has_the_least_expected_cost(w: NDArray[np.float64], seed: int) -> None:
    """By brute force: the cost of each class, summed over the others that may be true."""
    p, _ = drawn(20, len(w), seed)
    for row, chosen in zip(p, decided(p, class_weights=w), strict=True):
        costs = [
            sum(w[true] * row[true] for true in range(len(w)) if true != k) for k in range(len(w))
        ]
        assert costs[chosen] == pytest.approx(min(costs), abs=1e-9)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_of_two_classes_it_is_a_threshold(first: float, second: float, seed: int) -> None:
    p, _ = drawn(50, 2, seed)
    by_weight = decided(p, class_weights=np.array([first, second]))
    at = first / (first + second)
    clear = abs(p[:, 1] - at) > 1e-9
    np.testing.assert_array_equal(by_weight[clear], decided(p, at)[clear])
    given_both = decided(p, at, class_weights=np.array([1e3, 1e-3]))
    np.testing.assert_array_equal(given_both, decided(p, at))


@pytest.mark.slow
@given(WEIGHTS, st.integers(0, 2**31))
def test_metrics_are_those_of_scikit_learn(w: NDArray[np.float64], seed: int) -> None:
    """The accuracy with the weight of its class for each datum, all others without."""
    n_classes = len(w)
    p, y = drawn(60, n_classes, seed)
    found, chosen = class_metrics(p, y, class_weights=w), decided(p, class_weights=w)
    expected = metrics.accuracy_score(y, chosen, sample_weight=w[y])
    assert found["accuracy"] == pytest.approx(expected, rel=1e-9)
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, chosen))
    average = "binary" if n_classes == 2 else "macro"
    f1 = metrics.f1_score(y, chosen, average=average, zero_division=0)
    assert found["f1"] == pytest.approx(f1)
    plain = class_metrics(p, y)
    for name in ("log_loss", "ece", "roc_auc", "average_precision"):
        assert found[name] == plain[name], name


def test_a_row_that_is_not_a_number_chooses_no_class_and_is_never_right() -> None:
    p = np.array([[np.nan, np.nan], [np.nan, 0.9], [0.3, 0.7]])
    labels = np.array([0, 1, 1])
    for found in (decided(p), decided(p, 0.5), decided(p, class_weights=np.array([3.0, 1.0]))):
        assert found[:2].tolist() == [-1, -1]
    assert accuracy(decided(p), labels) == pytest.approx(1 / 3)
