"""A weak prior, or one learned online, on the banana set (Immer et al. 2021, Fig. 3 and C.1b).

265 data, one hidden layer of 50 tanh units, 200 steps; online with precisions of each tensor and a
softmax temperature of 1. The predictive of Fig. C.1b is that of the linearised network.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._immer import Fitted, fit, frozen, mean_and_error, mlp, predictive

PAPER = "Immer et al. 2021"
FIGURE = "Fig. 3, Fig. C.1"
TITLE = "A weak prior or a learned one on the banana set"
CLAIM = "The evidence prefers the network with learned precisions: 89 % test accuracy for 86 %."
RULE = (
    "the learned precisions have more evidence and more test accuracy on a subset; a mean test "
    "accuracy is the published one within two standard errors and half a point; the weak prior "
    "fits 98 % of the training data or more"
)
NEEDS = ("banana",)
FULL_HOURS = 0.2

FIG_3 = ("Fig. 3",)
N_TRAIN, STEPS, WEAK, RATE = 265, 200, 1e-4, 0.01
WEAK_STEPS = 1000  # until it overfits: the paper's number for this network is not stated


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return every subset, and the three published accuracies."""
    measured = numbers["measured"]
    pairs = list(enumerate(zip(measured["learned"], measured["weak"], strict=True), 1))
    found = [
        Cell(f"{what}, learned above weak", f"subset {k}", a[i] > b[i], figures)
        for i, what, figures in ((0, "evidence", ()), (2, "test accuracy", FIG_3))
        for k, (a, b) in pairs
    ]
    for name, published in (("weak", 0.86), ("learned", 0.89)):
        mean, error = mean_and_error([run[2] for run in measured[name]])
        near = abs(mean - published) <= 2 * error + 0.005
        found.append(Cell("test accuracy as published", f"{name} prior", near, FIG_3))
    fitted = fmean(run[1] for run in measured["weak"]) >= 0.98
    return [*found, Cell("training accuracy almost 100 %", "weak prior", fitted, FIG_3)]


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Train both ways on several subsets and initialisations."""
    assert data is not None
    n_seeds = 3 if quick else 30
    table = np.loadtxt(data / "banana" / "banana.csv", delimiter=",")
    x = torch.tensor(table[:, :2], dtype=torch.float32)
    y = torch.tensor((table[:, 2] == 2).astype(np.int64))
    common = {
        "batch_size": N_TRAIN,
        "optimiser": "adam",
        "learning_rate": RATE,
        "schedule": "constant",
    }
    learned_plan = {
        **common,
        "epochs": STEPS,
        "online": {
            "every": 1,
            "curvature": "kfac_ggn",
            "hyper_step": "newton",
        },
    }
    weak_plan = {
        **common,
        "epochs": WEAK_STEPS,
        "prior_precision": WEAK,
        "online": frozen(WEAK_STEPS, "kfac_ggn"),
    }
    measured: dict[str, list[tuple[float, ...]]] = {"weak": [], "learned": []}
    shown: dict[str, Fitted] = {}
    for seed in range(n_seeds):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        train, test = ((x[r], y[r]) for r in (order[:N_TRAIN], order[N_TRAIN:]))
        for name, plan in (("weak", weak_plan), ("learned", learned_plan)):
            say(f"seed {seed}: {name}")
            one = fit(mlp([2, 50, 2], nn.Tanh, seed), train, test, seed=seed, plan=plan)
            at_train = float((one.outputs(train[0]).argmax(1) == train[1]).float().mean())
            bayes = predictive(one, test[0][:1000])
            likely = bayes[np.arange(1000), test[1][:1000].numpy()]
            measured[name].append(
                (
                    one.evidence("full_ggn").value / N_TRAIN,
                    at_train,
                    one.test_accuracy(),
                    one.test_nll(),
                    float(-np.log(likely).mean()),
                )
            )
            shown.setdefault(name, one)
    what = (
        "full-GGN evidence (nats per datum)",
        "training accuracy",
        "test accuracy",
        "test loss of the mode (nats)",
        "test loss of the linearised predictive (nats)",
    )
    published = {
        "weak": ("lower", "almost 100 %", "86 %", "", ""),
        "learned": ("higher", "", "89 %", "", ""),
    }
    rows = []
    for name, values in measured.items():
        for i, text in enumerate(what):
            mean, error = mean_and_error([v[i] for v in values])
            rows.append(
                Row(
                    f"{text}, {name} prior",
                    published[name][i],
                    f"{mean:.3f}",
                    f"± {error:.3f}, n = {n_seeds} subsets",
                )
            )
    pairs = list(zip(measured["learned"], measured["weak"], strict=True))
    evidence = sum(a[0] > b[0] for a, b in pairs)
    accuracy = sum(a[2] > b[2] for a, b in pairs)
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axis = torch.linspace(-3.2, 3.2, 60)
    mesh = torch.cartesian_prod(axis, axis)
    for panel, (name, one) in zip(figure.subplots(1, 2), shown.items(), strict=True):
        level = predictive(one, mesh, 200)[:, 1].reshape(60, 60).T
        panel.contourf(axis, axis, level, levels=np.linspace(0, 1, 11), cmap="coolwarm", alpha=0.6)
        a, b = one.data.x_train, one.data.y_train
        panel.scatter(a[:, 0], a[:, 1], c=b, cmap="coolwarm", s=5, edgecolors="k", linewidths=0.2)
        panel.set(title=f"{name} prior, linearised predictive")
    return Reproduction(
        tuple(rows),
        figure,
        {"n": n_seeds, "measured": measured},
        f"the evidence prefers the learned precisions in {evidence} of {n_seeds} subsets; "
        f"their test accuracy is higher in {accuracy}",
    )
