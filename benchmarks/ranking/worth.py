"""What a ranking is worth in labelled rows, and beside a hold-out.

    python benchmarks/ranking/worth.py [--group GROUP] [--pools NAME ...]
    python benchmarks/ranking/worth.py --results    # benchmarks/results/ranking_worth.json

A person with m labelled rows more ranks networks that are trained on all n rows by their log loss
on these m. `pools.py` trained the same networks and stored that for some m (`fresh_m`).

    rows     least m whose order agrees with the test loss of the other seeds as well as that of
             the score: rho over m made increasing, log m interpolated. "> m" beyond the largest,
             "< 15" below the smallest; with the 90 % interval of draws of networks
    worth    rows over n

The hold-out keeps a fifth of the rows, chooses by the log density of its network on them, and
delivers that network. All five fifths count.

    loss     test log loss of what is delivered less the least mean of the pool, nats
    again    the same choice, trained again on all rows
    equal    ours on so many networks, drawn at random, as cost as many trainings by rows
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from judge import (
    RESULTS,
    Ranked,
    attainable,
    between_seeds,
    markdown,
    number,
    read,
    spearman,
    with_estimates,
)  # fmt: skip
from judge import _signed as values_of
from pools import POOLS

SCORES = ("e5", "estimate", "two_fold", "plain5", "kfac_ggn", "sotl")
#: The estimate that ranks, as `judge.py` names it.
ESTIMATE = "mean5@noisy-trend"
#: Trainings by rows: five of 0.8 and the last; 0.8.
_OURS, _HOLD_OUT = 5.0, 0.8
_DRAWS = 400
GROUPS, MOST_ROWS = ("folds", "rank", "rank/second"), 1000
HELD = ("ours", "ours_equal", "hold_out", "hold_out_again")


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


def worth(pool: Ranked, scores: Sequence[str]) -> dict[str, Any]:
    """Return rho, and the rows that each score is worth, with intervals."""
    fresh, random = by_rows(pool), np.random.default_rng(0)
    rhos = {m: rho_of(pool, v) for m, v in fresh.items()}
    found: dict[str, Any] = {
        "n_data": pool.n_data, "real": pool.real, "seeds": pool.loss.shape[1],
        "networks": len(pool.loss),
        "attainable": attainable(between_seeds(pool.loss), pool.loss.shape[1] - 1),
        "fresh": {str(m): rho for m, rho in rhos.items()}, "scores": {},
    }  # fmt: skip
    draws = [np.unique(random.integers(0, len(pool.loss), len(pool.loss))) for _ in range(_DRAWS)]
    some = [pool.some(rows) for rows in draws]
    of_rows = [{m: rho_of(one, fresh[m][rows]) for m in fresh}
               for one, rows in zip(some, draws, strict=True)]  # fmt: skip
    for score in scores:
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


def beside_hold_out(pool: Ranked, score: str) -> dict[str, float] | None:
    """Return what ours and a hold-out of a fifth lose, means over seeds; None if not trained."""
    held = [k for k in range(1, 6) if f"without_{k}" in pool.scores]
    if not held:
        return None
    value, least = values_of(pool, score), float(np.nanmean(pool.loss, 1).min())
    n, n_seeds = pool.loss.shape
    few = max(1, round(n * _HOLD_OUT / _OURS))
    chosen, fewer, kept, again = [], [], [], []
    for k in range(n_seeds):
        order = np.argsort(-np.nan_to_num(value[:, k], nan=-np.inf), kind="stable")
        own = pool.loss[order, k]
        chosen.append(own[0])
        # The best of `few` networks drawn at random is the one of place i with this probability.
        first = [math.comb(n - i - 1, few - 1) / math.comb(n, few) for i in range(n)]
        fewer.append(float(own @ first))
        for fold in held:
            at = int(np.nanargmax(pool.scores[f"plain5_{fold}"][:, k]))
            kept.append(pool.scores[f"without_{fold}"][at, k])
            again.append(pool.loss[at, k])
    return {
        "ours": float(np.mean(chosen)) - least, "hold_out": float(np.mean(kept)) - least,
        "hold_out_again": float(np.mean(again)) - least,
        "ours_equal": float(np.mean(fewer)) - least,
    }  # fmt: skip


def paired(of: Sequence[Mapping[str, float]], one: str, other: str) -> list[float]:
    """Return the mean difference over pools, and the 90 % interval of draws of pools."""
    each = np.array([pool[one] - pool[other] for pool in of])
    random = np.random.default_rng(0)
    drawn = each[random.integers(0, len(each), (2000, len(each)))].mean(1)
    return [float(v) for v in (each.mean(), *np.quantile(drawn, [0.05, 0.95]))]


def said(rows: float | None, fresh: Mapping[str, float]) -> str:
    """Return a number of rows for a cell."""
    sizes = [int(m) for m in fresh]
    if rows is None:
        return f"> {max(sizes)}"
    return f"< {min(sizes)}" if rows == 0 else f"{rows:.0f}"


def table(found: Mapping[str, Any]) -> str:
    """Return the rows that each score is worth, and the losses beside a hold-out."""
    lines = []
    for name, pool in found["pools"].items():
        cells = []
        for score in SCORES:
            one = pool["scores"].get(score)
            if one is None:
                cells.append("-")
                continue
            low, high = (said(v, pool["fresh"]) for v in one["rows_90"])
            cells.append(
                f"{number(one['rho'])}: {said(one['rows'], pool['fresh'])} ({low} to {high})"
            )
        lines.append([name, str(pool["n_data"]), number(pool["attainable"]), *cells])
    text = markdown(["pool", "rows", "attainable", *SCORES], lines)
    held = [[name, *(f"{pool['hold_out'][k]:.3f}" for k in HELD)]
            for name, pool in found["pools"].items() if pool["hold_out"]]  # fmt: skip
    text += "\n" + markdown(
        ["pool: loss above the least", "ours", "equal", "hold-out", "again"], held
    )
    rows = [[kind, what, *(f"{v:+.3f}" for v in three)]
            for kind, of in found["differences"].items()
            for what, three in of.items()]  # fmt: skip
    return text + "\n" + markdown(["pools", "difference", "mean", "5 %", "95 %"], rows)


def of_group(group: str, names: Sequence[str], folder: Path = RESULTS) -> dict[str, Any]:
    """Return all numbers of some pools."""
    pools = {
        name: with_estimates(read(group, name, folder, complete=True), [ESTIMATE])
        for name in names
    }
    pools = {name: pool for name, pool in pools.items() if by_rows(pool)}
    found: dict[str, Any] = {
        name: {**worth(pool, SCORES), "hold_out": beside_hold_out(pool, "e5")}
        for name, pool in pools.items()
    }
    gaps = {}
    for kind, real in (("classes", False), ("real targets", True)):
        of = [p["hold_out"] for p in found.values() if p["real"] == real and p["hold_out"]]
        if len(of) > 1:
            gaps[kind] = {
                "ours - hold-out": paired(of, "ours", "hold_out"),
                "ours, equal trainings - hold-out": paired(of, "ours_equal", "hold_out"),
                "ours - hold-out, trained again": paired(of, "ours", "hold_out_again"),
            }
    return {"pools": found, "differences": gaps}


def main() -> None:
    """Print the tables of a group, or write the numbers of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", default="rank", choices=GROUPS)
    parser.add_argument("--pools", nargs="+", help="by default all that were trained")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    parser.add_argument("--results", action="store_true", help="write the file of results")
    given = parser.parse_args()

    def of(group: str) -> dict[str, Any]:
        there = [n for n in POOLS[group] if (given.folder / group / f"{n}.csv").exists()]
        there = [n for n in there if POOLS[group][n].n_train <= MOST_ROWS]
        return of_group(group, given.pools or there, given.folder)

    if not given.results:
        print(table(of(given.group)))
        return
    text = json.dumps({group: of(group) for group in GROUPS}, indent=1) + "\n"
    (RESULTS.parent / "ranking_worth.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
