"""Hamiltonian Monte Carlo on a path of densities, all replicas at once.

As Baldock and Marzari (2019), but for the tuning of steps, see below.

    log π_β(w) = V(w) + β U(w) + const        β in [0, 1], or an inverse temperature
    H(w, p)    = −V(w) − β U(w) + ½ pᵀp

    w  positions [R, P]    V  base log density [R]    β  one per replica [R]
    p  momenta   [R, P]    U  tilt [R]                ε, σ  step size [R] and scale [R, P]

The path starts at V (a prior, a Gaussian) and adds U along the way, so d log Z / dβ = ⟨U⟩_β. A
leapfrog step moves w by ε σ p; σ is an inverse mass and affects speed only. A hard box enters the
accept step, not the force. Replicas j and j + 1 of one ladder swap positions with probability
min(1, exp((β_j − β_{j+1}) (U_{j+1} − U_j))), alternating between even and odd pairs.

`warm_up` tunes step sizes and scales, which then stay fixed: tuning while sampling would break
detailed balance (Baldock and Marzari 2019 do so; we do not).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: Values [R] and gradients [R, P] at positions [R, P].
Density = Callable[[Tensor], tuple[Tensor, Tensor]]

TARGET_ACCEPTANCE = 0.8
_JITTER = 0.2  # relative, on the step size, so that trajectories do not lock into periodic orbits


@dataclass(frozen=True)
class Path:
    """Densities from `base` (β = 0) to `base` + `tilt` (β = 1).

    half_width  [P] of a box around 0, outside which every density is zero; None for no box
    reflects    trajectories turn at the walls of the box; else those that end outside are rejected
    """

    base: Density
    tilt: Density
    half_width: Tensor | None = None
    reflects: bool = True

    def contains(self, positions: Tensor) -> Tensor:
        """Tell which positions [R, P] are in the box, bool [R]."""
        if self.half_width is None:
            return torch.ones(len(positions), dtype=torch.bool, device=positions.device)
        return (positions.abs() <= self.half_width).all(1)


@dataclass(frozen=True)
class Replicas:
    """Positions [R, P] with both log densities [R] and their gradients [R, P]."""

    positions: Tensor
    base: Tensor
    tilt: Tensor
    base_gradient: Tensor
    tilt_gradient: Tensor

    def where(self, mask: Tensor, other: "Replicas") -> "Replicas":
        """Return these replicas where `mask` [R], the others elsewhere."""
        rows = mask[:, None]
        return Replicas(
            torch.where(rows, self.positions, other.positions),
            torch.where(mask, self.base, other.base),
            torch.where(mask, self.tilt, other.tilt),
            torch.where(rows, self.base_gradient, other.base_gradient),
            torch.where(rows, self.tilt_gradient, other.tilt_gradient),
        )

    def permuted(self, order: Tensor) -> "Replicas":
        """Return the replicas in another order [R]."""
        return Replicas(
            self.positions[order],
            self.base[order],
            self.tilt[order],
            self.base_gradient[order],
            self.tilt_gradient[order],
        )


@dataclass(frozen=True)
class Tuning:
    """Step size [R] and scale [R, P], set by `warm_up`, and the length of a trajectory."""

    step_size: Tensor
    scale: Tensor
    n_leapfrog: int


def replicas_at(path: Path, positions: Tensor) -> Replicas:
    """Return the replicas at positions [R, P]."""
    base, base_gradient = path.base(positions)
    tilt, tilt_gradient = path.tilt(positions)
    return Replicas(positions, base, tilt, base_gradient, tilt_gradient)


def leapfrog(
    path: Path, start: Replicas, momenta: Tensor, *, betas: Tensor, move: Tensor, n_steps: int
) -> tuple[Replicas, Tensor]:
    """Return replicas and momenta [R, P] after `n_steps` reversible steps.

    Args:
        path: the densities.
        start: the replicas.
        momenta: [R, P].
        betas: [R].
        move: ε σ [R, P], of either sign.
        n_steps: each evaluates the path once.
    """
    here = start
    for _ in range(n_steps):
        momenta = momenta + 0.5 * move * (here.base_gradient + betas[:, None] * here.tilt_gradient)
        positions = here.positions + move * momenta
        if path.half_width is not None and path.reflects:
            positions, momenta = _reflected(positions, momenta, path.half_width)
        here = replicas_at(path, positions)
        momenta = momenta + 0.5 * move * (here.base_gradient + betas[:, None] * here.tilt_gradient)
    return here, momenta


def _reflected(positions: Tensor, momenta: Tensor, half_width: Tensor) -> tuple[Tensor, Tensor]:
    """Return positions [R, P] folded into the box, with momenta turned at each wall.

    A drift with walls keeps volume and can be reversed (Neal 2011, 5.1). Without them a trajectory
    that leaves the box must be rejected, and with P walls the steps become as short as 1 / P.
    """
    phase = (positions + half_width) % (4 * half_width)
    turned = phase >= 2 * half_width
    inside = torch.where(turned, 3 * half_width - phase, phase - half_width)
    # Rounding must not leave a position outside.
    return inside.clamp(-half_width, half_width), torch.where(turned, -momenta, momenta)


def hmc_step(
    path: Path, state: Replicas, *, betas: Tensor, tuning: Tuning, generator: torch.Generator
) -> tuple[Replicas, Tensor]:
    """Return the replicas after one trajectory, and the acceptance probability of each [R].

    A trajectory that ends where a density is NaN is rejected.
    """
    momenta = _normal(state.positions, generator)
    factor = 1 + _JITTER * (2 * _uniform(state.base, generator) - 1)
    move = (factor * tuning.step_size)[:, None] * tuning.scale
    end, final = leapfrog(path, state, momenta, betas=betas, move=move, n_steps=tuning.n_leapfrog)
    kinetic = 0.5 * (final.square().sum(1) - momenta.square().sum(1))
    gain = (end.base - state.base) + betas * (end.tilt - state.tilt) - kinetic
    probability = gain.clamp(max=0).exp()
    allowed = probability.isfinite() & path.contains(end.positions)
    probability = torch.where(allowed, probability, 0.0)
    accepted = _uniform(state.base, generator) < probability
    return end.where(accepted, state), probability


def exchange(
    state: Replicas, *, betas: Tensor, n_nodes: int, odd: bool, generator: torch.Generator
) -> tuple[Replicas, Tensor]:
    """Return the replicas after swaps of neighbours, and the probability of each swap.

    Args:
        state: R replicas, ladder after ladder, each of `n_nodes`.
        betas: [R].
        n_nodes: replicas per ladder; replicas of different ladders never swap.
        odd: try the pairs (1, 2), (3, 4), ... instead of (0, 1), (2, 3), ...
        generator: of random numbers.
    """
    order = torch.arange(len(betas), device=betas.device)
    lower = order.view(-1, n_nodes)[:, int(odd) : n_nodes - 1 : 2].flatten()
    gain = (betas[lower] - betas[lower + 1]) * (state.tilt[lower + 1] - state.tilt[lower])
    probability = gain.clamp(max=0).exp()
    swapped = lower[_uniform(gain, generator) < probability]
    order[swapped], order[swapped + 1] = swapped + 1, swapped
    return state.permuted(order), probability


def warm_up(
    path: Path,
    state: Replicas,
    *,
    betas: Tensor,
    tuning: Tuning,
    n_trajectories: int,
    generator: torch.Generator,
    pools: int,
    fixed_scale: bool = False,
    between: Callable[[Replicas, int], Replicas] = lambda state, _: state,
) -> tuple[Replicas, Tuning]:
    """Return replicas and tuning after burn-in, with acceptance near TARGET_ACCEPTANCE.

    The step size follows the acceptance of each trajectory, with decreasing gain. One third and
    two thirds of the way through, the scale is reset to the spread seen since the last reset.

    Args:
        path: the densities.
        state: where to start.
        betas: [R].
        tuning: the initial values.
        n_trajectories: length of the burn-in.
        generator: of random numbers.
        pools: replica r is tuned together with r + pools, r + 2 pools, ...
        fixed_scale: tune the step size only.
        between: applied to the replicas after each trajectory, given its number: swaps, new draws.
    """
    log_step = tuning.step_size.log()
    changes = () if fixed_scale else (n_trajectories // 3, 2 * n_trajectories // 3)
    seen: list[Tensor] = []
    for n in range(n_trajectories):
        if n in changes and len(seen) > 4:
            scale = _standard_deviation(torch.stack(seen[len(seen) // 4 :]), pools)
            log_step = log_step + (tuning.scale.log() - scale.log()).mean(1)
            tuning, seen = replace(tuning, scale=scale), []
        tuning = replace(tuning, step_size=log_step.exp())
        state, probability = hmc_step(path, state, betas=betas, tuning=tuning, generator=generator)
        state = between(state, n)
        seen.append(state.positions)
        shared = probability.view(-1, pools).mean(0).repeat(len(betas) // pools)
        log_step = log_step + (shared - TARGET_ACCEPTANCE) / len(seen) ** 0.5
    return state, replace(tuning, step_size=log_step.exp())


def _standard_deviation(positions: Tensor, pools: int) -> Tensor:
    """Return the standard deviation [R, P] of positions [n, R, P], over replicas of one pool."""
    n_seen, n_replicas, n_parameters = positions.shape
    pooled = positions.view(n_seen, n_replicas // pools, pools, n_parameters).flatten(0, 1)
    scale = pooled.std(0)
    # A replica that never moved has no spread: keep its scale above zero.
    floor = 1e-3 * scale.mean(1, keepdim=True) + torch.finfo(scale.dtype).tiny
    return scale.maximum(floor).repeat(n_replicas // pools, 1)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)
