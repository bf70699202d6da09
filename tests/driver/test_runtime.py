"""The forecast: what it is made of, and what each piece adds. Nothing here depends on seconds."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.driver import runtime
from nas_evidence.driver.runtime import (
    Pieces,
    forecast_seconds,
    pieces_of,
    trial_seconds,
)
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec, StudySpec, TrainingPlan

PIECES = Pieces(epoch=1, beside=0.5, update=10, evaluation=1000)
ALL = ("diag_ef", "kfac_ggn", "two_fold")


def plan(**changed: Any) -> TrainingPlan:
    online = {"every": 5, "burn_in": 0}
    return TrainingPlan.model_validate({"epochs": 20, "online": online, **changed})


def study(**changed: Any) -> StudySpec:
    given: dict[str, Any] = {
        "name": "small",
        "n_trials": 6,
        "finalists": 0,
        "dataset": {"name": "digits", "max_train": 64, "max_test": 1},
        "family": {"linear": {}, "mlp": {"width": {"low": 4, "high": 16}}},
        "estimators": ALL,
        "objective": "two_fold",
        "plan": {"epochs": 4, "batch_size": 16},
        "resources": {"workers": 2},
    }
    return StudySpec.model_validate({**given, **changed})


def test_a_trial_is_its_training_its_parts_its_updates_and_its_evaluations() -> None:
    main = 20 * 1 + 4 * 10
    halves = 20 * 0.5 + 3 * 10  # the last update of a classifier is left out
    assert trial_seconds(PIECES, plan(), ALL, 100) == main + halves + 4 * 1000


@pytest.mark.parametrize(
    ("changed", "estimators", "more"),
    [
        ({}, ("diag_ef", "kfac_ggn"), -(10 + 30)),  # no halves
        ({}, (*ALL, "two_fold_accuracy"), 0),  # from the same halves
        ({"folds": 1}, ALL, -(5 + 15)),  # one half
        ({}, (*ALL, "heldout_10"), 0.9 * (10 + 30)),  # 90 % of the data
        ({"settle": 1.0}, ALL, 1.0 * (20 + 10)),  # the main training, and both halves together
        ({"online": {"every": 10}}, ALL, -2 * (10 + 10 + 1000)),
        ({"evaluate_every": 10}, ALL, -2 * 1000),
        ({"evaluate_every": 1}, ALL, 16 * 1000),
        ({"online": {"every": 2}, "evaluate_every": 5}, ALL, 6 * (10 + 10)),
        ({"online": {"every": "never"}, "evaluate_every": 5}, ALL, -4 * 10 - 3 * 10),
        ({"online": {"every": 5, "burn_in": 15}}, ALL, -3 * (10 + 10 + 1000)),
    ],
)
def test_what_the_plan_or_a_score_adds(
    changed: dict[str, Any], estimators: tuple[str, ...], more: float
) -> None:
    found = trial_seconds(PIECES, plan(**changed), estimators, 100)
    assert found - trial_seconds(PIECES, plan(), ALL, 100) == pytest.approx(more)


def test_folds_left_to_the_rows_are_counted_by_the_rows() -> None:
    def seconds(n_data: int, **folds: int) -> float:
        return trial_seconds(PIECES, plan(**folds), ("conditional_evidence",), n_data)

    assert seconds(300) == seconds(300, folds=5)
    assert seconds(3000) == seconds(3000, folds=2)
    assert seconds(3000) < seconds(300)


#: Seconds of a trial of each family.
COST = {"linear": 70.0, "mlp": 7.0}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The families whose pieces were timed; a trial costs what `COST` says."""
    found: list[str] = []

    def pieces(point: ArchitectureSpec, given: StudySpec, data: TensorData) -> Pieces:
        found.append(point.family)
        return Pieces(COST[point.family] / given.plan.epochs, 0, 0, 0)

    monkeypatch.setattr(runtime, "pieces_of", pieces)
    return found


def forecast(
    *,
    n_trials: int | None = None,
    workers: int | None = None,
    patience: float = 6.0,
    **changed: Any,
) -> float:
    given = study(estimators=("diag_ef",), objective="diag_ef", **changed)
    arrays = load(given.dataset, seed=0)
    return forecast_seconds(given, arrays, n_trials=n_trials, workers=workers, patience=patience)


@pytest.mark.usefixtures("timed")
def test_families_count_as_often_as_they_are_tried_and_the_race_as_may_be_left() -> None:
    """The linear network is tried once, the other family six times."""
    each = (70 + 6 * 7) / 7 + runtime._TRIAL_SECONDS
    one = {"workers": 1}
    assert forecast(**one) == pytest.approx(6 * each)
    assert forecast(finalists=3, **one) == pytest.approx(16 * each)  # up to 10 more
    assert forecast(finalists=3, n_trials=4, **one) == pytest.approx(4 * each)


@pytest.mark.usefixtures("timed")
def test_workers_share_trials_and_are_never_more_than_there_are_trials() -> None:
    assert forecast(workers=1) > forecast()
    assert forecast(workers=50) == forecast(workers=6)
    assert forecast(n_trials=1) == forecast(n_trials=1, workers=1)


def test_a_slow_family_has_one_architecture_timed(timed: list[str]) -> None:
    forecast()
    assert timed == ["linear"] + ["mlp"] * runtime.TIMED_PER_FAMILY
    timed.clear()
    forecast(patience=-1.0)
    assert timed == ["linear", "mlp"]


@pytest.mark.parametrize("n", [5, 64, 500, 64_000])
@pytest.mark.parametrize(("fixed", "per_row"), [(3.0, 0.25), (1e-3, 1e-6), (0.0, 1e-3)])
def test_a_cost_per_row_grows_and_a_fixed_cost_does_not(
    n: int, fixed: float, per_row: float
) -> None:
    found = runtime.grown(lambda rows: fixed + per_row * rows, first=32, n=n)
    assert found == pytest.approx(fixed + per_row * n)


def test_what_is_slow_is_timed_on_few_rows_and_what_is_quick_on_many() -> None:
    asked: list[int] = []

    def seconds(rows: int) -> float:
        asked.append(rows)
        return runtime._ENOUGH * rows / 200

    runtime.grown(seconds, first=32, n=10_000)
    assert sorted({*asked}) == [4, 32, 64, 128, 256]
    asked.clear()
    runtime.grown(lambda rows: seconds(rows) + runtime._SLOW, first=32, n=10_000)
    assert asked == [4, 32, 16]


def test_what_a_first_call_loads_is_not_continued_to_all_rows() -> None:
    calls: list[int] = []

    def seconds(rows: int) -> float:
        calls.append(rows)
        return 2.0 * (len(calls) == 1) + 1e-3 * rows

    assert runtime.grown(seconds, first=32, n=10_000) == pytest.approx(10.0)


def of_real_targets() -> ArrayData:
    arrays = load(DatasetSpec(name="diabetes", max_train=60, max_test=1), seed=0)
    assert arrays.task == "real"
    return arrays


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_every_piece_of_a_real_trial_is_timed(likelihood: str, epochs: int) -> None:
    labels = likelihood == "categorical"
    given = study(plan={"epochs": epochs, "batch_size": 16, "likelihood": likelihood})
    arrays = load(given.dataset, seed=0) if labels else of_real_targets()
    point = ArchitectureSpec(family="mlp", values={"width": 8, "depth": 1})
    torch.set_num_threads(1)
    found = pieces_of(point, given, to_tensors(arrays, "cpu"))
    values = np.array([*vars(found).values()])
    assert np.isfinite(values).all()
    assert (values > 0).all()
    assert math.isfinite(forecast_seconds(given, arrays))
    assert replace(found, evaluation=0.0) != found
