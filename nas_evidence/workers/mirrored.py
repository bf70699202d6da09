"""An executor that keeps the store of a study in step: it knows when, `mirror.py` knows how."""

import time
from typing import Protocol

from nas_evidence.record import SliceReport, TrialRecord
from nas_evidence.storage.remote import StoreError
from nas_evidence.workers.protocol import Event, Executor, Launch, Lost, Verdict
from nas_evidence.workers.stored import attempt_of

#: Seconds between two looks at what others ask for.
LOOK_EVERY = 5.0


class Keeper(Protocol):
    """What keeps the store in step: a `Mirror`."""

    def push(self) -> None:
        """Store what changed."""

    def push_journal(self) -> None:
        """Store the new lines of the journal."""

    def look_for_requests(self) -> None:
        """Take up the requests that others have sent."""

    def note_checkpoint(self, name: str) -> None:
        """Take note that a worker has stored a checkpoint."""

    def fetch_weights(self, attempt: str) -> None:
        """Fetch the weights that an attempt has stored."""


class MirroredExecutor:
    """Runs trials elsewhere, and stores what the driver did before the next step that counts."""

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
        """Store that a trial is asked and assigned, then start it."""
        assignment = launch.assignment
        self._names[assignment.trial_id, assignment.attempt] = attempt_of(launch.folder)
        self._keeper.push()
        self._inner.launch(launch)

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Store what the trial showed at a rung, then let it train on."""
        # Once it is past the rung, nobody could find out again.
        self._keeper.push_journal()
        self._inner.advance(trial_id, until_epoch, timeout=timeout)

    def park(self, trial_id: int) -> None:
        """Take a trial off its worker."""
        self._inner.park(trial_id)

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        """Let a trial hand over its record."""
        self._inner.finish(trial_id, verdict)

    def poll(self, timeout: float) -> list[Event]:
        """Return what happened, with the weights of trials that are over.

        Raises:
            StoreError: a worker cannot use the store: no trial's fault.
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
        """Return seconds on the clock that trials run by."""
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
