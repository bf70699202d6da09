"""Pools of Ray actors with toys for workers: what is looked at is who runs where, and who goes on.

As a program it is another driver on the cluster, until it is killed: one that holds CPUs, or a
study.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakes
from commands import environment
from records import asked, mlp

from nas_evidence.data import load
from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.spec.study import DatasetSpec, ResourceSpec
from nas_evidence.workers.executor import Launch, Lost, Verdict
from nas_evidence.workers.pool import Limits

DATA = DatasetSpec(name="digits", max_train=50, max_test=20)
EPOCHS = 2
#: What each node of a test takes.
STORE = {"object_store_memory": 80 * 1024**2, "include_log_monitor": False}


class Toy:
    """Trains by sleeping, and writes down where it was and when."""

    def __init__(self, arrays: object, resources: ResourceSpec, *, gpu_share: float) -> None:
        self.share, self.pid, self.ballast = gpu_share, os.getpid(), b""
        self.must_go = ""

    def start(self, launch: Launch) -> SliceReport:
        self.launch = launch
        self.began = time.time()
        return self.report(0)

    def advance(self, until_epoch: int) -> SliceReport:
        width = self.launch.assignment.architecture.values.get("width", 0)
        time.sleep(0.2)
        if width == 13:
            raise OSError(28, "No space left on device", "somewhere")
        if width == 14:
            self.ballast = b"x" * (300 * 1024**2)  # written to, so resident
        if width == 15:
            os._exit(1)
        return self.report(until_epoch)

    def finish(self, verdict: Verdict | None) -> TrialRecord:
        import ray

        where = {
            "pid": self.pid,
            "node": ray.get_runtime_context().get_node_id(),
            "gpus": ray.get_runtime_context().get_accelerator_ids().get("GPU", []),
            "from": self.began,
            "to": time.time(),
        }
        record = fakes.record_of(self.launch.assignment, gpu_share=self.share)
        return record.model_copy(update={"versions": json.dumps(where)})

    def report(self, epoch: int) -> SliceReport:
        return fakes.report_of(self.launch.assignment, epoch)


def send_tests_along(*modules: str) -> None:
    """Let actors have what is defined in tests, which they cannot import."""
    import ray

    for name in ("fakes", __name__, *modules):
        ray.cloudpickle.register_pickle_by_value(sys.modules[name])


def pool(address: str, logs: Path, **how: Any) -> Any:
    """Return an executor on a cluster; `resources` are those of the study."""
    from nas_evidence.workers.on_ray import RayExecutor

    resources = ResourceSpec(**how.pop("resources"))
    how = {"make_worker": Toy, "address": address, **how}
    return RayExecutor(load(DATA, seed=0), resources, logs, **how)


def launch(trial_id: int, *, width: int = 8, attempt: int = 1, min_share: float = 0.0) -> Launch:
    assignment = asked(
        mlp(width=width), trial_id=trial_id, attempt=attempt, dataset=DATA, epochs=EPOCHS
    )
    return Launch(assignment, Path("nowhere"), None, min_share)


def drive(executor: Any, launches: list[Launch], *, together: int = 1) -> list[Any]:
    """Bring trials to their end; none goes on before `together` of them have started."""
    waiting, n_running, ends, held = list(launches), 0, [], []
    end = time.monotonic() + 240
    while waiting or n_running:
        assert time.monotonic() < end, (len(waiting), n_running, ends)
        while waiting and executor.free:
            executor.launch(waiting.pop(0))
            n_running += 1
        for event in executor.poll(timeout=1.0):
            if isinstance(event, SliceReport):
                held.append(event)
            else:
                ends.append(event)
                n_running -= 1
        if len(held) < together:
            continue
        together = 1
        for report in held:
            if report.done:
                executor.finish(report.trial_id)
            else:
                executor.advance(report.trial_id, report.epoch + 1, timeout=600.0)
        held.clear()
    return ends


def next_event(executor: Any) -> Any:
    for _ in range(60):
        for event in executor.poll(timeout=1.0):
            return event
    raise AssertionError("no word in 60 polls")


def advance_until_lost(executor: Any, trial_id: int) -> Lost:
    """A worker may outlive its node for a few slices."""
    event = None
    while not isinstance(event, Lost):
        executor.advance(trial_id, 1, timeout=600.0)
        event = next_event(executor)
    assert event.trial_id == trial_id
    return event


def where(record: TrialRecord) -> dict[str, Any]:
    """Return the node, the GPUs and the process of a trial."""
    return json.loads(record.versions)


class Other:
    """Another driver on the cluster, in a process of its own, until the block ends."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, arguments)],
            env=environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> "Other":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def hear(self) -> str:
        """Return its next line, as soon as it comes."""
        return self._process.stdout.readline().strip()

    def tell(self) -> None:
        """Let it go on."""
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()


@contextlib.contextmanager
def other_job(address: str, node: str, cpus: int) -> Iterator[None]:
    """Let another driver hold CPUs of a node during the block."""
    with Other("hold", address, node, cpus) as job:
        assert job.hear() == "held"
        yield


def hold(address: str, node: str, cpus: str) -> None:
    """Hold CPUs of a node for ever."""
    import ray

    @ray.remote(num_cpus=int(cpus), label_selector={"ray.io/node-id": node})
    class Holder:
        def here(self) -> None:
            pass

    ray.init(address=address, log_to_driver=False)
    holder = Holder.remote()
    ray.get(holder.here.remote())
    _say("held")
    time.sleep(3600)


def study(address: str, logs: str, n: str) -> None:
    """Run three trials, and again whenever a line comes in; say how many workers ran them."""
    resources = {"workers": int(n), "gpus": 0}
    executor = pool(address, Path(logs), resources=resources, limits=Limits(idle=1.0))
    while True:
        ends = drive(executor, [launch(i) for i in range(3)])
        _say(str(len({where(end)["pid"] for end in ends})))
        while not select.select([sys.stdin], [], [], 0)[0]:
            executor.poll(timeout=0.2)
        sys.stdin.readline()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    send_tests_along()
    {"hold": hold, "study": study}[sys.argv[1]](*sys.argv[2:])
