"""Conditional evidence of a Bayesian last layer that predicts mean and noise of real targets.

    y_n = aᵀφ_n + e_n,   e_n ~ N(0, 1/τ_n),   log τ_n = bᵀφ_n,   a, b ~ N(0, I)

    L(b) = κ Σ_n (½ log τ_n − ½ log 2π) − ½ log|M| − ½ κ Σ_n τ_n y_n (y_n − m_n)
    log q = L(b*) − ½ ‖b*‖² − ½ log|I + ½ κ Σ_n φ_n φ_nᵀ|        b* largest L(b) − ½ ‖b‖²

    φ_n  features divided by the roots of their prior precisions [d]; of a target, each alone
    M    I + κ Σ_n τ_n φ_n φ_nᵀ        m_n = aᵀφ_n at the mean of a given b, κ M⁻¹ Σ_n τ_n y_n φ_n

The weights a of the mean are integrated exactly: L(b) is the log density of y given b. Laplace's
approximation is over b alone, with the Gauss-Newton matrix of log τ (`Heteroscedastic`): ½ κ for
each datum. Laplace over a and b together would be at the largest joint density, where residuals
are too small and the noise with them. Its conditional density is then too high by a part that
grows with the features: by 0.11 nats per datum of 60 data and 40 features with one noise, where
this one is within 0.006 of the integral (tests/evidence/test_noise_layer.py).

b* is found by L-BFGS in coordinates in which the curvature is the identity. A step costs three
passes of N d² multiplications.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.curvature.likelihood import MOST_LOG_PRECISION
from nas_evidence.evidence.softmax_layer import LastLayer
from nas_evidence.plumbing.user_error import UserError

#: Most N d² of a layer with d features and N data: 2 minutes a fold on one core.
MOST_WORK = 2e10
#: Most L-BFGS steps; slope and relative change at which they end.
_STEPS, _SMALL_SLOPE, _SMALL_CHANGE = 500, 1e-7, 1e-12
#: At b* the gain left, ½ gᵀ H⁻¹ g, is below this part of the number of data.
_AT_MODE = 1e-6


def of_noise(layer: LastLayer, y: Tensor, n_early: int, *, power: float = 1.0) -> float:
    """Return log q(late data | early data) in nats; the first `n_early` data are the early ones.

    Args:
        layer: with the features of all data; its weights are those of C means, then C log
            precisions [2 C, d], and start the search for b*.
        y: targets, float64 [N, C].
        n_early: number of early data.
        power: κ, on the log likelihood.

    Raises:
        ValueError: if N d² is above `MOST_WORK`, or there is no optimum.
    """
    n, d = layer.features.shape
    if n * min(n, d) ** 2 > MOST_WORK:
        raise UserError(
            f"conditional_evidence of a heteroscedastic last layer needs rows x features² <= "
            f"{MOST_WORK:g}, but got {n} rows and {d} features; use two_fold in `estimators`, "
            'narrower networks, or likelihood = "gaussian"'
        ).with_code("noise-layer-too-large")
    phi, start = layer.features * layer.precision.rsqrt(), layer.weights * layer.precision.sqrt()
    if n < d:  # rows with the same inner products
        q, r = torch.linalg.qr(phi.mT)
        phi, start = r.mT.contiguous(), start @ q
    total = 0.0
    for target, b in zip(y.mT, start[len(start) // 2 :], strict=True):
        early, whole = (_Problem(phi[:m], target[:m], power) for m in (n_early, n))
        first = early.maximum(max((b, torch.zeros_like(b)), key=early.log_joint))
        second = whole.maximum(first)
        total += whole.log_evidence(second) - early.log_evidence(first)
    return total


@dataclass(frozen=True)
class _Problem:
    """The posterior of the weights of the log precision given some data.

    features  φ [n, d]
    y         of one target [n]
    power     κ
    """

    features: Tensor
    y: Tensor
    power: float

    def log_joint(self, b: Tensor) -> float:
        """Return L(b) − ½ ‖b‖² in nats."""
        return -float(self._loss(b)[0])

    def log_evidence(self, b: Tensor) -> float:
        """Return log q by Laplace's approximation at b*, in nats."""
        return self.log_joint(b) - float(self._root().diagonal().log().sum())

    def maximum(self, b: Tensor) -> Tensor:
        """Return where `log_joint` is largest [d], from b.

        Raises:
            ValueError: if the search does not end there.
        """
        root = self._root()  # L Lᵀ is the curvature, and v = Lᵀ b

        def position(v: Tensor) -> Tensor:
            found: Tensor = torch.linalg.solve_triangular(root.mT, v[:, None], upper=True)
            return found[:, 0]

        def slope(of_b: Tensor) -> Tensor:
            found: Tensor = torch.linalg.solve_triangular(root, of_b[:, None], upper=False)
            return found[:, 0]

        v, last = _descended(lambda v: self._loss(position(v)), slope, root.mT @ b)
        if not 0.5 * float(last.square().sum()) <= _AT_MODE * len(self.y):
            raise UserError(
                f"the noise of the last layer has no optimum after {_STEPS} steps; the prior may "
                "be too wide"
            ).with_code("noise-layer-without-optimum")
        return position(v)

    def _root(self) -> Tensor:
        matrix = 0.5 * self.power * (self.features.mT @ self.features)
        matrix.diagonal().add_(1.0)
        root: Tensor = torch.linalg.cholesky(matrix)
        return root

    def _loss(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return ½ ‖b‖² − L(b) in nats, and its gradient [d]."""
        phi, y, power = self.features, self.y, self.power
        free = phi @ b
        log_tau = free.clamp(-MOST_LOG_PRECISION, MOST_LOG_PRECISION)
        weighted = power * log_tau.exp()[:, None] * phi
        matrix = weighted.mT @ phi
        matrix.diagonal().add_(1.0)
        root = torch.linalg.cholesky(matrix)
        a = torch.cholesky_solve((weighted.mT @ y)[:, None], root)[:, 0]
        error = y - phi @ a
        white = torch.linalg.solve_triangular(root, phi.mT, upper=False)
        tau = power * log_tau.exp()
        fit = 0.5 * power * (log_tau - math.log(2 * math.pi)).sum() - 0.5 * (tau * y) @ error
        value = fit - root.diagonal().log().sum()
        second_moment = error.square() + white.square().sum(0)  # of y − aᵀφ given b
        of_log = 0.5 * (power - tau * second_moment) * (free == log_tau)
        return 0.5 * b @ b - value, b - phi.mT @ of_log


def _descended(
    loss: Callable[[Tensor], tuple[Tensor, Tensor]],
    slope: Callable[[Tensor], Tensor],
    v: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return where a loss is least [d], and its gradient there, in coordinates v."""
    v = v.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [v], max_iter=_STEPS, max_eval=2 * _STEPS, history_size=20,
        tolerance_grad=_SMALL_SLOPE, tolerance_change=_SMALL_CHANGE,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        with torch.no_grad():
            value, gradient = loss(v.detach())
            v.grad = slope(gradient)
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    closure()
    assert v.grad is not None
    return v.detach(), v.grad
