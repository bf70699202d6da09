"""From how many rows an update may learn the prior precisions, at which loss and for which time.

    all      each update sees all training data, as before
    again    the same with other random signs: what the luck of the Monte-Carlo draw does
    n        each update sees n rows, each counted N / n times (`plan.online.rows`)

Written before anything ran. Chosen on 8,000 images of Fashion-MNIST: the smallest n of 1,024,
2,048 and 4,096 whose networks have a test log loss that differs from that of `all` by no more than
`again` differs from it, beyond the 90 % interval of the difference, and by less than 0.002 nats in
the mean. Kept aside: 8,000 images of MNIST and of CIFAR-10, kin8nm (real targets, where settling
sees all rows anyway). Adopted if there the mean loss over all networks is below 0.002 nats, and on
no data set worse than `again` beyond its interval; else the next larger n is looked at in the same
way, and the page says so. The final evidence (per datum, of all data) is the second measure.

    python benchmarks/update_rows.py DATA --data fashion_mnist [--rows 1024 2048 4096] [--out F]
"""

import argparse
import io
import json
import os
import platform
import tempfile
import time
from importlib import metadata
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from PIL import Image
from settling import raw

from nas_evidence.data import load
from nas_evidence.data.arrays import ArrayData, moments
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.dataset import DatasetSpec
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, TrainingPlan
from nas_evidence.workers.trial import Trial

EVERYTHING, N_TEST = 1 << 40, 5000
IMAGES = [
    ("mlp", {"depth": 2, "width": 64}),
    ("mlp", {"depth": 3, "width": 256}),
    ("cnn", {"depth": 2, "width": 4}),
    ("cnn", {"depth": 3, "width": 6}),
]
TABLES = [("mlp", {"depth": 1, "width": 32}), ("mlp", {"depth": 2, "width": 64})]


class Again(Assignment):
    """An assignment with other random signs, all else the same."""

    def derived_seed(self, purpose: str, counter: int = 0) -> int:
        """Return the seed of one random stream."""
        other = f"again:{purpose}" if purpose.startswith("curvature:") else purpose
        return super().derived_seed(other, counter)


def data_of(name: str, root: Path, n_train: int, seed: int) -> TensorData:
    """Return the data with the training rows of a seed."""
    if name in ("mnist", "fashion_mnist"):
        spec = DatasetSpec.model_validate({"name": name, "max_train": n_train})
        return to_tensors(load(spec, seed=seed, data_root=str(root)), "cpu")
    if name == "cifar10":
        with np.load(root / "cifar10" / "cifar10_jpeg.npz") as file:
            stream, ends, y = file["train_jpeg"].tobytes(), file["train_offsets"], file["y_train"]
        chosen = np.random.default_rng([seed, 18]).permutation(len(y))[: n_train + N_TEST]
        pictures = [Image.open(io.BytesIO(stream[ends[i] : ends[i + 1]])) for i in chosen]
        x, y = np.stack(pictures).transpose(0, 3, 1, 2), y[chosen].astype(np.int64)
        x = x.astype(np.float32) / 255
    else:
        x, y = raw(name, root)
        order = np.random.default_rng([seed, 18]).permutation(len(y))
        x, y = x[order], y[order]
    n_test = N_TEST if name == "cifar10" else len(y) // 5
    train, test = slice(0, min(n_train, len(y) - n_test)), slice(-n_test, None)
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


def plan_of(task: str, rows: int) -> TrainingPlan:
    """Return the plan of a training."""
    keys: dict[str, Any] = {"epochs": 12, "learning_rate": 0.05, "online": {"rows": rows}}
    if task != "labels":
        keys |= {"likelihood": "gaussian", "optimiser": "adam", "learning_rate": 0.01}
        keys |= {"epochs": 40}
    return TrainingPlan.model_validate(keys)


def trained(
    kind: type[Assignment], data: TensorData, architecture: ArchitectureSpec, seed: int, rows: int
) -> dict[str, float]:  # fmt: skip
    """Return what a training comes to."""
    given = kind(
        trial_id=0, attempt=1, replicate=0, architecture=architecture,
        dataset=DatasetSpec(name="digits"), plan=plan_of(data.task, rows),
        estimators=("kfac_ggn_mc",), seed=seed,
    )  # fmt: skip
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            trial.advance(given.plan.epochs)
        record = trial.finish()
    (estimate,) = (e.estimate for e in record.evaluations if e.estimate.estimator == "kfac_ggn_mc")
    return {
        "test_nll": float(record.test_nll_per_datum),  # type: ignore[arg-type]
        "evidence": float(estimate.per_datum or "nan"),
        "cpu_seconds": round(time.process_time() - began, 2),
        "evidence_seconds": round(record.evidence_seconds, 2),
    }


def difference(one: list[float], other: list[float]) -> tuple[float, float]:
    """Return the mean difference and 1.645 of its standard errors."""
    apart = [a - b for a, b in zip(one, other, strict=True)]
    return fmean(apart), 1.645 * stdev(apart) / len(apart) ** 0.5


def main() -> None:
    """Measure and print; write the results where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_root", type=Path)
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--train", type=int, default=8000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for seed in options.seeds:
        data = data_of(options.data, options.data_root, options.train, seed)
        for family, values in IMAGES if data.task == "labels" else TABLES:
            architecture = ArchitectureSpec(family=family, values=values)
            variants = [("all", Assignment, EVERYTHING), ("again", Again, EVERYTHING)]
            variants += [(str(n), Assignment, n) for n in options.rows]
            for name, kind, rows in variants:
                one = trained(kind, data, architecture, seed, rows)
                found.append({"seed": seed, "network": f"{family} {values}", "rows": name, **one})
                print(found[-1], flush=True)
    names = list(dict.fromkeys(one["rows"] for one in found))
    table: dict[str, Any] = {}
    for name in names[1:]:
        for measure in ("test_nll", "evidence", "cpu_seconds", "evidence_seconds"):
            columns = [[o[measure] for o in found if o["rows"] == n] for n in (name, "all")]
            table[f"{measure}, {name} minus all"] = difference(*columns)
    print(json.dumps(table, indent=1))
    result = {
        "what": f"{options.data}, {options.train} rows: updates from fewer rows",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, one thread, load "
        f"{os.getloadavg()[0]:.1f}",
        "versions": {"torch": metadata.version("torch")},
        "runs": found,
        "mean difference, 1.645 standard errors": table,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
