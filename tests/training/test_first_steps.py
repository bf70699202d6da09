"""The first epochs: a prior learned too early, and steps that are too long."""

import math

import pytest
import torch
from lone_trials import evaluated, tensors_of
from records import asked
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import Assignment
from nas_evidence.training.loop import train_epoch
from nas_evidence.training.network import Network, begin


def rings(n: int = 300) -> TensorData:
    """Two overlapping classes, one around the other; the second half is for the test."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (n,), generator=random)
    angle = 2 * math.pi * torch.rand(n, generator=random)
    radius = 0.5 + 1.2 * labels + 0.5 * torch.randn(n, generator=random)
    return labelled(radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1), labels)


def labelled(x: Tensor, y: Tensor) -> TensorData:
    return tensors_of(x, y, len(x) // 2, n_outputs=2)


def assignment(**plan: object) -> Assignment:
    return asked(seed=3, **({"batch_size": 1000, "schedule": "constant"} | plan))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))


def trained(data: TensorData, given: Assignment) -> Network:
    state = begin(network(), data, given.plan, given.seed)
    for stop in stops(given.plan):
        train_epoch(state, n_epochs=stop.epoch - state.epoch)
        if stop.update:
            evaluated(state, given)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.0, pytest.param(3.0, marks=pytest.mark.slow)])
def test_precisions_rise_only_where_a_network_of_zeros_is_the_worse_mode(power: float) -> None:
    """Brute force: the log joint at the parameters, and at zeros with the best constant."""
    data, raised, kept = rings(), 0, 0
    given = assignment(
        optimiser="adam", likelihood_power=power, online={"every": 1, "curvature": "diag_ef"}
    )
    state = begin(network(), data, given.plan, given.seed)
    rate = data.y_train.double().mean()
    constant = torch.stack([1 - rate, rate]).log().float().expand(len(data.y_train), 2)
    for _ in range(250):
        train_epoch(state)
        before = state.prior_precision
        evaluated(state, given)
        now = state.prior_precision
        if bool((now > before * (1 + 1e-9)).any()):
            raised += 1
            with torch.no_grad():
                fits = [
                    -nn.functional.cross_entropy(outputs, data.y_train, reduction="sum")
                    for outputs in (state.model(data.x_train), constant)
                ]
            pull = 0.5 * float((now * squared_norms(state.model)).sum())
            assert power * float(fits[0] - fits[1]) > pull
        else:
            kept += 1
    assert min(raised, kept) > 0, (raised, kept)  # both happen here


@pytest.mark.slow
@pytest.mark.parametrize("learn_noise", [True, False])
def test_with_real_targets_each_side_is_given_the_noise_that_suits_it_best(
    learn_noise: bool,
) -> None:
    """Brute force again: the log joint maximised over the noise, and that of the best constant."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=random)
    y = torch.stack([x[:, 0].sin(), x[:, 1]], 1) + 0.5 * torch.randn(60, 2, generator=random)
    data = tensors_of(x, y / y.std(0) + 0.5)  # not centred, as on part of the data
    given = assignment(
        likelihood="gaussian", likelihood_power=0.5, noise_std=0.8,
        online={"every": 1, "curvature": "diag_ef", "learn_noise": learn_noise},
    )  # fmt: skip
    state = begin(network(), data, given.plan, given.seed)
    raised, kept = 0, 0

    def best_fit(outputs: Tensor) -> float:
        def loss(log_std: float, target: int) -> float:
            noise = torch.distributions.Normal(outputs[:, target].double(), math.exp(log_std))
            return -float(noise.log_prob(data.y_train[:, target].double()).sum())

        if not learn_noise:
            return -sum(loss(math.log(0.8), target) for target in range(2))
        return -sum(
            float(minimize_scalar(loss, bounds=(-5, 3), args=(target,), method="bounded").fun)
            for target in range(2)
        )

    constant = best_fit(data.y_train.mean(0).expand_as(data.y_train))
    for _ in range(60):
        train_epoch(state)
        before = state.prior_precision
        with torch.no_grad():
            gain = 0.5 * (best_fit(state.model(data.x_train)) - constant)
        evaluated(state, given)
        pull = 0.5 * float((state.prior_precision * squared_norms(state.model)).sum())
        if bool((state.prior_precision > before * (1 + 1e-9)).any()):
            raised += 1
            assert gain > pull - 1e-6
        else:
            kept += 1
    assert min(raised, kept) > 0, (raised, kept)


def test_a_prior_that_is_too_strong_is_loosened_however_little_was_learned() -> None:
    given = assignment(epochs=1, prior_precision=1e4, online={"every": 1, "curvature": "kfac_ggn"})
    state = trained(rings(), given)
    assert bool((state.prior_precision <= 1e4).all())
    assert float(state.prior_precision[0]) < 1e3


@pytest.mark.parametrize("clip", [0.05, 1e6, 0.0])
def test_a_step_is_as_long_as_allowed_and_has_the_direction_of_the_gradient(
    clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nas_evidence.training.together.GRADIENT_CLIP", clip)
    data = rings()
    given = assignment(learning_rate=0.1, momentum=0.0)
    state = begin(network(), data, given.plan, given.seed)
    start = [p.detach().clone() for p in state.model.parameters()]
    loss = nn.functional.cross_entropy(state.model(data.x_train), data.y_train)
    loss = loss + 0.5 / len(data.x_train) * sum(p.square().sum() for p in state.model.parameters())
    gradient = torch.autograd.grad(loss, list(state.model.parameters()))
    norm = float(torch.cat([g.flatten() for g in gradient]).norm())
    assert norm > 0.05
    train_epoch(state)
    factor = clip / norm if 0 < clip < norm else 1.0
    for p, first, g in zip(state.model.parameters(), start, gradient, strict=True):
        assert_close(p.detach(), first - 0.1 * factor * g, rtol=1e-4, atol=1e-7)
