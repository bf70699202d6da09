"""Folds of large networks as tasks of their own: whatever happens to them, the record is the same.

Trials are real and tiny; every network counts as large.
"""

import contextlib
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakes
import large_networks
import numpy as np
import pytest
from fakes import Silent
from large_networks import LargeWorker
from safetensors import safe_open

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.driver.driver import Driver
from nas_evidence.proposing.proposer import Proposer
from nas_evidence.scores.folds import Folds
from nas_evidence.spec import divisions
from nas_evidence.spec.record import LossKind, SliceReport, TrialRecord, TrialStatus, part_of
from nas_evidence.spec.study import ResourceSpec, StudySpec
from nas_evidence.storage.requests import request_cancel
from nas_evidence.storage.study_names import remove_attempts
from nas_evidence.testing.executor_contract import without_times
from nas_evidence.workers.executor import Event, Launch, Lost, Verdict
from nas_evidence.workers.local import LocalExecutor
from nas_evidence.workers.pool import Pool
from nas_evidence.workers.trial import CHECKPOINT_VERSION, Trial

SCORES = ["two_fold", "five_fold", "conditional_evidence", "diag_ef", "kfac_ggn_mc", "sotl"]


def study(**changes: Any) -> StudySpec:
    given = {
        "objective": "conditional_evidence",
        "estimators": SCORES,
        "n_trials": 2,
        "family": {"mlp": {"depth": 1, "width": {"options": [4, 5]}}},
        "sampler": {"name": "grid"},
        "plan": {"epochs": 4, "batch_size": 16, "learning_rate": 0.05, "online": {"every": 2}},
        "finalists": 0,
    }
    return fakes.study(**(given | changes))


def rows(*, real: bool = False) -> ArrayData:
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 3)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(np.int64)
    y = x[:, :1] + 0.1 * random.normal(size=(50, 1)) if real else labels
    return ArrayData(
        "npz",
        x[:40], y[:40], x[40:], y[40:], task="real" if real else "labels",
        input_shape=(3,), n_outputs=1 if real else 2,
        mean=np.zeros(3, np.float32), std=np.ones(3, np.float32),
        y_mean=np.zeros(1 + (not real)), y_std=np.ones(1 + (not real)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def data() -> TensorData:
    return to_tensors(rows(), "cpu")


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divisions, "APART_FLOPS", 0.0)
    monkeypatch.setattr(divisions, "APART_DATA", 0.0)


class Scattered:
    """Trials in this process: what they are asked is done in any order, and some are lost.

    lost   share of the calls after which the worker is gone, half of them without having begun
    fails  may raise, at each call: the launch and the name of the call
    """

    def __init__(
        self,
        data: TensorData,
        *,
        workers: int = 3,
        seed: int = 0,
        lost: float = 0.0,
        fails: Callable[[Launch, str], object] = lambda launch, call: None,
        runs_parts: bool = True,
    ) -> None:
        self.data, self.workers, self.lost, self.fails = data, workers, lost, fails
        self.runs_parts = runs_parts
        self.random = random.Random(seed)
        self.running: dict[int, Launch] = {}
        self.trials: dict[int, Trial] = {}
        self.calls: dict[int, tuple[str, Callable[[], Event]]] = {}
        self.launches: list[Launch] = []
        self.n_slices = 0

    @property
    def free(self) -> int:
        return self.workers - len(self.running)

    def launch(self, launch: Launch) -> None:
        assert self.free > 0
        number = launch.assignment.trial_id
        self.running[number] = launch
        self.launches.append(launch)

        def start() -> Event:
            self.trials[number] = Trial.start(
                launch.assignment,
                self.data,
                launch.folder,
                resume_from=launch.resume_from,
                part=launch.part,
                divides=launch.divides,
            )
            return self.trials[number].report()

        self._ask(number, "start", start)

    def advance(self, number: int, until_epoch: int, *, timeout: float | None = None) -> None:
        self.n_slices += 1
        self._ask(number, "advance", lambda: self.trials[number].advance(until_epoch))

    def finish(self, number: int, verdict: Verdict | None = None) -> None:
        given = () if verdict is None else (verdict.status, verdict.cause)
        self._ask(number, "finish", lambda: self.trials[number].finish(*given))

    def park(self, number: int) -> None:
        assert number not in self.calls
        self.trials[number].save()
        del self.running[number], self.trials[number]

    def poll(self, timeout: float) -> list[Event]:
        if not self.calls:
            return []
        number = self.random.choice(sorted(self.calls))
        name, call = self.calls.pop(number)
        launch = self.running[number]
        self.fails(launch, name)
        fate = self.random.random()
        event = None if fate < self.lost / 2 else call()
        if fate < self.lost:
            event = Lost(number, launch.assignment.attempt, "gone", LossKind.MACHINE)
        assert event is not None
        if isinstance(event, Lost | TrialRecord):
            del self.running[number]
            self.trials.pop(number, None)
        return [event]

    def now(self) -> float:
        return float(self.n_slices)

    def idle_share(self) -> float:
        return 0.0

    def close(self) -> None:
        self.calls.clear()

    def _ask(self, number: int, name: str, call: Callable[[], Event]) -> None:
        assert number not in self.calls
        self.calls[number] = name, call


def run(spec: StudySpec, folder: Path, executor: Any) -> list[TrialRecord]:
    """Run a study, or go on with it, and return what has ended."""
    watcher = Silent()
    Driver(spec, folder, executor, watcher, proposer=Proposer).run()
    return watcher.ends


def killing(executor: Pool, pid_of: Callable[[int], int]) -> Pool:
    """The same executor; the worker of the first part that reports is killed then."""
    poll, killed = executor.poll, list[int]()

    def watched(timeout: float) -> list[Event]:
        events = poll(timeout)
        for event in events:
            if part_of(event.trial_id) and isinstance(event, SliceReport) and not killed:
                killed.append(event.trial_id)
                os.kill(pid_of(event.trial_id), signal.SIGKILL)
        return events

    executor.poll = watched  # type: ignore[method-assign]
    return executor


def found(records: list[TrialRecord], folder: Path) -> list[object]:
    """What trials have found, without times and numbers of attempts, and their weights."""
    rows = []
    for record in sorted(records, key=lambda one: one.trial_id):
        with safe_open(folder / "models" / f"{record.trial_id}.safetensors", "np") as file:
            tensors = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
        rows.append((without_times(record.model_copy(update={"attempt": 1})), tensors))
    return rows


def undivided(spec: StudySpec, data: TensorData, folder: Path) -> list[object]:
    """What the trials find if none is divided, with each fold a group of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divisions, "APART_FLOPS", 0.0)
        patch.setattr(divisions, "APART_DATA", 0.0)
        executor = Scattered(data, runs_parts=False)
        records = run(spec, folder, executor)
    assert not any(launch.part or launch.divides for launch in executor.launches)
    return found(records, folder)


@pytest.fixture(scope="module")
def whole(data: TensorData, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return undivided(study(), data, tmp_path_factory.mktemp("whole"))


def left(folder: Path) -> list[Path]:
    return [*(folder / "checkpoints").iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "lost"), [(0, 0.0), (1, 0.1), (2, 0.1), (3, 0.2)])
def test_any_order_of_parts_and_any_losses_give_the_record_of_an_undivided_trial(
    tmp_path: Path, data: TensorData, whole: list[object], seed: int, lost: float
) -> None:
    executor = Scattered(data, workers=2 + seed, seed=seed, lost=lost)
    spec = study(retries={"crashes": "unlimited"})
    assert found(run(spec, tmp_path, executor), tmp_path) == whole
    assert {launch.part for launch in executor.launches} == {*range(8)}
    assert left(tmp_path) == []


@pytest.mark.slow
def test_a_divided_trial_is_parked_once_before_its_network_trains_and_settles(
    tmp_path: Path,
) -> None:
    data = to_tensors(rows(real=True), "cpu")
    plan = {
        "likelihood": "gaussian",
        "settle": 1,
        "epochs": 4,
        "batch_size": 16,
        "online": {"every": 2},
    }
    scores = ["five_fold", "conditional_evidence", "sotl"]
    spec = study(estimators=scores, plan=plan, n_trials=1)
    executor = Scattered(data)
    park, epochs = executor.park, list[int]()

    def parked(number: int) -> None:
        epochs.append(executor.trials[number].report().epoch)
        park(number)

    executor.park = parked  # type: ignore[method-assign]
    records = run(spec, tmp_path / "parts", executor)
    assert epochs == [0]
    assert records[0].settle_seconds
    assert records[0].attempt == 2  # parked once
    assert found(records, tmp_path / "parts") == undivided(spec, data, tmp_path / "whole")


@pytest.mark.slow
def test_a_divided_trial_of_folds_alone_takes_all_of_its_record_from_its_parts(
    tmp_path: Path, data: TensorData
) -> None:
    spec = study(n_trials=1)
    spec = spec.model_copy(update={"plan": spec.plan.model_copy(update={"whole": False})})
    records = run(spec, tmp_path / "parts", Scattered(data, seed=1, lost=0.1))
    assert records[0].of == "folds"
    assert found(records, tmp_path / "parts") == undivided(spec, data, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("every", [11, 23])
def test_a_driver_that_ends_with_parts_half_done_goes_on_as_if_it_had_not(
    tmp_path: Path, data: TensorData, whole: list[object], every: int
) -> None:
    """Each driver ends after so many calls; every third one divides no trial."""
    ends, n_calls = list[TrialRecord](), 0

    def stop(launch: Launch, call: str) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls % every == 0:
            raise InterruptedError

    for n in range(100):
        executor = Scattered(data, seed=n, fails=stop, runs_parts=n % 3 != 1)
        watcher = Silent()
        driver = Driver(study(), tmp_path, executor, watcher, proposer=Proposer)
        with contextlib.suppress(InterruptedError):
            driver.run()
        ends += watcher.ends
        if driver.is_finished():
            break
    assert n > 1
    assert found(ends, tmp_path) == whole


@pytest.mark.slow
def test_parts_of_an_older_version_are_not_taken_and_no_driver_leaves_any(
    tmp_path: Path, data: TensorData, whole: list[object]
) -> None:
    def stop(launch: Launch, call: str) -> None:
        if launch.part == 2 and call == "finish":
            raise InterruptedError

    executor = Scattered(data, fails=stop)
    with contextlib.suppress(InterruptedError):
        run(study(), tmp_path, executor)
    assert any(part_of(int(path.name)) for path in left(tmp_path))
    launch = next(launch for launch in executor.launches if launch.divides)
    assert {v: n_taken(launch, data, v) > 0 for v in (0, CHECKPOINT_VERSION)} == {
        0: False,  # of an older version
        CHECKPOINT_VERSION: True,
    }
    assert found(run(study(), tmp_path, Scattered(data, runs_parts=False)), tmp_path) == whole
    assert left(tmp_path) == []


def n_taken(launch: Launch, data: TensorData, version: int) -> int:
    """How often a divided trial takes folds over that tasks have predicted, by its version."""
    taken = list[object]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nas_evidence.workers.trial.CHECKPOINT_VERSION", version)
        patch.setattr(Folds, "take", lambda self, state: taken.append(state))
        assert Trial.start(launch.assignment, data, launch.folder, divides=True).report().waits
    return len(taken)


@pytest.mark.slow
def test_a_fold_whose_task_is_lost_for_ever_is_trained_by_its_trial(
    tmp_path: Path, data: TensorData, whole: list[object]
) -> None:
    class Losing(Scattered):
        def poll(self, timeout: float) -> list[Event]:
            events = super().poll(timeout)
            for event in events:
                if part_of(event.trial_id) == 3 and event.trial_id in self.running:
                    del self.running[event.trial_id]
                    remove_attempts(tmp_path, f"checkpoints/{event.trial_id}")
                    return [Lost(event.trial_id, event.attempt, "gone")]
            return events

    executor = Losing(data)
    assert found(run(study(), tmp_path, executor), tmp_path) == whole
    tries = [launch.assignment.trial_id for launch in executor.launches if launch.part == 3]
    assert sorted(tries) == 3 * [300_000_000] + 3 * [300_000_001]
    assert left(tmp_path) == []


@pytest.mark.slow
def test_a_trial_that_is_cancelled_takes_its_parts_with_it(
    tmp_path: Path, data: TensorData
) -> None:
    def cancels(launch: Launch, call: str) -> None:
        if launch.assignment.trial_id == 1 and call == "start":
            request_cancel(tmp_path, 1)

    records = run(study(), tmp_path, Scattered(data, fails=cancels))
    assert {one.trial_id: one.status for one in records} == {
        0: TrialStatus.COMPLETE, 1: TrialStatus.CANCELLED,
    }  # fmt: skip
    assert left(tmp_path) == []


@pytest.mark.slow
def test_a_trial_that_diverges_takes_its_parts_with_it(tmp_path: Path, data: TensorData) -> None:
    plan = study().plan.model_copy(update={"learning_rate": 1e9})
    executor = Scattered(data, workers=4)
    records = run(study(plan=plan, n_trials=1), tmp_path, executor)
    assert [one.status for one in records] == [TrialStatus.DIVERGED]
    assert not executor.running
    assert left(tmp_path) == []


@pytest.mark.slow
def test_a_cancelled_study_parks_parts_and_the_next_run_goes_on_with_them(
    tmp_path: Path, data: TensorData, whole: list[object]
) -> None:
    def cancels(launch: Launch, call: str) -> None:
        if launch.part and first.n_slices == 5:
            request_cancel(tmp_path)

    first = Scattered(data, fails=cancels)
    ends = run(study(), tmp_path, first)
    assert ends == []
    assert not first.running
    second = Scattered(data)
    ends += run(study(), tmp_path, second)
    assert found(ends, tmp_path) == whole
    assert any(launch.part and launch.resume_from for launch in second.launches)


@pytest.mark.parametrize(
    "changes",
    [
        {"budget": {"wall_seconds": 1e6}},
        {"pruning": {"rule": "halving", "first_epoch": 2, "reduction": 2}},
    ],
)
@pytest.mark.slow
def test_a_study_with_rungs_or_a_limit_of_time_divides_no_trial(
    tmp_path: Path, data: TensorData, changes: dict[str, object]
) -> None:
    executor = Scattered(data)
    run(study(n_trials=1, **changes), tmp_path, executor)
    assert [launch.divides for launch in executor.launches] == [False]


@pytest.mark.slow
def test_a_small_network_is_not_divided(
    tmp_path: Path, data: TensorData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divisions, "APART_FLOPS", 1e15)
    executor = Scattered(data)
    run(study(n_trials=1), tmp_path, executor)
    assert [(one.part, one.divides) for one in executor.launches] == [(0, True)]


@pytest.mark.long
def test_plain_processes_run_parts_and_one_may_be_killed(
    tmp_path: Path, whole: list[object]
) -> None:
    resources = ResourceSpec(workers=3)
    executor = LocalExecutor(rows(), resources, tmp_path / "logs", make_worker=LargeWorker)
    with contextlib.closing(executor):
        killing(executor, lambda number: executor.worker_of(number).actor.pid)
        assert found(run(study(), tmp_path, executor), tmp_path) == whole
    assert left(tmp_path) == []


@pytest.mark.ray
def test_ray_actors_run_parts_and_one_may_be_killed(tmp_path: Path, whole: list[object]) -> None:
    import ray

    from nas_evidence.workers.on_ray import RayExecutor

    ray.cloudpickle.register_pickle_by_value(large_networks)  # actors cannot import it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # without an address the cluster is our own
        resources = ResourceSpec(workers=2, gpus=0)
        executor = RayExecutor(rows(), resources, tmp_path / "logs", make_worker=LargeWorker)
    with contextlib.closing(executor):
        killing(executor, lambda number: ray.get(executor.worker_of(number).actor.pid.remote()))
        assert found(run(study(), tmp_path, executor), tmp_path) == whole
    assert left(tmp_path) == []
