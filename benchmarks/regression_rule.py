"""Does the rule for prior precisions that may not rise help or harm, and on which data?

Trains MLPs on small regression sets and on small sets of classes, with the online updates of the
installed code, and adds the rows to a table under a label. Run it once with the code before a
change of the rule and once with the code after it, with the same options.

    python benchmarks/regression_rule.py DATA_ROOT LABEL [--seeds 3] [--only NAME ...] [--out FILE]

Regression follows `search_spaces/diabetes.toml`: 200 epochs of SGD 0.01, an update every 10 epochs
with `kfac_ggn`. Banana is trained with Adam 0.003 for 300 epochs and `diag_ef`, for which the rule
was made, also with a learned temperature. Digits and Satellite have 60 epochs of SGD 0.01 and the
default online curvature.

DATA_ROOT holds `uci/`, `uci-classification/` and `banana/`. RMSE is in units of the standard
deviation of the training targets. Evidence: `kfac_ggn` at the end, nats, all training data.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.record import TrialRecord
from nas_evidence.spec import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.trial import Trial

REGRESSION = {"likelihood": "gaussian", "epochs": 200, "batch_size": 32, "learning_rate": 0.01,
              "online": {"every": 10, "curvature": "kfac_ggn"}}  # fmt: skip
RINGS: dict[str, Any] = {"epochs": 300, "optimiser": "adam", "learning_rate": 0.003,
                         "schedule": "constant",
                         "online": {"every": 10, "curvature": "diag_ef"}}  # fmt: skip
RINGS_TEMPERATURE = {**RINGS, "online": {**RINGS["online"], "learn_temperature": True}}
CLASSES = {"epochs": 60, "batch_size": 32, "learning_rate": 0.01}
#: Depth and width of the hidden layers; 1x256 is outside the shipped search space.
SHAPES = ((1, 4), (1, 16), (1, 64), (2, 16), (2, 64), (3, 64), (4, 32), (1, 256))
WIDE_SHAPES = ((1, 16), (1, 64), (2, 64), (3, 64), (1, 256))
FEW_SHAPES = ((1, 16), (1, 64), (3, 64))

Raw = tuple[np.ndarray, np.ndarray]


def uci(folder: str, n_train: int) -> Callable[[Path], tuple[Raw, int]]:
    """Return a reader of a regression set: all rows, shuffled, the first `n_train` to train on."""

    def read(root: Path) -> tuple[Raw, int]:
        table = np.loadtxt(root / "uci" / folder / "data.txt")
        inputs = np.loadtxt(root / "uci" / folder / "index_features.txt").astype(int)
        target = int(np.loadtxt(root / "uci" / folder / "index_target.txt"))
        return (table[:, inputs].astype(np.float32), table[:, target]), n_train

    return read


def satellite(root: Path) -> tuple[Raw, int]:
    """Return Satellite with 300 rows to train on."""
    folder = root / "uci-classification" / "satellite"
    labels = np.loadtxt(folder / "Y.txt").astype(np.int64)
    labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return (np.loadtxt(folder / "X.txt").astype(np.float32), labels), 300


def banana(root: Path) -> tuple[Raw, int]:
    """Return the banana data with 300 rows to train on."""
    table = np.loadtxt(root / "banana" / "banana.csv", delimiter=",")
    labels = np.unique(table[:, -1], return_inverse=True)[1].astype(np.int64)
    return (table[:, :-1].astype(np.float32), labels), 300


Row = tuple[Callable[[Path], tuple[Raw, int]] | DatasetSpec, dict[str, Any], tuple[Any, ...]]
SETS: dict[str, Row] = {
    "diabetes": (DatasetSpec(name="diabetes", test_size=142), REGRESSION, SHAPES),
    "boston": (uci("bostonHousing", 400), REGRESSION, WIDE_SHAPES),
    "wine_red": (uci("wine-quality-red", 300), REGRESSION, WIDE_SHAPES),
    "kin8nm": (uci("kin8nm", 500), REGRESSION, WIDE_SHAPES),
    "power_plant": (uci("power-plant", 150), REGRESSION, WIDE_SHAPES),
    "banana": (banana, RINGS, ((1, 50), (2, 50))),
    "banana_temperature": (banana, RINGS_TEMPERATURE, ((1, 50), (2, 50))),
    "digits": (DatasetSpec(name="digits", max_train=300), CLASSES, FEW_SHAPES),
    "satellite": (satellite, CLASSES, FEW_SHAPES),
}


def data_of(name: str, root: Path) -> TensorData:
    """Return a data set, split by a fixed seed; at most 1,500 rows to test on."""
    source = SETS[name][0]
    if isinstance(source, DatasetSpec):
        return to_tensors(load(source, seed=0), "cpu")
    (x, y), n_train = source(root)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:n_train], order[n_train : n_train + 1500]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set.npz"
        np.savez(path, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
        return to_tensors(load(DatasetSpec(name="npz", path=str(path)), seed=0), "cpu")


def train(name: str, depth: int, width: int, seed: int, data: TensorData) -> TrialRecord:
    """Return the record of one training."""
    plan = TrainingPlan.model_validate(SETS[name][1])
    assignment = Assignment(
        trial_id=0, attempt=1, replicate=seed, seed=seed, plan=plan, estimators=("kfac_ggn",),
        architecture=ArchitectureSpec(family="mlp", values={"depth": depth, "width": width}),
        dataset=DatasetSpec(name="digits"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(assignment, data, Path(folder))
        trial.advance(plan.epochs)
        return trial.finish()


def figures(record: TrialRecord, data: TensorData) -> dict[str, float]:
    """Return what is compared, from one record."""
    last = max(e.epoch for e in record.evaluations)
    evidence = next(
        e.estimate.value for e in record.evaluations
        if e.epoch == last and e.estimate.estimator == "kfac_ggn"
    )  # fmt: skip
    found = {"evidence": evidence, "test_nll": record.test_nll_per_datum or float("nan")}
    if data.task == "real":
        assert record.test_rmse is not None
        found["test_rmse"] = record.test_rmse / float(data.y_std[0])
        found["noise_std"] = record.curve[-1].noise_std or float("nan")
    else:
        found["test_accuracy"] = record.test_accuracy or 0.0
    return found


def main() -> None:
    """Measure, print a line each, and add the rows to the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_root", type=Path)
    parser.add_argument("label")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.only:
        data = data_of(name, options.data_root)
        for depth, width in SETS[name][2]:
            started = time.perf_counter()
            runs = [
                figures(train(name, depth, width, seed, data), data)
                for seed in range(options.seeds)
            ]
            row: dict[str, Any] = {"rule": options.label, "data": name, "depth": depth,
                                   "width": width, "n_train": len(data.x_train),
                                   "n": len(runs)}  # fmt: skip
            for key in runs[0]:
                values = [run[key] for run in runs]
                row[key] = round(statistics.mean(values), 4)
                row[f"{key}_range"] = [round(min(values), 4), round(max(values), 4)]
            rows.append(row)
            shown = "  ".join(f"{key} {row[key]:9.4f}" for key in runs[0])
            print(f"{name:12} {depth}x{width:<4} {shown}  ({time.perf_counter() - started:.0f} s)",
                  flush=True)  # fmt: skip
        if options.out:
            write(rows, options.out)


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Put rows into the table, in place of those of the same label and data."""
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    done = {(row["rule"], row["data"]) for row in rows}
    result = {
        "what": "MLPs trained with the online updates before and after a change of their rule",
        "hardware": f"{platform.machine()}, one thread",
        "torch": torch.__version__,
        "rows": [row for row in kept if (row["rule"], row["data"]) not in done] + rows,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
