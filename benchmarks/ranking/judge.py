"""How well scores rank the networks of the pools: docs/results/how-well-it-ranks.md.

    python benchmarks/ranking/judge.py [NAME ...]    # files of `FILES`, by default all

The pools of results/ranking are trained by `pools.py`. By default a score of one seed is judged by
the mean test log loss of the other seeds:

    rho         Spearman's, mean over seeds
    attainable  what a score without noise that shares nothing with the seeds of the target
                reaches: √R_m, R_m = m r / (1 + (m - 1) r) for the mean of m seeds, r the mean rho
                between two seeds (Spearman 1910; Brown 1910)
    regret      loss of the first choice minus the least of the pool, nats per datum
    a - b       mean over pools of a difference, with the 90 % interval of a bootstrap that draws
                pools, then networks, the same ones for both scores

Scores that no column has are made of others: `mean5` is the mean of e5 and plain5, and
NAME@noisy-trend is what `ArchitecturePosterior` makes of NAME under `OF_NOISY_SEEDS`.

The pools of `wide` are judged by the loss of the same seed, and by its accuracy or RMSE. All seeds
share the draw of the data, and a score its seed: rho may be above attainable.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pools import KEY, POOLS, RESULTS
from scipy.stats import rankdata

from nas_evidence.maths.architecture_posterior import OF_NOISY_SEEDS, ArchitecturePosterior

SCORES = ("e5", "e2", "plain5", "plain2", "five_fold", "two_fold", "heldout_10", "kfac_ggn",
          "n_parameters")  # fmt: skip
#: Of the pools `wide`, some of scores that are gone.
WIDE = ("two_fold", "tangent_conditional", "last_layer_conditional", "prequential_replay",
        "heldout_10", "five_fold", "tangent", "ntk_init", "kfac_ggn", "diag_ef", "full_ggn",
        "sotl", "train_nll_per_datum", "n_parameters")  # fmt: skip
ALONE = ("mean", "e5", "plain5", "two_fold", "kfac_ggn", "diag_ef", "sotl", "n_parameters")
#: What makes the estimate that ranks, and its name: mean5@noisy-trend.
NAMED = "noisy-trend"

SMALL = list(POOLS["wide"])[:11]
LARGE = [n for n, pool in POOLS["wide"].items() if pool.n_train >= 1000]
_DRAWS, _FEWEST = 400, 6


class Ranked(NamedTuple):
    """A pool as arrays [networks, seeds]; NaN where a score is missing.

    second  accuracy, or minus the RMSE
    """

    loss: np.ndarray
    second: np.ndarray
    scores: dict[str, np.ndarray]
    real: bool
    n_data: int
    networks: list[tuple[str, int, int]]  # family, depth, width

    def some(self, rows: np.ndarray) -> "Ranked":
        """Return some of the networks."""
        scores = {name: values[rows] for name, values in self.scores.items()}
        return self._replace(loss=self.loss[rows], scores=scores)


def read(
    group: str, name: str, folder: Path = RESULTS, *, complete: bool = False, other: bool = False
) -> Ranked:
    """Return a trained pool.

    Args:
        group: of the pool.
        name: of the pool; what `<name>-folds.csv` knows is added.
        folder: of the results.
        other: add the scores of the pool of `GROUP/other`, and leave out seeds without them.
        complete: leave out seeds without all networks; a network that diverged has the worst loss.

    Raises:
        OSError: if the pool was not trained.
    """
    table = pd.read_csv(folder / group / f"{name}.csv").set_index(list(KEY))
    for file in (folder / group / f"{name}-folds.csv", folder / group / "fresh" / f"{name}.csv"):
        if file.exists():
            table = table.combine_first(pd.read_csv(file).set_index(list(KEY)))
    if other:
        more = pd.read_csv(folder / group / "other" / f"{name}.csv")
        more = more.assign(family=more.get("family", "mlp")).set_index(list(KEY))
        table = table.join(more, how="inner", rsuffix="_other")
    table = table.reset_index()
    if complete:
        whole = table.groupby("seed").size() == table.groupby("seed").size().max()
        table = table[table["seed"].isin(whole[whole].index)]
    else:
        table = table[table["status"] == "complete"]
    return ranked(table, worst=complete)


def ranked(table: pd.DataFrame, *, worst: bool = False) -> Ranked:
    """Return a table, a row per network and seed, as arrays.

    Args:
        table: with the columns `KEY`, test results and scores.
        worst: give a network without a test result the worst, and sort the networks.
    """
    index = pd.MultiIndex.from_frame(table[list(KEY[1:])].drop_duplicates())
    index = index.sort_values() if worst else index
    arrays = {
        column: table.pivot(index=list(KEY[1:]), columns="seed", values=column)
        .reindex(index).to_numpy(float)
        for column in table
        if column not in KEY and table[column].dtype.kind in "iuf"
    }  # fmt: skip
    loss = arrays["test_nll"]
    if worst:
        loss = np.where(np.isnan(loss), np.nanmax(loss), loss)
    nothing = np.full_like(loss, np.nan)
    accuracy = arrays.get("test_accuracy", nothing)
    real = bool(np.isnan(accuracy).all())
    second = -arrays.get("test_rmse", nothing) if real else accuracy
    n_data = int(np.nanmax(arrays.get("n_data", np.zeros(1))))
    return Ranked(loss, second, arrays, real, n_data, index.tolist())


def spearman(x: np.ndarray, y: np.ndarray) -> Any:
    """Return rho along the first axis, with mean ranks for ties; NaN if either is constant."""
    a, b = (rankdata(v, axis=0) - (len(v) + 1) / 2 for v in (x, y))
    size = np.sqrt((a * a).sum(0) * (b * b).sum(0))
    return (a * b).sum(0) / np.where((size > 0) & (len(x) > 2), size, np.nan)


def between_seeds(loss: np.ndarray) -> float:
    """Return rho of one seed's test log loss with that of another, mean over pairs of seeds."""
    pairs = combinations(loss[np.isfinite(loss).all(1)].T, 2)
    each = [float(spearman(one, other)) for one, other in pairs]
    return float(np.mean(each)) if each else float("nan")


def attainable(between: float, seeds: int = 1) -> float:
    """Return the rho that a score without noise reaches with the mean of so many seeds.

    Args:
        between: mean rho between two single seeds; below 0 it counts as 0.
        seeds: in the mean of the target.
    """
    r = float(np.maximum(between, 0.0))
    return (seeds * r / (1 + (seeds - 1) * r)) ** 0.5


# --- by the loss of other seeds


def judged(pool: Ranked, scores: Iterable[str]) -> dict[str, Any]:
    """Return attainable, and for each score rho and regret, means over seeds."""
    loss, n_seeds = pool.loss, pool.loss.shape[1]
    between = between_seeds(loss)
    return {
        "n_data": pool.n_data, "networks": len(loss), "seeds": n_seeds,
        "attainable": round(attainable(between, n_seeds - 1), 3),
        "scores": _by_score(pool, list(scores)),
    }  # fmt: skip


def _by_score(pool: Ranked, scores: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return rho and regret, means over the seeds in which three networks or more have a score."""
    n_seeds = pool.loss.shape[1]
    truth = np.stack([np.delete(pool.loss, k, 1).mean(1) for k in range(n_seeds)], axis=1)
    values = np.stack([_signed(pool, score) for score in scores], axis=1)  # [n, scores, seeds]
    known = np.isfinite(values).sum(0) > 2
    least = np.where(np.isfinite(values), values, np.inf).min(0)
    values = np.where(np.isnan(values), np.where(known, least - 1, 0.0), values)
    rho = spearman(values, np.broadcast_to(-truth[:, None], values.shape))
    regret = truth[values.argmax(0), np.arange(n_seeds)] - truth.min(0)
    return {
        score: {"rho": round(rho[i, known[i]].mean(), 3),
                "regret": round(regret[i, known[i]].mean(), 4)}
        for i, score in enumerate(scores) if known[i].any()
    }  # fmt: skip


def with_estimates(pool: Ranked, scores: Iterable[str]) -> Ranked:
    """Add the scores NAME@noisy-trend, each seed on its own."""
    found = dict(pool.scores)
    points, ordered = _points(pool)
    for score in scores:
        name, _, prior = score.partition("@")
        if not prior:
            continue
        values = _signed(pool, name)
        found[score] = np.full_like(values, np.nan)
        for k in range(values.shape[1]):
            known = np.isfinite(values[:, k])
            if known.sum() > 2:
                own = [[v] for v in values[known, k]]
                posterior = ArchitecturePosterior(
                    points[known], ordered, own, prior=OF_NOISY_SEEDS
                )
                found[score][known, k] = posterior.mean()
    return pool._replace(scores=found)


def _points(pool: Ranked) -> tuple[np.ndarray, list[bool]]:
    """Return depth and log width of each network in the range of its family, and its family."""
    table = pd.DataFrame(pool.networks, columns=["family", "depth", "width"])
    table["width"] = np.log2(table["width"])
    own = table.groupby("family")[["depth", "width"]]
    low, size = own.transform("min"), own.transform("max") - own.transform("min")
    family = pd.factorize(table["family"])[0].astype(float)
    points = ((table[["depth", "width"]] - low) / size.where(size > 0, 1)).to_numpy(float)
    if family.any():
        return np.column_stack([family, points]), [False, True, True]
    return points, [True, True]


def _signed(pool: Ranked, score: str) -> np.ndarray:
    """Return a score [networks, seeds], NaN if the pool has none; few parameters are better."""
    if score == "mean5":
        return (_signed(pool, "e5") + _signed(pool, "plain5")) / 2
    values = pool.scores.get(score, np.full_like(pool.loss, np.nan))
    return -values if score == "n_parameters" else values


def differences(pools: Sequence[Ranked], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return mean differences of rho and regret between scores, with 90 % intervals."""
    random, names = (
        np.random.default_rng(0),
        list(dict.fromkeys(s for pair in pairs for s in pair)),
    )
    draws = []
    for _ in range(_DRAWS):
        of = []
        for k in random.integers(0, len(pools), len(pools)):
            n = len(pools[k].loss)
            rows = np.unique(random.integers(0, n, n))
            of.append(_by_score(pools[k].some(rows), names))
        draws.append(of)
    real, found = [_by_score(pool, names) for pool in pools], {}
    for (a, b), what in ((pair, what) for pair in pairs for what in ("rho", "regret")):
        if np.isnan(mean := _mean(real, a, b, what)):  # no pool has both
            continue
        low, high = np.nanquantile([_mean(of, a, b, what) for of in draws], [0.05, 0.95])
        found[f"{a} - {b}, {what}"] = [round(float(v), 3) for v in (mean, low, high)]
    return found


def _mean(of: Sequence[Mapping[str, Any]], a: str, b: str, what: str) -> float:
    """Return the mean difference of two scores over pools that have both."""
    both = [s[a][what] - s[b][what] for s in of if a in s and b in s]
    return float(np.nanmean(both)) if both else float("nan")


def compared(
    pools: Mapping[str, Ranked],
    scores: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    *,
    together: str = "",
) -> dict[str, Any]:
    """Return how scores rank each pool, and their differences by kind of target.

    Args:
        pools: by name.
        scores: to judge.
        pairs: to compare.
        together: the name of the differences on all pools, if they are wanted.
    """
    classes = [pool for pool in pools.values() if not pool.real]
    real = [pool for pool in pools.values() if pool.real]
    kinds = {together: [*pools.values()]} if together else {}
    kinds |= {"classes": classes, "real targets": real}
    return {
        "pools": {name: judged(pool, scores) for name, pool in pools.items()},
        "differences": {kind: differences(of, pairs) for kind, of in kinds.items() if of},
    }


# --- by the loss of the same seed


def by_own_loss(name: str, pool: Ranked, scores: Iterable[str]) -> dict[str, Any]:
    """Return attainable, and for each score rho with the loss and with accuracy or minus RMSE."""
    found: dict[str, dict[str, float]] = {}
    for score in scores:
        value = pool.scores.get(score, np.full_like(pool.loss, np.nan))
        known = np.isfinite(value) & np.isfinite(pool.loss)
        each = [
            [float(spearman(value[rows, k], of[rows, k])) for of in (-pool.loss, pool.second)]
            for k, rows in enumerate(known.T) if rows.sum() >= _FEWEST
        ]  # fmt: skip
        if each:
            rho, second = (float(v) for v in np.mean(each, axis=0))
            found[score] = {"rho": rho, "rho_second": second, "n_seeds": len(each)}
    return {
        "pool": name,
        "task": "real" if pool.real else "labels",
        "n_data": pool.n_data,
        "networks": [int(np.isfinite(seed).sum()) for seed in pool.loss.T],
        "attainable": attainable(between_seeds(pool.loss)),
        "scores": found,
    }


# --- files


def of_wide(names: Sequence[str]) -> dict[str, Any]:
    """Return the numbers of some pools of `wide`."""
    there = (name for name in names if (RESULTS / "wide" / f"{name}.csv").exists())
    pools = {name: read("wide", name) for name in there}
    return {"pools": [by_own_loss(name, pool, WIDE) for name, pool in pools.items()]}


def of_alone() -> dict[str, Any]:
    """Return rho of scores of fold networks with the test log loss of the network of all rows."""
    found = []
    for name in POOLS["folds/alone"]:
        table, whole = (
            pd.read_csv(RESULTS / group / f"{name}.csv").set_index(list(KEY))
            for group in ("folds/alone", "folds")
        )
        delivered = whole.loc[whole["status"] == "complete", ["test_nll"]]
        table = table[table["status"] == "complete"].drop(columns="test_nll").join(delivered)
        pool = ranked(table.dropna(subset="test_nll").reset_index())
        pool.scores["mean"] = (pool.scores["e5"] + pool.scores["plain5"]) / 2
        found.append(by_own_loss(name, pool, ALONE))
    return {"pools": found}


def of_folds(group: str = "folds") -> dict[str, Any]:
    """Return the numbers of decision 17."""
    few = ("fashion", "kin8nm2000x5", "naval2000x5", "power2000x5")
    pairs = [("e5", other) for other in SCORES[1:]]
    plain = [("plain5", "five_fold")]
    own = POOLS[group]
    parts: dict[str, Sequence[str]] = {
        "open": [n for n, p in own.items() if not p.aside and p.n_train < 2000 and n not in few],
        "aside": [n for n, p in own.items() if p.aside],
        "images, 2,000 real targets": few,
    }
    read_all = {k: {n: read(group, n, complete=True) for n in v} for k, v in parts.items()}
    found: dict[str, Any] = {k: compared(v, SCORES, pairs + plain) for k, v in read_all.items()}
    small = {n: pool for own in read_all.values() for n, pool in own.items() if pool.n_data <= 300}
    together = compared(small, SCORES, pairs + plain, together="all")
    return found | {"all of 150 to 300 rows": {"differences": together["differences"]}}


def of_other_folds() -> dict[str, Any]:
    """Return the numbers of other folds in decision 17; `loo` is no longer trained."""
    scores = ("e10", "plain10", "e5r", "plain5r", "loo")
    pairs = [(one, "e5") for one in scores] + [("plain5r", "plain5"), ("e10", "plain10")]
    pools = {n: read("folds", n, complete=True, other=True) for n in POOLS["folds/other"]}
    pools = dict(sorted(pools.items(), key=lambda one: one[1].real))
    return compared(pools, ("e5", "plain5", "five_fold", "e2", *scores), pairs, together="all")


def of_rank() -> dict[str, Any]:
    """Return the numbers of decision 27: pools to choose on, kept aside, and of a second look."""
    named = [f"{score}@{NAMED}" for score in ("e5", "plain5", "mean5")]
    scores = ("plain5", "mean5", *named)
    parts = {
        "chosen on": ("rank", [n for n, pool in POOLS["rank"].items() if not pool.aside]),
        "kept aside": ("rank", [n for n, pool in POOLS["rank"].items() if pool.aside]),
        "second look": ("rank/second", [*POOLS["rank/second"]]),
    }
    found = {}
    for part, (group, names) in parts.items():
        pools = {n: with_estimates(read(group, n, complete=True), scores) for n in names}
        found[part] = compared(pools, ("e5", *scores), [(one, "e5") for one in scores])
    return found


#: By the name of a file in benchmarks/results.
FILES = {
    "ranking_rank": of_rank,
    "ranking_wide": lambda: of_wide(SMALL),
    "ranking_large": lambda: of_wide(LARGE),
    "ranking_folds": of_folds,
    "ranking_alone": of_alone,
    "ranking_other_folds": of_other_folds,
}


def number(value: float | None, digits: int = 2) -> str:
    """Return a number for a cell, a dash where there is none."""
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *lines))


def main() -> None:
    """Write files of results."""
    for name in sys.argv[1:] or FILES:
        text = json.dumps(FILES[name](), indent=1) + "\n"
        (RESULTS.parent / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
