"""Does a temperature fitted out of fold make the delivered predictor better? For decision 20.

    python benchmarks/delivered_temperature.py DATA --cache FOLDER [--sets NAME ...] [--draws 2]
    python benchmarks/delivered_temperature.py --cache FOLDER --summary    # writes the results

DATA is the folder that holds `uci/`, `uci-classification/`, `banana/` and `FashionMNIST/`. Each
draw takes its own training rows; test rows are others. Three MLPs of each draw are trained as a
trial of `conditional_evidence` with the plan proposed for the data; kept are the out-of-fold
outputs, the outputs for the test rows, and for real targets Var f of each by the Laplace
posterior. What is stored is not repeated. `ASIDE` was fixed before anything ran and is looked at
once.

One c is fitted on the out-of-fold predictions of a trial, with a weight of m rows at c = 1:

    own rows   m rows as the predictor says     normal   -m log² c
    real targets besides: "noise" multiplies s alone, "folds" is fitted with Var f of the folds,
    "plain" fits and delivers N(f, s²)

Differences are mean test log loss of the delivered predictor minus the raw one, nats.
"""

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn import datasets
from tables import HERE, commit, read

from nas_evidence.api.request import of_source
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.source import source_of
from nas_evidence.data.tensors import TensorData, select, to_tensors
from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.scores.folds import OUTPUTS, Folds
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, derive_seed
from nas_evidence.training.loop import Training, likelihood_of
from nas_evidence.workers.trial import Trial

RESULTS = HERE / "results" / "delivered_temperature.json"
MOST_TEST = 2000
#: Training rows by set, in this order; those of " @ " by name only.
SETS = {
    "wine178": 120, "ionosphere": 176, "australian": 300, "diabetes": 300, "breast_cancer": 300,
    "satellite": 300, "naval-propulsion-plant": 300, "banana": 200, "fashion": 200,
    "wine-quality-red": 600, "digits": 500, "power-plant": 1000,
    "waveform": 300, "bostonHousing": 300, "cancer": 300, "kin8nm": 300,
    "satellite @ 4000": 4000, "naval-propulsion-plant @ 4000": 4000, "fashion @ 8000": 8000,
}  # fmt: skip
ASIDE = ("waveform", "bostonHousing", "cancer", "kin8nm")
NETWORKS = ((1, 16), (2, 64), (1, 256))
HARDWARE = "2 x86-64 cores at 2.5 GHz, one thread"
STRENGTHS = (0, 10, 20, 40, 80, 160)
Values = dict[str, np.ndarray]


def rows_of(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [n, d] and labels or real targets [n]."""
    name = name.partition(" @ ")[0]
    bundled = {"wine178": "load_wine", "diabetes": "load_diabetes", "digits": "load_digits",
               "breast_cancer": "load_breast_cancer"}  # fmt: skip
    if name in bundled:
        x, y = getattr(datasets, bundled[name])(return_X_y=True)
        return x.astype(np.float32), y
    if name == "banana":
        table = np.loadtxt(folder / "banana" / "banana.csv", delimiter=",", dtype=str)
        table = table[[row[0][-1:].isdigit() for row in table]].astype(float)
        return table[:, :2].astype(np.float32), (table[:, 2] > 1).astype(np.int64)
    if name == "fashion":
        raw = folder / "FashionMNIST" / "raw"
        files = (("t10k-images-idx3-ubyte.gz", 16), ("t10k-labels-idx1-ubyte.gz", 8))
        parts = [
            np.frombuffer(gzip.decompress((raw / file).read_bytes()), np.uint8, offset=at)
            for file, at in files
        ]
        return parts[0].reshape(-1, 784).astype(np.float32), parts[1].astype(np.int64)
    frame = read(folder, name)
    x, y = frame.drop(columns="target").to_numpy(np.float32), frame["target"].to_numpy()
    return x, y if y.dtype.kind == "f" else np.unique(y, return_inverse=True)[1]


def asked(folder: Path, name: str, draw: int, cache: Path) -> tuple[Any, ArrayData]:
    """Return the study proposed for one draw of the training rows, and its data."""
    x, y = rows_of(folder, name)
    order = np.random.default_rng(draw).permutation(len(x))
    train, test = order[: SETS[name]], order[SETS[name] :][:MOST_TEST]
    file = cache / f"{name}-{draw}-data.npz"
    np.savez(file, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    task = "regression" if y.dtype.kind == "f" else "classification"
    source = source_of(DatasetSpec(name="npz", path=str(file), task=task))
    assert source is not None
    found = of_source(source)
    return found.spec, found.arrays


def variances(training: Training, data: TensorData, rows: torch.Tensor, x: Any, plan: Any) -> Any:
    """Return Var f [n, C] for inputs by the Laplace posterior of a network of some rows."""
    named = dict(training.model.named_parameters())
    precisions = {k: p.reshape(1) for k, p in zip(named, training.prior_precision, strict=True)}
    posterior = fit_posterior(
        training.model, select(data.x_train, rows)[:], data.y_train[rows],
        likelihood_of(plan, training.noise_std, training.temperature), precisions,
        likelihood_power=plan.likelihood_power,
    )  # fmt: skip
    parts = [
        posterior.output_covariance(training.model, x[i : i + 500]) for i in range(0, len(x), 500)
    ]
    return torch.cat(parts).diagonal(dim1=1, dim2=2).clamp(min=0)


def trained(spec: Any, arrays: ArrayData, network: tuple[int, int], draw: int) -> Values:
    """Train one network with its folds; return predictions of training rows and test rows."""
    data, real = to_tensors(arrays, torch.device("cpu")), arrays.task == "real"
    values = {"depth": network[0], "width": network[1], "shape": "constant"}
    given = Assignment(
        trial_id=0, attempt=1, replicate=draw, dataset=spec.dataset, plan=spec.plan,
        architecture=ArchitectureSpec(family="mlp", values=values),
        estimators=("conditional_evidence",), seed=derive_seed(draw, "temperature", str(network)),
    )  # fmt: skip
    n, posterior_seconds = len(data.x_train), 0.0
    fold_variances = torch.zeros(n, data.n_outputs, dtype=torch.float64)
    fold_spread, folds = np.zeros(n), np.zeros(n, dtype=np.int64)
    as_is = Folds._predict

    def predict(self: Folds, found: Training, data: TensorData, task: Any) -> dict[str, Any]:
        nonlocal posterior_seconds
        started = time.process_time()
        rows = task.predicted.numpy()
        folds[rows] = task.number
        fold_spread[rows] = found.noise_std if real else found.temperature
        if real:
            x = select(data.x_train, task.predicted)[:]
            fold_variances[task.predicted] = variances(found, data, task.trained, x, spec.plan)
        posterior_seconds += time.process_time() - started
        return as_is(self, found, data, task)

    started = time.process_time()
    with patch.object(Folds, "_predict", predict), tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            trial.advance(spec.plan.epochs)
    seconds = time.process_time() - started
    training = trial.training
    if trial.status is not TrialStatus.COMPLETE or training is None:
        raise RuntimeError(f"{trial.status}: {trial.cause} {trial.error}")
    kept = next(s for s in trial.scorers.values() if isinstance(s, Folds)).kept()
    with torch.no_grad():
        outputs = training.model.eval()(data.x_test[:])
    everything, x_test = torch.arange(n), data.x_test[:]
    spread = training.noise_std if real else training.temperature
    return {
        "fold_outputs": kept[OUTPUTS].numpy(), "fold_spread": fold_spread, "folds": folds,
        "fold_variances": fold_variances.numpy(), "y": data.y_train.numpy(),
        "outputs": outputs.numpy(), "spread": np.array(spread), "y_test": data.y_test.numpy(),
        "variances": variances(training, data, everything, x_test, spec.plan).numpy()
        if real else np.zeros(1),
        "seconds": np.array([seconds, posterior_seconds]),
    }  # fmt: skip


def run(folder: Path, cache: Path, name: str, draw: int) -> None:
    """Train what is missing of a draw."""
    spec, arrays = asked(folder, name, draw, cache)
    for depth, width in NETWORKS:
        file = cache / f"{name}-{draw}-{depth}x{width}.npz"
        if not file.exists():
            found = trained(spec, arrays, (depth, width), draw)
            np.savez(file, **found)
            print(name, draw, depth, width, found["seconds"].round(2), flush=True)


def own_rows(loss: Callable[[float], float], expected: Callable[[float], float], m: int) -> float:
    """Return log c of least loss over N rows plus that of m rows as the predictor says."""
    return _least(lambda t: loss(t) + m * expected(t))


def normal(loss: Callable[[float], float], _: Any, m: int) -> float:
    """Return log c of least loss with a normal prior of the weight of m rows."""
    return _least(lambda t: loss(t) + m * t * t)


FORMS = {"own rows": own_rows, "normal": normal}


def _least(of: Callable[[float], float]) -> float:
    return float(minimize_scalar(of, bounds=(-3, 3), method="bounded", options={"xatol": 1e-5}).x)


def class_losses(outputs: np.ndarray, y: np.ndarray, spread: Any, t: float) -> np.ndarray:
    """Return the log loss of each row at the factor exp(t)."""
    logs = torch.from_numpy(outputs).double() / torch.as_tensor(spread).double() / np.exp(t)
    return -logs.log_softmax(1).numpy()[np.arange(len(y)), y]


def real_losses(outputs: np.ndarray, y: np.ndarray, variance: Any, t: float) -> np.ndarray:
    """Return the log loss of each row at the factor exp(t) on the standard deviation."""
    at = variance * np.exp(2 * t)
    each = 0.5 * ((y - outputs) ** 2 / at + np.log(2 * np.pi * at))
    return each.sum(1)


def differences(run: Values) -> dict[str, np.ndarray]:
    """Return test log loss minus the raw one of each test row, by "form, m"; and log c."""
    found: dict[str, np.ndarray] = {}
    y, spread, y_test = run["y"], run["fold_spread"][:, None], run["y_test"]
    if y.ndim == 1:
        p = torch.from_numpy(run["fold_outputs"] / spread).double().softmax(1)

        def expected(t: float) -> float:
            logs = torch.from_numpy(run["fold_outputs"] / spread).double() / np.exp(t)
            return -float((p * logs.log_softmax(1)).sum(1).mean())

        raw = class_losses(run["outputs"], y_test, run["spread"], 0.0)
        for (form, fit), m in product(FORMS.items(), STRENGTHS):
            fold = partial(class_losses, run["fold_outputs"], y, spread)
            t = fit(lambda t, fold=fold: float(fold(t).sum()), expected, m)
            found[f"{form}, {m}"] = (
                class_losses(run["outputs"], y_test, run["spread"], t) - raw,
                t,
            )
        return found
    s2, v = run["spread"] ** 2, run["variances"]
    raw = real_losses(run["outputs"], y_test, s2 + v, 0.0)
    for (form, fit), m, way in product(FORMS.items(), STRENGTHS, ("", "noise", "folds", "plain")):
        fold_s2 = spread**2 + (run["fold_variances"] if way == "folds" else 0)
        fold = partial(real_losses, run["fold_outputs"], y, fold_s2)
        t = fit(lambda t, fold=fold: float(fold(t).sum()), lambda t: t + 0.5 * np.exp(-2 * t), m)
        at = {"noise": s2 * np.exp(2 * t) + v, "plain": s2 * np.exp(2 * t)}
        at |= dict.fromkeys(("", "folds"), (s2 + v) * np.exp(2 * t))
        losses = real_losses(run["outputs"], y_test, at[way], 0.0)
        found[f"{form}, {m}" + f", {way}" * bool(way)] = losses - raw, t
    return found


def of_set(cache: Path, name: str) -> dict[str, Any]:
    """Return the mean difference of each way, its standard errors, and mean log c."""
    runs = [
        [dict(np.load(file)) for file in sorted(cache.glob(f"{name}-{draw}-*x*.npz"))]
        for draw in range(9)
    ]
    draws = [list(map(differences, one)) for one in runs if one]
    ways = {}
    for way in draws[0][0]:
        each = [np.mean([net[way][0] for net in nets], axis=0) for nets in draws]
        means = [float(one.mean()) for one in each]
        rows = np.sqrt(sum(one.var(ddof=1) / len(one) for one in each)) / len(each)
        spread = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0
        logs = [net[way][1] for nets in draws for net in nets]
        ways[way] = [
            round(float(v), 5)
            for v in (np.mean(means), max(rows, spread), np.mean(logs), np.std(logs))
        ]
    first = runs[0][0]
    return {
        "kind": "classes" if first["y"].ndim == 1 else "real", "rows": len(first["y"]),
        "networks": sum(map(len, draws)), "aside": name in ASIDE, "ways": ways,
        "cpu_seconds": round(float(sum(r["seconds"][0] for one in runs for r in one)), 1),
        "posterior_seconds": round(float(sum(r["seconds"][1] for one in runs for r in one)), 1),
    }  # fmt: skip


def main() -> None:
    """Train what is missing, or write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=[name for name in SETS if "@" not in name])
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--summary", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.cache.mkdir(parents=True, exist_ok=True)
    if given.summary:
        names = [name for name in SETS if any(given.cache.glob(f"{name}-*x*.npz"))]
        rows = {name: of_set(given.cache, name) for name in names}
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
        about = "ways: [mean difference, standard error, mean log c, its standard deviation]"
        head = {"commit": commit(), "hardware": HARDWARE, "unit": "nats per datum", "about": about}
        RESULTS.write_text(f'{json.dumps(head)[:-1]}, "sets": {{\n{lines}\n}}}}\n')
        return
    for draw in range(given.draws):
        for name in given.sets:
            run(given.data, given.cache, name, draw)


if __name__ == "__main__":
    main()
