"""The published study of architectures on Fashion-MNIST (Immer 2021, Table C11).

SGD 0.01, batches of 128, 250 epochs with steps at 1/2, 3/4 and 11/12, online diagonal EF every
five epochs with a hundred steps of Adam at rate 1. The short version trains the two smallest
networks on a subset, the full one as many of the cheapest as six hours carry, 60 of the 250
epochs; it stops before the network that would not end in time.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from nas_evidence.models import build
from nas_evidence.reproducing import Reproduction, Row
from nas_evidence.spec import ArchitectureSpec

from ._images import subset
from ._immer import fit

PAPER = "P003"
FIGURE = "Fig. 2, Fig. C.3, Fig. C.4, Table C11"
TITLE = "Evidence and accuracy of the cheapest published architectures on Fashion-MNIST"
CLAIM = "Networks of larger evidence have the higher test accuracy (rank correlation 0.69)."
NEEDS = ("FashionMNIST",)
FULL_HOURS = 6.0

#: Family, depth, width, published accuracy (%), evidence (nats per datum), parameters; by cost.
ARCHITECTURES = (
    ("cnn", 2, 2, 85.25, -0.417, 566),
    ("cnn", 3, 2, 87.70, -0.361, 864),
    ("cnn", 1, 4, 85.94, -0.421, 748),
    ("cnn", 2, 4, 88.28, -0.369, 1166),
    ("mlp", 1, 50, 86.27, -0.537, 39784),
    ("mlp", 3, 50, 86.45, -0.597, 44900),
    ("cnn", 3, 4, 89.78, -0.341, 2296),
    ("cnn", 4, 2, 88.24, -0.360, 2074),
    ("cnn", 1, 8, 88.05, -0.390, 1428),
    ("mlp", 5, 50, 86.43, -0.624, 50016),
    ("cnn", 2, 8, 90.71, -0.354, 2798),
    ("mlp", 1, 200, 85.24, -0.581, 159034),
    ("mlp", 3, 200, 85.56, -0.633, 239450),
    ("cnn", 4, 4, 91.15, -0.342, 6978),
    ("cnn", 5, 2, 89.81, -0.354, 6756),
    ("cnn", 1, 16, 89.05, -0.395, 2788),
    ("cnn", 3, 8, 91.15, -0.357, 7320),
    ("cnn", 2, 16, 91.10, -0.384, 7790),
)
GPU_HOURS_REST = 15  # of one GPU for all 37 architectures, 250 epochs, one after the other
_BUDGET = 6 * 3600.0


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Train the cheapest architectures within the budget."""
    assert data is not None
    n_train, n_test, epochs = (1000, 3000, 12) if quick else (60_000, 10_000, 60)
    chosen = (*ARCHITECTURES[:2], *ARCHITECTURES[4:6]) if quick else ARCHITECTURES
    train, test = subset(data, "FMNIST", n_train, n_test)
    started, longest, found = time.monotonic(), 0.0, []
    for one in chosen:
        family, depth, width, *_ = one
        if not quick and time.monotonic() - started + longest > _BUDGET:
            break
        say(f"{family}, depth {depth}, width {width}: {n_train} images, {epochs} epochs")
        begun = time.monotonic()
        spec = ArchitectureSpec(family=family, values={"depth": depth, "width": width})
        model = build(spec, tuple(train[0].shape[1:]), 10, torch.Generator().manual_seed(0))
        plan = {
            "epochs": epochs,
            "batch_size": 128,
            "optimiser": "sgd",
            "learning_rate": 0.01,
            "momentum": 0.9,
            "schedule": "steps",
            "milestones": [epochs // 2, 3 * epochs // 4, 11 * epochs // 12],
            "online": {
                "every": 5,
                "curvature": "diag_ef",
                "hyper_step": "adam",
                "hyper_steps": 100,
                "hyper_learning_rate": 1.0,
            },
        }
        fitted = fit(model, train, test, plan=plan)
        counted = sum(p.numel() for p in model.parameters())
        longest = max(longest, time.monotonic() - begun)
        found.append((one, 100 * fitted.test_accuracy(), fitted.path[-1][2] / n_train, counted))
    rows, same = [], []
    for (family, depth, width, accuracy, evidence, parameters), ours, value, counted in found:
        same.append(counted - parameters)
        rows.append(
            Row(
                f"{family}, depth {depth}, width {width}: accuracy, evidence, parameters",
                f"{accuracy:.2f}, {evidence:.3f}, {parameters}",
                f"{ours:.2f}, {value:.3f}, {counted}",
                "one seed",
                f"{n_train} images, {epochs} of 250 epochs",
            )
        )
    published = spearmanr([f[0][3] for f in found], [f[0][4] for f in found])[0]
    own = spearmanr([f[1] for f in found], [f[2] for f in found])[0]
    rows.append(
        Row(
            "rank correlation of evidence and accuracy over these networks",
            f"{published:+.2f}",
            f"{own:+.2f}",
            f"n = {len(found)} networks",
        )
    )
    left_out = 37 - len(found)
    rows.append(
        Row(
            "architectures left for a GPU",
            "37 in all",
            f"{left_out}",
            f"about {GPU_HOURS_REST} hours of one GPU for all, 250 epochs",
        )
    )
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.plot([f[0][4] for f in found], [f[0][3] for f in found], "o", label="published")
    axis.plot([f[2] for f in found], [f[1] for f in found], "^", label="ours")
    for one, ours, value, _ in found:
        axis.annotate(f"{one[0]} {one[1]}x{one[2]}", (value, ours), fontsize=6)
    axis.set(xlabel="evidence, nats per datum", ylabel="test accuracy, %")
    axis.legend(fontsize=7)
    return Reproduction(
        tuple(rows),
        figure,
        {
            "n_train": n_train,
            "epochs": epochs,
            "parameters_minus_published": same,
            "ours": [list(f[0]) + list(f[1:]) for f in found],
            "rho": own,
            "rho_published": published,
        },
        "reproduced" if own > 0.5 and published > 0 else "differs",
        f"{len(found)} of 37 architectures, {n_train} images, {epochs} of 250 epochs: rank "
        f"correlation {own:+.2f}, of the published values of the same networks {published:+.2f}",
    )
