"""What all scores of a study together recommend.

The score of an architecture is a noisy look at what it is worth; its neighbours were looked at,
too. The posterior of `maths/architecture_posterior.py` weighs both.
docs/results/how-well-it-ranks.md has what that is worth.
"""

import math
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pandas as pd

from nas_evidence.maths.architecture_posterior import (
    OF_NOISY_SEEDS,
    ArchitecturePosterior,
    Prior,
)
from nas_evidence.proposing.further import FEWEST, gain_of_further
from nas_evidence.proposing.startup import misfit
from nas_evidence.reporting.study_tables import RankedArchitecture, RankedStudy
from nas_evidence.spec.coordinates import Space
from nas_evidence.spec.record import is_searched
from nas_evidence.storage.best import ranked_value

#: Minimum number of architectures for which another one than the first of the ranking is
#: recommended: with 24 trials of published tables that is no better beyond doubt.
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
    gain    expected of further trials, in the unit of the score; None if `expected_gain` is
    """

    architecture: RankedArchitecture | None
    behind: float
    gain: float | None


def recommendation(study: RankedStudy) -> Recommendation | None:
    """Return what is recommended; None if nothing can be said, as with several objectives.

    Of estimated architectures the winner is what all scores recommend.

    Architectures that the race trained again are compared among each other alone, as the ranking
    does: the others have one seed each.
    """
    known = _comparable(study)
    if study.spec.minimise:
        return None
    gain = expected_gain(study)
    if len(known) < FEWEST_TO_DIFFER or study.is_estimated:
        return None if gain is None else Recommendation(None, 0.0, gain)
    found = posterior_over(study, known)
    raced = any(one.raced for one in known)
    mean = np.where([one.raced or not raced for one in known], found.mean(), -np.inf)
    best, winner = known[int(mean.argmax())], study.ranking[0]
    assert best.objective is not None
    assert winner.objective is not None
    return Recommendation(best, winner.objective - best.objective, gain)


def expected_gain(study: RankedStudy) -> float | None:
    """Return what further trials would gain, in the unit of the score.

    None before the end of the search, with few scores, and where the warm start cannot be read.
    """
    spec, rows = study.spec, study.tables.rows
    searched = [row for row in rows if is_searched(row.trial_id)]
    if len(searched) < spec.n_trials or len(study.ranking) < FEWEST:
        return None
    if spec.sampler.own:  # a report runs no code of others
        return None
    # Not above: these import quasi-random numbers, which most reports need not.
    from nas_evidence.driver.outcomes import result_of
    from nas_evidence.proposing.proposer import Proposer
    from nas_evidence.proposing.warm_start import read_warm_start

    proposals = [
        list(trials)
        for _, trials in groupby(searched, lambda row: row.trial_id // spec.replicates)
    ]
    known = [
        (trials[0].architecture, result_of(trials, spec))
        for trials in proposals
        if misfit(spec, trials[0].architecture) is None
    ]
    try:
        proposer = Proposer(spec, read_warm_start(study.tables.folder))
    except ValueError:  # damaged, as `verify` says
        return None
    gain = gain_of_further(spec, proposer, known, prior=_prior_of(study))
    stored = pd.Series({row.trial_id: ranked_value(row.values, spec) for row in rows}, dtype=float)
    share = study.complete["ranked"] / stored  # what is shown, as shares of what is stored
    share = share[(share > 0) & (share < math.inf)]
    return None if gain is None or share.empty else gain * float(share.median())


def estimates(study: RankedStudy) -> list[Estimate]:
    """Return what is known of each architecture by all scores, the best mean first."""
    known = _comparable(study)
    if not known:
        return []
    found = posterior_over(study, known)
    low, high = np.quantile(found.draws(N_DRAWS, seed=study.spec.seed), [0.05, 0.95], axis=0)
    mean, _ = found.warp.moments(found.mean(), found.deviation())
    rows = [
        Estimate(one, *map(float, own)) for one, *own in zip(known, mean, low, high, strict=True)
    ]
    return sorted(rows, key=lambda one: -one.mean)


def _comparable(study: RankedStudy) -> list[RankedArchitecture]:
    ranked = (one for one in study.ranking if one.rank is not None)
    space = Space(study.spec.family)
    return [one for one in ranked if one in space]


def posterior_over(study: RankedStudy, known: list[RankedArchitecture]) -> ArchitecturePosterior:
    """Return what is known of the true scores of some architectures, in the order given.

    Where the estimate ranks, it is the posterior that ranks. All must be in the study's space.
    """
    space = Space(study.spec.family)
    return ArchitecturePosterior(
        space.points(known),
        space.ordered,
        [study.values(one) for one in known],
        prior=_prior_of(study),
    )


def _prior_of(study: RankedStudy) -> Prior:
    """Return the prior of the posterior that ranks; where means of scores rank, the usual one."""
    return OF_NOISY_SEEDS if study.is_estimated else Prior()
