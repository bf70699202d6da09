"""A trial updates and evaluates at the stops of its plan, and so do its folds."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from lone_trials import ended

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.driver.runtime import Pieces, trial_seconds
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.schedule import next_stop
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.testing.executor_contract import without_times
from nas_evidence.training import online
from nas_evidence.training.loop import DivergedError
from nas_evidence.training.online import Passes
from nas_evidence.workers.trial import Trial

ROWS = 40
SCORES = ("kfac_ggn_mc", "two_fold")


@pytest.fixture(scope="module")
def data() -> TensorData:
    spec = DatasetSpec(name="digits", max_train=ROWS, max_test=20)
    return to_tensors(load(spec, seed=0), "cpu")


def assignment(evaluate_every: int | str = 12) -> Assignment:
    """Updates every 3 of 30 epochs."""
    return Assignment(
        trial_id=0, attempt=1, replicate=0, seed=1, estimators=SCORES, followed=SCORES,
        architecture=ArchitectureSpec(family="mlp", values={"depth": 1, "width": 4}),
        dataset=DatasetSpec(name="digits"),
        plan={
            "epochs": 30, "batch_size": ROWS, "settle": 0, "evaluate_every": evaluate_every,
            "online": {"every": 3, "burn_in": 3},
        },
    )  # fmt: skip


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """The epochs of the updates of each training, by its seed."""
    found, original = defaultdict(list), online.update_hyperparameters

    def noted(passes: Sequence[Passes]) -> list[Passes | DivergedError]:
        for one in passes:
            found[one.network.seed].append(one.network.epoch)
        return original(passes)

    monkeypatch.setattr(online, "update_hyperparameters", noted)
    return found


def run(given: Assignment, data: TensorData, folder: Path) -> TrialRecord:
    """Run a trial as the driver does: from stop to stop."""
    trial = Trial.start(given, data, folder)
    while trial.status is TrialStatus.RUNNING:
        trial.advance(next_stop(given.plan, trial.report().epoch).epoch)
    return trial.finish()


@pytest.mark.slow
def test_updates_every_3_and_evaluations_every_12_are_at_their_epochs_in_folds_too(
    data: TensorData, tmp_path: Path, updates: dict[int, list[int]]
) -> None:
    given = assignment()
    record = run(given, data, tmp_path)
    assert record.status is TrialStatus.COMPLETE, record.error
    evaluated = {e.epoch for e in record.evaluations if e.estimate.estimator == "kfac_ggn_mc"}
    assert evaluated == {12, 24, 30}
    assert record.best_epoch in evaluated
    due = list(range(6, 31, 3))  # after a burn-in of 3
    assert updates.pop(given.seed) == due
    assert list(updates.values()) == [due] * 2


@pytest.mark.slow
def test_the_forecast_counts_the_updates_and_evaluations_that_a_trial_runs(
    data: TensorData, tmp_path: Path, updates: dict[int, list[int]]
) -> None:
    given = assignment()
    record = run(given, data, tmp_path)
    main = updates.pop(given.seed)
    halves = [len(epochs) / 2 for epochs in updates.values()]  # each has half of the rows

    def counted(**seconds: float) -> float:
        pieces = Pieces(**{"epoch": 0, "beside": 0, "update": 0, "evaluation": 0, **seconds})
        return trial_seconds(pieces, given.plan, SCORES, ROWS)

    assert counted(update=1) == len(main) + sum(halves)
    assert counted(evaluation=1) == len({e.epoch for e in record.evaluations if e.epoch})


@pytest.mark.slow
def test_fewer_evaluations_change_no_training(data: TensorData, tmp_path: Path) -> None:
    one, other = (
        without_times(run(assignment(every), data, tmp_path / str(every)))
        for every in (12, "update")
    )
    assert one["curve"] == other["curve"]
    last = [[e for e in found["evaluations"] if e["epoch"] == 30] for found in (one, other)]
    assert last[0] == last[1]


@pytest.mark.slow
def test_a_trial_killed_after_an_update_continues_bit_identically(
    data: TensorData, tmp_path: Path
) -> None:
    given = assignment()
    first = Trial.start(given, data, tmp_path / "1")
    while first.report().epoch < 9:  # no evaluation is due there
        first.advance(9)
    second = Trial.start(given, data, tmp_path / "2", resume_from=tmp_path / "1")
    assert second.report().epoch == 9
    assert without_times(ended(second)) == without_times(run(given, data, tmp_path / "whole"))
