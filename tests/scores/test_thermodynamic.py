"""Two ways to sample the evidence, against closed forms and quadrature."""

import math

import pytest
import scipy.optimize
import torch
from densities import differentiable
from messages import refused
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.scores.sampling_plan import LadderPlan, SweepPlan
from nas_evidence.scores.temperature_ladder import (
    LadderSamples,
    acceptance_ratio,
    corrected_trapezium,
    inverse_temperatures,
    sampled_ladders,
    temperature_ladder_evidence,
)
from nas_evidence.scores.thermodynamic import (
    Reference,
    fitted_reference,
    swept,
    thermodynamic_evidence,
)

pytestmark = pytest.mark.slow

LADDER = LadderPlan(n_ladders=10, n_nodes=12, n_burn_in=45, n_samples=40, n_leapfrog=5)
SWEEP = SweepPlan(n_chains=12, n_nodes=6, n_burn_in=40, n_settle=5, n_samples=10, n_leapfrog=5)
ERRORS = 5.0  # that a value may be off by, in its own standard errors


def near(values: Tensor, truth: float, *, at_most: float) -> None:
    """The mean of independent values is near the truth, and sure to `at_most` nats."""
    error = float(values.std()) / len(values) ** 0.5
    assert error < at_most, error
    assert abs(float(values.mean()) - truth) < ERRORS * error, (values.mean(), truth, error)


def linear_regression() -> tuple[nn.Linear, Tensor, Tensor, Tensor, float]:
    """Model at its mode, data, precision of weight and bias, log evidence; noise 0.4."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(10, 2, dtype=torch.float64, generator=generator)
    y = torch.randn(10, 1, dtype=torch.float64, generator=generator)
    features = torch.cat([x, torch.ones(10, 1).double()], 1)
    precision = torch.tensor([0.5, 2.0], dtype=torch.float64)
    prior = torch.diag(torch.tensor([0.5, 0.5, 2.0], dtype=torch.float64))
    covariance = features @ prior.inverse() @ features.T + 0.16 * torch.eye(10).double()
    truth = MultivariateNormal(torch.zeros(10).double(), covariance).log_prob(y[:, 0]).item()
    mode = torch.linalg.solve(features.T @ features / 0.16 + prior, features.T @ y / 0.16)
    model = nn.Linear(2, 1).double()
    with torch.no_grad():
        model.weight.copy_(mode[:2].T)
        model.bias.copy_(mode[2])
    return model, x, y, precision, truth


def quartic(w: Tensor) -> Tensor:
    return -(w[:, 0] ** 4) + 1.5 * w[:, 0]


def quartic_integral(half_width: float, precision: float = 0.0) -> float:
    grid = torch.linspace(-half_width, half_width, 200_001, dtype=torch.float64)
    values = quartic(grid[:, None]) - 0.5 * precision * grid**2
    return math.log(torch.trapezoid(values.exp(), grid).item())


def test_the_corrected_trapezium_is_exact_for_cubics() -> None:
    nodes = inverse_temperatures(7)
    coefficients = torch.tensor([[0.3, -1.0, 2.0, 4.0]], dtype=torch.float64)
    powers = torch.arange(4, dtype=torch.float64)
    values = coefficients @ nodes ** powers[:, None]
    slopes = (coefficients[:, 1:] * powers[1:]) @ nodes ** powers[:3, None]
    integral = corrected_trapezium(nodes, values, slopes)
    torch.testing.assert_close(integral, (coefficients / (powers + 1)).sum(1))
    assert float((nodes[0] - 0).abs() + (nodes[-1] - 1).abs()) == 0


def test_both_quadratures_agree_on_gaussian_log_likelihoods() -> None:
    """U ~ N(u_β, v) with du/dβ = v is the log likelihood of a model linear in one statistic."""
    generator = torch.Generator().manual_seed(0)
    nodes, variance = inverse_temperatures(9), 0.3
    noise = torch.randn(4000, 6, 9, dtype=torch.float64, generator=generator)
    values = -2.0 + variance * nodes + variance**0.5 * noise
    samples = LadderSamples(values, acceptance=1.0, swap_probability=1.0)
    near(samples.log_evidence(), -2 + variance / 2, at_most=0.01)
    near(samples.integral(), -2 + variance / 2, at_most=0.01)


def test_the_acceptance_ratio_of_two_gaussians_is_that_of_their_constants() -> None:
    """p = exp(-w^2 / 2), p' = 5 exp(-2 (w - 1)^2): log Z' / Z = log 5 - log 2; 12 pairs."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(2, 4000, 12, dtype=torch.float64, generator=generator)

    def ratio(w: Tensor) -> Tensor:
        return math.log(5) - 2 * (w - 1).square() + 0.5 * w.square()

    found = acceptance_ratio(ratio(noise[0]), ratio(1 + 0.5 * noise[1]))
    near(found, math.log(5) - math.log(2), at_most=0.02)
    shifted = acceptance_ratio(ratio(noise[0]) + 7, ratio(1 + 0.5 * noise[1]) + 7)
    torch.testing.assert_close(shifted, found + 7)
    back = acceptance_ratio(-ratio(1 + 0.5 * noise[1]), -ratio(noise[0]))
    torch.testing.assert_close(back, -found)


def test_the_acceptance_ratio_is_the_root_of_its_equation() -> None:
    before, after = torch.tensor([0.3, -2.0, 5.0]).double(), torch.tensor([1.0, 9.0, 4.0]).double()

    def gap(delta: float) -> float:
        return float((before - delta).sigmoid().sum() - (delta - after).sigmoid().sum())

    expected = scipy.optimize.brentq(gap, -50, 50, xtol=1e-13)
    assert float(acceptance_ratio(before, after)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("noise_std", [0.03, 0.01])
def test_small_noise_is_right_or_not_valid(noise_std: float) -> None:
    """The integral over temperatures is 1.4 nats too high at noise 0.01, with a valid error."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, dtype=torch.float64, generator=generator)
    features = torch.cat([x, torch.ones(12, 1).double()], 1)
    w = torch.randn(3, 1, dtype=torch.float64, generator=generator)
    y = features @ w + noise_std * torch.randn(12, 1, dtype=torch.float64, generator=generator)
    covariance = features @ features.T + noise_std**2 * torch.eye(12).double()
    truth = MultivariateNormal(torch.zeros(12).double(), covariance).log_prob(y[:, 0]).item()
    estimate = temperature_ladder_evidence(
        nn.Linear(2, 1).double(), x, y, likelihood=Gaussian(noise_std), prior_precision=1.0,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    assert estimate.valid
    assert estimate.standard_error < 0.3
    assert abs(estimate.value - truth) < ERRORS * estimate.standard_error
    integral = next(term.value for term in estimate.terms if term.term == "integral")
    assert (integral > truth + 1) == (noise_std == 0.01)


@pytest.mark.parametrize("wrong", [0.25, 1.0, 5.0])
def test_a_quadratic_is_right_for_any_stiffness(wrong: float, generator: torch.Generator) -> None:
    true = torch.tensor([0.5, 3.0, 40.0], dtype=torch.float64)
    log_joint = differentiable(lambda w: -0.5 * (true * (w - 0.2).square()).sum(1) - 7)
    reference = Reference(torch.full((3,), 0.2, dtype=torch.float64), wrong * true)
    draws = Reference(reference.centre, true).draws(SWEEP.n_chains, generator)
    sweeps = swept(log_joint, reference, draws, plan=SWEEP, generator=generator)
    truth = -7 + 0.5 * float((2 * math.pi / true).log().sum())
    values = torch.cat([sweeps.forward, sweeps.backward])
    if wrong == 1:  # the path is constant
        torch.testing.assert_close(values, torch.full_like(values, truth), rtol=0, atol=1e-9)
    else:
        near(values, truth, at_most=0.15)
        assert abs(sweeps.hysteresis) < ERRORS * sweeps.hysteresis_error


def test_a_quartic_meets_quadrature_from_both_estimators(generator: torch.Generator) -> None:
    centre = torch.zeros(1, dtype=torch.float64)
    log_joint = differentiable(lambda w: quartic(w) - 0.5 * w[:, 0] ** 2)
    reference, posterior = fitted_reference(
        log_joint, centre, scale=torch.ones(1).double(), half_width=None, plan=SWEEP,
        generator=generator,
    )  # fmt: skip
    sweeps = swept(log_joint, reference, posterior, plan=SWEEP, generator=generator)
    truth = quartic_integral(6.0, precision=1.0)
    near(torch.cat([sweeps.forward, sweeps.backward]), truth, at_most=0.05)
    samples = sampled_ladders(
        differentiable(quartic), torch.ones(1).double(), plan=LADDER, generator=generator
    )
    near(samples.log_evidence(), truth - 0.5 * math.log(2 * math.pi), at_most=0.05)
    near(samples.integral(), truth - 0.5 * math.log(2 * math.pi), at_most=0.05)


def test_the_reference_in_a_box_off_centre_is_normalised(generator: torch.Generator) -> None:
    centre = torch.tensor([0.9, -0.2], dtype=torch.float64)
    stiffness = torch.tensor([2.0, 0.1], dtype=torch.float64)
    half_width = torch.tensor([1.0, 1.5], dtype=torch.float64)
    reference = Reference(centre, stiffness, half_width)
    expected = 0.0
    for c, k, a in zip(centre, stiffness, half_width, strict=True):
        grid = torch.linspace(-float(a), float(a), 100_001, dtype=torch.float64)
        density = (-0.5 * k * (grid - c).square()).exp()
        expected += math.log(torch.trapezoid(density, grid).item())
    assert reference.log_normaliser() == pytest.approx(expected, abs=1e-8)
    draws = reference.draws(20_000, generator)
    assert bool((draws.abs() <= half_width).all())
    grid = torch.linspace(-1, 1, 100_001, dtype=torch.float64)
    density = (-(grid - 0.9).square()).exp()
    mean = torch.trapezoid(grid * density, grid) / torch.trapezoid(density, grid)
    assert abs(draws[:, 0].mean() - mean) < ERRORS * draws[:, 0].std() / 20_000**0.5


def test_a_box_off_centre_meets_quadrature(generator: torch.Generator) -> None:
    """The box cuts the density where it is high; centred on c it would hold another integral."""
    centre = torch.tensor([0.6], dtype=torch.float64)
    box = torch.tensor([0.8], dtype=torch.float64)
    log_joint = differentiable(quartic)
    reference, posterior = fitted_reference(
        log_joint, centre, scale=box, half_width=box, plan=SWEEP, generator=generator
    )
    sweeps = swept(log_joint, reference, posterior, plan=SWEEP, generator=generator)
    values = torch.cat([sweeps.forward, sweeps.backward])
    near(values, quartic_integral(0.8), at_most=0.05)


@pytest.mark.slow
def test_a_uniform_prior_wide_enough_is_a_flat_one(generator: torch.Generator) -> None:
    """Inside the box the integral of the likelihood is Gaussian; the walls are far away."""
    model, x, y, _, _ = linear_regression()
    features = torch.cat([x, torch.ones(10, 1).double()], 1)
    hessian = features.T @ features / 0.16
    mode = torch.linalg.solve(hessian, features.T @ y / 0.16)
    with torch.no_grad():
        model.weight.copy_(mode[:2].T)
        model.bias.copy_(mode[2])
        best = float(Gaussian(0.4).log_likelihood(model(x), y))
    log_det = float(torch.linalg.slogdet(hessian / (2 * math.pi))[1])
    truth = best - 0.5 * log_det - 3 * math.log(2 * 3.0)
    estimate = thermodynamic_evidence(
        model, x, y, likelihood=Gaussian(0.4), half_width=3.0, plan=SWEEP, generator=generator
    )
    assert estimate.valid
    assert estimate.standard_error < 0.25
    assert abs(estimate.value - truth) < ERRORS * estimate.standard_error


def test_chains_without_time_to_follow_are_not_valid(generator: torch.Generator) -> None:
    model, x, y, precision, _ = linear_regression()
    with torch.no_grad():
        model.weight += 3.0
    short = SweepPlan(n_chains=30, n_nodes=2, n_burn_in=1, n_settle=1, n_samples=2, n_leapfrog=1)
    estimate = thermodynamic_evidence(
        model, x, y, likelihood=Gaussian(0.4), prior_precision=precision, plan=short,
        generator=generator,
    )  # fmt: skip
    assert not estimate.valid
    assert "hysteresis" in estimate.note


def test_too_few_temperatures_are_not_valid(generator: torch.Generator) -> None:
    model, x, y, precision, _ = linear_regression()
    short = LadderPlan(n_ladders=4, n_nodes=3, n_burn_in=20, n_samples=20, n_leapfrog=4)
    estimate = temperature_ladder_evidence(
        model, 30 * x, y, likelihood=Gaussian(0.1), prior_precision=precision, plan=short,
        generator=generator,
    )  # fmt: skip
    assert "more nodes" in estimate.note
    assert not estimate.valid


def test_impossible_questions_are_refused(generator: torch.Generator) -> None:
    model, x, y, _, _ = linear_regression()
    ask = {"likelihood": Gaussian(0.4), "generator": generator}
    with pytest.raises(ValueError, match="either `prior_precision` or `half_width`"):
        thermodynamic_evidence(model, x, y, **ask)
    with refused("parameters-outside-box", 3):
        thermodynamic_evidence(model, x, y, half_width=1e-3, **ask)
    with pytest.raises(ValueError, match="finite values > 0"):
        temperature_ladder_evidence(model, x, y, prior_precision=-1.0, **ask)
    with pytest.raises(ValueError, match="same number of rows"):
        temperature_ladder_evidence(model, x, y[:5], prior_precision=1.0, **ask)
    with pytest.raises(ValueError, match="Gaussian targets"):
        temperature_ladder_evidence(model, x, y[:, 0], prior_precision=1.0, **ask)
