"""RMin: minima in closed form, energies that never rise, replicas that do not see each other."""

import itertools

import pytest
import reproduced  # noqa: F401, before the scripts
import torch
from densities import differentiable
from torch import Tensor

from nas_evidence_reproduce._rmin import rmin

STIFFNESS = torch.tensor([1.0, 30.0, 1000.0], dtype=torch.float64)
CENTRE = torch.tensor([0.3, -2.0, 1.0], dtype=torch.float64)
quadratic = differentiable(lambda w: -0.5 * (STIFFNESS * (w - CENTRE).square()).sum(1))
rosenbrock = differentiable(
    lambda w: -((1 - w[:, 0]).square() + 100 * (w[:, 1] - w[:, 0].square()).square())
)


def starts(count: int, size: int) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.slow
def test_a_quadratic_is_minimised_in_spite_of_its_condition() -> None:
    found = rmin(quadratic, starts(4, 3), n_steps=4000, tolerance=1e-6)
    assert found.energies.max() <= 1e-6
    torch.testing.assert_close(found.positions, CENTRE.expand(4, 3), atol=2e-3, rtol=0)
    assert found.n_steps < 4000


def test_a_network_fits_its_training_data_from_any_start() -> None:
    """Eight points, four hidden units: as the paper reports, energies of nearly 0."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, generator=generator).double()
    sign = 1 - 2 * torch.randint(0, 2, (8,), generator=generator).double()

    def log_likelihood(w: Tensor) -> Tensor:
        inner = torch.tanh(torch.einsum("nd,rdh->rnh", x, w[:, :24].view(-1, 3, 8)))
        outer = torch.einsum("rnh,rh->rn", inner, w[:, 24:32])
        return torch.nn.functional.logsigmoid(sign * outer).sum(1)

    found = rmin(differentiable(log_likelihood), starts(6, 32), n_steps=500, tolerance=1e-3)
    assert found.energies.max() <= 1e-3
    assert found.n_steps < 500


def test_the_steps_are_those_of_the_algorithm() -> None:
    """By hand in one dimension, E = ½ w² from w = 1: Verlet, then a rise that is taken back."""
    density = differentiable(lambda w: -0.5 * w.square().sum(1))
    one = torch.ones(1, 1, dtype=torch.float64)
    first = rmin(density, one, n_steps=1, first_step=0.5)
    assert float(first.positions) == pytest.approx(1 - 0.5 * 0.5 * 0.5)
    p = -0.5 * 0.5 * 1 - 0.5 * 0.5 * 0.875
    second = rmin(density, one, n_steps=2, first_step=0.5)
    expected = 0.875 + 0.525 * (p - 0.5 * 0.525 * 0.875)
    assert float(second.positions) == pytest.approx(expected)
    back = rmin(density, one, n_steps=1, first_step=3.0)  # to 1 − 4.5
    assert float(back.positions) == 1.0
    assert int(back.n_accepted) == 0


@pytest.mark.slow
def test_energies_never_rise_and_replicas_are_independent() -> None:
    start = starts(5, 2)
    energies = [rmin(rosenbrock, start, n_steps=n).energies for n in (1, 10, 100, 500)]
    for before, after in itertools.pairwise(energies):
        assert bool((after <= before).all())
    alone = torch.cat([rmin(rosenbrock, row[None], n_steps=100).positions for row in start])
    torch.testing.assert_close(alone, rmin(rosenbrock, start, n_steps=100).positions)


@pytest.mark.slow
def test_nothing_leaves_the_box() -> None:
    box = torch.tensor([0.2, 3.0, 3.0], dtype=torch.float64)
    inside = starts(3, 3).clamp(-0.1, 0.1)
    found = rmin(quadratic, inside, n_steps=3000, half_width=box)
    assert bool((found.positions.abs() <= box).all())
    with pytest.raises(ValueError, match="`start` must lie within"):
        rmin(quadratic, 10 * inside, half_width=0.01 * box)
    with pytest.raises(ValueError, match="`first_step > 0`"):
        rmin(quadratic, inside, first_step=0.0)
