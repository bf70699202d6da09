"""Which trial of a study is best, for status, report, export and kept weights alike.

Architectures are ranked, not trials, by the mean objective over complete replicates with a valid
value: a single trial may come first because of seed noise. An architecture is represented by its
replicate with the best objective.

    mean_a = 1/|R_a| sum_{i in R_a} v_i      trial_a = argmax_{i in R_a} v_i

    R_a  complete trials of architecture a whose objective v_i (larger is better) is valid

Those that the race of the finalists trained again come before all others: the mean of one seed
owes its rank partly to luck, and is not compared with means of several.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from nas_evidence.spec.record import TrialStatus, is_race


class FinishedTrial(Protocol):
    """What the ranking needs from a trial; a `TrialRow` has it."""

    @property
    def trial_id(self) -> int:
        """Return its number in the study."""

    @property
    def architecture_key(self) -> str:
        """Return the key that its replicates share."""

    @property
    def status(self) -> TrialStatus:
        """Return how it ended."""

    @property
    def values(self) -> Mapping[str, float]:
        """Return the last value of each score if valid, larger is better."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The replicates of an architecture by trial id, and their objectives.

    The objectives are in the unit of the score that ranks, for evidence nats summed over the data.
    """

    key: str
    objectives: Mapping[int, float]

    @property
    def mean(self) -> float:
        """Return the mean objective, by which architectures are ranked."""
        return fmean(self.objectives.values())

    @property
    def raced(self) -> bool:
        """Return whether the race of the finalists trained the architecture again."""
        return any(map(is_race, self.objectives))

    @property
    def trial_id(self) -> int:
        """Return the trial that represents the architecture; among ties the first."""
        return min(self.objectives, key=lambda trial_id: (-self.objectives[trial_id], trial_id))


class Standings:
    """The architectures of a study, best first; trials may be added in any order.

    Among equal means the architecture tried first comes first.
    """

    def __init__(self, objective: str, trials: Iterable[FinishedTrial] = ()) -> None:
        self._objective = objective
        self._by_key: dict[str, Standing] = {}
        self._order: list[tuple[bool, float, int, str]] = []  # sorted
        for trial in trials:
            self.add(trial)

    def add(self, trial: FinishedTrial) -> Standing | None:
        """Add a trial; return its architecture's standing, None if the trial does not count."""
        value = trial.values.get(self._objective)
        if value is None or trial.status is not TrialStatus.COMPLETE:
            return None
        before = self._by_key.get(trial.architecture_key)
        objectives = {} if before is None else dict(before.objectives)
        objectives[trial.trial_id] = value
        now = Standing(trial.architecture_key, dict(sorted(objectives.items())))
        if before is not None:
            del self._order[bisect_left(self._order, _place(before))]
        insort(self._order, _place(now))
        self._by_key[now.key] = now
        return now

    def first(self, n: int | None = None) -> list[Standing]:
        """Return the best `n` architectures, or all, best first."""
        return [self._by_key[key] for *_, key in self._order[:n]]

    def of(self, key: str) -> Standing:
        """Return the standing of one architecture; KeyError if none of its trials counts."""
        return self._by_key[key]

    @property
    def n_raced(self) -> int:
        """Return how many architectures the race of the finalists trained again."""
        return bisect_left(self._order, (True, -math.inf, 0, ""))

    @property
    def best(self) -> Standing | None:
        """Return the best architecture, or None while none has a valid objective."""
        return next(iter(self.first(1)), None)


def _place(standing: Standing) -> tuple[bool, float, int, str]:
    return not standing.raced, -standing.mean, min(standing.objectives), standing.key
