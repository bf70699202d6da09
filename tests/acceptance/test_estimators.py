"""The estimators of scikit-learn around a search, as scikit-learn itself uses them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import nas_evidence

pytestmark = pytest.mark.slow

#: Few and quick trainings; networks of one hidden layer.
SMALL: dict[str, Any] = {
    "n_trials": 2,
    "families": "mlp",
    "settings": {"plan.epochs": 40, "plan.batch_size": 32, "plan.folds": 2},
    "progress": False,
}
Values = NDArray[Any]


def labelled() -> tuple[Values, Values]:
    """Return inputs [120, 5] and two classes, of which neither is the first as text and as code.

    A line divides them, but for a few.
    """
    x, y = make_classification(
        120, 5, n_informative=3, n_redundant=0, class_sep=2, flip_y=0.02, random_state=0
    )
    return x, np.array(["b", "B10"])[y]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> nas_evidence.EvidenceClassifier:
    out = str(tmp_path_factory.mktemp("fitted") / "study")
    return nas_evidence.EvidenceClassifier(out=out, **SMALL).fit(*labelled())


def test_a_clone_has_the_same_parameters_and_is_not_fitted(
    fitted: nas_evidence.EvidenceClassifier,
) -> None:
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(labelled()[0])
    assert not hasattr(copy, "classes_")
    assert copy.set_params(n_trials=7).get_params()["n_trials"] == 7


def test_classes_are_sorted_and_probabilities_are_those_of_the_study(
    fitted: nas_evidence.EvidenceClassifier,
) -> None:
    x, y = labelled()
    found = fitted.predict_proba(x)
    assert fitted.classes_.tolist() == sorted({*y})
    assert found.shape == (len(x), 2)
    assert found.sum(1) == pytest.approx(1)
    assert (fitted.predict(x) == fitted.classes_[found.argmax(1)]).all()
    assert fitted.score(x, y) == pytest.approx((fitted.predict(x) == y).mean())
    assert fitted.score(x, y) > 0.85
    study = nas_evidence.load(fitted.out)
    of_study = study.predict(x)
    order = [[*of_study.classes].index(name) for name in fitted.classes_]
    assert of_study.probabilities[:, order] == pytest.approx(found, rel=1e-6, abs=1e-9)


def test_a_pickle_predicts_without_the_folder(
    fitted: nas_evidence.EvidenceClassifier, tmp_path: Path
) -> None:
    x, y = labelled()
    own = nas_evidence.EvidenceClassifier(**{**SMALL, "n_trials": 1}).fit(x, y)
    kept, before = pickle.dumps(own), own.predict_proba(x)
    del own
    assert (pickle.loads(kept).predict_proba(x) == before).all()
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(x) == fitted.predict_proba(x)).all()


def test_a_pipeline_is_validated_on_folds() -> None:
    x, y = labelled()
    steps = make_pipeline(
        StandardScaler(), nas_evidence.EvidenceClassifier(**{**SMALL, "n_trials": 1})
    )
    scores = cross_val_score(steps, x * 1000, y, cv=2)
    assert scores.shape == (2,)
    assert scores.min() > max(np.mean(y == name) for name in {*y})
    assert scores.max() <= 1


def test_a_grid_of_one_parameter_finds_the_better_value() -> None:
    x, y = labelled()
    settings = SMALL["settings"]
    grid = GridSearchCV(
        nas_evidence.EvidenceClassifier(**{**SMALL, "n_trials": 1}),
        {"settings": [{**settings, "plan.learning_rate": 1e-7}, settings]},
        cv=2,
        refit=False,
    ).fit(x, y)
    assert grid.best_params_ == {"settings": settings}
    assert grid.cv_results_["mean_test_score"].argmax() == 1


def test_a_regressor_beats_the_mean_on_rows_it_has_not_seen() -> None:
    x, y = load_diabetes(return_X_y=True)
    train, test = slice(0, 150), slice(150, 300)
    found = nas_evidence.EvidenceRegressor(**SMALL).fit(x[train], y[train])
    mean, std = found.predict(x[test], return_std=True)
    assert mean.shape == std.shape == (150,)
    assert (std > 0).all()
    assert (found.predict(x[test]) == mean).all()
    assert r2_score(y[test], mean) == pytest.approx(found.score(x[test], y[test]))
    assert found.score(x[test], y[test]) > 0.2
    assert 0.8 < np.mean(np.abs(y[test] - mean) < 1.96 * std) <= 1
    of_study = found.study_.predict(x[test])
    assert of_study.mean[:, 0] == pytest.approx(mean, rel=1e-6)
