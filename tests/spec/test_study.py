"""Domains, keys, seeds: pure values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nas_evidence.spec.domains import Choice, FloatRange, IntRange
from nas_evidence.spec.study import (
    ArchitectureSpec,
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
