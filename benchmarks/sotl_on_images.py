"""Pruning by sums of training losses on images: what it saves, and what the choice loses.

    python benchmarks/sotl_on_images.py DATA     # with fashion_mnist of torchvision's layout

For each seed 24 random architectures (MLPs, CNNs, ResNets, the linear one) on the bundled digits
and on 1,000 images of Fashion-MNIST, 20 epochs, every trial to its end. Then halving at epochs 2,
6 and 17 is replayed on the stored curves in 200 random orders, by `sotl`, by `sotl_e`, by the
first fold of `two_fold` (known before the first epoch, for half a training), or by chance. The
choice is the best `two_fold` of those that ran to the end; what it loses is in test log loss,
over the best of all 24. Saved are epochs of all, where the fold costs half of a trial's epochs.

Written down before the run: `sotl` may prune images if it saves at least half of the epochs and
loses at most 0.01 nats more than no pruning, on both data sets.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import nas_evidence
from nas_evidence.cli.reproduce import make_importable, scripts_folder

make_importable(scripts_folder())

from nas_evidence_reproduce.speedy import stopping_rungs  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "sotl_on_images.json"
PAGE = ROOT / "docs" / "explanation" / "training-speed.md"
RUNGS, EPOCHS, N_TRIALS, N_ORDERS = (2, 6, 17), 20, 24, 200
BY = ("sotl", "sotl_e", "first fold of two_fold", "chance", "no pruning")
SETS = {
    "digits": ("digits", {}),
    "fashion": ("fashion_mnist_quick", {"dataset.max_train": 1000, "dataset.max_test": 5000}),
}


def trained(name: str, seed: int, data: Path) -> list[dict[str, Any]]:
    """Return a row for each architecture of a random search."""
    study, changes = SETS[name]
    settings = {
        "plan.epochs": EPOCHS, "estimators": ["two_fold"], "objective": "two_fold",
        "sampler.name": "random", "finalists": 0, "n_trials": N_TRIALS, "seed": seed, **changes,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        nas_evidence.search(study, settings=settings, out=out, data_root=data, progress=False)
        trials, curves, evidence, terms = (
            pd.read_parquet(out / table) for table in ("trials", "curves", "evidence", "terms")
        )
    own = evidence[evidence["estimator"] == "two_fold"].groupby("trial_id")["per_datum"].last()
    fold = terms[
        (terms["estimator"] == "two_fold")
        & (terms["term"] == "log_predictive")
        & (terms["group"] == "fold 1")
    ]
    first = fold.groupby("trial_id")["value"].last()
    rows = []
    for one in trials[trials["status"] == "complete"].itertuples():
        curve = curves[curves["trial_id"] == one.trial_id].set_index("epoch")
        rows.append(
            {
                "trial": one.trial_id, "family": one.family,
                "sotl": [round(-float(curve.loc[e, "sotl"]), 5) for e in RUNGS],
                "sotl_e": [round(-float(curve.loc[e, "sotl_e"]), 5) for e in RUNGS],
                "first fold of two_fold": round(float(first[one.trial_id]), 3),
                "two_fold": round(float(own[one.trial_id]), 5),
                "test_nll": round(float(one.test_nll_per_datum), 5),
            }
        )  # fmt: skip
    return rows


def replayed(rows: list[Mapping[str, Any]], by: str) -> tuple[float, float]:
    """Return the share of epochs saved and the loss of the choice, means over orders."""
    n, generator = len(rows), np.random.default_rng(0)
    score, loss = (np.array([row[key] for row in rows]) for key in ("two_fold", "test_nll"))
    saved, lost = [], []
    for _ in range(N_ORDERS):
        order = generator.permutation(n)
        spent = np.full(n, float(EPOCHS))
        alive = np.arange(n)
        if by in ("sotl", "sotl_e", "chance"):
            table = (
                generator.normal(size=(len(RUNGS), n))
                if by == "chance"
                else np.array([rows[i][by] for i in order]).T
            )
            stopped = stopping_rungs(table)
            spent = np.array([*RUNGS, EPOCHS])[stopped].astype(float)
            alive = order[stopped == len(RUNGS)]
        elif by in BY[2:3]:
            table = np.array([[rows[i][by] for i in order]])
            stopped = stopping_rungs(table)
            spent = np.where(stopped == 0, EPOCHS / 2, 1.5 * EPOCHS)
            alive = order[stopped == 1]
        saved.append(1 - spent.sum() / (EPOCHS * n))
        lost.append(loss[alive[score[alive].argmax()]] - loss.min())
    return float(np.mean(saved)), float(np.mean(lost))


def table(runs: list[Mapping[str, Any]]) -> str:
    """Return the table of the page: means over the seeds."""
    lines = ["| data | by | epochs saved | lost, nats (each seed) |", "|---|---|---|---|"]
    for name in SETS:
        of = [run["rows"] for run in runs if run["data"] == name]
        for by in BY:
            found = [replayed(rows, by) for rows in of]
            saved, lost = (np.array(values) for values in zip(*found, strict=True))
            each = ", ".join(f"{value:.3f}" for value in lost)
            lines.append(f"| {name} | {by} | {saved.mean():.0%} | {lost.mean():.3f} ({each}) |")
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the page with the table of the committed results."""
    begin, end = "<!-- images -->\n", "<!-- /images -->"
    head, rest = page.split(begin)
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    return f"{head}{begin}\n{table(runs)}\n\n{end}{rest.split(end)[1]}"


def main() -> None:
    """Measure what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    stored = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"runs": []}
    done = {(run["data"], run["seed"]) for run in stored["runs"]}
    for seed in range(given.seeds) if given.data else ():
        for name in SETS:
            if (name, seed) not in done:
                rows = trained(name, seed, given.data)
                stored["runs"].append({"data": name, "seed": seed, "rows": rows})
                text = json.dumps(stored, indent=1)
                RESULTS.write_text(text.replace("\n     ", " ") + "\n", encoding="utf-8")
                print(name, seed, len(rows), flush=True)
    print(table(stored["runs"]))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
