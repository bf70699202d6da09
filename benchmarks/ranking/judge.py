"""How well scores rank the networks of the pools: docs/results/how-well-it-ranks.md.

    python benchmarks/ranking/judge.py GROUP [--pools NAME ...] [--scores NAME ...]
                                       [--minus NAME ...] [--predictor X] [--own | --second]
                                       [--out F]
    python benchmarks/ranking/judge.py --results [NAME ...]    # the files of results/

GROUP is a folder of results/ranking, trained by `pools.py`. By default a score of one seed is
judged by the mean test log loss of the other seeds:

    rho         Spearman's, mean over seeds
    attainable  what a score without noise that shares nothing with the seeds of the target
                reaches: √R_m, R_m = m r / (1 + (m - 1) r) for the mean of m seeds, r the mean rho
                between two seeds (Spearman 1910; Brown 1910)
    regret      loss of the first choice minus the least of the pool, nats per datum
    chosen      test result of the first choice in other seeds: per cent right, or RMSE over that
                of the best
    a - b       mean over pools of a difference, with the 90 % interval of a bootstrap that draws
                pools, then networks, the same ones for both scores

Scores that no column has are made of others: `mean5` is the mean of e5 and plain5, and NAME@PRIOR
is what `ArchitecturePosterior` makes of NAME under one of `PRIORS`.
`--predictor X` judges by the loss of another predictor, see `_last_layers.py`.

`--own` judges by the loss of the same seed, `--second` by its accuracy or RMSE: then the bootstrap
draws networks within each pool, and rho has an interval of 95 % of the same kind. All seeds of
`wide` share the draw of the data, and a score its seed: rho may be above attainable.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from _last_layers import PREDICTORS
from pools import KEY, POOLS, RESULTS
from scipy.stats import rankdata

from nas_evidence.maths.architecture_posterior import ArchitecturePosterior, Prior

SCORES = ("e5", "e2", "plain5", "plain2", "five_fold", "two_fold", "heldout_10", "kfac_ggn",
          "n_parameters")  # fmt: skip
#: Of the pools `wide`, some of scores that are gone; `PAIRED` are compared with one another.
WIDE = ("two_fold", "tangent_conditional", "last_layer_conditional", "prequential_replay",
        "heldout_10", "five_fold", "tangent", "ntk_init", "kfac_ggn", "diag_ef", "full_ggn",
        "sotl", "train_nll_per_datum", "n_parameters")  # fmt: skip
PAIRED = (*WIDE[:6], "n_parameters", "sotl")
#: Means of columns, by the name that they make.
MEANS = {"mean5": ("e5", "plain5"), "mean_factored5": ("e5", "factored5")}
_NOISY: dict[str, Any] = {"medians": (1.0, 0.1, 0.8), "widths": (0.5, 0.3, 0.3),
                          "length": 1.0, "length_width": 0.5}  # fmt: skip
#: Priors of `ArchitecturePosterior` that were tried.
PRIORS = {
    "same": Prior(), "trend": Prior(slope=1.0), "above": Prior(above=True),
    "both": Prior(slope=1.0, above=True), "noisy": Prior(**_NOISY),
    "noisy-trend": Prior(**_NOISY, slope=1.0),
    "noisy-both": Prior(**_NOISY, slope=1.0, above=True),
    "half": Prior((1.0, 0.1, 0.5), (0.7, 0.5, 0.5)),
    "half-trend": Prior((1.0, 0.1, 0.5), (0.7, 0.5, 0.5), slope=1.0),
}  # fmt: skip
SMALL, OWN = list(POOLS["wide"])[:11], [name for name in POOLS["wide"] if name.endswith("_own")]
LARGE = [n for n, pool in POOLS["wide"].items() if pool.n_train >= 1000]
_RESAMPLES, _DRAWS, _FEWEST = 500, 400, 6


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
    group: str, name: str, folder: Path = RESULTS, *, complete: bool = False,
    other: bool = False, predictor: str = "",
) -> Ranked:  # fmt: skip
    """Return a trained pool.

    Args:
        group: of the pool.
        name: of the pool; what `<name>-folds.csv` knows is added.
        folder: of the results.
        other: add the scores of the pool of `GROUP/other`, and leave out seeds without them.
        complete: leave out seeds without all networks; a network that diverged has the worst loss.
        predictor: whose test log loss judges; by default that of the network as trained.

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
    if predictor:
        table["test_nll"] = table[f"test_nll_{predictor}"]
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
    """Add the scores NAME@PRIOR, each seed on its own."""
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
                posterior = ArchitecturePosterior(points[known], ordered, own, prior=PRIORS[prior])
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
    if score in MEANS and score not in pool.scores:
        return np.mean([_signed(pool, one) for one in MEANS[score]], axis=0)  # type: ignore[no-any-return]
    values = pool.scores.get(score, np.full_like(pool.loss, np.nan))
    return -values if score == "n_parameters" else values


def chosen(pool: Ranked, scores: Iterable[str]) -> dict[str, float]:
    """Return what the first choice of each score comes to in other seeds, mean over seeds."""
    truth, found = abs(pool.second), {}
    bad = np.nanmax(truth) if pool.real else np.nanmin(truth)
    truth = np.where(np.isnan(truth), bad, truth)
    for score in scores:
        given, of = _signed(pool, score), []
        for k in range(truth.shape[1]):
            others = np.delete(truth, k, 1).mean(1)
            if np.isfinite(given[:, k]).any():
                one = others[np.nanargmax(given[:, k])]
                of.append(one / others.min() if pool.real else 100 * one)
        if of:
            found[score] = round(float(np.mean(of)), 3)
    return found


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
    accuracies = ("five_fold_accuracy", "two_fold_accuracy")
    return {
        "pools": {name: judged(pool, scores) for name, pool in pools.items()},
        "per cent right, or RMSE over the best, of the first choice": {
            name: chosen(pool, (*scores, *accuracies)) for name, pool in pools.items()
        },
        "differences": {kind: differences(of, pairs) for kind, of in kinds.items() if of},
    }


# --- by the loss of the same seed


def _known(pool: Ranked, *scores: str) -> list[np.ndarray]:
    """Return for each seed the rows with all scores, where there are enough."""
    missing = np.full_like(pool.loss, np.nan)
    finite = [np.isfinite(pool.scores.get(score, missing)) for score in scores]
    both = np.all([*finite, np.isfinite(pool.loss)], axis=0)
    return [
        np.flatnonzero(seed) if seed.sum() >= _FEWEST else np.array([], int) for seed in both.T
    ]


def drawn_for(sizes: Sequence[int], random: np.random.Generator) -> list[np.ndarray]:
    """Return draws of architectures for each seed: the same ones where seeds have as many."""
    draws = {size: random.integers(0, size, size) for size in dict.fromkeys(sizes)}
    return [draws[size] for size in sizes]


def interval(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Return the interval of 95 % of the mean rho of some seeds, over draws of architectures."""
    random, drawn = np.random.default_rng(0), []
    for _ in range(_RESAMPLES):
        picks = drawn_for([len(x) for x, _ in pairs], random)
        each = [spearman(x[at], y[at]) for (x, y), at in zip(pairs, picks, strict=True)]
        drawn.append(np.nanmean(each))
    return [float(v) for v in np.nanquantile(drawn, [0.025, 0.975])]


def one_seed(pool: Ranked, score: str, seed: int, rows: np.ndarray) -> dict[str, float]:
    """Return how well a score ranks some networks of one seed."""
    value, loss, second = (of[rows, seed] for of in (pool.scores[score], pool.loss, pool.second))
    first, best = int(np.argmax(value)), second.max()
    found = {
        "rho": float(spearman(value, -loss)),
        "rho_second": float(spearman(value, second)),
        "regret_nats": float(loss[first] - loss.min()),
        "regret_points": float(100 * (best - second[first]) / (abs(best) if pool.real else 1.0)),
    }
    families = np.array([pool.networks[i][0] for i in rows])
    if len(names := sorted({*families})) > 1:
        for name in names:
            own = families == name
            found[f"rho_{name}"] = float(spearman(value[own], -loss[own]))
    return found


def by_own_loss(name: str, pool: Ranked, scores: Iterable[str]) -> dict[str, Any]:
    """Return all numbers of one pool."""
    found: dict[str, dict[str, Any]] = {}
    for score in scores:
        seeds = {k: rows for k, rows in enumerate(_known(pool, score)) if len(rows)}
        if not seeds:
            continue
        each = [one_seed(pool, score, k, rows) for k, rows in seeds.items()]
        own = found[score] = {key: float(np.mean([e[key] for e in each])) for key in each[0]}
        own["n_seeds"], own["networks"] = len(seeds), float(np.mean([*map(len, seeds.values())]))
        values = pool.scores[score]
        pairs = [(values[rows, k], -pool.loss[rows, k]) for k, rows in seeds.items()]
        own["rho_95"] = interval(pairs)
        if len(seeds) > 1:
            mean = means_of(pool, values, list(seeds))
            own["rho_of_mean"], own["rho_of_mean_95"] = float(spearman(*mean)), interval([mean])
    alone = [np.flatnonzero(np.isfinite(seed)) for seed in pool.loss.T]
    agree = [spearman(-pool.loss[r, k], pool.second[r, k]) for k, r in enumerate(alone)]
    between = between_seeds(pool.loss)
    return {
        "pool": name,
        "task": "real" if pool.real else "labels",
        "n_data": pool.n_data,
        "networks": [len(rows) for rows in alone],
        "between_seeds": between,
        "attainable": attainable(between),
        "attainable_of_mean": attainable(between, len(alone)),
        "log_loss": [float(np.nanmin(pool.loss)), float(np.nanmax(pool.loss))],
        "second": [float(np.nanmin(pool.second)), float(np.nanmax(pool.second))],
        "agreement": float(np.mean(agree)),
        "scores": found,
    }


def means_of(
    pool: Ranked, values: np.ndarray, seeds: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean score and minus the mean test log loss over seeds; networks by their name."""
    order = np.array(sorted(range(len(values)), key=pool.networks.__getitem__))
    value, minus_loss = (of[order][:, seeds] for of in (values, -pool.loss))
    known = np.isfinite(value).any(1) & np.isfinite(minus_loss).any(1)
    return np.nanmean(value[known], axis=1), np.nanmean(minus_loss[known], axis=1)


def gaps(
    pools: Sequence[Ranked], pairs: Iterable[tuple[str, str]], *, second: bool = False
) -> list[dict[str, object]]:
    """Return rho of one score minus another, mean over pools and seeds, with its interval."""
    random, found = np.random.default_rng(0), []
    for one, other in pairs:
        of_pools = [
            [
                (pool.scores[one][rows, k], pool.scores[other][rows, k],
                 pool.second[rows, k] if second else -pool.loss[rows, k])
                for k, rows in enumerate(_known(pool, one, other)) if len(rows)
            ]
            for pool in pools
        ]  # fmt: skip
        exact = [_gap(*part) for parts in of_pools for part in parts]
        if not exact:
            continue
        drawn = []
        for _ in range(_RESAMPLES):
            each = []
            for parts in of_pools:
                for part, at in zip(
                    parts, drawn_for([len(p[0]) for p in parts], random), strict=True
                ):
                    each.append(_gap(*(of[at] for of in part)))
            drawn.append(np.nanmean(each))
        low, high = np.nanquantile(drawn, [0.05, 0.95])
        found.append({
            "one": one, "other": other, "difference": float(np.mean(exact)), "low": float(low),
            "high": float(high), "n": len(exact), "ahead_on": sum(gap > 0 for gap in exact),
        })  # fmt: skip
    return found


def _gap(one: np.ndarray, other: np.ndarray, target: np.ndarray) -> float:
    return float(spearman(one, target) - spearman(other, target))


# --- files and tables


def of_wide(names: Sequence[str]) -> dict[str, Any]:
    """Return the numbers of some pools of `wide`."""
    there = (name for name in names if (RESULTS / "wide" / f"{name}.csv").exists())
    pools = {name: read("wide", name) for name in there}
    return {
        "pools": [by_own_loss(name, pool, WIDE) for name, pool in pools.items()],
        "differences": gaps(list(pools.values()), combinations(PAIRED, 2)),
    }


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


#: Of decision 27: the scores of the network as trained, and the estimate that was named.
RANK_SCORES = ("e5", "held5", "plain5", "factored5", "mean5", "five_fold", "two_fold", "kfac_ggn",
               "sotl", "fresh_60", "fresh_150")  # fmt: skip
NAMED = "noisy-trend"


def of_rank() -> dict[str, Any]:
    """Return the numbers of decision 27, of the pools to choose on and of those kept aside."""
    found: dict[str, Any] = {}
    named = [f"{score}@{NAMED}" for score in ("e5", "plain5", "factored5", "mean5")]
    pairs = [(score, "e5") for score in ("held5", "plain5", "factored5", "mean5")]
    pairs += [("factored5", "plain5"), *((one, one.split("@")[0]) for one in named)]
    pairs += [("factored5@noisy-trend", "e5"), ("plain5@noisy-trend", "e5")]
    for part, aside in (("chosen on", False), ("kept aside", True)):
        names = [n for n, pool in POOLS["rank"].items() if pool.aside == aside]
        pools = {n: with_estimates(read("rank", n, complete=True), named) for n in names}
        judged_all = compared(pools, (*RANK_SCORES, *named), pairs)
        found[part] = judged_all | {"losses": _losses(pools)}
    second = [name for name in ("plain5", "mean5", *named) if "factored" not in name]
    pools = {
        n: with_estimates(read("rank/second", n, complete=True), second)
        for n in POOLS["rank/second"]
    }
    found["second look"] = compared(pools, ("e5", *second), [(one, "e5") for one in second])
    return found


def _losses(pools: Mapping[str, Ranked]) -> dict[str, Any]:
    """Return the mean test log loss of each predictor, and its difference from the network's."""
    found: dict[str, Any] = {}
    random = np.random.default_rng(0)
    for kind, real in (("classes", False), ("real targets", True)):
        own = [pool for pool in pools.values() if pool.real == real]
        if not own:
            continue
        as_trained = np.array([np.nanmean(pool.loss) for pool in own])
        found[kind] = {"A": [float(as_trained.mean())]}
        for name in PREDICTORS:
            each = [np.nanmean(pool.scores[f"test_nll_{name}"]) for pool in own]
            gap = np.array(each) - as_trained
            drawn = gap[random.integers(0, len(gap), (2000, len(gap)))].mean(1)
            ends = (gap.mean(), *np.quantile(drawn, [0.05, 0.95]))
            found[kind][name] = [float(v) for v in (np.mean(each), *ends)]
    return found


#: By the name of a file in benchmarks/results.
FILES = {
    "ranking_rank": of_rank,
    "ranking_wide": lambda: of_wide(SMALL),
    "ranking_large": lambda: of_wide(LARGE),
    "ranking_own": lambda: of_wide(OWN),
    "ranking_folds": of_folds,
    "ranking_other_folds": of_other_folds,
}


def number(value: float | None, digits: int = 2) -> str:
    """Return a number for a cell, a dash where there is none."""
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *lines))


def tables(found: Mapping[str, Any], scores: Sequence[str]) -> str:
    """Return rho and regret by pool, and the differences with their intervals."""
    lines, pools = [], found["pools"]
    pools = pools if isinstance(pools, dict) else {pool["pool"]: pool for pool in pools}
    for name, pool in pools.items():
        of = [pool["scores"].get(score, {}) for score in scores]
        cells = (
            f"{number(o.get('rho'))}, {number(o.get('regret', o.get('regret_nats')), 3)}"
            for o in of
        )
        lines.append([name, f"{pool['n_data']:,}", number(pool["attainable"]), *cells])
    text = markdown(["pool: rho, regret", "data", "attainable", *scores], lines)
    of = found["differences"]
    if isinstance(of, list):
        of = {
            "own": {
                f"{d['one']} - {d['other']}": (d["difference"], d["low"], d["high"]) for d in of
            }
        }
    rows = [
        [k, pair, *(f"{v:+.3f}" for v in own)]
        for k, some in of.items()
        for pair, own in some.items()
    ]
    return text + "\n" + markdown(["pools", "difference", "mean", "5 %", "95 %"], rows)


def main() -> None:
    """Judge some pools and print, or write the files of results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", nargs="?", choices=list(POOLS), default="folds")
    parser.add_argument("--pools", nargs="+", help="by default all that were trained")
    parser.add_argument("--scores", nargs="+", default=list(SCORES))
    parser.add_argument("--minus", nargs="+", help="compared with the first score; by default all")
    parser.add_argument("--predictor", default="", choices=("", *PREDICTORS))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--own", action="store_true", help="by the loss of the same seed")
    which.add_argument("--second", action="store_true", help="by its accuracy or RMSE")
    which.add_argument(
        "--results", nargs="*", choices=list(FILES), help="write these files, or all"
    )
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the trained pools")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.results is not None:
        for name in given.results or FILES:
            text = json.dumps(FILES[name](), indent=1) + "\n"
            (RESULTS.parent / f"{name}.json").write_text(text, encoding="utf-8")
        return
    trained = [n for n in POOLS[given.group] if (given.folder / given.group / f"{n}.csv").exists()]
    names, scores = given.pools or trained, given.scores
    pairs = [(scores[0], other) for other in given.minus or scores[1:]]
    alone = given.own or given.second
    pools = {
        n: with_estimates(
            read(given.group, n, given.folder, complete=not alone, predictor=given.predictor),
            [*scores, *(given.minus or ())],
        )
        for n in names
    }
    if alone:
        found: dict[str, Any] = {
            "pools": [by_own_loss(name, pool, scores) for name, pool in pools.items()],
            "differences": gaps([*pools.values()], pairs, second=given.second),
        }
    else:
        pools = {name: pool for name, pool in pools.items() if pool.loss.shape[1] > 1}
        found = compared(pools, scores, pairs, together="all")
    print(tables(found, scores))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
