"""What all scores of a study together recommend, and what further trials would gain.

The score of an architecture is a noisy look at what it is worth; its neighbours were looked at,
too. The posterior of `maths/architecture_posterior.py` weighs both.
docs/decisions/0018-a-posterior-over-the-architectures.md has what that is worth.
"""

from dataclasses import dataclass

import numpy as np

from nas_evidence.maths.architecture_posterior import ArchitecturePosterior, Floats
from nas_evidence.proposing.coordinates import (
    axes_of,
    parameters_of,
    random_parameters,
)
from nas_evidence.reporting.study_tables import RankedArchitecture, Study
from nas_evidence.spec.study import derive_seed

#: Fewest architectures for which anything is said; and for which another one than the first of the
#: ranking is recommended: with 24 trials of published tables that is no better beyond doubt.
FEWEST, FEWEST_TO_DIFFER = 8, 50
#: Trials whose gain is forecast, and random architectures among which they would be chosen.
FURTHER, N_CANDIDATES = 10, 512
#: Draws behind the intervals of `study.posterior`.
N_DRAWS = 1000


@dataclass(frozen=True)
class Estimate:
    """The true score of an architecture, in the unit of the score: mean and 90 % interval."""

    architecture: RankedArchitecture
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Recommendation:
    """The architecture of the best posterior mean among those trained, if enough are known.

    behind  how much lower its own score is than that of the winner; 0 if it is the winner
    gain    expected from `FURTHER` further trials, in the unit of the score
    """

    architecture: RankedArchitecture | None
    behind: float
    gain: float


def recommendation(study: Study) -> Recommendation | None:
    """Return what is recommended; None with too few architectures or several objectives.

    Architectures that the race trained again are compared among each other alone, as the ranking
    does: the others have one seed each.
    """
    known = _comparable(study)
    if study.spec.minimise or len(known) < FEWEST:
        return None
    found = _posterior(study, known)
    gain = found.expected_gain(_candidates(study, known), FURTHER)
    if len(known) < FEWEST_TO_DIFFER:
        return Recommendation(None, 0.0, gain)
    raced = any(one.raced for one in known)
    mean = np.where([one.raced or not raced for one in known], found.mean(), -np.inf)
    best, winner = known[int(mean.argmax())], study.ranking[0]
    assert best.objective is not None
    assert winner.objective is not None
    return Recommendation(best, winner.objective - best.objective, gain)


def estimates(study: Study) -> list[Estimate]:
    """Return what is known of each architecture by all scores, the best mean first."""
    known = _comparable(study)
    if not known:
        return []
    found = _posterior(study, known)
    low, high = np.quantile(found.draws(N_DRAWS, seed=study.spec.seed), [0.05, 0.95], axis=0)
    mean = found.warp.score(found.mean())
    rows = [
        Estimate(one, *map(float, own)) for one, *own in zip(known, mean, low, high, strict=True)
    ]
    return sorted(rows, key=lambda one: -one.mean)


def _comparable(study: Study) -> list[RankedArchitecture]:
    """Return the ranked architectures that are in the space of the study."""
    domains = study.spec.family
    return [
        one
        for one in study.ranking
        if one.rank is not None
        and one.family in domains
        and all(
            key in one.values and domain.contains(one.values[key])
            for key, domain in domains[one.family].items()
        )
    ]


def _posterior(study: Study, known: list[RankedArchitecture]) -> ArchitecturePosterior:
    domains = study.spec.family
    axes = axes_of(domains)
    points = axes.points([parameters_of(domains, one.family, one.values) for one in known])
    return ArchitecturePosterior(points, axes.ordered, [study.objectives(one) for one in known])


def _candidates(study: Study, known: list[RankedArchitecture]) -> Floats:
    """Return the coordinates of random architectures, those tried among them left out."""
    domains = study.spec.family
    rng = np.random.default_rng(derive_seed(study.spec.seed, "gain"))
    tried = {_key(parameters_of(domains, one.family, one.values)) for one in known}
    drawn = [random_parameters(domains, rng) for _ in range(N_CANDIDATES)]
    new = {_key(one): one for one in drawn if _key(one) not in tried}
    return axes_of(domains).points(list(new.values()))


def _key(parameters: dict[str, object]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(parameters.items()))
