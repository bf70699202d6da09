"""Laplace evidence: closed forms, nesting, terms, refusals."""

import math

import pytest
import reference
import torch
from cases import CASES, Case, case, laplace_value
from messages import refused
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from nas_evidence import EvidenceEstimate, estimate_evidence
from nas_evidence.curvature import KINDS, curvature_pass
from nas_evidence.curvature.gradient import log_likelihood_gradient
from nas_evidence.evidence.laplace import laplace_estimate, squared_norms
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.maths.structured import FullKernel
from nas_evidence.spec.registry import SCORES


def _linear(
    n: int = 12, *, bias: bool, n_outputs: int = 2, at_mode: bool = False
) -> tuple[Case, float]:
    """A linear model at its mode or far from it, and the exact log density of the targets."""
    generator = torch.Generator().manual_seed(n + n_outputs)
    x, y = (torch.randn(n, d, generator=generator).double() for d in (3, n_outputs))
    delta, variance = torch.tensor([0.8, 2.5][: 1 + bias], dtype=torch.float64), 0.49
    features = torch.cat([x, torch.ones(n, 1).double()], 1) if bias else x
    spread = torch.cat([delta[:1].expand(3), delta[1:]])
    weights = 3 * torch.randn(features.shape[1], n_outputs, generator=generator).double()
    if at_mode:
        precision = features.T @ features / variance + torch.diag(spread)
        weights = torch.linalg.solve(precision, features.T @ y) / variance
    model = nn.Linear(3, n_outputs, bias=bias).double()
    with torch.no_grad():
        for parameter, rows in zip(model.parameters(), (weights[:3].T, weights[-1]), strict=False):
            parameter.copy_(rows)
    covariance = features @ torch.diag(1 / spread) @ features.T + variance * torch.eye(n).double()
    exact = MultivariateNormal(torch.zeros(n).double(), covariance).log_prob(y.T).sum()
    return Case(model, x, y, 0.7, delta), exact.item()


def value(kind: str, c: Case) -> float:
    return c.estimate(kind, batch_size=5).value


@pytest.mark.parametrize("kind", ["kfac_ggn", "ekfac_ggn", "block_ggn", "full_ggn"])
def test_one_tensor_leaves_nothing_to_approximate(kind: str) -> None:
    c, exact = _linear(bias=False, at_mode=True)
    assert_close(value(kind, c), exact, rtol=1e-10, atol=0)


def test_kernel_form_is_exact_too() -> None:
    c, exact = _linear(2, bias=True, n_outputs=3, at_mode=True)  # 6 rows, 12 parameters
    passed = curvature_pass("full_ggn", c.model, c.x, c.y, c.likelihood, batch_size=2)
    assert isinstance(passed.curvature, FullKernel)
    assert_close(value("full_ggn", c), exact, rtol=1e-10, atol=0)


def test_gradients_in_prior_and_noise_are_those_of_the_closed_form() -> None:
    # A reference code detaches the Kronecker factors here, and loses the noise's gradient.
    c, _ = _linear(bias=False, n_outputs=1, at_mode=True)
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
        ({"temperature": 0.0}, "temperature > 0"),
        ({"likelihood_power": 0.0}, "likelihood_power > 0"),
        ({"likelihood_power": math.inf}, "likelihood_power > 0"),
        ({"likelihood": "gaussian", "noise_std": 1.0, "temperature": 2.0}, "`temperature` is for"),
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


# --- the public call: targets, tempering, and parameters that are not a mode


def term(found: EvidenceEstimate, name: str) -> float:
    (value,) = (t.value for t in found.terms if t.term == name)
    return value


@pytest.mark.parametrize("n", [2, 12])  # two data points: the kernel form
def test_correction_makes_linear_regression_exact_at_any_parameters(n: int) -> None:
    c, exact = _linear(n, bias=True)
    plain = c.estimate("full_ggn")
    corrected = c.estimate("full_ggn", at_mode_correction=True)
    assert_close(corrected.value, exact, rtol=1e-10, atol=0)
    assert plain.value < exact - 1
    assert "not at a mode" in plain.note
    assert_close(term(corrected, "at_mode_correction"), corrected.value - plain.value)
    assert "at_mode_correction" not in {t.term for t in plain.terms}
    assert_close(term(plain, "gradient_norm_squared"), 2 * (exact - plain.value))


@pytest.mark.parametrize("kind", ["kfac_ggn", "ekfac_ggn", "block_ggn"])
def test_correction_is_exact_for_one_tensor(kind: str) -> None:
    c, exact = _linear(bias=False)
    assert_close(c.estimate(kind, at_mode_correction=True).value, exact, rtol=1e-10, atol=0)


def test_correction_is_exact_for_a_diagonal_matrix() -> None:
    c, _ = _linear(bias=False)
    c.x = torch.eye(3).double()[torch.arange(12) % 3]
    found = [c.estimate(k, at_mode_correction=True).value for k in ("diag_ggn", "full_ggn")]
    assert_close(found[0], found[1], rtol=1e-12, atol=0)


def test_at_the_mode_there_is_nothing_to_correct() -> None:
    c, exact = _linear(bias=True, at_mode=True)
    found = c.estimate("full_ggn")
    assert 0 <= term(found, "gradient_norm_squared") < 1e-20
    assert found.note == ""
    assert_close(found.value, exact, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_the_log_likelihood_is_autograds(name: str) -> None:
    c = case(name)
    found = log_likelihood_gradient(c.model, c.x, c.y, c.likelihood, batch_size=3)
    c.model.eval()
    value = c.likelihood.log_likelihood(c.model(c.x), c.y)
    expected = torch.autograd.grad(value, list(c.model.parameters()))
    assert_close(found, torch.cat([g.flatten() for g in expected]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in KINDS if not k.endswith("_mc")])
def test_gradient_norm_is_that_of_the_dense_matrix(kind: str) -> None:
    c = case("residual")
    c.model.eval()
    delta = c.prior_precision
    sizes = torch.tensor([p.numel() for p in c.model.parameters()])
    theta = torch.cat([p.detach().flatten() for p in c.model.parameters()])
    g = delta.repeat_interleave(sizes) * theta
    g -= log_likelihood_gradient(c.model, c.x, c.y, Categorical(), batch_size=9)
    if kind.endswith("ef"):
        full = reference.full_ef(c.model, c.x, c.y, None)
    else:
        full = reference.full_ggn(c.model, c.x, None)
    blocks = {
        "diag": [torch.diag(full.diagonal())],
        "block": reference.tensor_blocks(full, c.model),
        "full": [full],
        "kfac": reference.kfac_blocks(c.model, c.x, None) if kind == "kfac_ggn" else [],
    }.get(kind.split("_")[0], [])
    found = term(c.estimate(kind), "gradient_norm_squared")
    if not blocks:  # kfac_ef, ekfac: no dense definition here, but still a norm
        assert 0 < found <= (g.square() / delta.repeat_interleave(sizes)).sum()
        return
    h = torch.block_diag(*blocks) + torch.diag(delta.repeat_interleave(sizes))
    assert_close(found, (g @ torch.linalg.solve(h, g)).item(), rtol=1e-9, atol=0)


class _Divide(nn.Module):
    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs / self.temperature


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in KINDS if "ggn" in k and not k.endswith("_mc")])
def test_a_power_of_two_is_the_data_seen_twice(kind: str) -> None:
    # ... in each of value and distance from the mode, Gaussian normaliser included.
    for name in ("regression", "conv_stride_padding"):
        c = case(name)
        twice = Case(c.model, torch.cat([c.x, c.x]), torch.cat([c.y, c.y]), c.noise_std)
        found, expected = c.estimate(kind, likelihood_power=2.0), twice.estimate(kind)
        assert_close(found.value, expected.value, rtol=1e-9, atol=0)
        norms = [term(e, "gradient_norm_squared") for e in (found, expected)]
        assert_close(norms[0], norms[1], rtol=1e-8, atol=0)


def test_linear_regression_tempered_is_exact_at_any_parameters() -> None:
    # N(y|f, s²)^κ = N(y|f, s²/κ) times a constant in closed form.
    c, _ = _linear(bias=True)
    kappa, variance = 3.0, 0.49
    found = c.estimate("full_ggn", at_mode_correction=True, likelihood_power=kappa)
    same = c.estimate("full_ggn", at_mode_correction=True, noise_std=(variance / kappa) ** 0.5)
    tau = 2 * math.pi * variance
    constant = -0.5 * c.y.numel() * (kappa * math.log(tau) - math.log(tau / kappa))
    assert_close(found.value, same.value + constant, rtol=1e-10, atol=0)


def test_temperature_divides_the_logits() -> None:
    c = case("mlp")
    found = c.estimate("full_ggn", temperature=2.5)
    c.model.eval()
    cool = nn.Sequential(c.model, _Divide(2.5))
    full = reference.full_ggn(cool, c.x, None)
    expected = reference.log_evidence(cool, c.x, c.y, None, c.prior_precision.tolist(), [full])
    assert_close(found.value, expected, rtol=1e-10, atol=0)
    assert term(found, "temperature") == 2.5
    scaled = case("mlp")
    with torch.no_grad():  # the same function with the division in the last layer
        scaled.model[3].weight /= 2.5
        scaled.model[3].bias /= 2.5
    scaled.prior_precision[2:] *= 2.5**2
    for kind in (k for k in KINDS if not k.endswith("_mc")):
        one, other = c.estimate(kind, temperature=2.5), scaled.estimate(kind)
        assert_close(one.value, other.value, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_type_are_taken(dtype: torch.dtype) -> None:
    c = case("mlp")
    expected = c.estimate("kfac_ggn").value
    c.y = c.y.to(dtype)
    assert c.estimate("kfac_ggn").value == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_targets_without_an_axis_for_one_output_are_taken(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
    x, y = torch.randn(8, 3, dtype=dtype), torch.randn(8, 1)
    flat, column = Case(model, x, y[:, 0], 0.5), Case(model, x, y, 0.5)
    for kind in ("diag_ef", "full_ggn"):
        assert flat.estimate(kind).value == column.estimate(kind).value
        assert_close(
            Case(model, x, y.double(), 0.5).estimate(kind).value, column.estimate(kind).value
        )


def test_whole_numbers_are_real_targets_too() -> None:
    c = case("regression")
    c.y = c.y.round()
    expected = c.estimate("full_ef").value
    c.y = c.y.long()
    assert c.estimate("full_ef").value == expected


def test_targets_that_cannot_be_meant_are_refused() -> None:
    c = case("mlp")
    for y, message in ((c.y + 1, "range from 1 to 3"), (c.y.double(), "must be int64")):
        with pytest.raises(ValueError, match=message):
            Case(c.model, c.x, y).estimate("diag_ef")
    r = case("regression")  # two outputs
    with refused("gaussian-targets", "1]", "2]"):
        Case(r.model, r.x, r.y[:, 0], 0.6).estimate("diag_ef")
    passed = curvature_pass("diag_ef", c.model, c.x, c.y, Categorical(), batch_size=4)
    with refused("correction-without-diagnosis"):
        laplace_estimate("diag_ef", passed, c.model, c.prior_precision, at_mode_correction=True)
