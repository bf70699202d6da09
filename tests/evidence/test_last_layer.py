"""The evidence of a last layer by its structure is that of its definition, at any size."""

import math
import re

import numpy as np
import pytest
import torch
from messages import refused
from torch import Tensor, nn
from torch.autograd.functional import hessian as whole
from torch.autograd.functional import jacobian
from torch.distributions import MultivariateNormal

from nas_evidence.audit.known_problems import noise_problem
from nas_evidence.curvature.memory import DoesNotFitError
from nas_evidence.evidence import last_layer, noise_layer, softmax_layer
from nas_evidence.evidence.last_layer import last_layer_of, late_given_early
from nas_evidence.evidence.softmax_layer import LastLayer
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.maths.lanczos import log_forms
from nas_evidence.spec.study import ArchitectureSpec, TrainingPlan
from nas_evidence.training.cost import too_costly


def network(width: int, n_outputs: int, *, bias: bool = True) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, n_outputs, bias=bias))


def problem(likelihood: Likelihood, n: int, n_outputs: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    x = torch.randn(n, 5)
    outputs = 6 * network(20, n_outputs)(x).detach() + 0.3 * torch.randn(n, n_outputs)
    return x, outputs if isinstance(likelihood, Gaussian) else outputs.argmax(1)


def by_dense_algebra(
    model: nn.Module, x: Tensor, y: Tensor, n_early: int, likelihood: Likelihood,
    precision: Tensor, power: float,
) -> float:  # fmt: skip
    """log q(D) − log q(D_early) from the definition: Newton's mode and whole Hessians."""
    hidden, head = nn.Sequential(*list(model.double().children())[:-1]), list(model.children())[-1]
    with torch.no_grad():
        phi = torch.cat([hidden(x.double()), torch.ones(len(x), 1).double()], 1)
        start = torch.cat([head.weight, head.bias[:, None]], 1).detach()
    target = y if y.dtype == torch.int64 else y.double()
    weight, bias = precision[-2:].double()
    delta = torch.cat([weight.expand_as(head.weight), bias.expand(len(start), 1)], 1).flatten()

    def log_q(n: int) -> float:
        def joint(a: Tensor) -> Tensor:
            fit = likelihood.log_likelihood(phi[:n] @ a.view_as(start).mT, target[:n])
            return power * fit - 0.5 * (delta * a.square()).sum()

        a = start.flatten().clone()
        for _ in range(300):
            slope, hessian = jacobian(joint, a), -whole(joint, a)
            step = torch.linalg.solve(hessian, slope)
            size = 1.0
            while joint(a + size * step) < joint(a) and size > 1e-6:
                size /= 2
            a = a + size * step
            if float(slope @ step) < 1e-16:
                break
        ratio = torch.linalg.slogdet(-whole(joint, a))[1] - delta.log().sum()
        return float(joint(a) - 0.5 * ratio)

    return log_q(len(x)) - log_q(n_early)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "n", "width", "n_outputs", "power"),
    [
        (Categorical(1.3), 60, 7, 3, 1.0),
        (Categorical(0.7), 60, 7, 3, 2.5),
        (Categorical(), 60, 7, 2, 1.0),
        (Categorical(), 40, 60, 4, 1.0),
        (Gaussian(0.4), 60, 7, 3, 1.0),
        (Gaussian(0.1), 60, 7, 2, 1.7),
        (Gaussian(0.3), 40, 60, 2, 1.0),
    ],
)
def test_the_structured_value_is_that_of_dense_algebra(
    likelihood: Likelihood, n: int, width: int, n_outputs: int, power: float
) -> None:
    model, (x, y) = network(width, n_outputs), problem(likelihood, n, n_outputs)
    precision = 3 * torch.rand(4) + 0.1
    layer = last_layer_of(model, x, precision)
    found = late_given_early(layer, y, n * 4 // 5, likelihood, power=power)
    exact = by_dense_algebra(model, x, y, n * 4 // 5, likelihood, precision, power)
    assert found.value == pytest.approx(exact, abs=1e-6 * n)
    assert found.value == pytest.approx(exact, rel=1e-6)
    assert found.standard_error is None


def test_real_targets_have_the_density_of_the_multivariate_normal() -> None:
    torch.manual_seed(0)
    phi, y = torch.randn(12, 3).double(), torch.randn(12, 1).double()
    delta = torch.tensor([0.5, 2.0, 7.0]).double()
    layer = LastLayer(phi, torch.zeros(1, 3).double(), delta)

    def log_evidence(n: int) -> float:
        covariance = (phi[:n] / delta) @ phi[:n].mT + 0.3**2 * torch.eye(n).double()
        return float(MultivariateNormal(torch.zeros(n).double(), covariance).log_prob(y[:n, 0]))

    found = late_given_early(layer, y, 8, Gaussian(0.3)).value
    assert found == pytest.approx(log_evidence(12) - log_evidence(8), rel=1e-12)


def test_a_small_logistic_regression_is_close_to_its_integral() -> None:
    """One feature and two classes: the difference of both weights is integrated on a grid."""
    torch.manual_seed(1)
    phi = torch.randn(40, 1).double()
    y = (torch.rand(40) < torch.sigmoid(1.5 * phi[:, 0])).long()
    layer = LastLayer(phi, torch.zeros(2, 1).double(), torch.full((1,), 0.7).double())
    w = np.linspace(-15, 15, 20001)  # w_1 - w_0 ~ N(0, 2 / 0.7)
    signs = 2 * y.numpy() - 1
    log_prior = -0.5 * w**2 / (2 / 0.7) - 0.5 * math.log(2 * math.pi * 2 / 0.7)

    def log_evidence(n: int) -> float:
        logits = signs[:n, None] * phi[:n].numpy() * w
        logs = log_prior - np.logaddexp(0, -logits).sum(0)
        return float(np.logaddexp.reduce(logs) + math.log(w[1] - w[0]))

    found = late_given_early(layer, y, 30, Categorical()).value
    assert found == pytest.approx(log_evidence(40) - log_evidence(30), abs=0.02)
    assert abs(log_evidence(40) - log_evidence(30)) > 2


def classes(n: int = 200, width: int = 30, n_outputs: int = 4) -> tuple[LastLayer, Tensor]:
    model, (x, y) = network(width, n_outputs), problem(Categorical(), n, n_outputs)
    layer = last_layer_of(model, x, torch.tensor([1.0, 1.0, 0.3, 2.0]))
    return layer, y


def test_order_within_the_early_and_within_the_late_data_does_not_matter() -> None:
    layer, y = classes()
    order = torch.cat([torch.randperm(150), 150 + torch.randperm(50)])
    moved = LastLayer(layer.features[order], layer.weights, layer.precision)
    values = [
        late_given_early(one, labels, 150, Categorical()).value
        for one, labels in ((layer, y), (moved, y[order]))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


def test_the_trained_weights_are_a_start_and_do_not_enter_the_value() -> None:
    layer, y = classes()
    away = LastLayer(layer.features, 5 * torch.randn_like(layer.weights), layer.precision)
    values = [late_given_early(one, y, 150, Categorical()).value for one in (layer, away)]
    assert values[0] == pytest.approx(values[1], rel=1e-7)


def by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve and take determinants as of a layer that is too large for dense matrices."""
    for limit in ("MOST_DENSE", "MOST_DIRECT"):
        monkeypatch.setattr(softmax_layer, limit, 0)


def test_steps_by_the_dense_matrix_lead_where_conjugate_gradients_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, y = classes()
    dense = late_given_early(layer, y, 150, Categorical()).value
    monkeypatch.setattr(softmax_layer, "MOST_DIRECT", 0)
    products = late_given_early(layer, y, 150, Categorical()).value
    assert dense != products
    assert dense == pytest.approx(products, rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("turned", [True, False])
def test_the_sampled_log_determinants_are_within_their_errors_of_the_dense_ones(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, y = classes()
    exact = late_given_early(layer, y, 150, Categorical()).value
    by_products(monkeypatch)
    if not turned:
        monkeypatch.setattr(softmax_layer, "MOST_WORK", 0)
    found = [late_given_early(layer, y, 150, Categorical(), seed=s) for s in range(12)]
    errors = [one.standard_error for one in found if one.standard_error is not None]
    z = [(one.value - exact) / error for one, error in zip(found, errors, strict=True)]
    assert max(map(abs, z)) < 6  # seven degrees of freedom
    # The mean over seeds has about a third of the error of one.
    mean = sum(one.value for one in found) / 12
    assert mean == pytest.approx(exact, abs=4 * max(errors) / math.sqrt(12))
    assert max(errors) < 0.05 * abs(exact)


@pytest.mark.slow
def test_rows_at_a_time_do_not_change_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    values = []
    for at_once, rows in ((1 << 22, 512), (150, 7)):
        monkeypatch.setattr(softmax_layer, "_AT_ONCE", at_once)
        monkeypatch.setattr(last_layer, "_ROWS", rows)
        layer, y = classes()
        values.append(late_given_early(layer, y, 150, Categorical()))
        with monkeypatch.context() as large:
            by_products(large)
            values.append(late_given_early(layer, y, 150, Categorical()))
    assert values[0].value == pytest.approx(values[2].value, rel=1e-7)
    assert values[1].value == pytest.approx(values[3].value, rel=1e-5)


def test_rows_in_an_order_are_those_of_the_inputs_in_this_order() -> None:
    model, (x, _) = network(20, 3), problem(Categorical(), 700, 3)
    order = torch.randperm(700, generator=torch.Generator().manual_seed(0))[:600]
    found = last_layer_of(model, x, torch.ones(4), order)
    assert torch.equal(found.features, last_layer_of(model, x[order], torch.ones(4)).features)


def test_labels_have_no_density_above_one() -> None:
    """Separable classes: the late labels are certain, and nothing more."""
    phi = torch.cat([torch.full((50, 1), -3.0), torch.full((50, 1), 3.0)])[torch.randperm(100)]
    layer = LastLayer(phi.double(), torch.zeros(2, 1).double(), torch.full((1,), 1e-4).double())
    found = late_given_early(layer, (phi[:, 0] > 0).long(), 80, Categorical()).value
    assert -0.5 < found < 0


class Scaled(nn.Module):
    """Its last linear layer does not return the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = 2 * self.head(x)
        return scaled


def test_a_layer_that_does_not_return_the_outputs_is_none() -> None:
    with refused("last-layer-not-the-output"):
        last_layer_of(Scaled(), torch.randn(4, 5), torch.ones(2))


def test_inputs_of_the_layer_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nas_evidence.curvature.memory.available_bytes", lambda device: 0)
    with pytest.raises(DoesNotFitError, match="the inputs of the last layer, 4 rows of 8"):
        last_layer_of(network(7, 3), torch.randn(4, 5), torch.ones(4))


def test_nothing_given_is_refused() -> None:
    layer, y = classes()
    with refused("n-early-out-of-range", 200):
        late_given_early(layer, y, 200, Categorical())


def test_log_forms_are_those_of_the_dense_logarithm() -> None:
    torch.manual_seed(0)
    root = torch.randn(40, 40).double() / 20
    matrix = torch.eye(40).double() + root @ root.mT
    values, vectors = torch.linalg.eigh(matrix)
    starts = torch.randn(3, 40).double()
    exact = ((starts @ vectors).square() * values.log()).sum(1)
    found = log_forms(lambda v: v @ matrix, starts, n_steps=40, tolerance=1e-12)
    torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-9)


def test_the_error_of_sampled_determinants_is_that_of_the_mean_over_common_signs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signs: list[Tensor] = []

    def forms(product: object, starts: Tensor, **known: object) -> Tensor:
        signs.append(starts)
        return torch.arange(16).double() * (3 if len(signs) == 1 else 1)

    monkeypatch.setattr(softmax_layer, "log_forms", forms)
    by_products(monkeypatch)
    found = late_given_early(*classes(40, 5), 30, Categorical())
    assert torch.equal(signs[0], signs[1])
    each = torch.arange(16).double()  # half of the difference
    assert found.standard_error == pytest.approx(float(each.std()) / 4)


@pytest.mark.slow
def test_separated_classes_under_a_wide_prior_have_one_optimum_from_any_start() -> None:
    g = torch.Generator().manual_seed(1)
    phi, weights = (torch.randn(n, 30, generator=g).double() for n in (20, 3))
    phi *= 100
    y = (phi @ weights.T).argmax(1)
    delta = torch.full((30,), 6e-6).double()
    values = [
        late_given_early(LastLayer(phi, w, delta), y, 16, Categorical()).value
        for w in (weights, 0.001 * weights)
    ]
    assert values[0] == pytest.approx(values[1], abs=0.01)
    assert -20 < values[0] < 0


def test_a_layer_without_an_optimum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_layer, "_NEWTON_STEPS", 1)
    with refused("last-layer-without-optimum", 1):
        late_given_early(*classes(40, 5), 30, Categorical())


# --- conditional evidence of a last layer whose outputs are mean and noise of real targets


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
