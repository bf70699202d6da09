"""bᵀ A⁻¹ b and A⁻¹ b by preconditioned conjugate gradients (Hestenes & Stiefel 1952).

    A  symmetric and positive [P, P], known by its products      M ≈ A  preconditioner

With x_0 = 0 each step adds α_k r_kᵀ M⁻¹ r_k to bᵀ x_k, which so rises to bᵀ A⁻¹ b: every value on
the way is a lower bound. The sum of the last few increments estimates what is missing (Golub &
Meurant 1997); the iteration ends when they are a small part of the value.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: Increments that stand for the remainder.
_DELAY = 3


class Solution(NamedTuple):
    """What the iteration found.

    x            A⁻¹ b [P]
    quadratic    bᵀ x, at most bᵀ A⁻¹ b
    n_products   with A
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
        max_products: with A, at most.
        tolerance: the last increments as a part of bᵀ x, at which the iteration ends.
        enough: a value of bᵀ x above which no more need be known.
    """
    x, residual = torch.zeros_like(b), b.clone()
    z = precondition(residual)
    direction, square = z.clone(), float(residual @ z)
    quadratic, recent = 0.0, deque([math.inf] * _DELAY, maxlen=_DELAY)
    for done in range(max_products):
        if not (square > 0 and math.isfinite(square)):
            return Solution(x, quadratic, done, square == 0)
        image = product(direction)
        bend = float(direction @ image)
        if not (bend > 0 and math.isfinite(bend)):
            return Solution(x, quadratic, done + 1, False)
        step = square / bend
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
