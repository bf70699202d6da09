"""Workers, a node and the driver are killed at random; the table is that of an undisturbed study.

A real cluster of three nodes, a batch study of 200 trials, real processes and SIGKILL. What a
trial finds is simulated, so that a virtual run without Ray says what is right. The driver is
forked, again and again, from a process (`python test_chaos.py`) that has imported everything.
"""

import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import learning_curves
import pandas as pd
import pytest
import simulated
from commands import environment, found
from fakes import Silent, facts_in
from learning_curves import synthetic
from processes import processes
from simulated import SimulatedExecutor

from nas_evidence.driver.driver import Driver
from nas_evidence.driver.plan import n_proposals
from nas_evidence.driver.status import study_status
from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.spec.study import ResourceSpec, StudySpec
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.workers.executor import Launch, Verdict
from nas_evidence.workers.pool import Limits

pytestmark = [pytest.mark.slow, pytest.mark.ray]

#: How long things are killed. The study ends undisturbed; how long it is grows with this.
SECONDS = float(os.environ.get("NAS_EVIDENCE_CHAOS_SECONDS", "25"))
SEED = int(os.environ.get("NAS_EVIDENCE_CHAOS_SEED", "0"))
STUDY = StudySpec.model_validate(
    {
        "name": "chaos",
        "objective": "kfac_ggn",
        "n_trials": 200,
        "finalists": 0,
        "scheduling": "batch",
        "batch": 10,
        "dataset": {"name": "digits"},
        "family": {
            "mlp": {"width": {"low": 4, "high": 256, "log": True}, "depth": {"low": 1, "high": 5}}
        },
        "plan": {"epochs": 8, "online": {"every": 2}},
        "pruning": {"rule": "halving", "first_epoch": 4, "reduction": 2, "startup_trials": 2},
        "resources": {"workers": 3, "gpus": 0},
    }
)


class Sleeper:
    """A worker that sleeps through its slices and finds what a simulated trial finds."""

    def __init__(
        self, slice_seconds: float, arrays: None, resources: ResourceSpec, *, gpu_share: float
    ) -> None:
        self.slice_seconds, self.must_go = slice_seconds, ""
        self.inner = SimulatedExecutor(synthetic, workers=1, seed=0)

    def start(self, launch: Launch) -> SliceReport:
        self.trial_id = launch.assignment.trial_id
        self.inner.launch(launch)
        return self.event()

    def advance(self, until_epoch: int) -> SliceReport:
        time.sleep(self.slice_seconds)
        self.inner.advance(self.trial_id, until_epoch)
        return self.event()

    def finish(self, verdict: Verdict | None) -> TrialRecord:
        self.inner.finish(self.trial_id, verdict)
        return self.event()

    def park(self) -> None:
        self.inner.park(self.trial_id)

    def event(self) -> Any:
        (event,) = self.inner.poll(timeout=0.0)
        return event


def search(folder: Path, address: str, slice_seconds: float) -> None:
    """Run the study on the cluster, or what is left of it."""
    import ray

    from nas_evidence.workers.on_ray import RayExecutor

    for module in (learning_curves, simulated):  # the workers cannot import from the tests
        ray.cloudpickle.register_pickle_by_value(module)
    study = open_study(folder, STUDY)
    with locked(folder):
        executor = RayExecutor(
            None,
            study.resources,
            folder / "logs",
            address=address,
            make_worker=partial(Sleeper, slice_seconds),
            limits=Limits(trials=10_000),  # none is replaced but those that are killed
        )
        try:
            Driver(study, folder, executor, Silent()).run()
        finally:
            executor.close()


def fork_drivers(folder: Path, address: str, slice_seconds: float) -> None:
    """Fork a driver for each line that comes in; say its pid, and then how it ended."""
    sys.stdout.reconfigure(line_buffering=True)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                search(folder, address, slice_seconds)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")


class DriverProcess:
    """The driver, which can be killed and started again."""

    def __init__(self, folder: Path, address: str) -> None:
        # A trial has two slices on average, and half of the time goes to starting again.
        slice_seconds = SECONDS * STUDY.resources.workers / STUDY.n_trials / 8
        self.errors = (folder.parent / "driver.txt").open("w+")
        self.parent = subprocess.Popen(
            [sys.executable, __file__, str(folder), address, str(slice_seconds)],
            env=environment(
                RAY_DEDUP_LOGS_SKIP_REGEX=".*",
                PYTHONPATH=os.pathsep.join(map(str, Path(__file__).parents[1:3])),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            bufsize=1,
        )
        self.n_starts, self.pid = 0, None

    def start(self) -> None:
        self.n_starts += 1
        self._pipe(0).write("go\n")
        self.pid = int(self._pipe(1).readline())

    def ended(self, timeout: float) -> int | None:
        """Return the exit code, None while it runs."""
        ready, _, _ = select.select([self._pipe(1)], [], [], timeout)
        if not ready:
            return None
        self.pid = None
        return int(self._pipe(1).readline())

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.ended(timeout=600.0) is not None

    def close(self) -> None:
        try:
            if self.pid is not None:
                self.kill()
        finally:
            self.parent.kill()
            self.parent.wait()
        self._pipe(0).close()
        self._pipe(1).close()
        self.errors.close()

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def _pipe(self, number: int) -> Any:
        pipe = (self.parent.stdin, self.parent.stdout)[number]
        return pipe


class Nodes:
    """A head for one worker, and two nodes for two workers each: three have room without one."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self.how = {"object_store_memory": 80 * 1024**2, "include_log_monitor": False}
        try:
            self.cluster.add_node(num_cpus=1, num_gpus=0, include_dashboard=False, **self.how)
            self.complete()
        except BaseException:
            self.close()
            raise

    @property
    def are_complete(self) -> bool:
        return len(self.cluster.worker_nodes) == 2

    def complete(self) -> None:
        while not self.are_complete:
            self.cluster.add_node(num_cpus=2, num_gpus=0, **self.how)

    def kill_one(self, chance: random.Random) -> None:
        """Kill a node that is not the head."""
        nodes = sorted(self.cluster.worker_nodes, key=lambda node: node.node_id)
        self.cluster.remove_node(chance.choice(nodes), allow_graceful=False)

    def workers(self) -> list[int]:
        """Return the pids of the workers, of those at work if there are any.

        They are the children of our raylets that carry Ray's title.
        """
        nodes = [self.cluster.head_node, *self.cluster.worker_nodes]
        raylets = {p.process.pid for n in nodes for p in n.all_processes.get("raylet", ())}
        found: dict[bool, list[int]] = {True: [], False: []}
        for pid, (parent, _, title) in processes().items():
            if parent in raylets and title.startswith("ray::_Actor"):
                found[".call" in title].append(pid)
        return sorted(found[True] or found[False])

    def close(self) -> None:
        self.cluster.shutdown()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


def torment(driver: DriverProcess, nodes: Nodes, folder: Path) -> Counter[str]:
    """Kill for `SECONDS`, and until a trial was lost; return what was killed."""
    chance, kills = random.Random(SEED), Counter[str]()
    deeds = ["worker"] * 5 + ["driver"] * 2 + ["node"] * 2
    first = ["worker", "driver", "node", "worker"]  # at the least, however slow the machine is
    end = time.monotonic() + SECONDS
    driver.start()
    while first or time.monotonic() < end or not how_many("lost", folder):
        code = driver.ended(timeout=chance.uniform(0.5, 3.0))
        if code == 0:
            break
        assert code is None, driver.said()
        workers = nodes.workers()
        if not workers:  # none has started yet: nothing to disturb
            continue
        deed = first.pop(0) if first else chance.choice(deeds)
        if deed == "node" and not nodes.are_complete:
            nodes.complete()
            continue
        kills[deed] += 1
        if deed == "worker":
            os.kill(chance.choice(workers), signal.SIGKILL)
        elif deed == "node":
            nodes.kill_one(chance)
        else:
            driver.kill()
            driver.start()
    return kills


def how_many(word: str, folder: Path) -> Counter[int]:
    """Count the events of a kind in the log, by trial."""
    return Counter(e.trial_id for e in facts_in(folder, word))


def assert_same_tables(folder: Path, calm: Path) -> None:
    tables, wanted = (found(study, without=["attempt"]) for study in (folder, calm))
    assert list(wanted["trials"]["trial_id"]) == list(range(STUDY.n_trials))
    assert set(wanted["trials"]["status"]) == {"complete", "pruned"}
    for name, frame in wanted.items():
        pd.testing.assert_frame_equal(tables[name], frame, check_exact=True, obj=name)


@pytest.mark.soak
def test_workers_a_node_and_the_driver_are_killed_and_the_table_is_the_undisturbed_one(
    nodes: Nodes, tmp_path: Path
) -> None:
    calm = SimulatedExecutor(synthetic, workers=5, seed=1)
    Driver(STUDY, tmp_path / "calm", calm, Silent()).run()
    folder = tmp_path / "chaos"
    driver = DriverProcess(folder, nodes.cluster.address)
    try:
        kills = torment(driver, nodes, folder)
        nodes.complete()
        code = driver.ended(timeout=1200.0)
        assert code == 0, driver.said()
    finally:
        driver.close()
    assert all(kills[what] for what in ("worker", "node", "driver")), kills
    assert_same_tables(folder, tmp_path / "calm")
    ids = list(range(STUDY.n_trials))
    assert sorted(e.row.trial_id for e in facts_in(folder, "end")) == ids
    told = [e.number for e in facts_in(folder, "tell")]
    assert told == list(range(n_proposals(STUDY)))
    assert not list((folder / "checkpoints").iterdir())
    assert study_status(folder).state == "finished"
    launches, losses, parks = (how_many(word, folder) for word in ("launch", "lost", "park"))
    assert sum(losses.values()) > 0
    for trial_id in ids:
        assert launches[trial_id] <= losses[trial_id] + parks[trial_id] + driver.n_starts


if __name__ == "__main__":
    fork_drivers(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
