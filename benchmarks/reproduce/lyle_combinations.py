"""Linear combinations of networks on Fashion-MNIST (Lyle et al. 2020, Fig. 3 and 7).

    h = Σ_m w_m h_m(x)      h_m  outputs of network m [n, 10]      w_m  one weight each, 1 / M at
    first

Parallel training: each network by its own cross entropy, w by that of the combination. Concurrent:
the cross entropy of the combination trains networks and w. The sum over training losses (SOTL) of
a network is of its own cross entropy, before each step. Rates, batches and sizes are not stated.
In full it takes about 3 hours.
"""

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run, joined
from ._shared_data import Examples, dense, images

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

#: Layers and units of MLPs; layers, channels and kernel size of convolutional networks.
MLPS = ((1, 20), (1, 100), (2, 100), (4, 50))
CNNS = ((1, 4, 3), (1, 16, 5), (2, 8, 3), (2, 16, 5))
RATE, BATCH = 0.05, 50
#: The figures that show weights and sums of training losses.
WAYS = {"parallel": ("Fig. 7", "Fig. 3"), "concurrent": ("Fig. 3", "Fig. 7")}


def networks() -> dict[str, nn.Module]:
    """Return all networks by name, freshly initialised."""
    found = {}
    for depth, width in MLPS:
        layers = dense([784, *[width] * depth, 10], nn.ReLU)
        found[f"MLP (l={depth}, n={width})"] = nn.Sequential(nn.Flatten(), *layers)
    for depth, channels, size in CNNS:
        layers, before, side = [], 1, 28 // 2**depth
        for _ in range(depth):
            layers += [nn.Conv2d(before, channels, size, padding=size // 2), nn.ReLU()]
            layers, before = [*layers, nn.MaxPool2d(2)], channels
        layers += [nn.Flatten(), nn.Linear(channels * side * side, 10)]
        found[f"CNN (l={depth}, n={channels}, k={size})"] = nn.Sequential(*layers)
    return found


def trained(
    seed: int, train: Examples, test: Examples, epochs: int, *, concurrent: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weights, sums of training losses per datum, test losses [M]; curves [epochs, M]."""
    torch.manual_seed(seed)
    models = list(networks().values())
    w = torch.full((len(models),), 1 / len(models), requires_grad=True)
    optimiser = torch.optim.SGD([w, *(p for m in models for p in m.parameters())], lr=RATE)
    curves = torch.zeros(epochs, len(models))
    entropy = nn.functional.cross_entropy
    for epoch in range(epochs):
        for rows in torch.randperm(len(train[0])).split(BATCH):
            x, y = train[0][rows], train[1][rows]
            outputs = torch.stack([model(x) for model in models])
            own = torch.stack([entropy(h, y) for h in outputs])
            shared = outputs if concurrent else outputs.detach()
            together = entropy((w[:, None, None] * shared).sum(0), y)
            loss = together if concurrent else together + own.sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            curves[epoch] += own.detach() * len(rows) / len(train[0])
    with torch.no_grad():
        tested = torch.stack([entropy(model(test[0]), test[1]) for model in models])
    return w.detach(), curves.sum(0), tested, curves


def cells(numbers: Numbers) -> Cells:
    """Yield both correlations for both ways of training, and the spread of the weights."""
    for way, (weights, sums) in WAYS.items():
        one, strong = numbers[way], numbers[way]["rho_sotl"] > 0.7
        yield Cell("weight and test loss", way, one["rho_weight"] < 0, (weights,))
        yield Cell("sum of training losses and test loss", way, strong, (sums,))
    parallel, concurrent = (numbers[way]["spread_of_weights"] for way in WAYS)
    yield Cell("concurrent training magnifies", "weights", concurrent > parallel)


def run(at: Run) -> Reproduction:
    """Train the combinations of several seeds in both ways."""
    n_train, n_test, epochs, n_runs = at.sized((1500, 2000, 8, 3), (60_000, 10_000, 30, 10))
    read = [images(at.data / "FashionMNIST", part) for part in ("train", "t10k")]
    train, test = ((x[:n], y[:n]) for (x, y), n in zip(read, (n_train, n_test), strict=True))
    names, rows, found = list(networks()), [], {}
    figure, axes = panels(10, 5.6, 2, 3)
    for way, (left, middle, right) in zip(WAYS, axes, strict=True):
        at.say(f"{way}: {len(names)} networks, {n_train} images, {epochs} epochs, {n_runs} seeds")
        runs = [
            trained(seed, train, test, epochs, concurrent=way == "concurrent")
            for seed in range(n_runs)
        ]
        weights, sums, tested, curves = (torch.stack(v).mean(0) for v in zip(*runs, strict=True))
        rho = [float(spearmanr(one, tested)[0]) for one in (weights, sums)]
        for i, (what, claim) in enumerate((("weight", "negative"), ("SOTL", "strongly positive"))):
            each = joined((spearmanr(one[i], one[2])[0] for one in runs), "+.2f")
            rows.append(
                Row(
                    f"rank correlation of {what} and test loss, {way}",
                    claim,
                    f"{rho[i]:+.2f}",
                    f"each seed: {each}",
                    "" if (rho[i] < 0) == (i == 0) else "sign differs",
                )
            )
        found[way] = {
            "weights": weights, "sotl": sums, "test_loss": tested, "rho_weight": rho[0],
            "rho_sotl": rho[1], "spread_of_weights": float(weights.std()),
        }  # fmt: skip
        for m, name in enumerate(names):
            mark = "o" if name.startswith("MLP") else "^"
            left.plot(weights[m], tested[m], mark)
            middle.plot(sums[m] / epochs, tested[m], mark)
            right.plot(range(1, epochs + 1), curves[:, m], label=name)
        left.set(xlabel=f"weight, {way}", ylabel="test loss")
        middle.set(xlabel="sum of training losses / epochs", ylabel="test loss")
        right.set(xlabel="epoch", ylabel="training loss")
    axes[0, 2].legend(fontsize=6)
    parallel, concurrent = (found[way]["spread_of_weights"] for way in WAYS)
    magnified = concurrent > parallel
    rows.append(
        Row(
            "standard deviation of the weights over networks",
            "magnified by concurrent training",
            f"parallel {parallel:.2f}, concurrent {concurrent:.2f}",
            f"n = {n_runs} seeds",
            ""
            if magnified
            else "separately trained networks have large outputs of both signs of usefulness: "
            "their weights spread as far, down to negative ones",
        )
    )
    said = ", ".join(
        f"{way}: weight {one['rho_weight']:+.2f}, SOTL {one['rho_sotl']:+.2f}"
        for way, one in found.items()
    )
    return Reproduction(
        rows,
        figure,
        {"n": n_runs, "n_train": n_train, "epochs": epochs, "networks": names, **found},
        f"rank correlations with test loss over {len(names)} networks, {n_train} images: {said}; "
        f"concurrent training {'magnifies' if magnified else 'does not magnify'} the differences "
        "between weights",
    )
