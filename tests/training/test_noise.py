"""Prior precisions and noise together, and full matrices with several groups."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import case, laplace_value
from lone_trials import ended
from records import asked, mlp
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal
from torch.testing import assert_close

import nas_evidence
from nas_evidence.curvature import CurvaturePass, curvature_pass, curvature_passes
from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.exact_linear import log_evidence_of_linear, mode_of_linear
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
from nas_evidence.evidence.laplace import laplace_estimate, squared_norms
from nas_evidence.likelihoods import Fit, scales_of
from nas_evidence.likelihoods.gaussian import Gaussian, gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.maths.blocks import Dense
from nas_evidence.maths.structured import BlockDiagonal, FullKernel, FullMatrix
from nas_evidence.spec.study import Assignment, TrainingPlan
from nas_evidence.training import online
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.network import Network
from nas_evidence.training.online import passes_of, update_hyperparameters
from nas_evidence.training.own_loop import OnlineLaplace
from nas_evidence.training.parts import new_network, part_of
from nas_evidence.training.predict_rows import predict_rows
from nas_evidence.workers.trial import Trial


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


# --- Each of several real targets has a noise of its own, which updates learn


NOISES = (0.2, 1.2)


def two_targets(n: int = 60) -> tuple[Tensor, Tensor]:
    """Linear targets of which one has six times the noise of the other."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(n, 3, dtype=torch.float64, generator=draw)
    w = torch.randn(3, 2, dtype=torch.float64, generator=draw)
    noise = torch.randn(n, 2, dtype=torch.float64, generator=draw) * torch.tensor(NOISES)
    return x, x @ w + 0.3 + noise


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)


def put_at_mode(model: nn.Linear, x: Tensor, y: Tensor, loop: OnlineLaplace) -> None:
    each = torch.tensor([*loop.prior_precision.values()], dtype=torch.float64)[[0, 0, 0, 1]]
    noises = loop.noise_std if isinstance(loop.noise_std, tuple) else (loop.noise_std,) * 2
    for c, noise in enumerate(noises):
        mode = mode_of_linear(with_ones(x), y[:, c : c + 1], prior_precision=each, noise_std=noise)
        with torch.no_grad():
            model.weight[c], model.bias[c] = mode[:-1, 0], mode[-1, 0]


def closed_form(log_hyper: np.ndarray, x: Tensor, y: Tensor) -> float:
    """log p(y) with log δ of weights and bias, and log σ of each target."""
    each = torch.from_numpy(np.exp(log_hyper[:2]))[[0, 0, 0, 1]]
    return sum(
        log_evidence_of_linear(
            with_ones(x), y[:, c : c + 1], prior_precision=each, noise_std=math.exp(log_std)
        )
        for c, log_std in enumerate(log_hyper[2:])
    )


@pytest.mark.parametrize("curvature", ["full_ggn", "kfac_ggn", "block_ggn"])
def test_the_noise_of_each_target_of_a_linear_model_maximises_the_exact_evidence(
    curvature: str,
) -> None:
    x, y = two_targets()
    model = nn.Linear(3, 2).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    loop = nas_evidence.online_laplace(
        model, optimiser, (x, y),
        likelihood="gaussian", every=1, curvature=curvature,
    )  # fmt: skip
    for _ in range(40):
        put_at_mode(model, x, y, loop)
        loop.loss(model(x), y).backward()
        optimiser.step()
        loop.after_epoch()
    put_at_mode(model, x, y, loop)
    noises = loop.noise_std
    assert isinstance(noises, tuple)
    hyper = np.log([*loop.prior_precision.values(), *noises])
    if curvature == "full_ggn":
        assert loop.log_evidence() == pytest.approx(closed_form(hyper, x, y), rel=1e-10)
    best = minimize(lambda h: -closed_form(h, x, y), hyper, method="BFGS").x
    if curvature == "full_ggn":
        np.testing.assert_allclose(hyper, best, atol=2e-3)
        short = closed_form(best, x, y) - closed_form(hyper, x, y)
        assert short < 1e-5
    np.testing.assert_allclose(noises, NOISES, rtol=0.25)


@pytest.mark.parametrize("curvature", ["kfac_ggn_mc", "diag_ggn", "full_ggn"])
def test_the_evidence_does_not_fall_in_an_update_of_several_noises(curvature: str) -> None:
    x, y = two_targets(30)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    loop = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="gaussian", every=1, curvature=curvature,
        noise_std=[3.0, 0.3],
    )  # fmt: skip
    network, before = loop._network, -math.inf
    for _ in range(12):
        passes = passes_of(network)
        assert passes.followed.value >= before - 1e-9 * abs(before)
        before = passes.followed.value
        update_hyperparameters([passes])
    ratios = [abs(math.log(one)) for one in loop.noise_std]
    assert max(ratios) < 2  # both noises have come from where they began


def test_networks_side_by_side_with_noises_of_each_output_descend_as_each_alone() -> None:
    draw = torch.Generator().manual_seed(1)
    outputs = torch.randn(2, 5, 3, dtype=torch.float64, generator=draw).requires_grad_()
    targets = torch.randn(2, 5, 3, dtype=torch.float64, generator=draw)
    of_each = [gaussian([0.2, 1.0, 3.0]), gaussian(0.7)]
    scale, one = scales_of(of_each, targets), Gaussian(1.0)
    assert scale.shape == (2, 3)
    nll, back = one.descent(outputs.detach(), targets, 1 / 5, scale)
    written, slope = one.nll_and_slope(outputs.detach(), targets, scale)
    for k, alone in enumerate(of_each):
        expected = alone.nll_mean(outputs[k], targets[k])
        torch.testing.assert_close(nll[k], expected.detach())
        (gradient,) = torch.autograd.grad(alone.scale**2 * expected, outputs)
        torch.testing.assert_close(back[k], gradient[k])
        torch.testing.assert_close(slope[k], alone.residual(outputs[k], targets[k]))
        torch.testing.assert_close(written[k].mean(), expected.detach())
    means = one.nll(outputs, targets, scale, lambda each: each.mean(1))
    torch.testing.assert_close(means.detach(), nll)


def many_targets(n: int, n_outputs: int) -> tuple[Tensor, Tensor]:
    """Linear targets whose noises go from 0.1 to 2."""
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(n, 3, dtype=torch.float64, generator=draw)
    w = torch.randn(3, n_outputs, dtype=torch.float64, generator=draw)
    noise = torch.randn(n, n_outputs, dtype=torch.float64, generator=draw)
    return x, x @ w + noise * torch.logspace(-1, 0.3, n_outputs, dtype=torch.float64)


def learned_of_many(n_groups: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Network, int]:
    """Return a network of 9 outputs after six updates at fixed θ, and passes of the last."""
    monkeypatch.setattr(online, "MOST_GROUPS", n_groups)
    x, y = many_targets(60, 9)
    model = nn.Linear(3, 9).double()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
        model.bias.fill_(0.01)
    loop = nas_evidence.online_laplace(
        model, torch.optim.SGD(model.parameters(), lr=0.0), (x, y),
        likelihood="gaussian", curvature="full_ggn",
    )  # fmt: skip
    done: list[str] = []

    def counted(kind: str, *given: Any, **named: Any) -> list[CurvaturePass]:
        done.append(kind)
        return curvature_passes(kind, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(online, "curvature_passes", counted)
        for _ in range(6):
            done.clear()
            update_hyperparameters([passes_of(loop._network)])
    return loop._network, len(done)


def test_many_noises_take_four_passes_and_end_near_those_of_a_pass_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, n_few = learned_of_many(online.MOST_GROUPS, monkeypatch)
    each, n_each = learned_of_many(9, monkeypatch)
    assert (n_few, n_each) == (4, 9)
    short = passes_of(each).followed.value - passes_of(few).followed.value
    assert 0 <= short < 0.05
    np.testing.assert_allclose(few.likelihood.each_scale, each.likelihood.each_scale, rtol=0.01)


def test_a_target_that_is_constant_hides_no_gain_of_the_others() -> None:
    class Found(Fit):
        log_likelihood = 0.0
        squared_errors = (0.0, 5.0)

    y = torch.stack([torch.ones(40), torch.linspace(-1, 1, 40)], 1).double()
    varying = float((y[:, 1] - y[:, 1].mean()).square().sum())
    one = gaussian([0.5, 0.5])
    expected = 20 * math.log(varying / 5)
    assert one.gain(Found(), y, learned=True) == pytest.approx(expected)
    assert one.gain(Found(), y[:, [0, 0]], learned=True) == -math.inf


# --- Training where the noise of each row is an output of the network


def growing(n: int, n_test: int = 0, *, seed: int = 0, noise: float | None = None) -> TensorData:
    """y = sin 2x plus noise that grows from 0.1 to 1.1 with x, or one noise; standardised."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n + n_test, 1))
    std = 0.1 + 0.25 * (x + 2) if noise is None else noise
    y = np.sin(2 * x) + std * rng.normal(size=x.shape)
    mean, unit = y[:n].mean(), y[:n].std()
    x, y = (torch.from_numpy(part).float() for part in (x, (y - mean) / unit))
    moments = torch.tensor([mean]), torch.tensor([unit])
    return TensorData(x[:n], y[:n], x[n:], y[n:], "real", 1, (1,), *moments)


def trial_of(
    *estimators: str, width: int = 20, likelihood: str = "heteroscedastic", **plan: object
) -> Assignment:
    given = {"epochs": 30, "batch_size": 32, "optimiser": "adam", "learning_rate": 0.02} | plan
    facts = {"dataset": {"name": "diabetes"}, "likelihood": likelihood}
    return asked(mlp(depth=1, width=width), estimators, **facts, **given)


def test_the_head_has_two_outputs_for_each_target() -> None:
    data = growing(40)
    model = new_network(*part_of(None, data, trial_of(), "any")).model
    assert model(data.x_train).shape == (40, 2)
    assert TrainingPlan(likelihood="heteroscedastic").head_width(3) == 6
    assert [TrainingPlan(likelihood=name).head_width(3) for name in ("gaussian", "categorical")] \
        == [3, 3]  # fmt: skip


def test_an_update_raises_the_evidence_and_leaves_noise_and_temperature() -> None:
    data, given = growing(60), trial_of()
    state = new_network(*part_of(None, data, given, "any"))
    train_epoch(state, n_epochs=5)
    kind = given.plan.online.curvature

    def evidence() -> float:
        pass_ = passes_of(state).of(kind)[0]
        return laplace_estimate(kind, pass_, state.model, state.prior_precision).value

    before = evidence()
    update_hyperparameters([passes_of(state)])
    assert evidence() > before + 0.1
    assert state.noise_std == 1.0
    assert state.curve[-1].noise_std is None
    assert state.curve[-1].temperature is None


def test_the_gain_is_over_the_best_constant_mean_and_noise() -> None:
    data, given = growing(50), trial_of()
    state = new_network(*part_of(None, data, given, "any"))
    pass_ = curvature_pass(
        "diag_ggn", state.model, data.x_train, data.y_train, Heteroscedastic(), batch_size=50
    )
    y = data.y_train.double()
    best = Normal(y.mean(), y.std(correction=0)).log_prob(y).sum()
    found = Heteroscedastic().gain(pass_, data.y_train, learned=True)
    assert found == pytest.approx(pass_.log_likelihood - float(best))
    constant = torch.ones_like(data.y_train)
    assert Heteroscedastic().gain(pass_, constant, learned=True) == -math.inf


def test_only_absurd_losses_are_divergence() -> None:
    y = torch.zeros(4, 2).double()

    tau = 0.01**-2  # far from 0 softplus is the identity
    for error, absurd in ((90.0, False), (110.0, True)):
        outputs = torch.tensor([[tau * error] * 2 + [tau] * 2]).double().expand(4, 4)
        loss = float(Heteroscedastic().nll_mean(outputs, y))
        assert (loss > Heteroscedastic().loss_limit(2)) == absurd


def test_the_spread_is_that_of_the_row_and_of_the_mean_by_dense_algebra() -> None:
    data, given = growing(40), trial_of(width=4)
    state = new_network(*part_of(None, data, given, "any"))
    train_epoch(state, n_epochs=20)
    model = state.model.double().eval()
    x, names = data.x_train.double(), [name for name, _ in model.named_parameters()]
    jacobians = torch.func.vmap(
        torch.func.jacrev(lambda p, one: torch.func.functional_call(model, p, (one[None],))[0]),
        in_dims=(None, 0),
    )({n: p.detach() for n, p in model.named_parameters()}, x)
    j = torch.cat([jacobians[name].flatten(2) for name in names], 2)  # [n, 2, P]
    outputs = model(x).detach()
    roots = Heteroscedastic().hessian_roots(outputs)
    slopes = torch.func.vmap(torch.func.jacrev(Heteroscedastic().mean))(outputs)[:, 0]  # [n, 2]
    sizes = torch.tensor([p.numel() for p in model.parameters()])
    prior = state.prior_precision.repeat_interleave(sizes)
    columns = torch.einsum("knc,ncp->knp", roots, j).flatten(0, 1)
    precision = columns.mT @ columns + prior.diag()
    of_mean = torch.einsum("nc,ncp->np", slopes, j)
    of_mean = torch.einsum("np,pq,nq->n", of_mean, torch.linalg.inv(precision), of_mean)
    predict = predict_rows(state, x, data.y_train.double())
    assert_close(
        predict(x).spread[:, 0],
        (Heteroscedastic().variance(outputs)[:, 0] + of_mean).sqrt(),
        rtol=1e-6,
        atol=0,
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """Trials of both likelihoods on growing noise, and on one noise, finished."""
    found = {}
    for noise in (None, 0.3):
        data = growing(400, 4000, noise=noise)
        for likelihood in ("gaussian", "heteroscedastic"):
            given = trial_of("conditional_evidence", "kfac_ggn", likelihood=likelihood, epochs=60)
            trial = Trial.start(given, data, tmp_path_factory.mktemp("trial"))
            trial.record = ended(trial)  # type: ignore[attr-defined]
            found[f"{likelihood} {noise}"] = trial
    return found


def _per_datum(trial: Trial, name: str) -> float:
    estimate = trial.record.final_estimate(name)  # type: ignore[attr-defined]
    assert estimate.valid
    return float(estimate.per_datum)


@pytest.mark.long
@pytest.mark.slow
def test_conditional_evidence_tells_growing_noise_from_one_noise(pairs: dict[str, Trial]) -> None:
    name = "conditional_evidence"
    gain = [
        _per_datum(pairs[f"heteroscedastic {noise}"], name)
        - _per_datum(pairs[f"gaussian {noise}"], name)
        for noise in (None, 0.3)
    ]
    assert gain[0] > 0.1
    assert -0.05 < gain[1] < 0.05


@pytest.mark.long
@pytest.mark.slow
def test_intervals_cover_as_often_where_noise_is_small_as_where_it_is_large(
    pairs: dict[str, Trial],
) -> None:
    def coverage(likelihood: str) -> list[float]:
        trial = pairs[f"{likelihood} None"]
        data, state = trial.data, trial.network
        assert state is not None
        predict = predict_rows(state, data.x_train, data.y_train)
        found = predict(data.x_test).at(trial.record.spread_factor)  # type: ignore[attr-defined]
        mean, wide = found.outputs[:, 0].double(), found.spread[:, 0]
        covered = ((data.y_test[:, 0].double() - mean) / wide).abs() < 1.6449
        # Quarters by the predicted spread; of one noise by x, with which the true noise grows.
        by = wide if likelihood == "heteroscedastic" else data.x_test[:, 0]
        return [float(covered[rows].double().mean()) for rows in by.argsort().chunk(4)]

    assert all(0.83 < share < 0.97 for share in coverage("heteroscedastic"))
    first, *_, last = coverage("gaussian")
    assert first > 0.97
    assert last < 0.84


@pytest.mark.slow
def test_scores_and_metrics_of_several_targets_are_those_of_their_definition(
    tmp_path: Path,
) -> None:
    one = growing(50, 30)
    two = (torch.cat([part, -2 * part + 0.1], 1) for part in (one.y_train, one.y_test))
    y_train, y_test = two
    moments = torch.zeros(2).double(), torch.tensor([3.0, 0.5]).double()
    data = TensorData(one.x_train, y_train, one.x_test, y_test, "real", 2, (1,), *moments)
    names = ("diag_ggn", "sotl", "two_fold", "conditional_evidence")
    given = trial_of(*names, epochs=8, settle=0.0, online={"every": 4}, folds=2)
    trial = Trial.start(given, data, tmp_path)
    record = ended(trial)
    state = trial.network
    assert state is not None
    with torch.no_grad():
        outputs = state.model.eval()(data.x_test).double()
    assert outputs.shape == (30, 4)
    means = Heteroscedastic().mean(outputs)
    error = (means - data.y_test) * data.y_std
    assert record.test_rmse == pytest.approx(float(error.square().mean(0).sqrt().mean()), rel=1e-5)
    predict = predict_rows(state, data.x_train, data.y_train)
    spread = record.spread_factor * predict(data.x_test).spread
    nll = -Normal(means, spread).log_prob(data.y_test.double()).sum(1).mean()
    assert record.test_nll_per_datum == pytest.approx(float(nll), rel=1e-5)
    assert (record.noise_std, record.temperature) == (None, None)
    theta = squared_norms(state.model)
    assert theta.shape == state.prior_precision.shape
    for name in names:
        found = record.final_estimate(name)
        assert found is not None
        assert found.valid, (name, found.note)
    losses = [point.train_nll_per_datum for point in record.curve]
    found = record.final_estimate("sotl")
    assert found is not None
    assert found.value == pytest.approx(-sum(losses))
