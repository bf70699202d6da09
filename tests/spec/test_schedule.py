"""Stops of a training: updates, evaluations, rungs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nas_evidence.spec.schedule import interval, learns, never_reached, next_stop, rungs, stops
from nas_evidence.spec.study import OnlinePlan, StudySpec, TrainingPlan


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
    study = StudySpec.model_validate(
        {
            "name": "s",
            "dataset": {"name": "digits"},
            "family": {"linear": {}},
            "objective": "kfac_ggn",
            "pruning": {"rule": "halving"},
            "plan": {"epochs": 20, "evaluate_every": evaluate_every, "online": {"every": 3}},
        }
    )
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
