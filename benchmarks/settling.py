"""What settling does after the scheduled epochs: test log loss, evidence, distance from a mode.

Trains small networks on regression sets, tables of classes and images, settles each, and compares
the states before and after, and the one that is kept. There is one split of each set; the seeds
are those of the training, so that their spread is the seed noise.

    python benchmarks/settling.py DATA_ROOT [--seeds 3] [--settle 1.0] [--sets NAME ...]

DATA_ROOT holds `uci/bostonHousing`, `uci-classification/satellite` and `FashionMNIST/raw`.
"""

import argparse
import copy
import gzip
import json
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_digits

from nas_evidence.data.arrays import Array, ArrayData, moments
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training.loop import Training, likelihood_of
from nas_evidence.training.mode import newton_decrement
from nas_evidence.training.settling import begin_settling, settle_slice
from nas_evidence.workers.trial import Trial

EPOCHS = 40
SIZES = ((1, 16), (1, 64), (2, 32), (3, 16), (3, 64))
MLPS = [("mlp", {"depth": d, "width": w}) for d, w in SIZES]
TABLE = [*MLPS, ("linear", {})]
IMAGES = [
    ("mlp", {"depth": 1, "width": 32}),
    ("mlp", {"depth": 2, "width": 32}),
    ("cnn", {"depth": 1, "width": 4}),
    ("cnn", {"depth": 2, "width": 4}),
]
WIDE = [
    ("mlp", {"depth": 1, "width": 128}),
    ("mlp", {"depth": 3, "width": 169}),
    ("cnn", {"depth": 2, "width": 6}),
    ("cnn", {"depth": 3, "width": 10}),
]
#: Networks, training and test rows of each set. The rules of what is kept were chosen on all of
#: them: no set is untouched.
SETS = {
    "diabetes": (TABLE, 300, 142),
    "bostonHousing": (TABLE, 400, 106),
    "kin8nm": (TABLE, 300, 1000),
    "wine-quality-red": (TABLE, 300, 1000),
    "power-plant": (TABLE, 300, 1000),
    "cancer": (TABLE, 300, 300),
    "australian": (TABLE, 400, 290),
    "waveform": (TABLE, 300, 2000),
    "satellite": (TABLE, 300, 2000),
    "digits_table": (TABLE, 400, 1000),
    "digits": (IMAGES, 400, 1000),
    "fashion_mnist": (IMAGES, 250, 2000),
    "digits_1297": (WIDE, 1297, 500),
}


def raw(name: str, root: Path) -> tuple[Array, Array]:
    """Return inputs and targets of a set."""
    if name == "diabetes":
        x, y = load_diabetes(return_X_y=True)
        return x.astype(np.float32), y.reshape(-1, 1)
    if name.startswith("digits"):
        x, labels = load_digits(return_X_y=True)
        x = x.astype(np.float32)
        return x if name == "digits_table" else x.reshape(-1, 1, 8, 8), labels.astype(np.int64)
    if name in ("cancer", "australian"):
        folder = root / "uci-classification" / name
        parts = [np.loadtxt(folder / f"{n}_{p}.txt") for n in "Xy" for p in ("train", "test")]
        x, y = np.concatenate(parts[:2]), np.concatenate([p.reshape(-1) for p in parts[2:]])
        return x.astype(np.float32), np.unique(y, return_inverse=True)[1].astype(np.int64)
    if name in ("satellite", "waveform"):
        folder = root / "uci-classification" / name
        x, labels = np.loadtxt(folder / "X.txt"), np.loadtxt(folder / "Y.txt")
        return x.astype(np.float32), labels.astype(np.int64)
    if name == "fashion_mnist":
        folder = root / "FashionMNIST" / "raw"
        images = gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / "train-labels-idx1-ubyte.gz").read_bytes())
        x = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)[:5000]
        return x.astype(np.float32), np.frombuffer(labels, np.uint8, offset=8)[:5000].astype(int)
    folder = root / "uci" / name
    table = np.loadtxt(folder / "data.txt")
    columns = np.loadtxt(folder / "index_features.txt").astype(int)
    target = int(np.loadtxt(folder / "index_target.txt"))
    return table[:, columns].astype(np.float32), table[:, [target]]


def load(name: str, root: Path) -> TensorData:
    """Return a set with its one split."""
    _, n_train, n_test = SETS[name]
    x, y = raw(name, root)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:n_train], order[n_train : n_train + n_test]
    mean, std = moments(x[train])
    real = np.issubdtype(y.dtype, np.floating)
    width = y.shape[1] if real else int(y.max()) + 1
    arrays = ArrayData(
        name, x[train], y[train], x[test], y[test],
        task="real" if real else "labels", n_outputs=width, input_shape=x.shape[1:],
        mean=mean, std=std,
        y_mean=y[train].mean(0) if real else np.zeros(width),
        y_std=y[train].std(0) if real else np.ones(width),
    )  # fmt: skip
    return to_tensors(arrays, "cpu")


@torch.no_grad()
def tested(state: Training, data: TensorData, plan: TrainingPlan) -> tuple[float, float]:
    """Return test nll per datum, and accuracy or the root mean squared error, standardised."""
    likelihood = likelihood_of(plan, state.noise_std, state.temperature)
    outputs = state.model.eval()(data.x_test)
    nll = -float(likelihood.log_likelihood(outputs, data.y_test)) / len(data.y_test)
    if plan.likelihood == "categorical":
        return nll, float((outputs.argmax(1) == data.y_test).double().mean())
    return nll, float((outputs - data.y_test).double().square().mean().sqrt())


def compare(
    family: str, values: dict[str, int], seed: int, data: TensorData, settle: float
) -> dict[str, Any]:
    """Return what one network is before and after settling."""
    plan = TrainingPlan.model_validate(
        {
            "likelihood": "gaussian" if data.task == "real" else "categorical",
            "epochs": EPOCHS, "batch_size": 32, "learning_rate": 0.02, "settle": 0,
        }
    )  # fmt: skip
    assignment = Assignment(
        trial_id=0, attempt=1, replicate=seed, seed=seed, plan=plan, estimators=(),
        architecture=ArchitectureSpec(family=family, values=values),
        dataset=DatasetSpec(name="digits"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(assignment, data, Path(folder))
        trial.advance(EPOCHS)
    training = trial.training
    assert training is not None, trial.cause
    n_data = len(data.x_train)
    before = copy.deepcopy(training)
    settling = begin_settling(training, data, assignment, settle * EPOCHS)
    while not settle_slice(settling, training, data, assignment):
        pass
    # The end of the alternation, whether it is kept or not.
    states = {"before": before, "after": settling.working, "kept": training}
    row: dict[str, Any] = {"family": family, **values, "seed": seed}
    for name, state in states.items():
        row[f"test_nll_{name}"], row[f"test_measure_{name}"] = tested(state, data, plan)
    for name, evidence in (
        ("before", settling.scheduled_evidence),
        ("after", settling.evidence),
    ):
        row[f"evidence_{name}"] = None if evidence is None else evidence / n_data
        row[f"decrement_{name}"] = newton_decrement(states[name], data, assignment)[0] / n_data
    return row | {
        "kept": settling.kept,
        "converged": settling.converged,
        "moved": settling.moved,
        "rounds": settling.rounds,
        "train_seconds": training.train_seconds + training.evidence_seconds,
        "settle_seconds": settling.seconds,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over networks and seeds, and how often what happened."""

    def mean(key: str) -> float:
        return round(statistics.fmean(row[key] for row in rows), 4)

    networks: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        networks.setdefault(f"{row['family']} {row.get('depth')} {row.get('width')}", []).append(
            row
        )
    spreads = {
        name: [
            statistics.stdev(row[f"test_nll_{name}"] for row in group)
            for group in networks.values()
            if len(group) > 1
        ]
        for name in ("before", "after", "kept")
    }
    worse = [
        name
        for (name, group), spread in zip(networks.items(), spreads["before"], strict=False)
        if statistics.fmean(r["test_nll_kept"] - r["test_nll_before"] for r in group) > spread
    ]
    finite = [row for row in rows if row["evidence_after"] is not None]
    better = [row["test_nll_after"] < row["test_nll_before"] for row in finite]
    plain = [row["evidence_after"] > row["evidence_before"] for row in finite]
    corrected = [
        row["evidence_after"] + 0.5 * row["decrement_after"]
        > row["evidence_before"] + 0.5 * row["decrement_before"]
        for row in finite
    ]
    found: dict[str, Any] = {"networks": len(networks), "runs": len(rows)}
    for what in ("test_nll", "test_measure"):
        for name in ("before", "after", "kept"):
            found[f"{what}_{name}"] = mean(f"{what}_{name}")
    for what in ("evidence", "decrement"):
        for name in ("before", "after"):
            found[f"{what}_{name}"] = mean(f"{what}_{name}") if len(finite) == len(rows) else None
    for name, values in spreads.items():
        found[f"seed_noise_{name}"] = round(statistics.fmean(values), 4) if values else None
    return found | {
        "kept_scheduled": sum(row["kept"] == "scheduled" for row in rows),
        "converged": sum(row["converged"] for row in rows),
        "hyperparameters_at_rest": sum(row["moved"] < 0.02 for row in rows),
        "nll_better_after": sum(better),
        "evidence_sign_right": sum(a == b for a, b in zip(better, plain, strict=True)),
        "corrected_sign_right": sum(a == b for a, b in zip(better, corrected, strict=True)),
        "worse_beyond_seed_noise": worse,
        "train_seconds": mean("train_seconds"),
        "settle_seconds": mean("settle_seconds"),
    }


def main() -> None:
    """Measure, print a line each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_root", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--settle", type=float, default=1.0)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, Any] = {}
    for name in options.sets:
        data = load(name, options.data_root)
        rows = [
            compare(family, values, seed, data, options.settle)
            for family, values in SETS[name][0]
            for seed in range(options.seeds)
        ]
        parts = {
            family: summary([row for row in rows if row["family"] == family])
            for family in sorted({row["family"] for row in rows})
        }
        table[name] = {"n_train": len(data.x_train), "summary": parts, "rows": rows}
        for family, part in parts.items():
            print(name, family, json.dumps(part), flush=True)
        if options.out:
            found = {
                "what": f"settling after {EPOCHS} epochs, SGD 0.02, batches of 32, update every 5",
                "settle": options.settle,
                "seeds": options.seeds,
                "units": "nats per datum; accuracy, or rmse of standardised targets; seconds",
                "hardware": f"{platform.machine()}, one thread",
                "python": platform.python_version(),
                "torch": torch.__version__,
                "sets": table,
            }
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
