"""What a ranking is worth in labelled rows.

    python -m benchmarks.run worth [--only group=rank pool=ring]

A person with m labelled rows more ranks networks that are trained on all n rows by their log loss
on these m. `pools.py` trained the same networks and stored that for some m (`fresh_m`).

    rows     least m whose order agrees with the test loss of the other seeds as well as that of
             the score: rho over m made increasing, log m interpolated. None beyond the largest,
             0 below the smallest; with the 90 % interval of draws of networks
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from judge import NAMED, Ranked, attainable, between_seeds, read, spearman, with_estimates
from judge import _signed as values_of
from pools import POOLS
from run import Case, Given, Row

SCORES = ("e5", "estimate", "two_fold", "plain5", "kfac_ggn", "sotl")
#: The estimate that ranks, as `judge.py` names it.
ESTIMATE = f"mean5@{NAMED}"
_DRAWS = 400
GROUPS, MOST_ROWS = ("folds", "rank", "rank/second"), 1000


def by_rows(pool: Ranked) -> dict[int, np.ndarray]:
    """Return minus the loss on m fresh rows [networks, seeds], by m."""
    found = {int(c[6:]): v for c, v in pool.scores.items() if c.startswith("fresh_")}
    return {m: found[m] for m in sorted(found) if np.isfinite(found[m]).any()}


def rho_of(pool: Ranked, value: np.ndarray) -> float:
    """Return rho of a score with the mean loss of the other seeds, mean over seeds."""
    each = []
    for k in range(value.shape[1]):
        truth = np.delete(pool.loss, k, 1).mean(1)
        known = np.isfinite(value[:, k]) & np.isfinite(truth)
        each.append(spearman(value[known, k], -truth[known]))
    return float(np.nanmean(each)) if np.isfinite(each).any() else float("nan")


def rows_for(rho: float, of: Mapping[int, float]) -> float:
    """Return the number of fresh rows that order as well; 0 or inf beyond the numbers known.

    >>> rows_for(0.5, {10: 0.4, 40: 0.6})
    20.0
    """
    sizes = list(of)
    best = np.maximum.accumulate([of[m] for m in sizes])
    if rho != rho or rho > best[-1]:
        return math.inf if rho == rho else math.nan
    if rho < best[0]:
        return 0.0
    k = int(np.searchsorted(best, rho))
    if k == 0:
        return float(sizes[0])
    share = (rho - best[k - 1]) / (best[k] - best[k - 1])
    low, high = math.log(sizes[k - 1]), math.log(sizes[k])
    return round(math.exp(low + share * (high - low)), 9)


def worth(pool: Ranked, n_draws: int = _DRAWS) -> dict[str, Any]:
    """Return rho, and the rows that each score is worth, with intervals."""
    fresh, random = by_rows(pool), np.random.default_rng(0)
    rhos = {m: rho_of(pool, v) for m, v in fresh.items()}
    found: dict[str, Any] = {
        "n_data": pool.n_data, "real": pool.real, "seeds": pool.loss.shape[1],
        "networks": len(pool.loss),
        "attainable": attainable(between_seeds(pool.loss), pool.loss.shape[1] - 1),
        "fresh": {str(m): rho for m, rho in rhos.items()}, "scores": {},
    }  # fmt: skip
    n = len(pool.loss)
    draws = [np.unique(random.integers(0, n, n)) for _ in range(n_draws)]
    some = [pool.some(rows) for rows in draws]
    of_rows = [{m: rho_of(one, fresh[m][rows]) for m in fresh}
               for one, rows in zip(some, draws, strict=True)]  # fmt: skip
    for score in SCORES:
        value = values_of(pool, ESTIMATE if score == "estimate" else score)
        if not np.isfinite(value).any():
            continue
        rho = rho_of(pool, value)
        drawn = [rows_for(rho_of(one, value[rows]), of)
                 for one, rows, of in zip(some, draws, of_rows, strict=True)]  # fmt: skip
        ends = np.quantile(drawn, [0.05, 0.95], method="nearest")
        found["scores"][score] = {
            "rho": rho, "rows": _known(rows_for(rho, rhos)),
            "rows_90": [_known(float(v)) for v in ends],
        }  # fmt: skip
    return found


def _known(rows: float) -> float | None:
    """Return a number of rows for JSON, None beyond those known."""
    return rows if math.isfinite(rows) else None


def measure(cell: Row, given: Given) -> Row:
    """Return the numbers of a pool; of one without fresh rows none."""
    pool = read(cell["group"], cell["pool"], complete=True)
    if not by_rows(pool):
        return {"fresh": {}, "scores": {}}
    return worth(with_estimates(pool, [ESTIMATE]), 4 if given.quick else _DRAWS)


def cells() -> list[Row]:
    """Return the pools of up to `MOST_ROWS` rows."""
    return [{"group": group, "pool": name} for group in GROUPS
            for name, pool in POOLS[group].items() if pool.n_train <= MOST_ROWS]  # fmt: skip


CASES = {
    "worth": Case(
        ("group", "pool"), cells, measure, lambda cell: "ranking/worth.csv", packages=("numpy",)
    )
}  # fmt: skip
