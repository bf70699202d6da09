"""The linearised network: two forms of one number, exact where a closed form exists."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.func import functional_call, jacrev

from nas_evidence.audit.known_problems import definition, linear_problem, logistic_problem
from nas_evidence.curvature.likelihood import Categorical, Gaussian, Likelihood
from nas_evidence.evidence.design import Head, Rows, design_of
from nas_evidence.evidence.jacobian import head_of, jacobian
from nas_evidence.evidence.linearised import (
    Fit,
    Grams,
    Tangent,
    TooLargeError,
    conditional_log_evidence,
    log_evidence,
    tangent_of,
)
from nas_evidence.evidence.tangent_fit import fit_by_mackay

LIKELIHOODS = [Categorical(1.3), Gaussian(0.4)]


def theta_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(27, 5), nn.Tanh(), nn.Linear(5, 3),
    )  # fmt: skip


def case(likelihood: Likelihood, *, n: int = 12) -> tuple[nn.Module, Tangent, Tensor]:
    """A network, its linearisation, and a precision for each tensor."""
    model = network()
    x, real = torch.randn(n, 1, 3, 3), torch.randn(n, 3)
    y = real if isinstance(likelihood, Gaussian) else real.argmax(1)
    precision = torch.rand(6).double() * 3 + 0.2
    return model, tangent_of(jacobian(model, x), y, theta_of(model)), precision


class Shared(nn.Module):
    """One weight used twice, for which there is no layer rule."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight) @ self.weight


@pytest.mark.parametrize("made", [network, Shared])
def test_the_jacobian_is_that_of_autograd_and_the_model_stays_as_it_was(made: type) -> None:
    model = made()
    x = torch.randn(4, 1, 3, 3) if made is network else torch.randn(4, 3)
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = jacobian(model, x)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    model.double()
    double = {name: p.detach() for name, p in model.named_parameters()}
    parts = jacrev(lambda p: functional_call(model, p, (x.double(),)))(double)
    expected = torch.cat([part.flatten(2) for part in parts.values()], 2)
    torch.testing.assert_close(found.rows(), expected.flatten(0, 1), rtol=1e-10, atol=1e-12)
    theta = theta_of(model)
    torch.testing.assert_close(found.times(theta), expected @ theta, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("each", [False, True])
def test_function_space_and_weight_space_are_the_same_number(
    likelihood: Likelihood, each: bool
) -> None:
    _, tangent, precision = case(likelihood)
    if each:
        sizes = torch.tensor(tangent.jacobian.sizes)
        precision = precision.repeat_interleave(sizes) * torch.linspace(0.5, 2, int(sizes.sum()))
    one, other = (
        log_evidence(tangent, likelihood, precision, power=0.7, dual=dual, details=not each)
        for dual in (True, False)
    )
    assert one.value == pytest.approx(other.value, abs=1e-8)
    late = [
        conditional_log_evidence(tangent, 5, likelihood, precision, power=0.7, dual=dual)
        for dual in (True, False)
    ]
    assert late[0] == pytest.approx(late[1], abs=1e-8)
    if not each:
        for name in ("effective", "moving", "norms"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name))


def test_with_gaussian_noise_the_evidence_of_any_network_is_a_normal_density() -> None:
    likelihood = Gaussian(0.4)
    _, tangent, precision = case(likelihood)
    kernel = Grams.of(tangent.jacobian, precision, separate=False).kernel
    covariance = kernel + 0.16 * torch.eye(len(kernel)).double()
    exact = MultivariateNormal(tangent.mean.flatten(), covariance)
    found = log_evidence(tangent, likelihood, precision).value
    assert found == pytest.approx(float(exact.log_prob(tangent.targets.flatten())), abs=1e-8)


@pytest.mark.parametrize("dual", [True, False])
def test_a_linear_network_has_its_exact_evidence_at_any_weights(dual: bool) -> None:
    problem = linear_problem("t", 0, n_data=14, n_features=3, n_outputs=2)
    with torch.no_grad():
        problem.model.weight.add_(torch.randn(2, 3).double())  # far from the mode
    features = jacobian(problem.model, problem.x)
    for theta in (theta_of(problem.model), None):
        tangent = tangent_of(features, problem.y, theta)
        found = log_evidence(tangent, problem.likelihood, problem.precision, dual=dual)
        assert found.value == pytest.approx(problem.truth, abs=1e-8)


@pytest.mark.parametrize("dual", [True, False])
def test_the_late_data_given_the_early_ones_have_the_joint_predictive_density(dual: bool) -> None:
    """Mean and covariance of the late targets by conditioning, with no evidence in sight."""
    problem = linear_problem("t", 0, n_data=14, n_features=3, n_outputs=1)
    phi = torch.cat([problem.x, torch.ones(14, 1).double()], 1)
    prior = torch.tensor([1, 1, 1, 1 / 4.0]).double()
    covariance = (phi * prior) @ phi.mT + 0.25 * torch.eye(14).double()
    early, late = slice(0, 6), slice(6, 14)
    gain = covariance[late, early] @ torch.linalg.inv(covariance[early, early])
    predictive = MultivariateNormal(
        gain @ problem.y[early, 0], covariance[late, late] - gain @ covariance[early, late]
    )
    tangent = tangent_of(jacobian(problem.model, problem.x), problem.y, None)
    found = conditional_log_evidence(tangent, 6, problem.likelihood, problem.precision, dual=dual)
    assert found == pytest.approx(float(predictive.log_prob(problem.y[late, 0])), abs=1e-8)


@pytest.mark.slow
def test_with_classes_it_is_the_laplace_evidence_of_the_linear_model() -> None:
    problem = logistic_problem("t", 0)
    tangent = tangent_of(jacobian(problem.model, problem.x), problem.y, None)
    found = log_evidence(tangent, problem.likelihood, problem.precision).value
    assert found == pytest.approx(definition(problem, "full_ggn"), abs=1e-7)
    assert found == pytest.approx(problem.truth, abs=0.1)  # a sum over a grid


def test_with_classes_the_conditional_is_near_importance_sampling() -> None:
    """Within 0.1 nats of six data given six: what Laplace's approximation leaves out."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3).double()
    x = torch.randn(12, 2).double()
    y = (2 * x @ torch.randn(2, 3).double() + torch.randn(12, 3)).argmax(1)
    tangent = tangent_of(jacobian(model, x), y, None)
    precision = torch.tensor([1.0, 2.0]).double()
    found = conditional_log_evidence(tangent, 6, Categorical(), precision)

    rows = tangent.jacobian.rows()
    each = precision.repeat_interleave(torch.tensor([6, 3]))
    samples = torch.randn(200_000, 9).double() / each.sqrt()
    log_p = torch.log_softmax((samples @ rows.mT).view(-1, 12, 3), 2)
    terms = log_p.gather(2, y.expand(len(samples), 12)[:, :, None])[:, :, 0]
    truth = terms.sum(1).logsumexp(0) - terms[:, :6].sum(1).logsumexp(0)
    assert found == pytest.approx(float(truth), abs=0.1)


@pytest.mark.parametrize("bias", [True, False])
def test_the_products_of_a_last_layer_are_those_of_its_rows(bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=bias))
    linear = jacobian(model, torch.randn(7, 4), only=head_of(model))
    head, rows = design_of(linear), Rows(linear.rows().view(7, 3, -1))
    assert isinstance(head, Head)
    n = linear.n_parameters
    theta, v, root = torch.randn(n), torch.randn(7, 3), torch.randn(4, 7, 3)
    matrix = torch.randn(n, n).double()
    for one, other in ((head, rows), (head.first(2), rows.first(2))):
        m = len(one.inputs)
        pairs = [
            (one.times(theta.double()), other.times(theta.double())),
            (one.transposed(v[:m].double()), other.transposed(v[:m].double())),
            (one.hessian(root[:, :m].double()), other.hessian(root[:, :m].double())),
            (one.spread(matrix + matrix.mT), other.spread(matrix + matrix.mT)),
        ]
        for found, expected in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class Scaled(nn.Module):
    """A last layer with something after it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.last(torch.tanh(self.inside(x)))


def test_a_last_layer_that_does_not_end_the_network_keeps_its_rows() -> None:
    torch.manual_seed(0)
    model = Scaled()
    linear = jacobian(model, torch.randn(7, 4), only=head_of(model))
    assert isinstance(design_of(linear), Rows)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_both_forms_give_the_same_evidence_and_slopes_of_a_last_layer(
    likelihood: Likelihood,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x, real = torch.randn(20, 4), torch.randn(20, 3)
    y = real if isinstance(likelihood, Gaussian) else real.argmax(1)
    linear = jacobian(model, x, only=head_of(model))
    theta = torch.cat([p.detach().double().flatten() for p in model[2].parameters()])
    tangent, precision = tangent_of(linear, y, theta), torch.tensor([0.5, 2.0]).double()
    fits = [
        log_evidence(tangent, likelihood, precision, power=0.7, dual=dual, details=True)
        for dual in (True, False)
    ]
    assert fits[0].value == pytest.approx(fits[1].value, abs=1e-9)
    torch.testing.assert_close(
        fits[0].slope(precision), fits[1].slope(precision), atol=1e-8, rtol=0
    )
    both = [
        conditional_log_evidence(tangent, 8, likelihood, precision, dual=dual)
        for dual in (True, False)
    ]
    assert both[0] == pytest.approx(both[1], abs=1e-9)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("dual", [True, False])
def test_the_slope_in_the_precisions_counts_how_the_hessian_moves(
    likelihood: Likelihood, dual: bool
) -> None:
    _, tangent, precision = case(likelihood)

    def value(moved: Tensor) -> float:
        return log_evidence(tangent, likelihood, moved, power=0.7, dual=dual).value

    found = log_evidence(tangent, likelihood, precision, power=0.7, dual=dual, details=True)
    steps = 1e-4 * torch.eye(6).double()
    by_hand = [
        (value(precision * step.exp()) - value(precision * (-step).exp())) / 2e-4 for step in steps
    ]
    slope = found.slope(precision)
    torch.testing.assert_close(slope, torch.tensor(by_hand).double(), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_fitted_precision_is_that_of_a_line_search(likelihood: Likelihood) -> None:
    torch.manual_seed(2)
    model = nn.Linear(4, 3, bias=False)
    x = torch.randn(30, 4)
    real = x @ torch.randn(4, 3) + 0.4 * torch.randn(30, 3)
    y = real if isinstance(likelihood, Gaussian) else real.argmax(1)
    tangent = tangent_of(jacobian(model, x), y, None)
    start = torch.tensor([40.0]).double()
    fitted = fit_by_mackay(tangent, likelihood, start, n_steps=40)
    grid = [
        log_evidence(tangent, fitted.likelihood, 10.0**power).value
        for power in torch.linspace(-3, 3, 121).double()[:, None]
    ]
    assert fitted.value == pytest.approx(max(grid), abs=0.1)  # the gain that ends the search
    assert fitted.value >= log_evidence(tangent, likelihood, start).value + 0.1


def test_rescaled_layers_and_permuted_data_change_nothing() -> None:
    """A ReLU network is the same function if a layer grows as the next one shrinks."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x, y = torch.randn(9, 3).double(), torch.randint(0, 2, (9,))
    precision = torch.tensor([0.5, 1.0, 2.0, 3.0]).double()

    def value(order: Tensor, delta: Tensor) -> float:
        tangent = tangent_of(jacobian(model, x[order]), y[order], theta_of(model))
        return log_evidence(tangent, Categorical(), delta).value

    plain = value(torch.arange(9), precision)
    assert value(torch.randperm(9), precision) == pytest.approx(plain, abs=1e-9)
    with torch.no_grad():
        model[0].weight.mul_(3)
        model[0].bias.mul_(3)
        model[2].weight.div_(3)
    scaled = precision * torch.tensor([1 / 9, 1 / 9, 9.0, 1.0]).double()
    assert value(torch.arange(9), scaled) == pytest.approx(plain, abs=1e-9)


def test_the_last_layer_alone_is_bayesian_regression_on_its_features() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    assert head_of(model) == ("2.weight", "2.bias")
    head = torch.cat([p.detach().flatten() for p in model[2].parameters()])
    tangent = tangent_of(jacobian(model, x, only=head_of(model)), y, head)
    assert float(tangent.mean.abs().max()) < 1e-12  # the head is linear
    with torch.no_grad():
        phi = torch.cat([model[:2].double()(x.double()), torch.ones(8, 1)], 1)
    precision = torch.tensor([2.0, 3.0]).double()
    prior = torch.tensor([1 / 2.0] * 4 + [1 / 3.0]).double()
    covariance = (phi * prior) @ phi.mT + 0.25 * torch.eye(8).double()
    exact = MultivariateNormal(torch.zeros(8).double(), covariance).log_prob(y[:, 0].double())
    found: Fit = log_evidence(tangent, Gaussian(0.5), precision)
    assert found.value == pytest.approx(float(exact), abs=1e-8)


def test_what_is_too_large_is_refused_with_its_size() -> None:
    model, x = network(), torch.randn(12, 1, 3, 3)
    with pytest.raises(TooLargeError, match=r"at most 35 .* but is 36"):
        tangent_of(jacobian(model, x), torch.zeros(12, 3), None, limit=35)
    assert math.isfinite(
        log_evidence(
            tangent_of(jacobian(model, x), torch.zeros(12, 3), None, limit=36),
            Gaussian(1.0),
            torch.ones(6),
        ).value
    )
