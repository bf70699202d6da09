"""One worker in this process: for debugging, notebooks and tests."""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nas_evidence.data import ArrayData
from nas_evidence.spec.record import TrialRecord
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.workers.executor import Event, Launch, Lost, Verdict, checked, loss_of
from nas_evidence.workers.process import MakeWorker, made_worker

_LOG = logging.getLogger(__name__)


class InlineExecutor:
    """Runs one call per poll, in this process and thread.

    Args:
        arrays: The data set; None if no trial will run.
        resources: The study's `[resources]`.
        make_worker: Has the signature of `Worker`, the default.
    """

    def __init__(
        self,
        arrays: ArrayData | None,
        resources: ResourceSpec,
        *,
        make_worker: MakeWorker | None = None,
    ) -> None:
        self._started = time.monotonic()
        self._busy_seconds = 0.0
        share = 1.0 if resources.gpus == "auto" else float(resources.gpus)
        self._worker: Any = None
        if arrays is not None or make_worker is not None:
            self._worker = made_worker(make_worker, arrays, resources, share)
        self._calls: deque[Callable[[], Event]] = deque()
        self._launch: Launch | None = None

    @property
    def free(self) -> int:
        """Return 1 if no trial is running, else 0."""
        return 1 if self._launch is None else 0

    def launch(self, launch: Launch) -> None:
        """Start a trial at the next poll."""
        self._launch = launch
        self._calls.append(lambda: self._worker.start(launch))

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Continue at the next poll; `timeout` cannot interrupt a slice in this thread."""
        self._calls.append(lambda: self._worker.advance(until_epoch))

    def park(self, trial_id: int) -> None:
        """Write the checkpoint of the trial and forget the trial at once."""
        self._worker.park()
        self._launch = None

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        """End the trial at the next poll."""
        self._calls.append(lambda: self._worker.finish(verdict))

    def poll(self, timeout: float) -> list[Event]:
        """Run the next call to completion; `timeout` is ignored."""
        if not self._calls or self._launch is None:
            return []
        assignment = self._launch.assignment
        began = time.monotonic()
        try:
            event = checked(self._calls.popleft()(), assignment)
        except Exception as error:  # a full disk, or a bug of ours: not the architecture's fault
            _LOG.warning("worker_lost trial_id=%d", assignment.trial_id, exc_info=error)
            event = Lost(assignment.trial_id, assignment.attempt, *loss_of(error))
        if isinstance(event, Lost):
            with suppress(OSError, StudyStoppedError):  # the loss says what went wrong
                self._worker.park()
        self._busy_seconds += time.monotonic() - began
        if isinstance(event, TrialRecord | Lost):
            self._calls.clear()
            self._launch = None
        return [event]

    def now(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    def idle_share(self) -> float:
        """Return the share of time in which no call ran."""
        return 1.0 - self._busy_seconds / max(1e-9, time.monotonic() - self._started)

    def close(self) -> None:
        """Forget the running trial."""
        self._calls.clear()
        self._worker.close()
        self._launch = None
