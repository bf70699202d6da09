"""A cluster that is not ours alone: other jobs, another study, a node that ruins trials."""

import heapq
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commands import environment
from ray_pools import (
    DATA,
    STORE,
    Other,
    Toy,
    drive,
    launch,
    other_job,
    pool,
    send_tests_along,
    where,
)
from records import plain_study

from nas_evidence.driver.driver import Driver
from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.spec.study import ArchitectureSpec, Assignment
from nas_evidence.workers.executor import Event, Launch, Lost, Watcher
from nas_evidence.workers.pool import MOST_LOSSES, Limits
from nas_evidence.workers.shares import CONTEXT_BYTES, MEMORY_FRACTION

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.ray]

#: Of a node, so that a toy there crashes.
SICK = "NAS_TEST_SICK"


class Sick(Toy):
    """Crashes on a sick node."""

    def advance(self, until_epoch: int) -> SliceReport:
        if os.environ.get(SICK):
            os._exit(1)
        return super().advance(until_epoch)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without room, and two nodes of two CPUs and a GPU; the second one is sick."""
    import ray
    from ray.cluster_utils import Cluster

    send_tests_along(__name__)
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, **STORE)
        cluster.a = cluster.add_node(num_cpus=2, num_gpus=1, **STORE)
        cluster.b = cluster.add_node(num_cpus=2, num_gpus=1, env_vars={SICK: "1"}, **STORE)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_beside_a_node_full_of_another_job_a_study_runs_on_the_free_one(
    cluster: Any, tmp_path: Path
) -> None:
    with other_job(cluster.address, cluster.a.node_id, cpus=2):
        executor = pool(cluster.address, tmp_path, resources={"workers": 2, "gpus": 0.5})
        with closing(executor):
            ends = drive(executor, [launch(i) for i in range(4)], together=2)
    assert {where(end)["node"] for end in ends} == {cluster.b.node_id}


def test_two_studies_and_another_job_share_a_cluster(cluster: Any, tmp_path: Path) -> None:
    """Each wants four workers; there is room for three, which the one leaves that has no trial."""
    how = {"resources": {"workers": 4, "gpus": 0}, "limits": Limits(idle=1.0)}
    with (
        other_job(cluster.address, cluster.a.node_id, cpus=1),
        Other("study", cluster.address, tmp_path / "1", 4) as first,
    ):
        assert 1 <= int(first.hear()) <= 3
        second = pool(cluster.address, tmp_path / "2", **how)
        with closing(second):
            ends = drive(second, [launch(i) for i in range(3)])
            assert [type(end) for end in ends] == [TrialRecord] * 3
            first.tell()
            with ThreadPoolExecutor(1) as listening:
                heard = listening.submit(first.hear)
                while not heard.done():
                    second.poll(timeout=0.2)
            assert 1 <= int(heard.result()) <= 3


def test_a_node_that_ruins_trials_gets_no_more_and_the_study_ends_on_the_other(
    cluster: Any, tmp_path: Path
) -> None:
    resources = {"workers": 4, "gpus": 0}
    executor = pool(cluster.address, tmp_path, resources=resources, make_worker=Sick)
    with closing(executor):
        ends = drive(executor, [launch(i) for i in range(4)], together=4)
        ends += drive(executor, [launch(4 + i) for i in range(4)], together=4)
        fresh = drive(executor, [launch(10 + i) for i in range(6)])
    lost = [end for end in ends if isinstance(end, Lost)]
    assert len(lost) in (MOST_LOSSES, MOST_LOSSES + 1)
    [said] = [end.cause for end in lost if "and finished none in between" in end.cause]
    assert f"the node {cluster.b.node_id[:8]} at " in said
    assert [type(end) for end in fresh] == [TrialRecord] * 6
    assert {where(end)["node"] for end in fresh} == {cluster.a.node_id}


# --- A grid of networks of many sizes on a real Ray with eight GPUs that do not exist


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
    spec = plain_study(
        name="grid", objective="sotl", estimators=["sotl"], dataset=DATA, resources=resources,
        n_trials=len(SHARE_OF) * len(DEPTHS), finalists=0, sampler={"name": "grid"},
        family={"mlp": {"width": sorted(SHARE_OF), "depth": DEPTHS}}, plan={"epochs": 2},
    )  # fmt: skip
    executor = pool(
        address,
        folder / "logs",
        resources=resources,
        most=spec.n_trials,
        make_worker=Untimed,
        gpu_memory_bytes=MEMORY,
        memory_of=memory_of,
    )
    with closing(executor):
        in_turn = InTurn(executor)
        driver = Driver(spec, folder, in_turn, Watcher(), flops=seconds_of)
        driver.run()
        assert driver.is_finished()
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


# --- A process that is connected to Ray keeps it, its actors and its objects; trials run in it


HEAD = """\
import sys
import numpy as np, ray
import nas_evidence
x = np.array([[k % 7, k % 3] for k in range(60)], np.float32)
y = np.arange(60) % 2
OWN = {"settings": {"plan.epochs": 2, "finalists": 0}, "workers": 1, "n_trials": 2}
"""
KEEPS = """
# "local": without an address Ray joins a cluster that another test runs on this machine.
ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)

@ray.remote
class Mine:
    def says(self):
        return "alive"

actor, kept = Mine.remote(), ray.put("kept")

def all_there():
    assert ray.is_initialized()
    assert (ray.get(actor.says.remote()), ray.get(kept)) == ("alive", "kept")
    assert ray.cluster_resources()["CPU"] == 3

here = ray.get_runtime_context().gcs_address
for k, address in enumerate((None, "auto", here)):
    study = nas_evidence.search(x, y, out=f"s{k}", executor="ray", address=address, **OWN)
    assert len(study.trials) == 2
    all_there()
nas_evidence.resume("s0", n_trials=3, executor="ray", workers=1)
all_there()
try:
    nas_evidence.search(x, y, out="t", executor="ray", address="127.0.0.1:1", **OWN)
except ValueError as error:
    assert "ray.shutdown()" in str(error), error
else:
    raise AssertionError("joined another Ray")
all_there()
many = OWN | {"settings": OWN["settings"] | {"resources.cpus": 2}}
study = nas_evidence.search(x, y, out="u", executor="ray", **many)
all_there()
import time
for _ in range(100):  # nothing of ours is left; the actor of the caller holds none while it waits
    if ray.available_resources().get("CPU") == 3:
        break
    time.sleep(0.1)
else:
    raise AssertionError(ray.available_resources())
"""
TWO = """
from concurrent.futures import ThreadPoolExecutor

def one(k):
    return len(nas_evidence.search(x, y, out=f"w{k}", executor="ray", **OWN).trials)

with ThreadPoolExecutor(2) as threads:
    assert list(threads.map(one, range(2))) == [2, 2]
assert not ray.is_initialized()
"""


@pytest.mark.parametrize("work", [KEEPS, TWO], ids=["the caller's", "two studies at once"])
def test_ray_stays_as_long_as_somebody_of_this_process_uses_it(tmp_path: Path, work: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + work], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
