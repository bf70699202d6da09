"""Roots, products with Jacobians, largest eigenvalues: scipy's, autograd's, closed forms."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from nas_evidence.maths.largest_eigenvalue import largest_eigenvalue
from nas_evidence.maths.root_finding import root
from nas_evidence.maths.vector_jacobian import vector_jacobian

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "convex": lambda x: math.exp(x) - 5,
    "nearly flat at its root": lambda x: (x - 0.3) ** 3 + 1e-3 * (x - 0.3),
    "steep then flat": lambda x: math.atan(40 * (x - 1)) + 0.1 * math.sin(x),
    "a jump": lambda x: -1.0 if x < 1 / 3 else 2.0,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_roots_are_those_of_scipy_bit_by_bit(name: str) -> None:
    function, generator = FUNCTIONS[name], np.random.default_rng(0)
    for xtol in (1e-13, 1e-9, 1e-3):
        for _ in range(20):
            low, high = -float(generator.uniform(0, 40)), float(generator.uniform(2, 40))
            assert root(function, low, high, xtol=xtol) == brentq(function, low, high, xtol=xtol)


def test_a_bound_may_be_the_root() -> None:
    assert root(lambda x: x, 0.0, 1.0, xtol=1e-9) == 0.0
    assert root(lambda x: x - 1, 0.0, 1.0, xtol=1e-9) == 1.0


@pytest.mark.parametrize(
    "function", [lambda x: x + 2, lambda _: math.nan], ids=["one sign", "not a number"]
)
def test_without_a_change_of_sign_there_is_no_root(function: Callable[[float], float]) -> None:
    with pytest.raises(ValueError, match="no root is found"):
        root(function, 0.0, 1.0, xtol=1e-9)


# --- products of vectors with Jacobians: those of autograd


def outputs_of(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tanh(x @ w), (x.square() @ w).exp()


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(5, 3), torch.randn(3, 2)
    return x.requires_grad_(), w.requires_grad_()


def test_one_product_is_that_of_autograd_bit_by_bit(
    inputs: tuple[torch.Tensor, torch.Tensor],
) -> None:
    one, _ = outputs_of(*inputs)
    v = torch.randn_like(one)
    expected = torch.autograd.grad(one, inputs, v, retain_graph=True)
    with torch.no_grad():  # as autograd's own, it needs no graph mode
        found = vector_jacobian(one, inputs, v)
    assert all(map(torch.equal, found, expected))


def test_products_of_several_outputs_add_up(inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    both = outputs_of(*inputs)
    vectors = [torch.randn_like(o) for o in both]
    expected = torch.autograd.grad(both, inputs, vectors, retain_graph=True)
    found = vector_jacobian(both, inputs, vectors)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_it_is_linear_in_a_vector_that_is_differentiated_through(
    inputs: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """The product with the Jacobian itself, J d, is the derivative of Jᵀ v in v."""
    x, w = inputs
    one, _ = outputs_of(x, w)
    free = torch.zeros_like(one, requires_grad=True)
    (back,) = vector_jacobian(one, w, free, create_graph=True)
    direction = torch.randn_like(w)
    (moved,) = vector_jacobian([back], free, [direction])
    whole = torch.autograd.functional.jacobian(lambda w: outputs_of(x.detach(), w)[0], w.detach())
    torch.testing.assert_close(moved, torch.einsum("nckl,kl->nc", whole, direction))


# --- the largest eigenvalue from above: exact in closed form, never below the truth at random


def matrices(values: Tensor, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    size = len(values)
    basis = torch.linalg.qr(torch.randn(count, size, size, generator=generator).double())[0]
    return (basis * values) @ basis.mT


def limits(a: Tensor, seed: int = 0, **known: int) -> tuple[Tensor, Tensor]:
    return largest_eigenvalue(
        lambda v: (a @ v[..., None])[..., 0], a[..., 0],
        generator=torch.Generator().manual_seed(seed), **known,
    )  # fmt: skip


@pytest.mark.parametrize(
    "values", [[-3.0, 0.2, 0.5], [1.0] * 6, [0.0] * 4, [0.7], [-2.0, -1.0]], ids=str
)
def test_with_a_step_for_each_dimension_both_limits_are_the_eigenvalue(
    values: list[float],
) -> None:
    a = matrices(torch.tensor(values, dtype=torch.float64), 5)
    low, high = limits(a)
    expected = torch.full((5,), max(values), dtype=torch.float64)
    torch.testing.assert_close(low, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(high, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("size", [60, 300])
@pytest.mark.parametrize("spectrum", ["even", "one_out", "close_pair", "negative"])
def test_the_truth_is_between_the_limits(size: int, spectrum: str) -> None:
    values = torch.linspace(-0.2, 0.3, size).double()
    if spectrum == "one_out":
        values[-1] = 0.6
    elif spectrum == "close_pair":
        values[-2:] = torch.tensor([0.5999, 0.6])
    elif spectrum == "negative":
        values = values - 1.0
    a = matrices(values, 40 if size == 60 else 8)
    low, high = limits(a)
    truth = float(values.max())
    assert bool((low <= truth + 1e-12).all())
    assert bool((high >= truth).all())
    assert bool((high - low < 0.25 * (values.max() - values.min())).all())


def test_too_few_steps_for_a_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="`n_steps` must be larger for 60 parameters, but got 5"):
        limits(matrices(torch.ones(60).double(), 1), n_steps=5)
