"""Each of several real targets has a noise of its own, which updates learn."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import nas_evidence
from nas_evidence.curvature import CurvaturePass, curvature_passes
from nas_evidence.evidence.exact_linear import log_evidence_of_linear, mode_of_linear
from nas_evidence.likelihoods import Fit, scales_of
from nas_evidence.likelihoods.gaussian import Gaussian, gaussian
from nas_evidence.training import online
from nas_evidence.training.network import Network
from nas_evidence.training.online import passes_of, update_hyperparameters
from nas_evidence.training.own_loop import OnlineLaplace

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
