"""How long to train: test log loss and `two_fold` after 160, 400, 1,000 and 2,500 steps.

Trains small networks on five sets with the plan that a search of a table has, only longer or
shorter. The rule of `epochs = "auto"` (`data/proposed.py`) is chosen from what this finds.

    python benchmarks/epochs_rule.py DATA_ROOT [--seeds 1] [--to FILE.json]

DATA_ROOT holds `uci/` and `uci-classification/`. The split of a set is one for all seeds. The
linear model settles at its optimum however long it trains: it is here as the baseline, once.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from settling import raw
from sklearn.datasets import make_classification

from nas_evidence.data.arrays import Array, ArrayData, moments
from nas_evidence.data.proposed import training_length
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.workers.trial import Trial

STEPS = (160, 400, 1000, 2500)
MLPS: list[tuple[str, dict[str, int]]] = [
    ("mlp", {"depth": 1, "width": 16}),
    ("mlp", {"depth": 2, "width": 64}),
]
CNN: tuple[str, dict[str, int]] = ("cnn", {"depth": 2, "width": 8})
#: Training and test rows of each set.
SETS = {
    "australian": (150, 500),
    "correlated": (480, 5000),
    "wine-quality-red": (480, 1000),
    "satellite": (480, 2000),
    "digits": (1297, 500),
}


def correlated(seed: int = 0) -> tuple[Array, Array]:
    """Return rows of 20 features, most of them mixtures of others, with 5 % of labels wrong."""
    x, y = make_classification(
        5480, 20, n_informative=6, n_redundant=10, flip_y=0.05, random_state=seed
    )
    return x.astype(np.float32), y.astype(np.int64)


def load(name: str, root: Path) -> TensorData:
    """Return a set with its one split."""
    n_train, n_test = SETS[name]
    x, y = correlated() if name == "correlated" else raw(name, root)
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


def plan_of(data: TensorData, n_steps: int) -> TrainingPlan:
    """Return the plan of a table, with epochs for so many steps."""
    n_data = len(data.x_train)
    batch, _ = training_length(n_data)
    epochs = max(1, round(n_steps * batch / n_data))
    return TrainingPlan.model_validate(
        {
            "likelihood": "gaussian" if data.task == "real" else "categorical",
            "epochs": epochs, "batch_size": batch, "optimiser": "adam", "learning_rate": 0.005,
            "online": {"every": max(5, epochs // 8), "curvature": "kfac_ggn_mc"},
        }
    )  # fmt: skip


def trained(
    family: str, values: dict[str, int], data: TensorData, *, n_steps: int, seed: int
) -> dict[str, Any]:
    """Return test log loss and `two_fold` of one network, nats per datum."""
    plan = plan_of(data, n_steps)
    assignment = Assignment(
        trial_id=0, attempt=1, replicate=seed, seed=seed, plan=plan, estimators=("two_fold",),
        architecture=ArchitectureSpec(family=family, values=values),
        dataset=DatasetSpec(name="digits"),
    )  # fmt: skip
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(assignment, data, Path(folder))
        while not trial.advance(plan.epochs).done:
            pass
        record = trial.finish()
    assert record.status == "complete", record.cause
    score = next(
        one.estimate for one in record.evaluations if one.estimate.estimator == "two_fold"
    )
    return {
        "steps": n_steps,
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "seed": seed,
        "test_log_loss": record.test_nll_per_datum,
        "two_fold": score.per_datum,
        "converged": record.converged,
        "seconds": round(time.process_time() - started, 2),
    }


def rows(root: Path, n_seeds: int) -> Any:
    """Yield one row per seed, set, network and number of steps."""
    for seed in range(n_seeds):
        for name in SETS:
            data = load(name, root)
            networks = [*MLPS, *([CNN] if len(data.input_shape) == 3 else [])]
            tasks = [(family, values, n) for family, values in networks for n in STEPS]
            for family, values, n_steps in [("linear", {}, STEPS[1]), *tasks]:
                found = trained(family, values, data, n_steps=n_steps, seed=seed)
                yield {"set": name, "family": family, **values, **found}


def main() -> None:
    """Measure, print and store the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_root", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--to", type=Path, default=Path("benchmarks/results/epochs_rule_cpu.json"))
    given = parser.parse_args()
    names = ("torch", "scikit-learn", "numpy")
    result: dict[str, Any] = {
        "hardware": f"{os.cpu_count()} {platform.machine()} cores, one thread, shared",
        "versions": {name: metadata.version(name) for name in names},
        "rows": [],
    }
    for row in rows(given.data_root, given.seeds):
        result["rows"].append(row)
        print(row, flush=True)
        given.to.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
