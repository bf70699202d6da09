"""Gradient descent on a funnel, plain and entropy-friendly (Duvenaud et al. 2016, Fig. 2).

    E(μ, s) = s + ½ (μ / (eˢ + 0.01))² + 0.1 e⁻ˢ       μ = x₁, s = x₂

250 points start on a circle of radius 2.5 around (−1, 1); 300 steps of 0.01; g0 = 0.25. The paper
has a picture only: here the entropy of a disc that fills the circle is added, by the exact
Jacobian of each step.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import grad, jacrev, vmap

from nas_evidence_reproduce._published import Cell, Reproduction, Row

PAPER = "Duvenaud et al. 2016"
FIGURE = "Fig. 2"
TITLE = "Entropy-friendly gradient descent on a funnel"
CLAIM = "Entropy-friendly steps are slower to collapse into low-entropy filaments."
RULE = "the entropy-friendly value is higher by more than two standard errors of the difference"
NEEDS = ()
FULL_HOURS = 0.01

RATE, STEPS, THRESHOLD = 0.01, 300, 0.25
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


def descended(start: Tensor, threshold: float | None, n_steps: int) -> tuple[Tensor, Tensor]:
    """Return points [n, 2] after all steps and the summed log|Jacobian| along each path [n]."""
    x, change = start, torch.zeros(len(start), dtype=start.dtype)
    each = vmap(lambda point: step(point, threshold))
    for _ in range(n_steps):
        x, found = each(x)
        change = change + found
    return x, change


def cells(numbers: Mapping[str, Any]) -> list[Cell]:
    """Return whether entropy and bound are higher with entropy-friendly steps."""
    found = []
    for what in ("entropy", "bound"):
        (plain, error), (friendly, other) = (
            numbers[f"{what} {name}"] for name in ("plain", "entropy-friendly")
        )
        agrees = friendly - plain > 2 * math.hypot(error, other)
        found.append(Cell(f"{what} after {STEPS} steps", "entropy-friendly is higher", agrees))
    return found


def run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction:
    """Move the circle and a disc of points by both kinds of steps."""
    angle = torch.linspace(0, 2 * torch.pi, 251, dtype=torch.float64)[:-1]
    centre = torch.tensor(CENTRE, dtype=torch.float64)
    circle = centre + RADIUS * torch.stack([angle.cos(), angle.sin()], 1)
    n_disc = 2000 if quick else 20_000
    generator = torch.Generator().manual_seed(0)
    radius = RADIUS * torch.rand(n_disc, 1, dtype=torch.float64, generator=generator).sqrt()
    turn = 2 * torch.pi * torch.rand(n_disc, 1, dtype=torch.float64, generator=generator)
    disc = centre + radius * torch.cat([turn.cos(), turn.sin()], 1)
    start_entropy = float(torch.tensor(torch.pi * RADIUS**2).log())
    found = {}
    for name, threshold in (("plain", None), ("entropy-friendly", THRESHOLD)):
        say(f"{name}: {STEPS} steps of {len(circle)} points on the circle and {n_disc} in it")
        ring, _ = descended(circle, threshold, STEPS)
        inside, change = descended(disc, threshold, STEPS)
        bound = start_entropy + change - vmap(energy)(inside)
        found[name] = ring, start_entropy + change, bound

    def of(which: int, name: str) -> tuple[float, float]:
        values = found[name][which]
        return float(values.mean()), float(values.std()) / n_disc**0.5

    rows = [
        Row(
            f"entropy after {STEPS} steps, {name} (nats)",
            "picture only",
            f"{of(1, name)[0]:.2f}",
            f"± {of(1, name)[1]:.2f}, n = {n_disc}",
        )
        for name in found
    ]
    rows += [
        Row(
            f"bound E[−energy] + entropy, {name} (nats)",
            '"remains higher"' if name != "plain" else "lower",
            f"{of(2, name)[0]:.2f}",
            f"± {of(2, name)[1]:.2f}, n = {n_disc}",
        )
        for name in found
    ]
    gained = of(1, "entropy-friendly")[0] - of(1, "plain")[0]
    tighter = of(2, "entropy-friendly")[0] - of(2, "plain")[0]
    return Reproduction(
        tuple(rows),
        _figure(circle, {name: one[0] for name, one in found.items()}),
        {
            "n": n_disc,
            "start_entropy": start_entropy,
            **{f"entropy {name}": of(1, name) for name in found},
            **{f"bound {name}": of(2, name) for name in found},
        },
        f"after {STEPS} steps the entropy-friendly cloud keeps {gained:.2f} nats more entropy, "
        f"and its bound is {tighter:+.2f} nats from the plain one",
    )


def _figure(circle: Tensor, after: dict[str, Tensor]) -> Figure:
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    mu, s = torch.meshgrid(
        torch.linspace(-4, 4, 121, dtype=torch.float64),
        torch.linspace(-4, 4, 121, dtype=torch.float64),
        indexing="xy",
    )
    height = vmap(vmap(energy))(torch.stack([mu, s], 2))
    clouds = {"start": circle, **after}
    for axis, (name, points) in zip(axes, clouds.items(), strict=True):
        axis.contour(mu, s, (-height).exp(), levels=8, colors="0.5", linewidths=0.7)
        closed = torch.cat([points, points[:1]])
        axis.plot(closed[:, 0], closed[:, 1], ".-", markersize=2, linewidth=0.6)
        axis.set(title=name, xlabel="μ", xlim=(-4, 4), ylim=(-4, 4))
    axes[0].set_ylabel("s")
    return figure
