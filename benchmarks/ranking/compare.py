"""How well each score ranks the architectures of a pool: tables of docs/explanation/ranking.md.

    python benchmarks/ranking/compare.py POOL... [--out F]

A pool is the folder of a study. The target is the test accuracy, the mean over seeds. Three
questions are asked of every score:

    mean    the mean over seeds ranks the architectures
    seed    one seed ranks them, as in a search without replicates: mean over the seeds, and range
    epochs  the same as `mean`, at every evaluation epoch

`two_fold` has two folds, each half predicted by a network trained on the other, for one training
more; `two_fold, one fold` has the first alone, for half a training.
"""

import argparse
import json
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd

from nas_evidence.codec import load_study
from nas_evidence.maths.ranking import rank_statistics, resampling_plan
from nas_evidence.store import read_tables

TARGET = "test_accuracy"


def scores_of(folder: Path) -> pd.DataFrame:
    """Return (architecture, family, replicate, epoch, score, value) of the complete trials."""
    tables, _ = read_tables(folder, ["trials", "evidence", "terms"])
    trials = tables["trials"]
    trials = trials[trials["status"] == "complete"]
    known = trials[["trial_id", "architecture_key", "family", "replicate", TARGET]]
    evidence = tables["evidence"]
    evidence = evidence[evidence["valid"].fillna(False).astype(bool)]
    rows = evidence[["trial_id", "epoch", "estimator", "value"]]
    parts = pd.concat([rows, *_one_fold(tables["terms"])], ignore_index=True)
    return parts.merge(known, on="trial_id")


def _one_fold(terms: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for estimator, term in (("two_fold", "log_predictive"), ("two_fold_accuracy", "hits")):
        some = terms[(terms["estimator"] == estimator) & (terms["term"] == term)]
        # Pools of earlier versions call the second fold "... reversed".
        first = some[~some["group"].str.contains("reversed|fold 2")]
        yield first[["trial_id", "epoch", "value"]].assign(estimator=f"{estimator}, one fold")


def ranked(scores: pd.DataFrame, target: pd.Series, families: pd.Series) -> dict[str, object]:
    """Return the statistics of one score, indexed by architecture, pooled and by family."""
    both = pd.concat([scores, target, families], axis=1, keys=["x", "y", "family"]).dropna()
    found: dict[str, object] = {}
    groups = {"all": both} | dict(list(both.groupby("family")))
    for name, rows in groups.items():
        plan = resampling_plan(len(rows), seed=0)
        got = rank_statistics(rows["x"], rows["y"], plan=plan)
        low, high = (
            (got.rho_interval.low, got.rho_interval.high) if got.rho_interval else (None, None)
        )
        found[name] = {
            "n": got.n, "rho": got.rho, "rho_low": low, "rho_high": high, "tau": got.tau,
            "regret_1": got.regret[1] if got.regret else None,
            "regret_3": got.regret[3] if got.regret else None,
        }  # fmt: skip
    return found


def compare(folder: Path) -> dict[str, object]:
    """Return every table of one pool."""
    table = scores_of(folder)
    last = table[table["epoch"] == table.groupby("trial_id")["epoch"].transform("max")]
    by_arch = last.groupby("architecture_key")
    target, families = by_arch[TARGET].mean(), by_arch["family"].first()
    size = last[last["estimator"] == "n_parameters"].groupby("architecture_key")["value"].first()
    mean, seeds, epochs, partial = {}, {}, {}, {}
    for name, rows in last.groupby("estimator"):
        values = rows.groupby("architecture_key")["value"].mean()
        mean[name] = ranked(values, target, families)
        both = pd.concat([values, target, size], axis=1, keys=["x", "y", "z"]).dropna()
        plan = resampling_plan(len(both), seed=0)
        got = rank_statistics(both["x"], both["y"], plan=plan, given=both["z"])
        partial[name] = got.partial
        alone = [
            ranked(one.set_index("architecture_key")["value"], target, families)
            for _, one in rows.groupby("replicate")
        ]
        seeds[name] = _spread(alone)
    for (name, epoch), rows in table.groupby(["estimator", "epoch"]):
        values = rows.groupby("architecture_key")["value"].mean()
        one = ranked(values, target, families)["all"]
        epochs.setdefault(name, {})[int(epoch)] = one
    spec = load_study(folder / "study.toml")
    trials = read_tables(folder, ["trials"])[0]["trials"]
    return {
        "name": spec.name.removeprefix("ranking_"),
        "dataset": spec.dataset.name,
        "n_data": int(trials["n_data"].max()),
        "architectures": len(target),
        "trials": len(trials),
        "best_accuracy": float(target.max()),
        "accuracy_range": [float(target.min()), float(target.max())],
        "seed_sd": float(by_arch[TARGET].std().mean()),
        "mean": mean,
        "partial": partial,
        "seed": seeds,
        "epochs": epochs,
    }


def _spread(alone: list[dict[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for group in alone[0]:
        for number in ("rho", "regret_1", "regret_3"):
            values = [
                one[group][number] for one in alone if one.get(group, {}).get(number) is not None
            ]
            if values:
                found[f"{group} {number}"] = [
                    float(np.mean(values)), float(min(values)), float(max(values)),
                ]  # fmt: skip
    return found


def _print(pool: dict[str, object]) -> None:
    print(f"\n{pool['name']}: {pool['n_data']} data, {pool['architectures']} architectures, "
          f"accuracy {pool['accuracy_range'][0]:.3f} to {pool['accuracy_range'][1]:.3f}, "
          f"sd over seeds {pool['seed_sd']:.4f}")  # fmt: skip
    families = [g for g in next(iter(pool["mean"].values())) if g != "all"]
    print("| score | rho [95 %] | " + " | ".join(families)
          + " | partial | regret 1, 3 | one seed: rho, regret |")  # fmt: skip
    print("|---" * (5 + len(families)) + "|")
    order = sorted(pool["mean"], key=lambda name: -(pool["mean"][name]["all"]["rho"] or -2))
    for name in order:
        row, seed = pool["mean"][name], pool["seed"][name]
        every = row["all"]
        cells = [
            name,
            f"{_n(every['rho'])} [{_n(every['rho_low'])}, {_n(every['rho_high'])}]",
            *(_n(row[f]["rho"]) if f in row else "-" for f in families),
            _n(pool["partial"][name]),
            f"{_n(every['regret_1'], 100)}, {_n(every['regret_3'], 100)}",
            ", ".join(
                _n(seed.get(f"all {what}", [None])[0], times)
                for what, times in (("rho", 1), ("regret_1", 100))
            ),
        ]
        print("| " + " | ".join(cells) + " |")


def _n(value: float | None, times: float = 1.0) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{times * value:.2f}"


def main() -> None:
    """Compare and print; write the tables where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pools", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pools = [compare(folder) for folder in options.pools]
    for pool in pools:
        _print(pool)
    if options.out:
        result = {
            "what": "rank statistics of every score on every pool; regret as a fraction",
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
            "versions": {name: metadata.version(name) for name in ("torch", "numpy")},
            "pools": pools,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
