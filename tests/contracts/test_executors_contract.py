"""What every executor owes the driver: each launch ends in one record or one loss."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.record import TrialRecord, TrialStatus
from nas_evidence.service.executors import Executor, Launch, Lost
from nas_evidence.service.inline_executor import InlineExecutor
from nas_evidence.spec import ArchitectureSpec, Assignment, DatasetSpec, ResourceSpec
from nas_evidence.trial import Trial

DATA = DatasetSpec(name="digits", max_train=150, max_test=50)
RESOURCES = ResourceSpec(workers=2, cpus=1, gpus=0)
EPOCHS = 4
ARCHITECTURES = (
    ArchitectureSpec(family="linear"),
    ArchitectureSpec(family="mlp", values={"depth": 1, "width": 8}),
    ArchitectureSpec(family="cnn", values={"depth": 5, "width": 4}),  # infeasible on 8x8
    ArchitectureSpec(family="mlp", values={"depth": 2, "width": 9}),
)


@pytest.fixture(scope="module")
def arrays() -> ArrayData:
    return load(DATA, seed=0)


@pytest.fixture(
    scope="module",
    params=["inline", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.ray])],
)
def executor(
    request: pytest.FixtureRequest,
    arrays: ArrayData,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Executor]:
    """The pool under test; Ray starts once for all of them."""
    if request.param == "inline":
        pool: Executor = InlineExecutor(arrays, RESOURCES)
    else:
        from nas_evidence.service.ray_executor import RayExecutor

        pool = RayExecutor(arrays, RESOURCES, tmp_path_factory.mktemp("logs"))
    yield pool
    pool.close()


def launch(trial_id: int, folder: Path) -> Launch:
    assignment = Assignment(
        trial_id=trial_id,
        attempt=1,
        replicate=0,
        architecture=ARCHITECTURES[trial_id % len(ARCHITECTURES)],
        dataset=DATA,
        plan={"epochs": EPOCHS, "batch_size": 32, "online": {"every": 2}},
        estimators=("diag_ef", "kfac_ggn_mc"),
        seed=7 + trial_id,
    )
    own = folder / str(trial_id)
    own.mkdir(parents=True, exist_ok=True)
    return Launch(assignment, own, None)


def drive(executor: Executor, launches: list[Launch]) -> list[TrialRecord | Lost]:
    """Do as the driver does, and return every end in the order of its coming."""
    waiting, running, ends = list(launches), set[int](), []
    for _ in range(200):
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
                executor.advance(event.trial_id, event.epoch + 2)
    raise AssertionError(f"no word of {running or waiting} in 200 polls")


def without_durations(record: TrialRecord) -> dict[str, object]:
    text = record.model_dump()
    for key in [k for k in text if k.endswith("seconds")]:
        text.pop(key)
    for evaluation in text["evaluations"]:
        evaluation["estimate"].pop("seconds")
    for point in text["curve"]:
        point.pop("seconds")
    return text


def test_every_launch_ends_in_the_record_of_a_lone_trial(
    executor: Executor, arrays: ArrayData, tmp_path: Path
) -> None:
    free = executor.free
    ends = drive(executor, [launch(i, tmp_path / "pool") for i in range(4)])
    assert sorted(end.trial_id for end in ends) == [0, 1, 2, 3]
    assert executor.free == free
    assert executor.poll(timeout=0.1) == []
    data = to_tensors(arrays, "cpu")
    for end in ends:
        assert isinstance(end, TrialRecord)
        alone = launch(end.trial_id, tmp_path / "alone")
        trial = Trial.start(alone.assignment, data, alone.folder)
        trial.advance(EPOCHS)
        assert without_durations(end) == without_durations(trial.finish())
        infeasible = end.architecture.family == "cnn"
        expected = TrialStatus.INFEASIBLE if infeasible else TrialStatus.COMPLETE
        assert end.status is expected
        weights = tmp_path / "pool" / str(end.trial_id) / "model.safetensors"
        assert weights.is_file() != infeasible


def test_a_trial_goes_on_from_the_checkpoint_it_is_given(
    executor: Executor, tmp_path: Path
) -> None:
    (whole,) = drive(executor, [launch(1, tmp_path)])
    second = launch(1, tmp_path / "second")
    again = second.assignment.model_copy(update={"attempt": 2})
    # The checkpoints of the whole run: the newest is that of its last epoch.
    (resumed,) = drive(executor, [Launch(again, second.folder, tmp_path / "1")])
    assert isinstance(whole, TrialRecord)
    assert isinstance(resumed, TrialRecord)
    assert resumed.attempt == 2
    assert without_durations(resumed) == {**without_durations(whole), "attempt": 2}


def test_a_dead_worker_is_one_loss_and_is_replaced(executor: Executor, tmp_path: Path) -> None:
    if isinstance(executor, InlineExecutor):
        pytest.skip("its worker is this process")
    import ray

    free = executor.free
    executor.launch(launch(0, tmp_path))
    actor = executor._running[0].actor
    os.kill(ray.get(actor.ready.remote()), signal.SIGKILL)
    executor.poll(timeout=30.0)  # the report of the start, or already the loss
    if 0 in executor._running:
        executor.advance(0, 2)
        (loss,) = executor.poll(timeout=30.0)
        assert loss == Lost(0, 1, "the worker process died")
    assert executor.free == free
    (end,) = drive(executor, [launch(1, tmp_path)])
    assert isinstance(end, TrialRecord)
