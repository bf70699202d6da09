"""The direction of L-BFGS."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nas_evidence.training.quasi_newton import Pairs, Start, _direction

P = 6


def problem(n_pairs: int, seed: int) -> tuple[Tensor, Start]:
    """A gradient, and pairs of a quadratic loss c y₁ + D s with a preconditioner that is wrong."""
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(P, P, generator=g, dtype=torch.float64)
    precision = torch.rand(P, generator=g, dtype=torch.float64) + 0.1
    steps = torch.randn(n_pairs, P, generator=g, dtype=torch.float64)
    gradient = torch.randn(P, generator=g, dtype=torch.float64)
    diagonal = torch.rand(P, generator=g, dtype=torch.float64) + 0.1
    pairs = Pairs(steps, steps @ root @ root.T)
    start = Start(steps[0], pairs, lambda v: v / diagonal, precision, 0.7, 10, 0.0)
    return gradient, start


def inverse_hessian(start: Start) -> Tensor:
    """The matrix B [P, P] of the BFGS updates of the preconditioner, one pair after the other."""
    eye = torch.eye(P, dtype=torch.float64)
    b = torch.stack([start.precondition(column) for column in eye], 1)
    for step, change in zip(start.pairs.steps, start.pairs.changes, strict=True):
        y = start.likelihood_scale * change + start.precision * step
        if (curvature := float(step @ y)) > 0:
            left = eye - torch.outer(step, y) / curvature
            b = left @ b @ left.T + torch.outer(step, step) / curvature
    return b


@pytest.mark.parametrize("n_pairs", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_product_with_the_matrix_of_the_bfgs_updates(n_pairs: int, seed: int) -> None:
    gradient, start = problem(n_pairs, seed)
    expected = inverse_hessian(start) @ gradient
    assert_close(_direction(gradient, start.pairs, start), expected, rtol=1e-9, atol=1e-9)


def test_a_pair_of_negative_curvature_is_left_out() -> None:
    gradient, start = problem(4, 0)
    changes = start.pairs.changes.clone()
    changes[2] = -10 * changes[2]
    start = Start(**{**vars(start), "pairs": Pairs(start.pairs.steps, changes)})
    expected = inverse_hessian(start) @ gradient
    assert_close(_direction(gradient, start.pairs, start), expected, rtol=1e-9, atol=1e-9)


def test_the_newest_change_of_the_gradient_gives_the_newest_step() -> None:
    _, start = problem(3, 1)
    step, change = start.pairs.steps[-1], start.pairs.changes[-1]
    newest = start.likelihood_scale * change + start.precision * step
    assert_close(_direction(newest, start.pairs, start), step, rtol=1e-9, atol=1e-9)


def test_without_pairs_it_is_that_of_the_preconditioner() -> None:
    gradient, start = problem(1, 2)
    none = Pairs.none(gradient)
    assert_close(_direction(gradient, none, start), start.precondition(gradient))
