"""Prior precisions and noise that jointly maximise the Laplace evidence, for any structure.

At fixed parameters and for curvature H of unit noise (Gauss-Newton a = 1, empirical Fisher a = 2)

    F(x, v) = κ (−½ RSS e⁻ᵛ − ½ N C (v + log 2π)) − ½ Σ_l δ_l ‖θ_l‖² − ½ log|c H + Δ| / |Δ|

    ∂F/∂x_g = ½ (γ_g − δ_g ‖θ_g‖²)                x_g = log δ_g       c = κ e⁻ᵃᵛ
    ∂F/∂v   = ½ (κ RSS e⁻ᵛ − κ N C + a Σ γ)       v = log σ²          κ = likelihood power

    g  a group of tensors l that share one precision: "tensor", each its own; "scalar", one for all

F is jointly concave in (x, v), so there is one maximum; Newton steps of at most 3 in any
coordinate, halved until F rises, find it from any start. At the maximum MacKay's equations (1992)
hold, δ_g = γ_g / ‖θ_g‖² and σ² = RSS / (N C − a γ / κ). As an update the latter breaks down where
γ exceeds N C: diagonal and Kronecker curvature with more parameters than targets. With several
groups coupled by a full matrix γ_l = P_l − δ_l tr[(H + Δ)⁻¹]_ll; see `Slopes`. γ depends on
x + a v only, which gives every second derivative. Large spectra of blocks are binned; one last
step is on the full ones.

With bounds on precisions and noise the maximum is still unique. Coordinates at a bound that F
pushes against stay fixed, and the Newton step uses the others.

log δ is kept in [−12, 18]. Dead groups are set first: θ = 0 and H > 0 goes to the upper bound,
θ ≠ 0 and H = 0 to the lower, and a group with θ = 0 and H = 0 keeps its precision.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nas_evidence.curvature import CurvaturePass
from nas_evidence.maths.structured import Binned, BlockDiagonal, Slopes, Structured
from nas_evidence.spec.registry import CURVATURES

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Method = Literal["newton", "adam"]
PriorGroups = Literal["tensor", "scalar"]

LOG_PRECISION_RANGE = (-12.0, 18.0)
LOG_VARIANCE_RANGE = (-30.0, 30.0)  # bounds of log σ²
_MAX_STEP = 3.0
_MAX_ITERATIONS = 200
_LAST_GAIN = 1e-8  # nats left to gain before the last step, which squares the error
_LAST_GAIN_OF_BINS = 1e-3  # the same, from the maximum for binned spectra


def members_of(groups: PriorGroups, n_tensors: int) -> tuple[int, ...]:
    """Return the group of each tensor, numbered from 0.

    >>> members_of("tensor", 3), members_of("scalar", 3)
    ((0, 1, 2), (0, 0, 0))
    """
    return tuple(range(n_tensors)) if groups == "tensor" else (0,) * n_tensors


def log_precision_of_groups(prior_precision: Tensor, members: Sequence[int]) -> Array:
    """Return log δ of each group [groups]: the mean of log δ_l over its members."""
    member = np.array(members)
    x = np.log(prior_precision.detach().cpu().double().numpy())
    means: Array = np.bincount(member, x) / np.bincount(member)
    return means


def tied_precision(prior_precision: Tensor, members: Sequence[int]) -> Tensor:
    """Return prior precisions tied by group [G], at the geometric mean, float64."""
    x = log_precision_of_groups(prior_precision, members)
    return torch.from_numpy(np.exp(x)[np.array(members)])


@dataclass(frozen=True)
class Noise:
    """Terms of a Gaussian likelihood in the evidence, as functions of the noise.

    squared_error  RSS = Σ_n ‖y_n − f_n‖²
    n_targets      N C
    exponent       a: the curvature is proportional to σ^(−2a)
    pass_std       the σ that the curvature was computed with
    """

    squared_error: float
    n_targets: int
    exponent: Literal[1, 2]
    pass_std: float


def noise_of(kind: str, pass_: CurvaturePass, noise_std: float) -> Noise:
    """Return the noise terms of a pass of `kind` computed with `Gaussian(noise_std)`."""
    exponent: Literal[1, 2] = 2 if CURVATURES[kind].columns == "residual" else 1
    return Noise(sum(pass_.squared_errors), pass_.n_data * pass_.n_outputs, exponent, noise_std)


class Derivatives(NamedTuple):
    """F in nats, its gradient and its Hessian in (x, v)."""

    value: float
    gradient: Array
    hessian: Array


@dataclass(frozen=True)
class MeanOfDraws:
    """Draws of one curvature; log|H + Δ| − log|Δ| is the mean of theirs."""

    draws: tuple[Structured, ...]

    def slopes(self, prior_precision: Tensor) -> Slopes:
        """Return the mean of the log determinants and its derivatives."""
        of_draws = (draw.slopes(prior_precision) for draw in self.draws)
        return Slopes(*(torch.stack(parts).mean(0) for parts in zip(*of_draws, strict=True)))

    def trace(self) -> Tensor:
        """Return the mean trace of each tensor [G]."""
        return torch.stack([draw.trace() for draw in self.draws]).mean(0)


@dataclass(frozen=True)
class Objective:
    """F and its derivatives."""

    curvature: Structured | Binned | MeanOfDraws
    squared_norms: Tensor  # [G]
    members: tuple[int, ...]  # the group of each tensor [G]
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
        return torch.from_numpy(z[list(self.members)]).exp()

    @property
    def membership(self) -> Array:
        """One column for each group, one row for each tensor; entries 0 and 1."""
        member = np.array(self.members)
        columns: Array = np.eye(member.max() + 1)[member]
        return columns


@dataclass(frozen=True)
class AtFixedNoise:
    """F as a function of x alone: what remains of an objective at one v."""

    whole: Objective
    v: float

    def at(self, z: Array) -> Derivatives:
        """Return the derivatives at x [groups]."""
        value, gradient, hessian = self.whole.at(np.append(z, self.v))
        return Derivatives(value, gradient[:-1], hessian[:-1, :-1])


Concave = Objective | AtFixedNoise


def fit_prior(
    curvature: Structured | MeanOfDraws,
    squared_norms: Tensor,
    prior_precision: Tensor,
    *,
    members: tuple[int, ...],
    curvature_scale: float = 1.0,
    highest: Tensor | None = None,
    method: Method = "newton",
    steps: int = 100,
    learning_rate: float = 1.0,
) -> Tensor:
    """Return prior precisions [G] of higher evidence at fixed noise, for any structure.

    Args:
        curvature: of the summed negative log likelihood.
        squared_norms: θ_lᵀθ_l [G].
        prior_precision: starting values [G].
        members: the group of each tensor.
        curvature_scale: factor on the curvature.
        highest: upper bounds [G], equal within a group; or None.
        method: "newton" goes to the maximum, "adam" takes some steps on log δ with fresh moments
            (torch's defaults), as published by Immer et al. 2021.
        steps: of Adam.
        learning_rate: of Adam.
    """
    # The terms of the likelihood are constant: those of a noise of 1 and no data.
    constant = Noise(squared_error=0.0, n_targets=0, exponent=1, pass_std=1.0)
    objective = Objective(curvature, squared_norms, members, constant, curvature_scale)
    x = log_precision_of_groups(prior_precision, members)
    free, most = np.full_like(x, -np.inf), _highest(x, highest, members)
    stages = [AtFixedNoise(one, 0.0) for one in _stages(objective)]
    if method == "adam":
        x = np.minimum(_adam(stages[0], x, steps, learning_rate), most)
    else:
        x = _maximum(stages, x, (free, most))
    return objective.precision(np.append(x, 0.0))


def fit_prior_and_noise(
    curvature: Structured,
    squared_norms: Tensor,
    prior_precision: Tensor,
    *,
    members: tuple[int, ...],
    noise: Noise,
    likelihood_power: float = 1.0,
    highest: Tensor | None = None,
    least_std: float = 0.0,
    highest_std: float = math.inf,
) -> tuple[Tensor, float]:
    """Return the prior precisions [G] and the noise std that jointly maximise the evidence.

    Args:
        curvature: curvature of the summed negative log likelihood, at noise `noise.pass_std`.
        squared_norms: θ_lᵀθ_l [G].
        prior_precision: starting values [G].
        members: the group of each tensor.
        noise: noise terms of the pass, from `noise_of`.
        likelihood_power: κ.
        highest: upper bounds of the precisions [G], equal within a group; or None.
        least_std: lower bound of the standard deviation of the noise; it holds where
            `highest_std` is below it.
        highest_std: upper bound of the standard deviation of the noise.
    """
    objective = Objective(curvature, squared_norms, members, noise, likelihood_power)
    x = log_precision_of_groups(prior_precision, members)
    least = np.append(np.full_like(x, -np.inf), _log_variance(least_std))
    most = np.append(_highest(x, highest, members), _log_variance(highest_std))
    start = np.append(x, _log_variance(noise.pass_std))
    z = _maximum(_stages(objective), start, (least, most))
    return objective.precision(z), math.exp(0.5 * z[-1])


def _highest(x: Array, highest: Tensor | None, members: Sequence[int]) -> Array:
    return (
        np.full_like(x, np.inf) if highest is None else log_precision_of_groups(highest, members)
    )


def _log_variance(std: float) -> float:
    return 2 * math.log(std) if std else -math.inf


def _stages(objective: Objective) -> list[Objective]:
    """Return the objective with binned spectra, then with the full ones where these differ."""
    curvature = objective.curvature
    if not isinstance(curvature, BlockDiagonal):
        return [objective]
    binned = curvature.binned
    coarse = replace(objective, curvature=binned)
    return [coarse] if len(binned.values) == curvature.n_parameters else [coarse, objective]


def _adam(objective: AtFixedNoise, x: Array, steps: int, learning_rate: float) -> Array:
    """Return log δ after ascending with Adam (Kingma & Ba 2015)."""
    first_decay, second_decay, epsilon = 0.9, 0.999, 1e-8
    x = np.clip(x, *LOG_PRECISION_RANGE)
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for step in range(1, steps + 1):
        gradient = objective.at(x).gradient
        mean = first_decay * mean + (1 - first_decay) * gradient
        square = second_decay * square + (1 - second_decay) * gradient**2
        scale = np.sqrt(square / (1 - second_decay**step)) + epsilon
        x = x + learning_rate * mean / (1 - first_decay**step) / scale
        x = np.clip(x, *LOG_PRECISION_RANGE)
    return x


def _maximum(stages: Sequence[Concave], z: Array, bounds: tuple[Array, Array]) -> Array:
    """Return the maximum of the last stage, each from that of the one before, the first from z."""
    for stage, last_gain in zip(stages, (_LAST_GAIN, _LAST_GAIN_OF_BINS), strict=False):
        z = _maximum_of_one(stage, z, bounds, last_gain)
    return z


def _maximum_of_one(
    objective: Concave, z: Array, bounds: tuple[Array, Array], last_gain: float
) -> Array:
    """Return the maximum, starting from z, within the ranges and the bounds."""
    whole = objective if isinstance(objective, Objective) else objective.whole
    n_groups = max(whole.members) + 1
    low, high = np.full_like(z, LOG_PRECISION_RANGE[0]), np.full_like(z, LOG_PRECISION_RANGE[1])
    low[n_groups:], high[n_groups:] = LOG_VARIANCE_RANGE
    low = np.clip(bounds[0], low, high)
    high = np.clip(bounds[1], low, high)
    z = np.clip(z, low, high)
    norms = whole.membership.T @ whole.squared_norms.cpu().double().numpy()
    traces = whole.membership.T @ whole.curvature.trace().cpu().numpy()
    live = np.ones(len(z), dtype=bool)
    live[:n_groups] = (norms > 0) & (traces > 0)
    z[:n_groups] = np.where((norms == 0) & (traces > 0), high[:n_groups], z[:n_groups])
    z[:n_groups] = np.where((norms > 0) & (traces == 0), low[:n_groups], z[:n_groups])
    return _newton(objective, z, live, (low, high), last_gain)


def _newton(
    objective: Concave, z: Array, live: Mask, bounds: tuple[Array, Array], last_gain: float
) -> Array:
    """Return the maximum over the live coordinates within the bounds."""
    low, high = bounds
    here = objective.at(z)
    for _ in range(_MAX_ITERATIONS):
        pushed = ((z <= low) & (here.gradient < 0)) | ((z >= high) & (here.gradient > 0))
        free = live & ~pushed
        if not free.any():
            return z
        step = _newton_step(here, free, z <= low, z >= high)
        gain = 0.5 * float(here.gradient @ step)
        if gain < last_gain and float(np.abs(step).max()) < 0.1:
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
    objective: Concave,
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
