"""A noise for each output in a loop of one's own."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from messages import refused
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
    laplace = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="gaussian", every=20, curvature="full_ggn",
        noise_std=given,
    )  # fmt: skip
    for _ in range(200):
        optimiser.zero_grad()
        laplace.loss(model(x), y).backward()
        optimiser.step()
        laplace.after_epoch()
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
    again = nas_evidence.online_laplace(
        model, optimiser, (x, y), likelihood="gaussian", curvature="full_ggn", noise_std=given
    )
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
    laplace = nas_evidence.online_laplace(
        model, torch.optim.SGD(model.parameters(), lr=1e-9), (x, noise), likelihood="gaussian",
        every=1, curvature="full_ggn", noise_std=stds.tolist(),
    )  # fmt: skip
    laplace.after_epoch()
    assert max(laplace.prior_precision.values()) <= 1.0  # nothing is learned, so none may rise


@pytest.mark.parametrize("noise", [(1.0, 2.0, 3.0), (1.0,)])
def test_another_number_of_noises_than_outputs_is_refused(noise: tuple[float, ...]) -> None:
    model, x, y = problem()
    with refused("noise-std-per-output", len(noise)):
        nas_evidence.online_laplace(
            model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), likelihood="gaussian",
            noise_std=noise,
        )  # fmt: skip
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
    return nas_evidence.online_laplace(
        model, torch.optim.SGD(model.parameters(), lr=1e-9), (x, targets), likelihood=likelihood,
        curvature="full_ggn", every=1, noise_std=noise,
    )  # fmt: skip


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
