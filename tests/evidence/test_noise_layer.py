"""Conditional evidence of a last layer whose outputs are mean and noise of real targets."""

import math
import re

import pytest
import torch
from messages import refused
from torch import Tensor
from torch.distributions import MultivariateNormal

from nas_evidence.audit.known_problems import noise_problem
from nas_evidence.evidence import noise_layer
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.evidence.softmax_layer import LastLayer
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.cost import too_costly


def _problem(n: int, d: int, n_targets: int = 1, seed: int = 0) -> tuple[LastLayer, Tensor]:
    """Features with a last column of ones; the noise depends on the first one."""
    random = torch.Generator().manual_seed(seed)
    phi = torch.randn(n, d, dtype=torch.float64, generator=random)
    phi[:, -1] = 1.0
    a = torch.randn(d, n_targets, dtype=torch.float64, generator=random) / math.sqrt(d)
    noise = torch.randn(n, n_targets, dtype=torch.float64, generator=random)
    tau = _tau(1 + 2 * phi[:, :1])
    y = phi @ a / tau + tau.rsqrt() * noise
    precision = 0.5 + torch.rand(d, dtype=torch.float64, generator=random)
    return LastLayer(phi, torch.zeros(2 * n_targets, d).double(), precision), y


def _tau(z: Tensor) -> Tensor:
    return 0.01 + (1 + (z + math.log(math.expm1(0.99))).exp()).log()


def _log_density(phi: Tensor, y: Tensor, delta: Tensor, b: Tensor, power: float) -> Tensor:
    """log ∫ p(y|a, b)^κ p(a) da of one target by the n x n covariance of y."""
    variance = 1 / _tau(phi @ b)
    of_mean = variance[:, None] * phi  # y = aᵀφ / τ + noise
    covariance = (of_mean / delta) @ of_mean.mT + torch.diag(variance / power)
    exact = MultivariateNormal(torch.zeros(len(y)).double(), covariance).log_prob(y)
    each = (1 - power) / 2 * (2 * math.pi * variance).log() - 0.5 * math.log(power)
    return exact + each.sum()


def _by_dense_algebra(layer: LastLayer, y: Tensor, n_early: int, power: float) -> float:
    """log q(D) − log q(D_early): the mode by Newton's method with whole Hessians."""
    delta = layer.precision

    def log_q(n: int, target: Tensor, b: Tensor) -> tuple[float, Tensor]:
        phi = layer.features[:n]

        def joint(b: Tensor) -> Tensor:
            fit = _log_density(phi, target[:n], delta, b, power)
            return fit - 0.5 * (delta * b.square()).sum()

        curvature = 0.5 * power * phi.mT @ phi + torch.diag(delta)
        for _ in range(200):
            slope = torch.autograd.functional.jacobian(joint, b)
            whole = -torch.autograd.functional.hessian(joint, b)
            matrix = whole if float(torch.linalg.eigvalsh(whole)[0]) > 0 else curvature
            step, size = torch.linalg.solve(matrix, slope), 1.0
            while joint(b + size * step) < joint(b) and size > 1e-9:
                size /= 2
            b = b + size * step
            if float(slope @ step) < 1e-18:
                break
        whole = -torch.autograd.functional.hessian(joint, b)
        ratio = torch.linalg.slogdet(whole)[1] - delta.log().sum()
        return float(joint(b) - 0.5 * ratio), b

    total = 0.0
    for target in y.mT:
        early, b = log_q(n_early, target, torch.zeros_like(delta))
        total += log_q(len(y), target, b)[0] - early
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "d", "n_targets", "power"),
    [(50, 3, 1, 1.0), (30, 3, 2, 1.0), (40, 5, 1, 1.7), (24, 30, 1, 1.0)],
)
def test_the_value_is_that_of_dense_algebra(n: int, d: int, n_targets: int, power: float) -> None:
    layer, y = _problem(n, d, n_targets)
    found = late_given_early(layer, y, n * 4 // 5, Heteroscedastic(), power=power)
    exact = _by_dense_algebra(layer, y, n * 4 // 5, power)
    assert found.value == pytest.approx(exact, abs=1e-5)
    assert found.standard_error is None


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_twelve_data_given_twelve_are_close_to_their_integral(seed: int) -> None:
    """Both weights are integrated on a grid; docs/reference/estimators.md has the bound."""
    whole, half = (noise_problem("noise-2", seed, n) for n in (24, 12))
    layer = last_layer_of(whole.model, whole.x, whole.precision)
    found = late_given_early(layer, whole.y, 12, Heteroscedastic()).value
    assert found == pytest.approx(whole.truth - half.truth, abs=0.013)


def test_a_start_elsewhere_leads_to_the_same_value() -> None:
    layer, y = _problem(60, 5, 2)
    away = LastLayer(layer.features, torch.randn_like(layer.weights), layer.precision)
    values = [late_given_early(one, y, 50, Heteroscedastic()).value for one in (layer, away)]
    assert values[0] == pytest.approx(values[1], abs=1e-5)


def test_too_large_a_layer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_layer, "MOST_WORK", 100)
    layer, y = _problem(20, 3)
    with refused("noise-layer-too-large", 100, 20, 3):
        late_given_early(layer, y, 15, Heteroscedastic())


def test_too_large_a_layer_is_refused_before_the_training() -> None:
    wide = ArchitectureSpec(family="mlp", values={"depth": 2, "width": 250})
    plan = TrainingPlan(likelihood="heteroscedastic", online={"curvature": "diag_ggn"})

    def why(n_data: int, *estimators: str, plan: TrainingPlan = plan) -> str:
        return too_costly(wide, (3,), 2, plan, estimators, n_data=n_data)

    found = why(45_000, "conditional_evidence")
    assert {"45000", "251"} <= {*re.findall(r"\d+", found)}
    assert "two_fold" in found, "the remedy"
    assert why(44_000, "conditional_evidence") == ""
    assert why(45_000, "two_fold") == ""
    one = plan.model_copy(update={"likelihood": "gaussian"})
    assert why(45_000, "conditional_evidence", plan=one) == ""


def test_no_optimum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_layer, "_STEPS", 1)
    layer, y = _problem(60, 20)
    with refused("noise-layer-without-optimum", 1):
        late_given_early(layer, y, 50, Heteroscedastic())
