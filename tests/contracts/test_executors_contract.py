"""What every executor owes the driver: each launch ends in one record, one loss, or is parked."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from learning_curves import synthetic
from lone_trials import run
from records import without_times
from simulated import Fault, SimulatedExecutor

from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.spec.record import LossKind, SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.study import (
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    LimitSpec,
    ResourceSpec,
)
from nas_evidence.workers.executor import Executor, Launch, Lost, Verdict
from nas_evidence.workers.inline import InlineExecutor

DATA = DatasetSpec(name="digits", max_train=150, max_test=50)
RESOURCES = ResourceSpec(workers=2, cpus=1, gpus=0)
EPOCHS = 4
WIDE = 3  # the trial that is above its limit
ARCHITECTURES = (
    ArchitectureSpec(family="linear"),
    ArchitectureSpec(family="mlp", values={"depth": 1, "width": 8}),
    ArchitectureSpec(family="mlp", values={"depth": 2, "width": 9}),
    ArchitectureSpec(family="mlp", values={"depth": 2, "width": 900}),
)


@dataclass(frozen=True)
class Subject:
    """An executor, what a trial finds when it is alone, and how to bring down a worker."""

    executor: Executor
    alone: Callable[[Launch], TrialRecord]
    kill: Callable[[int], None] | None = None  # at the trial's next slice
    hang: Callable[[int], None] | None = None


@pytest.fixture(scope="module")
def arrays() -> ArrayData:
    return load(DATA, seed=0)


@pytest.fixture(
    scope="module",
    params=[
        "inline",
        "simulated",
        pytest.param("local", marks=[pytest.mark.slow]),
        pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.ray]),
    ],
)
def subject(
    request: pytest.FixtureRequest,
    arrays: ArrayData,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Subject]:
    """The pool under test; Ray starts once for all of them."""

    def alone(launch: Launch) -> TrialRecord:
        return run(launch.assignment, to_tensors(arrays, "cpu"), launch.folder)

    if request.param == "inline":
        subject = Subject(InlineExecutor(arrays, RESOURCES), alone)
    elif request.param == "simulated":
        subject = simulated()
    elif request.param == "local":
        subject = in_processes(arrays, tmp_path_factory.mktemp("logs"), alone)
    else:
        subject = on_ray(arrays, tmp_path_factory.mktemp("logs"), alone)
    yield subject
    subject.executor.close()


def simulated() -> Subject:
    faults: dict[int, Fault] = {}

    def alone(launch: Launch) -> TrialRecord:
        (record,) = drive(SimulatedExecutor(synthetic, workers=1, seed=9), [launch])
        assert isinstance(record, TrialRecord)
        return record

    return Subject(
        SimulatedExecutor(
            synthetic, workers=2, seed=0, faults=lambda a, epoch: faults.pop(a.trial_id, None)
        ),
        alone,
        kill=lambda trial_id: faults.update({trial_id: Fault("lost")}),
        hang=lambda trial_id: faults.update({trial_id: Fault("hung")}),
    )


def in_processes(arrays: ArrayData, logs: Path, alone: Callable[[Launch], TrialRecord]) -> Subject:
    from nas_evidence.workers.local import LocalExecutor

    executor = LocalExecutor(arrays, RESOURCES, logs)

    def send(number: int, trial_id: int) -> None:
        os.kill(executor.worker_of(trial_id).actor.pid, number)

    return Subject(
        executor,
        alone,
        kill=lambda trial_id: send(signal.SIGKILL, trial_id),
        hang=lambda trial_id: send(signal.SIGSTOP, trial_id),
    )


def on_ray(arrays: ArrayData, logs: Path, alone: Callable[[Launch], TrialRecord]) -> Subject:
    import ray

    from nas_evidence.workers.on_ray import RayExecutor

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # without an address the cluster is our own
        executor = RayExecutor(arrays, RESOURCES, logs)
    assert len(ray.nodes()) == 1

    def send(number: int, trial_id: int) -> None:
        os.kill(ray.get(executor.worker_of(trial_id).actor.pid.remote()), number)

    return Subject(
        executor,
        alone,
        kill=lambda trial_id: send(signal.SIGKILL, trial_id),
        hang=lambda trial_id: send(signal.SIGSTOP, trial_id),
    )


def launch(trial_id: int, folder: Path, attempt: int = 1, resume: Path | None = None) -> Launch:
    assignment = Assignment(
        trial_id=trial_id,
        attempt=attempt,
        replicate=0,
        architecture=ARCHITECTURES[trial_id % len(ARCHITECTURES)],
        dataset=DATA,
        plan={"epochs": EPOCHS, "batch_size": 32, "settle": 0, "online": {"every": 2}},
        estimators=("diag_ef", "kfac_ggn_mc"),
        followed=("diag_ef",),
        limits=LimitSpec(n_parameters=100_000),
        seed=7 + trial_id,
    )
    own = folder / str(trial_id) / f"attempt-{attempt}"
    own.mkdir(parents=True, exist_ok=True)
    return Launch(assignment, own, resume)


def drive(executor: Executor, launches: list[Launch]) -> list[TrialRecord | Lost]:
    """Do as the driver does, and return every end in the order of its coming."""
    waiting, running, ends = list(launches), set[int](), []
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
            elif event.done:
                executor.finish(event.trial_id)
            else:
                executor.advance(event.trial_id, event.epoch + 2, timeout=600.0)
    raise AssertionError(f"no word of {running or waiting} in 300 polls")


def wait_until_free(executor: Executor, n: int) -> None:
    """A worker that takes the place of a lost one is free once it has found room."""
    for _ in range(60):
        if executor.free == n:
            return
        executor.poll(timeout=1.0)
    raise AssertionError(f"{executor.free} of {n} workers are free after 60 polls")


def next_event(executor: Executor) -> SliceReport | TrialRecord | Lost:
    for _ in range(60):
        events = executor.poll(timeout=1.0)
        if events:
            (event,) = events
            return event
    raise AssertionError("no word in 60 polls")


def tensors(weights: Path) -> bytes:
    """Return the numbers of a safetensors file; the order of its header is left to chance."""
    content = weights.read_bytes()
    if content == b"simulated":
        return content
    return content[8 + int.from_bytes(content[:8], "little") :]


@pytest.mark.slow
def test_every_launch_ends_in_the_record_of_a_lone_trial(subject: Subject, tmp_path: Path) -> None:
    executor = subject.executor
    free = executor.free
    ends = drive(executor, [launch(i, tmp_path / "pool") for i in range(4)])
    assert sorted(end.trial_id for end in ends) == [0, 1, 2, 3]
    assert executor.free == free
    for end in ends:
        alone = launch(end.trial_id, tmp_path / "alone")
        assert without_times(end) == without_times(subject.alone(alone))
        infeasible = end.trial_id == WIDE
        assert end.status is (TrialStatus.INFEASIBLE if infeasible else TrialStatus.COMPLETE)
        assert ("n_parameters" in end.cause) == infeasible
        weights = launch(end.trial_id, tmp_path / "pool").folder / "model.safetensors"
        assert weights.is_file() != infeasible
        if not infeasible:  # bit for bit, though others ran in its worker before
            assert tensors(weights) == tensors(alone.folder / "model.safetensors")


@pytest.mark.slow
def test_a_trial_goes_on_from_the_checkpoint_it_is_given(subject: Subject, tmp_path: Path) -> None:
    first = launch(1, tmp_path)
    (whole,) = drive(subject.executor, [first])
    # The checkpoints of the whole run: the newest is that of its last epoch.
    (resumed,) = drive(subject.executor, [launch(1, tmp_path, 2, first.folder)])
    assert resumed.attempt == 2
    assert without_times(resumed) == without_times(whole)


@pytest.mark.slow
def test_a_parked_trial_goes_on_as_if_it_had_never_stopped(
    subject: Subject, tmp_path: Path
) -> None:
    executor = subject.executor
    free = executor.free
    first = launch(1, tmp_path)
    executor.launch(first)
    assert next_event(executor).epoch == 0
    executor.advance(1, 2)
    report = next_event(executor)
    assert isinstance(report, SliceReport)
    assert (report.epoch, report.done) == (2, False)
    assert "diag_ef" in report.scores
    assert report.costs["n_parameters"] > 0
    executor.park(1)
    assert executor.free == free
    (other,) = drive(executor, [launch(2, tmp_path)])  # nothing more is heard of the parked one
    assert without_times(other) == without_times(subject.alone(launch(2, tmp_path / "alone")))
    (parked,) = drive(executor, [launch(1, tmp_path, 2, first.folder)])
    assert without_times(parked) == without_times(subject.alone(launch(1, tmp_path / "alone")))


def test_a_verdict_ends_a_trial_before_its_time(subject: Subject, tmp_path: Path) -> None:
    executor = subject.executor
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


def test_a_dead_worker_is_one_loss_and_is_replaced(subject: Subject, tmp_path: Path) -> None:
    if subject.kill is None:
        pytest.skip("its worker is this process")
    executor = subject.executor
    free = executor.free
    executor.launch(launch(0, tmp_path))
    next_event(executor)
    subject.kill(0)
    executor.advance(0, 2, timeout=600.0)
    assert next_event(executor) == Lost(0, 1, "the worker process crashed")
    wait_until_free(executor, free)
    (end,) = drive(executor, [launch(1, tmp_path)])
    assert isinstance(end, TrialRecord)


@pytest.mark.long
def test_a_hung_slice_is_one_loss_when_its_time_is_up(subject: Subject, tmp_path: Path) -> None:
    if subject.hang is None:
        pytest.skip("nobody is left to look at the clock")
    executor = subject.executor
    free = executor.free
    executor.launch(launch(0, tmp_path))
    next_event(executor)
    subject.hang(0)
    started = executor.now()
    executor.advance(0, 2, timeout=2.0)
    assert next_event(executor) == Lost(0, 1, "no answer for 2 s", LossKind.HUNG)
    assert executor.now() - started >= 2.0
    wait_until_free(executor, free)
    (end,) = drive(executor, [launch(0, tmp_path, 2)])
    assert isinstance(end, TrialRecord)


def test_a_disk_that_refuses_is_a_loss_with_the_reason(subject: Subject, tmp_path: Path) -> None:
    executor = subject.executor
    free = executor.free
    (tmp_path / "file").touch()
    nowhere = Launch(launch(0, tmp_path).assignment, tmp_path / "file" / "below", None)
    (loss,) = drive(executor, [nowhere])
    assert isinstance(loss, Lost)
    assert loss.cause.startswith("[Errno ")
    assert "file" in loss.cause
    assert loss.kind is LossKind.CRASH
    wait_until_free(executor, free)


@pytest.mark.long
@pytest.mark.slow
def test_the_clock_runs_forward_and_idleness_is_a_share(subject: Subject, tmp_path: Path) -> None:
    executor = subject.executor
    before = executor.now()
    drive(executor, [launch(0, tmp_path)])
    assert executor.now() > before
    # One trial on two workers, or one worker that also waited: never all of the time.
    assert 0 < executor.idle_share() < 1


def test_close_forgets_what_is_under_way(arrays: ArrayData, tmp_path: Path) -> None:
    for executor in (InlineExecutor(arrays, RESOURCES), simulated().executor):
        executor.launch(launch(0, tmp_path))
        executor.close()
        assert executor.poll(timeout=0.0) == []
