"""Which trial of a study is best, for all who ask: status, report, export and kept weights.

Architectures are ranked, not trials: by the mean objective over their complete replicates that
have a valid value. A single trial may be first by luck of its seed. The trial that stands for an
architecture is its replicate with the best objective.

    mean_a = 1/|R_a| sum_{i in R_a} v_i      trial_a = argmax_{i in R_a} v_i

    R_a  complete trials of architecture a whose objective v_i (larger is better) is valid
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from nas_evidence.record import TrialStatus


class FinishedTrial(Protocol):
    """What the ranking must know of a trial; a `TrialRow` has it."""

    @property
    def trial_id(self) -> int:
        """Return its number in the study."""

    @property
    def architecture_key(self) -> str:
        """Return what its replicates have in common."""

    @property
    def status(self) -> TrialStatus:
        """Return how it ended."""

    @property
    def values(self) -> Mapping[str, float]:
        """Return the last value of each score where that is valid, larger is better."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an architecture stands: its replicates by trial id, and their objectives.

    The objectives are in nats summed over the data, or in the unit of the score that ranks.
    """

    key: str
    objectives: Mapping[int, float]

    @property
    def mean(self) -> float:
        """Return the mean objective, which ranks."""
        return fmean(self.objectives.values())

    @property
    def trial_id(self) -> int:
        """Return the trial that stands for the architecture; of equals the first."""
        return min(self.objectives, key=lambda trial_id: (-self.objectives[trial_id], trial_id))


class Standings:
    """The architectures of a study, best first; trials may be added in any order.

    Of equal means the architecture that was tried first comes first.
    """

    def __init__(self, objective: str, trials: Iterable[FinishedTrial] = ()) -> None:
        self._objective = objective
        self._by_key: dict[str, Standing] = {}
        self._order: list[tuple[float, int, str]] = []  # sorted
        for trial in trials:
            self.add(trial)

    def add(self, trial: FinishedTrial) -> Standing | None:
        """Rank a trial; return where its architecture stands, None if the trial does not count."""
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
        return [self._by_key[key] for _, _, key in self._order[:n]]

    def of(self, key: str) -> Standing:
        """Return where one architecture stands; KeyError if none of its trials counts."""
        return self._by_key[key]

    @property
    def best(self) -> Standing | None:
        """Return the best architecture, or None while none has a valid objective."""
        return next(iter(self.first(1)), None)


def _place(standing: Standing) -> tuple[float, int, str]:
    return -standing.mean, min(standing.objectives), standing.key
