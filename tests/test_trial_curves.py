"""Laplace scores along training are computed where they are asked for, and change nothing else."""

from pathlib import Path

import pytest
from lone_trials import mlp_assignment, run

from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.driver.plan import plan_trials
from nas_evidence.spec import ArchitectureSpec, DatasetSpec, StudySpec


def test_without_curves_laplace_scores_are_those_of_the_last_epoch_alone(tmp_path: Path) -> None:
    data = to_tensors(load(DatasetSpec(name="digits", max_train=60, max_test=20), seed=0), "cpu")
    given = mlp_assignment("diag_ef", epochs=4)
    few = given.model_copy(update={"curves": False})
    all_, last = run(given, data, tmp_path / "1"), run(few, data, tmp_path / "2")
    epochs = [
        [e.epoch for e in record.evaluations if e.estimate.estimator == "diag_ef"]
        for record in (all_, last)
    ]
    assert epochs == [[2, 4], [4]]
    ends = [record.final_estimate("diag_ef") for record in (all_, last)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0].value == ends[1].value
    assert all_.best_evidence == last.best_evidence
    free = [e for e in last.evaluations if e.epoch == 2]
    assert {"sotl", "train_nll_per_datum"} <= {e.estimate.estimator for e in free}


@pytest.mark.parametrize(
    ("changes", "curves", "alone"),
    [
        ({}, False, False),
        ({"curves": True}, True, False),
        ({"pruning": {"rule": "halving"}}, False, True),
        ({"pruning": {"rule": "halving", "score": "diag_ef"}}, True, False),
        ({"pruning": {"rule": "median", "score": "sotl"}}, False, False),
    ],
)
def test_pruning_asks_for_what_it_compares(
    changes: dict[str, object], curves: bool, alone: bool
) -> None:
    study = StudySpec.model_validate({
        "name": "s", "dataset": {"name": "digits"}, "family": {"linear": {}},
        "estimators": ["diag_ef", "two_fold"], **changes,
    })  # fmt: skip
    (given, *_) = plan_trials([ArchitectureSpec(family="linear")], set(), study)
    assert (given.curves, given.first_fold_alone) == (curves, alone)
