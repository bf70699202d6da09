"""A sampler for Optuna that proposes by the posterior over architectures.

By the toss of a coin it proposes the candidate of the largest expected improvement, or the one
that is best in a draw from the posterior (Thompson 1933): the first finds the top of what is
known, the second looks elsewhere (docs/experiments/posterior-sampler.md).

Candidates are random architectures and variations of the best, without those known. A running
trial counts as if it had found what is expected of it (Ginsbourger et al. 2010), so that a batch
spreads; a pruned or infeasible one counts as behind all others. Several values become one by
random weights, new ones for each proposal (Knowles 2006).

It computes in one thread: sums in several may end in other digits, and a proposal is to be the
same however many threads a process has.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import ThreadpoolController

from nas_evidence.maths.architecture_posterior import ArchitecturePosterior
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.coordinates import Axes, Parameters

#: Random candidates; architectures of the best means that are varied, and variations of each.
N_RANDOM, N_VARIED, N_VARIATIONS = 512, 5, 40
#: Share of the sum of all values beside the worst weighted one (Knowles 2006, eq. 2).
_SUM = 0.05
#: How far a pruned or infeasible trial is behind the worst other, as a share of their range.
_BEHIND = 0.25


class Candidates(Protocol):
    """Architectures of a space, as parameters of Optuna."""

    def space(self) -> dict[str, BaseDistribution]:
        """Return every parameter of every family."""

    def random(self, rng: np.random.Generator) -> Parameters:
        """Return a random architecture."""

    def varied(self, parameters: Parameters, rng: np.random.Generator) -> Parameters:
        """Return an architecture of the same family that differs in one parameter at most."""


class PosteriorSampler(BaseSampler):  # type: ignore[misc]  # optuna has no types here
    """Proposes by the posterior; what is proposed depends on the seed and the trials alone.

    Args:
        candidates: the architectures to choose from.
        seed: of the draws.
    """

    def __init__(self, candidates: Candidates, *, seed: int) -> None:
        self._candidates, self._rng = candidates, np.random.default_rng(seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the whole space; a family asks only for its own parameters."""
        return self._candidates.space()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Parameters:
        """Return the parameters of one family."""
        with _threads().limit(limits=1, user_api="blas"):
            return self._proposed(study, trial, search_space)

    def _proposed(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Parameters:
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        past = [
            one
            for one in study.get_trials(deepcopy=False, states=states)
            if one.number != trial.number
        ]
        values = _values(past, len(study.directions), self._rng)
        known = [one for one in past if one.number in values]
        if not known:
            return self._candidates.random(self._rng)
        axes = Axes(
            {
                name: one.choices if isinstance(one, CategoricalDistribution) else None
                for name, one in search_space.items()
            }
        )
        points = axes.points([one.params for one in known])
        scores = [[values[one.number]] for one in known]
        found = ArchitecturePosterior(points, axes.ordered, scores)
        running = [one.params for one in past if one.state == TrialState.RUNNING]
        if running:
            expected = found.warp.score(found.predict(axes.points(running))[0])
            found = ArchitecturePosterior(
                np.vstack([points, axes.points(running)]),
                axes.ordered,
                [*scores, *expected[:, None].tolist()],
                found.hyper,
            )
        best = np.argsort(-found.mean()[: len(known)], kind="stable")[:N_VARIED]
        new = self._new([known[int(i)].params for i in best], [one.params for one in past])
        at = axes.points(new)
        if self._rng.random() < 0.5:
            gain = found.expected_improvement(at)
        else:
            gain = found.thompson(at, seed=int(self._rng.integers(2**31)))
        return new[int(gain.argmax())]

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Raise: every parameter is in the relative space.

        Raises:
            ValueError: always.
        """
        raise UserError(
            f"`{param_name}` is not a parameter of the search space of the study."
        ).with_code("sampler-unknown-parameter")

    def _new(self, best: Sequence[Parameters], old: Sequence[Parameters]) -> list[Parameters]:
        """Return candidates that are not among the old ones; a random one if all are."""
        found = [self._candidates.random(self._rng) for _ in range(N_RANDOM)]
        for one in best:
            found += [self._candidates.varied(one, self._rng) for _ in range(N_VARIATIONS)]
        seen = {_key(one) for one in old}
        new = {_key(one): one for one in found if _key(one) not in seen}
        return list(new.values()) or found[:1]


@cache
def _threads() -> ThreadpoolController:
    """Return a handle of the threads of the linear algebra, which takes milliseconds to find."""
    return ThreadpoolController()


def _key(one: Parameters) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(one.items()))


def _values(
    past: Sequence[FrozenTrial], n_values: int, rng: np.random.Generator
) -> dict[int, float]:
    """Return the value of each finished trial, by number, larger is better."""
    finished = [one for one in past if one.state != TrialState.RUNNING]
    good = [
        one
        for one in finished
        if one.state == TrialState.COMPLETE and all(e <= 0 for e in one.constraints.values())
    ]
    if not good:
        return {}
    table = np.array([one.values for one in good], np.float64)
    if n_values == 1:
        value = table[:, 0]
    else:
        table[:, 1:] *= -1.0
        spread = np.ptp(table, axis=0)
        weighted = rng.dirichlet(np.ones(n_values)) * (table - table.min(0))
        weighted /= np.where(spread > 0, spread, 1.0)
        value = weighted.min(1) + _SUM * weighted.sum(1)
    behind = float(value.min()) - _BEHIND * (float(np.ptp(value)) or 1.0)
    told = {one.number: float(own) for one, own in zip(good, value, strict=True)}
    return {one.number: told.get(one.number, behind) for one in finished}
