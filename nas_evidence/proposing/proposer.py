"""The proposer of architectures: a sampler used by one process, seeded by counter.

`order.py` decides what comes first and what is redrawn. A draw is a pure function of the study, a
seed and the results told so far: each uses a fresh sampler of Optuna on a fresh study in memory
that holds up to `MAX_LEARNT` finished trials and the running ones. Nothing is stored here: the
driver writes proposals and results to the log, and restores a proposer from it
(docs/decisions/0015-the-log-is-the-record.md).

The posterior over architectures (`posterior_sampler.py`), or the tree-structured Parzen estimator
(TPE, Bergstra et al. 2011), sees ordered parameters as quantiles of their domains. A name such as
`width` is one parameter shared by all families, so that they learn from each other;
docs/decisions/0007-shared-names-in-tpe.md compares the alternatives.

Only finite values of complete trials are told. A pruned trial has no value and an infeasible one
has its constraints: both rank behind every complete, feasible trial. Failures are never seen.

Proposal `n` holds the trials `n * replicates + r`.
"""

import bisect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from nas_evidence.maths.pareto import is_matched
from nas_evidence.proposing.order import Search
from nas_evidence.proposing.posterior_sampler import PosteriorSampler
from nas_evidence.proposing.startup import domains_of, filled, random_point
from nas_evidence.proposing.warm_start import Found
from nas_evidence.spec.coordinates import (
    Parameters,
    is_ordered,
    parameter_name,
    quantile,
    random_parameters,
)
from nas_evidence.spec.domains import Choice, Domain, FloatRange, ParameterValue
from nas_evidence.spec.study import ArchitectureSpec, StudySpec, derive_seed

optuna.logging.set_verbosity(optuna.logging.ERROR)
#: Finished trials that a sampler learns from, which bounds the cost of a proposal; those among
#: them that are kept whatever their number. TPE models the best 25 of 250 or more as good.
MAX_LEARNT, MAX_BEST = 256, 25
#: Draws from the density of good trials, the best of which is proposed.
N_EI_CANDIDATES = 24
#: Smaller costs are raised to this value: a logarithm needs a positive number.
_SMALLEST_COST = 1e-12

_QUANTILES = FloatDistribution(0.0, 1.0)

Point = dict[str, tuple[ParameterValue, optuna.distributions.BaseDistribution]]


@dataclass(frozen=True)
class ProposalResult:
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
    """Proposes architectures, given what was proposed and told so far.

    Args:
        study: what is searched.
        warm: architectures with their values, for the sampler to learn from.

    Raises:
        ValueError: if a point of `study.first` is not in the space.
    """

    def __init__(self, study: StudySpec, warm: Sequence[Found] = ()) -> None:
        self._proposals: list[ArchitectureSpec] = []  # by number
        self._told: set[int] = set()
        self._search = Search(study, [architecture for architecture, _ in warm])
        self._learner = Learner(study, warm)

    def ask(self) -> ArchitectureSpec:
        """Propose the next architecture; its number is the number of earlier proposals."""
        architecture = self._search.next(len(self._proposals), self._learner.draw)
        self.adopt(architecture)
        return architecture

    def adopt(self, architecture: ArchitectureSpec) -> None:
        """Take up the next proposal, given: one that an earlier process made."""
        self._learner.show(len(self._proposals), architecture, None)
        self._proposals.append(architecture)
        self._search.add(architecture)

    def tell(self, number: int, result: ProposalResult) -> None:
        """Report the result of a proposal; a second report is ignored."""
        if number not in self._told:
            self._told.add(number)
            self._learner.show(number, self._proposals[number], result)

    def told(self) -> set[int]:
        """Return the numbers of the proposals that have been told."""
        return set(self._told)

    def proposals(self) -> list[ArchitectureSpec]:
        """Return the architectures proposed so far, by number."""
        return list(self._proposals)


class Learner:
    """The trials that the sampler learns from, and draws given these trials."""

    def __init__(self, study: StudySpec, warm: Sequence[Found] = ()) -> None:
        self._study, self._space = study, _Space(study)
        self._past = _Past(study, self._sampler)
        for number, (architecture, values) in enumerate(warm, start=-len(warm) - 1):  # to -2
            self.show(number, architecture, ProposalResult(values))

    def draw(self, seed: int) -> ArchitectureSpec:
        """Return an architecture, a pure function of the seed and the trials shown."""
        if self._study.sampler.name == "random":
            return random_point(self._study, seed)
        trial = self._past.ask(derive_seed(seed, "family"))
        family = self._space.suggest_family(trial)
        values = self._space.suggest(trial, family)
        self._past.forget(trial)
        return filled(family, values)

    def _sampler(self, seed: int) -> BaseSampler:
        if self._study.sampler.name == "posterior":
            return PosteriorSampler(self._space, seed=seed)
        return _tpe(seed)

    def show(
        self, number: int, architecture: ArchitectureSpec, result: ProposalResult | None
    ) -> None:
        """Add proposal `number`, running (no result) or with its result."""
        if point := self._space.point(architecture):
            self._past.put(number, point, result)


class _Space:
    """The searched parameters as the sampler sees them."""

    def __init__(self, study: StudySpec) -> None:
        self._domains = domains_of(study)
        self.families = list(self._domains)

    def point(self, architecture: ArchitectureSpec) -> Point:
        """Return an architecture's parameters; empty if its family is not searched."""
        family = architecture.family
        point = family_point(family, self.families)
        for key, domain in self._domains.get(family, {}).items():
            value = architecture.values[key]
            if is_ordered(domain):
                point[self._name(family, key)] = (quantile(domain, value), _QUANTILES)
            else:
                point[self._name(family, key)] = (value, distribution_of(domain))
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

    def space(self) -> dict[str, optuna.distributions.BaseDistribution]:
        """Return every parameter of every family."""
        found = family_point(self.families[0], self.families)
        space = {name: distribution for name, (_, distribution) in found.items()}
        for family, domains in self._domains.items():
            for key, domain in domains.items():
                own = _QUANTILES if is_ordered(domain) else distribution_of(domain)
                space[self._name(family, key)] = own
        return space

    def random(self, rng: np.random.Generator) -> Parameters:
        """Return a random architecture."""
        return random_parameters(self._domains, rng)

    def varied(self, parameters: Parameters, rng: np.random.Generator) -> Parameters:
        """Return an architecture that differs in one parameter of its family at most."""
        family = str(parameters.get("family", self.families[0]))
        key = str(rng.choice(list(self._domains[family])))
        domain, name = self._domains[family][key], self._name(family, key)
        value = domain.at(float(rng.random()))
        return {**parameters, name: quantile(domain, value) if is_ordered(domain) else value}

    def _name(self, family: str, key: str) -> str:
        return parameter_name(family, key, self._domains[family][key])


class _Past:
    """The trials that one sampler learns from: up to `MAX_LEARNT` finished ones, and running ones.

    Of more finished trials it sees the best, which are all that TPE models as good, and of the
    others as many as fit, evenly spaced by number (docs/decisions/0007-shared-names-in-tpe.md).
    The choice depends on numbers and values alone, so that what a sampler sees does not depend on
    the speed of workers once all are told.
    """

    def __init__(self, study: StudySpec, sampler: Callable[[int], BaseSampler]) -> None:
        self._study, self._sampler = study, sampler
        self._finished: list[FrozenTrial] = []  # by number
        self._best: list[FrozenTrial] = []  # best first, or the Pareto front
        self._running: dict[int, FrozenTrial] = {}
        self._drawn_on: optuna.Study | None = None  # holds them all

    def put(self, number: int, point: Point, result: ProposalResult | None) -> None:
        """Add a running trial (no result) or its result; a failed one is removed."""
        self._drawn_on = None
        self._running.pop(number, None)
        trial = trial_of(point, **facts_of(result))
        trial.number = number
        if trial.state == TrialState.RUNNING:
            self._running[number] = trial
        elif trial.state != TrialState.FAIL:
            trial.values = _learnt(trial.values)
            bisect.insort(self._finished, trial, key=lambda earlier: earlier.number)
            allowed = all(excess <= 0 for excess in trial.constraints.values())
            if trial.state == TrialState.COMPLETE and allowed:
                self._rank(trial)

    def ask(self, seed: int) -> Trial:
        """Return a trial of a study over these trials, to draw parameters from once."""
        if self._drawn_on is None:
            self._drawn_on = optuna.create_study(directions=directions_of(self._study))
            past = [*self._seen(), *self._running.values()]
            self._drawn_on.add_trials(sorted(past, key=lambda trial: trial.number))
        self._drawn_on.sampler = self._sampler(seed % 2**32)
        return self._drawn_on.ask()

    def forget(self, trial: Trial) -> None:
        """Hide a trial that was drawn from the next draw: the sampler leaves failures out."""
        assert self._drawn_on is not None
        self._drawn_on.tell(trial, state=TrialState.FAIL)

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


def _tpe(seed: int) -> TPESampler:
    with warnings.catch_warnings():
        # group is marked experimental; the constraint file pins optuna.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(
            n_startup_trials=1,
            n_ei_candidates=N_EI_CANDIDATES,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed,
        )


def trial_of(point: Point, **facts: Any) -> FrozenTrial:
    """Return a trial of Optuna with these parameters."""
    return create_trial(
        params={name: value for name, (value, _) in point.items()},
        distributions={name: distribution for name, (_, distribution) in point.items()},
        **facts,
    )


def facts_of(result: ProposalResult | None) -> dict[str, Any]:
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


def directions_of(study: StudySpec) -> list[StudyDirection]:
    """Return the direction of the objective, then those of the costs."""
    return [StudyDirection.MAXIMIZE] + [StudyDirection.MINIMIZE] * len(study.minimise)


def distribution_of(domain: Domain) -> optuna.distributions.BaseDistribution:
    """Return a domain in Optuna's form."""
    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.options)
    if isinstance(domain, FloatRange):
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    # Optuna warns if the upper end is not a member.
    last = domain.low + domain.step * int(domain.size - 1)
    return IntDistribution(domain.low, last, log=domain.log, step=domain.step)


def family_point(family: str, families: list[str]) -> Point:
    """Return the parameter `family`, if there is a choice and this family is searched."""
    if len(families) == 1 or family not in families:
        return {}
    return {"family": (family, CategoricalDistribution(families))}
