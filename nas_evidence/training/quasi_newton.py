"""Full-batch L-BFGS whose state is plain tensors (Nocedal 1980), preconditioned by a curvature.

    θ ← θ − t B g      B  two-loop recursion over the last pairs (s, y), begun with (K + D)⁻¹
                       t  1, halved until the loss falls by 1e-4 of what the slope promises

A pair is kept with y split into the part of the likelihood at unit noise and that of the prior,

    y = c y₁ + D s,   c = 1 / s² or 1 / T²,

so that it holds on when the hyperparameters move.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_MEMORY = 20  # pairs, at most
_ELEMENTS = 1 << 23  # of all pairs together: 64 MiB
_FEWEST = 3  # pairs, whatever the number of parameters
_HALVINGS = 10
_SUFFICIENT = 1e-4
_FLAT = 1e-10  # cosine of s and y below which a pair says nothing


class Loss(Protocol):
    """A loss with its gradient in float64."""

    def value_and_gradient(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the loss at θ [P], and its gradient [P]."""


@dataclass(frozen=True)
class Pairs:
    """Steps s and changes y₁ of the gradient of the likelihood at unit noise [m, P], float64."""

    steps: Tensor
    changes: Tensor

    @classmethod
    def none(cls, theta: Tensor) -> "Pairs":
        """Return no pairs, for parameters like θ [P]."""
        empty = theta.new_zeros(0, len(theta))
        return cls(empty, empty)

    def plus(self, step: Tensor, change: Tensor) -> "Pairs":
        """Return the pairs with a new one, and without the oldest where they are too many."""
        most = max(_FEWEST, min(_MEMORY, _ELEMENTS // (2 * len(step))))
        steps, changes = (
            torch.cat([self.steps, step[None]]),
            torch.cat([self.changes, change[None]]),
        )
        return Pairs(steps[-most:], changes[-most:])


@dataclass(frozen=True)
class Descent:
    """Where a descent ended.

    n_gradients  that were computed
    stuck        no step along the last direction lowered the loss
    slope        gᵀ B g at the last step: twice the fall that a quadratic loss would have, nats
    """

    theta: Tensor
    pairs: Pairs
    n_gradients: int
    stuck: bool
    slope: float


def descend(
    loss: Loss,
    theta: Tensor,
    pairs: Pairs,
    precondition: Callable[[Tensor], Tensor],
    *,
    precision: Tensor,
    likelihood_scale: float,
    n_gradients: int,
    small_slope: float,
) -> Descent:
    """Lower a loss from θ [P] on; it never rises, and what is not finite is never accepted.

    Args:
        loss: κ nll + ½ θᵀ D θ.
        theta: float64 [P].
        pairs: of earlier descents, at any hyperparameters.
        precondition: v -> (K + D)⁻¹ v, about the inverse Hessian.
        precision: the diagonal of D [P].
        likelihood_scale: c, above.
        n_gradients: at most; the last line search may take a few more.
        small_slope: nats of gᵀ B g, below which the descent ends.
    """
    value, gradient = loss.value_and_gradient(theta)
    used, slope, stuck = 1, float("inf"), False
    while used < n_gradients and not stuck:
        direction = _direction(gradient, pairs, precondition, precision, likelihood_scale)
        slope = float(gradient @ direction)
        if not slope > 0:  # the pairs are of no use here
            pairs = Pairs.none(theta)
            direction = precondition(gradient)
            slope = float(gradient @ direction)
        if not slope > small_slope:
            break
        stuck, length = True, 1.0
        for _ in range(_HALVINGS):
            there = theta - length * direction
            new_value, new_gradient = loss.value_and_gradient(there)
            used += 1
            # False also where the value is not a number.
            if new_value <= value - _SUFFICIENT * length * slope:
                stuck = not bool(new_gradient.isfinite().all())
                break
            length /= 2
        if stuck:
            if len(pairs.steps) > 0:  # once more without memory, before giving up
                pairs, stuck = Pairs.none(theta), False
                continue
            break
        step, change = there - theta, new_gradient - gradient
        if float(step @ change) > _FLAT * float(step.norm() * change.norm()):
            pairs = pairs.plus(step, (change - precision * step) / likelihood_scale)
        theta, value, gradient = there, new_value, new_gradient
    return Descent(theta, pairs, used, stuck, slope)


def _direction(
    gradient: Tensor,
    pairs: Pairs,
    precondition: Callable[[Tensor], Tensor],
    precision: Tensor,
    likelihood_scale: float,
) -> Tensor:
    """Return B g [P] by the two-loop recursion."""
    steps = pairs.steps
    changes = likelihood_scale * pairs.changes + precision * steps
    bends = (steps * changes).sum(1)
    useful = [i for i in range(len(steps)) if bends[i] > 0]
    q = gradient.clone()
    weights = {}
    for i in reversed(useful):
        weights[i] = (steps[i] @ q) / bends[i]
        q = q - weights[i] * changes[i]
    q = precondition(q)
    for i in useful:
        q = q + steps[i] * (weights[i] - (changes[i] @ q) / bends[i])
    return q
