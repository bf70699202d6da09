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

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from nas_evidence.curvature import curvature_pass
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.maths.blocks import Kronecker
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._immer import Fitted, agreement, fit, frozen, must_have_moved
from ._shared_data import subset

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
FULL_HOURS = 400.0

#: Published: accuracy, log likelihood, evidence per datum.
PUBLISHED = {
    ("MNIST", "MLP", "kfac_ggn"): "98.38, -0.053, -0.158",
    ("MNIST", "MLP", "diag_ef"): "97.05, -0.095, -0.553",
    ("MNIST", "MLP", "diag_ggn"): "96.86, -0.102, -0.617",
    ("MNIST", "CNN", "kfac_ggn"): "99.46, -0.016, -0.064",
    ("MNIST", "CNN", "diag_ef"): "99.45, -0.019, -0.134",
    ("MNIST", "CNN", "diag_ggn"): "99.35, -0.021, -0.193",
    ("FMNIST", "MLP", "kfac_ggn"): "89.83, -0.305, -0.468",
    ("FMNIST", "MLP", "diag_ef"): "85.72, -0.400, -0.756",
    ("FMNIST", "MLP", "diag_ggn"): "85.36, -0.410, -0.844",
    ("FMNIST", "CNN", "kfac_ggn"): "92.06, -0.233, -0.401",
    ("FMNIST", "CNN", "diag_ef"): "91.69, -0.233, -0.570",
    ("FMNIST", "CNN", "diag_ggn"): "91.69, -0.237, -0.641",
    ("CIFAR-10", "CNN", "kfac_ggn"): "80.46, -0.644, -0.967",
    ("CIFAR-10", "CNN", "diag_ef"): "80.17, -0.600, -1.359",
    ("CIFAR-10", "CNN", "diag_ggn"): "79.98, -0.587, -1.568",
}
BASELINES = {
    ("MNIST", "MLP"): "98.22, -0.061",
    ("MNIST", "CNN"): "99.40, -0.017",
    ("FMNIST", "MLP"): "88.09, -0.347",
    ("FMNIST", "CNN"): "91.39, -0.258",
    ("CIFAR-10", "CNN"): "77.41, -0.680",
}
#: The tables that have a kind, and the training that Fig. 6 follows.
TABLES = {
    "kfac_ggn": ("Table 2", "Table C5"),
    "diag_ef": ("Table 2", "Table C5", "Table C6"),
    "diag_ggn": ("Table C6",),
}
FOLLOWED = ("CIFAR-10", "kfac_ggn")
DAMPED = {
    ("MNIST", "MLP"): -2.199,
    ("MNIST", "CNN"): -1.022,
    ("FMNIST", "MLP"): -2.022,
    ("FMNIST", "CNN"): -2.424,
    ("CIFAR-10", "CNN"): -4.232,
}


SHORT_STEPS = {"hyper_step": "adam", "hyper_steps": 10, "hyper_learning_rate": 0.1}
NEWTON = {"hyper_step": "newton"}


def _steps(epochs: int) -> dict[str, Any]:
    parts = (epochs // 2, 3 * epochs // 4, 11 * epochs // 12)
    return {"schedule": "steps", "milestones": list(parts)}


def network(kind: str, shape: tuple[int, ...], part: int, seed: int) -> nn.Module:
    """Return the published network with 1 / part of its units."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    if kind == "MLP":
        sizes = [int(torch.tensor(shape).prod()), *(s // part for s in (1024, 512, 256, 128))]
        layers = [nn.Flatten()]
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))
    before, side = shape[0], shape[1]
    for channels, size in ((64, 5), (96, 3), (128, 3)):
        layers += [nn.Conv2d(before, channels // part, size, padding=size // 2), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2, 1))
        before, side = channels // part, (side + 1) // 2
    sizes = [before * side * side, 512 // part, 256 // part]
    layers.append(nn.Flatten())
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


def loss_by_damping(one: Fitted) -> float:
    """Return by how much damping lowers the KFAC evidence of a network, nats per datum."""
    state, data = one.state, one.data
    found = curvature_pass(
        "kfac_ggn",
        state.model,
        data.x_train,
        data.y_train,
        Categorical(one.plan.temperature),
        batch_size=100,
        generator=torch.Generator().manual_seed(0),
    ).curvature
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
    ours = {tuple(name.split()): row for name, row in numbers["table"].items()}
    return [*_against_fixed(ours), *_of_kinds(ours), *_of_networks(ours), *_damped(ours, numbers)]


Table = Mapping[tuple[str, ...], Sequence[float]]


def _values(text: str) -> tuple[float, ...]:
    return tuple(float(value) for value in text.split(", "))


def _against_fixed(ours: Table) -> Iterator[Cell]:
    for (name, kind, how), text in PUBLISHED.items():
        for i, what in enumerate(("accuracy", "log likelihood")):
            order = _values(text)[i], _values(BASELINES[name, kind])[i]
            agrees = agreement(ours[name, kind, how][i], ours[name, kind, "fixed"][i], order)
            shown = TABLES[how] + (("Fig. 6",) if (name, how) == FOLLOWED else ())
            yield Cell(f"{what}, learned against fixed", f"{name} {kind} {how}", agrees, shown)


def _of_kinds(ours: Table) -> Iterator[Cell]:
    for name, kind in BASELINES:
        for a, b in (("kfac_ggn", "diag_ef"), ("kfac_ggn", "diag_ggn"), ("diag_ef", "diag_ggn")):
            both = (PUBLISHED[name, kind, how] for how in (a, b))
            first, second = (_values(text)[2] for text in both)
            agrees = agreement(ours[name, kind, a][2], ours[name, kind, b][2], (first, second))
            shown = ("Table C6",) if b == "diag_ggn" else ("Table 2", "Table C5")
            yield Cell("evidence of two kinds", f"{name} {kind} {a}, {b}", agrees, shown)


def _of_networks(ours: Table) -> Iterator[Cell]:
    for name in ("MNIST", "FMNIST"):
        for how, shown in TABLES.items():
            order = [_values(PUBLISHED[name, kind, how])[2] for kind in ("CNN", "MLP")]
            values = [ours[name, kind, how][2] for kind in ("CNN", "MLP")]
            agrees = agreement(values[0], values[1], (order[0], order[1]))
            yield Cell("evidence of CNN and MLP", f"{name} {how}", agrees, shown)


def _damped(ours: Table, numbers: Mapping[str, Any]) -> Iterator[Cell]:
    for (name, kind), published in DAMPED.items():
        value = ours[name, kind, "kfac_ggn"][2]
        order = published, _values(PUBLISHED[name, kind, "kfac_ggn"])[2]
        agrees = agreement(value - numbers["damping"][f"{name} {kind}"], value, order)
        yield Cell("evidence with damping", f"{name} {kind}", agrees, ("Table A1",))


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Train each network with each kind, and with a fixed prior."""
    assert data is not None
    n_train, n_test, epochs, part = (300, 1000, 60, 8) if quick else (60_000, 10_000, 300, 1)
    every = 5 if quick else 10
    table: dict[tuple[str, str, str], tuple[float, float, float]] = {}
    damping: dict[str, float] = {}
    moved: dict[str, int | None] = {}
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for name, kind in BASELINES:
        train, test = subset(
            data, name, min(n_train, 50_000) if name == "CIFAR-10" else n_train, n_test
        )
        shape = tuple(train[0].shape[1:])
        for how in ("kfac_ggn", "diag_ef", "diag_ggn", "fixed"):
            say(f"{name} {kind}: {how}")
            online = {"every": every, "curvature": how, **(SHORT_STEPS if quick else NEWTON)}
            plan = {
                "epochs": epochs,
                "batch_size": 50 if quick else 128,
                "optimiser": "adam",
                "learning_rate": 0.002 if quick else 0.001,
                **({"schedule": "constant"} if quick else _steps(epochs)),
                "online": frozen(epochs, "diag_ef") if how == "fixed" else online,
            }
            model = network(kind, shape, part, 0)
            followed = name == "CIFAR-10" and how in ("kfac_ggn", "fixed")
            if followed and how == "fixed":
                # Updates that change nothing but are recorded: one Adam step of almost no length.
                plan["online"] = {
                    "every": every,
                    "curvature": "diag_ef",
                    "hyper_step": "adam",
                    "hyper_steps": 1,
                    "hyper_learning_rate": 1e-12,
                }
                plan["prior_precision"] = 1.0
            one = fit(model, train, test, follow_test=followed, plan=plan)
            if how != "fixed":
                must_have_moved(one, f"{name} {kind}, {how}")
                moved[f"{name} {kind} {how}"] = one.moved_at
            value = one.path[-1][2] / len(train[0]) if how != "fixed" else float("nan")
            table[name, kind, how] = (100 * one.test_accuracy(), -one.test_nll(), value)
            if followed:
                curves[how] = one.at_test
            if how == "kfac_ggn":
                damping[f"{name} {kind}"] = loss_by_damping(one)
    rows = []
    short = f"{n_train} images, {epochs} epochs, 1/{part} of the units" if quick else ""
    for (name, kind, how), (accuracy, likely, value) in table.items():
        if how == "fixed":
            rows.append(
                Row(
                    f"{name} {kind}, fixed prior: accuracy, log likelihood",
                    BASELINES[name, kind],
                    f"{accuracy:.2f}, {likely:.3f}",
                    "one seed",
                    short,
                )
            )
        else:
            rows.append(
                Row(
                    f"{name} {kind}, {how}: accuracy, log likelihood, evidence",
                    PUBLISHED[name, kind, how],
                    f"{accuracy:.2f}, {likely:.3f}, {value:.3f}",
                    "one seed",
                    short,
                )
            )
    for (name, kind), published in DAMPED.items():
        value = table[name, kind, "kfac_ggn"][2]
        damped = value - damping[f"{name} {kind}"]
        rows.append(
            Row(
                f"{name} {kind}: KFAC evidence with damping (Table A1)",
                f"{published}",
                f"{damped:.3f} for {value:.3f}",
                "one seed",
                "the same network evaluated with damping, not trained with it",
            )
        )
    pairs = list(BASELINES)
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for j, how in enumerate(("kfac_ggn", "diag_ef", "diag_ggn")):
        left.plot(
            [table[*p, how][2] for p in pairs],
            [table[*p, how][0] for p in pairs],
            "o^s"[j],
            label=how,
        )
    left.set(xlabel="evidence, nats per datum", ylabel="test accuracy, %")
    left.legend(fontsize=7)
    for how, points in curves.items():
        name = "learned" if how != "fixed" else "fixed prior"
        right.plot([e for e, _, _ in points], [v for _, v, _ in points], label=f"{name}: log loss")
        right.plot(
            [e for e, _, _ in points], [v for _, _, v in points], "--", label=f"{name}: error rate"
        )
    right.set(xlabel="epoch", ylabel="CIFAR-10 test", yscale="log")
    right.legend(fontsize=7)
    return Reproduction(
        tuple(rows),
        figure,
        {
            "n_train": n_train,
            "epochs": epochs,
            "part": part,
            "damping": damping,
            "moved_at": moved,
            "curves": curves,
            "table": {
                " ".join(k): [None if v != v else v for v in row] for k, row in table.items()
            },
        },
        f"one seed, {short or 'the published size'}; precisions first move at epochs "
        f"{min(v for v in moved.values() if v)} to {max(v for v in moved.values() if v)}",
    )
