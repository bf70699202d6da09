"""Ten folds, a division for each network, and leave-one-out from one training, beside E_5.

    python benchmarks/ranking/other_folds.py --data DIR [--pools NAME ...] [--seeds 0 1]
    python benchmarks/ranking/other_folds.py --judge [--out F]

The networks, draws and test losses are those of `folds.py`, whose CSV files are read beside these
(results/ranking/folds/other/<pool>.csv):

    e10, plain10    `conditional_evidence` with ten folds, and their log predictive density
    e5r, plain5r    with five, each network with a division of its own (Nagler et al. 2024)
    loo             approximate leave-one-out (Nickl et al. 2023) from the one training: with the
                    Laplace posterior of all parameters, K = J D^-1 J^T, V = (K^-1 + H)^-1,
                    f_n without n = f_n - (V_nn^-1 - H_n)^-1 (y_n - p_n)

Written down before the run (docs/decisions/0017 asks for these beside E_5): a score takes the
place of E_5 if its rho is ahead beyond the 90 % interval over pools and networks on all pools
together; leave-one-out goes if it is behind.
"""

import argparse
import csv
import json
import tempfile
import time
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import folds
import numpy as np
import pandas as pd
import torch
from folds import POOLS, RESULTS, Ranked, architectures, differences, drawn, judged
from plans import plan_of
from wide import append

from nas_evidence.curvature.likelihood import Gaussian
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.jacobian import jacobian
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, derive_seed
from nas_evidence.training.loop import likelihood_of
from nas_evidence.workers.trial import Trial

OTHER = RESULTS / "other"
COLUMNS = ("e10", "plain10", "e5r", "plain5r", "loo")
KNOWN = ("e5", "plain5", "five_fold", "e2")
NAMES = ("satellite", "waveform", "australian", "satellite150", "boston", "kin8nm", "wine",
         "naval", "cancer", "synth5", "friedman", "diabetes")  # fmt: skip


def left_out(trial: Trial) -> float:
    """Return the mean log predictive density of each datum without it, nats."""
    training, data = trial.training, trial.data
    assert training is not None
    likelihood = likelihood_of(trial.assignment.plan, training.noise_std, training.temperature)
    rows = jacobian(training.model, data.x_train)
    n, c = rows.outputs.shape
    grams = zip(rows.parts, training.prior_precision, strict=True)
    kernel = sum((part.gram(precision) for part, precision in grams), torch.zeros(()).double())
    roots = likelihood.hessian_roots(rows.outputs).double().permute(1, 2, 0)  # [n, C, r]
    tall = torch.block_diag(*roots)  # [n C, n r]
    right = kernel @ tall
    inner = torch.eye(tall.shape[1]).double() + tall.mT @ right
    whole = kernel - right @ torch.linalg.solve(inner, right.mT)
    places = torch.arange(n)
    own = whole.view(n, c, n, c)[places, :, places]  # [n, C, C]
    hessian = roots @ roots.mT
    eye = torch.eye(c).double()
    cavity = torch.linalg.solve(eye - own @ hessian, own)
    residual = likelihood.residual(rows.outputs, data.y_train).double()
    without = rows.outputs.double() - (cavity @ residual[..., None])[..., 0]
    if isinstance(likelihood, Gaussian):
        spread = likelihood.noise_std**2 + torch.diagonal(cavity, dim1=1, dim2=2)
        normal = torch.distributions.Normal(without, spread.clamp(min=1e-12).sqrt())
        return float(normal.log_prob(data.y_train.double()).sum(1).mean())
    return float(likelihood.log_likelihood(without, data.y_train)) / n


def run(
    data: TensorData, architecture: ArchitectureSpec, seed: int, n_folds: int, replicate: int
) -> Trial:
    """Train one network as `folds.py` does, with other folds."""
    given = Assignment(
        trial_id=0, attempt=1, replicate=replicate, architecture=architecture,
        dataset=DatasetSpec(name="digits"), estimators=("conditional_evidence",),
        plan=plan_of(data, "proposed").model_copy(update={"folds": n_folds}),
        seed=derive_seed(seed, "folds", architecture.key),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            trial.advance(given.plan.epochs)
        return trial


def row_of(data: TensorData, architecture: ArchitectureSpec, seed: int) -> dict[str, Any]:
    """Return the scores of one network."""
    own = 1000 + zlib.crc32(architecture.key.encode()) % 10**6
    row: dict[str, Any] = {}
    for label, n_folds, replicate in (("10", 10, seed), ("5r", 5, own)):
        trial = run(data, architecture, seed, n_folds, replicate)
        found = {e.estimate.estimator: e.estimate for e in trial.finish().evaluations}
        estimate = found["conditional_evidence"]
        plain = [t.value for t in estimate.terms if t.term == "log_predictive_as_trained"]
        row[f"e{label}"] = estimate.per_datum if estimate.valid else None
        row[f"plain{label}"] = sum(plain) / len(data.x_train) if plain else None
    try:
        row["loo"] = left_out(trial) if trial.status is TrialStatus.COMPLETE else None
    except torch.linalg.LinAlgError:
        row["loo"] = None
    return row


def train(names: list[str], seeds: list[int], root: Path) -> None:
    """Train what is missing, seed by seed."""
    OTHER.mkdir(parents=True, exist_ok=True)
    for seed, name in product(seeds, names):
        file, done = OTHER / f"{name}.csv", set()
        if file.exists():
            with file.open() as lines:
                done = {(r["seed"], r["depth"], r["width"]) for r in csv.DictReader(lines)}
        data = drawn(POOLS[name], root, seed)
        for architecture in architectures(POOLS[name]):
            key = {"seed": seed, **architecture.values}
            if tuple(map(str, key.values())) in done:
                continue
            started = time.process_time()
            row = key | row_of(data, architecture, seed)
            row["cpu_seconds"] = time.process_time() - started
            append(file, {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
            print(name, row, flush=True)


def pool_of(name: str) -> Ranked | None:
    """Return a pool whose seeds are complete in both files, or None."""
    if not (file := OTHER / f"{name}.csv").exists():
        return None
    at = ["seed", "depth", "width"]
    table = pd.read_csv(RESULTS / f"{name}.csv").merge(
        pd.read_csv(file), on=at, suffixes=("", "_")
    )
    whole = table.groupby("seed").size() == len(architectures(POOLS[name]))
    table = table[table.seed.isin(whole[whole].index)]
    if table.seed.nunique() < 2:
        return None

    def wide(column: str) -> np.ndarray:
        return table.pivot(index=at[1:], columns="seed", values=column).to_numpy(float)

    loss = wide("test_nll")
    loss = np.where(np.isnan(loss), np.nanmax(loss), loss)
    return Ranked(loss, {s: wide(s) for s in (*KNOWN, *COLUMNS)}, int(table.n_data.iloc[0]))


def main() -> None:
    """Train, or judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--pools", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.judge:
        train(options.pools, options.seeds, options.data)
        return
    pools = {name: pool for name in options.pools if (pool := pool_of(name)) is not None}
    pairs = [(one, "e5") for one in COLUMNS] + [("plain5r", "plain5"), ("e10", "plain10")]
    classes = [pool for name, pool in pools.items() if name in folds.CLASSES]
    real = [pool for name, pool in pools.items() if name not in folds.CLASSES]
    text = json.dumps(
        {
            "pools": {name: judged(pool) for name, pool in pools.items()},
            "differences": {
                kind: differences(some, pairs)
                for kind, some in (("all", classes + real), ("classes", classes), ("real", real))
                if some
            },
        },
        indent=1,
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
