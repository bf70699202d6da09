"""How well each score ranks the pools of wide.py: tables of docs/explanation/ranking-results.md.

    python benchmarks/ranking/compare_wide.py [--aside | --all | --large | --own
                                               | --only POOL ...] [--out FILE.json]

    target    minus the test log loss of the same network; accuracy or minus RMSE second
    rho       Spearman's, of one seed, mean over seeds, with the interval of 95 % of a bootstrap
              that draws architectures; rho of the mean of the seeds likewise
    regret    test log loss of the first choice minus that of the best, nats per datum; the same in
              points of accuracy, or per cent of the best RMSE
    between_seeds  rho of one seed's test log loss with that of another, mean over pairs of seeds:
              the reliability of one seed
    attainable  what a score without noise that shares nothing with the seeds of the target reaches
              with the mean of m seeds: √R_m, R_m = m r / (1 + (m - 1) r), r = between_seeds
              (Spearman 1910; Brown 1910). Here all seeds share the draws of training and test
              data, and a score shares the seed of its own target: it may be above
    ahead     rho of a score minus that of another, mean over pools, with the interval of 90 % of a
              bootstrap that draws architectures within each pool, the same ones for both scores
              and for all seeds

The pools kept aside are read with `--aside` or `--all` only, those of 1,000 data or more with
`--large` only, those with the plan that your tables get with `--own` only.
"""

import argparse
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from wide import ASIDE, LONG, POOLS, RESULTS

KEY = ["seed", "family", "depth", "width"]
#: Trainings beside the main one.
COST = {
    "two_fold": 1.0, "tangent_conditional": 1.0, "last_layer_conditional": 1.0,
    "heldout_10": 0.9, "five_fold": 4.0, "prequential_replay": 0.8,
}  # fmt: skip
ORDER = (
    "two_fold", "tangent_conditional", "last_layer_conditional", "prequential_replay",
    "heldout_10", "five_fold", "tangent", "ntk_init", "kfac_ggn", "diag_ef", "full_ggn", "sotl",
    "train_nll_per_datum", "n_parameters",
)  # fmt: skip
_RESAMPLES = 500
#: Pools for other questions, without all scores.
_OTHER = ("power24", "australian24", "waveform72", "kin8nm72", "mnist72")


def table_of(pool: str, folder: Path) -> pd.DataFrame:
    """Return one row per network and seed, of all files of a pool."""
    table = pd.read_csv(folder / f"{pool}.csv").set_index(KEY)
    for more in ("plain", "replay", "folds", "tangents"):
        file = folder / f"{pool}-{more}.csv"
        if file.exists():
            table = table.combine_first(pd.read_csv(file).set_index(KEY))
    table = table[table["status"] == "complete"].reset_index()
    table = table.reindex(columns=list(dict.fromkeys([*table, *ORDER])))
    real = table["test_accuracy"].isna().all()
    table["loss"] = table["test_nll"]
    table["second"] = -table["test_rmse"] if real else table["test_accuracy"]
    table.attrs["real"] = real
    return table


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return rho with mean ranks for ties, NaN if either is constant."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    a, b = (rankdata(v) - (len(v) + 1) / 2 for v in (x, y))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def one_seed(rows: pd.DataFrame, score: str) -> dict[str, float]:
    """Return how well a score ranks the networks of one seed."""
    some = rows.dropna(subset=[score])
    value, loss, second = (some[c].to_numpy() for c in (score, "loss", "second"))
    first = int(np.argmax(value))
    best = second.max()
    points = 100 * (best - second[first]) / (abs(best) if rows.attrs["real"] else 1.0)
    found = {
        "rho": spearman(value, -loss),
        "rho_second": spearman(value, second),
        "regret_nats": float(loss[first] - loss.min()),
        "regret_points": float(points),
    }
    for family, part in some.groupby("family"):
        if some["family"].nunique() > 1:
            found[f"rho_{family}"] = spearman(part[score].to_numpy(), -part["loss"].to_numpy())
    return found


def between_seeds(table: pd.DataFrame) -> float:
    """Return rho of one seed's test log loss with that of another, mean over pairs of seeds."""
    wide = table.pivot_table(index=KEY[1:], columns="seed", values="loss").dropna()
    pairs = combinations(wide.to_numpy().T, 2)
    each = [spearman(one, other) for one, other in pairs]
    return float(np.mean(each)) if each else float("nan")


def attainable(between: float, seeds: int = 1) -> float:
    """Return the rho that a score without noise reaches with the mean of so many seeds.

    Args:
        between: mean rho between two single seeds; below 0 it counts as 0.
        seeds: in the mean of the target.
    """
    r = float(np.maximum(between, 0.0))
    return (seeds * r / (1 + (seeds - 1) * r)) ** 0.5


def means_of(table: pd.DataFrame, score: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean score over seeds and minus the mean test log loss."""
    means = table.groupby(KEY[1:])[[score, "loss"]].mean().dropna()
    return means[score].to_numpy(), -means["loss"].to_numpy()


def drawn_for(sizes: list[int], random: np.random.Generator) -> list[np.ndarray]:
    """Return draws of architectures for each seed: the same ones where seeds have as many."""
    draws = {size: random.integers(0, size, size) for size in dict.fromkeys(sizes)}
    return [draws[size] for size in sizes]


def interval(pairs: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Return the interval of 95 % of the mean rho of some seeds, over draws of architectures."""
    random, drawn = np.random.default_rng(0), []
    for _ in range(_RESAMPLES):
        picks = drawn_for([len(x) for x, _ in pairs], random)
        each = [spearman(x[at], y[at]) for (x, y), at in zip(pairs, picks, strict=True)]
        drawn.append(np.nanmean(each))
    return [float(v) for v in np.nanquantile(drawn, [0.025, 0.975])]


def compare(pool: str, folder: Path) -> dict[str, object]:
    """Return all numbers of one pool."""
    table = table_of(pool, folder)
    seeds = [rows.assign() for _, rows in table.groupby("seed")]
    scores: dict[str, dict[str, Any]] = {}
    for score in ORDER:
        known = [rows for rows in seeds if score in rows and rows[score].notna().sum() >= 6]
        if not known:
            continue
        for rows in known:
            rows.attrs["real"] = table.attrs["real"]
        each = [one_seed(rows, score) for rows in known]
        scores[score] = {k: float(np.mean([e[k] for e in each])) for k in each[0]}
        scores[score]["n_seeds"] = len(known)
        scores[score]["networks"] = float(np.mean([rows[score].notna().sum() for rows in known]))
        pairs = [
            (some[score].to_numpy(), -some["loss"].to_numpy())
            for rows in known
            if len(some := rows.dropna(subset=[score]))
        ]
        scores[score]["rho_95"] = interval(pairs)
        if len(known) > 1:
            mean = means_of(pd.concat(known), score)
            scores[score]["rho_of_mean"] = spearman(*mean)
            scores[score]["rho_of_mean_95"] = interval([mean])
    return {
        "pool": pool,
        "task": "real" if table.attrs["real"] else "labels",
        "n_data": int(table["n_data"].max()),
        "networks": [len(rows) for rows in seeds],
        "between_seeds": (between := between_seeds(table)),
        "attainable": attainable(between),
        "attainable_of_mean": attainable(between, len(seeds)),
        "log_loss": [float(table["loss"].min()), float(table["loss"].max())],
        "second": [float(table["second"].min()), float(table["second"].max())],
        "agreement": float(
            np.mean([spearman(-r["loss"].to_numpy(), r["second"].to_numpy()) for r in seeds])
        ),
        "scores": scores,
    }


def differences(pools: list[str], folder: Path, target: str = "loss") -> list[dict[str, object]]:
    """Return rho of one score minus another, mean over pools and seeds, with its interval.

    Args:
        pools: their names.
        folder: of the results.
        target: "loss", the test log loss, or "second", accuracy or minus RMSE.
    """
    sign = -1 if target == "loss" else 1
    random = np.random.default_rng(0)
    tables = [table_of(pool, folder) for pool in pools]
    found = []
    for one, other in combinations((*ORDER[:6], "n_parameters", "sotl"), 2):
        pools_of = [
            [
                part[[one, other, target]].to_numpy()
                for _, rows in table.groupby("seed")
                if len(part := rows.dropna(subset=[one, other])) >= 6
            ]
            for table in tables
        ]
        pairs = [part for pool in pools_of for part in pool]
        if not pairs:
            continue
        exact = [_gap(part, sign) for part in pairs]
        drawn = [
            np.nanmean(
                [
                    _gap(part[at], sign)
                    for pool in pools_of
                    for part, at in zip(
                        pool, drawn_for([len(p) for p in pool], random), strict=True
                    )
                ]
            )
            for _ in range(_RESAMPLES)
        ]
        low, high = np.nanquantile(drawn, [0.05, 0.95])
        found.append({
            "one": one, "other": other, "difference": float(np.mean(exact)), "low": float(low),
            "high": float(high), "n": len(pairs), "ahead_on": sum(gap > 0 for gap in exact),
        })  # fmt: skip
    return found


def _gap(part: np.ndarray, sign: int) -> float:
    target = sign * part[:, 2]
    return spearman(part[:, 0], target) - spearman(part[:, 1], target)


def _print(found: list[dict[str, object]], gaps: list[dict[str, object]]) -> None:
    for title, what in (
        ("rho with test log loss", "rho"), ("rho with accuracy or RMSE", "rho_second"),
        ("regret, nats per datum", "regret_nats"), ("regret, points or % RMSE", "regret_points"),
        ("rho, mean of seeds", "rho_of_mean"), ("rho, MLPs", "rho_mlp"), ("rho, CNNs", "rho_cnn"),
    ):  # fmt: skip
        print(f"\n{title}\n| pool | attainable | " + " | ".join(ORDER) + " |")
        print("|---" * (len(ORDER) + 2) + "|")
        for pool in found:
            cells = [_n(pool["scores"].get(s, {}).get(what)) for s in ORDER]
            name = f"{pool['pool']} ({pool['n_data']}; {'+'.join(map(str, pool['networks']))})"
            print(f"| {name} | {_n(pool['attainable'])} | " + " | ".join(cells) + " |")
        means = [
            np.nanmean([p["scores"].get(s, {}).get(what, np.nan) for p in found]) for s in ORDER
        ]
        print("| mean | | " + " | ".join(_n(m) for m in means) + " |")
    print("\nrho over what is attainable: ratio of the means, pools below 0.75")
    known = [pool for pool in found if np.isfinite(pool["attainable"])]
    for score in ORDER:
        own = [(p["scores"][score]["rho"], p["attainable"]) for p in known if score in p["scores"]]
        if own:
            below = sum(rho < 0.75 * most for rho, most in own)
            ratio = np.mean([rho for rho, _ in own]) / np.mean([most for _, most in own])
            print(f"| {score} | {ratio:.2f} | {below} of {len(own)} |")
    print(
        "\nrho with test log loss of one seed, mean; of the mean of the seeds; intervals of 95 %"
    )
    for pool in found:
        for score in ORDER[:6]:
            if one := pool["scores"].get(score):
                mean = f"{_n(one.get('rho_of_mean'))} {_interval(one.get('rho_of_mean_95'))}"
                print(f"| {pool['pool']} | {score} | {_n(one['rho'])} "
                      f"{_interval(one['rho_95'])} | {mean} |")  # fmt: skip
    _print_gaps(gaps)


def _print_gaps(gaps: list[dict[str, object]]) -> None:
    print("\n| score | minus | rho | 90 % | ahead on |\n|---|---|---|---|---|")
    for gap in gaps:
        print(
            f"| {gap['one']} | {gap['other']} | {gap['difference']:+.2f} | "
            f"{gap['low']:+.2f} to {gap['high']:+.2f} | {gap['ahead_on']} of {gap['n']} |"
        )


def _interval(ends: list[float] | None) -> str:
    return "" if ends is None else f"[{ends[0]:.2f}, {ends[1]:.2f}]"


def _n(value: float | None) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:.2f}"


def main() -> None:
    """Compare, print, and write the numbers where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--aside", action="store_true", help="only the pools kept aside")
    which.add_argument("--all", action="store_true", help="these and the open ones")
    which.add_argument("--large", action="store_true", help="pools of 1,000 data or more")
    which.add_argument("--only", nargs="+", choices=[*POOLS, *LONG], help="these pools")
    which.add_argument("--own", action="store_true", help="tables with the plan they would get")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [n for n in POOLS if options.all or (n in ASIDE) == options.aside]
    if options.large or options.own:
        names = [n for n in LONG if n not in _OTHER and n.endswith("_own") == options.own]
    names = options.only or names
    names = [n for n in names if (options.results / f"{n}.csv").exists()]
    found = [compare(name, options.results) for name in names]
    gaps = differences(names, options.results)
    _print(found, gaps)
    if options.only:
        print("\nthe same with accuracy or RMSE")
        _print_gaps(differences(names, options.results, "second"))
    if options.out:
        result = {"pools": found, "differences": gaps}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
