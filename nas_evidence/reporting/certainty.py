"""How sure the first rank is: a probability, which others are tied with it, or why none is stated.

    tied(j)    the values that rank the first and j differ by less than the noise of one seed, and
               P(mu_j >= mu_first) >= 0.05
    P(best)    of the first and those tied with it, together
    if wrong   E[max mu - mu_first | the first is not the best]

mu are joint draws of the true scores from the model that ranks: where the estimate ranks, its own
posterior (`maths/architecture_posterior.py`), in which similar architectures are similar; else
that of the replicates (`maths/finalists.py`). Of near-duplicates no seed tells which is the best,
and which one it is hardly matters. So the probability is that of all tied ones: an indifference
zone, as in ranking and selection (Bechhofer 1954). benchmarks/claims_sentences.py has how often
it holds.

No probability is stated unless each of the finalists has been trained at least three times. That
a network stopped before a mode does not matter: replicates of a score are compared, not networks.
"""

from dataclasses import dataclass

import numpy as np

from nas_evidence.maths.finalists import MIN_REPEATS, N_DRAWS, Floats, posterior_of
from nas_evidence.reporting.recommendation import posterior_over
from nas_evidence.reporting.study_tables import RankedArchitecture, RankedStudy
from nas_evidence.spec.study import FINALISTS

#: Least probability to be ahead of the first of one that is tied with it.
NOT_TOLD_APART = 0.05


@dataclass(frozen=True)
class Certainty:
    """What is known of the first rank; `best` and `repeats` follow the order of the ranking.

    finalists      number of architectures that were compared with repeats
    repeats        trials of each ranked architecture
    best           probability of each to have the largest true score; None where it is withheld
    expected_loss  what choosing the first loses on average, in the unit of the score
    noise          standard deviation of the winner's score over seeds
    tied           positions of those that are tied with the first
    """

    finalists: int
    repeats: tuple[int, ...]
    best: tuple[float, ...] | None = None
    expected_loss: float | None = None
    noise: float | None = None
    tied: tuple[int, ...] = ()

    @property
    def together(self) -> float:
        """Probability that the first, or one that is tied with it, is the best."""
        return 0.0 if self.best is None else sum(self.best[i] for i in (0, *self.tied))


def certainty_of(study: RankedStudy) -> Certainty | None:
    """Return how sure the first rank is; None with fewer than two ranked architectures."""
    ranked = [one for one in study.ranking if one.rank is not None]
    if len(ranked) < 2:
        return None
    n = sum(one.raced for one in ranked) or min(FINALISTS, len(ranked))
    repeats = tuple(len(study.values(one)) for one in ranked)
    if min(repeats[:n]) < MIN_REPEATS:
        return Certainty(n, repeats)
    found = _draws(study, ranked)
    if found is None:
        return Certainty(n, repeats)
    draws, noise = found
    best = np.bincount(draws.argmax(1), minlength=len(ranked)) / len(draws)
    value = np.array([study.value(one) for one in ranked])
    return Certainty(
        finalists=n,
        repeats=repeats,
        best=tuple(map(float, best)),
        expected_loss=float((draws.max(1) - draws[:, 0]).mean()),
        noise=noise,
        tied=tied_with_first(draws, value, noise),
    )


def tied_with_first(draws: Floats, value: Floats, noise: float) -> tuple[int, ...]:
    """Return the positions of those that are tied with the first.

    >>> draws = np.array([[0.0, 0.1, -2.0], [0.0, -0.1, -2.0]])
    >>> tied_with_first(draws, np.array([0.0, -0.01, -2.0]), 0.1)
    (1,)

    Args:
        draws: of the true scores [n_draws, n].
        value: what ranks [n].
        noise: of one seed, in the same unit.
    """
    near = np.abs(value - value[0]) < noise
    ahead = (draws >= draws[:, :1]).mean(0) >= NOT_TOLD_APART
    return tuple(int(i) for i in np.flatnonzero(near & ahead) if i)


def _draws(study: RankedStudy, ranked: list[RankedArchitecture]) -> tuple[Floats, float] | None:
    """Return draws of the true scores [N_DRAWS, n], and the noise of one seed of the first.

    None if no two replicates differ.
    """
    values = [study.values(one) for one in ranked]
    if study.is_estimated:
        if all(len(set(own)) == 1 for own in values):
            return None
        posterior = posterior_over(study, ranked)
        noise = posterior.hyper.noise * posterior.warp.unit
        return posterior.draws(N_DRAWS, seed=study.spec.seed), noise
    found = posterior_of(values, [one.family for one in ranked], seed=study.spec.seed)
    return None if found is None else (found.draws, float(found.noise[0]))
