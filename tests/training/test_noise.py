"""Prior precisions and noise together, and full matrices with several groups."""

import math

import numpy as np
import pytest
import torch
from cases import case, laplace_value
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from nas_evidence.curvature import CurvaturePass, curvature_pass
from nas_evidence.evidence.joint import (
    LOG_PRECISION_RANGE,
    LOG_VARIANCE_RANGE,
    Derivatives,
    Noise,
    Objective,
    SideBySide,
    fit_prior,
    fit_prior_and_noise,
    members_of,
    noise_of,
)
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.blocks import Dense
from nas_evidence.maths.structured import BlockDiagonal, FullKernel, FullMatrix


def _blr(n: int = 15, n_outputs: int = 2, seed: int = 0) -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator).double()
    truth = torch.randn(3, n_outputs, generator=generator).double()
    y = x @ truth + 0.5 + 0.4 * torch.randn(n, n_outputs, generator=generator).double()
    return nn.Linear(3, n_outputs).double(), x, y


def _exact(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Log evidence of Bayesian linear regression, z = (log δ weight, log δ bias, log s²)."""
    n = len(x)
    weight, bias, variance = z.exp()
    covariance = x @ x.T / weight + 1 / bias + variance * torch.eye(n).double()
    return MultivariateNormal(torch.zeros(n).double(), covariance).log_prob(y.T).sum()


def _to_mode(model: nn.Linear, x: Tensor, y: Tensor, z: Tensor) -> None:
    weight, bias, variance = z.detach().exp()
    features = torch.cat([x, torch.ones(len(x), 1).double()], 1)
    spread = torch.diag(torch.stack([weight, weight, weight, bias]))
    mode = torch.linalg.solve(features.T @ features / variance + spread, features.T @ y) / variance
    with torch.no_grad():
        model.weight.copy_(mode[:3].T)
        model.bias.copy_(mode[3])


def _at(objective: Objective, z: np.ndarray) -> Derivatives:
    """The derivatives of one network at z = (x, v)."""
    found = SideBySide.of([objective], learns_noise=True).at(z[None])
    return Derivatives(*(each[0] for each in found))


def _pass(kind: str, model: nn.Module, x: Tensor, y: Tensor, std: float = 1.0) -> CurvaturePass:
    return curvature_pass(kind, model, x, y, Gaussian(std), batch_size=4)


@pytest.mark.parametrize("n", [2, 15])  # kernel form; matrix form
def test_gradient_at_a_mode_is_that_of_the_exact_evidence(n: int) -> None:
    model, x, y = _blr(n)
    z = torch.tensor([0.3, -0.7, -1.1], dtype=torch.float64, requires_grad=True)
    _to_mode(model, x, y, z)
    exact = _exact(x, y, z)
    (expected,) = torch.autograd.grad(exact, z)
    passed = _pass("full_ggn", model, x, y, 0.9)
    assert isinstance(passed.curvature, FullKernel if n == 2 else FullMatrix)
    members = members_of("tensor", len(passed.curvature.names))
    objective = Objective(
        passed.curvature, squared_norms(model), members, noise_of("full_ggn", passed, 0.9)
    )
    found = _at(objective, z.detach().numpy())
    assert_close(found.value, exact.item(), rtol=1e-10, atol=0)
    assert_close(torch.from_numpy(found.gradient), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_alternating_with_the_mode_maximises_the_exact_evidence() -> None:
    model, x, y = _blr()
    delta, std = torch.ones(2).double(), 1.0
    members = members_of("tensor", 2)
    for _ in range(60):
        z = torch.cat([delta.log(), torch.tensor([2 * math.log(std)]).double()])
        _to_mode(model, x, y, z)
        passed = _pass("full_ggn", model, x, y)
        noise = noise_of("full_ggn", passed, 1.0)
        delta, std = fit_prior_and_noise(
            passed.curvature, squared_norms(model), delta, members=members, noise=noise
        )
    z = torch.cat([delta.log(), torch.tensor([2 * math.log(std)]).double()]).requires_grad_()
    (gradient,) = torch.autograd.grad(_exact(x, y, z), z)
    assert_close(gradient, torch.zeros(3).double(), rtol=0, atol=1e-6)
    assert 0.25 < std < 0.6  # the truth is 0.4


def _value(passed: CurvaturePass, kind: str, norms: Tensor, z: Tensor, kappa: float) -> Tensor:
    """The evidence, differentiable in z = (log δ, log s²)."""
    n_targets = passed.n_data * passed.n_outputs
    variance = z[-1].exp()
    fit = -0.5 * sum(passed.squared_errors) / variance
    fit = fit - 0.5 * n_targets * (2 * math.pi * variance).log()
    scale = kappa * variance ** (-2 if kind.endswith("ef") else -1)
    return laplace_value(kappa * fit, passed.curvature, norms, z[:-1].exp(), scale)


KINDS = ("diag_ggn", "kfac_ggn", "block_ggn", "full_ggn", "diag_ef", "kfac_ef", "full_ef")


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kappa", [1.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_autograds(kind: str, kappa: float) -> None:
    c = case("regression")
    passed, norms = _pass(kind, c.model, c.x, c.y), squared_norms(c.model)
    z = torch.tensor([0.1, -0.4, 1.2, 0.6, -0.8], dtype=torch.float64)
    members = members_of("tensor", len(passed.curvature.names))
    noise = noise_of(kind, passed, 1.0)
    found = _at(Objective(passed.curvature, norms, members, noise, kappa), z.numpy())

    def value(at: Tensor) -> Tensor:
        return _value(passed, kind, norms, at, kappa)

    assert_close(found.value, value(z).item(), rtol=1e-10, atol=0)
    gradient = torch.autograd.functional.jacobian(value, z)
    assert_close(torch.from_numpy(found.gradient), gradient, rtol=1e-8, atol=1e-10)
    hessian = torch.autograd.functional.hessian(value, z)
    assert_close(torch.from_numpy(found.hessian), hessian, rtol=1e-7, atol=1e-9)
    assert bool((torch.linalg.eigvalsh(hessian) < 0).all())  # concave


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("start", [1e-4, 1.0, 1e6])
@pytest.mark.parametrize("n", [2, 9])  # P = 26 parameters beside 4 and 18 targets
@pytest.mark.parametrize("kind", KINDS)
def test_newton_ends_where_the_gradient_is_zero(kind: str, n: int, start: float) -> None:
    c = case("regression")
    x, y = c.x[:n], c.y[:n]
    passed, norms = _pass(kind, c.model, x, y), squared_norms(c.model)
    members = members_of("tensor", len(passed.curvature.names))
    noise = noise_of(kind, passed, 1.0)
    first = torch.full((4,), start, dtype=torch.float64)
    delta, std = fit_prior_and_noise(passed.curvature, norms, first, members=members, noise=noise)
    z = np.append(delta.log().numpy(), 2 * math.log(std))
    gradient = _at(Objective(passed.curvature, norms, members, noise), z).gradient
    low = np.append(np.full(4, LOG_PRECISION_RANGE[0]), LOG_VARIANCE_RANGE[0])
    high = np.append(np.full(4, LOG_PRECISION_RANGE[1]), LOG_VARIANCE_RANGE[1])
    gradient = np.where((z <= low + 1e-12) & (gradient < 0), 0, gradient)
    gradient = np.where((z >= high - 1e-12) & (gradient > 0), 0, gradient)
    assert np.abs(gradient).max() < 1e-6
    assert -20 < z[-1] < 5  # and not at a bound of the noise


def test_more_effective_parameters_than_targets_is_no_trouble() -> None:
    """MacKay's update of the noise divides by N C − γ, which is negative here."""
    c = case("regression")
    x, y = c.x[:2], c.y[:2]
    passed, norms = _pass("diag_ggn", c.model, x, y), squared_norms(c.model)
    noise = noise_of("diag_ggn", passed, 1.0)
    members = members_of("scalar", len(passed.curvature.names))
    start = torch.full((4,), 1e-4, dtype=torch.float64)
    assert passed.curvature.effective_parameters(start).sum() > noise.n_targets
    delta, std = fit_prior_and_noise(passed.curvature, norms, start, members=members, noise=noise)
    gamma = passed.curvature.effective_parameters(delta * std**2).sum().item()
    expected = noise.squared_error / (noise.n_targets - gamma)
    assert_close(std**2, expected, rtol=1e-6, atol=0)  # holds at the maximum, as an equation


@pytest.mark.parametrize(("kind", "exponent"), [("diag_ggn", 1), ("diag_ef", 2)])
def test_mackays_equation_for_the_noise_holds(kind: str, exponent: int) -> None:
    c = case("regression")
    passed, norms = _pass(kind, c.model, c.x, c.y), squared_norms(c.model)
    kappa, members = 2.0, members_of("tensor", len(passed.curvature.names))
    noise = noise_of(kind, passed, 1.0)
    delta, std = fit_prior_and_noise(
        passed.curvature,
        norms,
        torch.ones(4),
        members=members,
        noise=noise,
        likelihood_power=kappa,
    )
    beside = delta * std ** (2 * exponent) / kappa
    gamma = passed.curvature.effective_parameters(beside).sum().item()
    expected = noise.squared_error / (noise.n_targets - exponent * gamma / kappa)
    assert_close(std**2, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("kind", "exponent"), [("kfac_ggn", 1), ("diag_ef", 2)])
def test_a_noise_at_its_lower_bound_has_the_precisions_that_are_best_there(
    kind: str, exponent: int
) -> None:
    c = case("regression")
    passed, norms = _pass(kind, c.model, c.x, c.y), squared_norms(c.model)
    members = members_of("tensor", len(passed.curvature.names))
    given = (passed.curvature, norms, torch.ones(4))
    noise = noise_of(kind, passed, 1.0)
    _, free = fit_prior_and_noise(*given, members=members, noise=noise)
    delta, std = fit_prior_and_noise(*given, members=members, noise=noise, least_std=2 * free)
    assert_close(std, 2 * free, rtol=1e-12, atol=0)
    scale = std ** (-2 * exponent)
    best = fit_prior(*given, members=members, curvature_scale=scale)
    assert_close(delta, best, rtol=1e-7, atol=0)
    _, below = fit_prior_and_noise(*given, members=members, noise=noise, least_std=0.5 * free)
    assert_close(below, free, rtol=1e-7, atol=0)


@pytest.mark.parametrize("kind", ["diag_ggn", "diag_ef", "kfac_ggn"])
def test_the_noise_of_the_pass_does_not_matter(kind: str) -> None:
    c = case("regression")
    norms, results = squared_norms(c.model), []
    for std in (1.0, 0.2):
        passed = _pass(kind, c.model, c.x, c.y, std)
        members = members_of("tensor", len(passed.curvature.names))
        noise = noise_of(kind, passed, std)
        results.append(
            fit_prior_and_noise(
                passed.curvature, norms, torch.ones(4), members=members, noise=noise
            )
        )
    assert_close(results[0][0], results[1][0], rtol=1e-5, atol=0)
    assert_close(results[0][1], results[1][1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("groups", ["tensor", "scalar"])
@pytest.mark.parametrize("n", [3, 9])
def test_full_matrix_and_kernel_have_one_optimum_by_groups(n: int, groups: str) -> None:
    c = case("regression")
    passed, norms = _pass("full_ggn", c.model, c.x[:n], c.y[:n]), squared_norms(c.model)
    kernel = passed.curvature
    assert isinstance(kernel, FullKernel)
    matrix = kernel.as_matrix()
    members = members_of(groups, len(kernel.names))
    noise = noise_of("full_ggn", passed, 1.0)
    found = [
        fit_prior_and_noise(s, norms, torch.ones(4), members=members, noise=noise)
        for s in (kernel, matrix)
    ]
    assert_close(found[0], found[1], rtol=1e-6, atol=0)
    # γ_l = P_l − δ_l tr[(H + D)⁻¹]_ll, summed over the members of a group, is δ ‖θ‖².
    (delta, std), sizes = found[1], torch.tensor(kernel.sizes)
    damped = matrix.matrix / std**2 + torch.diag(delta.repeat_interleave(sizes))
    inverse = torch.linalg.inv(damped)
    traces = torch.stack([part.sum() for part in inverse.diagonal().split(list(kernel.sizes))])
    slack = sizes - delta * traces - delta * norms
    sums = torch.zeros(4).double().index_add(0, torch.tensor(members), slack)
    assert_close(sums, torch.zeros(4).double(), rtol=0, atol=1e-5)


def test_blocks_by_themselves_miss_the_optimum_of_the_full_matrix() -> None:
    c = case("regression")
    norms, fits = squared_norms(c.model), []
    full = _pass("full_ggn", c.model, c.x, c.y)
    for kind in ("full_ggn", "block_ggn"):
        passed = _pass(kind, c.model, c.x, c.y)
        members, noise = (
            members_of("tensor", len(passed.curvature.names)),
            noise_of(kind, passed, 1.0),
        )
        delta, std = fit_prior_and_noise(
            passed.curvature, norms, torch.ones(4), members=members, noise=noise
        )
        z = torch.cat([delta.log(), torch.tensor([2 * math.log(std)], dtype=torch.float64)])
        fits.append(_value(full, "full_ggn", norms, z, 1.0))
    assert fits[0] > fits[1] + 1e-3


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["diag_ggn", "diag_ef", "kfac_ggn", "full_ggn"])
@pytest.mark.parametrize("highest_std", [0.5, math.inf])
@pytest.mark.parametrize("highest", [1e-3, 0.3, 3.0])
def test_with_upper_bounds_newton_finds_the_maximum_below_them(
    kind: str, highest: float, highest_std: float
) -> None:
    """Against a general optimiser with bounds, from the bounds and from below."""
    c = case("regression")
    passed, norms = _pass(kind, c.model, c.x, c.y), squared_norms(c.model)
    members = members_of("tensor", len(passed.curvature.names))
    noise = noise_of(kind, passed, 1.0)
    objective = Objective(passed.curvature, norms, members, noise)
    bounds = torch.tensor([1.0, 10.0, 0.1, 1.0], dtype=torch.float64) * highest
    variance = min(30.0, 2 * math.log(highest_std))
    expected = minimize(
        lambda z: -_at(objective, z).value,
        np.append(bounds.log().numpy(), min(0.0, variance)),
        jac=lambda z: -_at(objective, z).gradient,
        bounds=[(-12.0, bound) for bound in bounds.log().tolist()] + [(-30.0, variance)],
        method="L-BFGS-B",
        options={"ftol": 1e-14, "gtol": 1e-9},
    )
    for start in (bounds, 1e-3 * bounds):
        delta, std = fit_prior_and_noise(
            passed.curvature, norms, start, members=members, noise=noise, highest=bounds,
            highest_std=highest_std,
        )  # fmt: skip
        assert std <= highest_std
        assert bool((delta <= bounds * (1 + 1e-12)).all())
        value = _at(objective, np.append(delta.log().numpy(), 2 * math.log(std))).value
        assert_close(value, -float(expected.fun), rtol=0, atol=1e-6)


def test_dead_groups_go_to_the_bounds_or_stay_and_do_not_stop_the_others() -> None:
    matrix = torch.diag(torch.tensor([1.0, 0.0, 0.0, 2.0, 1.0], dtype=torch.float64))
    names, sizes = ("unused", "flat", "neither", "live"), (1, 1, 1, 2)
    blocks = BlockDiagonal(names, tuple(Dense(matrix[i:j, i:j]) for i, j in
                                        ((0, 1), (1, 2), (2, 3), (3, 5))))  # fmt: skip
    norms = torch.tensor([0.0, 1.0, 0.0, 4.0], dtype=torch.float64)
    low, high = (math.exp(bound) for bound in LOG_PRECISION_RANGE)
    noise = Noise(squared_error=5.0, n_targets=20, exponent=1, pass_std=1.0)
    members = members_of("tensor", len(names))
    for structure in (blocks, FullMatrix(names, sizes, matrix)):
        found, std = fit_prior_and_noise(
            structure, norms, torch.full((4,), 3.0), members=members, noise=noise
        )
        assert_close(found[:3], torch.tensor([high, low, 3.0], dtype=torch.float64))
        gamma = structure.effective_parameters(found * std**2)
        assert_close(gamma[3], found[3] * 4, rtol=1e-6, atol=0)


def test_a_perfect_fit_stops_at_the_bound_of_the_noise() -> None:
    curvature = BlockDiagonal(("w",), (Dense(torch.eye(2).double()),))
    noise = Noise(squared_error=0.0, n_targets=9, exponent=1, pass_std=1.0)
    _, std = fit_prior_and_noise(
        curvature, torch.ones(1), torch.ones(1), members=(0,), noise=noise
    )
    assert_close(2 * math.log(std), LOG_VARIANCE_RANGE[0])
