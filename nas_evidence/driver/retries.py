"""Retries of trials: attempts that were lost, and shares of a GPU that were too small.

The journal holds both, so that the next driver goes on counting where this one stopped.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Attempts of one trial that may be lost without a new checkpoint in between, and in all.
MAX_STALLED, MAX_LOSSES = 3, 10


@dataclass
class Losses:
    """Lost attempts of a trial: all, those since it last got on, and how far it was then."""

    n: int = 0
    n_stalled: int = 0
    epoch: int = 0

    def add(self, epoch: int) -> None:
        """Count a loss of a trial whose newest checkpoint is of `epoch`, 0 if there is none."""
        self.n_stalled = 1 if epoch > self.epoch else self.n_stalled + 1
        self.n, self.epoch = self.n + 1, max(epoch, self.epoch)

    @property
    def too_many(self) -> bool:
        """Tell whether the trial is given up."""
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
        """Count what a line of the journal says of an earlier run."""
        if event["event"] == "lost":
            if (share := event.get("share")) is not None:
                self.shares[event["trial_id"]] = share
            if (epoch := event.get("epoch")) is not None:
                self.losses[event["trial_id"]].add(epoch)
