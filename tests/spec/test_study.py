"""Domains, keys, seeds, likelihoods, columns: pure values."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import refused
from pydantic import ValidationError
from records import plain_study

import nas_evidence
from nas_evidence.data.arrays import check_task
from nas_evidence.data.proposed import with_numbers
from nas_evidence.spec.columns import StandsBefore, columns_declared, columns_with
from nas_evidence.spec.dataset import with_task
from nas_evidence.spec.domains import Choice, FloatRange, Frozen, IntRange, Unit
from nas_evidence.spec.metric_names import check_metric
from nas_evidence.spec.schedule import (
    interval,
    learns,
    never_reached,
    next_stop,
    rungs,
    stops,
    updates_after,
)
from nas_evidence.spec.study import (
    ArchitectureSpec,
    OnlinePlan,
    ResourceSpec,
    StudySpec,
    TrainingPlan,
    derive_seed,
)
from nas_evidence.storage.conditions import content_hash


@given(low=st.integers(1, 50), more=st.integers(0, 300), log=st.booleans(), unit=st.floats(0, 1))
def test_int_range_maps_the_unit_interval_into_itself(
    low: int, more: int, log: bool, unit: float
) -> None:
    domain = IntRange(low=low, high=low + more, log=log)
    assert domain.contains(domain.at(unit))
    assert domain.at(0.0) == low
    assert domain.at(1.0) == low + more


@given(low=st.floats(0.1, 5), more=st.floats(0, 9), log=st.booleans(), unit=st.floats(0, 1))
def test_float_range_maps_the_unit_interval_into_itself(
    low: float, more: float, log: bool, unit: float
) -> None:
    domain = FloatRange(low=low, high=low + more, log=log)
    assert low * (1 - 1e-12) <= domain.at(unit) <= (low + more) * (1 + 1e-12)


def test_stepped_range_holds_its_steps_only() -> None:
    domain = IntRange(low=8, high=20, step=6)
    assert [domain.at(u) for u in (0.0, 0.4, 0.9)] == [8, 14, 20]
    assert not domain.contains(9)
    assert domain.size == 3


def test_choice_tells_true_from_one() -> None:
    assert not Choice(options=(1, 2)).contains(True)


def test_architecture_key_depends_on_values_and_not_on_their_order() -> None:
    one = ArchitectureSpec(family="mlp", values={"width": 3, "depth": 1})
    two = ArchitectureSpec(family="mlp", values={"depth": 1, "width": 3})
    other = ArchitectureSpec(family="mlp", values={"depth": 1, "width": 4})
    assert one.key == two.key != other.key
    assert len(one.key) == 12


def test_seeds_differ_by_purpose_and_counter() -> None:
    seeds = {derive_seed(0, p, c) for p in ("order", "init") for c in range(100)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_specs_refuse_unknown_keys_and_changes() -> None:
    with pytest.raises(ValidationError):
        TrainingPlan.model_validate({"epoch": 3})
    plan = TrainingPlan()
    with pytest.raises(ValidationError):
        plan.epochs = 3  # type: ignore[misc]


def test_more_than_one_gpu_for_a_trial_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="but got 2; a trial runs on one GPU at most"):
        ResourceSpec(gpus=2)


def test_a_share_that_ray_cannot_count_is_refused_by_name() -> None:
    assert ResourceSpec(gpus=0.0001).gpus == 0.0001
    for share in (0.00001, -0.5, float("nan"), True):
        with pytest.raises(ValueError, match=r'"auto", 0, or a share from 0\.0001 to 1'):
            ResourceSpec(gpus=share)


# --- workers


def test_workers_may_be_a_number_of_numpy() -> None:
    assert repr(ResourceSpec(workers=np.int64(2)).workers) == "2"  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "two", "2", None])
def test_workers_are_a_number_or_auto_and_nothing_else(value: object) -> None:
    with pytest.raises(ValueError, match='"auto" or an integer from 1 on'):
        ResourceSpec(workers=value)


def test_as_many_workers_as_there_is_room_for_are_the_default() -> None:
    assert ResourceSpec().workers == "auto"
    assert ResourceSpec(workers=7).workers == 7


# --- what a study with a noise of each row accepts, and what it refuses before anything runs


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


# --- a record declares the columns of its table: one field, with type, unit and order


class Colour(StrEnum):
    RED = "red"


class Inner(Frozen):
    place: Annotated[str, StandsBefore("watts")]
    further: Annotated[int | None, Unit("steps"), StandsBefore("watts")]


class Record(Frozen):
    colour: Colour
    inner: Inner
    parts: tuple[int, ...] = ()
    either: int | str = 0
    watts: Annotated[float | None, Unit("W")] = None
    kept: Literal["yes", "no"] | None = None
    done: bool = False


def test_a_field_of_one_cell_is_a_column_and_no_other() -> None:
    found = columns_declared(Record)
    assert {name: one.kind for name, one in found.items()} == {
        "colour": Colour, "watts": float, "kept": str, "done": bool,
    }  # fmt: skip
    assert (found["watts"].unit, found["done"].unit, found["kept"].record) == ("W", "", Record)
    assert list(columns_declared(Record, ("done", "colour"))) == ["colour", "done"]


def test_columns_of_another_record_stand_before_the_one_that_they_name() -> None:
    names = ["colour", "place", "further", "watts", "kept", "done"]
    assert list(columns_with(Record, Inner)) == names


# --- stops of a training: updates, evaluations, rungs


def evaluations(plan: TrainingPlan) -> list[int]:
    return [stop.epoch for stop in stops(plan) if stop.evaluate]


def test_evaluation_epochs_follow_frequency_and_burn_in_and_end_with_the_last() -> None:
    plan = TrainingPlan.model_validate({"epochs": 22, "online": {"every": 5, "burn_in": 10}})
    assert evaluations(plan) == [15, 20, 22]


def test_updates_and_evaluations_have_epochs_of_their_own() -> None:
    online = {"every": 3, "burn_in": 4}
    plan = TrainingPlan.model_validate({"epochs": 20, "evaluate_every": 8, "online": online})
    assert [stop.epoch for stop in stops(plan) if stop.update] == [6, 9, 12, 15, 18]
    assert evaluations(plan) == [8, 16, 20]
    assert [stop.epoch for stop in stops(plan)] == [6, 8, 9, 12, 15, 16, 18, 20]
    assert [next_stop(plan, epoch).epoch for epoch in (0, 6, 7, 19, 20)] == [6, 8, 8, 20, 20]


@pytest.mark.parametrize(("evaluate_every", "expected"), [("update", (6, 15)), (4, (8, 16))])
def test_rungs_are_at_evaluations(evaluate_every: int | str, expected: tuple[int, ...]) -> None:
    plan = {"epochs": 20, "evaluate_every": evaluate_every, "online": {"every": 3}}
    study = plain_study(objective="kfac_ggn", pruning={"rule": "halving"}, plan=plan)
    assert rungs(study) == expected


@pytest.mark.parametrize(
    ("evaluate_every", "pruning", "refused"),
    [(20, "none", False), (21, "none", True), (20, "median", True), (19, "median", False)],
)
def test_evaluations_that_a_plan_never_reaches_are_refused(
    evaluate_every: int, pruning: str, refused: bool
) -> None:
    plan = TrainingPlan(epochs=20, evaluate_every=evaluate_every)
    assert ("evaluate_every" in never_reached(plan, pruning)) == refused


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "auto", "never"])
def test_evaluations_are_every_so_many_epochs_or_after_each_update(value: object) -> None:
    with pytest.raises(ValidationError, match='integer >= 1 or "update"'):
        TrainingPlan.model_validate({"evaluate_every": value})


@pytest.mark.slow
@given(epochs=st.integers(6, 3000), burn_in=st.integers(0, 2000))
def test_automatic_updates_are_five_at_least_with_a_sixth_of_the_epochs_after_each(
    epochs: int, burn_in: int
) -> None:
    plan = TrainingPlan(epochs=epochs + burn_in, online=OnlinePlan(burn_in=burn_in))
    updates = [stop.epoch for stop in stops(plan) if stop.update]
    assert updates == [e for e in range(1, plan.epochs + 1) if updates_after(plan, e)]
    assert sum(plan.epochs - e >= epochs // 6 for e in updates) >= 5
    assert min(updates) > burn_in
    assert set(updates) <= set(evaluations(plan))
    assert learns(plan)
    assert not never_reached(plan)


@pytest.mark.parametrize(
    ("epochs", "every"), [(1, 1), (10, 1), (20, 3), (30, 5), (40, 5), (99, 12), (300, 37)]
)
def test_the_automatic_interval_is_an_eighth_from_5_up_to_a_sixth(epochs: int, every: int) -> None:
    assert interval(TrainingPlan(epochs=epochs)) == every


def test_a_plan_that_never_updates_evaluates_as_often_and_learns_nothing() -> None:
    never = TrainingPlan(epochs=40, online=OnlinePlan(every="never"))
    assert evaluations(never) == evaluations(TrainingPlan(epochs=40))
    assert not learns(never)
    every_4 = never.model_copy(update={"evaluate_every": 4})
    assert evaluations(every_4) == list(range(4, 41, 4))
    assert not any(stop.update for stop in stops(every_4))
    assert not any(updates_after(every_4, epoch) for epoch in range(1, 41))
    assert not never_reached(never)


@pytest.mark.parametrize(
    ("epochs", "online", "key"),
    [
        (20, {"every": 37}, "online.every"),
        (10, {"every": 10}, "online.every"),  # after the last epoch
        (20, {"every": 5, "burn_in": 20}, "online.burn_in"),
        (20, {"burn_in": 19}, "online.burn_in"),
        (20, {"every": 19}, None),
        (1, {"every": 1}, None),
        (1, {"every": 2}, "online.every"),
    ],
)
def test_a_plan_without_an_update_to_train_on_names_the_key(
    epochs: int, online: dict[str, object], key: str | None
) -> None:
    plan = TrainingPlan.model_validate({"epochs": epochs, "online": online})
    assert [*never_reached(plan)] == ([] if key is None else [key])


@given(epochs=st.integers(1, 500))
def test_milestones_as_fractions_follow_the_epochs(epochs: int) -> None:
    plan = TrainingPlan(epochs=epochs, schedule="steps", milestones=(0.5, 0.75, 0.9167))
    for found, part in zip(plan.milestone_epochs, (6, 9, 11), strict=True):
        assert abs(found - epochs * part / 12) <= 0.52
    assert "milestones" not in never_reached(plan)


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, []),
        ({"estimators": ["two_fold", "kfac_ggn", "sotl"], "objective": "two_fold"}, []),
        ({"objective": "kfac_ggn"}, ["kfac_ggn"]),
        ({"estimators": ["conditional_evidence", "sgd_entropy"]}, ["sgd_entropy"]),
        ({"estimators": ["conditional_evidence", "prequential_epoch1"]}, ["prequential_epoch1"]),
        ({"estimators": ["conditional_evidence", "mine:score"]}, ["mine:score"]),
        ({"pruning": {"rule": "median"}}, ['[pruning] rule = "median"']),
        ({"curves": True}, ["curves = true"]),
    ],
)
def test_each_trial_trains_a_network_of_all_rows_where_a_score_needs_it(
    changes: dict[str, object], needed: list[str]
) -> None:
    space = {"family": {"linear": {}}}
    given = {"name": "x", "dataset": {"name": "digits"}, **space, **changes}
    study = StudySpec.model_validate(given)
    assert study.needs_whole == needed
    assert study.plan.whole is None  # of a study that began before: it trains them
    assert study.with_whole().plan.whole is bool(needed)
    asked = StudySpec.model_validate(given | {"plan": {"whole": True}})
    assert asked.with_whole() == asked
    if needed:
        with refused("whole-needed", *(name for name in needed if name.isidentifier())):
            StudySpec.model_validate(given | {"plan": {"whole": False}})


def test_a_study_that_lacks_the_key_has_the_hash_that_it_had() -> None:
    given = {"name": "x", "dataset": {"name": "digits"}, "family": {"linear": {}}}
    assert content_hash(StudySpec.model_validate(given), "data") == "d0e678ff1843a5e4"


@pytest.mark.parametrize(
    ("asked", "stored", "found"),
    [(None, None, None), (True, None, None), (False, None, False), (None, False, False),
     (None, True, True), (True, False, True)],
)  # fmt: skip
def test_a_study_goes_on_with_the_networks_with_which_it_began(
    asked: bool | None, stored: bool | None, found: bool | None
) -> None:
    """One that began without the key trains networks of all rows, as one that asks for them."""
    plans = [TrainingPlan(whole=one) for one in (asked, stored)]
    assert with_numbers(plans[0], 100, plans[1]).whole is found
