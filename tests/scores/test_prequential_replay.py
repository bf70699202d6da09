"""The chain-rule code: no datum is learned before it is predicted."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lone_trials import assert_parking_changes_nothing, mlp_assignment, run

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.scores.folds import SCALES
from nas_evidence.scores.prequential_replay import N_CHUNKS
from nas_evidence.spec.record import EvidenceEstimate, TrialStatus
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.training.parts import order_of_data
from nas_evidence.workers.trial import Trial

GIVEN = mlp_assignment("prequential_replay", epochs=4)


@pytest.fixture(scope="module")
def data() -> TensorData:
    spec = DatasetSpec(name="digits", max_train=80, max_test=20)
    return to_tensors(load(spec, seed=0), "cpu")


def scored(data: TensorData, folder: Path) -> EvidenceEstimate:
    found = run(GIVEN, data, folder).final_estimate("prequential_replay")
    assert found is not None
    return found


@pytest.mark.slow
def test_labels_of_a_chunk_reach_its_own_term_and_later_ones_only(
    data: TensorData, tmp_path: Path
) -> None:
    order = order_of_data(80, GIVEN)
    labels = data.y_train.clone()
    changed = order[20 + 60 * 9 // N_CHUNKS : 20 + 60 * 10 // N_CHUNKS]  # the tenth chunk
    labels[changed] = (labels[changed] + 1) % 10
    one, other = (
        [t.value for t in scored(replace(data, y_train=y), tmp_path / str(i)).terms]
        for i, y in enumerate((data.y_train, labels))
    )
    assert len(one) == N_CHUNKS
    assert one[:9] == other[:9]
    assert all(a != b for a, b in zip(one[9:], other[9:], strict=True))


def test_the_code_is_the_sum_of_its_terms_per_datum_of_three_quarters(
    data: TensorData, tmp_path: Path
) -> None:
    found = scored(data, tmp_path)
    assert found.value == pytest.approx(sum(t.value for t in found.terms), rel=1e-12)
    assert found.per_datum == pytest.approx(found.value / 60, rel=1e-12)
    assert found.note == "60 data after 20, in 16 chunks"


def test_a_network_that_never_learns_costs_equal_probabilities(
    data: TensorData, tmp_path: Path
) -> None:
    """With inputs of zero and a rate near zero the outputs are biases, all alike."""
    blank = replace(data, x_train=torch.zeros_like(data.x_train))
    given = mlp_assignment("prequential_replay", epochs=4, learning_rate=1e-12)
    found = run(given, blank, tmp_path).final_estimate("prequential_replay")
    assert found is not None
    highest = -60 * math.log(10)
    assert highest - math.log(len(SCALES)) - 1 < found.value < highest + 1


@pytest.mark.slow
@pytest.mark.parametrize("parked_after", [1, 5])
def test_a_parked_trial_ends_bit_identical(
    parked_after: int, data: TensorData, tmp_path: Path
) -> None:
    assert_parking_changes_nothing(
        ["prequential_replay"], GIVEN, data, tmp_path, slices=parked_after
    )


def test_a_training_that_diverges_is_no_estimate(data: TensorData, tmp_path: Path) -> None:
    inputs = data.x_train.clone()
    inputs[order_of_data(80, GIVEN)[30]] = 1e30  # in the second quarter
    trial = Trial.start(GIVEN, replace(data, x_train=inputs), tmp_path)
    for _ in range(20):
        trial.advance(2)
    found = trial.finish(TrialStatus.CANCELLED).final_estimate("prequential_replay")
    assert found is not None
    assert not found.valid
    assert "diverged" in found.note


def test_too_few_data_are_refused_by_name(data: TensorData, tmp_path: Path) -> None:
    few = replace(data, x_train=data.x_train[:20], y_train=data.y_train[:20])
    trial = Trial.start(GIVEN, few, tmp_path)
    trial.advance(2)
    assert trial.status is TrialStatus.FAILED
    assert "prequential_replay needs at least 32 data, but got 20" in trial.cause
