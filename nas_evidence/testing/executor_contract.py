"""What every executor owes the driver: each launch ends in one record, one loss, or is parked."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.record import SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    LimitSpec,
    ResourceSpec,
)
from nas_evidence.workers.executor import Executor, Launch, Lost, MakeExecutor, Verdict
from nas_evidence.workers.trial import Trial

DATA = DatasetSpec(name="digits", max_train=150, max_test=50)
RESOURCES = ResourceSpec(workers=2, cpus=1, gpus=0)
_EPOCHS = 4
_WIDE = 3  # the trial that is above its limit
_ARCHITECTURES = (
    ArchitectureSpec(family="linear"),
    ArchitectureSpec(family="mlp", values={"depth": 1, "width": 8}),
    ArchitectureSpec(family="mlp", values={"depth": 2, "width": 9}),
    ArchitectureSpec(family="mlp", values={"depth": 2, "width": 900}),
)


class ExecutorContract:
    """The tests of an executor. Give `make`; `kill` and `hang` where a worker can be ended so.

    One executor serves all tests, with two workers if it has several.

    Example:
        class TestThreads(ExecutorContract):
            make = ThreadExecutor  # called with arrays, resources and a folder for logs

            def kill(self, executor, trial_id):
                executor.worker_of(trial_id).kill()
    """

    #: Makes the executor, see `nas_evidence.workers.executor.MakeExecutor`.
    make: MakeExecutor

    def kill(self, executor: Executor, trial_id: int) -> None:
        """End the worker of a trial, now or at its next slice."""
        pytest.skip("nothing ends a worker alone")

    def hang(self, executor: Executor, trial_id: int) -> None:
        """Let the worker of a trial answer no more, though it lives."""
        pytest.skip("nothing stops a worker alone")

    def alone(self, launch: Launch, arrays: ArrayData) -> TrialRecord:
        """Return what a trial finds without an executor."""
        return run_alone(launch.assignment, to_tensors(arrays, "cpu"), launch.folder)

    @pytest.fixture(scope="class")
    @classmethod
    def arrays(cls) -> ArrayData:
        """Return the data of all trials."""
        return load(DATA, seed=0)

    @pytest.fixture(scope="class")
    @classmethod
    def executor(
        cls, arrays: ArrayData, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Executor]:
        """Make the executor once."""
        executor = cls.make(arrays, RESOURCES, tmp_path_factory.mktemp("logs"))
        yield executor
        executor.close()

    def test_every_launch_ends_in_the_record_of_a_lone_trial(
        self, executor: Executor, arrays: ArrayData, tmp_path: Path
    ) -> None:
        free = executor.free
        ends = drive(executor, [launch(i, tmp_path / "pool") for i in range(4)])
        assert sorted(end.trial_id for end in ends) == [0, 1, 2, 3]
        assert executor.free == free
        for end in ends:
            alone = launch(end.trial_id, tmp_path / "alone")
            assert without_times(end) == without_times(self.alone(alone, arrays))
            assert isinstance(end, TrialRecord)
            infeasible = end.trial_id == _WIDE
            assert end.status is (TrialStatus.INFEASIBLE if infeasible else TrialStatus.COMPLETE)
            assert ("n_parameters" in end.cause) == infeasible
            weights = launch(end.trial_id, tmp_path / "pool").folder / "model.safetensors"
            assert weights.is_file() != infeasible
            if not infeasible:  # bit for bit, though others ran in its worker before
                assert _tensors(weights) == _tensors(alone.folder / "model.safetensors")

    def test_the_reports_of_a_trial_hold_each_of_its_epochs_and_estimates_once(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        reports: list[SliceReport] = []
        (record,) = drive(executor, [launch(1, tmp_path)], reports)
        assert isinstance(record, TrialRecord)
        losses = [p.train_nll_per_datum for report in reports for p in report.curve]
        assert losses == [point.train_nll_per_datum for point in record.curve]
        told = [e for report in reports for e in report.evaluations]
        assert told == list(record.evaluations)
        assert {e.estimate.estimator for e in told} >= {"diag_ef", "kfac_ggn_mc"}
        assert all(e.epoch <= report.epoch for report in reports for e in report.evaluations)

    def test_a_parked_trial_goes_on_as_if_it_had_never_stopped(
        self, executor: Executor, arrays: ArrayData, tmp_path: Path
    ) -> None:
        free = executor.free
        first = launch(1, tmp_path)
        executor.launch(first)
        report = next_event(executor)
        assert isinstance(report, SliceReport)
        assert report.epoch == 0
        executor.advance(1, 2)
        report = next_event(executor)
        assert isinstance(report, SliceReport)
        assert (report.epoch, report.done) == (2, False)
        assert "diag_ef" in report.scores
        assert report.costs["n_parameters"] > 0
        executor.park(1)
        wait_until_free(executor, free)
        # Nothing more is heard of the parked one.
        (other,) = drive(executor, [launch(2, tmp_path)])
        alone = self.alone(launch(2, tmp_path / "alone"), arrays)
        assert without_times(other) == without_times(alone)
        reports: list[SliceReport] = []
        (parked,) = drive(executor, [launch(1, tmp_path, 2, first.folder)], reports)
        assert isinstance(parked, TrialRecord)
        assert parked.attempt == 2
        assert [point.epoch for point in reports[0].curve] == [1, 2]  # from its checkpoint
        alone = self.alone(launch(1, tmp_path / "alone"), arrays)
        assert without_times(parked) == without_times(alone)

    def test_a_verdict_ends_a_trial_before_its_time(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        free = executor.free
        pruned = launch(2, tmp_path)
        executor.launch(pruned)
        next_event(executor)
        executor.advance(2, 2)
        next_event(executor)
        executor.finish(2, Verdict(TrialStatus.PRUNED, "rung 2: 5th of 5"))
        record = next_event(executor)
        assert isinstance(record, TrialRecord)
        assert (record.status, record.cause) == (TrialStatus.PRUNED, "rung 2: 5th of 5")
        assert record.epochs == 2
        assert {e.epoch for e in record.evaluations} == {2}
        assert record.test_nll_per_datum is None
        assert not (pruned.folder / "model.safetensors").exists()
        assert executor.free == free

    def test_a_dead_worker_is_one_loss_and_is_replaced(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        free = executor.free
        _begin_and_end(executor, tmp_path, self.kill)
        executor.advance(0, 2, timeout=600.0)
        loss = next_event(executor)
        assert isinstance(loss, Lost)
        assert (loss.trial_id, loss.attempt) == (0, 1)
        assert loss.cause
        wait_until_free(executor, free)
        (end,) = drive(executor, [launch(1, tmp_path)])
        assert isinstance(end, TrialRecord)

    def test_a_hung_slice_is_one_loss_when_its_time_is_up(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        free = executor.free
        _begin_and_end(executor, tmp_path, self.hang)
        started = executor.now()
        executor.advance(0, 2, timeout=2.0)
        loss = next_event(executor)
        assert isinstance(loss, Lost)
        assert (loss.trial_id, loss.attempt, loss.cause) == (0, 1, "no answer for 2 s")
        assert executor.now() - started >= 2.0
        wait_until_free(executor, free)
        (end,) = drive(executor, [launch(0, tmp_path, 2)])
        assert isinstance(end, TrialRecord)

    def test_a_disk_that_refuses_is_a_loss_with_the_reason(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        free = executor.free
        (tmp_path / "file").touch()
        nowhere = Launch(launch(0, tmp_path).assignment, tmp_path / "file" / "below", None)
        (loss,) = drive(executor, [nowhere])
        assert isinstance(loss, Lost)
        assert loss.cause.startswith("[Errno ")
        assert "file" in loss.cause
        wait_until_free(executor, free)

    def test_the_clock_runs_forward_and_idleness_is_a_share(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        before = executor.now()
        drive(executor, [launch(0, tmp_path)])
        assert executor.now() > before
        # One trial on two workers, or one worker that also waited: never all of the time.
        assert 0 < executor.idle_share() < 1

    def test_nothing_happens_while_nothing_runs(self, executor: Executor) -> None:
        assert executor.free > 0
        assert executor.poll(timeout=0.0) == []


def _begin_and_end(executor: Executor, folder: Path, end: Callable[[Executor, int], None]) -> None:
    """Start trial 0, and end its worker if there is a way."""
    executor.launch(launch(0, folder))
    next_event(executor)
    try:
        end(executor, 0)
    except pytest.skip.Exception:
        executor.park(0)
        raise


def wait_until_free(executor: Executor, n: int) -> None:
    """Wait for a worker that takes the place of a lost one: it is free once it has found room."""
    for _ in range(60):
        if executor.free == n:
            return
        executor.poll(timeout=1.0)
    raise AssertionError(f"{executor.free} of {n} workers are free after 60 polls")


def launch(trial_id: int, folder: Path, attempt: int = 1, resume: Path | None = None) -> Launch:
    """Return a launch of one of four small trials; the last is above its limit."""
    given: dict[str, Any] = {
        "trial_id": trial_id,
        "attempt": attempt,
        "replicate": 0,
        "architecture": _ARCHITECTURES[trial_id % len(_ARCHITECTURES)],
        "dataset": DATA,
        "plan": {"epochs": _EPOCHS, "batch_size": 32, "settle": 0, "online": {"every": 2}},
        "estimators": ("diag_ef", "kfac_ggn_mc"),
        "followed": ("diag_ef",),
        "limits": LimitSpec(n_parameters=100_000),
        "seed": 7 + trial_id,
    }
    own = folder / str(trial_id) / f"attempt-{attempt}"
    own.mkdir(parents=True, exist_ok=True)
    return Launch(Assignment.model_validate(given), own, resume)


def drive(
    executor: Executor, launches: list[Launch], reports: list[SliceReport] | None = None
) -> list[TrialRecord | Lost]:
    """Do as the driver does; return every end in the order of its coming, and keep reports."""
    waiting, running, ends = list(launches), set[int](), list[TrialRecord | Lost]()
    for _ in range(300):
        if not waiting and not running:
            return ends
        while waiting and executor.free:
            free = executor.free
            running.add(waiting[0].assignment.trial_id)
            executor.launch(waiting.pop(0))
            assert executor.free == free - 1
        for event in executor.poll(timeout=1.0):
            assert event.trial_id in running, "word of a trial that is not running"
            if isinstance(event, TrialRecord | Lost):
                running.remove(event.trial_id)
                ends.append(event)
                continue
            if reports is not None:
                reports.append(event)
            if event.done:
                executor.finish(event.trial_id)
            else:
                executor.advance(event.trial_id, event.epoch + 2, timeout=600.0)
    raise AssertionError(f"no word of {running or waiting} in 300 polls")


def next_event(executor: Executor) -> SliceReport | TrialRecord | Lost:
    """Return the next event, which must come alone."""
    for _ in range(60):
        events = executor.poll(timeout=1.0)
        if events:
            (event,) = events
            return event
    raise AssertionError("no word in 60 polls")


def run_alone(assignment: Assignment, data: TensorData, folder: Path) -> TrialRecord:
    """Return the record of a trial that no executor runs."""
    trial = Trial.start(assignment, data, folder)
    while trial.status is TrialStatus.RUNNING:
        trial.advance(assignment.plan.epochs)
    return trial.finish()


def without_times(record: TrialRecord | Lost) -> dict[str, Any]:
    """Return all of a record but its durations and the attempt."""
    assert isinstance(record, TrialRecord), record
    text = record.model_dump(exclude={"attempt"})
    for part in (text, *text["curve"], *(e["estimate"] for e in text["evaluations"])):
        for key in [key for key in part if key.endswith("seconds")]:
            part.pop(key)
    return text


def _tensors(weights: Path) -> bytes:
    """Return the numbers of a safetensors file; the order of its header is left to chance."""
    content = weights.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return content[8 + length :] if length < len(content) else content  # of a simulation
