"""The noise of your own loop: its maximum from any start, or an estimate that is not valid."""

import math

import pytest
import torch
from torch import Tensor, nn

import nas_evidence
from nas_evidence.training.own_loop import OnlineLaplace


def weak(seed: int, r2: float) -> tuple[Tensor, Tensor]:
    """Inputs [80, 3] and targets [80, 1] with sd 5, of which a linear function explains R²."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(80, 3, generator=random).double()
    signal = x @ torch.tensor([[1.0], [-1.0], [0.5]]).double()
    signal *= 5 * math.sqrt(r2) / signal.std()
    return x, signal + 5 * math.sqrt(1 - r2) * torch.randn(80, 1, generator=random).double()


def learned(
    x: Tensor, y: Tensor, start: float, epochs: int = 100
) -> tuple[nn.Linear, OnlineLaplace]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    laplace = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="gaussian", noise_std=start, curvature="full_ggn",
        every=5,
    )  # fmt: skip
    for _ in range(epochs):
        optimiser.zero_grad()
        laplace.loss(model(x), y).backward()
        optimiser.step()
        laplace.after_epoch()
    return model, laplace


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("r2", [0.0, 0.04, 0.2])
@pytest.mark.parametrize("seed", range(6))
def test_the_noise_satisfies_mackays_equation_from_any_start(seed: int, r2: float) -> None:
    """s² = RSS / (N − γ), γ = Σ λ / (λ + δ) by a dense inverse; one evidence for all starts."""
    x, y = weak(seed, r2)
    found = []
    for start in (0.01, 1.0, 5.0):
        model, laplace = learned(x, y, start)
        assert laplace.estimate is not None
        assert laplace.estimate.valid, laplace.estimate.note
        design = torch.cat([x, torch.ones(80, 1).double()], 1)
        curvature = design.T @ design / laplace.noise_std**2
        weight, bias = laplace.prior_precision.values()
        prior = torch.tensor([weight] * 3 + [bias]).double()
        posterior = torch.linalg.inv(curvature + prior.diag())
        effective = float((curvature @ posterior).trace())
        rss = float((y - model(x).detach()).square().sum())
        assert laplace.noise_std**2 == pytest.approx(rss / (80 - effective), rel=0.03)
        found.append(laplace.history[-1][1])
    assert max(found) - min(found) < 1.5


def test_a_noise_at_its_bound_is_said() -> None:
    x, _ = weak(0, 0.0)
    for y in (x @ torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.full((80, 1), 2.0).double()):
        model = nn.Linear(3, 1).double()
        with torch.no_grad():
            design = torch.cat([x, torch.ones(80, 1).double()], 1)
            solution = torch.linalg.lstsq(design, y).solution
            model.weight.copy_(solution[:3].T)
            model.bias.copy_(solution[3])
        laplace = nas_evidence.online_laplace(
            model, torch.optim.SGD(model.parameters(), lr=1e-9), (x, y), likelihood="gaussian",
            curvature="full_ggn", every=1,
        )  # fmt: skip
        for _ in range(3):
            laplace.after_epoch()
        assert laplace.noise_std == pytest.approx(math.exp(-15))
        assert laplace.estimate is not None
        assert not laplace.estimate.valid
        assert "lower bound, 3.06e-07" in laplace.estimate.note


def test_a_noise_that_is_held_below_its_maximum_is_said() -> None:
    """The network is far worse than a constant, so its noise may not rise to its residuals."""
    x, y = weak(0, 0.2)
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        model.bias.fill_(200.0)
    laplace = nas_evidence.online_laplace(
        model, torch.optim.SGD(model.parameters(), lr=1e-9), (x, y), likelihood="gaussian",
        curvature="full_ggn", every=1,
    )  # fmt: skip
    laplace.after_epoch()
    assert laplace.noise_std == pytest.approx(2**0.5 * float(y.std(correction=0)), rel=1e-6)
    assert laplace.estimate is not None
    assert not laplace.estimate.valid
    assert "held at" in laplace.estimate.note


def test_fixed_noise_and_labels_have_no_word_of_it() -> None:
    x, y = weak(1, 0.0)
    for more in ({"learn_noise": False}, {"likelihood": "categorical"}):
        labels = "likelihood" in more
        model = nn.Linear(3, 2 if labels else 1).double()
        laplace = nas_evidence.online_laplace(
            model, torch.optim.SGD(model.parameters(), lr=0.1),
            (x, (y[:, 0] > 0).long() if labels else y),
            **({"likelihood": "gaussian", "curvature": "full_ggn", "every": 1} | more),
        )  # fmt: skip
        laplace.after_epoch()
        assert laplace.estimate is not None
        assert laplace.estimate.valid
        assert laplace.estimate.note == ""
