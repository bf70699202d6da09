"""A sampler that proposes by the posterior over architectures.

By the toss of a coin it proposes the candidate of the largest expected improvement, or the one
that is best in a draw from the posterior (Thompson 1933): the first finds the top of what is
known, the second looks elsewhere (docs/results/how-well-it-ranks.md).

Candidates are random architectures and variations of the best, without those known. A running
trial counts as if it had found what is expected of it (Ginsbourger et al. 2010), so that a batch
spreads; a pruned or infeasible one counts as behind all others. With more running ones than
`MOST_RUNNING` each proposal is a draw from the posterior of the finished ones, which spreads by
itself (Kandasamy et al. 2018) and costs the same for any number. Several values become one by
random weights, new ones for each proposal (Knowles 2006).
"""

from collections.abc import Mapping, Sequence, Set

import numpy as np

from nas_evidence.maths.architecture_posterior import ArchitecturePosterior, Floats
from nas_evidence.proposing.past import Proposal
from nas_evidence.spec.coordinates import Candidate, Named, Space
from nas_evidence.spec.domains import ParameterValue

#: Random candidates; architectures of the best means that are varied, and variations of each.
N_RANDOM, N_VARIED, N_VARIATIONS = 512, 5, 40
#: Running trials up to which each counts in the posterior; of more none does.
MOST_RUNNING = 64
#: Share of the sum of all values beside the worst weighted one (Knowles 2006, eq. 2).
_SUM = 0.05
#: How far a pruned or infeasible trial is behind the worst other, as a share of their range.
_BEHIND = 0.25


class PosteriorSampler:
    """Proposes by the posterior; what it keeps between proposals changes none of them.

    Args:
        space: the architectures to choose from.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._told: list[tuple[int, float]] = []  # what the posterior was fitted to
        self._points = np.empty((0, 0))
        self._fitted: ArchitecturePosterior | None = None

    def propose(self, past: Sequence[Proposal], seed: int) -> Candidate:
        """Return an architecture, a pure function of the seed and the trials.

        Args:
            past: trials that are in the space, by number.
            seed: of the draws.
        """
        space, rng = self._space, np.random.default_rng(seed)
        values = _values(past, rng)
        if not values:
            return space.random(rng)
        known = [one for one in past if one.number in values]
        found = self._posterior(known, values)
        running = [one.architecture for one in past if one.state == "RUNNING"]
        crowded = len(running) > MOST_RUNNING
        if running and not crowded:
            found = self._expecting(found, list(values.values()), space.points(running))
        best = np.argsort(-found.mean()[: len(known)], kind="stable")[:N_VARIED]
        old = {_key(space, one.architecture) for one in past}
        new = _new(space, [known[int(i)].architecture for i in best], old, rng)
        at = space.points(new)
        if rng.random() < 0.5 and not crowded:
            gain = found.expected_improvement(at)
        else:
            gain = found.thompson(at, seed=int(rng.integers(2**31)))
        return new[int(gain.argmax())]

    def _posterior(
        self, known: Sequence[Proposal], values: Mapping[int, float]
    ) -> ArchitecturePosterior:
        """Return what is known of the finished trials; fitted anew only if they have changed."""
        told = list(values.items())
        if self._fitted is None or told != self._told:
            self._told, scores = told, [[value] for value in values.values()]
            self._points = self._space.points(one.architecture for one in known)
            self._fitted = ArchitecturePosterior(self._points, self._space.ordered, scores)
        return self._fitted

    def _expecting(
        self, found: ArchitecturePosterior, values: list[float], running: Floats
    ) -> ArchitecturePosterior:
        """Return the posterior as if running trials had found what is expected of them."""
        expected = found.warp.score(found.predict(running)[0])
        return ArchitecturePosterior(
            np.vstack([self._points, running]),
            self._space.ordered,
            [[value] for value in (*values, *expected.tolist())],
            found.hyper,
        )


def _new(
    space: Space, best: Sequence[Named], old: Set[object], rng: np.random.Generator
) -> list[Candidate]:
    """Return candidates that are not among the old ones; a random one if all are."""
    found = [space.random(rng) for _ in range(N_RANDOM)]
    for one in best:
        found += [space.varied(one, rng) for _ in range(N_VARIATIONS)]
    new = {key: one for one in found if (key := _key(space, one)) not in old}
    return list(new.values()) or found[:1]


def _key(space: Space, one: Named) -> tuple[ParameterValue, ...]:
    return (one.family, *(one.values[name] for name in space.domains[one.family]))


def _values(past: Sequence[Proposal], rng: np.random.Generator) -> dict[int, float]:
    """Return the value of each finished trial, by number, larger is better."""
    good = {one.number: own for one in past if (own := one.feasible) is not None}
    if not good:
        return {}
    table = np.array(list(good.values()), np.float64)
    if table.shape[1] == 1:
        value = table[:, 0]
    else:
        spread = np.ptp(table, axis=0)
        weighted = rng.dirichlet(np.ones(table.shape[1])) * (table - table.min(0))
        weighted /= np.where(spread > 0, spread, 1.0)
        value = weighted.min(1) + _SUM * weighted.sum(1)
    behind = float(value.min()) - _BEHIND * (float(np.ptp(value)) or 1.0)
    told = dict(zip(good, map(float, value), strict=True))
    return {one.number: told.get(one.number, behind) for one in past if one.state != "RUNNING"}
