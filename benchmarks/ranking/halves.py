"""Why a score made from halves does not rank perfectly: its steps, measured one by one.

    python benchmarks/ranking/halves.py --data DIR --cache DIR --pool NAME ... [--seeds 0]

    (a) do networks trained on half of the data rank like the same networks trained on all?
        rho of the test log loss of the halves with that of the whole
    (b) does the score rank the networks trained on halves?
        rho of the score with the test log loss of the halves
    (c) does it help to forgive overconfidence? `plug_in` is `two_fold` without marginalising the
        temperature or the noise: the log density of the other half, as trained
    (d) real targets: does it help to marginalise the noise, as `two_fold` does?
        tangent_conditional and last_layer_conditional, log of the mean density over `SCALES`

The halves are those that `two_fold` trains, bit for bit. Their test log loss is the mean over
both, with the scale of the outputs marginalised as in `two_fold`. One row per network is appended
to <pool>-halves.csv; the two correlations are printed at the end.
"""

import argparse
import csv
import math
from pathlib import Path

import pandas as pd
import torch
from compare_wide import KEY, spearman, table_of
from wide import LONG, POOLS, RESULTS, append, assignment_of, tensors_of

from nas_evidence.curvature.likelihood import Gaussian
from nas_evidence.data.tensors import TensorData
from nas_evidence.scores.folds import (
    SCALES,
    fold_tasks,
    log_likelihoods_at_scales,
    log_predictive,
)
from nas_evidence.scores.given_folds import late_given_early
from nas_evidence.spec.study import Assignment
from nas_evidence.training.loop import likelihood_of
from nas_evidence.training.parts import new_run, order_of_data, part_of, train_slice

EVERY = {**POOLS, **LONG}
NAMES = ("tangent_conditional", "last_layer_conditional")


def measured(data: TensorData, assignment: Assignment) -> dict[str, float]:
    """Return what the two halves give, in nats per datum, their mean."""
    found = []
    order = order_of_data(len(data.x_train), assignment)
    for task in fold_tasks("two_fold", order, assignment.plan):
        part = part_of(task.trained, data, assignment, task.purpose)
        run = new_run(part)
        while not train_slice(run, part):
            pass
        trained = run.training
        trained.model.eval()
        with torch.no_grad():
            outputs = trained.model(data.x_test)
            unseen = trained.model(data.x_train[task.predicted])
        likelihood = likelihood_of(assignment.plan, trained.noise_std, trained.temperature)
        tested = log_predictive(outputs, data.y_test, likelihood)
        at_scales = log_likelihoods_at_scales(unseen, data.y_train[task.predicted], likelihood)
        as_trained = float(at_scales[SCALES.index(1.0)])
        row = {
            "half_loss": -tested.log_predictive / len(data.x_test),
            "plug_in": as_trained / len(task.predicted),
        }
        if isinstance(likelihood, Gaussian):
            rows = torch.cat([task.trained, task.predicted])
            for name in NAMES:
                values = [
                    late_given_early(
                        name, trained.model, data.x_train[rows], data.y_train[rows],
                        n_early=len(task.trained), likelihood=Gaussian(likelihood.noise_std * s),
                        prior_precision=trained.prior_precision,
                    ).value
                    for s in SCALES
                ]  # fmt: skip
                log_mean = torch.tensor(values).logsumexp(0) - math.log(len(SCALES))
                row[f"{name}_scaled"] = float(log_mean) / len(task.predicted)
        found.append(row)
    return {key: sum(row[key] for row in found) / len(found) for key in found[0]}


def run_pool(name: str, seed: int, data: Path, cache: Path, out: Path) -> None:
    """Train the halves of every network that the pool's table has for a seed."""
    tensors, spec = tensors_of(name, EVERY[name], data, cache)
    file = out / f"{name}-halves.csv"
    known = table_of(name, out)
    known = {tuple(map(str, row)) for row in known[known["seed"] == seed][KEY[1:]].to_numpy()}
    done = set()
    if file.exists():
        with file.open() as lines:
            done = {tuple(row[k] for k in KEY) for row in csv.DictReader(lines)}
    for architecture, _ in EVERY[name].architectures():
        key = {"seed": seed, "family": architecture.family, **architecture.values}
        place = tuple(map(str, key.values()))
        if place[1:] not in known or place in done:
            continue
        given = assignment_of(EVERY[name], architecture, seed, tensors, spec, ())
        row = key | {name: f"{value:.6g}" for name, value in measured(tensors, given).items()}
        append(file, row)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--pool", nargs="+", choices=list(EVERY), required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| pool | seed | (a) halves and whole | (b) two_fold | (b) tangent | (d) |"
          " (b) last layer | (d) | (c) plug-in | two_fold | last layer |"
          " accuracy: plug-in | two_fold | last layer |")  # fmt: skip
    print("|---" * 14 + "|")
    for name in options.pool:
        for seed in options.seeds:
            run_pool(name, seed, options.data, options.cache, options.out)
            print_row(name, seed, options.out)


def print_row(name: str, seed: int, out: Path) -> None:
    """Print the correlations of one pool and seed."""
    halves = pd.read_csv(out / f"{name}-halves.csv")
    rows = table_of(name, out).merge(halves, on=KEY)
    rows = rows[rows["seed"] == seed]
    rows = rows.assign(none=float("nan"))
    cells = [spearman(rows["half_loss"].to_numpy(), rows["loss"].to_numpy())]
    for score in ("two_fold", "tangent_conditional", "last_layer_conditional"):
        cells.append(spearman(rows[score].to_numpy(), -rows["half_loss"].to_numpy()))
        if score != "two_fold":
            scaled = rows.get(f"{score}_scaled", rows["none"]).to_numpy()
            cells.append(spearman(scaled, -rows["loss"].to_numpy()))
    for target in (-rows["loss"], rows["second"]):
        for score in ("plug_in", "two_fold", "last_layer_conditional"):
            cells.append(spearman(rows[score].to_numpy(), target.to_numpy()))
    print(f"| {name} | {seed} | " + " | ".join(f"{c:.2f}" for c in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
