"""Scores of data with groups or times: who is predicted from whom, and what is added."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lone_trials import ended, mlp_assignment, of_three_classes, run, trained_part

from nas_evidence.data.tensors import TensorData
from nas_evidence.data.units import Units
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.scores.folds import OUTPUTS, SPREAD, fold_tasks, log_predictive
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord
from nas_evidence.spec.study import Assignment
from nas_evidence.training import parts
from nas_evidence.workers.trial import Trial

#: Rows of every test.
N = 50


def in_groups() -> Units:
    return Units(np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5)))


def in_time() -> Units:
    return Units(np.random.default_rng(0).permutation(np.repeat(np.arange(25), 2)), in_time=True)


def data(units: Units | None) -> TensorData:
    return replace(of_three_classes(N), units=units)


def given(*names: str, **plan: object) -> Assignment:
    return mlp_assignment(*names, **({"epochs": 3} | plan))  # type: ignore[arg-type]


def found_in(record: TrialRecord, name: str) -> EvidenceEstimate:
    found = record.final_estimate(name)
    assert found is not None
    return found


def densities(found: EvidenceEstimate, term: str) -> dict[str, float]:
    return {t.group: t.value for t in found.terms if t.term == term}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "term"), [("five_fold", "log_predictive"),
                                            ("conditional_evidence", "log_density")])  # fmt: skip
def test_blocks_in_time_add_up_and_the_first_is_only_learned_from(
    name: str, term: str, tmp_path: Path
) -> None:
    found = found_in(run(given(name, folds=5), data(in_time()), tmp_path), name)
    each = densities(found, term)
    assert [*each] == ["fold 2", "fold 3", "fold 4", "fold 5"]
    assert found.value == pytest.approx(sum(each.values()))
    assert found.per_datum == pytest.approx(found.value / 40)
    assert found.note.endswith("in 4 blocks in time")


def test_groups_are_averaged_as_folds_are(tmp_path: Path) -> None:
    found = found_in(run(given("five_fold"), data(in_groups()), tmp_path), "five_fold")
    each = densities(found, "log_predictive")
    assert len(each) == 5
    assert found.value == pytest.approx(sum(each.values()) / 5)


@pytest.mark.slow
@pytest.mark.parametrize("units", [in_groups(), in_time()])
def test_a_fold_is_what_a_network_trained_on_other_groups_or_earlier_times_predicts(
    units: Units, tmp_path: Path
) -> None:
    assignment, tensors = given("five_fold"), data(units)
    each = densities(found_in(run(assignment, tensors, tmp_path), "five_fold"), "log_predictive")
    order = parts.order_of_data(N, assignment, units)
    task = fold_tasks("five_fold", order, assignment.plan, units)[-1]
    part = parts.part_of(task.trained, tensors, assignment, task.purpose)
    alone = trained_part(part)
    alone.model.eval()
    outputs = alone.model(tensors.x_train[task.predicted]).detach()
    likelihood = Categorical()
    by_hand = log_predictive(outputs, tensors.y_train[task.predicted], likelihood)
    assert each[f"fold {task.number}"] == pytest.approx(by_hand.log_predictive, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_fold", "heldout_10", "five_fold", "conditional_evidence"])
def test_no_score_learns_from_later_rows(name: str, tmp_path: Path) -> None:
    """The latest rows change what is predicted of them, but no density of the earlier blocks."""
    units = in_time()
    plain = run(given(name, folds=5), data(units), tmp_path / "plain")
    poisoned = data(units)
    inputs = poisoned.x_train.clone()
    inputs[torch.from_numpy(units.of >= 23)] = 1e3
    record = run(given(name, folds=5), replace(poisoned, x_train=inputs), tmp_path / "poisoned")
    one, other = (found_in(r, name) for r in (plain, record))
    terms = [
        {(t.term, t.group): t.value for t in found.terms if t.term != "output_scale"}
        for found in (one, other)
    ]
    late = {group for _, group in terms[0]} and max(group for _, group in terms[0])
    assert {k: v for k, v in terms[0].items() if k[1] != late} == {
        k: v for k, v in terms[1].items() if k[1] != late
    }
    assert one.value != other.value


@pytest.mark.slow
def test_a_trial_keeps_no_prediction_of_the_first_block(tmp_path: Path) -> None:
    units = in_time()
    trial = Trial.start(given("conditional_evidence", folds=5), data(units), tmp_path)
    ended(trial)
    kept = read_tensors(tmp_path / "model.safetensors")[0]
    assert (kept[f"kept/{SPREAD}"][torch.from_numpy(units.of < 5)] == 0).all()
    assert (kept[f"kept/{SPREAD}"][torch.from_numpy(units.of >= 5)] > 0).all()
    assert kept[f"kept/{OUTPUTS}"].shape == (N, 3)


@pytest.mark.parametrize(("units", "says"), [(None, ""), (in_groups(), "groups are divided")])
def test_the_code_of_the_first_epoch_says_that_it_divides_groups(
    units: Units | None, says: str, tmp_path: Path
) -> None:
    found = found_in(run(given("sotl"), data(units), tmp_path), "prequential_epoch1")
    assert says in found.note
    assert bool(says) == bool(found.note)
