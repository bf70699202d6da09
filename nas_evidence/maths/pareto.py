"""Pareto fronts: points that no other point dominates.

    points  [n, k]   larger is better in each of k objectives; equal points share a front

A point dominates another if it is at least as good in every objective and better in one. Front 0
is that of all points, front 1 that of the points not on front 0, and so on (non-dominated sorting,
Deb et al. 2002).
"""

from collections.abc import Iterable, Sequence

Point = tuple[float, ...]


def is_matched(point: Point, others: Iterable[Point]) -> bool:
    """Tell whether one of the others is at least as good in every objective."""
    return any(all(map(float.__ge__, other, point)) for other in others)


def on_front(points: Sequence[Point]) -> list[bool]:
    """Tell which of the points [n] are on the front.

    >>> on_front([(2.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    [True, True, False]
    """
    front: list[Point] = []
    for point in sorted(set(points), reverse=True):  # later points dominate no earlier one
        if not is_matched(point, front):
            front.append(point)
    found = set(front)
    return [point in found for point in points]


def fronts(points: Sequence[Point]) -> list[int]:
    """Return the front of each point [n], 0 for those that no other dominates.

    In descending order a point can be dominated by earlier points only. It belongs to the first
    front with no point that dominates it, found by bisection because dominance is transitive.

    >>> fronts([(2.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    [0, 0, 1]
    """
    members: list[list[Point]] = []
    found: dict[Point, int] = {}
    for point in sorted(set(points), reverse=True):
        low, high = 0, len(members)
        while low < high:
            middle = (low + high) // 2
            if is_matched(point, members[middle]):
                low = middle + 1
            else:
                high = middle
        if low == len(members):
            members.append([])
        members[low].append(point)
        found[point] = low
    return [found[point] for point in points]
