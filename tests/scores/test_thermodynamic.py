"""Two ways to sample the evidence, against closed forms and quadrature."""

import math

import pytest
import scipy.optimize
import torch
from densities import differentiable
from messages import refused
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from nas_evidence.audit.known_problems import logistic_problem
from nas_evidence.evidence.network_density import flat_log_likelihood, spread_precision
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.scores.sampling_plan import EntropyPlan, LadderPlan, SweepPlan
from nas_evidence.scores.sgd_entropy import (
    LARGEST_EIGENVALUE,
    EntropyCurve,
    descend,
    one_product_bound,
    sgd_entropy_bound,
)
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


# --- the entropy of a descent: determinants, and the bound on a quadratic in closed form


def symmetric(size: int, largest: float, generator: torch.Generator) -> Tensor:
    vectors = torch.linalg.qr(torch.randn(size, size, generator=generator).double())[0]
    return (vectors * torch.linspace(-0.5, largest, size).double()) @ vectors.T


def test_the_mean_over_probes_is_minus_trace_minus_trace_of_the_square(
    generator: torch.Generator,
) -> None:
    """All 2^5 signs are the whole distribution, so the mean is exact, and below log|I - A|."""
    a = symmetric(5, 0.6, generator)
    root = torch.rand(5, generator=generator).double()
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 5)
    values = torch.stack([one_product_bound(lambda u: a @ u, r, root)[0] for r in signs])
    scaled = root[:, None] * a * root
    expected = -scaled.trace() - (scaled @ scaled).trace()
    torch.testing.assert_close(values.mean(), expected)
    assert expected < torch.linalg.slogdet(torch.eye(5) - scaled)[1]


def test_one_product_equals_the_two_of_the_paper(generator: torch.Generator) -> None:
    a = symmetric(6, 0.5, generator)
    r0 = torch.randn(6, generator=generator).double()
    r1 = r0 - a @ r0
    r2 = r1 - a @ r1
    value, _ = one_product_bound(lambda u: a @ u, r0, torch.ones(6).double())
    torch.testing.assert_close(value, r0 @ (-2 * r0 + 3 * r1 - r2))


def test_the_largest_eigenvalue_is_where_the_bound_meets_the_logarithm() -> None:
    def gap(x: float) -> float:
        return math.log(1 - x) + x + x * x

    assert gap(LARGEST_EIGENVALUE) >= 0 > gap(LARGEST_EIGENVALUE + 1e-4)


def problem() -> tuple[nn.Linear, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Model, data, precision [3], Hessian K [3, 3] and minimum m [3] of the nll; noise 0.7."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(12, 2, generator=generator).double()
    y = torch.randn(12, 1, generator=generator).double()
    features = torch.cat([x, torch.ones(12, 1).double()], 1)
    precision = torch.tensor([0.8, 0.8, 2.0], dtype=torch.float64)
    k = features.T @ features / 0.49
    m = torch.linalg.solve(k, features.T @ y / 0.49)[:, 0]
    return nn.Linear(2, 1).double(), x, y, precision, k, m


def log_evidence(x: Tensor, y: Tensor, precision: Tensor) -> float:
    features = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    covariance = features @ torch.diag(1 / precision) @ features.T + 0.49 * torch.eye(len(x))
    return MultivariateNormal(torch.zeros(len(x)).double(), covariance).log_prob(y[:, 0]).item()


def expected_bound(k: Tensor, m: Tensor, precision: Tensor, a: Tensor, best: float) -> Tensor:
    """log p(D, theta) in the mean plus entropy, theta = m + A^t (theta_0 - m), after A = A^t."""
    covariance = a @ torch.diag(1 / precision) @ a.T
    mean = m - a @ m
    nll = -best + 0.5 * ((a @ m) @ k @ (a @ m) + (k @ covariance).trace())
    moments = mean.square() + covariance.diagonal()
    log_prior = 0.5 * ((precision / (2 * math.pi)).log() - precision * moments).sum()
    entropy = 0.5 * (1 + (2 * math.pi / precision).log()).sum() + torch.linalg.slogdet(a)[1]
    return log_prior - nll + entropy


@pytest.mark.parametrize("exact", [True, False])
def test_a_quadratic_has_the_closed_form_at_every_step(
    exact: bool, generator: torch.Generator
) -> None:
    model, x, y, precision, k, m = problem()
    with torch.no_grad():
        model.weight.copy_(m[:2][None])
        model.bias.copy_(m[2:])
        best = float(Gaussian(0.7).log_likelihood(model(x), y))
    log_likelihood, *data = flat_log_likelihood(model, x, y, Gaussian(0.7))
    plan = EntropyPlan(learning_rate=0.05, n_steps=10, n_seeds=200, exact=exact)
    curve = descend(
        log_likelihood, *data, prior_precision=precision, plan=plan, generator=generator
    )
    jacobian = torch.eye(3).double() - 0.05 / 12 * k
    truth = log_evidence(x, y, precision)
    error = curve.bounds.std(0) / 200**0.5
    for i, t in enumerate(curve.steps):
        a = torch.linalg.matrix_power(jacobian, t)
        expected = expected_bound(k, m, precision, a, best)
        assert float(expected) < truth
        mean = float(curve.bounds[:, i].mean())
        if exact:
            assert abs(mean - float(expected)) < 5 * error[i]
            entropy = curve.entropy[:, i]
            torch.testing.assert_close(entropy, entropy[:1].expand(200))
            change = torch.linalg.slogdet(a)[1]
            torch.testing.assert_close(entropy[0] - curve.entropy[0, 0], change)
        else:
            assert mean < float(expected) + 5 * error[i]
    largest = float(torch.linalg.eigvalsh(0.05 / 12 * k)[-1])
    assert curve.largest == pytest.approx(largest, rel=1e-8)


@pytest.mark.crossed
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("threshold", [None, 2.0])
def test_the_bound_holds_and_is_not_far(
    batch_size: int | None, threshold: float | None, generator: torch.Generator
) -> None:
    model, x, y, precision, _, _ = problem()
    truth = log_evidence(x, y, precision)
    plan = EntropyPlan(
        learning_rate=0.03, n_steps=50, n_seeds=64, batch_size=batch_size, threshold=threshold
    )
    estimate = sgd_entropy_bound(
        model, x, y, likelihood=Gaussian(0.7), prior_precision=precision[1:],
        plan=plan, generator=generator,
    )  # fmt: skip
    assert estimate.valid
    assert estimate.standard_error < 0.5
    assert estimate.value < truth + 5 * estimate.standard_error
    assert estimate.value > truth - 4
    terms = {term.term: term.value for term in estimate.terms}
    assert 0 < terms["best_step"] < 50


def test_the_entropy_friendly_jacobian_is_that_of_its_step(generator: torch.Generator) -> None:
    """log|I - A| of the draw against autograd through the step g - g0 tanh(g / g0)."""
    model, x, y, precision, k, m = problem()
    log_likelihood, *data = flat_log_likelihood(model, x, y, Gaussian(0.7))
    plan = EntropyPlan(learning_rate=0.05, n_steps=1, n_seeds=4, exact=True, threshold=3.0)
    curve = descend(
        log_likelihood, *data, prior_precision=precision, plan=plan, generator=generator
    )
    again = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, dtype=torch.float64, generator=again) * precision.rsqrt()

    def step(theta: Tensor) -> Tensor:
        g = k @ (theta - m)
        return theta - 0.05 / 12 * (g - 3 * (g / 3).tanh())

    changes = [
        torch.linalg.slogdet(torch.autograd.functional.jacobian(step, theta))[1] for theta in start
    ]
    torch.testing.assert_close(curve.entropy[:, 1] - curve.entropy[:, 0], torch.stack(changes))


def test_a_step_too_long_is_no_bound_and_says_what_would_do(generator: torch.Generator) -> None:
    model, x, y, _, _, _ = problem()
    ask = {"likelihood": Gaussian(0.7), "prior_precision": 1.0, "generator": generator}
    plan = EntropyPlan(learning_rate=0.3, n_steps=30, n_seeds=4)
    estimate = sgd_entropy_bound(model, x, y, plan=plan, **ask)
    assert not estimate.valid
    rate = float(estimate.note.split("learning_rate = ")[1].split(" ")[0])
    slower = sgd_entropy_bound(
        model, x, y, plan=plan.model_copy(update={"learning_rate": rate}), **ask
    )
    assert slower.valid, slower.note


def test_full_hessians_whose_steps_fold_the_space_are_no_bound() -> None:
    """Two points that meet have less entropy than the mean log|I - A| says: here by a nat."""
    problem = logistic_problem("logistic-2", 0)
    ask = {"likelihood": Categorical(), "prior_precision": 0.5}
    given = (problem.model, problem.x, problem.y)
    plan = EntropyPlan(learning_rate=36.0, n_steps=10, n_seeds=500, exact=True)
    folded = sgd_entropy_bound(
        *given, plan=plan, generator=torch.Generator().manual_seed(1), **ask
    )
    assert folded.value > problem.truth + 5 * folded.standard_error
    assert not folded.valid
    assert "above 1: no bound" in folded.note
    short = plan.model_copy(update={"learning_rate": 3.0})
    kept = sgd_entropy_bound(*given, plan=short, generator=torch.Generator().manual_seed(1), **ask)
    assert kept.valid
    assert kept.value < problem.truth + 5 * kept.standard_error


def test_the_largest_eigenvalue_is_never_less_than_that_of_the_whole_hessian() -> None:
    """Of a network with 58 parameters at its first step; the power iteration begins there."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(20, 4, generator=generator).double()
    y = torch.randint(0, 2, (20,), generator=generator)
    log_likelihood, *data = flat_log_likelihood(model, x, y, Categorical())
    precision = spread_precision(model, 1.0)
    found = {}
    for exact in (True, False):
        plan = EntropyPlan(learning_rate=0.3, n_steps=1, n_seeds=8, exact=exact)
        again = torch.Generator().manual_seed(4)
        found[exact] = descend(
            log_likelihood, *data, prior_precision=precision, plan=plan, generator=again
        ).largest
    assert found[True] <= found[False] < 1.5 * found[True]


@pytest.mark.parametrize("stop", [True, False])
def test_a_descent_stops_after_the_maximum_and_its_bound_is_the_same(stop: bool) -> None:
    model, x, y, precision, _, _ = problem()
    log_likelihood, *data = flat_log_likelihood(model, x, y, Gaussian(0.7))
    plan = EntropyPlan(learning_rate=0.1, n_steps=100, n_seeds=32, stop=stop, exact=True)
    curve = descend(
        log_likelihood, *data, prior_precision=precision, plan=plan,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    whole = plan.model_copy(update={"stop": False})
    other = descend(
        log_likelihood, *data, prior_precision=precision, plan=whole,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert (curve.steps[-1] < 60) == stop
    torch.testing.assert_close(curve.best()[0], other.best()[0])
    assert curve.best()[1] == other.best()[1] < curve.steps[-1]


def test_the_last_positions_are_an_ensemble_of_the_implicit_distribution() -> None:
    """On a quadratic q_t is N(m - A^t m, A^2t / delta); mean and covariance of 4,000 draws."""
    model, x, y, precision, k, m = problem()
    log_likelihood, *data = flat_log_likelihood(model, x, y, Gaussian(0.7))
    plan = EntropyPlan(learning_rate=0.05, n_steps=6, n_seeds=4000, stop=False)
    draws = descend(
        log_likelihood, *data, prior_precision=precision, plan=plan,
        generator=torch.Generator().manual_seed(0),
    ).positions  # fmt: skip
    a = torch.linalg.matrix_power(torch.eye(3).double() - 0.05 / 12 * k, 6)
    covariance = a @ torch.diag(1 / precision) @ a.T
    error = covariance.diagonal().sqrt() / 4000**0.5
    assert bool(((draws.mean(0) - (m - a @ m)).abs() < 5 * error).all())
    spread = covariance.diagonal().sqrt()
    scale = spread[:, None] * spread
    assert bool(((draws.T.cov() - covariance).abs() < 5 * scale * (2 / 4000) ** 0.5).all())


def test_the_best_step_is_chosen_on_other_draws() -> None:
    """Noise without a trend: the maximum of the mean is above 0, the value is not."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(300, 20, 50, dtype=torch.float64, generator=generator)
    steps = tuple(range(50))
    values, highest = [], []
    for bounds in noise:
        curve = EntropyCurve(steps, bounds, torch.zeros_like(bounds), 0.1, bounds[:, :1])
        values.append(curve.best()[0].mean())
        highest.append(bounds.mean(0).max())
    means = torch.stack(values)
    assert abs(means.mean()) < 5 * means.std() / 300**0.5
    assert torch.stack(highest).mean() > 0.3
