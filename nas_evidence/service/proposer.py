"""Who proposes architectures: Optuna, asked and told by one process, seeded by counter.

The first trials are fixed points: one for each family that has a single member (the yardstick),
then quasi-random points stratified over the other families, so that no family is judged by an
accident of sampling. After them a fresh sampler, seeded from (study seed, number), is asked for
each proposal; no random state has to survive a crash. A proposal equal to an earlier one is asked
again, and in the end, when the space is used up, becomes its next replicate.

Sole importer of optuna. Proposal `n` of the study holds the trials `n * replicates + r`.
"""

import itertools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState
from scipy.stats import qmc

from nas_evidence.spec import (
    FAMILY_DEFAULTS,
    ArchitectureSpec,
    Choice,
    Domain,
    FloatRange,
    IntRange,
    ParameterValue,
    StudySpec,
    derive_seed,
)

optuna.logging.set_verbosity(optuna.logging.ERROR)
#: Known architectures in a row after which chance proposes instead of the sampler, whose mode may
#: be a single architecture, and after which one is taken as a replicate.
REPETITIONS_TO_CHANCE, MAX_REPETITIONS = 3, 20


@dataclass(frozen=True)
class Proposal:
    """An architecture and its number in the study, counted from 0."""

    number: int
    architecture: ArchitectureSpec


class Proposer:
    """The study's database, written by this process only."""

    def __init__(self, study: StudySpec, database: Path) -> None:
        self.spec = study
        self._start = startup_points(study)
        url = f"sqlite:///{database}"
        storage = optuna.storages.RDBStorage(
            url, engine_kwargs={"connect_args": {"timeout": 60}}, skip_compatibility_check=False
        )
        self._study = optuna.create_study(
            storage=storage, study_name=study.name, direction="maximize", load_if_exists=True
        )
        self._proposals: list[Proposal] = []
        self._numbers: list[int] = []  # of the proposals, in the database
        self._repetitions = 0  # since the last proposal
        for frozen in self._study.get_trials(deepcopy=False):
            self._read(frozen)

    def ask(self) -> Proposal:
        """Propose the next architecture; it is pending in the database from now on.

        An architecture that was proposed before is asked again, a few times.
        """
        while True:
            proposal = self._settle(self._next_trial())
            if proposal is not None:
                return proposal

    def _next_trial(self) -> Trial:
        trials = self._study.get_trials(deepcopy=False)
        waiting = [t for t in trials if t.state == TrialState.WAITING]
        number = len(trials) - len(waiting)
        self._study.sampler = self._sampler(number)
        if number < len(self._start) and not waiting:
            self._study.enqueue_trial(self._parameters(self._start[number]))
        trial = self._study.ask()
        assert trial.number == number
        return trial

    def _settle(self, trial: Trial) -> Proposal | None:
        """Write down what a trial of the database is: a proposal, or a repetition (None)."""
        fixed = trial.number < len(self._start)
        families = [self._start[trial.number].family] if fixed else self._searched()
        architecture = self._suggest(trial, families)
        known = any(p.architecture.key == architecture.key for p in self._proposals)
        if known and not fixed and self._repetitions < MAX_REPETITIONS:
            self._repetitions += 1
            trial.set_user_attr("repeats", architecture.key)
            self._study.tell(trial.number, state=TrialState.FAIL)
            return None
        trial.set_user_attr("architecture", architecture.model_dump(mode="json"))
        return self._add(trial.number, architecture)

    def _add(self, number: int, architecture: ArchitectureSpec) -> Proposal:
        self._repetitions = 0
        self._numbers.append(number)
        self._proposals.append(Proposal(len(self._proposals), architecture))
        return self._proposals[-1]

    def _read(self, frozen: FrozenTrial) -> None:
        """Take up a trial of the database as an earlier process left it.

        One cut off before its architecture was written has its parameters in the database, and
        its sampler's seed is its number: it becomes what it would have become.
        """
        if "architecture" in frozen.user_attrs:
            written = ArchitectureSpec.model_validate(frozen.user_attrs["architecture"])
            self._add(frozen.number, written)
        elif "repeats" in frozen.user_attrs:
            self._repetitions += 1
            self._study.tell(frozen.number, state=TrialState.FAIL, skip_if_finished=True)
        elif frozen.state != TrialState.WAITING:
            self._study.sampler = self._sampler(frozen.number)
            self._settle(Trial(self._study, frozen._trial_id))

    def proposals(self) -> list[Proposal]:
        """Return every proposal so far, in order."""
        return list(self._proposals)

    def tell(self, number: int, value: float | None) -> None:
        """Report the objective of a proposal; None, or a value not finite, is a failure."""
        # Optuna takes infinities as good or bad values; they would mislead the sampler.
        if value is None or not math.isfinite(value):
            self._study.tell(self._numbers[number], state=TrialState.FAIL, skip_if_finished=True)
        else:
            self._study.tell(self._numbers[number], value, skip_if_finished=True)

    def told(self) -> set[int]:
        """Return the numbers of the proposals that were told."""
        trials = self._study.get_trials(deepcopy=False)
        over = {t.number for t in trials if t.state.is_finished()}
        return {proposal for proposal, number in enumerate(self._numbers) if number in over}

    def _searched(self) -> list[str]:
        """Return the families left to the sampler: those with more than one member, or all."""
        return [f for f in self.spec.family if _members(self.spec.family[f]) > 1] or list(
            self.spec.family
        )

    def _suggest(self, trial: Trial, families: list[str]) -> ArchitectureSpec:
        searched = self._searched()
        family = families[0]
        if family in searched and len(searched) > 1:
            family = trial.suggest_categorical("family", searched)
        values = {
            key: _suggest(trial, f"{family}.{key}", domain)
            for key, domain in self.spec.family[family].items()
        }
        return _architecture(family, values)

    def _parameters(self, point: ArchitectureSpec) -> dict[str, ParameterValue]:
        searched = self.spec.family[point.family]
        return {"family": point.family} | {
            f"{point.family}.{key}": point.values[key] for key in searched
        }

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        seed = derive_seed(self.spec.seed, "sampler", number) % 2**32
        sampler = self.spec.sampler
        if sampler.name != "tpe" or self._repetitions >= REPETITIONS_TO_CHANCE:
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            # group and constant_liar are marked experimental; the constraint file pins optuna.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(
                n_startup_trials=1,
                n_ei_candidates=sampler.n_ei_candidates,
                multivariate=sampler.multivariate,
                group=sampler.group,
                constant_liar=sampler.constant_liar,
                seed=seed,
            )


def startup_points(study: StudySpec) -> list[ArchitectureSpec]:
    """Return the architectures tried first, in order; for a grid sampler, the whole grid.

    Families with a single member come first. Of the others, `startup_per_family` points of a
    scrambled Sobol sequence each, without repetition, take turns.
    """
    single = [f for f in study.family if _members(study.family[f]) == 1]
    others = [f for f in study.family if f not in single]
    first = [_architecture(f, _at(study.family[f], None)) for f in single]
    if study.sampler.name == "grid":
        return first + [a for f in others for a in _grid(f, study.family[f])]
    columns = [_quasi_random(study, family) for family in others]
    turns = itertools.zip_longest(*columns)
    return first + [point for turn in turns for point in turn if point is not None]


def _architecture(family: str, values: Mapping[str, ParameterValue]) -> ArchitectureSpec:
    """Return the architecture with the family's defaults for parameters not searched over."""
    return ArchitectureSpec(family=family, values={**FAMILY_DEFAULTS[family], **values})


def _quasi_random(study: StudySpec, family: str) -> list[ArchitectureSpec]:
    domains = study.family[family]
    seed = derive_seed(study.seed, "startup", family) % 2**32
    points: dict[str, ArchitectureSpec] = {}
    for row in qmc.Sobol(len(domains), seed=seed).random_base2(6):
        point = _architecture(family, _at(domains, list(row)))
        points.setdefault(point.key, point)
    return list(points.values())[: study.sampler.startup_per_family]


def _grid(family: str, domains: Mapping[str, Domain]) -> list[ArchitectureSpec]:
    options = [_options(domain) for domain in domains.values()]
    return [
        _architecture(family, dict(zip(domains, values, strict=True)))
        for values in itertools.product(*options)
    ]


def _options(domain: Domain) -> list[ParameterValue]:
    if isinstance(domain, Choice):
        return list(domain.options)
    if isinstance(domain, IntRange):
        return list(range(domain.low, domain.high + 1, domain.step))
    return [domain.low]  # a FloatRange is in a grid only if it is a point: checked by StudySpec


def _members(domains: Mapping[str, Domain]) -> float:
    return math.prod(domain.size for domain in domains.values())


def _at(domains: Mapping[str, Domain], row: list[float] | None) -> dict[str, ParameterValue]:
    units = row or [0.0] * len(domains)
    return {k: domain.at(u) for (k, domain), u in zip(domains.items(), units, strict=True)}


def _suggest(trial: Trial, name: str, domain: Domain) -> ParameterValue:
    if isinstance(domain, Choice):
        return trial.suggest_categorical(name, list(domain.options))
    if isinstance(domain, FloatRange):
        return trial.suggest_float(name, domain.low, domain.high, log=domain.log)
    return trial.suggest_int(name, domain.low, domain.high, log=domain.log, step=domain.step)
