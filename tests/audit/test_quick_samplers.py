"""Samplers and bounds on problems so small that seconds are enough; the rest is in slow tests."""

import math

import pytest
import torch
from torch import Tensor

from nas_evidence.audit.known_problems import exact_ensembles, linear_problem
from nas_evidence.evidence.network_density import gaussian_density
from nas_evidence.maths.hmc import Path, Tuning, exchange, hmc_step, replicas_at
from nas_evidence.scores.sample_then_optimise import sample_then_optimise_evidence
from nas_evidence.scores.sampling_plan import EnsemblePlan
from nas_evidence.scores.sgd_entropy import _prior_entropy, one_product_bound
from nas_evidence.scores.temperature_ladder import (
    LadderSamples,
    corrected_trapezium,
    inverse_temperatures,
)

#: U = −½ A w², prior N(0, 1): at β the density is N(0, 1 / (1 + β A)).
A = 30.0
N = 4000


def tilt(positions: Tensor) -> tuple[Tensor, Tensor]:
    return -0.5 * A * positions.square().sum(1), -A * positions


PATH = Path(gaussian_density(torch.ones(1).double()), tilt)


def exact_draws(betas: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(len(betas), 1, dtype=torch.float64, generator=generator)
    return noise / (1 + A * betas[:, None]).sqrt()


def test_trajectories_leave_the_density_as_it_is(generator: torch.Generator) -> None:
    """Steps so long that a third are rejected."""
    betas = torch.zeros(N).double()
    state = replicas_at(PATH, exact_draws(betas, generator))
    tuning = Tuning(1.6 * torch.ones(N).double(), torch.ones(N, 1).double(), 3)
    for _ in range(5):
        state, accepted = hmc_step(PATH, state, betas=betas, tuning=tuning, generator=generator)
    assert 0.3 < float(accepted.mean()) < 0.95
    assert float(state.positions.square().mean()) == pytest.approx(1, abs=5 * math.sqrt(2 / N))


def test_swaps_leave_both_densities_as_they_are(generator: torch.Generator) -> None:
    betas = torch.tensor([0.0, 1.0]).double().repeat(N)
    state = replicas_at(PATH, exact_draws(betas, generator))
    for _ in range(3):
        state, _ = exchange(state, betas=betas, n_nodes=2, odd=False, generator=generator)
    squares = state.positions[:, 0].square().view(N, 2).mean(0)
    for found, exact in zip(squares.tolist(), (1.0, 1 / (1 + A)), strict=True):
        assert found == pytest.approx(exact, rel=5 * math.sqrt(2 / N))


def test_ratios_of_neighbours_add_up_to_the_evidence(generator: torch.Generator) -> None:
    betas = inverse_temperatures(8).repeat(N)
    values = tilt(exact_draws(betas, generator))[0].view(N, 1, 8)
    found = LadderSamples(values, 1.0, 1.0)
    exact = -0.5 * math.log(1 + A)
    assert float(found.log_evidence()) == pytest.approx(exact, abs=0.1)


def test_the_corrected_trapezium_is_exact_for_a_cubic() -> None:
    nodes = torch.tensor([0.0, 0.3, 1.0]).double()
    found = corrected_trapezium(nodes, nodes**3 - nodes, 3 * nodes**2 - 1)
    assert float(found) == pytest.approx(0.25 - 0.5)


def test_the_bound_by_one_product_has_its_second_order() -> None:
    root, probe = torch.ones(4).double(), torch.tensor([1.0, -1, 1, 1]).double()
    bound, image = one_product_bound(lambda u: 0.3 * u, probe, root)
    assert float(bound) == pytest.approx(-4 * (0.3 + 0.09))
    assert float(bound) < 4 * math.log(1 - 0.3)
    torch.testing.assert_close(image, 0.3 * probe)


def test_the_first_entropy_is_that_of_the_prior() -> None:
    delta = torch.tensor([0.5, 4.0]).double()
    exact = torch.distributions.Normal(0.0, delta.rsqrt()).entropy().sum()
    assert _prior_entropy(delta) == pytest.approx(float(exact))


@pytest.mark.slow
def test_ensembles_have_the_mean_of_exact_draws() -> None:
    """L_k with two draws, and with one: L, whose mean depends on the spread of the draws."""
    problem = linear_problem("p", 1, n_data=2, n_features=1, n_outputs=1)
    for n_draws in (1, 2):
        plan = EnsemblePlan(n_runs=24, n_draws=n_draws, n_chunks=1)
        found = sample_then_optimise_evidence(
            problem.model, problem.x, problem.y, likelihood=problem.likelihood,
            prior_precision=problem.precision, generator=torch.Generator().manual_seed(0),
            plan=plan,
        )  # fmt: skip
        mean, error = exact_ensembles(problem, plan, torch.Generator().manual_seed(1), n_runs=600)
        assert found.standard_error is not None
        assert abs(found.value - mean) < 4 * math.hypot(error, found.standard_error)


def test_members_that_agree_have_their_own_likelihood() -> None:
    """Under a prior that leaves no choice, two members are one."""
    problem = linear_problem("p", 1, n_data=6, n_features=1, n_outputs=1)
    found = sample_then_optimise_evidence(
        problem.model, problem.x, problem.y, likelihood=problem.likelihood,
        prior_precision=1e12, generator=torch.Generator().manual_seed(0),
        plan=EnsemblePlan(n_runs=2, n_draws=2, n_chunks=2),
    )  # fmt: skip
    exact = problem.likelihood.log_likelihood(torch.zeros_like(problem.y), problem.y)
    assert found.value == pytest.approx(float(exact), rel=1e-4)
