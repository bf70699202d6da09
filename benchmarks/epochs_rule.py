"""How long to train, in which batches, at which rate: test log loss of plans on many sets.

Trains small networks with the plan that a search of a table has, only with other batches, steps
and learning rates, and with or without settling; four seeds of a cell side by side. The numbers
of `data/proposed.py` were chosen on `CHOSEN_ON`; `KEPT_ASIDE` was looked at once.

    python benchmarks/epochs_rule.py DATA_ROOT [--sets NAME:ROWS ...] [--plans ...] [--to FILE]

DATA_ROOT holds `uci/` and `uci-classification/`. There is one split of each set, the same for all
seeds. A plan is `batch:steps:rate` or `batch:steps:rate:settle`; "proposed" is that of a search.
"""

import argparse
import json
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from settling import raw, tested
from sklearn import datasets

from nas_evidence.data.arrays import Array, ArrayData, moments
from nas_evidence.data.proposed import LEARNING_RATE, training_length
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.training.parts import new_run, part_of, train_slices

CHOSEN_ON = (
    "bostonHousing:300", "diabetes:300", "kin8nm:300", "cancer:300", "australian:300",
    "waveform:300", "satellite:300", "kin8nm:1000", "wine-quality-red:1000",
)  # fmt: skip
KEPT_ASIDE = (
    "wine:110", "iris:100", "breast:300", "moons:300", "synth5:600", "friedman:200",
    "linnoise:300", "naval-propulsion-plant:300", "power-plant:1000", "diabetes:150",
    "friedman2:300", "friedman3:300",
)  # fmt: skip
PLANS = ("16:2500:0.005", "proposed")
MLPS = ((1, 16), (2, 32), (3, 64))
N_SEEDS, N_TEST = 4, 2000


def made(name: str) -> tuple[Array, Array] | None:
    """Return a set of scikit-learn's, or an artificial one; None if it is neither."""
    if name in ("wine", "iris", "breast"):
        name = {"breast": "breast_cancer"}.get(name, name)
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    elif name == "moons":
        x, y = datasets.make_moons(3000, noise=0.3, random_state=1)
    elif name == "synth5":
        x, y = datasets.make_classification(
            3000, n_features=15, n_informative=8, n_classes=5, flip_y=0.05, random_state=2
        )
    elif name == "friedman":
        x, y = datasets.make_friedman1(3000, noise=1.0, random_state=1)
    elif name in ("friedman2", "friedman3"):
        x, y = getattr(datasets, f"make_{name}")(3000, noise=0.0, random_state=1)
    elif name == "linnoise":
        random = np.random.default_rng(3)
        x = random.normal(size=(3000, 20))
        y = x @ random.normal(size=20) + 3 * random.normal(size=3000)
    else:
        return None
    labels = np.issubdtype(y.dtype, np.integer)
    return x.astype(np.float32), y.astype(np.int64) if labels else y.reshape(-1, 1)


def correlated(seed: int = 0) -> tuple[Array, Array]:
    """Return rows of 20 features, most of them mixtures of others, with 5 % of labels wrong."""
    x, y = datasets.make_classification(
        5480, 20, n_informative=6, n_redundant=10, flip_y=0.05, random_state=seed
    )
    return x.astype(np.float32), y.astype(np.int64)


def load(name: str, n_rows: int, root: Path, seed: int) -> TensorData:
    """Return a set with one split, drawn by `seed`."""
    x, y = made(name) or raw(name, root)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:n_rows], order[n_rows : n_rows + N_TEST]
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


def plan_of(data: TensorData, text: str) -> TrainingPlan:
    """Return the plan of a table with batch, steps, learning rate and settling of a text."""
    n_data = len(data.x_train)
    settle = float(data.task == "real")
    if text == "proposed":
        batch, epochs = training_length(n_data)
        rate = LEARNING_RATE
    else:
        first, steps, rate, *more = map(float, text.split(":"))
        batch, settle = int(first), sum(more, 0.0)
        epochs = max(20, min(400, round(steps * batch / n_data)))
    return TrainingPlan.model_validate(
        {
            "likelihood": "gaussian" if data.task == "real" else "categorical",
            "epochs": epochs, "batch_size": batch, "optimiser": "adam", "learning_rate": rate,
            "settle": settle, "online": {"every": max(1, epochs // 8)},
        }
    )  # fmt: skip


def cell(data: TensorData, depth: int, width: int, plan: TrainingPlan) -> dict[str, Any]:
    """Return test log loss, error and kept state of each seed, and the CPU seconds of all."""
    architecture = ArchitectureSpec(family="mlp", values={"depth": depth, "width": width})
    given = Assignment(
        trial_id=0, attempt=1, replicate=0, seed=0, estimators=(), architecture=architecture,
        dataset=DatasetSpec(name="digits"), plan=plan,
    )  # fmt: skip
    parts = [part_of(None, data, given, f"s{k}") for k in range(N_SEEDS)]
    runs = [new_run(part) for part in parts]
    started, left = time.process_time(), list(range(N_SEEDS))
    while left:
        over = train_slices([runs[k] for k in left], [parts[k] for k in left])
        left = [k for k, is_over in zip(left, over, strict=True) if not is_over]
    seconds = time.process_time() - started
    found = [tested(run.training, data, plan) for run in runs]
    return {
        "cpu_seconds": round(seconds, 2),
        "log_loss": [round(nll, 4) for nll, _ in found],
        "error": [round(error, 4) for _, error in found],
        "kept": [run.settling.kept if run.settling else None for run in runs],
    }


def main() -> None:
    """Measure every set, network and plan, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_root", type=Path)
    parser.add_argument("--sets", nargs="+", default=[*CHOSEN_ON, *KEPT_ASIDE])
    parser.add_argument("--plans", nargs="+", default=list(PLANS))
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for text in options.sets:
        name, _, n_rows = text.partition(":")
        data = load(name, int(n_rows), options.data_root, seed=7 if text in KEPT_ASIDE else 0)
        for depth, width in MLPS:
            for plan in options.plans:
                of = {"set": text, "network": f"{depth} x {width}", "plan": plan}
                rows.append(of | cell(data, depth, width, plan_of(data, plan)))
                print(json.dumps(rows[-1]), flush=True)
    if options.to:
        found = {
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
            "torch": metadata.version("torch"),
            "rows": rows,
        }
        options.to.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
