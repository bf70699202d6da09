"""Distributions that gradient descent defines on the way (Duvenaud et al. 2016, Fig. 1).

Draws of a wide Gaussian go down an objective with two basins; after 0, 150 and 300 steps their
histogram is beside the posterior. The objective of the figure is not given: ours is the negative
log of a mixture of two Gaussians of weights 0.35 and 0.65. In one dimension the density of the
draws can be seen, so its entropy by spacings checks S_0 + Σ log|1 − α E''|.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import grad, vmap

from nas_evidence_reproduce._published import Cell, Reproduction, Row

PAPER = "Duvenaud et al. 2016"
FIGURE = "Fig. 1"
TITLE = "A series of distributions defined by gradient descent"
CLAIM = "They have nonparametric shapes and eventually concentrate around the optima."
RULE = (
    "the entropy falls, the draws come nearer to the optima, their entropy is below that of a "
    "Gaussian of their variance, and the tracked entropy is within 0.02 nats of that by "
    "spacings"
)
NEEDS = ()
FULL_HOURS = 0.01

RATE, STEPS, SPREAD = 0.01, (0, 150, 300), 2.0
WEIGHTS, CENTRES, WIDTHS = (0.35, 0.65), (-1.5, 1.5), (0.6, 0.9)


def energy(x: Tensor) -> Tensor:
    """Return E [] in nats at a point []."""
    parts = [
        math.log(w / s) - 0.5 * math.log(2 * math.pi) - 0.5 * ((x - c) / s).square()
        for w, c, s in zip(WEIGHTS, CENTRES, WIDTHS, strict=True)
    ]
    return -torch.stack(parts).logsumexp(0)


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return what holds from each of the shown steps to the next, and at each of them."""
    found = []
    for what, name in (("entropy", "entropy"), ("distance", "mean distance to an optimum")):
        start, half, end = (numbers[what][str(t)] for t in STEPS)
        found.append(Cell("falls from picture to picture", name, start > half > end))
    for t in STEPS[1:]:
        below = numbers["by_spacings"][str(t)] < numbers["gaussian"][str(t)] - 0.02
        found.append(Cell("not a Gaussian", f"step {t}", below))
    for t in STEPS:
        gap = abs(numbers["entropy"][str(t)] - numbers["by_spacings"][str(t)])
        found.append(Cell("tracked entropy is that by spacings", f"step {t}", gap < 0.02))
    return found


def distance(x: Tensor) -> float:
    """Return the mean distance of points [n] to the nearest minimum of the energy."""
    grid = torch.linspace(-4, 4, 8001, dtype=torch.float64)
    height = vmap(energy)(grid)
    lowest = (height[1:-1] < height[:-2]) & (height[1:-1] < height[2:])
    optima = grid[1:-1][lowest]
    return float((x[:, None] - optima).abs().amin(1).mean())


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Follow the draws, their tracked entropy and their entropy by spacings."""
    n = 50_000 if quick else 2_000_000
    generator = torch.Generator().manual_seed(0)
    x = SPREAD * torch.randn(n, dtype=torch.float64, generator=generator)
    tracked = 0.5 * math.log(2 * math.pi * math.e * SPREAD**2) + torch.zeros_like(x)
    slope, curvature = vmap(grad(energy)), vmap(grad(grad(energy)))
    found: dict[int, tuple[Tensor, float, float, float]] = {}
    best, at = -math.inf, 0
    for t in range(max(STEPS) + 1):
        bound = float((tracked - vmap(energy)(x)).mean()) if t in STEPS or t % 10 == 0 else best
        if bound > best:
            best, at = bound, t
        if t in STEPS:
            found[t] = x, float(tracked.mean()), _entropy(x), bound
            say(f"step {t}: entropy {found[t][1]:.4f}, by spacings {found[t][2]:.4f}")
        tracked = tracked + (1 - RATE * curvature(x)).log()
        x = x - RATE * slope(x)
    rows = [
        Row(
            f"entropy after {t} steps (nats): tracked, by spacings",
            "picture only",
            f"{entropy:.3f}, {by_histogram:.3f}",
            f"n = {n}",
        )
        for t, (_, entropy, by_histogram, _) in found.items()
    ]
    rows.append(
        Row(
            "bound after 0, 150, 300 steps (nats); the log evidence is 0",
            "",
            ", ".join(f"{found[t][3]:.3f}" for t in STEPS) + f"; best {best:.3f} at step {at}",
            f"n = {n}",
            "this objective needs few steps: its best bound is early",
        )
    )
    gap = max(abs(entropy - other) for _, entropy, other, _ in found.values())
    return Reproduction(
        tuple(rows),
        _figure({t: one[0] for t, one in found.items()}),
        {
            "n": n,
            "bound": {str(t): found[t][3] for t in STEPS},
            "entropy": {str(t): found[t][1] for t in STEPS},
            "by_spacings": {str(t): found[t][2] for t in STEPS},
            "gaussian": {str(t): _of_gaussian(found[t][0]) for t in STEPS},
            "distance": {str(t): distance(found[t][0]) for t in STEPS},
        },
        f"two filaments around the optima; the entropy falls from {found[0][1]:.2f} to "
        f"{found[300][1]:.2f} nats, and the tracked one is within {gap:.3f} of that by spacings",
    )


def _entropy(x: Tensor) -> float:
    """Return the entropy of a sample by its spacings (Vasicek 1976), nats."""
    m = 50
    spacing = x.sort().values.unfold(0, m + 1, 1)
    gaps = (spacing[:, -1] - spacing[:, 0]).clamp(min=1e-300)
    bias = math.log(m) - float(torch.special.digamma(torch.tensor(float(m))))
    return float(gaps.log().mean()) + math.log(len(x) / m) + bias


def _of_gaussian(x: Tensor) -> float:
    """Return the entropy of a Gaussian with the variance of a sample, nats."""
    return 0.5 * math.log(2 * math.pi * math.e * float(x.var()))


def _figure(after: dict[int, Tensor]) -> Figure:
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    grid = torch.linspace(-6, 6, 400, dtype=torch.float64)
    density = (-vmap(energy)(grid)).exp()
    for axis, (t, x) in zip(figure.subplots(1, 3, sharey=True), after.items(), strict=True):
        axis.hist(x.numpy(), bins=200, range=(-6, 6), density=True, color="C0", alpha=0.6)
        axis.plot(grid, density, color="black", linewidth=1, label="posterior")
        axis.set(title=f"after {t} steps", xlabel="parameter", ylim=(0, 1.5))
    figure.axes[0].legend(frameon=False)
    return figure
