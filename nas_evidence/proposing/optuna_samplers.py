"""Proposals by samplers of Optuna, each asked afresh on a study in memory.

`tpe` is the tree-structured Parzen estimator (Bergstra et al. 2011) as decision 7 has it, and
`named` any sampler of Optuna by name, or of the user by reference. Ordered parameters are numbers
from 0 to 1 there, which are quantiles of their domains; a name such as `width` is one parameter
for all families.

Some samplers keep what they know in attributes of the trials that they proposed: generations, the
state of CMA-ES, the place in a sequence. For these the study is led again from its first trial on,
with what each proposal could see: a resumed study and any number of workers come to the same. A
sampler of the user is a fresh copy for each proposal, its random numbers seeded anew; it is led so
unless its class is Optuna's and remembers nothing.
"""

import copy
import difflib
import inspect
import random
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import (
    BaseGASampler,
    BaseSampler,
    CmaEsSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.proposing.past import Proposal, ProposalResult
from nas_evidence.proposing.startup import searched_domains, startup_points
from nas_evidence.spec.coordinates import Candidate, Coordinates, Space
from nas_evidence.spec.domains import ParameterValue
from nas_evidence.spec.registry import imported
from nas_evidence.spec.study import OF_OPTUNA, StudySpec, derive_seed

optuna.logging.set_verbosity(optuna.logging.ERROR)
#: Draws from the density of good trials, the best of which is proposed.
N_EI_CANDIDATES = 24
#: How far from [0, 1] rounding may leave a quantile.
_ROUNDING = 1e-9
#: Samplers that keep what they know in the attributes of trials.
_REMEMBERING = (BaseGASampler, CmaEsSampler, QMCSampler)
#: Samplers of Optuna that a study file cannot name, and what does the same.
_INSTEAD = {
    "BruteForceSampler": 'name = "grid"',
    "GridSampler": 'name = "grid"',
    "PartialFixedSampler": "one value for a parameter, such as depth = 3, in [family.NAME]",
}
#: Packages that a sampler needs and that are not among our own.
_NEEDS = {"CmaEsSampler": "cmaes"}
#: What an argument may be, by the name in its signature.
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "bool": ("true or false", (bool,)),
    "int": ("an integer", (int,)),
    "float": ("a number", (int, float)),
    "str": ("a text", (str,)),
}


def directions_of(study: StudySpec) -> list[StudyDirection]:
    """Return the direction of the objective, then those of the costs."""
    return [StudyDirection.MAXIMIZE] + [StudyDirection.MINIMIZE] * len(study.minimise)


def tpe(study: StudySpec, space: Space, past: Sequence[Proposal], seed: int) -> Candidate:
    """Return a draw of the tree-structured Parzen estimator."""
    with warnings.catch_warnings():
        # group is marked experimental; the constraint file pins optuna.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = TPESampler(
            n_startup_trials=1,
            n_ei_candidates=N_EI_CANDIDATES,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed,
        )
    known = optuna.create_study(directions=directions_of(study), sampler=sampler)
    known.add_trials([_frozen(space, trial) for trial in past])
    return _drawn(known.ask(), space)


def named(study: StudySpec, space: Space, past: Sequence[Proposal], seed: int) -> Candidate:
    """Return a draw of the sampler that the study names.

    Args:
        study: what is searched, its sampler checked by `check_sampler`.
        space: of the architectures.
        past: all trials so far, failures too, by number.
        seed: of the draw.
    """
    if study.sampler.own:
        return _drawn_by_own(study, space, past, seed)
    sampler = _made(study, seed)
    known = optuna.create_study(directions=directions_of(study), sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a sampler leaves out, such as constraints
        _show(known, study, space, past)
        return _drawn(known.ask(), space)


def _show(known: optuna.Study, study: StudySpec, space: Space, past: Sequence[Proposal]) -> None:
    """Give a study all trials so far, or lead it from the first one on if its sampler needs it."""
    sampler = known.sampler
    if isinstance(sampler, _REMEMBERING) or not type(sampler).__module__.startswith("optuna."):
        _lead(known, study, space, past)
    else:
        known.add_trials([_frozen(space, trial) for trial in past])


def _drawn_by_own(
    study: StudySpec, space: Space, past: Sequence[Proposal], seed: int
) -> Candidate:
    """Return a draw of the user's sampler.

    Raises:
        ValueError: if it fails, or proposes what is outside the space.
    """
    name = study.sampler.own
    sampler = _own_made(study, seed)
    known = optuna.create_study(directions=directions_of(study), sampler=sampler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _show(known, study, space, past)
            return _drawn(known.ask(), space)
    except _OutsideError as error:
        raise UserError(
            "own-sampler-outside-space", f"the sampler {name} proposes {error}; correct it"
        ) from None
    except Exception as error:  # any code may stand there
        raise UserError(
            "own-sampler-failed",
            f"the sampler {name} has failed after {len(past)} trials: {type(error).__name__}: "
            f"{error}; correct it, and begin another study, with warm_start to "
            "learn from this one",
        ) from error


def _own_made(study: StudySpec, seed: int) -> BaseSampler:
    """Return a fresh copy of the user's sampler, with its random numbers seeded.

    Raises:
        ValueError: if it is no sampler, or cannot be made or copied.
    """
    name, arguments = study.sampler.own, dict(study.sampler.arguments)
    found = imported(name, "a sampler")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is experimental
            if isinstance(found, BaseSampler):
                made = copy.deepcopy(found)
            elif callable(found):
                seeds = {"seed": seed} if "seed" in _parameters(found) else {}
                made = found(**arguments, **seeds)
            else:
                made = found
    except Exception as error:  # any code may stand there
        raise UserError(
            "own-sampler-not-made",
            f"the sampler {name} cannot be made with the arguments {arguments}: "
            f"{type(error).__name__}: {error}; correct it or [sampler.arguments]",
        ) from error
    if not isinstance(made, BaseSampler):
        raise UserError(
            "own-sampler-of-another-type",
            f"the sampler {name} must be a sampler of Optuna: a class derived from "
            "optuna.samplers.BaseSampler, a function that returns an object of one, or the "
            f"object, but is {str(made)[:80]!r} of type {type(made).__name__}",
        )
    _seed(made, seed)
    return made


def _seed(sampler: BaseSampler, seed: int) -> None:
    """Seed the random numbers of a sampler and of the samplers in it."""
    seen: set[int] = set()
    left: list[object] = [sampler]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for name, value in getattr(one, "__dict__", {}).items():
            if isinstance(value, np.random.Generator):
                setattr(one, name, np.random.default_rng(seed))
            elif isinstance(value, np.random.RandomState | random.Random):
                value.seed(seed)
            elif isinstance(inner := getattr(value, "rng", None), np.random.RandomState):
                inner.seed(seed)  # Optuna's samplers keep theirs so
            elif isinstance(value, BaseSampler):
                left.append(value)


def check_sampler(study: StudySpec) -> None:
    """Check the sampler of Optuna that a study names.

    Raises:
        ValueError: Optuna has none of that name, its package is missing, it cannot serve the
            objectives, or an argument is wrong. One of the user proposes twice, on trials that
            are made up.
    """
    if study.sampler.own:
        space = Space(searched_domains(study))
        points = startup_points(study)[:2]
        costs = [0.0] * len(study.minimise)
        past = [
            Proposal.of(n, point, ProposalResult((float(n), *costs)))
            for n, point in enumerate(points)
            if point.family in space.families
        ]
        if space.options:
            for some in ([], past):
                named(study, space, some, 0)
        return
    name, offered = study.sampler.of_optuna, _offered()
    if name not in offered:
        near = difflib.get_close_matches(name, offered, n=1)
        hint = f"; did you mean '{OF_OPTUNA}{near[0]}'?" if near else ""
        hint = f"; give {_INSTEAD[name]}" if name in _INSTEAD else hint
        names = ", ".join(OF_OPTUNA + one for one in offered)
        raise UserError(
            "unknown-sampler-of-optuna",
            f"`name` in [sampler] must be one of {names}, but got '{OF_OPTUNA}{name}'{hint}",
        )
    if (package := _NEEDS.get(name)) and find_spec(package) is None:
        raise UserError(
            "sampler-needs-package",
            f'name = "{OF_OPTUNA}{name}" in [sampler] needs the package {package}: install it '
            f"with `pip install {package}`",
        )
    if study.minimise and name == "CmaEsSampler":
        raise UserError(
            "sampler-of-one-objective",
            f'`minimise` must be left out with name = "{OF_OPTUNA}{name}" in [sampler], which '
            f"has one objective, but got {list(study.minimise)}; "
            f'or give name = "{OF_OPTUNA}NSGAIISampler"',
        )
    for key, value in study.sampler.arguments.items():
        _check_argument(name, key, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", FutureWarning)  # deprecated, mostly without effect
            offered[name](**study.sampler.arguments)
    except (ValueError, TypeError, FutureWarning) as error:
        raise UserError(
            "sampler-refuses-arguments",
            f"{OF_OPTUNA}{name} refuses {dict(study.sampler.arguments)} in [sampler.arguments]; "
            f"correct or remove it: {error}",
        ) from None


def sampler_notices(study: StudySpec) -> list[str]:
    """Return what the sampler of Optuna that a study names leaves to chance, if any."""
    name, space = study.sampler.of_optuna, Space(searched_domains(study))
    if name in ("", "RandomSampler", "TPESampler"):  # what the user's leave to chance, they know
        return []
    everywhere = set.intersection(*(set(space.names(family)) for family in space.families))
    numbers = name == "CmaEsSampler"
    left = [
        one
        for one, options in space.options.items()
        if (one not in everywhere and one != "family") or (numbers and options is not None)
    ]
    what = "numbers that all families have" if numbers else "what all families have"
    text = f"{OF_OPTUNA}{name} draws {', '.join(left)} at random: it knows only {what}"
    return [text] if left else []


def _offered() -> dict[str, type[BaseSampler]]:
    """Return the samplers of Optuna that a study file can name."""
    kinds = {name: getattr(optuna.samplers, name) for name in optuna.samplers.__all__}
    return {
        name: kind
        for name, kind in sorted(kinds.items())
        if name not in _INSTEAD and inspect.isclass(kind) and "seed" in _parameters(kind)
    }


def _parameters(kind: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


def _check_argument(name: str, key: str, value: object) -> None:
    known = {one: str(p.annotation) for one, p in _parameters(_offered()[name]).items()}
    place = f"`{key}` in [sampler.arguments]"
    if key == "seed":
        raise UserError(
            "sampler-seed",
            f"{place} must be left out, but got {value!r}: it follows from `seed` at the head",
        )
    plain = {
        one: [_TYPES[part] for part in annotation.split(" | ") if part in _TYPES]
        for one, annotation in known.items()
        if one != "seed"
    }
    if key not in known:
        given = [one for one in plain if plain[one]]
        near = difflib.get_close_matches(key, given, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(given) or 'none'}"
        raise UserError("unknown-sampler-argument", f"{place} is no argument of {name}; {hint}")
    if not plain[key]:
        raise UserError(
            "sampler-argument-object",
            f"{place} must be left out, but got {value!r}: {name} takes an object of Python there",
        )
    words = " or ".join(word for word, _ in plain[key])
    allowed = {kind for _, kinds in plain[key] for kind in kinds}
    if type(value) not in allowed:
        raise UserError("sampler-argument-type", f"{place} must be {words}, but got {value!r}")


def _made(study: StudySpec, seed: int) -> BaseSampler:
    """Return a fresh sampler; a sequence has one seed, and what is drawn beside it another."""
    arguments, name = dict(study.sampler.arguments), study.sampler.of_optuna
    if name == "QMCSampler":
        arguments["independent_sampler"] = RandomSampler(seed=seed)
        seed = derive_seed(study.seed, "sampler") % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is experimental
        return _offered()[name](**arguments, seed=seed)


def _lead(known: optuna.Study, study: StudySpec, space: Space, past: Sequence[Proposal]) -> None:
    """Lead a study from its first trial on; each was asked when all earlier batches were told."""
    size = study.batch if study.scheduling == "batch" else 1
    untold: dict[int, tuple[optuna.Trial, Proposal]] = {}

    def tell(before: float) -> None:
        for number in [n for n in untold if n < before and untold[n][1].state != "RUNNING"]:
            asked, trial = untold.pop(number)
            for name, excess in trial.constraints.items():
                asked.set_constraint(name, excess)
            known.tell(asked, trial.values, TrialState[trial.state])

    for trial in past:
        tell(trial.number // size * size)
        known.enqueue_trial(space.coordinates(trial.architecture))
        asked = known.ask()
        _ = asked.relative_params  # the sampler proposes, which gives the trial its attributes
        _drawn(asked, space)
        untold[trial.number] = asked, trial
    tell(float("inf"))


def _drawn(trial: optuna.Trial, space: Space) -> Candidate:
    """Return the architecture that a sampler gives a trial."""
    found: Coordinates = {"family": space.families[0]}
    if "family" in space.options:
        given = trial.suggest_categorical("family", space.families)
        found["family"] = _option("family", given, space.families)
    for name in space.names(str(found["family"])):
        options = space.options[name]
        if options is None:
            found[name] = _quantile(name, trial.suggest_float(name, 0.0, 1.0))
        else:
            found[name] = _option(name, trial.suggest_categorical(name, options), options)
    return space.values(found)


class _OutsideError(Exception):
    """A sampler proposes what is outside the space; Optuna passes on what it returns."""


def _quantile(name: str, given: Any) -> float:
    """Return a quantile that a sampler proposes as a float; rounding may leave it outside."""
    value = given.item() if hasattr(given, "item") else given  # a number of NumPy
    if type(value) not in (int, float) or not -_ROUNDING <= value <= 1 + _ROUNDING:
        raise _OutsideError(
            f"{shortened(repr(given))} for {name!r}, which is a quantile from 0 to 1 of its domain"
        )
    return min(1.0, max(0.0, float(value)))


def _option(
    name: str, given: Any, options: Sequence[ParameterValue] | Sequence[str]
) -> ParameterValue:
    """Return the option that a sampler proposes."""
    value = given.item() if hasattr(given, "item") else given
    for option in options:
        if type(value) is type(option) and value == option:
            return option
    raise _OutsideError(f"{shortened(repr(given))} for {name!r}, which is none of {list(options)}")


def _distribution(space: Space, name: str) -> BaseDistribution:
    """Return a coordinate in Optuna's form."""
    options = space.options[name]
    return FloatDistribution(0.0, 1.0) if options is None else CategoricalDistribution(options)


def _frozen(space: Space, trial: Proposal) -> FrozenTrial:
    params = space.coordinates(trial.architecture)
    return create_trial(
        state=TrialState[trial.state],
        values=trial.values,
        params=params,
        distributions={name: _distribution(space, name) for name in params},
        constraints=trial.constraints,
    )
