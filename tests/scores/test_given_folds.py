"""The conditional evidence in a trial: from networks trained without a fold."""

from dataclasses import replace
from pathlib import Path

import pytest
from lone_trials import (
    assert_parking_changes_nothing,
    mlp_assignment,
    of_three_classes,
    run,
    trained_part,
)
from torch import Tensor, nn
from torch.linalg import LinAlgError

from nas_evidence.curvature.memory import DoesNotFitError
from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.evidence.softmax_layer import LogDensity
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.scores import folds as module
from nas_evidence.scores.folds import Fold
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import Assignment, DatasetSpec
from nas_evidence.training import parts
from nas_evidence.workers.trial import Trial

NAME = "conditional_evidence"


def assignment_of(*others: str, **plan: object) -> Assignment:
    return mlp_assignment(NAME, *others, **({"epochs": 3, "folds": 2} | plan))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data() -> TensorData:
    return of_three_classes(40)


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.0, 0.4])
def test_the_value_is_that_of_the_network_trained_on_the_first_half(
    power: float, data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(folds=1, likelihood_power=power)
    record = run(given, data, tmp_path)
    found = record.final_estimate(NAME)
    order = parts.order_of_data(40, given)
    part = parts.part_of(order[:20], data, given, "prequential:20")
    alone = trained_part(part)
    layer = last_layer_of(alone.model, data.x_train[order], alone.prior_precision)
    by_hand = late_given_early(layer, data.y_train[order], 20, Categorical(), power=power).value
    assert found.value == pytest.approx(by_hand, rel=1e-9)
    assert found.per_datum == pytest.approx(by_hand / 20, rel=1e-9)
    assert found.note == "20 data given the others, in 1 fold"


@pytest.mark.slow
def test_late_labels_change_the_density_and_not_the_network(
    data: TensorData, tmp_path: Path
) -> None:
    """A wrong label among the late data costs nats; it must not reach features or precisions."""
    given = assignment_of(folds=1, epochs=12)
    order = parts.order_of_data(40, given)
    labels = data.y_train.clone()
    labels[order[20:]] = (labels[order[20:]] + 1) % 3
    right, wrong = (
        run(given, replace(data, y_train=y), tmp_path / str(i)).final_estimate(NAME)
        for i, y in enumerate((data.y_train, labels))
    )
    assert wrong.value < right.value


@pytest.mark.slow
@pytest.mark.parametrize("parked_after", [1, 3])
def test_a_parked_trial_ends_bit_identical(
    parked_after: int, data: TensorData, tmp_path: Path
) -> None:
    assert_parking_changes_nothing([NAME], assignment_of(), data, tmp_path, slices=parked_after)


def test_a_network_whose_outputs_are_not_of_its_last_linear_layer_is_refused_before_training(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twice(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    monkeypatch.setattr(
        "nas_evidence.training.parts.build", lambda *given: Twice(nn.Flatten(), nn.Linear(64, 3))
    )
    trial = Trial.start(assignment_of(), data, tmp_path)
    assert trial.status is TrialStatus.FAILED
    assert "must be those of the last linear layer" in trial.cause
    assert "two_fold" in trial.cause


def test_a_density_that_does_not_fit_is_no_estimate_and_the_trial_goes_on(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(what: str, *args: object, **known: object) -> None:
        if " 40 rows" in what:
            raise DoesNotFitError("x", "the inputs need about 9 GiB, but 1 GiB are free")

    monkeypatch.setattr("nas_evidence.evidence.last_layer.require_memory", refuse)
    record = run(assignment_of(), data, tmp_path)
    assert record.status is TrialStatus.COMPLETE
    found = record.final_estimate(NAME)
    assert not found.valid
    assert "GiB are free" in found.note


def test_a_half_that_diverges_leaves_no_estimate(data: TensorData, tmp_path: Path) -> None:
    given = assignment_of(folds=1)
    inputs = data.x_train.clone()
    inputs[parts.order_of_data(40, given)[3]] = 1e30
    trial = Trial.start(given, replace(data, x_train=inputs), tmp_path)
    trial.advance(3)
    trial.advance(3)
    found = trial.finish(TrialStatus.CANCELLED).final_estimate(NAME)
    assert not found.valid
    assert found.note == "the training on 20 data diverged"


def test_real_targets_have_a_joint_density_too(tmp_path: Path) -> None:
    real = to_tensors(load(DatasetSpec(name="diabetes", max_train=40), seed=0), "cpu")
    record = run(assignment_of(epochs=4, likelihood="gaussian"), real, tmp_path)
    found = record.final_estimate(NAME)
    assert found.valid
    assert -3 < (found.per_datum or 0) < 0


def given(number: int, log_density: float, error: float) -> Fold:
    density = {"log_density": log_density, "density_error": error}
    return Fold(number=number, n_trained=20, n_data=10, **density)


def test_folds_are_averaged_and_blocks_in_time_added_with_the_squares_of_their_errors() -> None:
    folds = [given(1, -3.0, 0.3), given(2, -5.0, 0.4)]
    found = module.density_estimate(folds, in_time=False)
    assert (found.value, found.per_datum) == pytest.approx((-4.0, -0.4))
    assert found.standard_error == pytest.approx(0.25)
    found = module.density_estimate(folds, in_time=True)
    assert (found.value, found.per_datum) == pytest.approx((-8.0, -0.4))
    assert found.standard_error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("outcome", "note"),
    [
        (LogDensity(0.5), "0.5 nats is above 0, impossible for labels"),
        (LogDensity(0.5, 0.1), "0.5 nats is above 0, impossible for labels"),
        (LinAlgError("the factorization could not be completed"), "could not be completed"),
    ],
)
def test_an_impossible_density_or_matrix_is_no_estimate_and_the_trial_goes_on(
    outcome: LogDensity | Exception, note: str, data: TensorData, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def computed(*args: object, **known: object) -> LogDensity:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(module, "late_given_early", computed)
    record = run(assignment_of(epochs=1), data, tmp_path)
    assert record.status is TrialStatus.COMPLETE
    found = record.final_estimate(NAME)
    assert not found.valid
    assert note in found.note
