"""One worker in this process: for debugging, notebooks and tests."""

from collections import deque
from collections.abc import Callable

from nas_evidence.data import ArrayData
from nas_evidence.service.executors import Event, Launch
from nas_evidence.service.worker import Worker
from nas_evidence.spec import ResourceSpec


class InlineExecutor:
    """Runs one call a poll, in this process and thread."""

    def __init__(self, arrays: ArrayData, resources: ResourceSpec) -> None:
        self._worker = Worker(arrays, resources)
        self._calls: deque[Callable[[], Event]] = deque()
        self._busy = False

    @property
    def free(self) -> int:
        """Return 1 if no trial is under way."""
        return 0 if self._busy else 1

    def launch(self, launch: Launch) -> None:
        """Take up a trial at the next poll."""
        self._busy = True
        self._calls.append(
            lambda: self._worker.start(launch.assignment, launch.folder, launch.resume_from)
        )

    def advance(self, trial_id: int, until_epoch: int) -> None:
        """Train on at the next poll."""
        self._calls.append(lambda: self._worker.advance(until_epoch))

    def finish(self, trial_id: int) -> None:
        """End the trial at the next poll."""

        def call() -> Event:
            self._busy = False
            return self._worker.finish()

        self._calls.append(call)

    def poll(self, timeout: float) -> list[Event]:
        """Run the next call to its end; `timeout` has no meaning here."""
        return [self._calls.popleft()()] if self._calls else []

    def close(self) -> None:
        """Forget the trial under way."""
        self._calls.clear()
        self._busy = False
