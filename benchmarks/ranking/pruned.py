"""What pruning by two-fold cross-validation saves and loses, replayed on pools of whole trials.

    python benchmarks/ranking/pruned.py POOL... [--orders N] [--out F]

A trial that goes on is the same with pruning and without, bit by bit, so that a replay is exact.
For each seed of a pool its architectures come in random orders, one after another; halving keeps
the best third of those seen, at epoch 0 by one half of the data (half a training is spent) and at
epochs 5 and 15 by both. Of the trials left the one of most evidence is chosen.

    saved    share of the time of all trainings, parts included, that is not spent
    regret   points of test accuracy (mean over seeds) between the choice and the best
    same     how often the choice is that of the unpruned study
"""

import argparse
import json
from pathlib import Path

import numpy as np
from compare import TARGET, scores_of

from nas_evidence.codec import load_study
from nas_evidence.maths.replay import stopping_rungs
from nas_evidence.spec import PruningSpec
from nas_evidence.store import read_tables

RULE = PruningSpec(rule="halving")


def replay(folder: Path, n_orders: int) -> dict[str, object]:
    """Return saved, regret and same of one pool, means over seeds and orders."""
    study = load_study(folder / "study.toml")
    rungs = study.model_copy(update={"pruning": RULE}).rungs
    table = scores_of(folder)
    last = table[table["epoch"] == table.groupby("trial_id")["epoch"].transform("max")]
    target = last.groupby("architecture_key")[TARGET].mean()
    seconds = read_tables(folder, ["trials"])[0]["trials"].set_index("trial_id")["train_seconds"]
    random, found = np.random.default_rng(0), []
    for _, trials in last.groupby("replicate"):
        known = trials[trials["estimator"].isin(("two_fold", "two_fold, one fold"))]
        one = known.pivot(index="trial_id", columns="estimator", values="value").dropna()
        key = trials.groupby("trial_id")["architecture_key"].first().loc[one.index]
        lost = (target.max() - target.loc[key]).to_numpy() * 100
        cost = seconds.loc[one.index].to_numpy(float)
        half, both = (one[n].to_numpy() for n in ("two_fold, one fold", "two_fold"))
        # In trainings, when stopped at each rung, and at the end.
        spent = np.array(
            [0.5 if e == 0 else 1 + e / study.plan.epochs for e in (*rungs, study.plan.epochs)]
        )
        for _ in range(n_orders):
            order = random.permutation(len(one))
            scores = np.stack([(half if epoch == 0 else both)[order] for epoch in rungs])
            stopped = stopping_rungs(
                scores, rule="halving", reduction=RULE.reduction,
                startup_trials=RULE.startup_trials,
            )  # fmt: skip
            left = order[stopped == len(rungs)]
            choice = left[both[left].argmax()]
            saved = 1 - (spent[stopped] * cost[order]).sum() / (spent[-1] * cost.sum())
            found.append((saved, lost[choice], choice == both.argmax(), lost[both.argmax()],
                          np.mean(stopped == 0)))  # fmt: skip
    mean, sd = np.mean(found, 0), np.std(found, 0)
    return {
        "pool": study.name,
        "rungs": list(rungs), "saved": mean[0], "saved_sd": sd[0], "regret": mean[1],
        "same": mean[2], "regret_unpruned": mean[3], "stopped_at_epoch_0": mean[4],
    }  # fmt: skip


def main() -> None:
    """Replay and print; write the table where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pools", nargs="+", type=Path)
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [replay(folder, options.orders) for folder in options.pools]
    print("| pool | stopped at epoch 0 | saved (sd) | regret | unpruned | same choice |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['pool']} | {row['stopped_at_epoch_0']:.2f} | {row['saved']:.2f} "
            f"({row['saved_sd']:.2f}) | {row['regret']:.2f} | {row['regret_unpruned']:.2f} "
            f"| {row['same']:.2f} |"
        )
    if options.out:
        options.out.write_text(
            json.dumps({"orders": options.orders, "pools": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
