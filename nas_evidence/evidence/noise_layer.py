"""Conditional evidence of a Bayesian last layer that predicts mean and noise of real targets.

    y_n = aᵀφ_n / τ_n + e_n,   e_n ~ N(0, 1/τ_n),   τ_n = τ(z_n),  z_n = bᵀφ_n,   a, b ~ N(0, I)

    L(b) = κ Σ_n (½ log τ_n − ½ log 2π − ½ τ_n y_n²) − ½ log|M| + ½ hᵀ M⁻¹ h
    log q = L(b*) − ½ ‖b*‖² − ½ log|H|                           b* largest L(b) − ½ ‖b‖²
    H = I + Φᵀ (diag(c) − diag(g) [w_n w_m (½ s_nm² + x_n s_nm x_m)] diag(g)) Φ

    φ_n   features divided by the roots of their prior precisions [d]; of a target, each alone
    M     I + Σ_n w_n φ_n φ_nᵀ, w = κ/τ     h = κ Σ_n y_n φ_n     g = ∂ log τ / ∂z
    s_nm  φ_nᵀ M⁻¹ φ_m                      x_n = φ_nᵀ M⁻¹ h, the mean of aᵀφ_n given b
    c     ½ g² (κ τ y² + w (s_nn + x²)) − g′ ∂L/∂ log τ

aᵀφ and bᵀφ are the outputs η and z of `Heteroscedastic`. The weights a are integrated exactly:
L(b) is the log density of y given b, tempered by κ. Laplace's approximation is over b alone, with
the Hessian H at the mode: a Gauss-Newton matrix would count information on the noise that is lost
where a is unknown.

b* is found by L-BFGS in coordinates in which I + ½ κ Σ φ_n φ_nᵀ is the identity. A step costs
three passes of N d² multiplications, H costs 2 N² d.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from nas_evidence.evidence.softmax_layer import LastLayer, LastLayerFormula, LogDensity
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic, precision_of, precision_slope
from nas_evidence.maths.at_once import elements_at_once
from nas_evidence.plumbing.user_error import UserError

#: Largest N² d of a layer with d features, at most N, and N data: minutes a fold on one core.
MOST_WORK = 5e11
#: On a CPU, numbers of a part of S in memory.
_AT_ONCE = 1 << 22
#: Maximum number of L-BFGS steps.
_STEPS = 500
#: Slope, and relative change of the value, at which they end.
_SMALL_SLOPE, _SMALL_CHANGE = 1e-7, 1e-14
#: At b* the gain left, ½ gᵀ H⁻¹ g, is below this part of the number of data.
_AT_MODE = 1e-6


def refuse_too_large(n: int, d: int) -> None:
    """Check that n rows of d features cost no more than `MOST_WORK`.

    Raises:
        ValueError: if they do.
    """
    if n * n * min(n, d) > MOST_WORK:
        raise UserError(
            "noise-layer-too-large",
            f"conditional_evidence of a heteroscedastic last layer needs rows² x features <= "
            f"{MOST_WORK:g}, but got {n} rows and {d} features; use two_fold in `estimators`, "
            'narrower networks, or likelihood = "gaussian"',
        )


def of_noise(
    layer: LastLayer,
    y: Tensor,
    n_early: int,
    likelihood: Heteroscedastic,
    *,
    power: float = 1.0,
    seed: int = 0,
) -> LogDensity:
    """Return log q(late data | early data); the first `n_early` data are the early ones.

    Args:
        layer: with the features of all data; its weights are those of η, then of z [2 C, d],
            and start the search for b*.
        y: targets [N, C].
        n_early: number of early data.
        likelihood: of the targets.
        power: κ, on the log likelihood.
        seed: not read; nothing is random.

    Raises:
        ValueError: if N² d is above `MOST_WORK`, or there is no optimum.
    """
    n, d = layer.features.shape
    refuse_too_large(n, d)
    y = y.to(layer.features)
    phi, start = layer.features * layer.precision.rsqrt(), layer.weights * layer.precision.sqrt()
    if n < d:  # rows with the same inner products
        q, r = torch.linalg.qr(phi.mT)
        phi, start = r.mT.contiguous(), start @ q
    total = 0.0
    for target, b in zip(y.mT, start[len(start) // 2 :], strict=True):
        early, whole = (_NoisePosterior(phi[:m], target[:m], power) for m in (n_early, n))
        first = early.maximum(max((b, torch.zeros_like(b)), key=early.log_joint))
        second = whole.maximum(first)
        total += whole.log_evidence(second) - early.log_evidence(first)
    return LogDensity(total)


@dataclass(frozen=True)
class _NoisePosterior:
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
        root = _cholesky(self._hessian(b))
        return self.log_joint(b) - float(root.diagonal().log().sum())

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
                "noise-layer-without-optimum",
                f"the noise of the last layer has no optimum after {_STEPS} steps; the prior may "
                "be too wide",
            )
        return position(v)

    def _root(self) -> Tensor:
        matrix = 0.5 * self.power * (self.features.mT @ self.features)
        matrix.diagonal().add_(1.0)
        return _cholesky(matrix)

    def _hessian(self, b: Tensor) -> Tensor:
        """Return H [d, d] at b; sums of squares of S over all pairs of data in float32."""
        at = self._given(b)
        moved = (at.weight * at.slope)[:, None] * self.features
        of_mean = (at.x[:, None] * moved).mT @ at.white.mT  # Φᵀ g w x V
        second = self.power * at.tau * self.y.square()
        second = second + at.weight * (at.x.square() + at.white.square().sum(0))
        weights = 0.5 * at.slope.square() * second - at.bend * at.gradient
        found = self.features.mT @ (weights[:, None] * self.features) - of_mean @ of_mean.mT
        found.diagonal().add_(1.0)
        v, phi = at.white.float(), moved.float()
        rows = max(1, elements_at_once(_AT_ONCE, phi.device) // len(phi))
        for start in range(0, len(phi), rows):
            part = slice(start, start + rows)
            squares = (v[:, part].mT @ v).square_()
            found -= 0.5 * (phi[part].mT @ (squares @ phi)).double()
        return found

    def _given(self, b: Tensor) -> "_Given":
        phi, z = self.features, self.features @ b
        tau, by_z = precision_of(z), precision_slope(z)
        weight, slope = self.power / tau, by_z / tau
        matrix = (weight[:, None] * phi).mT @ phi
        matrix.diagonal().add_(1.0)
        root = _cholesky(matrix)
        white = torch.linalg.solve_triangular(root, phi.mT, upper=False)
        x = white.mT @ (white @ (self.power * self.y))
        known = x.square() + white.square().sum(0)
        gradient = 0.5 * (self.power - self.power * tau * self.y.square() + weight * known)
        bend = slope * (1 - by_z - slope)
        log_det = 2 * root.diagonal().log().sum()
        return _Given(tau, weight, slope, bend, x, white, gradient, log_det)

    def _loss(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return ½ ‖b‖² − L(b) in nats, and its gradient [d]."""
        power, y, at = self.power, self.y, self._given(b)
        fit = 0.5 * power * (at.tau.log() - math.log(2 * math.pi) - at.tau * y.square()).sum()
        value = fit + 0.5 * power * (y @ at.x) - 0.5 * at.log_det
        return 0.5 * b @ b - value, b - self.features.mT @ (at.slope * at.gradient)


@dataclass(frozen=True)
class _Given:
    """What b says of the data and of a.

    tau       τ [n]
    weight    w = κ/τ [n]
    slope     g = ∂ log τ / ∂z [n]
    bend      g′ [n]
    x         mean of aᵀφ_n [n]
    white     L⁻¹ φ_n with L Lᵀ = M, so that S is its square [d, n]
    gradient  ∂L / ∂ log τ [n]
    log_det   log|M|
    """

    tau: Tensor
    weight: Tensor
    slope: Tensor
    bend: Tensor
    x: Tensor
    white: Tensor
    gradient: Tensor
    log_det: Tensor


def _cholesky(matrix: Tensor) -> Tensor:
    root: Tensor = torch.linalg.cholesky(matrix)
    return root


def _descended(
    loss: Callable[[Tensor], tuple[Tensor, Tensor]],
    slope: Callable[[Tensor], Tensor],
    v: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return where a loss is least [d], and its gradient there, in coordinates v."""

    def at(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = loss(torch.from_numpy(point).to(v))
        return float(value), slope(gradient).cpu().numpy()

    # Not by torch.optim.LBFGS: it imports torch's compiler, seconds in each process.
    found = minimize(
        at, v.cpu().numpy(), jac=True, method="L-BFGS-B",
        options={
            "maxiter": _STEPS, "maxfun": 2 * _STEPS, "maxcor": 20, "gtol": _SMALL_SLOPE,
            "ftol": _SMALL_CHANGE,
        },
    )  # fmt: skip
    return torch.from_numpy(found.x).to(v), torch.from_numpy(found.jac).to(v)


#: What `late_given_early` looks up.
LAST_LAYER = LastLayerFormula(of_noise, refuse_too_large)
