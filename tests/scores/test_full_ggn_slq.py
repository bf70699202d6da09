"""The full curvature by its products: exact where small, else no further off than said."""

import copy
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from nas_evidence.curvature.likelihood import Categorical, Gaussian
from nas_evidence.curvature.products import LogJoint
from nas_evidence.data import load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.scores import full_ggn_slq
from nas_evidence.scores.full_ggn_slq import evidence_by_products
from nas_evidence.spec.record import EvidenceEstimate
from nas_evidence.spec.study import DatasetSpec


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def regression(precision: float) -> LogJoint:
    """273 parameters, 200 data, noise 0.1."""
    torch.manual_seed(0)
    x = torch.randn(200, 15).double()
    model = nn.Sequential(nn.Linear(15, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    return LogJoint(model, x, torch.sin(x[:, :1]), Gaussian(0.1),
                    torch.full((273,), precision).double(), 1.0, 200)  # fmt: skip


@cache
def learned() -> tuple[nn.Module, Tensor, Tensor]:
    data = to_tensors(load(DatasetSpec(name="digits", max_train=100, max_test=10), seed=0), "cpu")
    x, y = data.x_train.flatten(1).double(), data.y_train
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 2), nn.Tanh(), nn.Linear(2, 10)).double()
    step = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        step.zero_grad()
        nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
        step.step()
    return model, x, y


def digits(precision: float) -> LogJoint:
    """100 digits, learned; 160 parameters."""
    model, x, y = learned()
    delta = torch.full((len(flat(model)),), precision).double()
    return LogJoint(copy.deepcopy(model), x, y, Categorical(), delta, 1.0, 100)


def by_dense_algebra(joint: LogJoint) -> tuple[float, float]:
    """Return the evidence and γ from the Jacobian, row by row."""
    model = copy.deepcopy(joint.model)
    outputs = model(joint.inputs)
    parameters = list(model.parameters())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(f, parameters, retain_graph=True)])
        for f in outputs.flatten()
    ]
    jacobian = torch.stack(rows).view(*outputs.shape, -1)
    if isinstance(joint.likelihood, Gaussian):
        weights = torch.eye(1).double().expand(len(outputs), 1, 1) / joint.likelihood.noise_std**2
    else:
        p = outputs.detach().softmax(1)
        weights = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    hessian = torch.einsum("ncp,ncd,ndq->pq", jacobian, weights, jacobian)
    scale = joint.precision.rsqrt()
    values = torch.linalg.eigvalsh(scale[:, None] * hessian * scale).clamp(min=0)
    evidence = -joint.value(flat(model)) - 0.5 * float(values.log1p().sum())
    return evidence, float((values / (1 + values)).sum())


def found_of(joint: LogJoint, seed: int = 0, **options: int) -> EvidenceEstimate:
    generator = torch.Generator().manual_seed(seed)
    return evidence_by_products(joint, flat(joint.model), generator, **options)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("precision", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("problem", [regression, digits])
def test_a_small_network_has_no_error_at_any_precision(problem: object, precision: float) -> None:
    joint = problem(precision)  # type: ignore[operator]
    truth, gamma = by_dense_algebra(joint)
    found = found_of(joint)
    terms = {term.term: term.value for term in found.terms}
    assert found.valid
    assert found.standard_error == 0
    assert found.value == pytest.approx(truth, rel=1e-6)
    assert terms["effective_parameters"] == pytest.approx(gamma, rel=1e-4)


@pytest.mark.parametrize("precision", [1e-3, 1.0])
def test_few_data_have_no_error_with_many_parameters(precision: float) -> None:
    """12 data with 2 outputs, 2,000 parameters: twice 24 + 5 products."""
    torch.manual_seed(0)
    x = torch.randn(12, 97).double()
    model = nn.Sequential(nn.Linear(97, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    delta = torch.full((len(flat(model)),), precision).double()
    joint = LogJoint(model, x, torch.randn(12, 2).double(), Gaussian(0.3), delta, 1.0, 12)
    found = found_of(joint, n_exact=24)
    scale = delta.rsqrt()
    outputs = model(x)
    rows = torch.stack([
        torch.cat([g.flatten() for g in
                   torch.autograd.grad(f, list(model.parameters()), retain_graph=True)])
        for f in outputs.flatten()
    ]) * scale / 0.3  # fmt: skip
    log_det = float(torch.linalg.slogdet(torch.eye(24) + rows @ rows.mT)[1])
    assert found.standard_error == 0
    assert found.note == "58 products"
    assert found.value == pytest.approx(-joint.value(flat(model)) - log_det / 2, rel=1e-9)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "precision"), [(regression, 1e-3), (regression, 1.0), (digits, 1e-3)]
)
def test_probes_are_as_far_off_as_they_say_and_not_to_one_side(
    problem: object, precision: float
) -> None:
    joint = problem(precision)  # type: ignore[operator]
    truth, _ = by_dense_algebra(joint)
    found = [found_of(joint, seed, n_exact=0) for seed in range(4)]
    errors = [(one.value - truth) / (one.standard_error or 1e-9) for one in found]
    assert all(one.valid for one in found)
    assert max(abs(error) for error in errors) < 4
    # The errors are those of eight probes, with tails: 7 degrees of freedom, 1.2 for the spread.
    assert abs(sum(errors)) / 4 < 4 * 1.2 / 4**0.5


def test_a_quadrature_that_has_not_converged_is_not_valid_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a precision of 1e-6, ten steps, the value was 250 to 480 nats too low, and valid."""
    monkeypatch.setattr(full_ggn_slq, "N_STEPS", 10)
    joint = regression(1e-6)
    truth, _ = by_dense_algebra(joint)
    found = found_of(joint, n_exact=0)
    assert not found.valid
    assert found.note.startswith("after 10 Lanczos steps the log determinant is known to")
    assert abs(found.value - truth) < 2 * (found.standard_error or 0)
