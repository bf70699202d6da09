"""A mean and a noise for each datum: the likelihood, its Gauss-Newton matrix, and Laplace."""

import math

import pytest
import torch
from messages import refused
from torch import Tensor, nn
from torch.distributions import Normal
from torch.testing import assert_close

from nas_evidence.evidence.estimate import estimate_evidence
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic

LIKELIHOOD = Heteroscedastic()


def _data(n: int, n_targets: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 2 * n_targets).double(), 2 * torch.randn(n, n_targets).double()


def _tau(z: Tensor) -> Tensor:
    """0.01 + softplus(z + z₀), 1 at z = 0."""
    return 0.01 + (1 + (z + math.log(math.expm1(0.99))).exp()).log()


def _natural(f: Tensor) -> Tensor:
    """(η₁, η₂) of all targets from (η, z) [2 C]."""
    eta, z = f.chunk(2)
    return torch.cat([eta, -0.5 * _tau(z)])


def _log_normaliser(natural: Tensor) -> Tensor:
    one, two = natural.chunk(2)
    return (-(one**2) / (4 * two) - 0.5 * (-2 * two).log()).sum()


def _matrix(f: Tensor) -> Tensor:
    """Gᵀ ∇²A G [2 C, 2 C] by autograd."""
    link = torch.autograd.functional.jacobian(_natural, f)
    inner = torch.autograd.functional.hessian(_log_normaliser, _natural(f))
    return link.T @ inner @ link


def _normal(outputs: Tensor, factor: float = 1.0) -> Normal:
    eta, z = outputs.chunk(2, -1)
    return Normal(eta / _tau(z), factor * _tau(z).rsqrt())


@pytest.mark.parametrize("factor", [1.0, 2.5])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_log_likelihood_is_that_of_torch_with_every_constant(
    n_targets: int, factor: float
) -> None:
    outputs, y = _data(6, n_targets)
    expected = _normal(outputs, factor).log_prob(y).sum()
    likelihood = Heteroscedastic(factor)
    found = likelihood.log_likelihood(outputs.float(), y.float())
    assert found.dtype == torch.float64
    assert_close(likelihood.log_likelihood(outputs, y), expected)
    assert_close(likelihood.nll_mean(outputs, y), -expected / 6)
    assert_close(likelihood.variance(outputs), _normal(outputs, factor).variance)
    assert_close(likelihood.mean(outputs), _normal(outputs).mean)


def test_it_is_the_exponential_family_of_its_natural_parameters() -> None:
    outputs, y = _data(5, 1)
    each = [
        eta[0] * t + eta[1] * t**2 - _log_normaliser(eta) - 0.5 * math.log(2 * math.pi)
        for eta, t in ((_natural(f), t[0]) for f, t in zip(outputs, y, strict=True))
    ]
    assert_close(LIKELIHOOD.log_likelihood(outputs, y), torch.stack(each).sum())


@pytest.mark.parametrize("n_targets", [1, 2])
def test_roots_multiply_to_the_hessian_of_the_log_normaliser_pulled_back(n_targets: int) -> None:
    outputs, _ = _data(7, n_targets)
    roots = LIKELIHOOD.hessian_roots(outputs)
    assert roots.shape == (LIKELIHOOD.n_roots(2 * n_targets), 7, 2 * n_targets)
    for n, f in enumerate(outputs):
        assert_close(roots[:, n].T @ roots[:, n], _matrix(f))


def test_the_matrix_is_the_expected_square_of_the_residual_and_the_expected_hessian() -> None:
    """Fisher's equality, by Gauss-Hermite quadrature, which is exact here."""
    torch.manual_seed(0)
    outputs, _ = _data(1, 2)
    roots = LIKELIHOOD.hessian_roots(outputs)[:, 0]
    z, w = (torch.from_numpy(part) for part in _hermite(9))
    square, second = torch.zeros(4, 4).double(), torch.zeros(4, 4).double()
    model = _normal(outputs[0])
    for a, wa in zip(z, w, strict=True):
        for b, wb in zip(z, w, strict=True):
            y = (model.mean + model.stddev * torch.stack([a, b]))[None]
            r = LIKELIHOOD.residual(outputs, y)[0]
            square += wa * wb * torch.outer(r, r)
            second -= (
                wa
                * wb
                * torch.autograd.functional.hessian(
                    lambda f, y=y: LIKELIHOOD.log_likelihood(f[None], y), outputs[0]
                )
            )
    assert_close(square, roots.T @ roots, rtol=1e-10, atol=1e-10)
    assert_close(second, roots.T @ roots, rtol=1e-10, atol=1e-10)


def _hermite(n: int) -> tuple:  # type: ignore[type-arg]
    import numpy as np

    z, w = np.polynomial.hermite_e.hermegauss(n)
    return z, w / w.sum()


def test_the_hessian_in_mean_and_log_precision_is_indefinite() -> None:
    def nll(f: Tensor) -> Tensor:
        return -Normal(f[0], (-0.5 * f[1]).exp()).log_prob(torch.tensor(1.0).double())

    whole = torch.autograd.functional.hessian(nll, torch.tensor([0.3, 0.2]).double())
    assert float(torch.linalg.eigvalsh(whole)[0]) < -0.1


def test_the_loss_is_convex_in_natural_parameters_but_not_in_the_outputs() -> None:
    """So a linear network with a noise of each row does not settle as a convex one does."""
    y, f = torch.tensor([[1.0]]).double(), torch.tensor([0.5, -9.0]).double()

    def of_outputs(f: Tensor) -> Tensor:
        return LIKELIHOOD.nll_mean(f[None], y)

    def of_natural(eta: Tensor) -> Tensor:
        return _log_normaliser(eta) - eta[0] * y[0, 0] - eta[1] * y[0, 0] ** 2

    whole = torch.autograd.functional.hessian(of_outputs, f)
    assert float(torch.linalg.eigvalsh(whole)[0]) < 0
    whole = torch.autograd.functional.hessian(of_natural, _natural(f).detach())
    assert float(torch.linalg.eigvalsh(whole)[0]) > 0


def test_the_variance_of_the_mean_is_that_of_its_linearisation() -> None:
    outputs, _ = _data(3, 2)
    root = torch.randn(3, 4, 4).double()
    covariance = root @ root.mT
    for n, f in enumerate(outputs):
        slope = torch.autograd.functional.jacobian(lambda f: LIKELIHOOD.mean(f), f)
        expected = (slope @ covariance[n] @ slope.T).diagonal()
        assert_close(LIKELIHOOD.mean_variance(outputs, covariance)[n], expected)


def test_extreme_outputs_have_finite_values_and_a_least_precision() -> None:
    outputs = torch.tensor([[0.0, 1e6], [5.0, -1e6], [0.0, 0.0]])
    y = torch.zeros(3, 1)
    assert_close(LIKELIHOOD.variance(outputs)[1:, 0], torch.tensor([100.0, 1.0]).double())
    assert bool(LIKELIHOOD.log_likelihood(outputs, y).isfinite())
    assert bool(LIKELIHOOD.residual(outputs, y).isfinite().all())
    assert bool(LIKELIHOOD.hessian_roots(outputs).isfinite().all())


def test_targets_that_do_not_pair_with_the_outputs_are_refused() -> None:
    for outputs, y in ((torch.zeros(3, 2), torch.zeros(3, 2)), (torch.zeros(3, 3), torch.ones(3))):
        with refused("heteroscedastic-targets", list(y.shape), list(outputs.shape)):
            LIKELIHOOD.log_likelihood(outputs, y)
    with refused("spread-factor-not-positive", 0.0):
        Heteroscedastic(0.0)


def _network(n_targets: int) -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2 * n_targets))
    return nn.Sequential(*layers).double()


def _dense(model: nn.Module, x: Tensor) -> Tensor:
    """Σ_n J_nᵀ Λ_n J_n [P, P] by autograd, one datum and one output at a time."""
    parameters, total = list(model.parameters()), torch.zeros(())
    for datum in x:
        outputs = model(datum[None])[0]
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(f, parameters, retain_graph=True)])
            for f in outputs
        ]
        jacobian = torch.stack(rows)
        total = total + jacobian.mT @ _matrix(outputs.detach()) @ jacobian
    return total


def _laplace(model: nn.Module, fit: float, hessian: Tensor, delta: float) -> float:
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    eye = torch.eye(len(theta)).double()
    return float(
        fit - 0.5 * delta * theta @ theta - 0.5 * torch.linalg.slogdet(eye + hessian / delta)[1]
    )


@pytest.mark.parametrize("n_targets", [1, 2])
def test_laplace_values_are_those_of_dense_algebra(n_targets: int) -> None:
    model, delta = _network(n_targets), 0.7
    x, y = torch.randn(20, 3).double(), torch.randn(20, n_targets).double()
    outputs = model(x).detach()
    fit = float(_normal(outputs).log_prob(y).sum())
    hessian = _dense(model, x)
    sizes = [p.numel() for p in model.parameters()]
    blocks = torch.block_diag(
        *(part.split(sizes, 1)[i] for i, part in enumerate(hessian.split(sizes)))
    )
    expected = {
        "full_ggn": hessian,
        "block_ggn": blocks,
        "diag_ggn": hessian.diagonal().diag(),
    }
    for kind, matrix in expected.items():
        found = estimate_evidence(
            model, x, y, likelihood="heteroscedastic", curvature=kind, prior_precision=delta
        )
        assert found.value == pytest.approx(_laplace(model, fit, matrix, delta), rel=1e-9)


def test_kronecker_factors_are_those_of_their_definition() -> None:
    model, delta = _network(1), 0.7
    x, y = torch.randn(20, 3).double(), torch.randn(20, 1).double()
    outputs = model(x).detach()
    hidden = model[1](model[0](x)).detach()  # type: ignore[operator,index]
    roots = LIKELIHOOD.hessian_roots(outputs)
    w = model[2].weight.detach()  # type: ignore[index,union-attr]
    below = torch.stack([(r @ w) * (1 - hidden.square()) for r in roots])  # type: ignore[operator]
    blocks = []
    for inputs, columns in ((x, below), (hidden, roots)):
        g = torch.einsum("kno,knp->op", columns, columns)
        blocks += [torch.kron(g, inputs.mT @ inputs / len(x)), g]
    fit = float(_normal(outputs).log_prob(y).sum())
    found = estimate_evidence(
        model, x, y, likelihood="heteroscedastic", curvature="kfac_ggn", prior_precision=delta
    )
    expected = _laplace(model, fit, torch.block_diag(*blocks), delta)
    assert found.value == pytest.approx(expected, rel=1e-9)


def test_the_empirical_fisher_is_that_of_the_gradients() -> None:
    model, delta = _network(1), 0.7
    x, y = torch.randn(12, 3).double(), torch.randn(12, 1).double()
    outputs, rows = model(x), []
    for f, t in zip(outputs, y, strict=True):
        log_p = _normal(f).log_prob(t)[0]
        gradients = torch.autograd.grad(log_p, list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    fit = float(_normal(outputs.detach()).log_prob(y).sum())
    found = estimate_evidence(
        model, x, y, likelihood="heteroscedastic", curvature="full_ef", prior_precision=delta
    )
    matrix = torch.stack(rows).mT @ torch.stack(rows)
    assert found.value == pytest.approx(_laplace(model, fit, matrix, delta), rel=1e-9)
