"""What a likelihood says of K networks side by side is what it says of each."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nas_evidence.likelihoods import Fit, Likelihood, likelihood
from nas_evidence.spec.likelihoods import LIKELIHOODS, declared

SCALES = (0.6, 1.0, 2.5)
ALL = pytest.mark.parametrize("name", LIKELIHOODS)


def data_of(name: str, n: int = 5) -> tuple[Tensor, Tensor]:
    """Outputs of three networks, and their targets: classes, numbers, or counts of no density."""
    draw = torch.Generator().manual_seed(7)
    outputs = torch.randn(3, n, 4, dtype=torch.float64, generator=draw)
    kind = declared(name).kind
    if kind.classes:
        return outputs, torch.randint(4, (3, n), generator=draw)
    width = 4 // declared(name).outputs
    if kind.chance_of:
        rates = torch.full((3, n, width), 2.0, dtype=torch.float64)
        return outputs, torch.poisson(rates, generator=draw)
    return outputs, torch.randn(3, n, width, dtype=torch.float64, generator=draw)


def alone(name: str, scale: float) -> Likelihood:
    return likelihood(name, scale if declared(name).scale else 1.0)


def scales_of(name: str) -> Tensor | None:
    if declared(name).scale is None:
        return None
    return torch.tensor(SCALES, dtype=torch.float64)[:, None]


@ALL
def test_the_nll_of_networks_is_that_of_each_and_its_sum_the_log_likelihood(name: str) -> None:
    outputs, targets = data_of(name)
    found = likelihood(name).nll(outputs, targets, scales_of(name))
    for each, f, y, scale in zip(found, outputs, targets, SCALES, strict=True):
        one = alone(name, scale)
        assert_close(each, one.nll(f, y))
        assert_close(-each.sum(), one.log_likelihood(f, y))
        assert_close(each.mean(), one.nll_mean(f, y))


@ALL
def test_the_slope_of_networks_is_the_gradient_of_their_log_likelihoods(name: str) -> None:
    outputs, targets = data_of(name)
    outputs.requires_grad_()
    nll, slope = likelihood(name).nll_and_slope(outputs.detach(), targets, scales_of(name))
    expected = likelihood(name).nll(outputs, targets, scales_of(name))
    assert_close(nll, expected.detach())
    assert_close(slope, -torch.autograd.grad(expected.sum(), outputs)[0])
    for k, scale in enumerate(SCALES):
        assert_close(alone(name, scale).residual(outputs[k], targets[k]), slope[k])


@ALL
def test_a_descent_is_along_the_gradient_of_the_mean_nll_times_the_square_of_the_scale(
    name: str,
) -> None:
    outputs, targets = data_of(name)
    outputs.requires_grad_()
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0], dtype=torch.float64).expand(3, 5)[..., None]
    scale = scales_of(name)
    nll, back = likelihood(name).descent(outputs.detach(), targets, shares, scale)
    each = likelihood(name).nll(outputs, targets, scale)
    expected = (each * shares[..., 0]).sum(1)
    assert_close(nll, expected.detach())
    loss = expected if scale is None else scale[:, 0].square() * expected
    assert_close(back, torch.autograd.grad(loss.sum(), outputs)[0])


@ALL
def test_no_outputs_that_are_the_same_for_all_data_are_likelier_than_the_best_constant(
    name: str,
) -> None:
    y = data_of(name, 40)[1][0]
    one, outputs = likelihood(name), torch.zeros(4, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS([outputs], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        descent.zero_grad()
        value = -one.log_likelihood(outputs.expand(40, 4), y)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    descent.step(loss)  # type: ignore[no-untyped-call]
    assert one.best_constant(y) == pytest.approx(-loss().item(), abs=1e-6)


@ALL
def test_a_network_that_predicts_the_best_constant_gains_nothing(name: str) -> None:
    class Found(Fit):
        log_likelihood = likelihood(name).best_constant(data_of(name)[1][0])
        y = data_of(name)[1][0].double()
        squared_errors = tuple(torch.atleast_1d((y - y.mean(0)).square().sum(0)).tolist())

    for learned in (False, True):
        gain = likelihood(name).gain(Found(), data_of(name)[1][0], learned=learned)
        assert math.isclose(gain, 0.0, abs_tol=1e-12)
