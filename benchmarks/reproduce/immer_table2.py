"""Image classification with learned priors (Immer et al. 2021, Table 2, A1, C5, C6 and Fig. 6).

The paper: all images, 300 epochs, an MLP 1024-512-256-128 and three convolutions with three dense
layers. The short version: 300 images, 60 epochs at a constant rate, the same MLP with an eighth of
the units and the same convolutional network with an eighth of the channels. Updates raise a
precision only as far as the network explains more than a constant does (training/online.py). With
so few data that forbids the leap to the maximum, so ten short steps of Adam are taken. The
baseline has a fixed prior of precision 1, the paper's a cross-validated one. Table A1: what
damping of the factors does to the evidence of one network,

    log|H| = Σ_ij log (b_i + √δ)(a_j + √δ)   instead of   Σ_ij log (b_i a_j + δ)
"""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import nn

from nas_evidence.curvature import curvature_pass
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.maths.blocks import Kronecker
from nas_evidence.maths.structured import BlockDiagonal

from ._immer import Fitted, adam, agreement, fit, frozen, must_have_moved
from ._panels import lines, panels
from ._published import Cell, Reproduction, Row, Run
from ._shared_data import dense, subset

PAPER = "Immer et al. 2021"
FIGURE = "Table 2, Table A1, Table C5, Table C6, Fig. 6"
TITLE = "Image classification with learned priors, and what damping does"
CLAIM = (
    "Learned precisions beat a fixed prior, evidence prefers CNNs to MLPs, KFAC gives more "
    "evidence than diagonal kinds, and damping spoils the evidence."
)
RULE = (
    "two of our values are in the published order: accuracy and log likelihood of learned and "
    "of fixed precisions, evidence of two kinds and of CNN and MLP, with and without damping; "
    "equal values are in none (the numbers themselves belong to experiments 200 times as large)"
)
NEEDS = ("MNIST", "FashionMNIST", "cifar10")

#: Published by set and network: accuracy, log likelihood and evidence per datum by kind, accuracy
#: and log likelihood of a fixed prior, and the evidence of KFAC with damping.
PUBLISHED = {
    ("MNIST", "MLP"): {
        "kfac_ggn": (98.38, -0.053, -0.158), "diag_ef": (97.05, -0.095, -0.553),
        "diag_ggn": (96.86, -0.102, -0.617), "fixed": (98.22, -0.061), "damped": (-2.199,),
    },
    ("MNIST", "CNN"): {
        "kfac_ggn": (99.46, -0.016, -0.064), "diag_ef": (99.45, -0.019, -0.134),
        "diag_ggn": (99.35, -0.021, -0.193), "fixed": (99.40, -0.017), "damped": (-1.022,),
    },
    ("FMNIST", "MLP"): {
        "kfac_ggn": (89.83, -0.305, -0.468), "diag_ef": (85.72, -0.400, -0.756),
        "diag_ggn": (85.36, -0.410, -0.844), "fixed": (88.09, -0.347), "damped": (-2.022,),
    },
    ("FMNIST", "CNN"): {
        "kfac_ggn": (92.06, -0.233, -0.401), "diag_ef": (91.69, -0.233, -0.570),
        "diag_ggn": (91.69, -0.237, -0.641), "fixed": (91.39, -0.258), "damped": (-2.424,),
    },
    ("CIFAR-10", "CNN"): {
        "kfac_ggn": (80.46, -0.644, -0.967), "diag_ef": (80.17, -0.600, -1.359),
        "diag_ggn": (79.98, -0.587, -1.568), "fixed": (77.41, -0.680), "damped": (-4.232,),
    },
}  # fmt: skip
#: The tables that have a kind, and the training that Fig. 6 follows.
TABLES = {
    "kfac_ggn": ("Table 2", "Table C5"),
    "diag_ef": ("Table 2", "Table C5", "Table C6"),
    "diag_ggn": ("Table C6",),
}
FOLLOWED = ("CIFAR-10", "CNN")


def network(kind: str, shape: tuple[int, ...], part: int, seed: int) -> nn.Module:
    """Return the published network with 1 / part of its units."""
    torch.manual_seed(seed)
    before, side = shape[0], shape[1]
    if kind == "MLP":
        units = [before * side * side, *(n // part for n in (1024, 512, 256, 128)), 10]
        return nn.Sequential(nn.Flatten(), *dense(units, nn.ReLU))
    layers: list[nn.Module] = []
    for channels, size in ((64, 5), (96, 3), (128, 3)):
        layers += [nn.Conv2d(before, channels // part, size, padding=size // 2), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2, 1))
        before, side = channels // part, (side + 1) // 2
    units = [before * side * side, 512 // part, 256 // part, 10]
    return nn.Sequential(*layers, nn.Flatten(), *dense(units, nn.ReLU))


def loss_by_damping(one: Fitted) -> float:
    """Return by how much damping lowers the KFAC evidence of a network, nats per datum."""
    state, data = one.state, one.data
    found = curvature_pass(
        "kfac_ggn", state.model, data.x_train, data.y_train, Categorical(one.plan.temperature),
        batch_size=100, generator=torch.Generator().manual_seed(0),
    ).curvature  # fmt: skip
    assert isinstance(found, BlockDiagonal)
    total = torch.zeros((), dtype=torch.float64)
    for block, delta in zip(found.blocks, state.prior_precision.double(), strict=True):
        if not isinstance(block, Kronecker):
            continue
        a = torch.linalg.eigvalsh(block.inputs).clamp(min=0)[:, None, :] / block.n_data
        b = torch.linalg.eigvalsh(block.gradients).clamp(min=0)[:, :, None] / block.n_positions
        exact = (b * a + delta).log()
        total += ((b + delta.sqrt()).log() + (a + delta.sqrt()).log() - exact).sum()
    return float(0.5 * total) / len(data.x_train)


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return every comparison of Table 2, C6 and A1 that ran."""
    ours = {
        which: {how: numbers["table"][" ".join((*which, how))] for how in (*TABLES, "fixed")}
        for which in PUBLISHED
    }
    found = []
    for which, theirs in PUBLISHED.items():
        for how, tables in TABLES.items():
            shown = (*tables, "Fig. 6") if (which, how) == (FOLLOWED, "kfac_ggn") else tables
            for i, what in enumerate(("accuracy", "log likelihood")):
                own, order = ([of[k][i] for k in (how, "fixed")] for of in (ours[which], theirs))
                group = f"{what}, learned against fixed"
                found.append(Cell(group, " ".join((*which, how)), agreement(*own, order), shown))
    for which, theirs in PUBLISHED.items():
        for a, b in combinations(TABLES, 2):
            own, order = ([of[k][2] for k in (a, b)] for of in (ours[which], theirs))
            shown = ("Table C6",) if b == "diag_ggn" else ("Table 2", "Table C5")
            what = f"{' '.join(which)} {a}, {b}"
            found.append(Cell("evidence of two kinds", what, agreement(*own, order), shown))
    for name in ("MNIST", "FMNIST"):
        for how, shown in TABLES.items():
            own, order = (
                [of[name, kind][how][2] for kind in ("CNN", "MLP")] for of in (ours, PUBLISHED)
            )
            what = f"{name} {how}"
            found.append(Cell("evidence of CNN and MLP", what, agreement(*own, order), shown))
    for which, theirs in PUBLISHED.items():
        name, value = " ".join(which), ours[which]["kfac_ggn"][2]
        order = theirs["damped"][0], theirs["kfac_ggn"][2]
        agrees = agreement(value - numbers["damping"][name], value, order)
        found.append(Cell("evidence with damping", name, agrees, ("Table A1",)))
    return found


def text(values: Iterable[float]) -> str:
    """Return accuracy, log likelihood and perhaps evidence, as the paper prints them."""
    accuracy, *others = values
    return ", ".join([f"{accuracy:.2f}", *(f"{value:.3f}" for value in others)])


def run(at: Run) -> Reproduction:
    """Train each network with each kind, and with a fixed prior."""
    n_train, n_test, epochs, part = at.sized((300, 1000, 60, 8), (60_000, 10_000, 300, 1))
    short = at.sized(f"{n_train} images, {epochs} epochs, 1/{part} of the units", "")
    parts = (epochs // 2, 3 * epochs // 4, 11 * epochs // 12)
    common = at.sized(
        {"batch_size": 50, "learning_rate": 0.002},
        {"batch_size": 128, "learning_rate": 0.001, "schedule": "steps", "milestones": parts},
    )
    table: dict[str, list[float | None]] = {}
    damping: dict[str, float] = {}
    moved: dict[str, int | None] = {}
    curves: dict[str, list[tuple[int, float, float]]] = {}
    rows, damped = [], []
    for which, theirs in PUBLISHED.items():
        (name, kind), both = which, " ".join(which)
        n = min(n_train, 50_000) if name == "CIFAR-10" else n_train
        train, test = subset(at.data, name, n, n_test)
        for how in (*TABLES, "fixed"):
            at.say(f"{both}: {how}")
            fixed, follow = how == "fixed", which == FOLLOWED and how in ("kfac_ggn", "fixed")
            plan = {
                "online": at.sized(
                    adam(how, 5, 10, 0.1), {"every": 10, "curvature": how, "hyper_step": "newton"}
                )
            }
            if fixed:
                plan = {"online": frozen(epochs, "diag_ef")}
            if fixed and follow:
                # Updates that change nothing but are recorded: one Adam step of almost no length.
                plan = {
                    "online": adam("diag_ef", at.sized(5, 10), 1, 1e-12),
                    "prior_precision": 1.0,
                }
            model = network(kind, tuple(train[0].shape[1:]), part, 0)
            one = fit(model, train, test, follow_test=follow, epochs=epochs, **common, **plan)
            measured = [100 * one.test_accuracy(), -one.test_nll()]
            if not fixed:
                must_have_moved(one, f"{both}, {how}")
                moved[f"{both} {how}"] = one.moved_at
                measured.append(one.path[-1][2] / len(train[0]))
            what = (
                f"{both}, fixed prior: accuracy, log likelihood"
                if fixed
                else f"{both}, {how}: accuracy, log likelihood, evidence"
            )
            rows.append(Row(what, text(theirs[how]), text(measured), "one seed", short))
            table[f"{both} {how}"] = [*measured, None] if fixed else measured
            if follow:
                curves[how] = one.at_test
            if how == "kfac_ggn":
                damping[both] = loss_by_damping(one)
                damped.append(
                    Row(
                        f"{both}: KFAC evidence with damping (Table A1)",
                        f"{theirs['damped'][0]}",
                        f"{measured[2] - damping[both]:.3f} for {measured[2]:.3f}",
                        "one seed",
                        "the same network evaluated with damping, not trained with it",
                    )
                )
    figure, (left, right) = panels(8, 3.2, 1, 2)
    for how, mark in zip(TABLES, "o^s", strict=True):
        of_kind = [table[f"{name} {kind} {how}"] for name, kind in PUBLISHED]
        left.plot([row[2] for row in of_kind], [row[0] for row in of_kind], mark, label=how)
    left.set(xlabel="evidence, nats per datum", ylabel="test accuracy, %")
    left.legend(fontsize=7)
    for how, points in curves.items():
        name = "fixed prior" if how == "fixed" else "learned"
        at_epochs, losses, errors = zip(*points, strict=True)
        lines(right, at_epochs, {f"{name}: log loss": losses})
        lines(right, at_epochs, {f"{name}: error rate": errors}, "--")
    right.set(xlabel="epoch", ylabel="CIFAR-10 test", yscale="log")
    first = [epoch for epoch in moved.values() if epoch]
    return Reproduction(
        rows + damped,
        figure,
        {
            "n_train": n_train, "epochs": epochs, "part": part, "damping": damping,
            "moved_at": moved, "curves": curves, "table": table,
        },
        f"one seed, {short or 'the published size'}; precisions first move at epochs "
        f"{min(first)} to {max(first)}",
    )  # fmt: skip
