"""Features that give the target away: the same column twice, under another name or in other words.

classes       each value of the feature occurs with one class only, and most of them repeat
real targets  the feature is an affine function of the target
"""

import numpy as np
import pandas as pd

from nas_evidence.data.mapped import Array

#: Largest deviation from a straight line, in standard deviations of the target.
_STRAIGHT = 1e-6


def leaks(features: pd.DataFrame, y: Array) -> list[str]:
    """Return the features that determine the target.

    Args:
        features: the training rows.
        y: their labels, int64 [n], or real targets [n, C].
    """
    labels = y.dtype == np.int64
    return [
        str(name)
        for name in features.columns
        if (_tells_labels(features[name], y) if labels else _is_line(features[name], y))
    ]


def _tells_labels(values: pd.Series, y: Array) -> bool:
    codes, found = pd.factorize(values, use_na_sentinel=False)
    if not 1 < len(found) <= len(y) // 2:  # a constant, or about as many values as rows
        return False
    pairs = codes.astype(np.int64) * (int(y.max()) + 1) + y
    return len(np.unique(pairs)) == len(found)


def _is_line(values: pd.Series, y: Array) -> bool:
    if y.shape[1] != 1 or not pd.api.types.is_numeric_dtype(values):
        return False
    x, target = np.asarray(values, dtype=np.float64), y[:, 0]
    if len(x) < 3 or not np.isfinite(x).all() or x.std() == 0:
        return False
    x, target = (x - x.mean()) / x.std(), (target - target.mean()) / target.std()
    rest = target - x * np.mean(x * target)
    return bool(np.abs(rest).max() < _STRAIGHT)
