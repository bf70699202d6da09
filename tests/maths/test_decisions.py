"""Class weights are costs: each datum gets the class of least expected cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics

from nas_evidence.maths.decisions import accuracy, decided
from nas_evidence.maths.metrics import class_metrics

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
