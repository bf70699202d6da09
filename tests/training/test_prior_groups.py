"""Which tensors share a precision, and what that does to the optimum."""

import doctest

import pytest
import torch
from cases import SPECTRAL_NORMS as NORMS
from cases import case, spectral_problem
from torch import nn
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.evidence.laplace import laplace_estimate, log_evidence, squared_norms
from nas_evidence.maths.blocks import Diagonal
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.training import prior_groups as module
from nas_evidence.training.hyperparameters import (
    LOG_PRECISION_RANGE,
    precision_of_each_parameter,
    update_prior_precision,
)
from nas_evidence.training.prior_groups import ties_of

SHAPES = ((8, 5), (5,), (3, 4), (3,))  # of the sizes of `spectral_problem`
GROUPS = ("tensor", "module", "kind", "scalar", "width")
METHODS = ("newton", "adam", "mackay")


def _evidence(curvature: BlockDiagonal, delta: torch.Tensor) -> torch.Tensor:
    return log_evidence(0.0, curvature, squared_norms=NORMS, prior_precision=delta)


def _update(method: str, groups: str, *, start: float = 1.0) -> torch.Tensor:
    curvature = spectral_problem()
    return update_prior_precision(
        curvature.spectra(),
        NORMS,
        curvature.sizes,
        torch.full((4,), start, dtype=torch.float64),
        method=method,
        steps=3000,
        learning_rate=0.05,
        groups=groups,
        names=curvature.names,
        shapes=SHAPES,
    )


def test_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(module).failed == 0


def test_kinds_are_told_by_name_and_shape() -> None:
    c = case("residual")  # convolutions, Fixup scalars, a linear layer
    named = list(c.model.named_parameters())
    ties = ties_of("kind", [n for n, _ in named], [p.shape for _, p in named])
    found = {n: g for (n, _), g in zip(named, ties.member, strict=True)}
    assert found["stem.weight"] == found["conv.weight"]
    assert found["before.bias"] == found["scale.scale"] == found["after.bias"]
    assert len({found[n] for n in ("stem.weight", "scale.scale", "head.weight", "head.bias")}) == 4
    one = nn.Linear(3, 1)  # its bias has the shape of a scalar
    shapes = [p.shape for p in one.parameters()]
    assert ties_of("kind", ["0.weight", "0.bias"], shapes).member == (0, 1)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("method", METHODS)
def test_methods_agree_to_a_thousandth_of_a_nat(method: str, groups: str) -> None:
    curvature = spectral_problem()
    best = _evidence(curvature, _update("newton", groups))
    found = _evidence(curvature, _update(method, groups))
    assert_close(found, best, rtol=0, atol=1e-3)
    assert best >= found - 1e-9


@pytest.mark.parametrize("groups", GROUPS)
def test_gradient_along_each_group_is_zero(groups: str) -> None:
    curvature = spectral_problem()
    delta = _update("newton", groups)
    log_delta = delta.log().requires_grad_()
    value = _evidence(curvature, log_delta.exp())
    (gradient,) = torch.autograd.grad(value, log_delta)
    ties = ties_of(groups, curvature.names, SHAPES)
    sums = torch.zeros(4).double().index_add(0, torch.tensor(ties.member), gradient)
    assert_close(sums, torch.zeros(4).double(), rtol=0, atol=1e-8)
    assert_close(
        delta / torch.tensor(ties.scale).double(),
        (delta / torch.tensor(ties.scale).double())[[ties.member.index(g) for g in ties.member]],
    )


def test_width_scaled_precisions_have_the_ratio_of_the_fan_in() -> None:
    delta = _update("newton", "width")
    assert_close(delta / delta[1], torch.tensor([5.0, 1.0, 4.0, 1.0]).double())


@pytest.mark.parametrize("start", [1e-5, 1e7])
def test_half_steps_of_mackay_arrive_from_any_start(start: float) -> None:
    # The undamped map nearly repeats with period two where δ is far above λ.
    expected = _update("newton", "tensor")
    assert_close(_update("mackay", "tensor", start=start), expected, rtol=1e-5, atol=0)


def test_dead_tensors_stop_at_the_bounds_or_stay_with_mackay() -> None:
    zero, some = torch.zeros(3).double(), torch.ones(3).double()
    curvature = BlockDiagonal(("a", "b", "c"), (Diagonal(some), Diagonal(zero), Diagonal(zero)))
    found = update_prior_precision(
        curvature.spectra(),
        torch.tensor([0.0, 1.0, 0.0]).double(),
        curvature.sizes,
        torch.full((3,), 3.0).double(),
        method="mackay",
        steps=1,
        learning_rate=1.0,
        groups="tensor",
        names=curvature.names,
    )
    low, high = torch.tensor(LOG_PRECISION_RANGE).double().exp()
    assert_close(found, torch.stack([high, low, torch.tensor(3.0).double()]))


def test_one_precision_for_each_parameter_is_stationary_and_best() -> None:
    c = case("mlp")
    passed = curvature_pass("diag_ggn", c.model, c.x, c.y, c.likelihood, batch_size=4)
    theta = torch.cat([p.detach().flatten() for p in c.model.parameters()])
    curvature = passed.curvature
    assert isinstance(curvature, BlockDiagonal)
    delta = precision_of_each_parameter(curvature, theta.square(), torch.ones(len(theta)))
    h = torch.cat(curvature.spectra())
    inside = (delta.log() > LOG_PRECISION_RANGE[0]) & (delta.log() < LOG_PRECISION_RANGE[1])
    assert_close((delta * theta.square())[inside], (h / (h + delta))[inside], rtol=1e-9, atol=0)
    found = laplace_estimate("diag_ggn", passed, c.model, delta)
    tied = update_prior_precision(
        curvature.spectra(),
        squared_norms(c.model),
        curvature.sizes,
        torch.ones(4).double(),
        method="newton",
        steps=1,
        learning_rate=1.0,
        groups="tensor",
        names=curvature.names,
    )
    assert found.value > laplace_estimate("diag_ggn", passed, c.model, tied).value
    spread = tied.repeat_interleave(torch.tensor(curvature.sizes))
    assert_close(
        laplace_estimate("diag_ggn", passed, c.model, spread).value,
        log_evidence(
            passed.log_likelihood,
            curvature,
            squared_norms=squared_norms(c.model),
            prior_precision=tied,
        ).item(),
    )


def test_dead_parameters_stop_at_the_bounds_or_stay() -> None:
    h = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    square = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    curvature = BlockDiagonal(("w",), (Diagonal(h),))
    found = precision_of_each_parameter(curvature, square, torch.full((3,), 3.0))
    low, high = torch.tensor(LOG_PRECISION_RANGE).double().exp()
    assert_close(found, torch.stack([high, low, torch.tensor(3.0).double()]))


def test_mistakes_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="`shapes` must hold the shapes of 2"):
        ties_of("width", ("a.weight", "a.bias"))
    with pytest.raises(ValueError, match="`groups` must be"):
        ties_of("layer", ("a.weight",))
    with pytest.raises(ValueError, match="`method` must be"):
        _update("sgd", "tensor")
    c = case("mlp")
    passed = curvature_pass("kfac_ggn", c.model, c.x, c.y, c.likelihood, batch_size=4)
    with pytest.raises(ValueError, match="needs a diagonal kind"):
        precision_of_each_parameter(passed.curvature, torch.ones(43), torch.ones(43))
    with pytest.raises(ValueError, match="needs a diagonal kind"):
        laplace_estimate("kfac_ggn", passed, c.model, torch.ones(43))
