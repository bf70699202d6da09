"""Full-batch preconditioned L-BFGS (Nocedal 1980) whose state is plain tensors.

    θ ← θ − t B g      B  two-loop recursion over the last updates (s, y), begun with (K + Δ)⁻¹
                       t  1, halved until the loss falls by 1e-4 of what the slope promises

Each update is stored with y split into the likelihood part at unit noise and the prior part,

    y = c y₁ + Δ s,   c = 1 / σ² or 1 / T²,

so that it stays valid when the hyperparameters change.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

_MEMORY = 20  # most updates
_ELEMENTS = 1 << 23  # elements of all updates together: 64 MiB
_FEWEST = 3  # least updates, whatever the number of parameters
_HALVINGS = 10
_SUFFICIENT = 1e-4
_FLAT = 1e-10  # cosine of s and y below which an update is discarded


class Losses(Protocol):
    """Losses of any number, each with its own θ [P], float64."""

    def values(self, at: Mapping[int, Tensor]) -> Mapping[int, float]:
        """Return the losses of some."""

    def gradients(self, at: Mapping[int, Tensor]) -> Mapping[int, tuple[float, Tensor]]:
        """Return the losses of some, and their gradients [P]."""


@dataclass(frozen=True)
class History:
    """Steps s and changes y₁ of the gradient of the likelihood at unit noise [m, P], float64."""

    steps: Tensor
    changes: Tensor

    @classmethod
    def none(cls, theta: Tensor) -> "History":
        """Return an empty history for parameters like θ [P]."""
        empty = theta.new_zeros(0, len(theta))
        return cls(empty, empty)

    def plus(self, step: Tensor, change: Tensor) -> "History":
        """Return the history with a new update, without the oldest if there are too many."""
        most = max(_FEWEST, min(_MEMORY, _ELEMENTS // (2 * len(step))))
        steps, changes = (
            torch.cat([self.steps, step[None]]),
            torch.cat([self.changes, change[None]]),
        )
        return History(steps[-most:], changes[-most:])


@dataclass(frozen=True)
class Descent:
    """The result of a descent.

    n_gradients  number of losses computed, of which most without a gradient
    stuck        whether no step along the last direction lowered the loss
    slope        gᵀ B g at the last step: twice the predicted decrease of a quadratic loss, nats
    """

    theta: Tensor
    history: History
    n_gradients: int
    stuck: bool
    slope: float


@dataclass(frozen=True)
class Start:
    """Where a descent begins, and how far it goes.

    theta             float64 [P]
    history             of earlier descents, at any hyperparameters
    precondition      v -> (K + Δ)⁻¹ v, an approximate inverse Hessian
    precision         the diagonal of Δ [P]
    likelihood_scale  c above
    n_gradients       most losses, at least 1; the last line search may take a few more
    small_slope       value of gᵀ B g in nats below which the descent ends
    """

    theta: Tensor
    history: History
    precondition: Callable[[Tensor], Tensor]
    precision: Tensor
    likelihood_scale: float
    n_gradients: int
    small_slope: float


def descend(losses: Losses, starts: Mapping[int, Start]) -> dict[int, Descent]:
    """Lower some losses κ nll + ½ θᵀ Δ θ side by side, each with its own steps.

    A loss never rises, and only finite values are accepted. Line searches wait for each other, so
    that gradients are computed together.

    Args:
        losses: of any number.
        starts: of those to lower.
    """
    running = {k: _descent(start) for k, start in starts.items()}
    asked = {k: next(descent) for k, descent in running.items()}
    over: dict[int, Descent] = {}
    while asked:
        searching = {k: theta for k, (theta, is_found) in asked.items() if not is_found}
        answers: Mapping[int, object] = (
            losses.values(searching)
            if searching
            else losses.gradients({k: theta for k, (theta, _) in asked.items()})
        )
        for k, answer in answers.items():
            try:
                asked[k] = running[k].send(answer)
            except StopIteration as end:
                over[k] = end.value
                del asked[k]
    return over


def _descent(start: Start) -> Generator[tuple[Tensor, bool], Any, Descent]:
    """Yield each θ [P] whose loss is wanted, and whether with its gradient; return the result."""
    theta, history, precision = start.theta, start.history, start.precision
    value, gradient = yield theta, True
    used, slope, stuck = 1, float("inf"), False
    while used < start.n_gradients and not stuck:
        direction = _direction(gradient, history, start)
        slope = float(gradient @ direction)
        if not slope > 0:  # not a descent direction: drop the history
            history = History.none(theta)
            direction = start.precondition(gradient)
            slope = float(gradient @ direction)
        if not slope > start.small_slope:
            break
        stuck, length = True, 1.0
        for halving in range(_HALVINGS):
            there = theta - length * direction
            if halving == 0:  # mostly taken: its gradient comes with it, from one forward pass
                new_value, new_gradient = yield there, True
            else:
                new_value = yield there, False
            used += 1
            # Also False if the value is NaN.
            if new_value <= value - _SUFFICIENT * length * slope:
                if halving > 0:
                    new_value, new_gradient = yield there, True
                stuck = not bool(new_gradient.isfinite().all())
                break
            length /= 2
        if stuck:
            if len(history.steps) > 0:  # retry without history before giving up
                history, stuck = History.none(theta), False
                continue
            break
        step, change = there - theta, new_gradient - gradient
        if float(step @ change) > _FLAT * float(step.norm() * change.norm()):
            history = history.plus(step, (change - precision * step) / start.likelihood_scale)
        theta, value, gradient = there, new_value, new_gradient
    return Descent(theta, history, used, stuck, slope)


def _direction(gradient: Tensor, history: History, start: Start) -> Tensor:
    """Return B g [P] by the two-loop recursion, whose loops are triangular systems [M, M].

    With the steps S and the changes Y as rows, U the upper triangle of S Yᵀ and ρ its diagonal:
    w = U⁻¹ S g and q = g − Yᵀ w in the first loop; with h = (K + Δ)⁻¹ q, B g = h + Sᵀ c and
    c = U⁻ᵀ (ρ w − Y h) in the second.
    """
    steps = history.steps
    changes = start.likelihood_scale * history.changes + start.precision * steps
    useful = (steps * changes).sum(1) > 0
    if not bool(useful.all()):
        steps, changes = steps[useful], changes[useful]
    if not len(steps):
        return start.precondition(gradient)
    upper = (steps @ changes.T).triu()
    weights = torch.linalg.solve_triangular(upper, (steps @ gradient)[:, None], upper=True)[:, 0]
    q = start.precondition(gradient - weights @ changes)
    rest = (upper.diagonal() * weights - changes @ q)[:, None]
    shares: Tensor = torch.linalg.solve_triangular(upper.T, rest, upper=False)[:, 0]
    return q + shares @ steps
