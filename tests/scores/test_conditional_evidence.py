"""The score that ranks by default: each fold given the others, by the last layer, in nats."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lone_trials import (
    assert_parking_changes_nothing,
    ended,
    mlp_assignment,
    of_three_classes,
    run,
    trained_part,
)

from nas_evidence.data import load
from nas_evidence.data.proposed import with_numbers
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.scores.folds import fold_tasks
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec.study import Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training import parts
from nas_evidence.training.network import Network
from nas_evidence.workers.trial import Trial

NAME = "conditional_evidence"


def assignment_of(*names: str, **plan: object) -> Assignment:
    return mlp_assignment(*names, **({"epochs": 3} | plan))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def data() -> TensorData:
    return of_three_classes(50)


def found_in(record: TrialRecord, name: str = NAME) -> EvidenceEstimate:
    found = record.final_estimate(name)
    assert found is not None
    return found


@pytest.mark.parametrize(("likelihood", "few"), [("categorical", 1000), ("gaussian", 5000)])
def test_few_data_have_five_folds_and_many_two(likelihood: str, few: int) -> None:
    plan = TrainingPlan.model_validate({"likelihood": likelihood, "epochs": 30})
    assert plan.folds == "auto"
    assert [with_numbers(plan, n).folds for n in (few - 1, few)] == [5, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("folds", "other"), [(2, "two_fold"), (5, "five_fold"), (10, "ten_fold")])
def test_cross_validation_of_equal_folds_shares_its_trainings(
    folds: int, other: str, data: TensorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    right = parts.new_network

    def counted(data: TensorData, given: Assignment) -> Network:
        started.append(len(data.x_train))
        return right(data, given)

    monkeypatch.setattr("nas_evidence.scores.folds.new_network", counted)
    both = run(assignment_of(NAME, other, folds=folds), data, tmp_path / "both")
    assert len(started) == folds
    alone = run(assignment_of(other, folds=1), data, tmp_path / "alone")
    if folds > 2:  # of halves there is one with `folds = 1`
        assert found_in(both, other).value == found_in(alone, other).value


@pytest.mark.slow
def test_the_value_is_the_mean_over_folds_and_per_datum_the_sum(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(NAME, folds=5)
    found = found_in(run(given, data, tmp_path))
    terms = {(t.term, t.group): t.value for t in found.terms}
    each = [terms["log_density", f"fold {k}"] for k in range(1, 6)]
    assert found.value == pytest.approx(sum(each) / 5)
    assert found.per_datum == pytest.approx(sum(each) / 50)
    assert found.note == "50 data given the others, in 5 folds"
    assert found.standard_error is None
    # The plain log density of fold 3, by hand.
    task = fold_tasks("five_fold", parts.order_of_data(50, given), given.plan)[2]
    part = parts.part_of(task.trained, data, given, task.purpose)
    alone = trained_part(part)
    alone.model.eval()
    outputs = alone.model(data.x_train[task.predicted]).detach()
    plain = float(Categorical().log_likelihood(outputs, data.y_train[task.predicted]))
    assert terms["log_predictive_as_trained", "fold 3"] == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
def test_one_fold_is_one_half(data: TensorData, tmp_path: Path) -> None:
    one = found_in(run(assignment_of(NAME, folds=1), data, tmp_path / "one"))
    two = found_in(run(assignment_of(NAME, folds=2), data, tmp_path / "two"))
    first = next(t.value for t in two.terms if (t.term, t.group) == ("log_density", "fold 1"))
    assert one.value == pytest.approx(first, rel=1e-4)  # alone, not beside another
    assert one.per_datum == pytest.approx(one.value / 25)


@pytest.mark.slow
def test_the_first_fold_alone_is_the_score_at_the_first_rung(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(NAME, folds=5, epochs=2)
    given = given.model_copy(update={"first_fold_alone": True})
    trial = Trial.start(given, data, tmp_path)
    early = trial.advance(2).scores[NAME]
    found = found_in(ended(trial))
    first = next(t.value for t in found.terms if (t.term, t.group) == ("log_density", "fold 1"))
    assert early == pytest.approx(first / 10)
    assert found.note == "50 data given the others, in 5 folds"


@pytest.mark.slow
@pytest.mark.parametrize("parked_after", [1, 2])
def test_a_parked_trial_ends_bit_identical_and_keeps_what_each_fold_predicted(
    parked_after: int, data: TensorData, tmp_path: Path
) -> None:
    given = assignment_of(NAME, folds=5)
    names = (NAME, "five_fold")
    assert_parking_changes_nothing(names, given, data, tmp_path, slices=parked_after)
    kept = [
        read_tensors(tmp_path / place / "model.safetensors")[0]
        for place in ("undisturbed", "parked/attempt-2")
    ]
    assert (kept[0]["kept/two_fold/spread"] > 0).all()
    assert all(torch.equal(tensor, kept[1][name]) for name, tensor in kept[0].items())


def test_a_fold_that_diverges_leaves_no_estimate(data: TensorData, tmp_path: Path) -> None:
    given = assignment_of(NAME, folds=5)
    inputs = data.x_train.clone()
    inputs[parts.order_of_data(50, given)[3]] = 1e30
    trial = Trial.start(given, replace(data, x_train=inputs), tmp_path)
    trial.advance(3)
    trial.advance(3)
    found = found_in(trial.finish(TrialStatus.CANCELLED))
    assert not found.valid
    assert found.note == "the training on 40 data diverged"


@pytest.mark.slow
def test_real_targets_have_it_too(tmp_path: Path) -> None:
    real = to_tensors(load(DatasetSpec(name="diabetes", max_train=40), seed=0), "cpu")
    given = assignment_of(NAME, epochs=4, likelihood="gaussian")
    found = found_in(run(given, real, tmp_path))
    assert found.valid
    assert found.note.endswith("in 5 folds")
    assert -3 < (found.per_datum or 0) < 0


@pytest.mark.parametrize(("n", "folds"), [(999, 5), (1000, 2), (60_000, 2)])
def test_automatic_folds_are_a_number_from_the_data_alone(n: int, folds: int) -> None:
    plan = with_numbers(TrainingPlan(), n)
    assert plan.folds == folds
    stored = plan.model_copy(update={"folds": 10})
    assert with_numbers(TrainingPlan(), n, stored).folds == 10
    assert with_numbers(TrainingPlan(folds=1), n).folds == 1
