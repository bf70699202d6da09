"""A grid of networks of many sizes on a real Ray with eight GPUs that do not exist.

Ray places the workers, and the driver runs the study. How long a trial takes is known in advance
and passes on a virtual clock: the next one ends when all that were launched have started and the
driver launches no more. So what is seen does not depend on how busy this machine is.
"""

import heapq
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_pools import DATA, STORE, Toy, pool, send_tests_along

from nas_evidence.driver.driver import Driver
from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.workers.executor import Event, Launch, Watcher
from nas_evidence.workers.shares import CONTEXT_BYTES, MEMORY_FRACTION

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.ray]

GIB = 1024**3
MEMORY = 80 * GIB
#: Widths of the grid, with the share of a GPU that each needs.
SHARE_OF = {128: 1.0, 112: 1.0, 96: 1.0, 64: 0.5, 32: 0.25, 8: 0.0625, 4: 0.03125}
DEPTHS = [1, 2, 3]
GPUS = 8


class Untimed(Toy):
    """Trains in no time: the clock is the test's."""

    def advance(self, until_epoch: int) -> SliceReport:
        return self.report(until_epoch)


def size_of(architecture: ArchitectureSpec) -> tuple[int, int]:
    values = architecture.values
    return int(values["width"]), int(values["depth"])


def seconds_of(architecture: ArchitectureSpec) -> float:
    """Return the virtual seconds of a trial: large networks take longer, but not in one order."""
    width, depth = size_of(architecture)
    return 10.0 + (width * depth * 7919) % 97 + 2.0 * width / depth


def memory_of(assignment: Assignment) -> int:
    """Return what just fits into the share of an architecture."""
    width, _ = size_of(assignment.architecture)
    return int(SHARE_OF[width] * MEMORY_FRACTION * MEMORY) - CONTEXT_BYTES


class InTurn:
    """Lets trials end in the order of a virtual clock, and adds up which GPUs are busy."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        # The share of each size that has no worker yet.
        self.waiting = {(width, depth): SHARE_OF[width] for width in SHARE_OF for depth in DEPTHS}
        self.clock, self.busy, self.filled, self.moments = 0.0, 0.0, 0.0, 0
        self.until = 0.0  # the last moment at which a trial waited
        self._under_way: set[int] = set()  # launched or ending: something happens by itself
        self._held: list[tuple[float, int, int, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def launch(self, launch: Launch) -> None:
        del self.waiting[size_of(launch.assignment.architecture)]
        self._under_way.add(launch.assignment.trial_id)
        self.executor.launch(launch)

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        architecture = self.executor.worker_of(trial_id).launch.assignment.architecture
        ends = self.clock + seconds_of(architecture)
        heapq.heappush(self._held, (ends, trial_id, until_epoch, timeout))

    def poll(self, timeout: float) -> list[Event]:
        if not self._under_way and self._held:
            self._pass_time()
        events = self.executor.poll(timeout)
        for event in events:
            if isinstance(event, TrialRecord) or not event.done:
                self._under_way.discard(event.trial_id)
        return events

    def _pass_time(self) -> None:
        """Look at the GPUs, and let the next trial end."""
        used = self.used()
        self.look(used)
        ends, trial_id, until_epoch, timeout = heapq.heappop(self._held)
        if self.waiting:
            self.busy += len(used) * (ends - self.clock)
            self.filled += sum(used.values()) * (ends - self.clock)
            self.until = ends
        self.clock = ends
        self._under_way.add(trial_id)
        self.executor.advance(trial_id, until_epoch, timeout=timeout)

    def used(self) -> dict[tuple[str, str], float]:
        """Return what trials hold of each GPU on which one runs, as Ray has placed them."""
        shares: defaultdict[tuple[str, str], float] = defaultdict(float)
        for worker in self.executor.workers:
            if worker.started:
                shares[worker.node, worker.gpu] += worker.share
        return shares

    def look(self, used: dict[tuple[str, str], float]) -> None:
        assert max(used.values()) <= 1.0, used
        if not self.waiting:
            return
        self.moments += 1
        kept = self.executor._kept[1] if self.executor._kept else None
        free = [1.0] * (GPUS - len(used)) + [1 - s for gpu, s in used.items() if gpu != kept]
        assert max(free, default=0.0) < min(self.waiting.values()), (used, self.waiting)
        assert len(used) == GPUS


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A head without room, and a machine of eight GPUs and 256 cores."""
    import ray
    from ray.cluster_utils import Cluster

    send_tests_along(__name__)
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, **STORE)
        cluster.add_node(num_cpus=256, num_gpus=GPUS, **STORE)
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def run_grid(address: str, folder: Path, workers: int | str) -> InTurn:
    """Run the grid; return what its GPUs did."""
    resources = {"workers": workers, "gpus": "auto", "cpus": 1}
    spec = StudySpec.model_validate(
        {
            "name": "grid",
            "objective": "sotl",
            "estimators": ["sotl"],
            "n_trials": len(SHARE_OF) * len(DEPTHS),
            "finalists": 0,
            "dataset": DATA,
            "family": {"mlp": {"width": sorted(SHARE_OF), "depth": DEPTHS}},
            "sampler": {"name": "grid"},
            "plan": {"epochs": 2},
            "resources": resources,
        }
    )
    executor = pool(
        address,
        folder / "logs",
        resources=resources,
        most=spec.n_trials,
        make_worker=Untimed,
        gpu_memory_bytes=MEMORY,
        memory_of=memory_of,
    )
    try:
        in_turn = InTurn(executor)
        driver = Driver(spec, folder, in_turn, Watcher(), flops=seconds_of)
        driver.run()
        assert driver.is_finished()
    finally:
        executor.close()
    return in_turn


def test_no_gpu_is_idle_while_trials_of_a_grid_wait(address: str, tmp_path: Path) -> None:
    seen = run_grid(address, tmp_path, "auto")
    assert seen.moments > 10
    total = GPUS * seen.until
    sys.stdout.write(
        f"busy GPU seconds while trials waited: {seen.busy / total:.1%}, held by trials "
        f"{seen.filled / total:.1%}; all ended after {seen.clock:.0f} s\n"
    )
    assert seen.busy == pytest.approx(total)
