"""Target leakage by one column: a copy of the target, or a column made from it.

determines   each value of the feature occurs with one class only, and most of them repeat; or the
             feature is an affine function of a real target
orders       each class is told from the rest with an AUROC of 0.995 by how often it occurs, in the
             other half of the rows, where the feature is the same: by value for categories, by
             quantile for numbers; or ranks of the feature and of a real target are correlated by
             0.995. From 50 rows on, 5 of a class; rarer classes are passed over
tells one    one of several classes is told from the rest so

One of several classes may differ from all others honestly, as `setosa` from the other irises. So a
feature that tells it alone is named only if it is a code: a category, or a number with at most
`_OF_CODE` values. Of several real targets each is looked at alone.

Of 17 public data sets with honest features, none is accused: the largest AUROC is 0.976
(breast cancer), the largest correlation 0.944 (power plant).
"""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from nas_evidence.data.mapped import Array
from nas_evidence.maths.metrics import auroc

#: Largest deviation from a straight line, in standard deviations of the target.
_STRAIGHT = 1e-6
#: Least AUROC, and rank correlation, of a feature that orders the target.
_ORDERS = 0.995
#: Minimum number of rows, and of rows of a class, for that; maximum number of rows looked at.
_ROWS, _OF_CLASS, _MOST_ROWS = 50, 5, 20_000
#: Maximum number of quantiles of a number, and of values of one that is a code.
_QUANTILES, _OF_CODE = 100, 10


def leaks(
    features: pd.DataFrame, y: Array, leak: Callable[[pd.Series, Array, Array], str]
) -> Iterator[tuple[str, str]]:
    """Yield the features that give the target away, and in words how.

    Args:
        features: the training rows.
        y: their targets.
        leak: of one feature, see `Reading`.
    """
    rows = np.random.default_rng(0).permutation(len(y))[:_MOST_ROWS]
    for name in features.columns:
        if how := leak(features[name], y, rows):
            yield str(name), how


def of_labels(values: pd.Series, y: Array, rows: Array) -> str:
    """Return how a feature gives labels away, in words."""
    if _tells_labels(values, y):
        return "determines the target"
    aurocs = _aurocs(values.iloc[rows], y[rows]) if len(y) >= _ROWS else {}
    if not aurocs:
        return ""
    if (least := min(aurocs.values())) >= _ORDERS:
        return f"orders the target almost alone (AUROC {least:.4f})"
    if (best := max(aurocs.values())) >= _ORDERS:
        return f"tells one class from the others almost alone (AUROC {best:.4f})"
    return ""


def of_real_targets(values: pd.Series, y: Array, rows: Array) -> str:
    """Return how a feature gives one of some real targets away, in words."""
    if not pd.api.types.is_numeric_dtype(values):
        return ""
    x = values.astype("float64")
    for k, target in enumerate(y.T):
        which = "the target" if y.shape[1] == 1 else f"target {k + 1} of {y.shape[1]}"
        if _is_line(x.to_numpy(), target):
            return f"determines {which}"
        if len(y) >= _ROWS:
            found = _rank_correlation(x.iloc[rows], target[rows])
            if found >= _ORDERS:
                return f"orders {which} almost alone (rank correlation {found:.4f})"
    return ""


def _tells_labels(values: pd.Series, y: Array) -> bool:
    codes, found = pd.factorize(values, use_na_sentinel=False)
    if not 1 < len(found) <= len(y) // 2:  # a constant, or about as many values as rows
        return False
    both = codes.astype(np.int64) * (int(y.max()) + 1) + y
    return len(np.unique(both)) == len(found)


def _aurocs(values: pd.Series, y: Array) -> dict[int, float]:
    """Return the AUROC of telling each class from the rest; rows are in random order.

    Of a feature that is no code not those after the first below `_ORDERS`.
    """
    if pd.api.types.is_numeric_dtype(values):
        share = values.rank(pct=True, method="max").fillna(-1)
        is_code = share.nunique() <= _OF_CODE
        codes = np.ceil(share * min(_QUANTILES, int(np.sqrt(len(y)))))
        codes = pd.factorize(codes)[0]
    else:
        is_code, codes = True, pd.factorize(values, use_na_sentinel=False)[0]
    counts, found, halves = np.bincount(y), dict[int, float](), np.arange(len(y)) % 2
    if len(counts) < 2:
        return {}
    for label in np.flatnonzero(counts >= _OF_CLASS)[: 1 if len(counts) == 2 else None].tolist():
        hit = y == label
        hits, n = (
            np.bincount(2 * codes + halves, weights, 2 * int(codes.max()) + 2).reshape(-1, 2)
            for weights in (hit, None)
        )
        shares = ((hits + hit.mean()) / (n + 1))[codes, 1 - halves]  # of the other half
        found[label] = auroc(shares[~hit], shares[hit])
        if found[label] < _ORDERS and not is_code:
            return {label: found[label]}
    return found


def _rank_correlation(x: pd.Series, target: Array) -> float:
    """Return the size of Spearman's correlation; a missing number is the median."""
    x = x.fillna(x.median())
    if x.nunique() < 2 or len(np.unique(target)) < 2:
        return 0.0
    return abs(float(x.rank().corr(pd.Series(target, index=x.index).rank())))


def _is_line(x: Array, target: Array) -> bool:
    if len(x) < 3 or not np.isfinite(x).all() or x.std() == 0 or target.std() == 0:
        return False
    x, target = (x - x.mean()) / x.std(), (target - target.mean()) / target.std()
    return bool(np.abs(target - x * np.mean(x * target)).max() < _STRAIGHT)
