"""Distributions that gradient descent defines on the way (Duvenaud et al. 2016, Fig. 1).

Draws of a wide Gaussian go down an objective with two basins; after 0, 150 and 300 steps their
histogram is beside the posterior. The objective of the figure is not given: ours is the negative
log of a mixture of two Gaussians of weights 0.35 and 0.65. In one dimension the density of the
draws can be seen, so its entropy by spacings checks S_0 + Σ log|1 − α E''|. In full it takes about
a minute.
"""

import math

import torch
from torch import Tensor
from torch.func import grad, vmap

from ._panels import panels
from ._published import PICTURE, Cell, Cells, Numbers, Reproduction, Row, Run, joined

FIGURE = "Fig. 1"
TITLE = "A series of distributions defined by gradient descent"
CLAIM = "They have nonparametric shapes and eventually concentrate around the optima."
RULE = (
    "the entropy falls, the draws come nearer to the optima, their entropy is below that of a "
    "Gaussian of their variance, and the tracked entropy is within 0.02 nats of that by "
    "spacings"
)
NEEDS = ()

RATE, STEPS, SPREAD = 0.01, (0, 150, 300), 2.0
WEIGHTS, CENTRES, WIDTHS = (0.35, 0.65), (-1.5, 1.5), (0.6, 0.9)


def energy(x: Tensor) -> Tensor:
    """Return E [] in nats at a point []."""
    parts = [
        math.log(w / s) - 0.5 * math.log(2 * math.pi) - 0.5 * ((x - c) / s).square()
        for w, c, s in zip(WEIGHTS, CENTRES, WIDTHS, strict=True)
    ]
    return -torch.stack(parts).logsumexp(0)


def distance(x: Tensor) -> float:
    """Return the mean distance of points [n] to the nearest minimum of the energy."""
    grid = torch.linspace(-4, 4, 8001, dtype=torch.float64)
    height = vmap(energy)(grid)
    lowest = (height[1:-1] < height[:-2]) & (height[1:-1] < height[2:])
    return float((x[:, None] - grid[1:-1][lowest]).abs().amin(1).mean())


def entropy_by_spacings(x: Tensor, m: int = 50) -> float:
    """Return the entropy of a sample by its spacings (Vasicek 1976), nats."""
    spacing = x.sort().values.unfold(0, m + 1, 1)
    gaps = (spacing[:, -1] - spacing[:, 0]).clamp(min=1e-300)
    bias = math.log(m) - float(torch.special.digamma(torch.tensor(float(m))))
    return float(gaps.log().mean()) + math.log(len(x) / m) + bias


def of_gaussian(variance: float) -> float:
    """Return the entropy of a Gaussian, nats."""
    return 0.5 * math.log(2 * math.pi * math.e * variance)


def cells(numbers: Numbers) -> Cells:
    """Yield what holds from each of the shown steps to the next, and at each of them."""
    own, normal, tracked = (numbers[what] for what in ("by_spacings", "gaussian", "entropy"))
    far = numbers["distance"]
    for name, each in (("entropy", tracked), ("mean distance to an optimum", far)):
        yield Cell("falls from picture to picture", name, each["0"] > each["150"] > each["300"])
    for t in ("150", "300"):
        yield Cell("not a Gaussian", f"step {t}", own[t] < normal[t] - 0.02)
    for t in own:
        near = abs(tracked[t] - own[t]) < 0.02
        yield Cell("tracked entropy is that by spacings", f"step {t}", near)


def run(at: Run) -> Reproduction:
    """Follow the draws, their tracked entropy and their entropy by spacings."""
    n = at.sized(50_000, 2_000_000)
    generator = torch.Generator().manual_seed(0)
    x = SPREAD * torch.randn(n, dtype=torch.float64, generator=generator)
    tracked = of_gaussian(SPREAD**2) + torch.zeros_like(x)
    slope, curvature = vmap(grad(energy)), vmap(grad(grad(energy)))
    found = {what: {} for what in ("bound", "entropy", "by_spacings", "gaussian", "distance")}
    shown, bounds = {}, {}
    for t in range(max(STEPS) + 1):
        if t % 10 == 0:
            bounds[t] = float((tracked - vmap(energy)(x)).mean())
        if t in STEPS:
            at.say(f"step {t}")
            shown[t] = x
            values = (
                bounds[t], float(tracked.mean()), entropy_by_spacings(x),
                of_gaussian(float(x.var())), distance(x),
            )  # fmt: skip
            for what, value in zip(found, values, strict=True):
                found[what][t] = value
        tracked = tracked + (1 - RATE * curvature(x)).log()
        x = x - RATE * slope(x)
    entropy, other = found["entropy"], found["by_spacings"]
    rows = [
        Row(
            f"entropy after {t} steps (nats): tracked, by spacings",
            PICTURE,
            joined((entropy[t], other[t]), ".3f"),
            f"n = {n}",
        )
        for t in STEPS
    ]
    best = max(bounds, key=bounds.__getitem__)
    rows.append(
        Row(
            "bound after 0, 150, 300 steps (nats); the log evidence is 0",
            "",
            f"{joined(found['bound'].values(), '.3f')}; best {bounds[best]:.3f} at step {best}",
            f"n = {n}",
            "this objective needs few steps: its best bound is early",
        )
    )
    gap = max(abs(entropy[t] - other[t]) for t in STEPS)
    figure, axes = panels(9, 2.8, 1, 3, sharey=True)
    grid = torch.linspace(-6, 6, 400, dtype=torch.float64)
    for axis, (t, x) in zip(axes, shown.items(), strict=True):
        axis.hist(x.numpy(), bins=200, range=(-6, 6), density=True, color="C0", alpha=0.6)
        axis.plot(grid, (-vmap(energy)(grid)).exp(), color="black", linewidth=1, label="posterior")
        axis.set(title=f"after {t} steps", xlabel="parameter", ylim=(0, 1.5))
    axes[0].legend(frameon=False)
    return Reproduction(
        rows,
        figure,
        {"n": n, **found},
        f"two filaments around the optima; the entropy falls from {entropy[0]:.2f} to "
        f"{entropy[300]:.2f} nats, and the tracked one is within {gap:.3f} of that by spacings",
    )
