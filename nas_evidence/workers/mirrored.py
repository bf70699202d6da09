"""An executor that keeps a study's store up to date; `mirror.py` does the copying."""

import time
from typing import Protocol

from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.storage.remote import StoreError
from nas_evidence.workers.executor import Event, Executor, Launch, Lost, Verdict
from nas_evidence.workers.stored import attempt_of

#: Seconds between two checks for requests from other processes.
LOOK_EVERY = 5.0


class Keeper(Protocol):
    """What keeps the store up to date: a `Mirror`."""

    def push(self) -> None:
        """Store what changed."""

    def push_journal(self) -> None:
        """Store the new lines of the journal."""

    def look_for_requests(self) -> None:
        """Fetch the requests that other processes have sent."""

    def note_checkpoint(self, name: str) -> None:
        """Record that a worker has stored a checkpoint."""

    def fetch_weights(self, attempt: str) -> None:
        """Fetch the weights that an attempt has stored."""


class MirroredExecutor:
    """Wraps an executor; stores what the driver has written before each launch and slice."""

    def __init__(self, inner: Executor, keeper: Keeper) -> None:
        self._inner, self._keeper = inner, keeper
        self._names: dict[tuple[int, int], str] = {}  # of attempts, by trial and attempt
        self._has_news = True
        self._looked = 0.0

    @property
    def free(self) -> int:
        """Return how many trials may be launched now."""
        return self._inner.free

    def launch(self, launch: Launch) -> None:
        """Store that a trial was asked and assigned, then start it."""
        assignment = launch.assignment
        self._names[assignment.trial_id, assignment.attempt] = attempt_of(launch.folder)
        self._keeper.push()
        self._inner.launch(launch)

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Store the trial's score at a rung, then let it continue training."""
        # Once it has passed the rung, that score cannot be recovered.
        self._keeper.push_journal()
        self._inner.advance(trial_id, until_epoch, timeout=timeout)

    def park(self, trial_id: int) -> None:
        """Take a trial off its worker."""
        self._inner.park(trial_id)

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        """Ask for a trial's record."""
        self._inner.finish(trial_id, verdict)

    def poll(self, timeout: float) -> list[Event]:
        """Return what happened; fetch the weights of trials that are over.

        Raises:
            StoreError: a worker cannot use the store, which is not the trial's fault.
        """
        if self._has_news or time.monotonic() - self._looked > LOOK_EVERY:
            self._keeper.look_for_requests()
            self._keeper.push()
            self._has_news, self._looked = False, time.monotonic()
        events = self._inner.poll(timeout)
        for event in events:
            self._arrived(event)
        return events

    def now(self) -> float:
        """Return the time in seconds on the clock of the trials."""
        return self._inner.now()

    def idle_share(self) -> float:
        """Return the share of worker time spent waiting so far, 0 to 1."""
        return self._inner.idle_share()

    def close(self) -> None:
        """Stop all workers."""
        self._inner.close()

    def _arrived(self, event: Event) -> None:
        attempt = self._names.get((event.trial_id, event.attempt))
        if isinstance(event, Lost):
            word, colon, said = event.cause.partition(": ")
            if word == StoreError.__name__ and colon:
                raise StoreError(said)
        elif isinstance(event, SliceReport):
            if event.epoch and attempt:
                self._keeper.note_checkpoint(f"{attempt}/epoch-{event.epoch:06d}.pt")
            return
        elif isinstance(event, TrialRecord) and attempt:
            self._keeper.fetch_weights(attempt)
        self._names.pop((event.trial_id, event.attempt), None)
        self._has_news = True
