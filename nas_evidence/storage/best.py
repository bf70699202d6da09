"""Which architecture of a study is best, for status, race, report, export and kept weights alike.

Architectures are ranked, not trials: a single trial may come first because of seed noise. With R_a
the complete trials of architecture a whose value v_i (larger is better) is valid,

    mean_a = 1/|R_a| sum_{i in R_a} v_i      trial_a = argmax_{i in R_a} v_i

trial_a represents it. Of few rows, seeds differ much: a study with `rank_by = "estimate"` has the
mean of `conditional_evidence` and `elpd` as v_i, and the order of the *estimate*, the mean of the
true value of a given the values of all, by the posterior of `maths/architecture_posterior.py`
(docs/decisions/0027). In all others v_i is the objective, and the order that of mean_a.

Those that the race of the finalists trained again come before all others: one seed owes its rank
partly to luck, and is not compared with several. A trial whose network of all rows has failed
represents nothing; an architecture all of whose networks have failed comes last.
"""

import bisect
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import fmean

from nas_evidence.spec.record import TrialStatus, is_race, ranks, trial_of
from nas_evidence.spec.study import ESTIMATED, ArchitectureSpec, StudySpec
from nas_evidence.storage.trial_row import TrialRow

#: Minimum and maximum number of architectures that are estimated: of more, not all weights are
#: kept, and an estimate may put any of them first.
FEWEST, MOST = 8, 200
#: The name of the estimate, as a score and as a column.
ESTIMATE = "estimate"


def ranks_trials_by(study: StudySpec) -> str:
    """Return the name of the value of a trial that ranks, as every page and command says it."""
    both = f"the mean of {' and '.join(ESTIMATED)}"
    return both if study.rank_by == ESTIMATE else str(study.objective)


def ranked_value(values: Mapping[str, float], study: StudySpec) -> float | None:
    """Return the value of a trial by its scores, None if it has none."""
    known = [values.get(name) for name in study.ranking_scores]
    return None if None in known else fmean([v for v in known if v is not None])


@dataclass(frozen=True, slots=True)
class Standing:
    """The replicates of an architecture by trial id, and their values.

    The values are in the unit of the score that ranks, for evidence nats summed over the data.

    estimate  mean of the true value given the values of all architectures, None if there is none
    error     its standard deviation
    spoilt    trials of the study whose network of all rows has failed: another stands for them
    """

    architecture: ArchitectureSpec
    values: Mapping[int, float]
    estimate: float | None = None
    error: float | None = None
    spoilt: AbstractSet[int] = frozenset()

    @property
    def key(self) -> str:
        """Return the key that the replicates share."""
        return self.architecture.key

    @property
    def mean(self) -> float:
        """Return the mean value."""
        return fmean(self.values.values())

    @property
    def ranked(self) -> float:
        """Return the value that ranks: the estimate, without one the mean."""
        return self.mean if self.estimate is None else self.estimate

    @property
    def raced(self) -> bool:
        """Return whether the race of the finalists trained the architecture again."""
        return any(map(is_race, self.values))

    @property
    def trial_id(self) -> int:
        """Return the trial that represents the architecture; among ties the first."""
        return min(self.values, key=lambda i: (i in self.spoilt, -self.values[i], i))

    @property
    def is_spoilt(self) -> bool:
        """Return whether no trial can be delivered: each network of all rows has failed."""
        return self.values.keys() <= self.spoilt


class Standings:
    """The architectures of a study, best first; trials may be added in any order.

    Among equal ones the architecture tried first comes first.
    """

    def __init__(self, study: StudySpec, trials: Iterable[TrialRow] = ()) -> None:
        self._study = study
        self._by_key: dict[str, Standing] = {}
        self._ordered: list[Standing] | None = None
        self._spoilt = set[int]()
        for trial in trials:
            self.add(trial)

    def add(self, trial: TrialRow) -> Standing | None:
        """Add a trial; return its architecture's standing, None if the trial does not count."""
        if not ranks(trial.trial_id):
            failed = trial.status is not TrialStatus.COMPLETE
            (self._spoilt.add if failed else self._spoilt.discard)(trial_of(trial.trial_id))
            self._ordered = None
            return None
        value = ranked_value(trial.values, self._study)
        if value is None or trial.status is not TrialStatus.COMPLETE:
            return None
        key, values = trial.architecture.key, {trial.trial_id: value}
        if before := self._by_key.get(key):
            values = dict(sorted({**before.values, **values}.items()))
        self._by_key[key] = now = Standing(trial.architecture, values, spoilt=self._spoilt)
        if self._ordered is None or len(self._by_key) <= MOST + 1:
            self._ordered = None
        else:  # without estimates, and so before: the others stay where they are
            if before is not None:
                del self._ordered[bisect.bisect_left(self._ordered, _place(before), key=_place)]
            bisect.insort(self._ordered, now, key=_place)
        return now

    def first(self, n: int | None = None) -> list[Standing]:
        """Return the best `n` architectures, or all, best first."""
        if self._ordered is None:
            self._ordered = sorted(self._with_estimates(), key=_place)
        return self._ordered[:n]

    @property
    def unordered(self) -> list[Standing]:
        """Return all architectures without estimates, their trials by number."""
        return [*self._by_key.values()]

    def of(self, key: str) -> Standing:
        """Return the standing of one architecture; KeyError if none of its trials counts."""
        return self._by_key[key]

    @property
    def is_estimated(self) -> bool:
        """Return whether the order is that of estimates."""
        return any(one.estimate is not None for one in self.first(1))

    @property
    def ranks_by(self) -> str:
        """Return the name of what orders the architectures, as every page and command says it."""
        return ESTIMATE if self.is_estimated else ranks_trials_by(self._study)

    @property
    def n_raced(self) -> int:
        """Return how many architectures the race of the finalists trained again."""
        return len([*takewhile(lambda standing: standing.raced, self.first())])

    @property
    def best(self) -> Standing | None:
        """Return the best architecture, or None while none has a valid value."""
        return next(iter(self.first(1)), None)

    def _with_estimates(self) -> list[Standing]:
        """Return all standings, with estimates if there are enough and all are in the space."""
        found = sorted(self._by_key.values(), key=lambda one: min(one.values))
        tried = [one.architecture for one in found]
        if not (FEWEST <= len(found) <= MOST and self._study.rank_by == "estimate"):
            return found
        # Not above: each command imports this file, and few need numpy and scipy for it.
        from nas_evidence.spec.coordinates import Space

        space = Space(self._study.family)
        if not all(one in space for one in tried):
            return found
        from nas_evidence.maths.architecture_posterior import OF_NOISY_SEEDS, ArchitecturePosterior

        posterior = ArchitecturePosterior(
            space.points(tried),
            space.ordered,
            [list(one.values.values()) for one in found],
            prior=OF_NOISY_SEEDS,
        )
        estimates, errors = posterior.warp.moments(posterior.mean(), posterior.deviation())
        return [
            replace(one, estimate=float(estimate), error=float(error))
            for one, estimate, error in zip(found, estimates, errors, strict=True)
        ]


def _place(standing: Standing) -> tuple[bool, bool, float, int, str]:
    fails = standing.is_spoilt  # nothing of it can be delivered
    return fails, not standing.raced, -standing.ranked, min(standing.values), standing.key
