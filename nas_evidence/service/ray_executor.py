"""Trials on a pool of Ray actors, always on a local cluster of our own.

Actors never restart or retry by themselves: the driver decides what happens to a lost attempt.
Ray's chatter goes to a file. Sole importer of ray.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError

from nas_evidence.data import ArrayData
from nas_evidence.record import SliceReport, TrialRecord
from nas_evidence.service.executors import Event, Launch, Lost
from nas_evidence.service.worker import Worker, log_to
from nas_evidence.spec import ResourceSpec

_LOG = logging.getLogger(__name__)
#: Seconds after which a pool that has not started is given up with a message.
START_TIMEOUT = 120.0


class _Actor:
    """A worker in a process of its own; the data comes boxed, so that it is read in place."""

    def __init__(self, box: list[Any], resources: ResourceSpec, logs: Path) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
        log_to(logs)
        self.worker = Worker(ray.get(box[0]), resources)

    def ready(self) -> int:
        return os.getpid()

    def start(self, launch: Launch) -> SliceReport:
        return self.worker.start(launch.assignment, launch.folder, launch.resume_from)

    def advance(self, until_epoch: int) -> SliceReport:
        return self.worker.advance(until_epoch)

    def finish(self) -> TrialRecord:
        return self.worker.finish()


@dataclass
class _Running:
    actor: Any
    attempt: int
    call: Any  # the object reference of the call under way, or None


class RayExecutor:
    """A pool of worker processes on this machine."""

    def __init__(self, arrays: ArrayData, resources: ResourceSpec, logs: Path) -> None:
        self._resources = resources
        self._logs = logs
        self._running: dict[int, _Running] = {}
        self._idle: list[Any] = []
        try:
            self._start(arrays)
        except BaseException:  # Ctrl-C too: no cluster stays behind
            self.close()
            raise

    def _start(self, arrays: ArrayData) -> None:
        resources, logs = self._resources, self._logs
        with _signals_deferred(), _stderr_to(logs / "ray.log"):
            # address="local": never join a cluster that happens to be there.
            ray.init(
                address="local",
                num_cpus=resources.workers * resources.cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
            )
        self._gpus = self._gpu_share()
        self._box = [ray.put(arrays)]
        self._idle = [self._new_actor() for _ in range(resources.workers)]
        self._wait_until_ready()

    @property
    def free(self) -> int:
        """Return the number of idle workers."""
        return len(self._idle)

    def launch(self, launch: Launch) -> None:
        """Start a trial on an idle worker."""
        actor = self._idle.pop()
        call = actor.start.remote(launch)
        attempt = launch.assignment.attempt
        self._running[launch.assignment.trial_id] = _Running(actor, attempt, call)

    def advance(self, trial_id: int, until_epoch: int) -> None:
        """Let a trial train on."""
        running = self._running[trial_id]
        running.call = running.actor.advance.remote(until_epoch)

    def finish(self, trial_id: int) -> None:
        """Let a trial hand over its record."""
        running = self._running[trial_id]
        running.call = running.actor.finish.remote()

    def poll(self, timeout: float) -> list[Event]:
        """Return the reports, records and losses that have come in."""
        calls = {r.call: trial_id for trial_id, r in self._running.items() if r.call is not None}
        if not calls:
            return []
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout)
        return [self._collect(calls[ref]) for ref in ready]

    def _collect(self, trial_id: int) -> Event:
        running = self._running[trial_id]
        ref, running.call = running.call, None
        try:
            event: Event = ray.get(ref)
        except RayError as error:
            # An actor that cannot be reached may still live: killing it makes sure that it does
            # not, and attempts write into folders of their own, so a late word harms nothing.
            _LOG.warning("worker_lost trial_id=%d error=%s", trial_id, error)
            ray.kill(running.actor, no_restart=True)
            del self._running[trial_id]
            self._idle.append(self._new_actor())
            return Lost(trial_id, running.attempt, _why(error))
        if isinstance(event, TrialRecord):
            del self._running[trial_id]
            self._idle.append(running.actor)
        return event

    def close(self) -> None:
        """End the workers and the local cluster; Ctrl-C waits for that."""
        with _signals_deferred(), _stderr_to(self._logs / "ray.log"):
            ray.shutdown()

    def _new_actor(self) -> Any:
        # max_restarts=0, max_task_retries=0: a slice is never run again behind the driver's back.
        options = {"num_cpus": self._resources.cpus, "num_gpus": self._gpus, "max_restarts": 0}
        environment = {"env_vars": {"OMP_NUM_THREADS": str(self._resources.cpus)}}
        actor = ray.remote(_Actor).options(**options, runtime_env=environment)
        return actor.remote(self._box, self._resources, self._logs)

    def _gpu_share(self) -> float:
        available = ray.cluster_resources().get("GPU", 0)
        wanted = self._resources.gpus
        if wanted == "auto":
            return min(1.0, available / self._resources.workers) if available else 0.0
        if float(wanted) * self._resources.workers > available:
            raise ValueError(
                f"{self._resources.workers} workers with gpus = {wanted} each need "
                f"{float(wanted) * self._resources.workers:g} GPUs, but this machine has "
                f"{available:g}; lower `workers` or `gpus` in [resources]."
            )
        return float(wanted)

    def _wait_until_ready(self) -> None:
        pending = [actor.ready.remote() for actor in self._idle]
        ready, missing = ray.wait(pending, num_returns=len(pending), timeout=START_TIMEOUT)
        if missing:
            raise ValueError(
                f"only {len(ready)} of {len(pending)} workers started within "
                f"{START_TIMEOUT:.0f} s; lower `workers` in [resources], see {self._logs}."
            )
        try:
            ray.get(ready)
        except RayError as error:
            raise ValueError(
                f"a worker did not start: {_why(error)}; see {self._logs}."
            ) from error


def _why(error: RayError) -> str:
    if isinstance(error, ActorDiedError):
        return "the worker process died"
    if isinstance(error, ActorUnavailableError):
        return "the worker could not be reached"
    kind = "worker" if isinstance(error, RayActorError) else type(error).__name__
    return f"{kind}: {str(error).strip().splitlines()[-1]}"


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Hold Ctrl-C back until the block is over: half a cluster would outlive this process.

    Also puts back the handlers that Ray replaces; its own for SIGTERM aborts with a stack trace.
    """
    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield
        return
    before: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    held: list[tuple[int, Any]] = []
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, lambda *received: held.append(received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        number, frame = held[0]
        before[number](number, frame)


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send what Ray's processes print on standard error to a file, from start to end of the block.

    Child processes started inside keep the file; that is the point.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    saved = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
