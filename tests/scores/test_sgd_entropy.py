"""The entropy of a descent: determinants, and the bound on a quadratic in closed form."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from nas_evidence.audit.known_problems import logistic_problem
from nas_evidence.evidence.network_density import flat_log_likelihood, spread_precision
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.scores.sampling_plan import EntropyPlan
from nas_evidence.scores.sgd_entropy import (
    LARGEST_EIGENVALUE,
    EntropyCurve,
    descend,
    one_product_bound,
    sgd_entropy_bound,
)

pytestmark = pytest.mark.slow


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
