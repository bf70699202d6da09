"""Gradient descent on a funnel, plain and entropy-friendly (Duvenaud et al. 2016, Fig. 2).

    E(μ, s) = s + ½ (μ / (eˢ + 0.01))² + 0.1 e⁻ˢ       μ = x₁, s = x₂

250 points start on a circle of radius 2.5 around (−1, 1); 300 steps of 0.01; g0 = 0.25. The paper
has a picture only: here the entropy of a disc that fills the circle is added, by the exact
Jacobian of each step. In full it takes about a minute.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from ._panels import panels
from ._published import PICTURE, Cell, Cells, Numbers, Reproduction, Row, Run

FIGURE = "Fig. 2"
TITLE = "Entropy-friendly gradient descent on a funnel"
CLAIM = "Entropy-friendly steps are slower to collapse into low-entropy filaments."
RULE = "the entropy-friendly value is higher by more than two standard errors of the difference"
NEEDS = ()

RATE, STEPS = 0.01, 300
THRESHOLDS = {"plain": None, "entropy-friendly": 0.25}
CENTRE, RADIUS = (-1.0, 1.0), 2.5


def energy(x: Tensor) -> Tensor:
    """Return E [] in nats at one point [2]."""
    mu, s = x[0], x[1]
    return s + 0.5 * (mu / (s.exp() + 0.01)).square() + 0.1 * (-s).exp()


def step(x: Tensor, threshold: float | None) -> tuple[Tensor, Tensor]:
    """Return the next point [2] and log|Jacobian| [] of the step."""

    def moved(point: Tensor) -> Tensor:
        g = grad(energy)(point)
        if threshold is not None:
            g = g - threshold * (g / threshold).tanh()
        return point - RATE * g

    return moved(x), torch.linalg.slogdet(jacrev(moved)(x))[1]


def descended(start: Tensor, threshold: float | None) -> tuple[Tensor, Tensor]:
    """Return points [n, 2] after all steps and the summed log|Jacobian| along each path [n]."""
    x, change = start, torch.zeros(len(start), dtype=start.dtype)
    each = vmap(lambda point: step(point, threshold))
    for _ in range(STEPS):
        x, found = each(x)
        change = change + found
    return x, change


def cells(numbers: Numbers) -> Cells:
    """Yield whether entropy and bound are higher with entropy-friendly steps."""
    for what in ("entropy", "bound"):
        (plain, error), (friendly, other) = (numbers[f"{what} {name}"] for name in THRESHOLDS)
        agrees = friendly - plain > 2 * math.hypot(error, other)
        yield Cell(f"{what} after {STEPS} steps", "entropy-friendly is higher", agrees)


def run(at: Run) -> Reproduction:
    """Move the circle and a disc of points by both kinds of steps."""
    angle = torch.linspace(0, 2 * torch.pi, 251, dtype=torch.float64)[:-1]
    centre = torch.tensor(CENTRE, dtype=torch.float64)
    circle = centre + RADIUS * torch.stack([angle.cos(), angle.sin()], 1)
    n = at.sized(2000, 20_000)
    generator = torch.Generator().manual_seed(0)
    radius = RADIUS * torch.rand(n, 1, dtype=torch.float64, generator=generator).sqrt()
    turn = 2 * torch.pi * torch.rand(n, 1, dtype=torch.float64, generator=generator)
    disc = centre + radius * torch.cat([turn.cos(), turn.sin()], 1)
    start = float(torch.tensor(torch.pi * RADIUS**2).log())
    clouds, measured = {"start": circle}, {}
    for name, threshold in THRESHOLDS.items():
        at.say(f"{name}: {STEPS} steps of {len(circle)} points on the circle and {n} in it")
        clouds[name], _ = descended(circle, threshold)
        inside, change = descended(disc, threshold)
        measured[f"entropy {name}"] = start + change
        measured[f"bound {name}"] = start + change - vmap(energy)(inside)
    found = {
        what: (float(each.mean()), float(each.std()) / n**0.5) for what, each in measured.items()
    }

    def row(what: str, key: str, published: str) -> Row:
        mean, error = found[key]
        return Row(f"{what} (nats)", published, f"{mean:.2f}", f"± {error:.2f}, n = {n}")

    bound = "bound E[−energy] + entropy,"
    rows = [
        *(row(f"entropy after {STEPS} steps, {k}", f"entropy {k}", PICTURE) for k in THRESHOLDS),
        row(f"{bound} plain", "bound plain", "lower"),
        row(f"{bound} entropy-friendly", "bound entropy-friendly", '"remains higher"'),
    ]
    gained, tighter = (
        found[f"{what} entropy-friendly"][0] - found[f"{what} plain"][0]
        for what in ("entropy", "bound")
    )
    return Reproduction(
        rows,
        _figure(clouds),
        {"n": n, "start_entropy": start, **found},
        f"after {STEPS} steps the entropy-friendly cloud keeps {gained:.2f} nats more entropy, "
        f"and its bound is {tighter:+.2f} nats from the plain one",
    )


def _figure(clouds: dict[str, Tensor]) -> Any:
    figure, axes = panels(9, 3.2, 1, 3, sharex=True, sharey=True)
    line = torch.linspace(-4, 4, 121, dtype=torch.float64)
    mu, s = torch.meshgrid(line, line, indexing="xy")
    height = vmap(vmap(energy))(torch.stack([mu, s], 2))
    for axis, (name, points) in zip(axes, clouds.items(), strict=True):
        axis.contour(mu, s, (-height).exp(), levels=8, colors="0.5", linewidths=0.7)
        closed = torch.cat([points, points[:1]])
        axis.plot(closed[:, 0], closed[:, 1], ".-", markersize=2, linewidth=0.6)
        axis.set(title=name, xlabel="μ", xlim=(-4, 4), ylim=(-4, 4))
    axes[0].set_ylabel("s")
    return figure
