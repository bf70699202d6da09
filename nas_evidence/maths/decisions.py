"""Which class to predict, when errors on some classes cost more than on others.

    k* = argmax_k w_k p_k                           the class of least expected cost (Elkan 2001)
    accuracy = sum_i w_y(i) [k*_i = y_i] / sum_i w_y(i)

    w_k  class weight: what an error on a datum of class k costs, 1 without any
    p_k  probability     y labels

With balanced weights, n / (K n_k) on the data themselves, this is the balanced accuracy.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The class of a row whose probabilities are not numbers.
NONE = -1


def decided(
    probabilities: NDArray[np.float64],
    threshold: float | None = None,
    *,
    class_weights: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """Return the class of each datum [n]; of equally good ones the first.

    A row with a probability that is not a number has no class, `NONE`, which is never right.

    >>> p = np.array([[0.7, 0.3], [0.9, 0.1]])
    >>> decided(p, class_weights=np.array([1.0, 3.0])).tolist()
    [1, 0]
    >>> decided(np.array([[np.nan, np.nan], [0.2, 0.8]])).tolist()
    [-1, 1]

    Args:
        probabilities: [n, C].
        threshold: of the probability of the second of two classes; it replaces the rule above.
        class_weights: w [C].
    """
    if threshold is None:
        weighted = probabilities if class_weights is None else probabilities * class_weights
        chosen = weighted.argmax(1)
    else:
        chosen = probabilities[:, 1] >= threshold
    return np.where(np.isnan(probabilities).any(1), NONE, chosen.astype(np.int64))


def accuracy(
    chosen: NDArray[Any], labels: NDArray[Any], class_weights: NDArray[np.float64] | None = None
) -> float:
    """Return the share of data whose class is right, weighted by the weights of their classes.

    >>> accuracy(np.array([0, 1, 1]), np.array([0, 1, 0]), np.array([1.0, 2.0]))
    0.75
    """
    weights = None if class_weights is None else class_weights[labels]
    return float(np.average(chosen == labels, weights=weights))
