"""Proposals by samplers of Optuna, each asked afresh on a study in memory."""

import warnings
from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from nas_evidence.proposing.past import Trial
from nas_evidence.spec.coordinates import Candidate, Coordinates, Space
from nas_evidence.spec.study import StudySpec

optuna.logging.set_verbosity(optuna.logging.ERROR)
#: Draws from the density of good trials, the best of which is proposed.
N_EI_CANDIDATES = 24


def directions_of(study: StudySpec) -> list[StudyDirection]:
    """Return the direction of the objective, then those of the costs."""
    return [StudyDirection.MAXIMIZE] + [StudyDirection.MINIMIZE] * len(study.minimise)


def tpe(study: StudySpec, space: Space, past: Sequence[Trial], seed: int) -> Candidate:
    """Return a draw of the tree-structured Parzen estimator."""
    known = optuna.create_study(directions=directions_of(study))
    known.add_trials([_frozen(space, trial) for trial in past])
    with warnings.catch_warnings():
        # group is marked experimental; the constraint file pins optuna.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        known.sampler = TPESampler(
            n_startup_trials=1,
            n_ei_candidates=N_EI_CANDIDATES,
            multivariate=True,
            group=True,
            constant_liar=True,
            seed=seed,
        )
    return drawn(known.ask(), space)


def drawn(trial: optuna.Trial, space: Space) -> Candidate:
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


def distribution(space: Space, name: str) -> BaseDistribution:
    """Return a coordinate in Optuna's form."""
    options = space.options[name]
    return FloatDistribution(0.0, 1.0) if options is None else CategoricalDistribution(options)


def _frozen(space: Space, trial: Trial) -> FrozenTrial:
    params = space.coordinates(trial.architecture)
    return create_trial(
        state=TrialState[trial.state],
        values=trial.values,
        params=params,
        distributions={name: distribution(space, name) for name in params},
        constraints=trial.constraints,
    )
