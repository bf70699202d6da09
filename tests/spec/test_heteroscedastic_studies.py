"""What a study with a noise of each row accepts, and what it refuses before anything runs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from messages import refused

import nas_evidence
from nas_evidence.data.arrays import check_task
from nas_evidence.spec.dataset import with_task
from nas_evidence.spec.metric_names import check_metric
from nas_evidence.spec.study import StudySpec, TrainingPlan


def _study(**changed: object) -> StudySpec:
    return StudySpec.model_validate(
        {
            "name": "s", "n_trials": 1, "objective": "kfac_ggn", "estimators": ["kfac_ggn"],
            "dataset": {"name": "table", "path": "t.csv", "target": "y"},
            "family": {"linear": {}}, "plan": {"likelihood": "heteroscedastic"}, **changed,
        }
    )  # fmt: skip


def test_it_is_a_regression_that_settles_and_is_off_by_default() -> None:
    assert _study().plan.settle == 1
    assert TrainingPlan().likelihood == "categorical"
    found = with_task({"dataset": {"name": "table"}, "plan": {"likelihood": "heteroscedastic"}})
    assert found["dataset"]["task"] == "regression"
    kept = with_task(
        {"dataset": {"name": "npz", "task": "regression"},
         "plan": {"likelihood": "heteroscedastic"}}
    )  # fmt: skip
    assert kept["plan"]["likelihood"] == "heteroscedastic"
    assert with_task({"dataset": {"name": "npz", "task": "regression"}})["plan"] == {
        "likelihood": "gaussian"
    }
    check_metric("rmse", "heteroscedastic")


def test_classes_are_refused_by_task_and_by_data() -> None:
    with refused("likelihood-of-task"):
        _study(dataset={"name": "table", "path": "t.csv", "target": "y", "task": "classification"})

    class Labels:
        task = "labels"
        input_shape = (3,)

    with refused("likelihood-of-targets", "heteroscedastic", "labels"):
        check_task(TrainingPlan(likelihood="heteroscedastic"), Labels())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["two_fold_accuracy", "sto_lk"])
def test_scores_that_are_not_defined_for_it_are_refused_by_name(name: str) -> None:
    code = "estimator-of-other-likelihoods" if name == "sto_lk" else "estimators-of-other-targets"
    with refused(code):
        _study(estimators=["kfac_ggn", name])


@pytest.mark.slow
def test_a_search_from_python_predicts_wider_where_the_noise_is_larger(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 240)
    frame = pd.DataFrame({"x": x, "y": 5 * x + (0.1 + 2 * x) * rng.normal(size=240)})
    study = nas_evidence.search(
        frame, target="y", n_trials=2, out=tmp_path / "s", progress=False,
        settings={"plan.likelihood": "heteroscedastic", "finalists": 0},
    )  # fmt: skip
    found = study.predict(pd.DataFrame({"x": [0.1, 0.9]}))
    assert found.std is not None
    assert found.std_model is not None
    assert found.std[1, 0] > 2 * found.std[0, 0]
    assert (found.std_model < found.std).all()
    ensemble = study.export(tmp_path / "again")
    again = nas_evidence.Predictor.load(ensemble).predict(pd.DataFrame({"x": [0.1, 0.9]}))
    np.testing.assert_allclose(again.std, found.std, rtol=1e-5)


@pytest.mark.slow
def test_a_search_of_classes_is_refused_before_it_begins(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=40), "y": ["a", "b"] * 20})
    with refused("likelihood-of-task", "heteroscedastic"):
        nas_evidence.search(
            frame, target="y", n_trials=1, out=tmp_path / "s", progress=False,
            settings={"plan.likelihood": "heteroscedastic"},
        )  # fmt: skip
