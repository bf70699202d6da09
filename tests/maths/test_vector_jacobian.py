"""Products of vectors with Jacobians: those of autograd."""

import pytest
import torch

from nas_evidence.maths.vector_jacobian import vector_jacobian


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
