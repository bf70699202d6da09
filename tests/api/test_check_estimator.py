"""The estimators keep the contract of scikit-learn, but for what is listed with its reason."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import nas_evidence

SETTINGS = {
    "plan.epochs": 12, "plan.online.every": "never", "plan.settle": 0, "finalists": 0,
    "estimators": ["two_fold"], "objective": "two_fold",
}  # fmt: skip

#: Check -> why it fails.
EXPECTED: dict[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": (
        "weighted rows and their copies in another order are in other minibatches; "
        "tests/data/test_weights.py compares them in one order, exactly"
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        nas_evidence.EvidenceClassifier(n_trials=1, settings=SETTINGS),
        nas_evidence.EvidenceRegressor(n_trials=1, settings=SETTINGS),
    ],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_an_estimator_passes_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
