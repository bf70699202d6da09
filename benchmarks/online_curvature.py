"""Which curvature learns the better regularisation: Kronecker (Monte Carlo) or diagonal EF?

Trains a few architectures on a small part of Fashion-MNIST with each online curvature, and with
the prior held at 1, everything else equal, and prints test accuracy and test nll per datum.

    python benchmarks/online_curvature.py DATA_ROOT [--seeds 2] [--out FILE.json]
"""

import argparse
import json
import platform
import statistics
import tempfile
from pathlib import Path

import torch

from nas_evidence.data import load
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.record import TrialRecord
from nas_evidence.spec import ArchitectureSpec, Assignment, DatasetSpec, TrainingPlan
from nas_evidence.trial import Trial

ARCHITECTURES = [
    ("mlp", {"width": 50, "depth": 1}),
    ("mlp", {"width": 200, "depth": 3}),
    ("cnn", {"width": 4, "depth": 2}),
    ("cnn", {"width": 8, "depth": 1}),
    ("cnn", {"width": 8, "depth": 3}),
    ("cnn", {"width": 4, "depth": 4}),
]
KINDS = ("kfac_ggn_mc", "diag_ef", "none")
EPOCHS, EVERY = 40, 5


def train(
    family: str, values: dict[str, int], kind: str, seed: int, data: TensorData
) -> TrialRecord:
    """Return the record of one training run."""
    online = {"every": EVERY} if kind == "none" else {"every": EVERY, "curvature": kind}
    online |= {"burn_in": EPOCHS} if kind == "none" else {}
    plan = TrainingPlan.model_validate({"epochs": EPOCHS, "learning_rate": 0.05, "online": online})
    assignment = Assignment(
        trial_id=0, attempt=1, replicate=seed, seed=seed, plan=plan, estimators=(),
        architecture=ArchitectureSpec(family=family, values=values),
        dataset=DatasetSpec(name="fashion_mnist"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(assignment, data, Path(folder))
        trial.advance(EPOCHS)
        return trial.finish()


def main() -> None:
    """Measure, print a line each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_root")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = DatasetSpec(name="fashion_mnist", max_train=2000, max_test=5000)
    data = to_tensors(load(spec, seed=0, data_root=options.data_root), "cpu")
    rows = []
    for family, values in ARCHITECTURES:
        for kind in KINDS:
            records = [train(family, values, kind, s, data) for s in range(options.seeds)]
            accuracies = [r.test_accuracy or 0.0 for r in records]
            nlls = [r.test_nll_per_datum or float("nan") for r in records]
            row = {
                "family": family, **values, "online": kind, "n": len(records),
                "test_accuracy": statistics.mean(accuracies),
                "accuracy_range": [min(accuracies), max(accuracies)],
                "test_nll_per_datum": statistics.mean(nlls),
                "nll_range": [min(nlls), max(nlls)],
            }  # fmt: skip
            rows.append(row)
            print(
                f"{family:4} {values['width']:4}/{values['depth']}  {kind:12} "
                f"accuracy {row['test_accuracy']:.4f}  nll {row['test_nll_per_datum']:.4f}",
                flush=True,
            )
    result = {
        "what": "Fashion-MNIST, 2000 training and 5000 test images, 40 epochs, F = 5, SGD 0.05",
        "hardware": f"{platform.machine()}, one thread",
        "torch": torch.__version__,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
