"""Retries of trials: after lost attempts, and after running out of memory on a GPU share.

The journal holds both, so that the next driver continues the counts.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Attempts of one trial that may be lost without a new checkpoint in between, and in all.
MAX_STALLED, MAX_LOSSES = 3, 10


@dataclass
class Losses:
    """Lost attempts of a trial: all, those since its last progress, and the epoch of that."""

    n: int = 0
    n_stalled: int = 0
    epoch: int = 0

    def add(self, epoch: int) -> None:
        """Count a loss; `epoch` is that of the newest checkpoint, 0 if there is none."""
        self.n_stalled = 1 if epoch > self.epoch else self.n_stalled + 1
        self.n, self.epoch = self.n + 1, max(epoch, self.epoch)

    @property
    def too_many(self) -> bool:
        """Return whether to give up the trial."""
        return self.n_stalled >= MAX_STALLED or self.n >= MAX_LOSSES

    def __str__(self) -> str:
        stuck = f" ({self.n_stalled} without progress)" if self.n_stalled < self.n else ""
        return f"{self.n} attempts lost{stuck}"


class Retries:
    """Lost attempts by trial, and the share of a GPU that each trial needs in its next attempt."""

    def __init__(self) -> None:
        self.losses: defaultdict[int, Losses] = defaultdict(Losses)
        self.shares: dict[int, float] = {}

    def replay(self, event: Mapping[str, Any]) -> None:
        """Count an event that the journal holds from an earlier run."""
        if event["event"] == "lost":
            if (share := event.get("share")) is not None:
                self.shares[event["trial_id"]] = share
            if (epoch := event.get("epoch")) is not None:
                self.losses[event["trial_id"]].add(epoch)
