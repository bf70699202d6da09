"""Calibration and images of another kind (Immer et al. 2021, Fig. 5).

The paper: ResNet-20 on CIFAR-10, images of SVHN outside, with and without data augmentation. The
short version: the convolutional network of Table 2 with an eighth of its units on 300 CIFAR-10
images, Fashion-MNIST outside (SVHN is not at hand), also with augmentation. A ResNet learns too
little from so few images to overfit: then there is nothing to regularise. Predictions are
those of the mode, and of the linearised network.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from nas_evidence.maths.metrics import auroc, class_metrics, entropy, reliability
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec
from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._immer import Fitted, agreement, fit, frozen, mean_and_error, must_have_moved, predictive
from ._shared_data import subset
from .immer_table2 import SHORT_STEPS, network

PAPER = "Immer et al. 2021"
FIGURE = "Fig. 5, Table C7"
TITLE = "Calibration and images of another kind, with fixed and with learned priors"
CLAIM = (
    "Learned precisions improve log likelihood, calibration error and the detection of images of "
    "another kind; without augmentation: 0.127 to 0.048 and 0.814 to 0.901."
)
RULE = (
    "learned precisions are on the published side of fixed ones, with the same augmentation, in"
    " accuracy, log likelihood, calibration error and OOD-AUC; equal values are on none (the "
    "numbers themselves belong to an experiment 100 times as large, with other images outside)"
)
NEEDS = ("cifar10", "FashionMNIST")
FULL_HOURS = 150.0

PUBLISHED = {
    "fixed": ("83.73", "-1.06", "0.127", "0.814"),
    "diag_ef": ("85.82", "-0.46", "0.048", "0.901"),
    "kfac_ggn": ("86.11", "-0.60", "0.085", "0.882"),
    "fixed + DA": ("91.38", "-0.58", "0.069", "0.897"),
    "diag_ef + DA": ("91.18", "-0.38", "0.054", "0.900"),
    "kfac_ggn + DA": ("91.26", "-0.54", "0.068", "0.896"),
}
POWER = 5.0  # of the likelihood with augmented data, after Osawa et al. 2019
WHAT = ("accuracy (%)", "log likelihood (nats per datum)", "calibration error", "OOD-AUC")


def measured(inside: np.ndarray, labels: np.ndarray, outside: np.ndarray) -> tuple[float, ...]:
    """Return accuracy, log likelihood, calibration error and OOD-AUC of class probabilities."""
    found = class_metrics(inside, labels)
    area = auroc(entropy(inside), entropy(outside))
    return 100 * found["accuracy"], -found["log_loss"], found["ece"], area


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return every measure of each kind of learned precisions that ran."""
    mean = {how: np.mean(values, 0) for how, values in numbers["measured"].items()}
    found = []
    for how, text in PUBLISHED.items():
        if how.startswith("fixed") or how not in mean:
            continue
        kind, _, augment = how.partition(" + ")
        fixed = f"fixed + {augment}" if augment else "fixed"
        shown = ("Fig. 5", "Table C7") if kind == "diag_ef" else ("Table C7",)
        for i, what in enumerate(WHAT):
            order = float(text[i]), float(PUBLISHED[fixed][i])
            agrees = agreement(float(mean[how][i]), float(mean[fixed][i]), order)
            found.append(Cell(what, how, agrees, shown))
    return found


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Train with a fixed prior, and with precisions learned by two kinds of curvature."""
    assert data is not None
    n_train, n_test, epochs, n_seeds = (300, 500, 60, 1) if quick else (50_000, 10_000, 300, 5)
    train, test = subset(data, "CIFAR-10", n_train, n_test)
    other = subset(data, "FMNIST", n_train, n_test)[1][0]
    outside = torch.nn.functional.pad(other, (2, 2, 2, 2), value=float(other.min()))
    outside = outside.expand(-1, 3, -1, -1).contiguous()
    labels = test[1].numpy()
    found: dict[str, list[tuple[float, ...]]] = {}
    shown: dict[str, Fitted] = {}
    for name in PUBLISHED:
        how, _, augment = name.partition(" + ")
        if quick and name == "kfac_ggn + DA":
            continue
        for seed in range(n_seeds):
            say(f"{name}, seed {seed}: {n_train} images, {epochs} epochs")
            if quick:
                model = network("CNN", (3, 32, 32), 8, seed)
            else:
                spec = ArchitectureSpec(family="resnet", values={"depth": 20, "width": 16})
                model = build(spec, (3, 32, 32), 10, torch.Generator().manual_seed(seed))
            plan = {
                "epochs": epochs,
                "batch_size": 50 if quick else 128,
                "optimiser": "adam" if quick else "sgd",
                "learning_rate": 0.002 if quick else 0.1,
                "schedule": "constant" if quick else "cosine",
                "likelihood_power": POWER if augment else 1.0,
                "augment": ("RandomCrop", "RandomHorizontalFlip") if augment else (),
                "prior_precision": 5e-4 * n_train if how == "fixed" else 1.0,
                "online": frozen(epochs, "diag_ef")
                if how == "fixed"
                else {"every": 5, "curvature": how, **SHORT_STEPS}
                if quick
                else {"every": 10, "curvature": how},
            }
            one = fit(model, train, test, seed=seed, plan=plan)
            if how != "fixed":
                must_have_moved(one, name)
            found.setdefault(name, []).append(
                measured(one.probabilities(test[0]), labels, one.probabilities(outside))
            )
            shown.setdefault(name, one)
    few = 100
    say(f"linearised predictive of {few} images")
    bayes = measured(
        predictive(shown["kfac_ggn"], test[0][:few], 200),
        labels[:few],
        predictive(shown["kfac_ggn"], outside[:few], 200),
    )
    rows = []
    for how, values in found.items():
        name = how.replace("fixed", "fixed prior (weight decay 5e-4)")
        for i, text in enumerate(WHAT):
            mean, error = mean_and_error([v[i] for v in values])
            rows.append(
                Row(
                    f"{name}: {text}",
                    PUBLISHED[how][i],
                    f"{mean:.3f}",
                    f"± {error:.3f}, n = {n_seeds}" if n_seeds > 1 else "one seed",
                    f"{n_train} images, small CNN, {epochs} epochs, OOD Fashion-MNIST"
                    if quick
                    else "OOD Fashion-MNIST instead of SVHN",
                )
            )
    rows += [
        Row(f"kfac_ggn, linearised predictive: {text}", "", f"{bayes[i]:.3f}", f"{few} images")
        for i, text in enumerate(WHAT)
    ]
    mean = {how: np.mean(values, 0) for how, values in found.items()}
    augmented = [mean[how] - mean[how.removesuffix(" + DA")] for how in mean if "DA" in how]
    gained = ", ".join(f"{g[0]:+.1f}" for g in augmented)
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color="0.8")
    for how, one in shown.items():
        bins = reliability(one.probabilities(test[0]), labels)
        left.plot(bins.confidence, bins.accuracy, ".-", label=how)
        both = entropy(one.probabilities(test[0])), entropy(one.probabilities(outside))
        right.hist(both[0], 20, range=(0, 2.3), histtype="step", label=f"{how}: CIFAR-10")
        right.hist(both[1], 20, range=(0, 2.3), histtype="step", linestyle="--")
    left.set(xlabel="confidence", ylabel="accuracy")
    right.set(xlabel="entropy, nats (dashed: Fashion-MNIST)", ylabel="images")
    left.legend(fontsize=7)
    return Reproduction(
        tuple(rows),
        figure,
        {
            "n_train": n_train,
            "epochs": epochs,
            "n": n_seeds,
            "measured": found,
            "linearised": bayes,
        },
        f"{n_train} images; augmentation at likelihood power {POWER:g} changes the accuracy by "
        f"{gained} points",
    )
