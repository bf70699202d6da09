"""Our executors keep what `nas_evidence.testing` asks of every executor."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from learning_curves import synthetic
from simulated import Fault, SimulatedExecutor

from nas_evidence.data import ArrayData, load
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.testing import ExecutorContract
from nas_evidence.testing.executor_contract import DATA, RESOURCES, drive
from nas_evidence.testing.executor_contract import launch as lone_launch
from nas_evidence.workers.executor import Executor, Launch
from nas_evidence.workers.inline import InlineExecutor
from nas_evidence.workers.local import LocalExecutor


def inline(arrays: ArrayData, resources: ResourceSpec, logs: Path) -> Executor:
    return InlineExecutor(arrays, resources)


class Simulated(SimulatedExecutor):
    """The simulation with two workers and a fault where a test wants one."""

    def __init__(self, *given: object) -> None:
        self.wanted: dict[int, Fault] = {}
        faults = lambda given, epoch: self.wanted.pop(given.trial_id, None)  # noqa: E731
        super().__init__(synthetic, workers=2, seed=0, faults=faults)


def on_ray(arrays: ArrayData, resources: ResourceSpec, logs: Path) -> Executor:
    import ray

    from nas_evidence.workers.on_ray import RayExecutor

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # without an address the cluster is our own
        executor = RayExecutor(arrays, resources, logs)
    assert len(ray.nodes()) == 1
    return executor


@pytest.mark.slow
class TestInline(ExecutorContract):
    make = staticmethod(inline)


class TestSimulated(ExecutorContract):
    make = Simulated

    def alone(self, launch: Launch, arrays: ArrayData) -> TrialRecord:
        other = SimulatedExecutor(synthetic, workers=1, seed=9)
        (record,) = drive(other, [launch])
        assert isinstance(record, TrialRecord)
        return record

    def kill(self, executor: Any, trial_id: int) -> None:
        executor.wanted[trial_id] = Fault("lost")

    def hang(self, executor: Any, trial_id: int) -> None:
        executor.wanted[trial_id] = Fault("hung")


@pytest.mark.slow
@pytest.mark.long
class TestLocal(ExecutorContract):
    make = LocalExecutor

    def kill(self, executor: Any, trial_id: int) -> None:
        os.kill(self.pid(executor, trial_id), signal.SIGKILL)

    def hang(self, executor: Any, trial_id: int) -> None:
        os.kill(self.pid(executor, trial_id), signal.SIGSTOP)

    def pid(self, executor: Any, trial_id: int) -> int:
        return int(executor.worker_of(trial_id).actor.pid)


@pytest.mark.ray
class TestRay(TestLocal):
    make = staticmethod(on_ray)

    def pid(self, executor: Any, trial_id: int) -> int:
        import ray

        return int(ray.get(executor.worker_of(trial_id).actor.pid.remote()))


@pytest.mark.parametrize("make", [inline, Simulated])
def test_close_forgets_what_is_under_way(make: Any, tmp_path: Path) -> None:
    executor = make(load(DATA, seed=0), RESOURCES, tmp_path)
    executor.launch(lone_launch(0, tmp_path))
    executor.close()
    assert executor.poll(timeout=0.0) == []
