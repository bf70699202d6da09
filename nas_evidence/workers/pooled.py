"""Executors whose workers are processes: each call has a deadline, each answer is an event.

A backend starts worker processes, ends them and carries calls; which worker runs which trial is
the pool's concern (`pool.py`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from nas_evidence.spec.record import TrialRecord
from nas_evidence.workers.executor import Event, Launch, Verdict
from nas_evidence.workers.packing import Slot
from nas_evidence.workers.pool import Pool, Seat
from nas_evidence.workers.process import Answer

#: A worker that has not started after this many seconds is given up.
START_TIMEOUT = 120.0


class WorkerLostError(Exception):
    """A worker crashed, or its call raised; `machine` if it was lost together with its machine."""

    def __init__(self, why: str, *, machine: bool = False) -> None:
        super().__init__(why)
        self.machine = machine


class PooledExecutor(ABC):
    """An executor whose workers are processes in a pool; `notices` are to be shown to the user."""

    _pool: Pool

    def __init__(self) -> None:
        self.notices: list[str] = []

    @property
    def free(self) -> int:
        """Return how many trials can start: idle workers and those that could be added."""
        return self._pool.free

    def launch(self, launch: Launch) -> None:
        """Start a trial on a worker of its share class, as soon as one is available."""
        self._pool.launch(launch)

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Let a trial continue training; it is lost after `timeout` seconds of silence."""
        self._call(self._pool.worker_of(trial_id), "advance", until_epoch, timeout=timeout)

    def park(self, trial_id: int) -> None:
        """Take a trial off its worker and free the worker."""
        worker = self._pool.worker_of(trial_id)
        worker.launch, worker.started = None, False
        self._call(worker, "park")

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        """Ask for a trial's record."""
        self._call(self._pool.worker_of(trial_id), "finish", verdict)

    def poll(self, timeout: float) -> list[Event]:
        """Return the reports, records and losses that have arrived.

        Raises:
            ValueError: no node has had room for a worker for 30 s, or workers fail to start.
        """
        self._refill()
        called = [worker for worker in self._pool.workers if worker.call is not None]
        if not called:
            if self._pool.is_waiting or not self._pool.workers:
                time.sleep(min(timeout, 0.1))
            return []
        left = min(worker.deadline for worker in called) - time.monotonic()
        ready = self._answered(called, max(0.0, min(timeout, left)))
        pooled = self._pool.workers  # losing one may remove others of its node
        events = [self._collect(worker) for worker in ready if worker in pooled]
        now = time.monotonic()
        for worker in [w for w in called if w.call is not None and now > w.deadline]:
            if worker in pooled:
                events.append(self._pool.lose(worker, f"no answer for {worker.silence:.0f} s"))
        self._refill()
        return [event for event in events if event is not None]

    def now(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    def idle_share(self) -> float:
        """Return the share of time, 0 to 1, that started workers spent idle."""
        return self._pool.idle_share()

    @abstractmethod
    def close(self) -> None:
        """Stop the workers."""

    # --- the pool's backend

    @abstractmethod
    def begin(self, slot: Slot) -> Seat:
        """Start a worker in a slot; its first answer means that it is ready."""

    @abstractmethod
    def end(self, worker: Seat) -> None:
        """Stop a worker for good."""

    def send(self, worker: Seat, method: str | None, *arguments: Any) -> None:
        """Call a method of a worker, or none; the trial's slice timeout applies."""
        if method == "start":  # a new trial: the length of its slices is not known
            worker.silence = 0.0
        self._call(worker, method, *arguments)

    # --- what carries the calls

    @abstractmethod
    def _ask(self, worker: Seat, method: str | None, *arguments: Any) -> Any:
        """Send a call; return what stands for its answer."""

    @abstractmethod
    def _answered(self, workers: Sequence[Seat], timeout: float) -> list[Seat]:
        """Return the workers whose answers are there, after at most `timeout` seconds."""

    @abstractmethod
    def _answer(self, worker: Seat) -> Answer:
        """Return the answer of a worker.

        Raises:
            WorkerLostError: it crashed, or its call raised.
        """

    def _refill(self) -> None:
        self._pool.refill()

    def _started(self, worker: Seat) -> Seat:
        """Ask a new worker for a first word; return it."""
        self._call(worker, None, timeout=START_TIMEOUT)
        worker.silence = START_TIMEOUT
        return worker

    def _call(
        self, worker: Seat, method: str | None, *arguments: Any, timeout: float | None = None
    ) -> None:
        slowest = self._pool.resources.slice_timeout_seconds
        worker.silence = timeout or max(worker.silence, slowest)
        worker.since = time.monotonic()
        worker.call = self._ask(worker, method, *arguments)

    def _collect(self, worker: Seat) -> Event | None:
        try:
            answer = self._answer(worker)
        except WorkerLostError as error:
            return self._pool.lose(worker, str(error), machine=error.machine)
        event: Event | None = answer.event
        is_over = event is None or isinstance(event, TrialRecord)
        self._pool.answered(worker, answer, is_over=is_over)
        return event
