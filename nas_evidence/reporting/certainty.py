"""How sure the first rank is by the score: a probability, or why none is stated.

No probability is stated unless each of the finalists has been trained at least three times. That
a network stopped before a mode does not matter: replicates of a score are compared, not networks.
"""

from dataclasses import dataclass

from nas_evidence.maths.finalists import MIN_REPEATS, posterior_of
from nas_evidence.reporting.study_tables import Study
from nas_evidence.spec.study import FINALISTS


@dataclass(frozen=True)
class Certainty:
    """What is known of the first rank; `best` and `repeats` follow the order of the ranking.

    finalists      number of architectures that were compared with repeats
    repeats        trials of each ranked architecture
    best           probability of each to have the largest true score; None where it is withheld
    expected_loss  what choosing the first loses on average, in the unit of the score
    noise          standard deviation of the winner's score over seeds
    """

    finalists: int
    repeats: tuple[int, ...]
    best: tuple[float, ...] | None = None
    expected_loss: float | None = None
    noise: float | None = None


def certainty_of(study: Study) -> Certainty | None:
    """Return how sure the first rank is; None with fewer than two ranked architectures."""
    ranked = [one for one in study.ranking if one.rank is not None]
    if len(ranked) < 2:
        return None
    n = sum(one.raced for one in ranked) or min(FINALISTS, len(ranked))
    repeats = tuple(len(study.values(one)) for one in ranked)
    if min(repeats[:n]) < MIN_REPEATS:
        return Certainty(n, repeats)
    found = posterior_of(
        [study.values(one) for one in ranked],
        [one.family for one in ranked],
        seed=study.spec.seed,
    )
    if found is None:
        return Certainty(n, repeats)
    return Certainty(
        finalists=n,
        repeats=repeats,
        best=tuple(map(float, found.best)),
        expected_loss=float((found.draws.max(1) - found.draws[:, 0]).mean()),
        noise=float(found.noise[0]),
    )
