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

Networks of one architecture are maximised side by side: every operation of a Newton step is one
for all, and each stops where it would stop alone.

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
from nas_evidence.maths.structured import (
    Binned,
    BlockDiagonal,
    Slopes,
    Structured,
    binned_together,
)
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
    """F in nats [K], its gradients [K, D] and its Hessians [K, D, D] in (x, v)."""

    value: Array
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
    """F of one network: what it is a function of, see `SideBySide`."""

    curvature: Structured | MeanOfDraws
    squared_norms: Tensor  # [G]
    members: tuple[int, ...]  # the group of each tensor [G]
    noise: Noise
    likelihood_power: float = 1.0


#: The terms of the likelihood where they are constant: those of a noise of 1 and no data.
NO_NOISE = Noise(squared_error=0.0, n_targets=0, exponent=1, pass_std=1.0)


@dataclass(frozen=True)
class SideBySide:
    """F of K networks of one architecture and their derivatives.

    curvature      of each, or the binned spectra of all tensors of all
    squared_norms  θ_lᵀθ_l [K, G]
    membership     one column for each group, one row for each tensor [G, groups]
    squared_error, n_targets, pass_std, power  of each [K]; see `Noise`
    exponent       a
    learns_noise   F is a function of (x, v), else of x alone at the noise of the pass
    """

    curvature: Sequence[Structured | MeanOfDraws] | Binned
    squared_norms: Array
    membership: Array
    squared_error: Array
    n_targets: Array
    pass_std: Array
    power: Array
    exponent: int
    learns_noise: bool

    @classmethod
    def of(cls, objectives: Sequence[Objective], *, learns_noise: bool) -> "SideBySide":
        """Return some objectives side by side, with the spectra as they are."""
        noises, member = [one.noise for one in objectives], np.array(objectives[0].members)
        norms = torch.stack([one.squared_norms for one in objectives])
        return cls(
            [one.curvature for one in objectives],
            norms.detach().cpu().double().numpy(),
            np.eye(member.max() + 1)[member],
            np.array([noise.squared_error for noise in noises]),
            np.array([noise.n_targets for noise in noises]),
            np.array([noise.pass_std for noise in noises]),
            np.array([one.likelihood_power for one in objectives]),
            noises[0].exponent,
            learns_noise,
        )

    @property
    def n_groups(self) -> int:
        """Number of groups, which are the first coordinates."""
        return len(self.membership[0])

    def at(self, z: Array, which: Mask | None = None) -> Derivatives:
        """Return the derivatives at z = (x of each group, v), or at x [K, D].

        Those of networks not in `which` [K] may be anything.
        """
        n = self.n_groups
        v = z[:, -1] if self.learns_noise else 2 * np.log(self.pass_std)
        scale = self.power * np.exp(-self.exponent * (v - 2 * np.log(self.pass_std)))
        precision = np.exp(z[:, :n] @ self.membership.T)
        log_dets, of_tensors, slopes = self._slopes(precision / scale[:, None], which)
        effective = of_tensors @ self.membership
        slope = self.membership.T @ slopes @ self.membership  # of γ in x
        scatter = (precision * self.squared_norms) @ self.membership
        value = -0.5 * (scatter.sum(1) + log_dets)
        gradient, hessian = 0.5 * (effective - scatter), 0.5 * (slope - _diagonal(scatter))
        if not self.learns_noise:
            return Derivatives(value, gradient, hessian)
        fit = self.power * self.squared_error * np.exp(-v)
        count = self.power * self.n_targets
        whole = np.empty((len(z), n + 1, n + 1))
        whole[:, :n, :n] = hessian
        whole[:, :n, n] = whole[:, n, :n] = 0.5 * self.exponent * slope.sum(2)
        whole[:, n, n] = 0.5 * (-fit + self.exponent**2 * slope.sum((1, 2)))
        in_noise = 0.5 * (fit - count + self.exponent * effective.sum(1))
        return Derivatives(
            value - 0.5 * fit - 0.5 * count * (v + math.log(2 * math.pi)),
            np.concatenate([gradient, in_noise[:, None]], 1),
            whole,
        )

    def traces(self) -> Array:
        """Return the traces of the tensors [K, G]."""
        given = self.curvature
        found = given.trace() if isinstance(given, Binned) else torch.stack(
            [one.trace() for one in given]
        )  # fmt: skip
        return found.cpu().numpy().reshape(self.squared_norms.shape)

    def _slopes(self, delta: Array, which: Mask | None) -> tuple[Array, Array, Array]:
        """Return log determinants [K], γ [K, G] and its derivatives [K, G, G] at δ [K, G]."""
        given, shape = self.curvature, delta.shape
        if isinstance(given, Binned):
            of_all = given.by_tensor(delta.ravel())
            log_dets, effective, second = (found.reshape(shape) for found in of_all)
            return log_dets.sum(1), effective, _diagonal(second)
        wanted = np.ones(len(delta), dtype=bool) if which is None else which
        log_det, gamma, hessian = (
            np.zeros(len(delta)),
            np.zeros(shape),
            np.zeros((*shape, shape[1])),
        )
        for k in np.flatnonzero(wanted).tolist():
            slopes = given[k].slopes(torch.from_numpy(delta[k]))
            log_det[k] = float(slopes.log_det_ratio)
            gamma[k], hessian[k] = slopes.effective.cpu(), slopes.hessian.cpu()
        return log_det, gamma, hessian


def _diagonal(rows: Array) -> Array:
    """Return diagonal matrices [K, n, n] of rows [K, n]."""
    found = np.zeros((*rows.shape, rows.shape[1]))
    at = np.arange(rows.shape[1])
    found[:, at, at] = rows
    return found


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
    objective = Objective(curvature, squared_norms, members, NO_NOISE, curvature_scale)
    (found,) = fit_priors(
        [objective], [prior_precision], highest=[highest],
        method=method, steps=steps, learning_rate=learning_rate,
    )  # fmt: skip
    return found


def fit_priors(
    objectives: Sequence[Objective],
    prior_precision: Sequence[Tensor],
    *,
    highest: Sequence[Tensor | None],
    method: Method = "newton",
    steps: int = 100,
    learning_rate: float = 1.0,
) -> list[Tensor]:
    """Return `fit_prior` of networks of one architecture, side by side.

    Args:
        objectives: whose noise is not moved, so that its terms are constant.
        prior_precision: starting values [G] of each.
        highest: upper bounds [G] of each, or None.
        method: as of `fit_prior`.
        steps: of Adam.
        learning_rate: of Adam.
    """
    members = objectives[0].members
    x = _log_precisions(prior_precision, members)
    most = _highest(x, highest, members)
    if method == "adam":
        coarse = _binned(SideBySide.of(objectives, learns_noise=False))
        x = np.minimum(_adam(coarse, x, steps, learning_rate), most)
    else:
        x = _maximum(objectives, x, (np.full_like(x, -np.inf), most), learns_noise=False)
    return list(_precisions(x, members))


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
    (found,) = fit_priors_and_noises(
        [objective], [prior_precision], highest=[highest],
        least_std=[least_std], highest_std=[highest_std],
    )  # fmt: skip
    return found


def fit_priors_and_noises(
    objectives: Sequence[Objective],
    prior_precision: Sequence[Tensor],
    *,
    highest: Sequence[Tensor | None],
    least_std: Sequence[float],
    highest_std: Sequence[float],
) -> list[tuple[Tensor, float]]:
    """Return `fit_prior_and_noise` of networks of one architecture, side by side.

    Args:
        objectives: of each.
        prior_precision: starting values [G] of each.
        highest: as of `fit_prior_and_noise`, for each, and so are the others.
        least_std: of each.
        highest_std: of each.
    """
    members = objectives[0].members
    x = _log_precisions(prior_precision, members)

    def with_noise(of_x: Array, stds: Sequence[float]) -> Array:
        return np.concatenate([of_x, np.array([[_log_variance(std)] for std in stds])], 1)

    least = with_noise(np.full_like(x, -np.inf), least_std)
    most = with_noise(_highest(x, highest, members), highest_std)
    start = with_noise(x, [one.noise.pass_std for one in objectives])
    z = _maximum(objectives, start, (least, most), learns_noise=True)
    stds = np.exp(0.5 * z[:, -1]).tolist()
    return list(zip(_precisions(z[:, :-1], members), stds, strict=True))


def _log_precisions(precisions: Sequence[Tensor], members: Sequence[int]) -> Array:
    """Return log δ of each group of each network [K, groups]."""
    return np.stack([log_precision_of_groups(one, members) for one in precisions])


def _precisions(x: Array, members: Sequence[int]) -> Tensor:
    """Return δ of each tensor of each network [K, G] for log δ of groups."""
    return torch.from_numpy(x[:, list(members)]).exp()


def _highest(x: Array, highest: Sequence[Tensor | None], members: Sequence[int]) -> Array:
    found = np.full_like(x, np.inf)
    for row, bound in zip(found, highest, strict=True):
        if bound is not None:
            row[:] = log_precision_of_groups(bound, members)
    return found


def _log_variance(std: float) -> float:
    return 2 * math.log(std) if std else -math.inf


def _binned(whole: SideBySide) -> SideBySide:
    """Return the same with the spectra of blocks in bins, as one for all networks."""
    given = whole.curvature
    assert not isinstance(given, Binned)
    blocks = [one for one in given if isinstance(one, BlockDiagonal)]
    return replace(whole, curvature=binned_together(blocks)) if blocks else whole


def _adam(objective: SideBySide, x: Array, steps: int, learning_rate: float) -> Array:
    """Return log δ [K, groups] after ascending with Adam (Kingma & Ba 2015)."""
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


def _maximum(
    objectives: Sequence[Objective], z: Array, bounds: tuple[Array, Array], *, learns_noise: bool
) -> Array:
    """Return the maxima [K, D] from z, first with binned spectra, then where these differ."""
    whole = SideBySide.of(objectives, learns_noise=learns_noise)
    coarse = _binned(whole)
    z = _maximum_of_one(coarse, z, bounds, _LAST_GAIN)
    if not isinstance(coarse.curvature, Binned):
        return z
    counts = np.bincount(coarse.curvature.tensor.numpy(), minlength=whole.squared_norms.size)
    kept = counts.reshape(len(z), -1).sum(1)
    for k, objective in enumerate(objectives):
        curvature = objective.curvature
        assert isinstance(curvature, BlockDiagonal)
        if kept[k] < curvature.n_parameters:
            alone = SideBySide.of([objective], learns_noise=learns_noise)
            low, high = (bound[k : k + 1] for bound in bounds)
            z[k] = _maximum_of_one(alone, z[k : k + 1], (low, high), _LAST_GAIN_OF_BINS)[0]
    return z


def _maximum_of_one(
    objective: SideBySide, z: Array, bounds: tuple[Array, Array], last_gain: float
) -> Array:
    """Return the maxima [K, D], starting from z, within the ranges and the bounds."""
    n = objective.n_groups
    low, high = np.full_like(z, LOG_PRECISION_RANGE[0]), np.full_like(z, LOG_PRECISION_RANGE[1])
    low[:, n:], high[:, n:] = LOG_VARIANCE_RANGE
    low = np.clip(bounds[0], low, high)
    high = np.clip(bounds[1], low, high)
    z = np.clip(z, low, high)
    norms = objective.squared_norms @ objective.membership
    traces = objective.traces() @ objective.membership
    live = np.ones(z.shape, dtype=bool)
    live[:, :n] = (norms > 0) & (traces > 0)
    z[:, :n] = np.where((norms == 0) & (traces > 0), high[:, :n], z[:, :n])
    z[:, :n] = np.where((norms > 0) & (traces == 0), low[:, :n], z[:, :n])
    return _newton(objective, z, live, (low, high), last_gain)


def _newton(
    objective: SideBySide, z: Array, live: Mask, bounds: tuple[Array, Array], last_gain: float
) -> Array:
    """Return the maxima [K, D] over the live coordinates within the bounds."""
    low, high = bounds
    here, active = objective.at(z), np.ones(len(z), dtype=bool)
    for _ in range(_MAX_ITERATIONS):
        pushed = ((z <= low) & (here.gradient < 0)) | ((z >= high) & (here.gradient > 0))
        free = live & ~pushed & active[:, None]
        active &= free.any(1)
        step = _newton_step(here, free, z <= low, z >= high)
        gain, longest = 0.5 * (here.gradient * step).sum(1), np.abs(step).max(1)
        last = active & (gain < last_gain) & (longest < 0.1)
        z = np.where(last[:, None], np.clip(z + step, low, high), z)
        active &= ~last
        if not active.any():
            return z
        step *= np.minimum(1.0, _MAX_STEP / np.maximum(longest, _MAX_STEP))[:, None]
        z, here, active = _rise(objective, z, here, step, bounds, active)
        if not active.any():
            return z
    return z


def _newton_step(here: Derivatives, free: Mask, at_low: Mask, at_high: Mask) -> Array:
    """Return the Newton steps [K, D] in the free coordinates that stay within the bounds.

    A step that crosses a bound through the coupling with other coordinates would be clipped, and
    F need not rise along the clipped step; that coordinate stays fixed instead.
    """
    while True:
        step = _solve(-here.hessian, here.gradient, free)
        leaving = free & ((at_low & (step < 0)) | (at_high & (step > 0)))
        if not leaving.any():
            return step
        free = free & ~leaving


def _rise(
    objective: SideBySide,
    z: Array,
    here: Derivatives,
    step: Array,
    bounds: tuple[Array, Array],
    active: Mask,
) -> tuple[Array, Derivatives, Mask]:
    """Return the first of z + step, z + step/2, ... at which F rises, and where there is one."""
    risen, left = np.zeros_like(active), active
    for _ in range(30):
        moved = np.where(left[:, None], np.clip(z + step, *bounds), z)
        there = objective.at(moved, left)
        rises = left & (there.value > here.value)
        z = np.where(rises[:, None], moved, z)
        here = Derivatives(*(_chosen(rises, *both) for both in zip(there, here, strict=True)))
        risen, left = risen | rises, left & ~rises
        if not left.any():
            break
        step = 0.5 * step
    return z, here, risen


def _chosen(which: Mask, these: Array, others: Array) -> Array:
    """Return rows of some arrays: of the first where `which`, else of the second."""
    return np.where(which.reshape(-1, *[1] * (these.ndim - 1)), these, others)


def _solve(matrices: Array, vectors: Array, free: Mask) -> Array:
    """Return the solutions [K, D] in the free coordinates, 0 in the others."""
    both = free[:, :, None] & free[:, None, :]
    matrices = np.where(both, matrices, 0.0)
    # A saturated coordinate has almost no curvature: its step is large and gets capped.
    ridge = 1e-14 * np.trace(matrices, axis1=1, axis2=2) + 1e-300
    whole = matrices + _diagonal(np.where(free, ridge[:, None], 1.0))
    solution = np.linalg.solve(whole, np.where(free, vectors, 0.0)[:, :, None])[:, :, 0]
    return solution.astype(np.float64)
