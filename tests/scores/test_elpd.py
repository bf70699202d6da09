"""`elpd`: what each fold is predicted to be by the network without it, as it was trained."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lone_trials import assert_parking_changes_nothing, ended, mlp_assignment, run, trained_part

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.scores.folds import fold_tasks
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec.study import Assignment, DatasetSpec
from nas_evidence.training.parts import order_of_data, part_of
from nas_evidence.workers.trial import Trial

NAME = "elpd"


def given(*names: str, **changes: object) -> Assignment:
    return mlp_assignment(*(names or (NAME,)), **({"epochs": 3, "folds": 5} | changes))  # type: ignore[arg-type]


def found_in(record: TrialRecord) -> EvidenceEstimate:
    found = record.final_estimate(NAME)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def data() -> TensorData:
    return to_tensors(load(DatasetSpec(name="digits", max_train=50), seed=0), "cpu")


@pytest.fixture(scope="module")
def real() -> TensorData:
    return to_tensors(load(DatasetSpec(name="diabetes", max_train=40), seed=0), "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_it_is_what_the_networks_without_a_fold_say_of_each_datum_of_it(
    likelihood: str, data: TensorData, real: TensorData, tmp_path: Path
) -> None:
    rows = data if likelihood == "categorical" else real
    assignment, n = given(likelihood=likelihood), len(rows.x_train)
    found = found_in(run(assignment, rows, tmp_path))
    terms = {term.group: term.value for term in found.terms}
    for task in fold_tasks("five_fold", order_of_data(n, assignment), assignment.plan)[:2]:
        part = part_of(task.trained, rows, assignment, task.purpose)
        alone = trained_part(part)
        f = alone.model.eval()(rows.x_train[task.predicted]).detach().double()
        y = rows.y_train[task.predicted]
        if likelihood == "categorical":
            log = f.log_softmax(1).gather(1, y[:, None])
        else:
            log = torch.distributions.Normal(f, alone.noise_std).log_prob(y.double())
        assert terms[f"fold {task.number}"] == pytest.approx(float(log.sum()), rel=1e-5)
    assert found.value == pytest.approx(sum(terms.values()) / 5)
    assert found.per_datum == pytest.approx(sum(terms.values()) / n)
    assert found.note == f"{n} data predicted in 5 folds"


@pytest.mark.slow
def test_the_evidence_of_the_same_folds_costs_no_training_more_and_changes_nothing(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas_evidence.scores import folds

    started, right = [], folds.new_network
    monkeypatch.setattr(folds, "new_network", lambda *part: started.append(1) or right(*part))
    both = run(given("conditional_evidence", NAME), data, tmp_path / "both")
    assert len(started) == 5
    alone = run(given(), data, tmp_path / "alone")
    assert found_in(both).value == found_in(alone).value


@pytest.mark.slow
def test_a_parked_trial_ends_bit_identical(data: TensorData, tmp_path: Path) -> None:
    assert_parking_changes_nothing((NAME,), given(), data, tmp_path, slices=1)


def test_the_first_fold_alone_is_the_score_at_the_first_rung(
    data: TensorData, tmp_path: Path
) -> None:
    assignment = given(epochs=2).model_copy(update={"first_fold_alone": True})
    trial = Trial.start(assignment, data, tmp_path)
    early = trial.advance(2).scores[NAME]
    found = found_in(ended(trial))
    assert early == pytest.approx(found.terms[0].value / 10)


def test_a_fold_that_diverges_leaves_no_estimate(data: TensorData, tmp_path: Path) -> None:
    inputs = data.x_train.clone()
    inputs[order_of_data(50, given())[3]] = 1e30
    trial = Trial.start(given(), replace(data, x_train=inputs), tmp_path)
    trial.advance(3)
    trial.advance(3)
    found = found_in(trial.finish(TrialStatus.CANCELLED))
    assert not found.valid
    assert found.note == "the training on 40 data diverged"
