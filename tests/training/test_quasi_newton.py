"""The direction of L-BFGS."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nas_evidence.training.quasi_newton import History, Start, _direction, descend

P = 6


def problem(n_updates: int, seed: int) -> tuple[Tensor, Start]:
    """A gradient, and updates of a quadratic loss c y₁ + D s; the preconditioner is wrong."""
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(P, P, generator=g, dtype=torch.float64)
    precision = torch.rand(P, generator=g, dtype=torch.float64) + 0.1
    steps = torch.randn(n_updates, P, generator=g, dtype=torch.float64)
    gradient = torch.randn(P, generator=g, dtype=torch.float64)
    diagonal = torch.rand(P, generator=g, dtype=torch.float64) + 0.1
    history = History(steps, steps @ root @ root.T)
    start = Start(steps[0], history, lambda v: v / diagonal, precision, 0.7, 10, 0.0)
    return gradient, start


def inverse_hessian(start: Start) -> Tensor:
    """The matrix B [P, P] of the BFGS updates of the preconditioner, one pair after the other."""
    eye = torch.eye(P, dtype=torch.float64)
    b = torch.stack([start.precondition(column) for column in eye], 1)
    for step, change in zip(start.history.steps, start.history.changes, strict=True):
        y = start.likelihood_scale * change + start.precision * step
        if (curvature := float(step @ y)) > 0:
            left = eye - torch.outer(step, y) / curvature
            b = left @ b @ left.T + torch.outer(step, step) / curvature
    return b


@pytest.mark.parametrize("n_updates", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_product_with_the_matrix_of_the_bfgs_updates(n_updates: int, seed: int) -> None:
    gradient, start = problem(n_updates, seed)
    expected = inverse_hessian(start) @ gradient
    assert_close(_direction(gradient, start.history, start), expected, rtol=1e-9, atol=1e-9)


def test_a_pair_of_negative_curvature_is_left_out() -> None:
    gradient, start = problem(4, 0)
    changes = start.history.changes.clone()
    changes[2] = -10 * changes[2]
    start = Start(**{**vars(start), "history": History(start.history.steps, changes)})
    expected = inverse_hessian(start) @ gradient
    assert_close(_direction(gradient, start.history, start), expected, rtol=1e-9, atol=1e-9)


def test_the_newest_change_of_the_gradient_gives_the_newest_step() -> None:
    _, start = problem(3, 1)
    step, change = start.history.steps[-1], start.history.changes[-1]
    newest = start.likelihood_scale * change + start.precision * step
    assert_close(_direction(newest, start.history, start), step, rtol=1e-9, atol=1e-9)


def test_without_pairs_it_is_that_of_the_preconditioner() -> None:
    gradient, start = problem(1, 2)
    none = History.none(gradient)
    assert_close(_direction(gradient, none, start), start.precondition(gradient))


class Quadratic:
    """½ θᵀ (2 K + D) θ, with K the curvature of the likelihood at unit noise and c = 2."""

    def __init__(self, hessian: Tensor) -> None:
        self.hessian = hessian

    def values(self, at: Mapping[int, Tensor]) -> dict[int, float]:
        return {k: 0.5 * float(theta @ self.hessian @ theta) for k, theta in at.items()}

    def gradients(self, at: Mapping[int, Tensor]) -> dict[int, tuple[float, Tensor]]:
        return {k: (self.values(at)[k], self.hessian @ theta) for k, theta in at.items()}


def test_pairs_keep_the_part_of_the_likelihood_alone() -> None:
    """So they stay true when the prior changes."""
    curvature, prior = torch.diag(torch.tensor([1.0, 5.0])).double(), torch.tensor([3.0, 0.5])
    prior = prior.double()
    losses = Quadratic(2 * curvature + torch.diag(prior))
    theta = torch.ones(2).double()
    start = Start(theta, History.none(theta), lambda v: v / 10, prior, 2.0, 5, 0.0)
    history = descend(losses, {0: start})[0].history
    assert len(history.steps) >= 2
    assert_close(history.changes, history.steps @ curvature)


def test_a_step_that_is_taken_at_once_costs_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    theta, losses = (
        torch.ones(2).double(),
        Quadratic(torch.diag(torch.tensor([1.0, 4.0]).double())),
    )
    asked: list[str] = []

    def noted(of: Quadratic, at: Mapping[int, Tensor]) -> dict[int, tuple[float, Tensor]]:
        asked.append("gradient")
        return {k: (0.5 * float(v @ of.hessian @ v), of.hessian @ v) for k, v in at.items()}

    def refused(of: Quadratic, at: Mapping[int, Tensor]) -> dict[int, float]:
        raise AssertionError("a value alone")

    monkeypatch.setattr(Quadratic, "gradients", noted)
    monkeypatch.setattr(Quadratic, "values", refused)
    start = Start(theta, History.none(theta), lambda v: v / 4, torch.zeros(2), 1.0, 4, 0.0)
    found = descend(losses, {0: start})[0]
    assert (len(asked), found.n_gradients) == (4, 4)


def test_a_step_that_raises_the_loss_a_little_is_not_taken() -> None:
    """The first step overshoots from 1 to -1.0001."""
    losses, theta = Quadratic(torch.eye(1).double()), torch.ones(1).double()
    start = Start(theta, History.none(theta), lambda v: 2.0001 * v, theta, 1.0, 2, 0.0)
    found = descend(losses, {0: start})[0]
    assert abs(float(found.theta)) < 0.1
