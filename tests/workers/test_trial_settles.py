"""A trial settles after its scheduled epochs: its rows, its slices, and trainings on parts."""

import math
from pathlib import Path

import pytest
import torch
from lone_trials import assert_parking_changes_nothing, mlp_assignment, run

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training.parts import new_network, part_of, train_slices
from nas_evidence.workers.trial import Trial


@pytest.fixture(scope="module")
def data() -> TensorData:
    spec = DatasetSpec(name="digits", max_train=120, max_test=50)
    return to_tensors(load(spec, seed=0), "cpu")


def given(*names: str, **plan: object) -> Assignment:
    return mlp_assignment(*names, **({"epochs": 4, "settle": 3.0} | plan))  # type: ignore[arg-type]


def test_the_record_says_which_state_is_kept_and_how_far_from_a_mode_it_is(
    data: TensorData, tmp_path: Path
) -> None:
    record = run(given("diag_ef", "kfac_ggn"), data, tmp_path)
    assert record.status is TrialStatus.COMPLETE
    assert record.kept in ("settled", "scheduled")
    assert record.decrement_per_datum >= 0
    assert record.converged is not None
    assert record.settle_seconds > 0
    estimate = record.final_estimate("kfac_ggn")
    terms = {t.term: t.value for t in estimate.terms if t.group == "all"}
    # A Kronecker-factored inverse in place of the exact one: of the same size.
    assert terms["gradient_norm_squared"] / 120 < 10 * record.decrement_per_datum + 0.01


def test_a_budget_of_zero_is_the_scheduled_training_alone(
    data: TensorData, tmp_path: Path
) -> None:
    record = run(given("diag_ef", settle=0), data, tmp_path)
    assert (record.converged, record.kept) == (False, "scheduled")
    assert record.decrement_per_datum is None
    assert record.settle_seconds == 0


@pytest.mark.slow
@pytest.mark.parametrize("task", ["digits", "diabetes"])
def test_a_linear_model_always_reaches_its_optimum(task: str, tmp_path: Path) -> None:
    spec = DatasetSpec(name=task, max_train=100, max_test=50)  # type: ignore[arg-type]
    tensors = to_tensors(load(spec, seed=0), "cpu")
    likelihood = "gaussian" if task == "diabetes" else "categorical"
    linear = given(settle=0.1, likelihood=likelihood).model_copy(
        update={"architecture": ArchitectureSpec(family="linear")}
    )
    record = run(linear, tensors, tmp_path)
    assert (record.converged, record.kept) == (True, "settled")
    assert record.decrement_per_datum < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "slices", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 7)), 5]
)
def test_a_trial_parked_at_any_slice_of_settling_ends_bit_identical(
    slices: int, data: TensorData, tmp_path: Path
) -> None:
    names = ("diag_ef", "two_fold", "two_fold_accuracy")
    assert_parking_changes_nothing(names, given(*names, folds=1), data, tmp_path, slices=slices)


@pytest.mark.slow
def test_a_trial_is_not_done_before_it_has_settled(data: TensorData, tmp_path: Path) -> None:
    trial = Trial.start(given("diag_ef"), data, tmp_path)
    reports = []
    while trial.status is TrialStatus.RUNNING:
        reports.append(trial.advance(4))
    assert [r.done for r in reports[:-1]] == [False] * (len(reports) - 1)
    assert reports[-1].done
    assert {r.epoch for r in reports} == {4}
    assert len(reports) > 2
    assert {e.epoch for e in trial.finish().evaluations} == {2, 4}


@pytest.mark.slow
def test_a_training_on_a_part_settles_too(data: TensorData) -> None:
    assignment = given(settle=8.0)
    current = new_network(*part_of(torch.arange(60), data, assignment, "part"))
    while not train_slices([current])[0]:
        pass
    assert current.settling.done
    assert bool((current.prior_precision != 1).all())


@pytest.mark.slow
def test_a_trial_that_ends_while_it_settles_has_the_noise_of_its_schedule(tmp_path: Path) -> None:
    spec = DatasetSpec(name="diabetes", max_train=100, max_test=50)
    linear = given(likelihood="gaussian").model_copy(
        update={"architecture": ArchitectureSpec(family="linear")}
    )
    trial = Trial.start(linear, to_tensors(load(spec, seed=0), "cpu"), tmp_path)
    network = trial.network
    assert network is not None
    trial.advance(4)  # its epochs
    scheduled = network.hyper.scale
    while network.hyper.scale == scheduled:
        trial.advance(4)
    assert trial.status is TrialStatus.RUNNING
    record = trial.finish(TrialStatus.CANCELLED, "asked to")
    assert record.noise_std == scheduled != network.hyper.scale
    assert record.kept == "scheduled"


def test_networks_settle_by_default_where_targets_are_real_and_linear_ones_always() -> None:
    assert TrainingPlan().settle == 0
    assert TrainingPlan(likelihood="gaussian").settle == 1
    assert TrainingPlan(likelihood="gaussian", settle=0).settle == 0


@pytest.mark.slow
def test_a_network_that_diverges_while_it_settles_keeps_its_schedule(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise torch.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr("nas_evidence.training.settling._begin_descent", diverge)
    record: TrialRecord = run(given("diag_ef"), data, tmp_path)
    assert record.status is TrialStatus.COMPLETE
    assert (record.kept, record.converged) == ("scheduled", False)
    assert math.isfinite(record.test_nll_per_datum or math.nan)
