"""How sure the first rank is by the score: a probability, or why none is stated.

No probability is stated unless each of the finalists has been trained at least three times, nor
while one that may be the best had not reached a mode when its settling stopped.
"""

from dataclasses import dataclass

from nas_evidence.maths.finalists import MIN_REPEATS, posterior_of
from nas_evidence.reporting.study_tables import RankedArchitecture, Study
from nas_evidence.spec.study import FINALISTS

#: Whoever is the best with at least this probability may be the best.
MAY_BE_BEST = 0.05


@dataclass(frozen=True)
class Certainty:
    """What is known of the first rank; `best` and `repeats` follow the order of the ranking.

    finalists      number of architectures that were compared with repeats
    repeats        trials of each ranked architecture
    best           probability of each to have the largest true score; None where it is withheld
    expected_loss  what choosing the first loses on average, in the unit of the score
    noise          standard deviation of the winner's score over seeds
    unsettled      architectures that may be the best and had not reached a mode
    """

    finalists: int
    repeats: tuple[int, ...]
    best: tuple[float, ...] | None = None
    expected_loss: float | None = None
    noise: float | None = None
    unsettled: tuple[RankedArchitecture, ...] = ()


def certainty_of(study: Study) -> Certainty | None:
    """Return how sure the first rank is; None with fewer than two ranked architectures."""
    ranked = [one for one in study.ranking if one.rank is not None]
    if len(ranked) < 2:
        return None
    n = sum(one.raced for one in ranked) or min(FINALISTS, len(ranked))
    repeats = tuple(len(study.objectives(one)) for one in ranked)
    enough = min(repeats[:n]) >= MIN_REPEATS
    found = None
    if enough:
        found = posterior_of(
            [study.objectives(one) for one in ranked],
            [one.family for one in ranked],
            seed=study.spec.seed,
        )
    if found is None:
        unsettled = tuple(one for one in ranked[:2] if one.unsettled)
        return Certainty(n, repeats, unsettled=unsettled)
    contenders = [i for i, p in enumerate(found.best) if p >= MAY_BE_BEST or i == 0]
    unsettled = tuple(ranked[i] for i in contenders if ranked[i].unsettled)
    lost = float((found.draws.max(1) - found.draws[:, 0]).mean())
    return Certainty(
        finalists=n,
        repeats=repeats,
        best=None if unsettled else tuple(map(float, found.best)),
        expected_loss=None if unsettled else lost,
        noise=float(found.noise[0]),
        unsettled=unsettled,
    )
