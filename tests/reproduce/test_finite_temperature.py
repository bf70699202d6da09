"""Finite temperature: equipartition, the closed form of test losses, and who is best."""

import pytest
import reproduced  # noqa: F401, before the scripts
import torch
from densities import differentiable
from torch import Tensor

from nas_evidence.evidence.network_density import gaussian_density
from nas_evidence.maths.hmc import Path
from nas_evidence_reproduce._finite_temperature import (
    HeatPlan,
    Tempered,
    at_finite_temperature,
    temperatures,
)


def flat(positions: Tensor) -> tuple[Tensor, Tensor]:
    return positions.new_zeros(len(positions)), torch.zeros_like(positions)


def loss(w: Tensor) -> Tensor:
    return (w - 1).square().sum(1)


@pytest.mark.long
@pytest.mark.slow
def test_energies_and_losses_have_their_closed_forms(generator: torch.Generator) -> None:
    """E = ½ k w², prior N(0, 1): precision 1 + k / T; within 5 errors of two moments."""
    stiffness = torch.tensor([4.0, 25.0], dtype=torch.float64)
    path = Path(
        gaussian_density(torch.ones(2).double()),
        differentiable(lambda w: -0.5 * (stiffness * w.square()).sum(1)),
    )
    plan = HeatPlan(6, 0.1, 10.0, n_burn_in=100, n_samples=1600, n_leapfrog=8)
    found = at_finite_temperature(
        path, torch.zeros(6, 2).double(), test_loss=loss, plan=plan, generator=generator
    )
    variance = 1 / (1 + stiffness / temperatures(plan)[:, None])
    for (mean, error), expected in (
        (found.mean_energy(), 0.5 * (stiffness * variance).sum(1)),
        (found.mean_loss(), (variance + 1).sum(1)),
    ):
        assert bool(((mean - expected).abs() < 5 * error).all()), (mean, error, expected)
        assert bool((error < 0.15 * expected).all())
    assert bool(((found.acceptance > 0.5) & (found.acceptance < 0.98)).all())
    assert found.swap_probability > 0.2


@pytest.mark.slow
def test_a_box_confines_every_replica(generator: torch.Generator) -> None:
    box = torch.full((2,), 0.5, dtype=torch.float64)
    path = Path(flat, differentiable(lambda w: -0.5 * (w - 3).square().sum(1)), box)
    seen: list[float] = []

    def watch(w: Tensor) -> Tensor:
        seen.append(float(w.abs().max()))
        return loss(w)

    plan = HeatPlan(3, 0.1, 10.0, n_burn_in=20, n_samples=16, n_leapfrog=20)
    at_finite_temperature(
        path, torch.zeros(3, 2).double(), test_loss=watch, plan=plan, generator=generator
    )
    assert 0.3 < max(seen) <= 0.5


def test_the_best_temperature_and_those_that_may_be_as_good() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([3.0, 1.0, 1.001, 2.0], dtype=torch.float64)
    losses = mean + 0.05 * torch.randn(800, 4, generator=generator).double()
    kelvin = torch.tensor([0.1, 1.0, 2.0, 10.0], dtype=torch.float64)
    found = Tempered(kelvin, losses, losses, torch.ones(4), 1.0)
    best, low, high = found.best()
    assert best in (1.0, 2.0)
    assert (low, high) == (1.0, 2.0)
    with pytest.raises(ValueError, match="`highest` must be above `lowest`"):
        temperatures(HeatPlan(8, 2.0, 1.0, n_burn_in=8, n_samples=8, n_leapfrog=8))
