"""How deep a convolutional network can be on images of some size.

Each block but the first halves height and width, and the head averages over a grid of cells. The
network itself is in `models/cnn.py`; reports, which need no torch, ask this file.
"""

from collections.abc import Mapping

#: Rows and columns of the grid before the head, by depth.
CELLS: Mapping[int, tuple[int, int]] = {1: (4, 4), 2: (3, 3), 3: (2, 2), 4: (1, 2), 5: (1, 1)}


def feature_map(depth: int, height: int, width: int) -> tuple[int, int]:
    """Return height and width before the head.

    >>> feature_map(3, 8, 8)
    (2, 2)
    """
    return height >> (depth - 1), width >> (depth - 1)


def shortage(depth: int, height: int, width: int) -> str | None:
    """Return which requirement of the pooling layers fails, or None.

    >>> [depth for depth in CELLS if shortage(depth, 8, 8) is None]
    [1, 2, 3]
    """
    after, cells = feature_map(depth, height, width), CELLS[depth]
    at = f"at depth {depth}, but the input is {height}x{width}"
    if min(after) < 1:
        return f"pools {depth - 1} times and must stay at 1x1 or more {at}"
    if after[0] < cells[0] or after[1] < cells[1]:
        return (
            f"needs a feature map of at least {cells[0]}x{cells[1]} before its head {at} "
            f"and leaves {after[0]}x{after[1]}"
        )
    return None
