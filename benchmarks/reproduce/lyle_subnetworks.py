"""Weights and training speed of parts of one network (Lyle et al. 2020, Fig. 4, 8 and 9).

A network 200-200-10 is trained. For each class the 200 units before the outputs are ranked by the
size of their last weight and cut into groups of ten. How well a group tells the class from the
rest is the cross entropy of a logistic regression on its ten activations, summed over the epochs.
In full it takes about 2 hours.
"""

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from ._panels import panels
from ._published import Cell, Cells, Numbers, Reproduction, Row, Run
from ._shared_data import cifar, dense, images

FIGURE = "Fig. 4, Fig. 8, Fig. 9"
TITLE = "Groups of units of one network: size of their weights against their training loss"
CLAIM = "Groups with larger weights have the lower sum of cross entropies, in every class."
RULE = "the rank correlation of one class in one seed is negative"
NEEDS = ("FashionMNIST", "cifar10")

WIDTH, GROUP, RATE, BATCH = 200, 10, 0.05, 50
#: Each set, and the figures that show it.
SETS = {"Fashion-MNIST": ("Fig. 4", "Fig. 8"), "CIFAR-10": ("Fig. 9",)}
_NEWTON, _PENALTY = 8, 1e-3


def probe_losses(features: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of a logistic regression on each group [G].

    Args:
        features: [G, n, d], standardised here.
        targets: 0 or 1 [n].
    """
    scaled = (features - features.mean(1, keepdim=True)) / (features.std(1, keepdim=True) + 1e-6)
    phi = torch.cat([scaled, torch.ones_like(scaled[..., :1])], 2).double()
    y, w = targets.double(), torch.zeros(len(phi), phi.shape[2], dtype=torch.float64)
    eye = _PENALTY * len(y) * torch.eye(phi.shape[2], dtype=torch.float64)
    for _ in range(_NEWTON):
        p = torch.einsum("gnd,gd->gn", phi, w).sigmoid()
        gradient = torch.einsum("gnd,gn->gd", phi, p - y) + w @ eye
        hessian = torch.einsum("gnd,gn,gne->gde", phi, p * (1 - p), phi) + eye
        w = w - torch.linalg.solve(hessian, gradient)
    logits = torch.einsum("gnd,gd->gn", phi, w)
    entropy = nn.functional.binary_cross_entropy_with_logits
    return entropy(logits, y.expand_as(logits), reduction="none").mean(1)


def correlations(sizes: Tensor, losses: Tensor) -> list[float]:
    """Return the rank correlation over groups of each class, for [classes, groups]."""
    return [float(spearmanr(*both)[0]) for both in zip(sizes, losses, strict=True)]


def one_network(
    seed: int, x: Tensor, y: Tensor, epochs: int, n_probe: int
) -> tuple[Tensor, Tensor]:
    """Return the mean |weight| and the summed loss of each group [10 classes, 20 groups]."""
    torch.manual_seed(seed)
    layers = dense([x[0].numel(), WIDTH, WIDTH, 10], nn.ReLU)
    body, head = nn.Sequential(nn.Flatten(), *layers[:-1]), layers[-1]
    optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=RATE)
    kept = []
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = nn.functional.cross_entropy(head(body(x[rows])), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            kept.append(body(x[:n_probe]))
    sizes, losses = [], []
    for label in range(10):
        weights = head.weight[label].detach().abs()
        order = weights.argsort(descending=True).view(-1, GROUP)
        sizes.append(weights[order].mean(1))
        told = (y[:n_probe] == label).float()
        losses.append(sum(probe_losses(a.T[order].mT, told) for a in kept))
    return torch.stack(sizes), torch.stack(losses)


def cells(numbers: Numbers) -> Cells:
    """Yield every class of every network."""
    for name, shown in SETS.items():
        for i, rho in enumerate(numbers[name]["rho_within_seeds"]):
            what = f"class {i % 10}, seed {i // 10}"
            yield Cell(f"{name}: classes and seeds", what, rho < 0, shown)


def run(at: Run) -> Reproduction:
    """Train networks of several seeds on both sets of images."""
    n, epochs, n_seeds, n_probe = at.sized((2000, 8, 4, 1000), (50_000, 40, 10, 5000))
    x, y = images(at.data / "FashionMNIST", "train")
    colour, labels = cifar(at.data / "cifar10", "train", n)
    data = (x[:n], y[:n]), ((colour - colour.mean()) / colour.std(), labels)
    figure, axes = panels(9, 3.4, 1, 2)
    rows, numbers, negative = [], {"n": n_seeds, "n_images": n, "epochs": epochs}, 0
    for axis, name, (inputs, targets) in zip(axes, SETS, data, strict=True):
        found = []
        for seed in range(n_seeds):
            at.say(f"{name}, seed {seed}: {n} images, {epochs} epochs, 200 groups")
            found.append(one_network(seed, inputs, targets, epochs, n_probe))
        sizes, losses = (torch.stack(one) for one in zip(*found, strict=True))
        weight, loss = sizes.mean(0), losses.mean(0)
        rho = correlations(weight, loss)
        single = [value for one in found for value in correlations(*one)]
        drop = ((losses[:, :, -1] - losses[:, :, 0]) / losses.mean(2)).mean()
        below = sum(value < 0 for value in rho)
        negative += below
        rows += [
            Row(
                f"{name}: rank correlation of weight and summed loss, mean over classes",
                "negative in every class",
                f"{np.mean(rho):+.2f}",
                f"{min(rho):+.2f} to {max(rho):+.2f}; within one seed {np.mean(single):+.2f}",
            ),
            Row(
                f"{name}: classes with a negative correlation",
                "10 of 10",
                f"{below} of 10",
                f"mean of {n_seeds} seeds",
            ),
            Row(
                f"{name}: loss of the last group above that of the first",
                "",
                f"{100 * float(drop):.1f} %",
                f"n = {n_seeds} seeds",
            ),
        ]
        numbers[name] = {
            "rho": rho, "rho_within_seeds": single, "weights": weight, "losses": loss
        }  # fmt: skip
        for c in range(10):
            axis.plot(weight[c], loss[c], ".-", linewidth=0.6, label=str(c))
        axis.set(title=name, xlabel="mean |weight| of the group", ylabel="summed cross entropy")
        axis.legend(fontsize=6, title="class", ncols=2)
    why = f"with the means of {n_seeds} seeds it is negative in {negative} of 20 classes"
    return Reproduction(rows, figure, numbers, why)
