"""The noise of your own loop, or one for each output: its maximum, or no valid estimate."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from messages import refused
from own_loops import looped
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.testing import assert_close

import nas_evidence
from nas_evidence.likelihoods.gaussian import Gaussian, gaussian
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.training.own_loop import OnlineLaplace

STDS = (0.3, 2.0)


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    random = torch.Generator().manual_seed(2)
    x = torch.randn(50, 3, generator=random).double()
    noise = torch.randn(50, 2, generator=random).double() * torch.tensor(STDS, dtype=torch.float64)
    y = torch.stack([x[:, 0], 8 * x[:, 1]], 1) + noise
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 2).double(), x, y


def log_evidence(
    model: nn.Module, x: Tensor, y: Tensor, delta: list[float], stds: Tensor
) -> float:
    """Laplace evidence of a linear model, the curvature of each output by itself."""
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    diagonal = torch.tensor([*[delta[0]] * 3, delta[1]]).double()
    total = 0.0
    for c, std in enumerate(stds.tolist()):
        theta = torch.cat([model.weight[c], model.bias[c : c + 1]]).detach()
        error = y[:, c] - design @ theta
        h = design.T @ design / std**2
        log_det = torch.logdet(h + diagonal.diag()) - diagonal.log().sum()
        total += float(
            -0.5 * error.square().sum() / std**2 - len(x) * math.log(std * math.sqrt(2 * math.pi))
            - 0.5 * (diagonal * theta.square()).sum() - 0.5 * log_det
        )  # fmt: skip
    return total


def test_the_likelihood_is_that_of_torch_for_each_output() -> None:
    _, x, y = problem()
    outputs = x[:, :2].clone().requires_grad_()
    normal = torch.distributions.Normal(outputs, torch.tensor(STDS, dtype=torch.float64))
    expected = normal.log_prob(y).sum()
    found = gaussian(STDS)
    assert_close(found.log_likelihood(outputs, y), expected)
    assert_close(-len(y) * found.nll_mean(outputs, y), expected)
    assert_close(found.residual(outputs, y), torch.autograd.grad(expected, outputs)[0])
    roots = found.hessian_roots(outputs)
    wanted = torch.tensor(STDS, dtype=torch.float64).pow(-2).diag()
    assert_close(torch.einsum("knc,knd->ncd", roots, roots)[0], wanted)
    signs = torch.ones(2, len(y), dtype=torch.int8)
    assert_close(found.signed_root(outputs, signs)[0, 0], wanted.diagonal().sqrt())
    assert gaussian([0.5, 0.5]).unit == (1.0, 1.0)


@pytest.mark.parametrize("kind", ["full_ggn", "full_ef", "kfac_ggn", "diag_ggn"])
def test_an_evidence_with_equal_noises_is_that_of_one_noise(kind: str) -> None:
    model, x, y = problem()
    given = {"likelihood": "gaussian", "curvature": kind, "prior_precision": [0.5, 2.0]}
    one, each, other = (
        nas_evidence.estimate_evidence(model, x, y, noise_std=noise, **given).value
        for noise in (0.7, [0.7, 0.7], [0.7, 0.8])
    )
    assert each == pytest.approx(one, rel=1e-12)
    assert abs(other - one) > 0.1


def test_the_evidence_with_a_noise_of_each_output_is_the_closed_form() -> None:
    model, x, y = problem()
    found = nas_evidence.estimate_evidence(
        model, x, y, likelihood="gaussian", curvature="full_ggn", prior_precision=[0.5, 2.0],
        noise_std=STDS,
    )  # fmt: skip
    expected = log_evidence(model, x, y, [0.5, 2.0], torch.tensor(STDS, dtype=torch.float64))
    assert found.value == pytest.approx(expected, rel=1e-10)


def test_a_loop_learns_the_noises_that_maximise_the_evidence() -> None:
    model, x, y = problem()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    given = [5 * std for std in STDS]
    how = {"curvature": "full_ggn", "noise_std": given}
    laplace = looped(model, x, y, optimiser, epochs=200, every=20, **how)
    stds = torch.tensor(laplace.noise_std).double()
    np.testing.assert_allclose(stds, STDS, rtol=0.2)
    delta = [*laplace.prior_precision.values()]
    assert laplace.estimate.valid
    assert laplace.history[-1][1] == pytest.approx(
        log_evidence(model, x, y, delta, stds), rel=1e-9
    )

    def loss(z: np.ndarray) -> float:
        delta, each = np.exp(z[:2]).tolist(), torch.from_numpy(np.exp(z[2:]))
        return -log_evidence(model, x, y, delta, each)

    start = [*np.log(delta), *np.log(laplace.noise_std)]
    best = minimize(loss, start, method="Nelder-Mead", options={"fatol": 1e-9})
    assert laplace.history[-1][1] == pytest.approx(-best.fun, abs=1e-4)
    again = looped(model, x, y, optimiser, **how)
    again.load_state_dict(laplace.state_dict())
    assert again.noise_std == pytest.approx(laplace.noise_std)

    posterior = nas_evidence.posterior(
        model, (x, y), likelihood="gaussian", prior_precision=laplace.prior_precision,
        noise_std=laplace.noise_std,
    )  # fmt: skip
    plain = posterior.predict(x[:3], method="map").std
    np.testing.assert_allclose(plain, np.tile(laplace.noise_std, (3, 1)))


def test_what_a_network_gains_over_a_constant_is_counted_in_the_units_of_the_noise() -> None:
    model, x, y = problem()
    stds = torch.tensor([0.01, 100.0]).double()
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).double() * stds
    with torch.no_grad():
        model.weight.mul_(1e-4)
        model.bias.zero_()
    how = {"every": 1, "curvature": "full_ggn", "noise_std": stds.tolist()}
    laplace = looped(model, x, noise, epochs=1, n_steps=0, **how)
    assert max(laplace.prior_precision.values()) <= 1.0  # nothing is learned, so none may rise


@pytest.mark.parametrize("noise", [(1.0, 2.0, 3.0), (1.0,)])
def test_another_number_of_noises_than_outputs_is_refused(noise: tuple[float, ...]) -> None:
    model, x, y = problem()
    with refused("noise-std-per-output", len(noise)):
        looped(model, x, y, noise_std=noise)
    with refused("noise-std-per-output"):
        nas_evidence.estimate_evidence(
            model, x, y, likelihood="gaussian", curvature="diag_ef", prior_precision=1.0,
            noise_std=noise,
        )  # fmt: skip


def test_a_noise_that_is_none_is_refused() -> None:
    for noise in ((1.0, -1.0), (math.nan, 1.0)):
        with refused("noise-std-not-positive"):
            Gaussian(1.0, noise)


def loop(noise: Any, likelihood: str = "gaussian", bias: float = 0.0) -> OnlineLaplace:
    model, x, y = problem()
    model.bias.data.add_(bias)
    targets = {"categorical": y.argmax(1), "heteroscedastic": y[:, :1]}.get(likelihood, y)
    how = {"curvature": "full_ggn", "every": 1, "noise_std": noise}
    return looped(model, x, targets, likelihood=likelihood, **how)


def evidence(noise: Any) -> float:
    model, x, y = problem()
    return nas_evidence.estimate_evidence(
        model, x, y, likelihood="gaussian", curvature="diag_ef", prior_precision=1.0,
        noise_std=noise,
    ).value  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    ["ab", "1", {"a": 1}, [[1, 2]], (1, "2"), [True, 1], True, [], None, [None, 1], 1j,
     [1.0, 0.0], [1.0, math.inf], -1.0, math.nan, torch.zeros(2), np.ones((1, 2))],
    ids=repr,
)  # fmt: skip
def test_what_is_no_noise_is_one_sentence_and_the_same_one_in_a_loop_and_alone(wrong: Any) -> None:
    said = []
    for asked in (loop, evidence):
        with pytest.raises(UserError, match="`noise_std") as raised:
            asked(wrong)
        said.append(str(raised.value))
    assert wrong is None or said[0] == said[1]


@pytest.mark.parametrize(
    "noise",
    [(0.5, 2), [np.float32(0.5), np.int64(2)], np.array([0.5, 2]), torch.tensor([0.5, 2.0]),
     [torch.tensor(0.5), Fraction(2)], pd.Series([0.5, 2.0])],
    ids=lambda noise: type(noise).__name__,
)  # fmt: skip
def test_a_loop_and_an_estimate_take_the_same_types_of_noises(noise: Any) -> None:
    assert loop(noise).noise_std == pytest.approx((0.5, 2.0))
    assert evidence(noise) == evidence([0.5, 2.0])
    assert loop(np.float64(0.5)).noise_std == 0.5
    assert evidence(np.array(0.5)) == evidence(0.5)


@pytest.mark.parametrize("likelihood", ["categorical", "heteroscedastic"])
@pytest.mark.parametrize("noise", [0.5, [1.0, 2.0], "ab"])
def test_a_noise_where_there_is_none_to_give_is_refused(likelihood: str, noise: Any) -> None:
    with refused("scale-of-another-likelihood", "noise_std", likelihood):
        loop(noise, likelihood)


def test_a_state_of_noises_of_another_number_of_outputs_is_refused() -> None:
    state = loop(1.0).state_dict() | {"noise_unit": (1.0, 2.0, 3.0)}
    with refused("own-loop-state-noise", "(1, 2, 3)", "2 outputs"):
        loop(1.0).load_state_dict(state)


@pytest.mark.parametrize("noise", [[0.1, 0.7], 0.3])
def test_a_state_of_noises_is_loaded_to_the_bit_also_by_a_loop_that_begins_with_them(
    noise: Any,
) -> None:
    state = loop(noise).state_dict()
    state["noise_std"] *= 1.7
    for one in (loop(noise), loop(np.multiply(noise, 3).tolist()), loop(1.0), loop([7.0, 0.1])):
        one.load_state_dict(state)
        assert one.state_dict()["noise_std"] == state["noise_std"]
        assert one.noise_std == pytest.approx(np.multiply(noise, 1.7), rel=1e-12)
    old = {name: value for name, value in state.items() if name != "noise_unit"}
    if isinstance(noise, float):  # of an older version
        loop(noise).load_state_dict(old)


def test_a_note_about_the_noise_says_that_of_each_output() -> None:
    laplace = loop([0.5, 2.0], bias=100.0)
    laplace.after_epoch()
    shown = ", ".join(f"{one:.3g}" for one in laplace.noise_std)
    assert not laplace.estimate.valid
    assert f"the noise is held at ({shown}), below" in laplace.estimate.note


# --- the noise of your own loop: its maximum from any start, or an estimate that is not valid


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
    how = {"epochs": epochs, "every": 5, "noise_std": start, "curvature": "full_ggn"}
    return model, looped(model, x, y, optimiser, **how)


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
        laplace = looped(model, x, y, epochs=3, n_steps=0, curvature="full_ggn", every=1)
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
    laplace = looped(model, x, y, epochs=1, n_steps=0, curvature="full_ggn", every=1)
    assert laplace.noise_std == pytest.approx(2**0.5 * float(y.std(correction=0)), rel=1e-6)
    assert laplace.estimate is not None
    assert not laplace.estimate.valid
    assert "held at" in laplace.estimate.note


def test_fixed_noise_and_labels_have_no_word_of_it() -> None:
    x, y = weak(1, 0.0)
    for more in ({"learn_noise": False, "curvature": "full_ggn"}, {}):
        model = nn.Linear(3, 1 if more else 2).double()
        targets = y if more else (y[:, 0] > 0).long()
        laplace = looped(model, x, targets, epochs=1, n_steps=0, every=1, **more)
        assert laplace.estimate is not None
        assert laplace.estimate.valid
        assert laplace.estimate.note == ""
