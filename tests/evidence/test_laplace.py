"""Laplace evidence: closed forms, nesting, terms, refusals."""

import math

import pytest
import torch
from cases import Case, case, laplace_value
from messages import refused
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from nas_evidence import estimate_evidence
from nas_evidence.curvature import KINDS, curvature_pass
from nas_evidence.evidence.laplace import laplace_estimate, squared_norms
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.structured import FullKernel
from nas_evidence.spec.registry import SCORES

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def _bayesian_linear_regression(
    *, bias: bool, n_outputs: int, n: int = 12, noise_std: float = 0.7
) -> tuple[Case, Tensor]:
    """A linear model at its mode, and the log density of the targets, by the closed form."""
    generator = torch.Generator().manual_seed(n_outputs)
    x = torch.randn(n, 3, generator=generator).double()
    y = torch.randn(n, n_outputs, generator=generator).double()
    delta = torch.tensor([0.8, 2.5][: 1 + bias], dtype=torch.float64)
    features = torch.cat([x, torch.ones(n, 1).double()], 1) if bias else x
    spread = torch.cat([delta[:1].expand(3), delta[1:]])
    precision = features.T @ features / noise_std**2 + torch.diag(spread)
    mode = torch.linalg.solve(precision, features.T @ y) / noise_std**2  # [features, outputs]
    model = nn.Linear(3, n_outputs, bias=bias).double()
    with torch.no_grad():
        model.weight.copy_(mode[:3].T)
        if bias:
            model.bias.copy_(mode[3])
    eye = torch.eye(n).double()
    covariance = features @ torch.diag(1 / spread) @ features.T + noise_std**2 * eye
    exact = MultivariateNormal(torch.zeros(n).double(), covariance).log_prob(y.T).sum()
    return Case(model, x, y, noise_std, delta), exact


def value(kind: str, c: Case) -> float:
    return c.estimate(kind, batch_size=5).value


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_relation_holds_on_bayesian_linear_regression(
    kind: str, bias: bool, n_outputs: int
) -> None:
    c, exact = _bayesian_linear_regression(bias=bias, n_outputs=n_outputs)
    found = value(kind, c)
    if SCORES[kind].relation == "EXACT_ON_LINEAR":
        assert_close(found, exact.item(), rtol=1e-10, atol=0)
    if SCORES[kind].relation == "LOWER_BOUND":
        assert found <= exact.item() + 1e-9


@pytest.mark.parametrize("kind", ["kfac_ggn", "ekfac_ggn", "block_ggn", "full_ggn"])
def test_one_tensor_leaves_nothing_to_approximate(kind: str) -> None:
    c, exact = _bayesian_linear_regression(bias=False, n_outputs=2)
    assert_close(value(kind, c), exact.item(), rtol=1e-10, atol=0)


def test_kernel_form_is_exact_too() -> None:
    c, exact = _bayesian_linear_regression(bias=True, n_outputs=3, n=2)  # 6 rows, 12 parameters
    passed = curvature_pass("full_ggn", c.model, c.x, c.y, c.likelihood, batch_size=2)
    assert isinstance(passed.curvature, FullKernel)
    assert_close(value("full_ggn", c), exact.item(), rtol=1e-10, atol=0)


def test_gradients_in_prior_and_noise_are_those_of_the_closed_form() -> None:
    # A reference code detaches the Kronecker factors here, and loses the noise's gradient.
    c, _ = _bayesian_linear_regression(bias=False, n_outputs=1)
    log_delta = c.prior_precision.log().requires_grad_()
    log_noise = torch.tensor(math.log(c.noise_std), dtype=torch.float64, requires_grad=True)
    eye = torch.eye(12).double()
    covariance = c.x @ c.x.T / log_delta.exp() + (2 * log_noise).exp() * eye
    exact = MultivariateNormal(torch.zeros(12).double(), covariance).log_prob(c.y[:, 0])
    expected = torch.autograd.grad(exact, (log_delta, log_noise))
    passed = curvature_pass("kfac_ggn", c.model, c.x, c.y, Gaussian(1.0), batch_size=5)
    rss = (c.y - c.model(c.x)).square().sum().detach()
    variance = (2 * log_noise).exp()
    fit = -0.5 * rss / variance - 6 * (2 * math.pi * variance).log()
    norms, delta = squared_norms(c.model), log_delta.exp()
    found = laplace_value(fit, passed.curvature, norms, delta, 1 / variance)
    assert_close(found, exact)
    assert_close(torch.autograd.grad(found, (log_delta, log_noise)), expected)


@pytest.mark.parametrize("kind", ["diag_ef", "full_ef", "kfac_ef"])
def test_empirical_fisher_of_regression_scales_with_the_fourth_power_of_the_noise(
    kind: str,
) -> None:
    c = case("regression")
    one = curvature_pass(kind, c.model, c.x, c.y, Gaussian(1.0), batch_size=9)
    half = curvature_pass(kind, c.model, c.x, c.y, Gaussian(0.5), batch_size=9)
    assert_close(half.curvature.trace(), 16 * one.curvature.trace())


def test_dense_curvature_that_cannot_fit_is_refused_with_the_estimate() -> None:
    model = nn.Linear(300_000, 3)
    x = torch.zeros(200_000, 1).expand(-1, 300_000)
    y = torch.zeros(200_000, dtype=torch.int64)
    dense = dict.fromkeys(("full_ggn", "full_ef", "block_ggn"), "kfac_ggn")
    for kind, instead in {**dense, "kfac_ggn": "a diagonal kind"}.items():
        with refused("memory-short", instead):
            curvature_pass(kind, model, x, y, case("mlp").likelihood, batch_size=2)


@pytest.mark.parametrize("kind", KINDS)
def test_terms_add_up_to_the_value(kind: str) -> None:
    c = case("residual")
    found = c.estimate(kind)
    names = [name for name, _ in c.model.named_parameters()]
    terms: dict[str, dict[str, float]] = {}
    for term in found.terms:
        terms.setdefault(term.term, {})[term.group] = term.value
    total = terms["log_likelihood"]["all"]
    total -= 0.5 * (sum(terms["scatter"].values()) + sum(terms["log_det_ratio"].values()))
    assert_close(found.value, total, rtol=1e-12, atol=0)
    assert_close(found.per_datum, found.value / len(c.x))
    assert list(terms["effective_parameters"]) == list(terms["scatter"]) == names
    assert set(terms["log_det_ratio"]) in ({"all"}, set(names))
    assert terms["n_data"] == {"all": len(c.x)}
    assert terms["clamped_eigenvalues"]["all"] >= 0
    sizes = {name: p.numel() for name, p in c.model.named_parameters()}
    for name, effective in terms["effective_parameters"].items():
        assert -1e-9 <= effective <= sizes[name] + 1e-9
    assert found.relation == SCORES[kind].relation
    assert (found.standard_error is not None) == kind.endswith("_mc")


def test_precision_by_name_by_position_and_by_one_number_agree() -> None:
    c = case("mlp")
    names = [name for name, _ in c.model.named_parameters()]
    passed = curvature_pass("diag_ef", c.model, c.x, c.y, c.likelihood, batch_size=4)
    values = [0.1, 0.2, 0.3, 0.4]
    by_name = laplace_estimate("diag_ef", passed, c.model, dict(zip(names, values, strict=True)))
    by_place = laplace_estimate(
        "diag_ef", passed, c.model, torch.tensor(values, dtype=torch.float64)
    )
    assert by_name.value == by_place.value
    arguments = {"likelihood": "categorical", "curvature": "diag_ef"}
    one = estimate_evidence(c.model, c.x, c.y, prior_precision=2.0, **arguments)
    four = estimate_evidence(c.model, c.x, c.y, prior_precision=[2.0] * 4, **arguments)
    assert one.value == four.value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prior_precision": [1.0, 2.0]}, "must hold 4 finite values > 0"),
        ({"prior_precision": 0.0}, "must hold 4 finite values > 0"),
        ({"prior_precision": {"0.weight": 1.0}}, "missing, unknown or constant: 0.bias"),
        ({"likelihood": "poisson"}, "`likelihood` must be"),
        ({"likelihood": "gaussian"}, "`noise_std` must be given"),
        ({"noise_std": 1.0}, "`noise_std` is for"),
        ({"curvature": "kfac"}, "must be one of"),
        ({"n_draws": 0}, "n_draws >= 1"),
    ],
)
def test_mistakes_are_refused_in_words(arguments: dict[str, object], message: str) -> None:
    c = case("mlp")
    given = {"likelihood": "categorical", "curvature": "diag_ef", "prior_precision": 1.0}
    with pytest.raises(ValueError, match=message):
        estimate_evidence(c.model, c.x, c.y, **{**given, **arguments})


@pytest.mark.parametrize("kind", KINDS)
def test_a_diverged_model_gets_an_invalid_estimate_that_says_why(kind: str) -> None:
    c = case("mlp")
    with torch.no_grad():
        c.model[3].bias.fill_(torch.nan)
    found = c.estimate(kind)
    assert not found.valid
    assert found.note == "the log likelihood is nan; not finite: 3.bias"
