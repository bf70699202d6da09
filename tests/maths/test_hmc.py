"""HMC with replica exchange: reversible, second order, and right in distribution."""

import pytest
import torch
from densities import differentiable
from torch import Tensor

from nas_evidence.maths.hmc import (
    Path,
    Replicas,
    Tuning,
    exchange,
    hmc_step,
    leapfrog,
    replicas_at,
    warm_up,
)

pytestmark = pytest.mark.slow


def flat(positions: Tensor) -> tuple[Tensor, Tensor]:
    return positions.new_zeros(len(positions)), torch.zeros_like(positions)


def quartic() -> Path:
    """A density that is neither Gaussian nor separable."""
    return Path(
        base=differentiable(lambda w: -0.5 * w.square().sum(1)),
        tilt=differentiable(lambda w: -(w.sum(1).square() - w[:, 0]).square()),
    )


def sample(
    path: Path,
    betas: Tensor,
    *,
    size: int,
    n_nodes: int,
    n_samples: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Positions and tilts [n_samples, R, P], [n_samples, R] after burn-in, with swaps."""
    start = 0.3 * torch.randn(len(betas), size, dtype=torch.float64, generator=generator)
    ones = torch.ones(len(betas), dtype=torch.float64)
    tuning = Tuning(0.1 * ones, torch.ones_like(start), 5)

    def swap(state: Replicas, n: int) -> Replicas:
        odd = n % 2 == 1
        return exchange(state, betas=betas, n_nodes=n_nodes, odd=odd, generator=generator)[0]

    state, tuning = warm_up(
        path, replicas_at(path, start), betas=betas, tuning=tuning, n_trajectories=90,
        generator=generator, between=swap, pools=n_nodes,
    )  # fmt: skip
    positions, tilts, accepted = [], [], []
    for n in range(n_samples):
        state, probability = hmc_step(path, state, betas=betas, tuning=tuning, generator=generator)
        state = swap(state, n)
        positions.append(state.positions)
        tilts.append(state.tilt)
        accepted.append(probability)
    rate = torch.stack(accepted).mean(0)
    assert bool(((rate > 0.6) & (rate < 0.97)).all()), rate
    return torch.stack(positions), torch.stack(tilts)


def test_leapfrog_runs_backwards_to_where_it_came_from(generator: torch.Generator) -> None:
    path = quartic()
    start = replicas_at(path, torch.randn(5, 3, dtype=torch.float64, generator=generator))
    momenta = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    betas = torch.linspace(0, 1, 5, dtype=torch.float64)
    move = torch.full((5, 3), 0.03, dtype=torch.float64)
    there, final = leapfrog(path, start, momenta, betas=betas, move=move, n_steps=50)
    assert (there.positions - start.positions).abs().max() > 0.1
    back, first = leapfrog(path, there, -final, betas=betas, move=move, n_steps=50)
    torch.testing.assert_close(back.positions, start.positions, rtol=0, atol=1e-10)
    torch.testing.assert_close(-first, momenta, rtol=0, atol=1e-10)


def test_energy_error_falls_with_the_square_of_the_step(generator: torch.Generator) -> None:
    path = quartic()
    start = replicas_at(path, torch.randn(20, 3, dtype=torch.float64, generator=generator))
    momenta = torch.randn(20, 3, dtype=torch.float64, generator=generator)
    betas = torch.ones(20, dtype=torch.float64)
    errors = []
    for n_steps in (200, 400):
        move = torch.full((20, 3), 0.4 / n_steps, dtype=torch.float64)
        end, final = leapfrog(path, start, momenta, betas=betas, move=move, n_steps=n_steps)
        before = -start.base - start.tilt + 0.5 * momenta.square().sum(1)
        after = -end.base - end.tilt + 0.5 * final.square().sum(1)
        errors.append((after - before).abs())
    torch.testing.assert_close(errors[0] / errors[1], torch.full_like(betas, 4), rtol=0.05, atol=0)


def test_mean_energy_is_half_a_temperature_for_each_dimension_with_swaps_on(
    generator: torch.Generator,
) -> None:
    """Equipartition, <E>_T = d T / 2; within 5 standard errors at each temperature."""
    temperatures = torch.tensor([0.1, 0.3, 1.0, 3.0, 10.0], dtype=torch.float64)
    stiffness = torch.tensor([0.5, 2.0, 30.0], dtype=torch.float64)
    path = Path(flat, differentiable(lambda w: -0.5 * (stiffness * w.square()).sum(1)))
    betas = (1 / temperatures).repeat(40)
    _, tilts = sample(path, betas, size=3, n_nodes=5, n_samples=150, generator=generator)
    means = -tilts.mean(0).view(40, 5)  # one of each ladder, independent
    errors = means.std(0) / 40**0.5
    assert bool((errors < 0.05 * temperatures).all()), errors
    deviation = (means.mean(0) - 1.5 * temperatures) / errors
    assert bool((deviation.abs() < 5).all()), deviation


def test_a_bimodal_density_is_sampled_in_proportion(generator: torch.Generator) -> None:
    """Distance between the distribution functions of draws and density, over 4 of its errors.

    The modes hold 0.7 and 0.3 and are 5 apart: only swaps with the flat end get across.
    """
    weights = torch.tensor([0.7, 0.3], dtype=torch.float64)
    centres = torch.tensor([-2.0, 3.0], dtype=torch.float64)

    def two_modes(w: Tensor) -> Tensor:
        return (weights.log() - 2 * (w - centres).square()).logsumexp(1)

    path = Path(
        base=differentiable(lambda w: -0.02 * w.square().sum(1)),
        tilt=differentiable(lambda w: two_modes(w) + 0.02 * w.square().sum(1)),
    )
    betas = torch.linspace(0, 1, 6, dtype=torch.float64).repeat(40)
    positions, _ = sample(path, betas, size=1, n_nodes=6, n_samples=120, generator=generator)
    draws = positions.view(120, 40, 6)[:, :, -1]
    at = torch.linspace(-3, 4, 15, dtype=torch.float64)
    shares = (draws[..., None] < at).double().mean(0)  # [chains, at]
    cdf = (weights * torch.special.ndtr(2 * (at[:, None] - centres))).sum(1)
    errors = shares.std(0) / 40**0.5 + 1e-4
    assert errors.max() < 0.04
    assert bool(((shares.mean(0) - cdf).abs() < 4 * errors).all()), shares.mean(0) - cdf


def test_a_trajectory_that_meets_walls_keeps_its_energy_and_runs_backwards(
    generator: torch.Generator,
) -> None:
    """Some walls are met several times in one step."""
    box = torch.tensor([0.4, 1.0, 0.1], dtype=torch.float64)
    path = Path(differentiable(lambda w: -0.5 * w.square().sum(1)), flat, box)
    draws = 2 * torch.rand(6, 3, dtype=torch.float64, generator=generator) - 1
    start = replicas_at(path, draws * box)
    momenta = 3 * torch.randn(6, 3, dtype=torch.float64, generator=generator)
    given = {"betas": torch.zeros(6).double(), "n_steps": 40}
    move = torch.full((6, 3), 0.05, dtype=torch.float64)
    there, final = leapfrog(path, start, momenta, move=move, **given)
    assert bool((there.positions.abs() <= box).all())
    back, first = leapfrog(path, there, -final, move=move, **given)
    torch.testing.assert_close(back.positions, start.positions, rtol=0, atol=1e-9)
    torch.testing.assert_close(-first, momenta, rtol=0, atol=1e-9)
    before = -start.base + 0.5 * momenta.square().sum(1)
    after = -there.base + 0.5 * final.square().sum(1)
    torch.testing.assert_close(after, before, rtol=0.1, atol=0)


def test_swaps_stay_within_a_ladder_and_move_whole_replicas(generator: torch.Generator) -> None:
    path = quartic()
    state = replicas_at(path, torch.randn(12, 2, dtype=torch.float64, generator=generator))
    betas = torch.tensor([0.0, 1e-9, 1e-8], dtype=torch.float64).repeat(4)  # always accepted
    for odd, expected in ((False, [1, 0, 2]), (True, [0, 2, 1])):
        after, probability = exchange(state, betas=betas, n_nodes=3, odd=odd, generator=generator)
        order = torch.tensor([3 * k + i for k in range(4) for i in expected])
        torch.testing.assert_close(after.positions, state.positions[order])
        torch.testing.assert_close(after.tilt_gradient, state.tilt_gradient[order])
        assert len(probability) == 4
    again = replicas_at(path, after.positions)
    torch.testing.assert_close(after.base, again.base)
    torch.testing.assert_close(after.base_gradient, again.base_gradient)


@pytest.mark.parametrize("scale", [1e-2, 1e2])
def test_warm_up_finds_step_and_scale(scale: float, generator: torch.Generator) -> None:
    spread = scale * torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    path = Path(differentiable(lambda w: -0.5 * (w / spread).square().sum(1)), flat)
    betas = torch.zeros(20, dtype=torch.float64)
    start = replicas_at(path, spread * torch.randn(20, 3, dtype=torch.float64))
    tuning = Tuning(torch.ones(20).double() * scale, torch.ones(20, 3).double(), 8)
    _, found = warm_up(
        path, start, betas=betas, tuning=tuning, n_trajectories=150, generator=generator, pools=1
    )
    relative = found.scale / spread
    assert float((relative.log() - relative.log().mean()).abs().max()) < 0.5
    assert bool(((found.step_size > 0.2) & (found.step_size < 3)).all())


@pytest.mark.parametrize("reflects", [True, False])
def test_a_box_is_filled_by_its_density_whether_walls_reflect_or_reject(
    reflects: bool, generator: torch.Generator
) -> None:
    """A Gaussian cut at ±1 and ±2: its variance is 1 − 2 a φ(a) / (2 Φ(a) − 1)."""
    box = torch.tensor([1.0, 2.0], dtype=torch.float64)
    gaussian = differentiable(lambda w: -0.5 * w.square().sum(1))
    path = Path(gaussian, flat, box, reflects)
    ones = torch.ones(400, dtype=torch.float64)
    tuning = Tuning(0.4 * ones, torch.ones(400, 2, dtype=torch.float64), 4)
    state, squares = replicas_at(path, torch.zeros(400, 2, dtype=torch.float64)), []
    for n in range(150):
        state, probability = hmc_step(path, state, betas=ones, tuning=tuning, generator=generator)
        assert bool((state.positions.abs() <= box).all())
        if n >= 30:
            squares.append(state.positions.square().mean(0))
    normal = torch.distributions.Normal(0.0, 1.0)
    density = normal.log_prob(box.float()).exp().double()
    inside = 2 * normal.cdf(box.float()).double() - 1
    expected = 1 - 2 * box * density / inside
    blocks = torch.stack(squares).view(12, 10, 2).mean(1)
    error = blocks.std(0) / 12**0.5
    assert bool(((blocks.mean(0) - expected).abs() < 5 * error + 1e-3).all())
    assert bool((probability == 0).any()) != reflects
