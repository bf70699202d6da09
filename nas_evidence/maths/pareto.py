"""The Pareto front: what no other point matches in all objectives and beats in one."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def on_front(gains: ArrayLike) -> NDArray[np.bool_]:
    """Tell which of the points [n, k] are on the front, larger being better in each objective.

    Equal points are on it together.

    >>> on_front([[2, 0], [1, 1], [0, 1]]).tolist()
    [True, True, False]
    """
    points = np.asarray(gains, np.float64)
    return np.array(
        [
            not ((points >= point).all(axis=1) & (points > point).any(axis=1)).any()
            for point in points
        ],
        dtype=bool,
    )
