"""The proposer of architectures: a sampler used by one process, seeded by counter.

`order.py` decides what comes first and what is redrawn. A draw is a pure function of the study, a
seed and the results told so far: each uses a fresh sampler on an in-memory storage that holds up
to `MAX_LEARNT` finished trials and the running ones. The database only records proposals and
results; nothing is sampled on it, and a proposal is written atomically.

The tree-structured Parzen estimator (TPE, Bergstra et al. 2011) sees ordered parameters as
quantiles of their domains. A name such as `width` is one parameter shared by all families, so that
they learn from each other; docs/decisions/0007-shared-names-in-tpe.md compares the alternatives.

Only finite values of complete trials are told. A pruned trial has no value and an infeasible one
has its constraints: the estimator ranks both behind every complete, feasible trial. It never sees
failures.

Only this module imports optuna. Proposal `n` holds the trials `n * replicates + r`.
"""

import bisect
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from nas_evidence.domains import Choice, Domain, FloatRange, ParameterValue
from nas_evidence.maths.pareto import is_matched
from nas_evidence.proposing.order import Search
from nas_evidence.proposing.parzen import Fits, sampler_of
from nas_evidence.proposing.rows import Rows
from nas_evidence.proposing.startup import filled, is_ordered, quantile, random_point, searched
from nas_evidence.proposing.warm_start import Found, warm_trials
from nas_evidence.spec import ArchitectureSpec, StudySpec, derive_seed
from nas_evidence.storage.database import Database, RetryingStorage, connected, sqlite, study_in

optuna.logging.set_verbosity(optuna.logging.ERROR)
#: Version of what we store beside Optuna's own tables; raised when old readers would misread it.
SCHEMA_VERSION = 2
#: Finished trials that TPE learns from, which bounds the cost of a proposal; those among them that
#: are kept whatever their number. TPE models the best 25 of 250 trials or more as good.
MAX_LEARNT, MAX_BEST = 256, 25
#: Smaller costs are raised to this value: a logarithm needs a positive number.
_SMALLEST_COST = 1e-12

_QUANTILES = FloatDistribution(0.0, 1.0)

Point = dict[str, tuple[ParameterValue, optuna.distributions.BaseDistribution]]


@dataclass(frozen=True)
class Told:
    """The result of a proposal.

    values        objective, then the costs in the order of `study.minimise`; None for a failure
    constraints   name -> excess over the limit; at most 0 is feasible. The sampler sums them, so
                  relative excesses (value / limit - 1) work best.
    pruned        stopped at a rung; `values` are then not read
    """

    values: tuple[float, ...] | None
    constraints: Mapping[str, float] = field(default_factory=dict)
    pruned: bool = False


class Proposer:
    """Proposes architectures and records them in the study's database; its only writer.

    Args:
        database: an SQLite file, its URL, or a study in a database.

    Raises:
        ValueError: if a newer version wrote the database, it belongs to another study, a point of
            `study.first` is not in the space, or `study.warm_start` is not comparable.
    """

    def __init__(self, study: StudySpec, database: Path | str | Database) -> None:
        if not isinstance(database, Database):
            database = sqlite(database, study.name)
        self.spec = study
        self._proposals: list[ArchitectureSpec] = []  # by number
        self._trial_ids: dict[int, int] = {}  # ids in the database of proposals not yet told
        self._told: set[int] = set()
        self._results: dict[int, Told] = {}  # as the database had them at the start
        self._storage = _storage(database)
        self._study_id = study_in(self._storage, database, _directions(study), SCHEMA_VERSION)
        stored = self._storage.get_all_trials(self._study_id, deepcopy=False)
        warm = self._warm(stored)
        self._search = Search(study, [architecture for architecture, _ in warm])
        self._learner = Learner(study, warm)
        for frozen in stored:
            if "architecture" in frozen.user_attrs:
                self._take_up(frozen)

    def ask(self) -> ArchitectureSpec:
        """Propose the next architecture; it is now pending in the database.

        Its number is the number of earlier proposals.
        """
        number = len(self._proposals)
        architecture = self._search.next(number, self._learner.draw)
        self.adopt(architecture)
        return architecture

    def adopt(self, architecture: ArchitectureSpec) -> None:
        """Record the next proposal, given: one that an earlier process made."""
        number = len(self._proposals)
        self._trial_ids[number] = self._write("architecture", architecture, number=number)
        self._add(architecture)

    def tell(self, number: int, result: Told) -> None:
        """Report the result of a proposal; a second report is ignored."""
        if number in self._told:
            return
        assert result.values is None or len(result.values) == 1 + len(self.spec.minimise)
        # It may already be told, if the server wrote it but its answer was lost.
        self._storage.finish_trial(self._trial_ids[number], _trial({}, **_facts(result)))
        self._told.add(number)
        self._learner.show(number, self._proposals[number], result)

    def told(self) -> set[int]:
        """Return the numbers of the proposals that have been told."""
        return set(self._told)

    def results(self) -> dict[int, Told]:
        """Return the results that the database had when it was opened, by number."""
        return dict(self._results)

    def proposals(self) -> list[ArchitectureSpec]:
        """Return the architectures proposed so far, by number."""
        return list(self._proposals)

    def _take_up(self, frozen: FrozenTrial) -> None:
        """Restore a proposal that an earlier process wrote to the database."""
        written = ArchitectureSpec.model_validate(frozen.user_attrs["architecture"])
        number = frozen.user_attrs.get("number", len(self._proposals))
        if number >= len(self._proposals):  # else a duplicate, written again after a lost answer
            number = self._add(written)
        if not frozen.state.is_finished():  # its id is needed only until it is told
            found = self._storage.get_trial_id_from_study_id_trial_number
            self._trial_ids[number] = found(self._study_id, frozen.number)
        else:
            self._told.add(number)
            values = tuple(frozen.values) if frozen.state == TrialState.COMPLETE else None
            result = Told(values, frozen.constraints, frozen.state == TrialState.PRUNED)
            self._results[number] = result
            self._learner.show(number, written, result)

    def _add(self, architecture: ArchitectureSpec) -> int:
        number = len(self._proposals)
        self._proposals.append(architecture)
        self._search.add(architecture)
        self._learner.show(number, architecture, None)
        return number

    def _warm(self, stored: list[FrozenTrial]) -> list[Found]:
        """Return the warm start, stored at the first start: the old folder may be deleted."""
        written = [
            (ArchitectureSpec.model_validate(t.user_attrs["warm_start"]), tuple(t.values))
            for t in stored
            if "warm_start" in t.user_attrs
        ]
        attributes = self._storage.get_study_user_attrs(self._study_id)
        if self.spec.warm_start is None or "warm_start" in attributes:
            return written
        known = {architecture.key for architecture, _ in written}
        for architecture, values in warm_trials(self.spec):
            if architecture.key not in known:  # else written before this process was killed
                self._write("warm_start", architecture, values)
                written.append((architecture, values))
        self._storage.set_study_user_attr(self._study_id, "warm_start", len(written))
        return written

    def _write(
        self,
        role: str,
        architecture: ArchitectureSpec,
        values: tuple[float, ...] | None = None,
        **facts: int,
    ) -> int:
        """Write a trial, running if it has no values; return its id in the database."""
        trial = _trial(
            _readable(self.spec, architecture),
            state=TrialState.RUNNING if values is None else TrialState.COMPLETE,
            values=values,
            user_attrs={role: architecture.model_dump(mode="json"), **facts},
        )
        return self._storage.create_new_trial(self._study_id, trial)


class Learner:
    """The trials that the sampler learns from, and draws given these trials."""

    def __init__(self, study: StudySpec, warm: Sequence[Found] = ()) -> None:
        self._study, self._space = study, _Space(study)
        self._past = _Past(study)
        for number, (architecture, values) in enumerate(warm, start=-len(warm) - 1):  # to -2
            self.show(number, architecture, Told(values))

    def draw(self, seed: int) -> ArchitectureSpec:
        """Return an architecture, a pure function of the seed and the trials shown."""
        if self._study.sampler.name == "random":
            return random_point(self._study, seed)
        trial = self._past.ask(derive_seed(seed, "family"))
        family = self._space.suggest_family(trial)
        return filled(family, self._space.suggest(trial, family))

    def show(self, number: int, architecture: ArchitectureSpec, result: Told | None) -> None:
        """Add proposal `number`, running (no result) or with its result."""
        if point := self._space.point(architecture):
            self._past.put(number, point, result)


class _Space:
    """The searched parameters as the sampler sees them."""

    def __init__(self, study: StudySpec) -> None:
        self.families = searched(study)
        self._domains = {family: study.family[family] for family in self.families}

    def point(self, architecture: ArchitectureSpec) -> Point:
        """Return an architecture's parameters; empty if its family is not searched."""
        family = architecture.family
        point = _family_point(family, self.families)
        for key, domain in self._domains.get(family, {}).items():
            value = architecture.values[key]
            if is_ordered(domain):
                point[self._name(family, key)] = (quantile(domain, value), _QUANTILES)
            else:
                point[self._name(family, key)] = (value, _distribution(domain))
        return point

    def suggest_family(self, trial: Trial) -> str:
        """Draw a family."""
        if len(self.families) == 1:
            return self.families[0]
        return str(trial.suggest_categorical("family", self.families))

    def suggest(self, trial: Trial, family: str) -> dict[str, ParameterValue]:
        """Draw the parameters of a family."""
        values: dict[str, ParameterValue] = {}
        for key, domain in self._domains[family].items():
            name = self._name(family, key)
            if isinstance(domain, Choice) and not is_ordered(domain):
                values[key] = trial.suggest_categorical(name, domain.options)
            else:
                values[key] = domain.at(trial.suggest_float(name, 0.0, 1.0))
        return values

    def _name(self, family: str, key: str) -> str:
        return key if is_ordered(self._domains[family][key]) else f"{family}.{key}"


class _Past:
    """The trials that one sampler learns from: up to `MAX_LEARNT` finished ones, and running ones.

    Of more finished trials it sees the best, which are all that TPE models as good, and of the
    others as many as fit, evenly spaced by number (docs/decisions/0013-tpe-learns-from-256.md).
    The choice depends on numbers and values alone, so that what a sampler sees does not depend on
    the speed of workers once all are told.
    """

    def __init__(self, study: StudySpec) -> None:
        self._study = study
        self._finished: list[FrozenTrial] = []  # by number
        self._best: list[FrozenTrial] = []  # best first, or the Pareto front
        self._running: dict[int, FrozenTrial] = {}
        self._fits: Fits = {}

    def put(self, number: int, point: Point, result: Told | None) -> None:
        """Add a running trial (no result) or its result; a failed one is removed."""
        self._fits = {}
        self._running.pop(number, None)
        trial = _trial(point, **_facts(result))
        trial.number = number + 1  # 0 is the trial being drawn
        if trial.state == TrialState.RUNNING:
            self._running[number] = trial
        elif trial.state != TrialState.FAIL:
            trial.values = _learnt(trial.values)
            bisect.insort(self._finished, trial, key=lambda earlier: earlier.number)
            allowed = all(excess <= 0 for excess in trial.constraints.values())
            if trial.state == TrialState.COMPLETE and allowed:
                self._rank(trial)

    def ask(self, seed: int) -> Trial:
        """Return a trial of a fresh study over these trials, to draw parameters from."""
        return optuna.create_study(
            storage=_Window([*self._seen(), *self._running.values()]),
            sampler=sampler_of(seed % 2**32, self._fits),
            directions=_directions(self._study),
        ).ask()

    def _seen(self) -> list[FrozenTrial]:
        """Return the finished trials that the sampler sees, by number."""
        if len(self._finished) <= MAX_LEARNT:
            return self._finished
        best = {trial.number: trial for trial in self._best[-MAX_BEST:]}
        others = [trial for trial in self._finished if trial.number not in best]
        n = MAX_LEARNT - len(best)
        spaced = (others[(2 * i + 1) * len(others) // (2 * n)] for i in range(n))
        return sorted([*best.values(), *spaced], key=lambda trial: trial.number)

    def _rank(self, trial: FrozenTrial) -> None:
        """Keep the best by value, or the Pareto front; of equal ones those with lower numbers."""
        if not self._study.minimise:
            bisect.insort(self._best, trial, key=lambda one: (-one.values[0], one.number))
            del self._best[MAX_BEST:]
            return
        point = _upwards(trial)
        for one in self._best:
            other = _upwards(one)
            if is_matched(point, [other]) and (other != point or one.number < trial.number):
                return
        self._best = [one for one in self._best if not is_matched(_upwards(one), [point])]
        bisect.insort(self._best, trial, key=lambda one: one.number)


def _upwards(trial: FrozenTrial) -> tuple[float, ...]:
    """Return the values of a trial, each larger-is-better."""
    return (trial.values[0], *(-cost for cost in trial.values[1:]))


class _Window(optuna.storages.InMemoryStorage):
    """A storage for one proposal: past trials are read in place, not copied."""

    def __init__(self, past: list[FrozenTrial]) -> None:
        super().__init__()
        self._past = past

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the past trials, then the trial being drawn, whose number is not used."""
        new = super().get_all_trials(study_id, deepcopy=deepcopy, states=states)
        return [trial for trial in self._past if states is None or trial.state in states] + new


def _trial(point: Point, **facts: Any) -> FrozenTrial:
    return create_trial(
        params={name: value for name, (value, _) in point.items()},
        distributions={name: distribution for name, (_, distribution) in point.items()},
        **facts,
    )


def _facts(result: Told | None) -> dict[str, Any]:
    """Return state, values and constraints in Optuna's form; no result means running."""
    if result is None:
        return {"state": TrialState.RUNNING}
    constraints = dict(result.constraints)
    values = None if result.pruned or result.values is None else list(result.values)
    # Optuna accepts infinities as values; they would mislead the sampler.
    if not all(map(math.isfinite, [*(values or ()), *constraints.values()])):
        return {"state": TrialState.FAIL}
    if values is not None:
        return {"state": TrialState.COMPLETE, "values": values, "constraints": constraints}
    infeasible = any(excess > 0 for excess in constraints.values())
    state = TrialState.PRUNED if result.pruned or infeasible else TrialState.FAIL
    return {"state": state, "constraints": constraints}


def _learnt(values: list[float] | None) -> list[float] | None:
    """Return values with costs in log scale, lest the largest dominate the hypervolumes."""
    return values and [values[0], *(math.log(max(v, _SMALLEST_COST)) for v in values[1:])]


def _directions(study: StudySpec) -> list[StudyDirection]:
    return [StudyDirection.MAXIMIZE] + [StudyDirection.MINIMIZE] * len(study.minimise)


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.options)
    if isinstance(domain, FloatRange):
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    # Optuna warns if the upper end is not a member.
    last = domain.low + domain.step * int(domain.size - 1)
    return IntDistribution(domain.low, last, log=domain.log, step=domain.step)


def _family_point(family: str, families: list[str]) -> Point:
    if len(families) == 1 or family not in families:
        return {}
    return {"family": (family, CategoricalDistribution(families))}


def _readable(study: StudySpec, architecture: ArchitectureSpec) -> Point:
    """Return the searched parameters as named in the database: `<family>.<parameter>`."""
    family = architecture.family
    point = _family_point(family, searched(study))
    for key, domain in study.family[family].items():
        point[f"{family}.{key}"] = (architecture.values[key], _distribution(domain))
    return point


def _storage(database: Database) -> RetryingStorage:
    def connect() -> Rows:
        return Rows(database.url, engine_kwargs=database.engine_options)

    return connected(connect, database)
