"""`elpd`: what each fold is predicted to be by the network without it, as it is delivered."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lone_trials import assert_parking_changes_nothing, mlp_assignment, run

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.scores.folds import all_folds
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec.study import Assignment, DatasetSpec
from nas_evidence.training.parts import order_of_data
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


def class_factor(logits: torch.Tensor, y: torch.Tensor) -> float:
    """The factor of decision 20 by trying many: 160 rows shrink it to 1."""
    own, weight = logits.softmax(1), 160 / len(y)
    grid = torch.exp(torch.linspace(-1.5, 1.5, 6001, dtype=torch.float64)).tolist()
    best = [
        float(
            (logits / c).log_softmax(1).gather(1, y[:, None]).sum()
            + weight * (own * (logits / c).log_softmax(1)).sum()
        )
        for c in grid
    ]
    return grid[best.index(max(best))]


def test_each_fold_is_predicted_with_the_factor_of_the_others(
    data: TensorData, tmp_path: Path
) -> None:
    assignment = given()
    found = found_in(run(assignment, data, tmp_path))
    kept = read_tensors(tmp_path / "model.safetensors")[0]
    logits = kept["kept/two_fold/outputs"].double() / kept["kept/two_fold/spread"].double()
    terms = {term.group: term.value for term in found.terms}
    for task in all_folds("five_fold", order_of_data(50, assignment)):
        c = class_factor(logits[task.trained], data.y_train[task.trained])
        log = (logits[task.predicted] / c).log_softmax(1)
        expected = float(log.gather(1, data.y_train[task.predicted][:, None]).sum())
        assert terms[f"fold {task.number}"] == pytest.approx(expected, abs=3e-3)  # of the grid
    assert found.value == pytest.approx(sum(terms.values()) / 5)
    assert found.per_datum == pytest.approx(sum(terms.values()) / 50)
    assert found.note == "50 data predicted in 5 folds"


def test_real_targets_are_predicted_with_noise_and_network(
    real: TensorData, tmp_path: Path
) -> None:
    assignment = given(likelihood="gaussian")
    found = found_in(run(assignment, real, tmp_path))
    kept = read_tensors(tmp_path / "model.safetensors")[0]
    f, s = (kept[f"kept/two_fold/{name}"].double() for name in ("outputs", "spread"))
    z, total = (real.y_train.double() - f) / s, 0.0
    for task in all_folds("five_fold", order_of_data(40, assignment)):
        others = z[task.trained]
        c = math.sqrt((float(others.square().sum()) + 10) / (len(others) + 10))
        normal = torch.distributions.Normal(f[task.predicted], c * s[task.predicted])
        total += float(normal.log_prob(real.y_train[task.predicted].double()).sum())
    assert found.per_datum == pytest.approx(total / 40, abs=1e-6)


def test_the_evidence_of_the_same_folds_costs_no_training_more_and_changes_nothing(
    data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nas_evidence.scores import folds

    started, right = [], folds.new_run
    monkeypatch.setattr(folds, "new_run", lambda part: started.append(1) or right(part))
    both = run(given("conditional_evidence", NAME), data, tmp_path / "both")
    assert len(started) == 5
    alone = run(given(), data, tmp_path / "alone")
    assert found_in(both).value == found_in(alone).value


@pytest.mark.slow
def test_a_parked_trial_ends_bit_identical(data: TensorData, tmp_path: Path) -> None:
    assert_parking_changes_nothing((NAME,), given(), data, tmp_path, slices=1)


def test_the_first_fold_alone_has_no_factor(data: TensorData, tmp_path: Path) -> None:
    assignment = given(epochs=2).model_copy(update={"first_fold_alone": True})
    trial = Trial.start(assignment, data, tmp_path)
    early = trial.advance(2).scores[NAME]
    [scorer] = [s for s in trial.scorers.values() if NAME in s.names]
    unseen = scorer.unseen  # type: ignore[attr-defined]
    rows = all_folds("five_fold", order_of_data(50, assignment))[0].predicted
    log = (unseen[rows, :-1] / unseen[rows, -1:]).double().log_softmax(1)
    assert early == pytest.approx(
        float(log.gather(1, data.y_train[rows][:, None]).mean()), abs=1e-6
    )


def test_a_fold_that_diverges_leaves_no_estimate(data: TensorData, tmp_path: Path) -> None:
    inputs = data.x_train.clone()
    inputs[order_of_data(50, given())[3]] = 1e30
    trial = Trial.start(given(), replace(data, x_train=inputs), tmp_path)
    trial.advance(3)
    trial.advance(3)
    found = found_in(trial.finish(TrialStatus.CANCELLED))
    assert not found.valid
    assert found.note == "the training on 40 data diverged"
