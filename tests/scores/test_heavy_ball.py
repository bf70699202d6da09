"""The joint entropy of the heavy ball: in closed form on a quadratic, and a bound."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.distributions import MultivariateNormal

from nas_evidence.audit.known_problems import (
    entropy_bound_of_linear,
    linear_problem,
    logistic_problem,
)
from nas_evidence.curvature.likelihood import Categorical
from nas_evidence.evidence.network_density import flat_log_likelihood, spread_precision
from nas_evidence.scores.heavy_ball import HeavyBallCurve, descend_with_momentum, heavy_ball_bound
from nas_evidence.scores.sampling_plan import EntropyPlan, MomentumPlan

pytestmark = pytest.mark.slow
PLAN = MomentumPlan(learning_rate=0.05, momentum=0.8, n_steps=8, n_seeds=4000)


def followed(plan: MomentumPlan = PLAN) -> tuple[HeavyBallCurve, Tensor, Tensor, Tensor, float]:
    """The curve on linear regression, with K and m of its nll, δ, and the log evidence."""
    problem = linear_problem("p", 0, n_data=12, n_features=2, n_outputs=1)
    log_likelihood, *data = flat_log_likelihood(
        problem.model, problem.x, problem.y, problem.likelihood
    )
    delta = spread_precision(problem.model, problem.precision)
    curve = descend_with_momentum(
        log_likelihood, *data, prior_precision=delta, plan=plan,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    phi = torch.cat([problem.x, torch.ones(12, 1).double()], 1)
    k = phi.T @ phi / 0.25
    m = torch.linalg.solve(k, phi.T @ problem.y / 0.25)[:, 0]
    return curve, k, m, delta, problem.truth


def test_a_quadratic_has_the_moments_and_the_entropy_of_its_linear_map() -> None:
    """(θ − m, v) is Gaussian at each t: its velocities, and its entropy by the covariance."""
    curve, k, m, delta, _ = followed()
    eye = torch.eye(3).double()
    rate = 0.05 / 12
    step = torch.cat([
        torch.cat([eye - rate * k, 0.8 * eye], 1), torch.cat([-rate * k, 0.8 * eye], 1),
    ])  # fmt: skip
    mean = torch.cat([-m, torch.zeros(3).double()])
    covariance = torch.diag(torch.cat([1 / delta, 0.01 / delta]))
    for i, t in enumerate(curve.steps):
        power = torch.linalg.matrix_power(step, t)
        now = power @ covariance @ power.T
        entropy = MultivariateNormal(torch.zeros(6).double(), now).entropy()
        torch.testing.assert_close(curve.entropy[i], entropy)
        error = now.diagonal()[3:].sqrt() / 4000**0.5
        found = curve.velocity[:, i].mean(0)
        assert bool(((found - (power @ mean)[3:]).abs() < 5 * error).all())


def test_the_jacobian_of_a_step_is_the_momentum_to_the_power_of_the_parameters() -> None:
    """Also where the curvature is not constant, and where the step is far too long."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(7, 2, generator=generator).double()
    y = torch.randint(0, 2, (7,), generator=generator)
    log_likelihood, *data = flat_log_likelihood(model, x, y, Categorical())

    def step(both: Tensor) -> Tensor:
        theta, v = both[:12], both[12:]
        g = torch.func.grad(lambda flat: -log_likelihood(flat, *data))(theta)
        after = 0.7 * v - 50.0 * g
        return torch.cat([theta + after, after])

    both = torch.randn(24, generator=generator).double()
    found = torch.linalg.slogdet(jacobian(step, both))[1]
    assert float(found) == pytest.approx(12 * math.log(0.7), rel=1e-9)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_the_bound_holds_at_every_step(batch_size: int | None) -> None:
    curve, _, _, _, truth = followed(PLAN.model_copy(update={"batch_size": batch_size}))
    bounds = curve.bounds
    error = bounds.std(0) / 4000**0.5
    assert bool((bounds.mean(0) < truth + 5 * error).all())
    assert bounds.mean(0).max() > truth - 12


def test_it_holds_with_steps_that_fold_plain_descent() -> None:
    problem = logistic_problem("logistic-2", 0)
    plan = MomentumPlan(learning_rate=36.0, n_steps=10, n_seeds=1000)
    estimate = heavy_ball_bound(
        problem.model, problem.x, problem.y, likelihood=Categorical(), prior_precision=0.5,
        plan=plan, generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    assert estimate.valid
    assert estimate.standard_error is not None
    assert estimate.value < problem.truth + 5 * estimate.standard_error


def test_the_velocities_of_one_half_do_not_set_their_own_density() -> None:
    """Pure noise, two draws of each half: fitted to themselves they would gain nats."""
    generator = torch.Generator().manual_seed(2)
    gains = []
    for _ in range(200):
        velocity = torch.randn(20, 1, 30, generator=generator).double()
        zeros = torch.zeros(20, 1).double()
        entropy = torch.tensor([30 * 0.5 * (1 + math.log(2 * math.pi))]).double()
        gains.append(HeavyBallCurve((0,), zeros, entropy, velocity).bounds.mean())
    found = torch.stack(gains)
    assert found.mean() + 5 * found.std() / 200**0.5 < 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_tighter_than_plain_descent_on_linear_regression(seed: int) -> None:
    """12 parameters: 4 to 7 nats below the truth, plain descent in expectation 9 to 15."""
    problem = linear_problem("linear-12", seed, n_data=40, n_features=5, n_outputs=2)
    rates = (0.005, 0.01, 0.05)
    plain = max(
        entropy_bound_of_linear(problem, EntropyPlan(learning_rate=rate)) for rate in rates
    )
    found = heavy_ball_bound(
        problem.model, problem.x, problem.y, likelihood=problem.likelihood,
        prior_precision=problem.precision, generator=torch.Generator().manual_seed(seed),
        plan=MomentumPlan(learning_rate=0.005),
    )  # fmt: skip
    error = found.standard_error or 0.0
    assert plain + 3 * error < found.value < problem.truth + 3 * error
