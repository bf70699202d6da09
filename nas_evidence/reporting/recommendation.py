"""What all scores of a study together recommend.

The score of an architecture is a noisy look at what it is worth; its neighbours were looked at,
too. The posterior of `maths/architecture_posterior.py` weighs both.
docs/decisions/0018-a-posterior-over-the-architectures.md has what that is worth.
"""

from dataclasses import dataclass

import numpy as np

from nas_evidence.maths.architecture_posterior import ArchitecturePosterior
from nas_evidence.proposing.coordinates import axes_of, parameters_of
from nas_evidence.reporting.study_tables import RankedArchitecture, Study

#: Fewest architectures for which another one than the first of the ranking is recommended: with 24
#: trials of published tables that is no better beyond doubt.
FEWEST_TO_DIFFER = 50
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
    gain    expected of further trials, in the unit of the score; None without a forecast
    """

    architecture: RankedArchitecture | None
    behind: float
    gain: float | None


def recommendation(study: Study) -> Recommendation | None:
    """Return what is recommended; None if nothing can be said, as with several objectives.

    Architectures that the race trained again are compared among each other alone, as the ranking
    does: the others have one seed each.
    """
    known = _comparable(study)
    if study.spec.minimise:
        return None
    if len(known) < FEWEST_TO_DIFFER:
        return None if study.gain is None else Recommendation(None, 0.0, study.gain)
    found = _posterior(study, known)
    raced = any(one.raced for one in known)
    mean = np.where([one.raced or not raced for one in known], found.mean(), -np.inf)
    best, winner = known[int(mean.argmax())], study.ranking[0]
    assert best.objective is not None
    assert winner.objective is not None
    return Recommendation(best, winner.objective - best.objective, study.gain)


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
