"""Linear combinations of networks on Fashion-MNIST (Lyle et al. 2020, Fig. 3 and 7).

    h = Σ_m w_m h_m(x)      h_m  outputs of network m [n, 10]      w_m  one weight each, 1 / M at
    first

Parallel training: each network by its own cross entropy, w by that of the combination. Concurrent:
the cross entropy of the combination trains networks and w. The sum over training losses (SOTL) of
a network is of its own cross entropy, before each step. Rates, batches and sizes are not stated.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor, nn

from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._shared_data import images

PAPER = "Lyle et al. 2020"
FIGURE = "Fig. 3, Fig. 7"
TITLE = "Linear combinations of networks: weight and sum of training losses against test loss"
CLAIM = (
    "Weights correlate negatively with the test loss, the sum of training losses positively and "
    "strongly; concurrent training magnifies the differences between weights."
)
RULE = (
    "the rank correlation with test loss is negative for weights and above 0.7 for sums of "
    "training losses, in the mean over seeds; concurrent training has the larger spread of "
    "weights"
)
NEEDS = ("FashionMNIST",)
FULL_HOURS = 3.0

#: Layers and units of MLPs; layers, channels and kernel size of convolutional networks.
MLPS = ((1, 20), (1, 100), (2, 100), (4, 50))
CNNS = ((1, 4, 3), (1, 16, 5), (2, 8, 3), (2, 16, 5))
RATE, BATCH = 0.05, 50


def networks() -> dict[str, nn.Module]:
    """Return all networks by name, freshly initialised."""
    found: dict[str, nn.Module] = {}
    for depth, width in MLPS:
        sizes = [784] + [width] * depth
        layers: list[nn.Module] = [nn.Flatten()]
        for i in range(depth):
            layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU()]
        found[f"MLP (l={depth}, n={width})"] = nn.Sequential(*layers, nn.Linear(width, 10))
    for depth, channels, size in CNNS:
        layers = []
        for i in range(depth):
            layers += [
                nn.Conv2d(1 if i == 0 else channels, channels, size, padding=size // 2),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        side = 28 // 2**depth
        layers += [nn.Flatten(), nn.Linear(channels * side * side, 10)]
        found[f"CNN (l={depth}, n={channels}, k={size})"] = nn.Sequential(*layers)
    return found


def trained(
    seed: int,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    epochs: int,
    *,
    concurrent: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weights, sums of training losses per datum, test losses [M]; curves [epochs, M]."""
    torch.manual_seed(seed)
    models = list(networks().values())
    w = torch.full((len(models),), 1 / len(models), requires_grad=True)
    optimiser = torch.optim.SGD([w, *(p for m in models for p in m.parameters())], lr=RATE)
    curves = torch.zeros(epochs, len(models))
    entropy = nn.functional.cross_entropy
    for epoch in range(epochs):
        order = torch.randperm(len(train[0]))
        for rows in order.split(BATCH):
            x, y = train[0][rows], train[1][rows]
            outputs = torch.stack([model(x) for model in models])
            own = torch.stack([entropy(h, y) for h in outputs])
            shared = outputs if concurrent else outputs.detach()
            together = entropy((w[:, None, None] * shared).sum(0), y)
            loss = together if concurrent else together + own.sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            curves[epoch] += own.detach() * len(rows) / len(order)
    with torch.no_grad():
        tested = torch.stack([entropy(model(test[0]), test[1]) for model in models])
    return w.detach(), curves.sum(0), tested, curves


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return both correlations for both ways of training, and the spread of the weights."""
    found = []
    for way, weights, sums in (
        ("parallel", "Fig. 7", "Fig. 3"),
        ("concurrent", "Fig. 3", "Fig. 7"),
    ):
        one = numbers[way]
        found += [
            Cell("weight and test loss", way, one["rho_weight"] < 0, (weights,)),
            Cell("sum of training losses and test loss", way, one["rho_sotl"] > 0.7, (sums,)),
        ]
    spread = [numbers[way]["spread_of_weights"] for way in ("parallel", "concurrent")]
    return [*found, Cell("concurrent training magnifies", "weights", spread[1] > spread[0])]


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Train the combinations of several seeds in both ways."""
    assert data is not None
    n_train, n_test, epochs, n_runs = (1500, 2000, 8, 3) if quick else (60_000, 10_000, 30, 10)
    folder = data / "FashionMNIST"
    train, test = images(folder, "train"), images(folder, "t10k")
    train, test = (train[0][:n_train], train[1][:n_train]), (test[0][:n_test], test[1][:n_test])
    names = list(networks())
    rows, numbers = [], {"n": n_runs, "n_train": n_train, "epochs": epochs, "networks": names}
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.subplots(2, 3)
    spread = {}
    for which, concurrent in enumerate((False, True)):
        way = "concurrent" if concurrent else "parallel"
        runs = []
        for seed in range(n_runs):
            say(f"{way}, seed {seed}: {len(names)} networks, {n_train} images, {epochs} epochs")
            runs.append(trained(seed, train, test, epochs, concurrent=concurrent))
        weights, sums, tested, curves = (
            torch.stack(one).mean(0) for one in zip(*runs, strict=True)
        )
        each = [[float(spearmanr(run[i], run[2])[0]) for run in runs] for i in (0, 1)]
        found = [float(spearmanr(one, tested)[0]) for one in (weights, sums)]
        spread[way] = float(weights.std())
        for i, (what, claim) in enumerate((("weight", "negative"), ("SOTL", "strongly positive"))):
            rows.append(
                Row(
                    f"rank correlation of {what} and test loss, {way}",
                    claim,
                    f"{found[i]:+.2f}",
                    "each seed: " + ", ".join(f"{v:+.2f}" for v in each[i]),
                    "" if (found[i] < 0) == (i == 0) else "sign differs",
                )
            )
        numbers[way] = {
            "weights": weights.tolist(),
            "sotl": sums.tolist(),
            "test_loss": tested.tolist(),
            "rho_weight": found[0],
            "rho_sotl": found[1],
            "spread_of_weights": spread[way],
        }
        for m, name in enumerate(names):
            mark = "o" if name.startswith("MLP") else "^"
            axes[which, 0].plot(weights[m], tested[m], mark, label=name)
            axes[which, 1].plot(sums[m] / epochs, tested[m], mark)
            axes[which, 2].plot(range(1, epochs + 1), curves[:, m], label=name)
        axes[which, 0].set(xlabel=f"weight, {way}", ylabel="test loss")
        axes[which, 1].set(xlabel="sum of training losses / epochs", ylabel="test loss")
        axes[which, 2].set(xlabel="epoch", ylabel="training loss")
    axes[0, 2].legend(fontsize=6)
    magnified = spread["concurrent"] > spread["parallel"]
    rows.append(
        Row(
            "standard deviation of the weights over networks",
            "magnified by concurrent training",
            f"parallel {spread['parallel']:.2f}, concurrent {spread['concurrent']:.2f}",
            f"n = {n_runs} seeds",
            ""
            if magnified
            else "separately trained networks have large outputs of both signs of usefulness: "
            "their weights spread as far, down to negative ones",
        )
    )
    told = {w: (numbers[w]["rho_weight"], numbers[w]["rho_sotl"]) for w in spread}
    why = ", ".join(f"{w}: weight {a:+.2f}, SOTL {b:+.2f}" for w, (a, b) in told.items())
    return Reproduction(
        tuple(rows),
        figure,
        numbers,
        f"rank correlations with test loss over {len(names)} networks, {n_train} images: {why}; "
        f"concurrent training {'magnifies' if magnified else 'does not magnify'} the differences "
        "between weights",
    )
