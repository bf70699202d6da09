"""Weights and training speed of parts of one network (Lyle et al. 2020, Fig. 4, 8 and 9).

A network 200-200-10 is trained. For each class the 200 units before the outputs are ranked by the
size of their last weight and cut into groups of ten. How well a group tells the class from the
rest is the cross entropy of a logistic regression on its ten activations, summed over the epochs.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import spearmanr
from torch import Tensor, nn

from nas_evidence_reproduce._published import Cell, Reproduction, Row

from ._shared_data import images

PAPER = "Lyle et al. 2020"
FIGURE = "Fig. 4, Fig. 8, Fig. 9"
TITLE = "Groups of units of one network: size of their weights against their training loss"
CLAIM = "Groups with larger weights have the lower sum of cross entropies, in every class."
RULE = "the rank correlation of one class in one seed is negative"
NEEDS = ("FashionMNIST", "cifar10")
FULL_HOURS = 2.0

WIDTH, GROUP, RATE, BATCH = 200, 10, 0.05, 50
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


def one_network(
    seed: int, x: Tensor, y: Tensor, epochs: int, n_probe: int
) -> tuple[Tensor, Tensor]:
    """Return the mean |weight| and the summed loss of each group [10 classes, 20 groups]."""
    torch.manual_seed(seed)
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(x[0].numel(), WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
    )
    head = nn.Linear(WIDTH, 10)
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


def cifar(folder: Path, n: int) -> tuple[Tensor, Tensor]:
    """Return the first n training images, standardised, and labels."""
    with np.load(folder / "cifar10_jpeg.npz") as z:
        stream, ends, labels = z["train_jpeg"].tobytes(), z["train_offsets"], z["y_train"]
    pixels = [np.asarray(Image.open(io.BytesIO(stream[ends[i] : ends[i + 1]]))) for i in range(n)]
    x = torch.from_numpy(np.stack(pixels)).float() / 255
    return (x - x.mean()) / x.std(), torch.from_numpy(labels[:n].astype(np.int64))


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return every class of every network."""
    figures = {"Fashion-MNIST": ("Fig. 4", "Fig. 8"), "CIFAR-10": ("Fig. 9",)}
    return [
        Cell(f"{name}: classes and seeds", f"class {i % 10}, seed {i // 10}", rho < 0, shown)
        for name, shown in figures.items()
        for i, rho in enumerate(numbers[name]["rho_within_seeds"])
    ]


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Train networks of several seeds on both sets of images."""
    assert data is not None
    n, epochs, n_seeds, n_probe = (2000, 8, 4, 1000) if quick else (50_000, 40, 10, 5000)
    x, y = images(data / "FashionMNIST", "train")
    sets = {"Fashion-MNIST": (x[:n], y[:n]), "CIFAR-10": cifar(data / "cifar10", n)}
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    rows, numbers, all_negative = [], {"n": n_seeds, "n_images": n, "epochs": epochs}, []
    for axis, (name, (inputs, labels)) in zip(figure.subplots(1, 2), sets.items(), strict=True):
        found = []
        for seed in range(n_seeds):
            say(f"{name}, seed {seed}: {n} images, {epochs} epochs, 200 groups")
            found.append(one_network(seed, inputs, labels, epochs, n_probe))
        sizes, losses = (torch.stack(one) for one in zip(*found, strict=True))
        mean = sizes.mean(0), losses.mean(0)
        rho = [float(spearmanr(mean[0][c], mean[1][c])[0]) for c in range(10)]
        single = [
            float(spearmanr(sizes[s, c], losses[s, c])[0])
            for s in range(n_seeds)
            for c in range(10)
        ]
        drop = ((losses[:, :, -1] - losses[:, :, 0]) / losses.mean(2)).mean()
        all_negative += [r < 0 for r in rho]
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
                f"{sum(r < 0 for r in rho)} of 10",
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
            "rho": rho,
            "rho_within_seeds": single,
            "weights": mean[0].tolist(),
            "losses": mean[1].tolist(),
        }
        for c in range(10):
            axis.plot(mean[0][c], mean[1][c], ".-", linewidth=0.6, label=str(c))
        axis.set(title=name, xlabel="mean |weight| of the group", ylabel="summed cross entropy")
        axis.legend(fontsize=6, title="class", ncols=2)
    return Reproduction(
        tuple(rows),
        figure,
        numbers,
        f"with the means of {n_seeds} seeds it is negative in {sum(all_negative)} of 20 classes",
    )
