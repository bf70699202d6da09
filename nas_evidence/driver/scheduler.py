"""Which trials continue at a rung: pure functions of the points that have reached it.

A rung is an epoch at which trials are compared. A point holds a trial's score and costs there,
every coordinate larger-is-better:

    point  (score, -cost_1, ..., -cost_m)   [1 + m], m = number of costs to minimise

    one objective        the rule of `maths/pruning_rule.py`
    several, halving     go on if rank <= max(1, floor(n / eta)), n points, eta = reduction
    several, median      go on if rank <= ceil(n / 2)

Rank 1 is best and ties share a rank, so that the order of arrival has no effect. Points of
several objectives are ranked by non-dominated front, and within a front by crowding distance
(Deb et al. 2002, NSGA-II), which keeps the ends and the thin parts of the front. Asynchronous
halving (Li et al. 2020, ASHA, in its stopping form) decides when a trial arrives, by the earlier
ones; a batch decides once, when all its trials have arrived.
"""

import math
from collections.abc import Mapping, Sequence

from nas_evidence.maths.pareto import Point, fronts
from nas_evidence.maths.pruning_rule import judge, n_kept
from nas_evidence.spec.study import StudySpec

#: Number of latest points compared if there are several objectives; sorting takes n^2 steps.
MAX_COMPARED = 1000


def point_of(
    study: StudySpec, scores: Mapping[str, float], costs: Mapping[str, float]
) -> Point | None:
    """Return a trial's point at a rung, or None if a coordinate is missing or not finite."""
    wanted = [scores.get(study.pruning_score, math.nan)]
    wanted += [-costs.get(name, math.nan) for name in study.minimise]
    return tuple(wanted) if all(map(math.isfinite, wanted)) else None


def decide(trial_id: int, at_rung: Mapping[int, Point | None], study: StudySpec) -> str | None:
    """Return why a trial is pruned among those at its rung, or None if it continues.

    Args:
        trial_id: the trial to decide about.
        at_rung: trial id -> its point, in order of arrival; None if it has no valid score. Such a
            trial continues and does not count in comparisons.
        study: its `pruning` holds the rule.

    >>> from nas_evidence.spec.study import DatasetSpec
    >>> study = StudySpec(
    ...     name="s",
    ...     dataset=DatasetSpec(name="digits"),
    ...     family={"linear": {}},
    ...     pruning={"rule": "halving"},
    ... )
    >>> decide(2, {1: (-0.5,), 2: (-0.9,), 3: (-0.7,), 4: (-0.6,)}, study)
    'conditional_evidence -0.9 is 4th of 4'
    """
    pruning, mine = study.pruning, at_rung[trial_id]
    points = {i: point for i, point in at_rung.items() if point is not None}
    if mine is None or pruning.rule == "none" or len(points) < pruning.startup_trials:
        return None
    what = f"{study.pruning_score} {mine[0]:.4g}"
    if len(mine) == 1:
        others = [point[0] for i, point in points.items() if i != trial_id]
        own = judge(mine[0], others, rule=pruning.rule, reduction=pruning.reduction)
        if own.goes_on:
            return None
        if pruning.rule == "median":
            return f"{what} is below the median {own.middle:.4g}"
        return f"{what} is {_ordinal(own.rank)} of {own.n}"
    latest = dict([*points.items()][-MAX_COMPARED:]) | {trial_id: mine}
    rank, n = ranks(list(latest.values()))[list(latest).index(trial_id)], len(latest)
    keep = n_kept(n, pruning.reduction) if pruning.rule == "halving" else math.ceil(n / 2)
    costs = ", ".join(
        f"{name} {-cost:.4g}" for name, cost in zip(study.minimise, mine[1:], strict=True)
    )
    return f"{what} with {costs} is {_ordinal(rank)} of {n}" if rank > keep else None


def ranks(points: Sequence[Point]) -> list[int]:
    """Return the rank of each point: by front, then by crowding distance; 1 is best.

    >>> ranks([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
    [3, 1, 1]
    """
    front_of = fronts(points)
    order: dict[int, tuple[int, float]] = {}
    for front in set(front_of):
        members = [i for i, f in enumerate(front_of) if f == front]
        for i, distance in zip(members, _crowding([points[i] for i in members]), strict=True):
            order[i] = (front, -distance)
    ahead = sorted(order.values())
    first = {key: place for place, key in reversed([*enumerate(ahead, start=1)])}
    return [first[order[i]] for i in range(len(points))]


def _crowding(points: Sequence[Point]) -> list[float]:
    """Return the distance between each point's neighbours, summed over coordinates in [0, 1].

    Infinite at the ends of the front; equal points share one value.
    """
    distances = dict.fromkeys(points, 0.0)
    for axis in range(len(points[0])):
        line = sorted(distances, key=lambda point: (point[axis], point))
        span = line[-1][axis] - line[0][axis]
        distances[line[0]] = distances[line[-1]] = math.inf
        for before, point, after in zip(line, line[1:], line[2:], strict=False):
            distances[point] += (after[axis] - before[axis]) / span if span else 0.0
    return [distances[point] for point in points]


def _ordinal(n: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}th" if n % 100 in (11, 12, 13) else f"{n}{ending}"
