"""Retries of trials: after lost attempts, and after running out of memory on a GPU share.

A lost attempt is no failure of the network, so the limits of `[retries]` only end what would go
on for ever: attempts lost one after another without a new checkpoint. Those lost together with
their machine are counted apart from those whose worker crashed or hung, which the network itself
may cause. Any new checkpoint of an attempt is progress, also one of the same epoch: a fold, or a
round of settling. The journal holds the losses, so that the next driver continues the counts.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nas_evidence.spec.study import RetrySpec
from nas_evidence.workers.executor import LossKind

#: Attempts in a row that may be lost together with their machine, without progress.
MACHINE_LOSSES = 10


@dataclass
class Losses:
    """Lost attempts of a trial: all, and by cause those since its last progress."""

    limits: RetrySpec
    n: int = 0
    n_crashes: int = 0
    n_with_machine: int = 0

    def add(self, *, progress: bool, machine: bool = False) -> None:
        """Count a loss.

        Args:
            progress: whether the attempt had written a checkpoint.
            machine: whether it was lost with its machine.
        """
        self.n += 1
        if progress:
            self.n_crashes = self.n_with_machine = 0
        elif machine:
            self.n_with_machine += 1
        else:
            self.n_crashes += 1

    @property
    def too_many(self) -> bool:
        """Return whether to give up the trial."""
        limit = self.limits.crashes
        if not isinstance(limit, int):
            return False
        return self.n_crashes >= limit or self.n_with_machine >= MACHINE_LOSSES

    def __str__(self) -> str:
        stalled = self.n_crashes + self.n_with_machine
        stuck = f" ({stalled} without progress)" if stalled < self.n else ""
        return f"{self.n} attempts lost{stuck}"


class Retries:
    """Lost attempts by trial, and the share of a GPU that each trial needs in its next attempt."""

    def __init__(self, limits: RetrySpec) -> None:
        self.losses: defaultdict[int, Losses] = defaultdict(lambda: Losses(limits))
        self.shares: dict[int, float] = {}

    def replay(self, event: Mapping[str, Any]) -> None:
        """Count an event that the journal holds from an earlier run."""
        if event["event"] == "retry":  # on request: the earlier losses count no more
            self.forget(event["trial_id"])
        elif event["event"] == "lost":
            trial_id = event["trial_id"]
            if (share := event.get("share")) is not None:
                self.shares[trial_id] = share
            if (progress := event.get("progress")) is not None:
                machine = event.get("kind") == LossKind.MACHINE
                self.losses[trial_id].add(progress=bool(progress), machine=machine)

    def forget(self, trial_id: int) -> None:
        """Start the counts of a trial afresh."""
        self.losses.pop(trial_id, None)
        self.shares.pop(trial_id, None)
