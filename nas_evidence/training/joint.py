"""Prior precisions and noise that jointly maximise the Laplace evidence, for any structure.

At fixed parameters and for curvature H of unit noise (Gauss-Newton a = 1, empirical Fisher a = 2)

    F(x, v) = κ (−½ RSS e⁻ᵛ − ½ N C (v + log 2π)) − ½ Σ_l δ_l ‖θ_l‖² − ½ log|c H + D| / |D|

    ∂F/∂x_g = ½ (γ_g − δ_g ‖θ_g‖²)                x_g = log δ_g       c = κ e⁻ᵃᵛ
    ∂F/∂v   = ½ (κ RSS e⁻ᵛ − κ N C + a Σ γ)       v = log s²          κ = likelihood power

F is jointly concave in (x, v), so there is one maximum; Newton steps of at most 3 in any
coordinate, halved until F rises, find it from any start. At the maximum MacKay's equations hold,
s² = RSS / (N C − a γ / κ), which as an update breaks down where γ exceeds N C: diagonal and
Kronecker curvature with more parameters than targets. With several groups coupled by a full
matrix γ_l = P_l − δ_l tr[(H + D)⁻¹]_ll; see `Slopes`. γ depends on x + a v only, which gives every
second derivative.

With upper bounds on precisions and noise the maximum is still unique. Coordinates at a bound that
F pushes against stay fixed, and the Newton step uses the others.

Dead groups are set first: θ = 0 and H > 0 goes to the upper bound, θ ≠ 0 and H = 0 to the lower,
and a group with θ = 0 and H = 0 keeps its precision.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import brentq
from torch import Tensor

from nas_evidence.curvature import CurvaturePass
from nas_evidence.maths.structured import BlockDiagonal, Structured
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.training.hyperparameters import (
    LOG_PRECISION_RANGE,
    Method,
    adam,
    log_precision_of_groups,
    mackay,
    precision_of_each_parameter,
)
from nas_evidence.training.prior_groups import Ties

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

LOG_VARIANCE_RANGE = (-30.0, 30.0)  # bounds of log s²
_MAX_STEP = 3.0
_MAX_ITERATIONS = 200
_LAST_GAIN = 1e-8  # nats left to gain before the last step, which squares the error


@dataclass(frozen=True)
class Noise:
    """Terms of a Gaussian likelihood in the evidence, as functions of the noise.

    squared_error  RSS = Σ_n ‖y_n − f_n‖²
    n_targets      N C
    exponent       a: the curvature is proportional to s^(−2a)
    pass_std       the s that the curvature was computed with
    """

    squared_error: float
    n_targets: int
    exponent: Literal[1, 2]
    pass_std: float


def noise_of(kind: str, pass_: CurvaturePass, noise_std: float) -> Noise:
    """Return the noise terms of a pass of `kind` computed with `Gaussian(noise_std)`.

    Raises:
        ValueError: if the targets of the pass are labels.
    """
    if pass_.squared_error is None:
        raise ValueError("the noise is a hyperparameter of real targets, but these are labels")
    exponent: Literal[1, 2] = 2 if CURVATURES[kind].columns == "residual" else 1
    return Noise(pass_.squared_error, pass_.n_data * pass_.n_outputs, exponent, noise_std)


class Derivatives(NamedTuple):
    """F in nats, its gradient and its Hessian in (x, v)."""

    value: float
    gradient: Array
    hessian: Array


@dataclass(frozen=True)
class Objective:
    """F and its derivatives."""

    curvature: Structured
    squared_norms: Tensor  # [G]
    ties: Ties
    noise: Noise
    likelihood_power: float = 1.0

    def at(self, z: Array) -> Derivatives:
        """Return the derivatives at z = (x of each group, v)."""
        exponent, start = self.noise.exponent, 2 * math.log(self.noise.pass_std)
        scale = self.likelihood_power * math.exp(-exponent * (z[-1] - start))
        precision = self.precision(z)
        slopes = self.curvature.slopes(precision / scale)
        groups = self.membership
        effective = groups.T @ slopes.effective.cpu().numpy()
        slope = groups.T @ slopes.hessian.cpu().numpy() @ groups  # of γ in x
        scatter = groups.T @ (precision * self.squared_norms.cpu()).numpy()
        value = -0.5 * (float(scatter.sum()) + float(slopes.log_det_ratio))
        gradient, hessian = 0.5 * (effective - scatter), 0.5 * (slope - np.diag(scatter))
        fit = self.likelihood_power * self.noise.squared_error * math.exp(-z[-1])
        count = self.likelihood_power * self.noise.n_targets
        mixed = 0.5 * exponent * slope.sum(1)
        corner = 0.5 * (-fit + exponent**2 * slope.sum())
        return Derivatives(
            value - 0.5 * fit - 0.5 * count * (z[-1] + math.log(2 * math.pi)),
            np.append(gradient, 0.5 * (fit - count + exponent * effective.sum())),
            np.block([[hessian, mixed[:, None]], [mixed[None, :], np.array([[corner]])]]),
        )

    def precision(self, z: Array) -> Tensor:
        """Return δ_l of each tensor [G]."""
        x = torch.from_numpy(z[list(self.ties.member)])
        return x.exp() * torch.tensor(self.ties.scale, dtype=torch.float64)

    @property
    def membership(self) -> Array:
        """One column for each group, one row for each tensor; entries 0 and 1."""
        member = np.array(self.ties.member)
        columns: Array = np.eye(member.max() + 1)[member]
        return columns

    @property
    def n_groups(self) -> int:
        """Return the number of groups: the coordinates of z but the last."""
        return max(self.ties.member) + 1


@dataclass(frozen=True)
class AtFixedNoise:
    """F as a function of x alone: what remains of an objective at one v."""

    whole: Objective
    v: float

    def at(self, z: Array) -> Derivatives:
        """Return the derivatives at x [groups]."""
        value, gradient, hessian = self.whole.at(np.append(z, self.v))
        return Derivatives(value, gradient[:-1], hessian[:-1, :-1])

    @cached_property
    def norms(self) -> Array:
        """‖θ_g‖² of each group, of its tensors times their factors."""
        scale = torch.tensor(self.whole.ties.scale, dtype=torch.float64)
        norms: Array = (scale * self.whole.squared_norms.cpu()).numpy()
        return self.whole.membership.T @ norms

    def derivatives(self, x: Array) -> tuple[Array, Array]:
        """Return the first and second derivative of F in each x."""
        here = self.at(x)
        return here.gradient, np.diag(here.hessian)

    def effective(self, x: Array) -> Array:
        """Return γ of each group."""
        gamma: Array = 2 * self.at(x).gradient + np.exp(x) * self.norms
        return np.maximum(gamma, 0)


Concave = Objective | AtFixedNoise


def fit_prior(
    curvature: Structured,
    squared_norms: Tensor,
    prior_precision: Tensor,
    *,
    ties: Ties,
    curvature_scale: float = 1.0,
    highest: Tensor | None = None,
    method: Method = "newton",
    steps: int = 100,
    learning_rate: float = 1.0,
) -> Tensor:
    """Return prior precisions [G] of higher evidence at fixed noise, for any structure.

    `hyperparameters.update_prior_precision` is faster where tensors have spectra of their own.

    Args:
        curvature: of the summed negative log likelihood.
        squared_norms: θ_lᵀθ_l [G].
        prior_precision: starting values [G].
        ties: which tensors share one precision.
        curvature_scale: factor on the curvature.
        highest: upper bounds [G], proportional within a tied group; or None. With bounds
            "mackay", whose fixed point is the same maximum, goes there by Newton steps.
        method: "newton" and "mackay" go to the maximum, "adam" takes some steps.
        steps: of Adam.
        learning_rate: of Adam.
    """
    # The terms of the likelihood are constant: those of a noise of 1 and no data.
    constant = Noise(squared_error=0.0, n_targets=0, exponent=1, pass_std=1.0)
    objective = Objective(curvature, squared_norms, ties, constant, curvature_scale)
    x = log_precision_of_groups(prior_precision, ties)
    bounds = np.full_like(x, np.inf) if highest is None else log_precision_of_groups(highest, ties)
    at_noise = AtFixedNoise(objective, 0.0)
    if method == "adam":
        x = np.minimum(adam(at_noise, x, steps, learning_rate), bounds)
    elif method == "mackay" and highest is None:
        x = mackay(at_noise, x)
    else:
        x = _maximum(at_noise, x, bounds)
    return objective.precision(np.append(x, 0.0))


def fit_prior_and_noise(
    curvature: Structured,
    squared_norms: Tensor,
    prior_precision: Tensor,
    *,
    ties: Ties,
    noise: Noise,
    likelihood_power: float = 1.0,
    highest: Tensor | None = None,
    highest_std: float = math.inf,
) -> tuple[Tensor, float]:
    """Return the prior precisions [G] and the noise std that jointly maximise the evidence.

    Args:
        curvature: curvature of the summed negative log likelihood, at noise `noise.pass_std`.
        squared_norms: θ_lᵀθ_l [G].
        prior_precision: starting values [G].
        ties: which tensors share one precision.
        noise: noise terms of the pass, from `noise_of`.
        likelihood_power: κ.
        highest: upper bounds of the precisions [G], proportional within a tied group; or None.
        highest_std: upper bound of the standard deviation of the noise.
    """
    objective = Objective(curvature, squared_norms, ties, noise, likelihood_power)
    x = log_precision_of_groups(prior_precision, ties)
    bounds = np.full_like(x, np.inf) if highest is None else log_precision_of_groups(highest, ties)
    bounds = np.append(bounds, 2 * math.log(highest_std))
    z = _maximum(objective, np.append(x, 2 * math.log(noise.pass_std)), bounds)
    return objective.precision(z), math.exp(0.5 * z[-1])


def fit_noise_and_each_precision(
    curvature: BlockDiagonal,
    squared_parameters: Tensor,
    prior_precision: Tensor,
    *,
    noise: Noise,
    likelihood_power: float = 1.0,
    highest: Tensor | None = None,
    highest_std: float = math.inf,
) -> tuple[Tensor, float]:
    """Return the precision of each parameter [P] and the noise that maximise the evidence.

    With the best precisions at each v in closed form, F is a concave function of v alone, and
    its slope ∂F/∂v has one zero.

    Args:
        curvature: diagonal curvature of the summed nll, at noise `noise.pass_std`.
        squared_parameters: θ² [P].
        prior_precision: current precisions [P], kept where θ = h = 0.
        noise: noise terms of the pass, from `noise_of`.
        likelihood_power: κ.
        highest: upper bounds of the precisions [P], or None.
        highest_std: upper bound of the standard deviation of the noise.
    """
    start = 2 * math.log(noise.pass_std)

    def best(v: float) -> tuple[Tensor, float]:
        scale = likelihood_power * math.exp(-noise.exponent * (v - start))
        precision = precision_of_each_parameter(
            curvature, squared_parameters, prior_precision, curvature_scale=scale
        )
        if highest is not None:  # each parameter has its own concave term
            precision = torch.minimum(precision, highest)
        gamma = float(curvature.effective_parameters(precision / scale).sum())
        fit = likelihood_power * (noise.squared_error * math.exp(-v) - noise.n_targets)
        return precision, fit + noise.exponent * gamma

    low, high = LOG_VARIANCE_RANGE
    high = max(low, min(high, 2 * math.log(highest_std)))
    if best(low)[1] <= 0:
        v = low
    elif best(high)[1] >= 0:
        v = high
    else:
        v = float(brentq(lambda at: best(at)[1], low, high, xtol=1e-10))
    return best(v)[0], math.exp(0.5 * v)


def _maximum(objective: Concave, z: Array, highest: Array) -> Array:
    """Return the maximum, starting from z, within the ranges and nowhere above `highest`."""
    whole = objective if isinstance(objective, Objective) else objective.whole
    n_groups = whole.n_groups
    low, high = np.full_like(z, LOG_PRECISION_RANGE[0]), np.full_like(z, LOG_PRECISION_RANGE[1])
    low[n_groups:], high[n_groups:] = LOG_VARIANCE_RANGE
    high = np.clip(highest, low, high)
    z = np.clip(z, low, high)
    norms = whole.membership.T @ whole.squared_norms.cpu().double().numpy()
    traces = whole.membership.T @ whole.curvature.trace().cpu().numpy()
    live = np.ones(len(z), dtype=bool)
    live[:n_groups] = (norms > 0) & (traces > 0)
    z[:n_groups] = np.where((norms == 0) & (traces > 0), high[:n_groups], z[:n_groups])
    z[:n_groups] = np.where((norms > 0) & (traces == 0), low[:n_groups], z[:n_groups])
    return _newton(objective, z, live, low, high)


def _newton(
    objective: Objective | AtFixedNoise, z: Array, live: Mask, low: Array, high: Array
) -> Array:
    """Return the maximum over the live coordinates within the bounds."""
    here = objective.at(z)
    for _ in range(_MAX_ITERATIONS):
        pushed = ((z <= low) & (here.gradient < 0)) | ((z >= high) & (here.gradient > 0))
        free = live & ~pushed
        if not free.any():
            return z
        step = _newton_step(here, free, z <= low, z >= high)
        gain = 0.5 * float(here.gradient @ step)
        if gain < _LAST_GAIN and float(np.abs(step).max()) < 0.1:
            return np.clip(z + step, low, high)
        step *= min(1.0, _MAX_STEP / float(np.abs(step).max()))
        moved, there = _rise(objective, z, here, step, low, high)
        if there is here:
            return z
        z, here = moved, there
    return z


def _newton_step(here: Derivatives, free: Mask, at_low: Mask, at_high: Mask) -> Array:
    """Return the Newton step in the free coordinates that stays within the bounds.

    A step that crosses a bound through the coupling with other coordinates would be clipped, and
    F need not rise along the clipped step; that coordinate stays fixed instead.
    """
    while True:
        step = np.zeros_like(here.gradient)
        step[free] = _solve(-here.hessian[np.ix_(free, free)], here.gradient[free])
        leaving = free & ((at_low & (step < 0)) | (at_high & (step > 0)))
        if not leaving.any():
            return step
        free = free & ~leaving


def _rise(
    objective: Objective | AtFixedNoise,
    z: Array,
    here: Derivatives,
    step: Array,
    low: Array,
    high: Array,
) -> tuple[Array, Derivatives]:
    """Return the first of z + step, z + step/2, ... at which F rises, else z."""
    for _ in range(30):
        moved = np.clip(z + step, low, high)
        there = objective.at(moved)
        if there.value > here.value:
            return moved, there
        step = 0.5 * step
    return z, here


def _solve(matrix: Array, vector: Array) -> Array:
    # A saturated coordinate has almost no curvature: its step is large and gets capped.
    ridge = 1e-14 * float(np.trace(matrix)) + 1e-300
    solution = np.linalg.solve(matrix + ridge * np.eye(len(matrix)), vector)
    return solution.astype(np.float64)
