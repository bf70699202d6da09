"""Trains the pools of docs/decisions/0017: each seed on its own draw of the rows.

    python benchmarks/ranking/folds.py --data DIR [--pools NAME ...] [--seeds 0 1 2] [--aside]
    python benchmarks/ranking/folds.py --judge [--aside] [--out F]

One row per network is appended to benchmarks/results/ranking/folds/<pool>.csv when it is done, so
a run may be stopped and started again. The plan is the one that `search` proposes for so many
rows; the test rows of a pool are the same for all seeds. Networks run one after another.

`--judge` prints what the decision asks: per pool, Spearman's rho of the scores of one seed with
the mean test log loss of the other seeds, attainable (root of the reliability between seeds),
and the regret in nats of the first choice. Intervals, 90 %, draw pools, then networks.

    e5, e2      conditional_evidence with five and two folds    plain5, plain2  their log
                predictive densities as trained, without the last layer's posterior
    five_fold, two_fold, heldout_10, kfac_ggn, n_parameters (negative)
"""

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from compare_wide import spearman
from wide import append

sys.path.insert(0, str(Path(__file__).parents[1]))
from _sets import raw
from plans import plan_of

from nas_evidence.data.arrays import ArrayData, moments
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.record import TrialRecord, TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, derive_seed
from nas_evidence.workers.trial import Trial

RESULTS = Path(__file__).resolve().parents[1] / "results" / "ranking" / "folds"
SCORES = (
    "conditional_evidence", "last_layer_conditional", "five_fold", "two_fold", "heldout_10",
    "kfac_ggn",
)  # fmt: skip
COLUMNS = (
    "e5", "e2", "plain5", "plain2", "five_fold", "two_fold", "heldout_10", "kfac_ggn",
    "n_parameters",
)  # fmt: skip


class Pool(NamedTuple):
    """Rows for training and for the test, networks, and whether it is kept aside."""

    name: str
    n_train: int
    n_test: int
    aside: bool = False
    few: bool = False  # twelve networks, two seeds
    folds: int | None = None  # not those of `folds = "auto"`

    @property
    def images(self) -> bool:
        """Return whether the inputs are images."""
        return self.name in ("mnist", "fashion_mnist")


POOLS = {
    "satellite": Pool("satellite", 300, 3000), "waveform": Pool("waveform", 300, 500),
    "australian": Pool("australian", 300, 250), "boston": Pool("bostonHousing", 300, 120),
    "kin8nm": Pool("kin8nm", 300, 3000), "wine": Pool("wine-quality-red", 300, 1000),
    "power": Pool("power-plant", 300, 3000), "naval": Pool("naval-propulsion-plant", 300, 3000),
    "satellite150": Pool("satellite", 150, 3000), "fashion": Pool("fashion_mnist", 200, 3000),
    "kin8nm2000": Pool("kin8nm", 2000, 3000, few=True),
    "power2000": Pool("power-plant", 2000, 3000, few=True),
    "naval2000": Pool("naval-propulsion-plant", 2000, 3000, few=True),
    "kin8nm2000x5": Pool("kin8nm", 2000, 3000, few=True, folds=5),
    "power2000x5": Pool("power-plant", 2000, 3000, few=True, folds=5),
    "naval2000x5": Pool("naval-propulsion-plant", 2000, 3000, few=True, folds=5),
    "cancer": Pool("cancer", 300, 250, aside=True),
    "synth5": Pool("synth5", 300, 2000, aside=True),
    "friedman": Pool("friedman", 300, 2000, aside=True),
    "diabetes": Pool("diabetes", 300, 120, aside=True),
}  # fmt: skip
CLASSES = ("satellite", "waveform", "australian", "satellite150", "fashion", "cancer", "synth5")


def drawn(pool: Pool, root: Path, seed: int) -> TensorData:
    """Return the data of a pool with the training rows of a seed."""
    x, y = raw(pool.name, root)
    order = np.random.default_rng(0).permutation(len(y))
    test, others = order[: pool.n_test], order[pool.n_test :]
    train = np.random.default_rng([seed, 17]).permutation(others)[: pool.n_train]
    mean, std = moments(x[train])
    real = np.issubdtype(y.dtype, np.floating)
    width = y.shape[1] if real else int(y.max()) + 1
    arrays = ArrayData(
        pool.name, x[train], y[train], x[test], y[test],
        task="real" if real else "labels", n_outputs=width, input_shape=x.shape[1:],
        mean=mean, std=std,
        y_mean=y[train].mean(0) if real else np.zeros(width),
        y_std=y[train].std(0) if real else np.ones(width),
    )  # fmt: skip
    return to_tensors(arrays, "cpu")


def architectures(pool: Pool) -> list[ArchitectureSpec]:
    """Return the networks of a pool."""
    grid = [("mlp", d, w) for d, w in product((1, 2, 3), (4, 8, 16, 32, 64, 128))]
    if pool.few:
        grid = [("mlp", d, w) for d, w in product((1, 2, 3), (8, 32, 64, 128))]
    if pool.images:
        grid = [("mlp", d, w) for d, w in product((1, 2, 3), (8, 32, 128))]
        grid += [("cnn", d, w) for d, w in product((1, 2, 3), (2, 4, 8))]
    return [ArchitectureSpec(family=f, values={"depth": d, "width": w}) for f, d, w in grid]


def record_of(
    data: TensorData, architecture: ArchitectureSpec, seed: int, folds: int | None
) -> tuple[TrialRecord, float]:
    """Train one network with all scores; return its record and the CPU seconds."""
    plan = plan_of(data, "proposed")
    plan = plan if folds is None else plan.model_copy(update={"folds": folds})
    given = Assignment(
        trial_id=0, attempt=1, replicate=seed, architecture=architecture,
        dataset=DatasetSpec(name="digits"), plan=plan, estimators=SCORES,
        seed=derive_seed(seed, "folds", architecture.key),
    )  # fmt: skip
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            trial.advance(given.plan.epochs)
        return trial.finish(), time.process_time() - started


def row_of(record: TrialRecord, n_data: int) -> dict[str, Any]:
    """Return what the comparison needs of a trained network."""
    last = {e.estimate.estimator: e.estimate for e in record.evaluations}
    row: dict[str, Any] = {
        "status": record.status.value, "n_data": n_data,
        "test_nll": record.test_nll_per_datum, "test_accuracy": record.test_accuracy,
        "test_rmse": record.test_rmse, "train_seconds": record.train_seconds,
        "evidence_seconds": record.evidence_seconds, "n_parameters": record.n_parameters,
    }  # fmt: skip
    given = {"e5": "conditional_evidence", "e2": "last_layer_conditional"}
    for column in ("five_fold", "two_fold", "heldout_10", "kfac_ggn"):
        given[column] = column
    for column, name in given.items():
        estimate = last.get(name)
        row[column] = estimate.per_datum if estimate and estimate.valid else None
    for column, name in (("plain5", "conditional_evidence"), ("plain2", "last_layer_conditional")):
        terms = last[name].terms if name in last else ()
        values = [t.value for t in terms if t.term == "log_predictive_as_trained"]
        row[column] = sum(values) / n_data if values else None
    for name in ("two_fold_accuracy", "five_fold_accuracy"):
        row[name] = last[name].value if name in last else None
    return row


def train(names: list[str], seeds: list[int], root: Path) -> None:
    """Train what is missing, seed by seed."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed, name in product(seeds, names):
        pool, file = POOLS[name], RESULTS / f"{name}.csv"
        if pool.few and seed > 1:
            continue
        done = set()
        if file.exists():
            with file.open() as lines:
                done = {
                    (r["seed"], r["family"], r["depth"], r["width"]) for r in csv.DictReader(lines)
                }
        data = drawn(pool, root, seed)
        for architecture in architectures(pool):
            key = {"seed": seed, "family": architecture.family, **architecture.values}
            if tuple(map(str, key.values())) in done:
                continue
            record, seconds = record_of(data, architecture, seed, pool.folds)
            row = key | row_of(record, len(data.x_train)) | {"cpu_seconds": seconds}
            short = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
            append(file, short)
            print(name, seed, architecture, f"{seconds:.1f} s", flush=True)


class Ranked(NamedTuple):
    """A pool as arrays, networks in rows, seeds in columns; NaN where a score is missing."""

    loss: np.ndarray
    scores: dict[str, np.ndarray]
    n_data: int


def ranked(table: pd.DataFrame) -> Ranked:
    """Return a pool; a network that diverged has the worst loss of all."""
    table = table.assign(n_parameters=-table.n_parameters)

    def wide(column: str) -> np.ndarray:
        index = ["family", "depth", "width"]
        return table.pivot(index=index, columns="seed", values=column).to_numpy(float)

    loss = wide("test_nll")
    loss = np.where(np.isnan(loss), np.nanmax(loss), loss)
    return Ranked(loss, {score: wide(score) for score in COLUMNS}, int(table.n_data.iloc[0]))


def judged(pool: Ranked) -> dict[str, Any]:
    """Return attainable, and for each score rho and regret, means over seeds."""
    loss, n_seeds = pool.loss, pool.loss.shape[1]
    pairs = [spearman(*loss[:, two].T) for two in combinations(range(n_seeds), 2)]
    mean_r, others = float(np.mean(pairs)), n_seeds - 1
    reliability = others * mean_r / (1 + (others - 1) * mean_r)  # of the mean of the others
    found: dict[str, Any] = {
        "n_data": pool.n_data, "networks": len(loss), "seeds": n_seeds,
        "attainable": round(max(0.0, reliability) ** 0.5, 3), "scores": {},
    }  # fmt: skip
    for score, values in pool.scores.items():
        of = [_of_seed(values[:, k], np.delete(loss, k, 1).mean(1)) for k in range(n_seeds)]
        if known := [one for one in of if one is not None]:
            rho, regret = np.mean(known, axis=0)
            found["scores"][score] = {"rho": round(rho, 3), "regret": round(regret, 4)}
    return found


def _of_seed(given: np.ndarray, truth: np.ndarray) -> tuple[float, float] | None:
    """Return rho and regret of one seed's score; None if fewer than three networks have it."""
    if np.isfinite(given).sum() < 3:
        return None
    given = np.where(np.isnan(given), np.nanmin(given) - 1, given)
    return spearman(given, -truth), float(truth[given.argmax()] - truth.min())


def chosen(table: pd.DataFrame) -> dict[str, float]:
    """Return what the first choice of each score comes to in other seeds, mean over seeds.

    Per cent right on test rows, or the RMSE over that of the best network.
    """
    classes = table.test_accuracy.notna().any()
    table = table.assign(n_parameters=-table.n_parameters)
    index, found = ["family", "depth", "width"], {}
    measure = "test_accuracy" if classes else "test_rmse"
    truth = table.pivot(index=index, columns="seed", values=measure).to_numpy(float)
    bad = np.nanmin(truth) if classes else np.nanmax(truth)
    truth = np.where(np.isnan(truth), bad, truth)
    for score in (*COLUMNS, "five_fold_accuracy", "two_fold_accuracy"):
        given = table.pivot(index=index, columns="seed", values=score).to_numpy(float)
        of = []
        for k in range(truth.shape[1]):
            others = np.delete(truth, k, 1).mean(1)
            if np.isfinite(given[:, k]).any():
                one = others[np.nanargmax(given[:, k])]
                of.append(100 * one if classes else one / others.min())
        if of:
            found[score] = round(float(np.mean(of)), 3)
    return found


def differences(pools: list[Ranked], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Return mean differences of rho and regret between scores, with 90 % intervals."""
    random, draws = np.random.default_rng(0), []
    for _ in range(400):
        of = []
        for k in random.integers(0, len(pools), len(pools)):
            pool = pools[k]
            rows = np.unique(random.integers(0, len(pool.loss), len(pool.loss)))
            some = {score: values[rows] for score, values in pool.scores.items()}
            of.append(judged(Ranked(pool.loss[rows], some, pool.n_data))["scores"])
        draws.append(of)
    real = [judged(pool)["scores"] for pool in pools]
    found = {}
    for a, b in pairs:
        for what in ("rho", "regret"):
            low, high = np.nanquantile([_mean(of, a, b, what) for of in draws], [0.05, 0.95])
            mean = _mean(real, a, b, what)
            found[f"{a} - {b}, {what}"] = [round(float(v), 3) for v in (mean, low, high)]
    return found


def _mean(of: list[Any], a: str, b: str, what: str) -> float:
    """Return the mean difference of two scores over pools that have both."""
    both = [s[a][what] - s[b][what] for s in of if a in s and b in s]
    return float(np.nanmean(both)) if both else float("nan")


def judge(names: list[str]) -> dict[str, Any]:
    """Return the comparison of the pools that have been trained."""
    pools, second = {}, {}
    for name in names:
        if (file := RESULTS / f"{name}.csv").exists():
            table = pd.read_csv(file)
            whole = table.groupby("seed").size() == len(architectures(POOLS[name]))
            table = table[table.seed.isin(whole[whole].index)]
            if table.seed.nunique() > 1:
                pools[name] = ranked(table)
                second[name] = chosen(table)
    pairs = [("e5", other) for other in COLUMNS if other != "e5"] + [("plain5", "five_fold")]
    return {
        "hardware": f"{os.cpu_count()} x86-64 cores, shared with other jobs",
        "pools": {name: judged(pool) for name, pool in pools.items()},
        "per cent right, or RMSE over the best, of the first choice": second,
        "differences": {
            kind: differences(some, pairs)
            for kind, some in (
                ("classes", [p for n, p in pools.items() if n in CLASSES]),
                ("real targets", [p for n, p in pools.items() if n not in CLASSES]),
            )
            if some
        },
    }


def main() -> None:
    """Train, or judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--pools", nargs="+", choices=list(POOLS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--aside", action="store_true", help="those that were kept aside")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.pools or [n for n, pool in POOLS.items() if pool.aside == options.aside]
    if not options.judge:
        train(names, options.seeds, options.data)
        return
    found = judge(names)
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
