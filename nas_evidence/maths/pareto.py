"""Pareto fronts: points that no other matches in every objective and beats in one.

    points  [n, k]   larger is better in each of k objectives; equal points are on a front together

Front 0 is that of all points, front 1 that of those not on front 0, and so on (non-dominated
sorting, Deb et al. 2002).
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
    for point in sorted(set(points), reverse=True):  # those that follow dominate none before them
        if not is_matched(point, front):
            front.append(point)
    found = set(front)
    return [point in found for point in points]


def fronts(points: Sequence[Point]) -> list[int]:
    """Return the front of each point [n], 0 for those that no other dominates.

    Taken from the largest first coordinate down, a point is dominated by earlier ones only, and
    belongs to the first front that holds none of them; by transitivity that is a bisection.

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
