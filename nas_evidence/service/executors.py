"""Where trials run: the protocol of every executor, and what passes through it.

The driver launches a trial on a free worker, polls for what happened, and answers each slice with
`advance` or `finish`. An executor knows nothing of scores, results or the database.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nas_evidence.record import SliceReport, TrialRecord
from nas_evidence.spec import Assignment


@dataclass(frozen=True)
class Launch:
    """A trial to take up: what to run, where it may write, and what to continue from."""

    assignment: Assignment
    folder: Path
    resume_from: Path | None


@dataclass(frozen=True)
class Lost:
    """An attempt that ended without a word: the worker died. Not the architecture's fault."""

    trial_id: int
    attempt: int
    cause: str


Event = SliceReport | TrialRecord | Lost


class Executor(Protocol):
    """A pool of workers. Every launch ends in exactly one TrialRecord or one Lost."""

    @property
    def free(self) -> int:
        """Return how many trials may be launched now."""

    def launch(self, launch: Launch) -> None:
        """Start a trial on a free worker."""

    def advance(self, trial_id: int, until_epoch: int) -> None:
        """Let a trial train on, after its report."""

    def finish(self, trial_id: int) -> None:
        """Let a trial write its weights and hand over its record, after its last report."""

    def poll(self, timeout: float) -> list[Event]:
        """Return what happened, waiting up to `timeout` seconds for something to happen."""

    def close(self) -> None:
        """Stop all workers; trials under way keep their checkpoints."""
