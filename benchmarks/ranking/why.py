"""Why the Laplace evidence misranks: approximation, no mode, prior, or the evidence itself.

Small networks on few digits, where the Gauss-Newton of all parameters together can be computed.
Every network is trained with the online updates as a study does, for 40 and for 300 epochs, with
one precision a tensor or one for all; every curvature then gives its evidence of the same weights.

    python benchmarks/ranking/why.py [--seeds 2] [--n-data 200] [--variants V ...] [--out F]
"""

import argparse
import json
import os
import platform
import tempfile
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from nas_evidence import estimate_evidence
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.record import TrialStatus
from nas_evidence.spec import ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.trial import Trial

KINDS = ("diag_ef", "diag_ggn", "kfac_ggn", "ekfac_ggn", "block_ggn", "full_ggn")
#: Variant -> (epochs, groups of the prior).
VARIANTS = {
    "40 epochs, tensor": (40, "tensor"),
    "300 epochs, tensor": (300, "tensor"),
    "300 epochs, width": (300, "width"),
    "300 epochs, scalar": (300, "scalar"),
}
ARCHITECTURES = [
    ArchitectureSpec(family="mlp", values={"depth": d, "width": w, "shape": "constant"})
    for d in (1, 2, 4)
    for w in (5, 10, 20)
] + [
    ArchitectureSpec(family="cnn", values={"depth": d, "width": w})
    for d in (1, 2, 3)
    for w in (2, 4, 6)
]


def scores_of(
    architecture: ArchitectureSpec, epochs: int, groups: str, seed: int, n_data: int
) -> dict[str, float] | None:
    """Return every evidence per datum of one trained network, and how good it is on test data."""
    dataset = DatasetSpec(name="digits", max_train=n_data)
    data = to_tensors(load(dataset, seed=seed), "cpu")
    given = Assignment(
        trial_id=0, attempt=1, replicate=0, seed=seed, estimators=("two_fold",),
        architecture=architecture, dataset=dataset,
        plan={
            "epochs": epochs, "batch_size": 50, "learning_rate": 0.05,
            "online": {"every": 10, "burn_in": 10, "prior_groups": groups},
        },
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial.start(given, data, Path(folder))
        while trial.status is TrialStatus.RUNNING:
            trial.advance(epochs)
        record = trial.finish()
    if record.status is not TrialStatus.COMPLETE or trial.training is None:
        return None
    found = {
        "test_accuracy": float(record.test_accuracy or 0),
        "-test_nll": -float(record.test_nll_per_datum or 0),
        "n_parameters": float(record.n_parameters or 0),
        "sotl": -record.curve[-1].sotl,
    }
    blocks = record.final_estimate("two_fold")
    if blocks is None or blocks.per_datum is None:
        return None
    found["two_fold"] = blocks.per_datum
    for kind in KINDS:
        for corrected in (False, True) if kind == "full_ggn" else (False,):
            estimate = estimate_evidence(
                trial.training.model, data.x_train, data.y_train,
                likelihood="categorical", curvature=kind,
                prior_precision=trial.training.prior_precision, at_mode_correction=corrected,
            )  # fmt: skip
            found[kind + " + mode" * corrected] = estimate.value / n_data
            if kind == "full_ggn" and not corrected:
                norm = next(t for t in estimate.terms if t.term == "gradient_norm_squared")
                found["gradient_norm_squared"] = norm.value / n_data
    return found


def rho(rows: list[dict[str, float]], score: str, target: str, chosen: list[int]) -> float | None:
    """Return Spearman's rho over some rows."""
    x, y = ([rows[i][name] for i in chosen] for name in (score, target))
    value = float(spearmanr(x, y).statistic)
    return round(value, 3) if np.isfinite(value) else None


def main() -> None:
    """Measure and print; write the table where `--out` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--n-data", type=int, default=200)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, object] = {
        "what": "Spearman's rho of evidences of small networks on few digits, means over seeds",
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
        "versions": {name: metadata.version(name) for name in ("torch", "numpy")},
        "n_data": options.n_data,
        "seeds": options.seeds,
        "variants": {},
    }
    for variant in options.variants:
        epochs, groups = VARIANTS[variant]
        means: list[dict[str, float]] = []
        names: list[ArchitectureSpec] = []
        for architecture in ARCHITECTURES:
            runs = [
                scores_of(architecture, epochs, groups, seed, options.n_data)
                for seed in range(options.seeds)
            ]
            done = [run for run in runs if run]
            if done:
                means.append({k: float(np.mean([run[k] for run in done])) for k in done[0]})
                names.append(architecture)
        groups_of = {
            "all": list(range(len(names))),
            "mlp": [i for i, a in enumerate(names) if a.family == "mlp"],
            "cnn": [i for i, a in enumerate(names) if a.family == "cnn"],
        }
        table = {
            score: {
                target: {g: rho(means, score, target, rows) for g, rows in groups_of.items()}
                for target in ("test_accuracy", "-test_nll")
            }
            for score in means[0]
            if score not in ("test_accuracy", "gradient_norm_squared")
        }
        result["variants"][variant] = {  # type: ignore[index]
            "rho": table,
            "architectures": [
                {"architecture": str(a), **{k: round(v, 4) for k, v in row.items()}}
                for a, row in zip(names, means, strict=True)
            ],
        }
        print(f"\n{variant}, {len(names)} architectures")
        for score, by_target in table.items():
            one = by_target["test_accuracy"]
            print(f"  {score:18} accuracy: all {one['all']} mlp {one['mlp']} cnn {one['cnn']}"
                  f"   nll: all {by_target['-test_nll']['all']}", flush=True)  # fmt: skip
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
