"""RMin, a minimiser by damped dynamics (Baldock and Marzari 2019, algorithm 3; after FIRE).

    p ← p − ½ ε ∇E(w),   w' = w + ε p,   p ← p − ½ ε ∇E(w')
    E(w') < E(w):  accept, ε ← growth · ε         else:  back to w, p ← 0, ε ← 0.95 ε

    w  positions [R, P]       p  momenta [R, P]       ε  step of each replica [R]

No line search and no memory: two lines of state for each of R networks that go at once. Differs
from the paper, which adds 0.05 to ε: that makes the method depend on the scale of w; 1.05 ε does
not. A step that leaves the box counts as one that rises, where the paper gives up.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.maths.hmc import Density

_SHRINK, _GROW = 0.95, 1.05


@dataclass(frozen=True)
class Minimum:
    """Positions [R, P] and energies [R]; steps taken, and how many of them were accepted [R]."""

    positions: Tensor
    energies: Tensor
    n_steps: int
    n_accepted: Tensor


def rmin(
    log_density: Density,
    start: Tensor,
    *,
    n_steps: int = 1000,
    first_step: float = 0.1,
    half_width: Tensor | None = None,
    tolerance: float = 0.0,
) -> Minimum:
    """Return minima of E = −log density near R starting points; each energy never rises.

    Args:
        log_density: values [R] and gradients [R, P].
        start: [R, P], in the box.
        n_steps: evaluations of the density, at most.
        first_step: ε.
        half_width: of a box around 0 [P]; None for no box.
        tolerance: stop when all energies are at most this.

    Raises:
        ValueError: for a step that is not > 0, or a start outside the box.
    """
    if not first_step > 0 or n_steps < 1:
        raise ValueError(
            f"`first_step > 0` and `n_steps >= 1` must hold, but got {first_step} and {n_steps}"
        )
    if half_width is not None and bool((start.abs() > half_width).any()):
        raise ValueError("`start` must lie within `half_width`")
    here, momenta = start, torch.zeros_like(start)
    value, gradient = log_density(here)
    step = torch.full_like(value, first_step)
    accepted = torch.zeros_like(value, dtype=torch.long)
    taken = 0
    while taken < n_steps and bool((-value > tolerance).any()):
        pushed = momenta + 0.5 * step[:, None] * gradient
        there = here + step[:, None] * pushed
        value_there, gradient_there = log_density(there)
        falls = value_there > value  # energy −log density; false for NaN
        if half_width is not None:
            falls &= (there.abs() <= half_width).all(1)
        rows = falls[:, None]
        momenta = torch.where(rows, pushed + 0.5 * step[:, None] * gradient_there, 0.0)
        here, gradient = (
            torch.where(rows, there, here),
            torch.where(rows, gradient_there, gradient),
        )
        value = torch.where(falls, value_there, value)
        step = torch.where(falls, _GROW * step, _SHRINK * step)
        accepted += falls
        taken += 1
    return Minimum(here, -value, taken, accepted)
