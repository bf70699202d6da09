"""Domains, keys, seeds: pure values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nas_evidence.spec.domains import Choice, FloatRange, IntRange
from nas_evidence.spec.study import (
    ArchitectureSpec,
    OnlinePlan,
    ResourceSpec,
    TrainingPlan,
    derive_seed,
)


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


def test_evaluation_epochs_follow_frequency_and_burn_in_and_end_with_the_last() -> None:
    plan = TrainingPlan.model_validate({"epochs": 22, "online": {"every": 5, "burn_in": 10}})
    assert plan.evaluation_epochs() == (15, 20, 22)


@pytest.mark.slow
@given(epochs=st.integers(6, 3000), burn_in=st.integers(0, 2000))
def test_automatic_updates_are_five_at_least_with_a_sixth_of_the_epochs_after_each(
    epochs: int, burn_in: int
) -> None:
    plan = TrainingPlan(epochs=epochs + burn_in, online=OnlinePlan(burn_in=burn_in))
    updates = [e for e in range(1, plan.epochs + 1) if plan.updates_after(e)]
    assert sum(plan.epochs - e >= epochs // 6 for e in updates) >= 5
    assert min(updates) > burn_in
    assert set(updates) <= set(plan.evaluation_epochs())
    assert plan.learns
    assert not plan.never_reached()


@pytest.mark.parametrize(
    ("epochs", "every"), [(1, 1), (10, 1), (20, 3), (30, 5), (40, 5), (99, 12), (300, 37)]
)
def test_the_automatic_interval_is_an_eighth_from_5_up_to_a_sixth(epochs: int, every: int) -> None:
    assert TrainingPlan(epochs=epochs).interval == every


def test_a_plan_that_never_updates_evaluates_as_often_and_learns_nothing() -> None:
    never = TrainingPlan(epochs=40, online=OnlinePlan(every="never"))
    assert never.evaluation_epochs() == TrainingPlan(epochs=40).evaluation_epochs()
    assert not never.learns
    assert not never.never_reached()


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
    assert [*plan.never_reached()] == ([] if key is None else [key])


@given(epochs=st.integers(1, 500))
def test_milestones_as_fractions_follow_the_epochs(epochs: int) -> None:
    plan = TrainingPlan(epochs=epochs, schedule="steps", milestones=(0.5, 0.75, 0.9167))
    for found, part in zip(plan.milestone_epochs, (6, 9, 11), strict=True):
        assert abs(found - epochs * part / 12) <= 0.52
    assert "milestones" not in plan.never_reached()


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
