"""How certain a ranking is, given the seed noise of its score.

    v_ij = mu_i + sigma e_ij     replicate j of architecture i, e_ij standard normal

All architectures are assumed to have the same spread sigma, so those with a single replicate
borrow it from the others. With the usual flat prior on (mu, log sigma), draws of the means are

    sigma^2 = S / chi^2_nu,   mu_i = m_i + sigma z_i / sqrt(r_i)

    m_i mean of r_i values [n]     S sum of squares within architectures     nu = sum_i (r_i - 1)

and probabilities are frequencies over these draws. (Box and Tiao 1973, section 2.4.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nas_evidence.maths.ranking import Floats

N_DRAWS = 4000
#: Probability of the rank intervals, and of the set of candidates for the best.
CONFIDENCE = 0.9


@dataclass(frozen=True)
class Certainty:
    """How certain a ranking is; positions refer to the order of the input.

    spread       standard deviation of one value over seeds
    degrees_of_freedom  of the spread: number of replicates minus number of architectures
    rank_low, rank_high  interval of each rank [n], 1 is best
    beats_second probability that the first has a larger mean than the second
    best         probability of each to have the largest mean [n]
    candidates   smallest set that contains the best with probability CONFIDENCE, likeliest first
    """

    spread: float
    degrees_of_freedom: int
    rank_low: tuple[int, ...]
    rank_high: tuple[int, ...]
    beats_second: float
    best: tuple[float, ...]
    candidates: tuple[int, ...]


def certainty(replicates: Sequence[ArrayLike], *, seed: int) -> Certainty | None:
    """Return how certain the order of the means is, larger is better.

    None with fewer than two architectures, or if none has two replicates to estimate the spread
    from.

    Args:
        replicates: the values of each architecture, one per seed, at least one.
        seed: for the draws.
    """
    values = [np.asarray(one, np.float64) for one in replicates]
    degrees_of_freedom = sum(len(one) - 1 for one in values)
    if len(values) < 2 or degrees_of_freedom == 0:
        return None
    means = np.array([one.mean() for one in values])
    within = float(sum(((one - one.mean()) ** 2).sum() for one in values))
    draws = _drawn_means(
        means, [len(one) for one in values], within, degrees_of_freedom, seed=seed
    )
    ranks = (-draws).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") + 1
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ranks, [tail, 1 - tail], axis=0, method="closest_observation")
    first, second = np.argsort(-means, kind="stable")[:2]
    best = np.bincount(draws.argmax(axis=1), minlength=len(means)) / len(draws)
    likeliest = np.argsort(-best, kind="stable")
    n_needed = int(np.searchsorted(best[likeliest].cumsum(), CONFIDENCE - 1e-12)) + 1
    return Certainty(
        spread=float(np.sqrt(within / degrees_of_freedom)),
        degrees_of_freedom=degrees_of_freedom,
        rank_low=tuple(int(rank) for rank in low),
        rank_high=tuple(int(rank) for rank in high),
        beats_second=float((draws[:, first] > draws[:, second]).mean()),
        best=tuple(float(share) for share in best),
        candidates=tuple(int(position) for position in likeliest[:n_needed]),
    )


def _drawn_means(
    means: Floats,
    n_replicates: Sequence[int],
    within: float,
    degrees_of_freedom: int,
    *,
    seed: int,
) -> Floats:
    """Return draws of the true means [N_DRAWS, n]."""
    rng = np.random.default_rng(seed)
    sigma = np.sqrt(within / rng.chisquare(degrees_of_freedom, size=(N_DRAWS, 1)))
    return means + sigma * rng.normal(size=(N_DRAWS, len(means))) / np.sqrt(n_replicates)
