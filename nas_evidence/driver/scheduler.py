"""Which trial goes on at a rung: pure functions of the points that have reached it.

A rung is an epoch at which trials are compared. A point is what a trial shows there, every
coordinate larger-is-better:

    point  (score, -cost_1, ..., -cost_m)   [1 + m], m = number of costs to minimise

    halving   go on if rank <= max(1, floor(n / eta)), n = points at the rung, eta = reduction
    median    go on if score >= median of the others' scores; of several objectives,
              if rank <= ceil(n / 2)

Rank 1 is best and equals share a rank, so that the order of arrival decides nothing. Points of
several objectives are ranked by non-dominated front, and within a front by crowding distance
(Deb et al. 2002, NSGA-II), which keeps the ends and the thin parts of the front. Asynchronous
halving (Li et al. 2020, ASHA, in its stopping form) decides when a trial arrives, by those that
arrived before it; a batch decides once, when all its trials are there.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from nas_evidence.spec import StudySpec

Point = tuple[float, ...]
#: Points of several objectives that are compared, the latest; sorting them takes n^2 steps.
MAX_COMPARED = 1000


def point_of(
    study: StudySpec, scores: Mapping[str, float], costs: Mapping[str, float]
) -> Point | None:
    """Return what a trial shows at a rung, or None if a coordinate is missing or not finite."""
    wanted = [scores.get(study.pruning_score, math.nan)]
    wanted += [-costs.get(name, math.nan) for name in study.minimise]
    return tuple(wanted) if all(map(math.isfinite, wanted)) else None


def decide(trial_id: int, at_rung: Mapping[int, Point | None], study: StudySpec) -> str | None:
    """Return why a trial is pruned among those at its rung, or None if it goes on.

    Args:
        trial_id: the trial that asks.
        at_rung: trial id -> its point, in order of arrival; None if it has no valid score. Such a
            trial goes on, and counts for nobody.
        study: its `pruning` holds the rule.

    >>> from nas_evidence.spec import DatasetSpec
    >>> study = StudySpec(
    ...     name="s", dataset=DatasetSpec(name="digits"), family={}, pruning={"rule": "halving"}
    ... )
    >>> decide(2, {1: (-0.5,), 2: (-0.9,), 3: (-0.7,), 4: (-0.6,)}, study)
    'two_fold -0.9 is 4th of 4'
    """
    pruning, mine = study.pruning, at_rung[trial_id]
    points = {i: point for i, point in at_rung.items() if point is not None}
    if mine is None or pruning.rule == "none" or len(points) < pruning.startup_trials:
        return None
    what = f"{study.pruning_score} {mine[0]:.4g}"
    if pruning.rule == "median" and len(mine) == 1:
        others = [point[0] for i, point in points.items() if i != trial_id]
        middle = statistics.median(others) if others else -math.inf
        return f"{what} is below the median {middle:.4g}" if mine[0] < middle else None
    if len(mine) == 1:
        rank, n = 1 + sum(point > mine for point in points.values()), len(points)
    else:
        latest = dict([*points.items()][-MAX_COMPARED:]) | {trial_id: mine}
        rank, n = ranks(list(latest.values()))[list(latest).index(trial_id)], len(latest)
        what = f"{what} with " + ", ".join(
            f"{name} {-cost:.4g}" for name, cost in zip(study.minimise, mine[1:], strict=True)
        )
    keep = max(1, n // pruning.reduction) if pruning.rule == "halving" else math.ceil(n / 2)
    return f"{what} is {_ordinal(rank)} of {n}" if rank > keep else None


def cohort(at_rung: Mapping[int, Point | None], study: StudySpec) -> dict[int, str | None]:
    """Return the decision on every trial of a batch whose trials have all reached the rung."""
    return {trial_id: decide(trial_id, at_rung, study) for trial_id in at_rung}


def ranks(points: Sequence[Point]) -> list[int]:
    """Return the rank of each point: by front, then by crowding distance; 1 is best.

    >>> ranks([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
    [3, 1, 1]
    """
    fronts = _fronts(points)
    order: dict[int, tuple[int, float]] = {}
    for front in set(fronts):
        members = [i for i, f in enumerate(fronts) if f == front]
        for i, distance in zip(members, _crowding([points[i] for i in members]), strict=True):
            order[i] = (front, -distance)
    ahead = sorted(order.values())
    first = {key: place for place, key in reversed([*enumerate(ahead, start=1)])}
    return [first[order[i]] for i in range(len(points))]


def _fronts(points: Sequence[Point]) -> list[int]:
    """Return the front of each point, 0 for those that no other dominates.

    Taken from the largest first coordinate down, a point is dominated by earlier ones only, and
    belongs to the first front that holds none of them; by transitivity that is a bisection.
    """
    fronts: list[list[Point]] = []
    found: dict[Point, int] = {}
    for point in sorted(set(points), reverse=True):
        low, high = 0, len(fronts)
        while low < high:
            middle = (low + high) // 2
            if any(all(map(float.__ge__, other, point)) for other in fronts[middle]):
                low = middle + 1
            else:
                high = middle
        if low == len(fronts):
            fronts.append([])
        fronts[low].append(point)
        found[point] = low
    return [found[point] for point in points]


def _crowding(points: Sequence[Point]) -> list[float]:
    """Return the distance between each point's neighbours, summed over coordinates of unit range.

    Infinite for the ends of the front; equal points share theirs.
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
