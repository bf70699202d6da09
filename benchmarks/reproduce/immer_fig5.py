"""Calibration and images of another kind (Immer et al. 2021, Fig. 5).

The paper: ResNet-20 on CIFAR-10, images of SVHN outside, with and without data augmentation. The
short version: the convolutional network of Table 2 with an eighth of its units on 300 CIFAR-10
images, Fashion-MNIST outside (SVHN is not at hand), also with augmentation. A ResNet learns too
little from so few images to overfit: then there is nothing to regularise. Predictions are
those of the mode, and of the linearised network. In full it takes about 150 hours.
"""

from typing import Any

import numpy as np
import torch

from nas_evidence.maths.metrics import auroc, class_metrics, entropy, reliability
from nas_evidence.models import build
from nas_evidence.spec.study import ArchitectureSpec

from ._immer import Fitted, adam, averaged, fit, frozen, must_have_moved, ordered, predictive
from ._panels import panels
from ._published import Cells, Numbers, Reproduction, Row, Run, joined
from ._shared_data import subset
from .immer_table2 import network

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

PUBLISHED = {
    "fixed": ("83.73", "-1.06", "0.127", "0.814"),
    "diag_ef": ("85.82", "-0.46", "0.048", "0.901"),
    "kfac_ggn": ("86.11", "-0.60", "0.085", "0.882"),
    "fixed + DA": ("91.38", "-0.58", "0.069", "0.897"),
    "diag_ef + DA": ("91.18", "-0.38", "0.054", "0.900"),
    "kfac_ggn + DA": ("91.26", "-0.54", "0.068", "0.896"),
}
POWER = 5.0  # of the likelihood with augmented data, after Osawa et al. 2019
FEW = 100  # images for the linearised predictive
WHAT = ("accuracy (%)", "log likelihood (nats per datum)", "calibration error", "OOD-AUC")


def measured(inside: np.ndarray, labels: np.ndarray, outside: np.ndarray) -> tuple[float, ...]:
    """Return accuracy, log likelihood, calibration error and OOD-AUC of class probabilities."""
    found = class_metrics(inside, labels)
    area = auroc(entropy(inside), entropy(outside))
    return 100 * found["accuracy"], -found["log_loss"], found["ece"], area


def cells(numbers: Numbers) -> Cells:
    """Yield every measure of each kind of learned precisions that ran."""
    mean = {how: np.mean(values, 0) for how, values in numbers["measured"].items()}
    for how in mean:
        kind, _, augment = how.partition(" + ")
        pair = how, f"fixed + {augment}" if augment else "fixed"
        shown = ("Fig. 5", "Table C7") if kind == "diag_ef" else ("Table C7",)
        if kind != "fixed":
            for i, what in enumerate(WHAT):
                yield ordered(what, how, pair, i, (mean, PUBLISHED), shown)


def trained(name: str, train: Any, test: Any, seed: int, at: Run) -> Fitted:
    """Return the network of one row of the table."""
    how, _, augment = name.partition(" + ")
    n_train, epochs = len(train[0]), at.sized(60, 300)
    if at.quick:
        model = network("CNN", (3, 32, 32), 8, seed)
        plan = {"batch_size": 50, "learning_rate": 0.002, "online": adam(how, 5, 10, 0.1)}
    else:
        spec = ArchitectureSpec(family="resnet", values={"depth": 20, "width": 16})
        model = build(spec, (3, 32, 32), 10, torch.Generator().manual_seed(seed))
        plan = {
            "batch_size": 128, "learning_rate": 0.1, "optimiser": "sgd", "schedule": "cosine",
            "online": {"every": 10, "curvature": how},
        }  # fmt: skip
    if how == "fixed":
        plan |= {"online": frozen(epochs, "diag_ef"), "prior_precision": 5e-4 * n_train}
    if augment:
        plan |= {"augment": ("RandomCrop", "RandomHorizontalFlip"), "likelihood_power": POWER}
    one = fit(model, train, test, seed=seed, epochs=epochs, **plan)
    if how != "fixed":
        must_have_moved(one, name)
    return one


def run(at: Run) -> Reproduction:
    """Train with a fixed prior, and with precisions learned by two kinds of curvature."""
    n_train, n_test, n_seeds = at.sized((300, 500, 1), (50_000, 10_000, 5))
    train, test = subset(at.data, "CIFAR-10", n_train, n_test)
    other = subset(at.data, "FMNIST", n_train, n_test)[1][0]
    outside = torch.nn.functional.pad(other, (2, 2, 2, 2), value=float(other.min()))
    outside = outside.expand(-1, 3, -1, -1).contiguous()
    labels = test[1].numpy()
    found = {}
    shown = {}
    for name in PUBLISHED:
        if at.quick and name == "kfac_ggn + DA":
            continue
        found[name] = []
        for seed in range(n_seeds):
            at.say(f"{name}, seed {seed}: {n_train} images")
            one = trained(name, train, test, seed, at)
            inside, other = one.probabilities(test[0]), one.probabilities(outside)
            found[name].append(measured(inside, labels, other))
            shown.setdefault(name, (inside, other))
            if (name, seed) == ("kfac_ggn", 0):
                few = (predictive(one, x[:FEW], 200) for x in (test[0], outside))
                linearised = measured(next(few), labels[:FEW], next(few))
    why = at.sized(
        f"{n_train} images, small CNN, 60 epochs, OOD Fashion-MNIST",
        "OOD Fashion-MNIST instead of SVHN",
    )
    rows = [
        averaged(
            f"{how.replace('fixed', 'fixed prior (weight decay 5e-4)')}: {text}",
            PUBLISHED[how][i], [v[i] for v in values], 3, "seed", why=why,
        )
        for how, values in found.items()
        for i, text in enumerate(WHAT)
    ]  # fmt: skip
    rows += [
        Row(f"kfac_ggn, linearised predictive: {text}", "", f"{value:.3f}", f"{FEW} images")
        for text, value in zip(WHAT, linearised, strict=True)
    ]
    mean = {how: np.mean(values, 0)[0] for how, values in found.items()}
    gained = [mean[how] - mean[how.removesuffix(" + DA")] for how in mean if "DA" in how]
    figure, (left, right) = panels(7, 3.2, 1, 2)
    left.plot([0, 1], [0, 1], color="0.8")
    for how, (inside, other) in shown.items():
        bins = reliability(inside, labels)
        left.plot(bins.confidence, bins.accuracy, ".-", label=how)
        options = {"bins": 20, "range": (0, 2.3), "histtype": "step"}
        right.hist(entropy(inside), label=f"{how}: CIFAR-10", **options)
        right.hist(entropy(other), linestyle="--", **options)
    left.set(xlabel="confidence", ylabel="accuracy")
    right.set(xlabel="entropy, nats (dashed: Fashion-MNIST)", ylabel="images")
    left.legend(fontsize=7)
    return Reproduction(
        rows,
        figure,
        {
            "n_train": n_train, "epochs": at.sized(60, 300), "n": n_seeds, "measured": found,
            "linearised": linearised,
        },
        f"{n_train} images; augmentation at likelihood power {POWER:g} changes the accuracy by "
        f"{joined(gained, '+.1f')} points",
    )  # fmt: skip
