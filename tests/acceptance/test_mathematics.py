"""Evidence of the user's own networks beside closed forms, grids and bounds computed here.

linear regression   y ~ N(0, σ² 1 + Φ Δ⁻¹ Φᵀ)       Φ features     Δ prior precisions
two classes         ∫ p(y | w) N(w; 0, δ⁻¹ 1) dw on a grid of two weights
"""

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from acceptance.uses import command
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp
from scipy.stats import multivariate_normal
from sklearn.datasets import load_wine
from torch import Tensor, nn

import nas_evidence

pytestmark = pytest.mark.slow

Floats = NDArray[np.float64]
#: What is exact on linear regression without a bias, and what only with one tensor of one output.
EXACT = ("full_ggn", "block_ggn", "kfac_ggn", "ekfac_ggn")
CURVATURES = (*EXACT, "diag_ef", "diag_ggn", "kfac_ef", "full_ef")


def regression(n_outputs: int = 1) -> tuple[Floats, Floats]:
    """Return features [60, 4] and targets [60, C] of a linear map with noise 0.4."""
    random = np.random.default_rng(3)
    phi = random.normal(size=(60, 4))
    weights = random.normal(size=(4, n_outputs)) * [[1.0], [0.5], [2.0], [0.1]]
    return phi, phi @ weights + 0.4 * random.normal(size=(60, n_outputs))


def log_evidence(phi: Floats, y: Floats, precision: Floats | float, noise: float) -> float:
    """Return log p(y) of linear regression, in nats summed over rows and outputs."""
    prior = np.broadcast_to(1 / np.asarray(precision), phi.shape[1])
    covariance = noise**2 * np.eye(len(phi)) + (phi * prior) @ phi.T
    return float(sum(multivariate_normal.logpdf(each, cov=covariance) for each in y.T))


def at_mode(phi: Floats, y: Floats, precision: Floats | float, noise: float) -> Floats:
    """Return the most probable weights [d, C]."""
    prior = np.diag(np.broadcast_to(precision, phi.shape[1]))
    return np.linalg.solve(phi.T @ phi / noise**2 + prior, phi.T @ y / noise**2)


def tensor(values: Floats) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("curvature", EXACT)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_the_evidence_of_linear_regression_is_its_closed_form(
    curvature: str, n_outputs: int
) -> None:
    phi, y = regression(n_outputs)
    model = nn.Linear(4, n_outputs, bias=False).double()
    model.weight.data = tensor(at_mode(phi, y, 0.7, 0.5).T)
    found = nas_evidence.estimate_evidence(
        model,
        tensor(phi),
        tensor(y),
        likelihood="gaussian",
        curvature=curvature,
        prior_precision=0.7,
        noise_std=0.5,
    )
    assert found.valid
    assert found.value == pytest.approx(log_evidence(phi, y, 0.7, 0.5), rel=1e-9)


def test_a_prior_of_each_tensor_is_in_the_closed_form() -> None:
    phi, y = regression()
    with_one = np.column_stack([phi, np.ones(len(phi))])
    precision = np.array([0.7, 0.7, 0.7, 0.7, 3.0])
    weights = at_mode(with_one, y + 1, precision, 0.5)
    model = nn.Linear(4, 1).double()
    model.weight.data, model.bias.data = tensor(weights[:4].T), tensor(weights[4])
    found = nas_evidence.estimate_evidence(
        model,
        tensor(phi),
        tensor(y + 1),
        likelihood="gaussian",
        curvature="full_ggn",
        prior_precision=[0.7, 3.0],
        noise_std=0.5,
    )
    assert found.value == pytest.approx(log_evidence(with_one, y + 1, precision, 0.5), rel=1e-9)


def test_a_fitted_prior_has_the_largest_evidence_at_the_weights() -> None:
    phi, y = regression()
    weights = at_mode(phi, y, 0.7, 0.5)
    model = nn.Linear(4, 1, bias=False).double()
    model.weight.data = tensor(weights.T)
    found = nas_evidence.estimate_evidence(
        model,
        tensor(phi),
        tensor(y),
        likelihood="gaussian",
        curvature="full_ggn",
        prior_precision="fit",
        noise_std=0.5,
    )
    misses = ((y - phi @ weights) ** 2).sum() / 0.5**2
    fit = -misses / 2 - len(y) * np.log(0.5 * np.sqrt(2 * np.pi))
    curved = np.linalg.eigvalsh(phi.T @ phi / 0.5**2)

    def minus_laplace(log_precision: Floats) -> float:
        precision = np.exp(log_precision[0])
        prior = precision * (weights**2).sum() + np.log1p(curved / precision).sum()
        return float(prior / 2 - fit)

    best = minimize(minus_laplace, np.zeros(1), method="Nelder-Mead", tol=1e-10)
    assert found.value == pytest.approx(-best.fun, abs=1e-6)


class Boundary(nn.Module):
    """Two classes with the logits 0 and w·x."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.map(x)
        return torch.cat([torch.zeros_like(logits), logits], 1)


def test_the_evidence_of_a_classifier_is_near_that_of_a_grid_of_its_weights() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(50, 2))
    y = (x @ [1.5, -1.0] + random.logistic(size=50) > 0).astype(np.int64)
    axis = np.linspace(-8, 8, 201)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    signed = (2 * y - 1)[:, None] * (x @ grid.T)  # [n, grid]
    joint = -np.logaddexp(0, -signed).sum(0) + multivariate_normal.logpdf(grid, cov=np.eye(2))
    truth = logsumexp(joint) + 2 * np.log(axis[1] - axis[0])
    model = Boundary().double()
    mode = minimize(
        lambda w: np.logaddexp(0, -(2 * y - 1) * (x @ w)).sum() + w @ w / 2, np.zeros(2), tol=1e-10
    ).x
    model.map.weight.data = tensor(mode[None])
    found = nas_evidence.estimate_evidence(
        model,
        tensor(x),
        torch.tensor(y),
        likelihood="categorical",
        curvature="full_ggn",
        prior_precision=1.0,
    )
    assert found.value == pytest.approx(truth, abs=0.05)


def classes() -> tuple[Tensor, Tensor]:
    """Return standardised inputs [178, 13] and labels of three classes."""
    x, y = load_wine(return_X_y=True)
    return torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32), torch.tensor(y)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 8), nn.Tanh(), nn.Linear(8, 3))


def epoch(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    for rows in torch.arange(len(x)).split(32):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()


@pytest.mark.parametrize("curvature", CURVATURES)
def test_the_evidence_of_a_network_is_below_its_log_likelihood_and_its_weights_stay(
    curvature: str,
) -> None:
    x, y = classes()
    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        epoch(model, optimiser, x, y)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = nas_evidence.estimate_evidence(
        model, x, y, likelihood="categorical", curvature=curvature, prior_precision=1.0
    )
    logits = model(x).detach().double().numpy()
    fit = log_softmax(logits, 1)[np.arange(len(y)), y.numpy()].sum()
    size = sum(float((value.double() ** 2).sum()) for value in before.values())
    assert found.valid
    assert np.isfinite(found.value)
    assert found.value < fit - size / 2  # of |H + Δ| / |Δ| the logarithm is above 0
    assert all((value == before[name]).all() for name, value in model.state_dict().items())


def test_an_own_loop_learns_the_prior_and_the_noise_of_most_evidence() -> None:
    phi, y = (each[:12] for each in regression())  # so few that the prior moves the weights
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False).double()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    laplace = nas_evidence.online_laplace(
        model,
        optimiser,
        (tensor(phi), tensor(y)),
        likelihood="gaussian",
        every=10,
        curvature="full_ggn",
        noise_std=2.0,
    )
    for _ in range(400):
        optimiser.zero_grad()
        laplace.loss(model(tensor(phi)), tensor(y)).backward()
        optimiser.step()
        laplace.after_epoch()
    best = minimize(
        lambda logs: -log_evidence(phi, y, np.exp(logs[0]), np.exp(logs[1])),
        np.zeros(2),
        method="Nelder-Mead",
        tol=1e-8,
    )
    precision, noise = np.exp(best.x)
    assert laplace.prior_precision["weight"] == pytest.approx(precision, rel=1e-3)
    assert laplace.noise_std == pytest.approx(noise, rel=1e-3)
    weights = model.weight.data.numpy().T
    assert weights == pytest.approx(at_mode(phi, y, precision, noise), abs=1e-3)
    assert laplace.history[-1][1] == pytest.approx(-best.fun, abs=1e-3)
    assert laplace.history[0][1] < laplace.history[-1][1] < -best.fun + 1e-3


def test_an_own_loop_gains_evidence_on_classes_and_continues_from_its_state() -> None:
    x, y = classes()

    def begun() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = network()
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        laplace = nas_evidence.online_laplace(
            model, optimiser, (x, y), likelihood="categorical", every=5, curvature="kfac_ggn"
        )
        return model, optimiser, laplace

    def train(
        model: nn.Module, optimiser: torch.optim.Optimizer, laplace: Any, n_epochs: int
    ) -> None:
        for _ in range(n_epochs):
            epoch(model, optimiser, x, y)
            laplace.after_epoch()

    first = begun()
    train(*first, 20)
    kept = io.BytesIO()
    torch.save([each.state_dict() for each in first], kept)
    train(*first, 20)
    found = first[-1]
    values = [value for _, value in found.history]
    assert [at for at, _ in found.history] == [*range(5, 41, 5)]
    assert values[0] < values[-1] < 0
    precisions = [*found.prior_precision.values()]
    assert len({*precisions}) == 4
    assert min(precisions) > 0

    kept.seek(0)
    again = begun()
    for each, state in zip(again, torch.load(kept), strict=True):
        each.load_state_dict(state)
    train(*again, 20)
    assert again[-1].history == found.history
    assert again[-1].prior_precision == found.prior_precision


def test_every_estimate_of_the_audit_keeps_its_claim() -> None:
    found = {
        row["estimator"]: row
        for row in json.loads(command("audit", "--only", "linear-3", "--json").out)
    }
    assert {"diag_ef", "diag_ggn", "kfac_ggn", "block_ggn", "full_ggn"} <= found.keys()
    assert {"sotl", "sgd_entropy", "thermodynamic", "conditional_evidence"} <= found.keys()
    for row in found.values():
        assert row["holds"], row
        assert np.isfinite(row["value"])
        assert row["low"] is None or row["low"] <= row["value"], row
        assert row["high"] is None or row["value"] <= row["high"], row
    for name in ("full_ggn", "conditional_evidence"):
        assert found[name]["value"] == pytest.approx(found[name]["truth"], rel=1e-8)
    for name in ("sotl", "sgd_entropy"):  # lower bounds
        assert found[name]["value"] < found[name]["truth"]
    assert found["thermodynamic"]["value"] == pytest.approx(found["full_ggn"]["truth"], abs=0.5)


def test_an_unknown_problem_of_the_audit_is_bad_usage() -> None:
    command("audit", "--only", "linear-0", code=2)
