"""Full-batch preconditioned L-BFGS (Nocedal 1980) whose state is plain tensors.

    θ ← θ − t B g      B  two-loop recursion over the last pairs (s, y), begun with (K + D)⁻¹
                       t  1, halved until the loss falls by 1e-4 of what the slope promises

Each pair stores y split into the likelihood part at unit noise and the prior part,

    y = c y₁ + D s,   c = 1 / s² or 1 / T²,

so that it stays valid when the hyperparameters change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_MEMORY = 20  # most pairs
_ELEMENTS = 1 << 23  # elements of all pairs together: 64 MiB
_FEWEST = 3  # least pairs, whatever the number of parameters
_HALVINGS = 10
_SUFFICIENT = 1e-4
_FLAT = 1e-10  # cosine of s and y below which a pair is discarded


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
        """Return an empty set of pairs for parameters like θ [P]."""
        empty = theta.new_zeros(0, len(theta))
        return cls(empty, empty)

    def plus(self, step: Tensor, change: Tensor) -> "Pairs":
        """Return the pairs with a new one, without the oldest if there are too many."""
        most = max(_FEWEST, min(_MEMORY, _ELEMENTS // (2 * len(step))))
        steps, changes = (
            torch.cat([self.steps, step[None]]),
            torch.cat([self.changes, change[None]]),
        )
        return Pairs(steps[-most:], changes[-most:])


@dataclass(frozen=True)
class Descent:
    """The result of a descent.

    n_gradients  number of gradients computed
    stuck        whether no step along the last direction lowered the loss
    slope        gᵀ B g at the last step: twice the predicted decrease of a quadratic loss, nats
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
    """Lower a loss, starting from θ [P]; it never rises, and only finite values are accepted.

    Args:
        loss: κ nll + ½ θᵀ D θ.
        theta: float64 [P].
        pairs: pairs of earlier descents, at any hyperparameters.
        precondition: v -> (K + D)⁻¹ v, an approximate inverse Hessian.
        precision: the diagonal of D [P].
        likelihood_scale: c above.
        n_gradients: most gradients; the last line search may take a few more.
        small_slope: value of gᵀ B g in nats below which the descent ends.
    """
    value, gradient = loss.value_and_gradient(theta)
    used, slope, stuck = 1, float("inf"), False
    while used < n_gradients and not stuck:
        direction = _direction(gradient, pairs, precondition, precision, likelihood_scale)
        slope = float(gradient @ direction)
        if not slope > 0:  # not a descent direction: drop the pairs
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
            # Also False if the value is NaN.
            if new_value <= value - _SUFFICIENT * length * slope:
                stuck = not bool(new_gradient.isfinite().all())
                break
            length /= 2
        if stuck:
            if len(pairs.steps) > 0:  # retry without pairs before giving up
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
