"""Proposals by samplers of Optuna, each asked afresh on a study in memory.

`tpe` is the tree-structured Parzen estimator (Bergstra et al. 2011) as decision 7 has it, and
`named` any sampler of Optuna by name. Ordered parameters are numbers from 0 to 1 there, which are
quantiles of their domains; a name such as `width` is one parameter for all families.

Some samplers keep what they know in attributes of the trials that they proposed: generations, the
state of CMA-ES, the place in a sequence. For these the study is led again from its first trial on,
with what each proposal could see: a resumed study and any number of workers come to the same.
"""

import difflib
import inspect
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

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

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.proposing.past import Proposal
from nas_evidence.proposing.startup import domains_of
from nas_evidence.spec.coordinates import Candidate, Coordinates, Space
from nas_evidence.spec.study import OF_OPTUNA, StudySpec, derive_seed

optuna.logging.set_verbosity(optuna.logging.ERROR)
#: Draws from the density of good trials, the best of which is proposed.
N_EI_CANDIDATES = 24
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
    sampler = _made(study, seed)
    known = optuna.create_study(directions=directions_of(study), sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a sampler leaves out, such as constraints
        if isinstance(sampler, _REMEMBERING):
            _lead(known, study, space, past)
        else:
            known.add_trials([_frozen(space, trial) for trial in past])
        return _drawn(known.ask(), space)


def check_sampler(study: StudySpec) -> None:
    """Check the sampler of Optuna that a study names.

    Raises:
        ValueError: Optuna has none of that name, its package is missing, it cannot serve the
            objectives, or an argument is wrong.
    """
    name, offered = study.sampler.of_optuna, _offered()
    if name not in offered:
        near = difflib.get_close_matches(name, offered, n=1)
        hint = f"; did you mean '{OF_OPTUNA}{near[0]}'?" if near else ""
        hint = f"; give {_INSTEAD[name]}" if name in _INSTEAD else hint
        names = ", ".join(OF_OPTUNA + one for one in offered)
        raise UserError(
            f"`name` in [sampler] must be one of {names}, but got '{OF_OPTUNA}{name}'{hint}"
        ).with_code("unknown-sampler-of-optuna")
    if (package := _NEEDS.get(name)) and find_spec(package) is None:
        raise UserError(
            f'name = "{OF_OPTUNA}{name}" in [sampler] needs the package {package}: install it '
            f"with `pip install {package}`"
        ).with_code("sampler-needs-package")
    if study.minimise and name == "CmaEsSampler":
        raise UserError(
            f'`minimise` must be left out with name = "{OF_OPTUNA}{name}" in [sampler], which '
            f"has one objective, but got {list(study.minimise)}; "
            f'or give name = "{OF_OPTUNA}NSGAIISampler"'
        ).with_code("sampler-of-one-objective")
    for key, value in study.sampler.arguments.items():
        _check_argument(name, key, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", FutureWarning)  # deprecated, mostly without effect
            offered[name](**study.sampler.arguments)
    except (ValueError, TypeError, FutureWarning) as error:
        raise UserError(
            f"{OF_OPTUNA}{name} refuses {dict(study.sampler.arguments)} in [sampler.arguments]; "
            f"correct or remove it: {error}"
        ).with_code("sampler-refuses-arguments") from None


def sampler_notices(study: StudySpec) -> list[str]:
    """Return what the sampler of Optuna that a study names leaves to chance, if any."""
    name, space = study.sampler.of_optuna, Space(domains_of(study))
    if name in ("", "RandomSampler", "TPESampler"):
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
            f"{place} must be left out, but got {value!r}: it follows from `seed` at the head"
        ).with_code("sampler-seed")
    plain = {
        one: [_TYPES[part] for part in annotation.split(" | ") if part in _TYPES]
        for one, annotation in known.items()
        if one != "seed"
    }
    if key not in known:
        given = [one for one in plain if plain[one]]
        near = difflib.get_close_matches(key, given, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(given) or 'none'}"
        raise UserError(f"{place} is no argument of {name}; {hint}").with_code(
            "unknown-sampler-argument"
        )
    if not plain[key]:
        raise UserError(
            f"{place} must be left out, but got {value!r}: {name} takes an object of Python there"
        ).with_code("sampler-argument-object")
    words = " or ".join(word for word, _ in plain[key])
    allowed = {kind for _, kinds in plain[key] for kind in kinds}
    if type(value) not in allowed:
        raise UserError(f"{place} must be {words}, but got {value!r}").with_code(
            "sampler-argument-type"
        )


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
        found["family"] = trial.suggest_categorical("family", space.families)
    for name in space.names(str(found["family"])):
        options = space.options[name]
        if options is None:
            found[name] = trial.suggest_float(name, 0.0, 1.0)
        else:
            found[name] = trial.suggest_categorical(name, options)
    return space.values(found)


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
