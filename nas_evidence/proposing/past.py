"""The trials that a sampler learns from: up to `MAX_LEARNT` finished ones, and running ones.

Of more finished trials it sees the best, which are all that TPE models as good, and of the
others as many as fit, evenly spaced by number (docs/decisions/0007-shared-names-in-tpe.md).
The choice depends on numbers and values alone, so that what a sampler sees does not depend on
the speed of workers once all are told.

Only finite values of complete trials are learnt from. A pruned trial has no value and an
infeasible one has its constraints: both rank behind every complete, feasible trial. Failures are
never seen.
"""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, Self

from nas_evidence.maths.pareto import is_matched
from nas_evidence.spec.study import ArchitectureSpec

#: Finished trials that a sampler learns from, which bounds the cost of a proposal; those among
#: them that are kept whatever their number. TPE models the best 25 of 250 or more as good.
MAX_LEARNT, MAX_BEST = 256, 25
#: Smaller costs are raised to this value: a logarithm needs a positive number.
_SMALLEST_COST = 1e-12


@dataclass(frozen=True)
class ProposalResult:
    """The result of a proposal.

    values        objective, then the costs in the order of `study.minimise`; None for a failure
    constraints   name -> excess over the limit; at most 0 is feasible. The sampler sums them, so
                  relative excesses (value / limit - 1) work best.
    pruned        stopped at a rung; `values` are then not read
    """

    values: tuple[float, ...] | None
    constraints: Mapping[str, float] = field(default_factory=dict)
    pruned: bool = False

    @property
    def state(self) -> Literal["COMPLETE", "PRUNED", "FAIL"]:
        """Return what a sampler is told: an infeasible trial without values counts as pruned."""
        values = None if self.pruned else self.values
        # Infinities would mislead the sampler.
        if not all(map(math.isfinite, [*(values or ()), *self.constraints.values()])):
            return "FAIL"
        if values is not None:
            return "COMPLETE"
        infeasible = any(excess > 0 for excess in self.constraints.values())
        return "PRUNED" if self.pruned or infeasible else "FAIL"


@dataclass(frozen=True)
class Proposal:
    """A proposal as a sampler sees it.

    values    objective and logarithms of the costs, lest the largest dominate; None without
    """

    number: int
    architecture: ArchitectureSpec
    state: Literal["RUNNING", "COMPLETE", "PRUNED", "FAIL"]
    values: tuple[float, ...] | None = None
    constraints: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, number: int, one: ArchitectureSpec, result: ProposalResult | None) -> Self:
        """Return a proposal with its result, or running without one."""
        if result is None:
            return cls(number, one, "RUNNING")
        values, state = result.values, result.state
        if state != "COMPLETE" or values is None:
            return cls(number, one, state, None, result.constraints)
        costs = (math.log(max(cost, _SMALLEST_COST)) for cost in values[1:])
        return cls(number, one, state, (values[0], *costs), result.constraints)

    @property
    def feasible(self) -> tuple[float, ...] | None:
        """Return the values, larger is better, of a complete trial within its limits."""
        if self.values is None or any(excess > 0 for excess in self.constraints.values()):
            return None
        return (self.values[0], *(-cost for cost in self.values[1:]))


_number = attrgetter("number")


class Past:
    """The trials shown so far; `trials` are those that a sampler sees."""

    def __init__(self) -> None:
        self._finished: list[Proposal] = []  # by number
        self._best: list[
            tuple[Proposal, tuple[float, ...]]
        ] = []  # best first, or the Pareto front
        self._running: dict[int, Proposal] = {}

    def put(self, trial: Proposal) -> None:
        """Add a running trial, or replace it by its result; a failed one is removed."""
        self._running.pop(trial.number, None)
        if trial.state == "RUNNING":
            self._running[trial.number] = trial
        elif trial.state != "FAIL":
            bisect.insort(self._finished, trial, key=_number)
            if (values := trial.feasible) is not None:
                self._rank(trial, values)

    def trials(self) -> list[Proposal]:
        """Return the trials that a sampler sees, by number."""
        return sorted([*self._seen(), *self._running.values()], key=_number)

    def _seen(self) -> list[Proposal]:
        if len(self._finished) <= MAX_LEARNT:
            return self._finished
        best = [trial for trial, _ in self._best[-MAX_BEST:]]
        places = sorted(bisect.bisect_left(self._finished, b.number, key=_number) for b in best)
        # That of other k is k, and one more for each of the best before it.
        shifts = [place - i for i, place in enumerate(places)]
        n, n_others = MAX_LEARNT - len(best), len(self._finished) - len(best)
        chosen = ((2 * i + 1) * n_others // (2 * n) for i in range(n))
        return [*best, *(self._finished[k + bisect.bisect(shifts, k)] for k in chosen)]

    def _rank(self, trial: Proposal, values: tuple[float, ...]) -> None:
        """Keep the best by value, or the Pareto front; of equal ones those with lower numbers."""
        if len(values) == 1:
            bisect.insort(self._best, (trial, values), key=lambda one: (-one[1][0], one[0].number))
            del self._best[MAX_BEST:]
            return
        for one, other in self._best:
            if is_matched(values, [other]) and (other != values or one.number < trial.number):
                return
        self._best = [(one, own) for one, own in self._best if not is_matched(own, [values])]
        bisect.insort(self._best, (trial, values), key=lambda one: one[0].number)
