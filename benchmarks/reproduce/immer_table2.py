"""Image classification with learned priors (Immer et al. 2021, Table 2, A1, C5, C6 and Fig. 6).

The paper: all images, 300 epochs, an MLP 1024-512-256-128 and three convolutions with three dense
layers. The short version: 300 images, 60 epochs at a constant rate, the same MLP with an eighth of
the units and the same convolutional network with an eighth of the channels. Updates raise a
precision only as far as the network explains more than a constant does (training/online.py). With
so few data that forbids the leap to the maximum, so ten short steps of Adam are taken. The
baseline has a fixed prior of precision 1, the paper's a cross-validated one. Table A1: what
damping of the factors does to the evidence of one network,

    log|H| = Σ_ij log (b_i + √δ)(a_j + √δ)   instead of   Σ_ij log (b_i a_j + δ)

In full it takes about 400 hours.
"""

from collections.abc import Iterable
from itertools import combinations

import torch
from torch import nn

from nas_evidence.curvature import curvature_pass
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.maths.blocks import Kronecker
from nas_evidence.maths.structured import BlockDiagonal

from ._immer import Fitted, adam, agreement, fit, frozen, must_have_moved, ordered
from ._panels import lines, panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run, joined
from ._shared_data import dense, subset

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

#: Published accuracy, log likelihood and, for learned precisions, evidence per datum.
PUBLISHED = {
    "MNIST MLP kfac_ggn": (98.38, -0.053, -0.158),
    "MNIST MLP diag_ef": (97.05, -0.095, -0.553),
    "MNIST MLP diag_ggn": (96.86, -0.102, -0.617),
    "MNIST MLP fixed": (98.22, -0.061),
    "MNIST CNN kfac_ggn": (99.46, -0.016, -0.064),
    "MNIST CNN diag_ef": (99.45, -0.019, -0.134),
    "MNIST CNN diag_ggn": (99.35, -0.021, -0.193),
    "MNIST CNN fixed": (99.40, -0.017),
    "FMNIST MLP kfac_ggn": (89.83, -0.305, -0.468),
    "FMNIST MLP diag_ef": (85.72, -0.400, -0.756),
    "FMNIST MLP diag_ggn": (85.36, -0.410, -0.844),
    "FMNIST MLP fixed": (88.09, -0.347),
    "FMNIST CNN kfac_ggn": (92.06, -0.233, -0.401),
    "FMNIST CNN diag_ef": (91.69, -0.233, -0.570),
    "FMNIST CNN diag_ggn": (91.69, -0.237, -0.641),
    "FMNIST CNN fixed": (91.39, -0.258),
    "CIFAR-10 CNN kfac_ggn": (80.46, -0.644, -0.967),
    "CIFAR-10 CNN diag_ef": (80.17, -0.600, -1.359),
    "CIFAR-10 CNN diag_ggn": (79.98, -0.587, -1.568),
    "CIFAR-10 CNN fixed": (77.41, -0.680),
}
#: Published evidence of KFAC with damping.
DAMPED = {
    "MNIST MLP": -2.199,
    "MNIST CNN": -1.022,
    "FMNIST MLP": -2.022,
    "FMNIST CNN": -2.424,
    "CIFAR-10 CNN": -4.232,
}
#: The tables that have a kind, and the trainings that Fig. 6 follows.
TABLES = {
    "kfac_ggn": ("Table 2", "Table C5"),
    "diag_ef": ("Table 2", "Table C5", "Table C6"),
    "diag_ggn": ("Table C6",),
}
FOLLOWED = ("CIFAR-10 CNN kfac_ggn", "CIFAR-10 CNN fixed")


def network(kind: str, shape: tuple[int, ...], part: int, seed: int) -> nn.Module:
    """Return the published network with 1 / part of its units."""
    torch.manual_seed(seed)
    before, side = shape[0], shape[1]
    if kind == "MLP":
        units = [before * side * side, *(n // part for n in (1024, 512, 256, 128)), 10]
        return nn.Sequential(nn.Flatten(), *dense(units, nn.ReLU))
    layers = []
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


def cells(numbers: Numbers) -> Cells:
    """Yield every comparison of Table 2, C6 and A1 that ran."""
    both = numbers["table"], PUBLISHED
    for net in DAMPED:
        for how, tables in TABLES.items():
            name, fixed = f"{net} {how}", f"{net} fixed"
            shown = (*tables, "Fig. 6") if name in FOLLOWED else tables
            for i, what in enumerate(("accuracy", "log likelihood")):
                group = f"{what}, learned against fixed"
                yield ordered(group, name, (name, fixed), i, both, shown)
    for net in DAMPED:
        for a, b in combinations(TABLES, 2):
            shown = ("Table C6",) if b == "diag_ggn" else ("Table 2", "Table C5")
            pair, what = (f"{net} {a}", f"{net} {b}"), f"{net} {a}, {b}"
            yield ordered("evidence of two kinds", what, pair, 2, both, shown)
    for name in ("MNIST", "FMNIST"):
        for how, shown in TABLES.items():
            pair, what = (f"{name} CNN {how}", f"{name} MLP {how}"), f"{name} {how}"
            yield ordered("evidence of CNN and MLP", what, pair, 2, both, shown)
    for net, damped in DAMPED.items():
        value, theirs = (of[f"{net} kfac_ggn"][2] for of in both)
        agrees = agreement(value - numbers["damping"][net], value, (damped, theirs))
        yield Cell("evidence with damping", net, agrees, ("Table A1",))


def text(values: Iterable[float | None]) -> str:
    """Return accuracy, log likelihood and perhaps evidence, as the paper prints them."""
    accuracy, *others = (value for value in values if value is not None)
    return f"{accuracy:.2f}, {joined(others, '.3f')}"


def run(at: Run) -> Reproduction:
    """Train each network with each kind, and with a fixed prior."""
    n_train, n_test, epochs, part = at.sized((300, 1000, 60, 8), (60_000, 10_000, 300, 1))
    short = at.sized(f"{n_train} images, {epochs} epochs, 1/{part} of the units", "")
    parts = (epochs // 2, 3 * epochs // 4, 11 * epochs // 12)
    common = at.sized(
        {"batch_size": 50, "learning_rate": 0.002},
        {"batch_size": 128, "learning_rate": 0.001, "schedule": "steps", "milestones": parts},
    )
    learned = {"every": 10, "hyper_step": "newton"}
    table, damping, moved, curves = {}, {}, {}, {}
    for net in DAMPED:
        name, kind = net.split()
        n = min(n_train, 50_000) if name == "CIFAR-10" else n_train
        train, test = subset(at.data, name, n, n_test)
        for how in (*TABLES, "fixed"):
            at.say(f"{net}: {how}")
            row, fixed = f"{net} {how}", how == "fixed"
            follow = row in FOLLOWED
            if fixed and follow:
                # Updates that change nothing but are recorded: one Adam step of almost no length.
                online = adam("diag_ef", at.sized(5, 10), 1, 1e-12)
            elif fixed:
                online = frozen(epochs, "diag_ef")
            else:
                online = at.sized(adam(how, 5, 10, 0.1), {**learned, "curvature": how})
            one = fit(
                network(kind, tuple(train[0].shape[1:]), part, 0), train, test,
                follow_test=follow, epochs=epochs, online=online, **common,
            )  # fmt: skip
            value = None if fixed else one.path[-1][2] / n
            table[row] = [100 * one.test_accuracy(), -one.test_nll(), value]
            if not fixed:
                must_have_moved(one, row)
                moved[row] = one.moved_at
            if follow:
                curves[how] = one.at_test
            if how == "kfac_ggn":
                damping[net] = loss_by_damping(one)
    rows = []
    for key, values in table.items():
        net, _, how = key.rpartition(" ")
        what = f"{net}, {how}: accuracy, log likelihood, evidence"
        if how == "fixed":
            what = f"{net}, fixed prior: accuracy, log likelihood"
        rows.append(Row(what, text(PUBLISHED[key]), text(values), "one seed", short))
    for net, published in DAMPED.items():
        value = table[f"{net} kfac_ggn"][2]
        rows.append(
            Row(
                f"{net}: KFAC evidence with damping (Table A1)",
                f"{published}",
                f"{value - damping[net]:.3f} for {value:.3f}",
                "one seed",
                "the same network evaluated with damping, not trained with it",
            )
        )
    figure, (left, right) = panels(8, 3.2, 1, 2)
    for how, mark in zip(TABLES, "o^s", strict=True):
        accuracy, _, evidence = zip(*(table[f"{net} {how}"] for net in DAMPED), strict=True)
        left.plot(evidence, accuracy, mark, label=how)
    left.set(xlabel="evidence, nats per datum", ylabel="test accuracy, %")
    left.legend(fontsize=7)
    for how, points in curves.items():
        name = "fixed prior" if how == "fixed" else "learned"
        at_epochs, losses, errors = zip(*points, strict=True)
        lines(right, at_epochs, {f"{name}: log loss": losses})
        lines(right, at_epochs, {f"{name}: error rate": errors}, "--")
    right.set(xlabel="epoch", ylabel="CIFAR-10 test", yscale="log")
    return Reproduction(
        rows,
        figure,
        {
            "n_train": n_train, "epochs": epochs, "part": part, "damping": damping,
            "moved_at": moved, "curves": curves, "table": table,
        },
        f"one seed, {short or 'the published size'}; precisions first move at epochs "
        f"{min(moved.values())} to {max(moved.values())}",
    )  # fmt: skip
