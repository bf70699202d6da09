"""Domains, keys, seeds: pure values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nas_evidence.domains import Choice, FloatRange, IntRange
from nas_evidence.spec import ArchitectureSpec, TrainingPlan, derive_seed


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


def test_specs_refuse_unknown_keys_and_changes() -> None:
    with pytest.raises(ValidationError):
        TrainingPlan.model_validate({"epoch": 3})
    plan = TrainingPlan()
    with pytest.raises(ValidationError):
        plan.epochs = 3  # type: ignore[misc]
