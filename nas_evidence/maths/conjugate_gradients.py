"""bᵀ A⁻¹ b and A⁻¹ b by preconditioned conjugate gradients (Hestenes & Stiefel 1952).

    A  symmetric positive definite [P, P], given by products      M ≈ A  preconditioner

With x_0 = 0 each step adds α_k r_kᵀ M⁻¹ r_k to bᵀ x_k, which increases to bᵀ A⁻¹ b, so every
iterate is a lower bound. The sum of the last few increments estimates the remainder (Golub &
Meurant 1997); the iteration stops when it is a small fraction of the value.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: Number of increments that estimate the remainder.
_DELAY = 3


class Solution(NamedTuple):
    """The result of the iteration.

    x            A⁻¹ b [P]
    quadratic    bᵀ x, at most bᵀ A⁻¹ b
    n_products   number of products with A
    complete     whether the last increments were small enough
    """

    x: Tensor
    quadratic: float
    n_products: int
    complete: bool


def solve(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    precondition: Callable[[Tensor], Tensor],
    *,
    max_products: int,
    tolerance: float = 0.01,
    enough: float = math.inf,
) -> Solution:
    """Return an approximation of A⁻¹ b, float64.

    Args:
        product: A v of v [P].
        b: right side [P], float64.
        precondition: M⁻¹ v of v [P].
        max_products: largest number of products with A.
        tolerance: the iteration stops when the last increments are this fraction of bᵀ x.
        enough: the iteration also stops once bᵀ x exceeds this value.
    """
    x, residual = torch.zeros_like(b), b.clone()
    z = precondition(residual)
    direction, square = z.clone(), float(residual @ z)
    quadratic, recent = 0.0, deque([math.inf] * _DELAY, maxlen=_DELAY)
    for done in range(max_products):
        if not (square > 0 and math.isfinite(square)):
            return Solution(x, quadratic, done, square == 0)
        image = product(direction)
        curvature = float(direction @ image)
        if not (curvature > 0 and math.isfinite(curvature)):
            return Solution(x, quadratic, done + 1, False)
        step = square / curvature
        x += step * direction
        residual -= step * image
        quadratic += step * square
        recent.append(step * square)
        if sum(recent) <= tolerance * quadratic or quadratic > enough:
            return Solution(x, quadratic, done + 1, quadratic <= enough)
        z = precondition(residual)
        square, previous = float(residual @ z), square
        direction = z + (square / previous) * direction
        if square <= torch.finfo(torch.float64).eps ** 2 * quadratic:
            return Solution(x, quadratic, done + 1, True)
    return Solution(x, quadratic, max_products, False)
