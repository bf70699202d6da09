"""The estimators keep the contract of scikit-learn, but for what is listed with its reason."""

from typing import Any

import pytest
from matrix import REST
from sklearn.utils.estimator_checks import estimator_checks_generator

import nas_evidence
from nas_evidence.exporting import folder

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

ESTIMATORS = (nas_evidence.EvidenceClassifier, nas_evidence.EvidenceRegressor)


def checks() -> list[object]:
    """Every check of both; the sample has each once, of the one and the other in turn."""
    by_name: dict[str, list[tuple[Any, Any]]] = {}
    for kind in ESTIMATORS:
        for row in estimator_checks_generator(kind(n_trials=1, settings=SETTINGS)):
            by_name.setdefault(row[1].func.__name__, []).append(row)
    return [
        pytest.param(
            *row,
            id=f"{type(row[0]).__name__}-{name}",
            marks=[REST] * (k != turn % len(rows))
            + [pytest.mark.xfail(reason=EXPECTED.get(name, ""), strict=True)] * (name in EXPECTED),
        )
        for turn, (name, rows) in enumerate(by_name.items())
        for k, row in enumerate(rows)
    ]


@pytest.fixture(autouse=True)
def without_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions come from the weights; the program is half of the time of a fit."""
    monkeypatch.setattr(
        folder, "write_program", lambda _exported, path, _arrays: float(path.write_bytes(b""))
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), checks())
def test_an_estimator_passes_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
