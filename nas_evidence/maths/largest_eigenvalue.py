"""The largest eigenvalue of a symmetric matrix known by products: from below, and from above.

    λ_1 ≤ μ_1 + ε (μ_1 − μ_k) / (1 − 2 ε)      with probability at least 1 − 2 p

    A      symmetric [P, P], eigenvalues λ_1 ≥ ... ≥ λ_P
    μ      eigenvalues of the tridiagonal matrix of k Lanczos steps from a random direction
    ε      (log(1.648 √P / p) / (2 k − 1))²

A power iteration and the μ_1 of Lanczos are below λ_1, by an unknown amount: a test of an upper
limit must not rest on them. From a direction uniform on the sphere, λ_1 − μ_1 > ε (λ_1 − λ_P) with
probability at most p (Kuczyński and Woźniakowski 1992, theorem 4.2, for A − λ_P I, whose Lanczos
vectors are those of A); the same for −A bounds λ_P, and both together give the line above. With
k = P steps μ are the eigenvalues, and ε is 0. Many matrices of one size are treated at once.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: Lanczos steps, and the probability p that one matrix is above its upper limit: so small that a
#: thousand checks all hold with probability 0.998.
N_STEPS = 24
_FAILURE = 1e-6


def largest_eigenvalue(
    product: Callable[[Tensor], Tensor],
    like: Tensor,
    *,
    generator: torch.Generator,
    n_steps: int = N_STEPS,
) -> tuple[Tensor, Tensor]:
    """Return a lower and an upper limit of the largest eigenvalue of R matrices, both [R].

    The lower limit always holds, the upper with probability 1 − 2 10⁻⁶ each.

    Args:
        product: A_r v_r for v [R, P], one row per matrix.
        like: [R, P], for shape, dtype and device.
        generator: of the starting directions.
        n_steps: products; P of them are enough.

    Raises:
        ValueError: if so few steps give no upper limit.
    """
    count, size = like.shape
    steps = min(n_steps, size)
    gap = 0.0 if steps == size else _relative_gap(size, steps)
    basis: list[Tensor] = []
    matrix = like.new_zeros(count, steps, steps)
    current = _normal(like, generator)
    for k in range(steps):
        current = _unit(current, basis, generator)
        basis.append(current)
        image = product(current)
        # All inner products, not only two: rounding cannot hide a direction.
        for i, known in enumerate(basis):
            matrix[:, i, k] = matrix[:, k, i] = (known * image).sum(1)
        current = image
    values = torch.linalg.eigvalsh(matrix)
    low, high = values[:, -1], values[:, -1] + gap * (values[:, -1] - values[:, 0])
    return low, high


def _relative_gap(size: int, steps: int) -> float:
    """Return ε / (1 − 2 ε).

    Raises:
        ValueError: if ε >= ½.
    """
    root = math.log(1.648 * math.sqrt(size) / _FAILURE) / (2 * steps - 1)
    epsilon = root * root
    if epsilon >= 0.5:
        raise ValueError(f"`n_steps` must be larger for {size} parameters, but got {steps}")
    return epsilon / (1 - 2 * epsilon)


def _unit(vector: Tensor, basis: list[Tensor], generator: torch.Generator) -> Tensor:
    """Return unit vectors [R, P] orthogonal to the basis, random where nothing is left."""
    start = vector.norm(dim=1, keepdim=True)
    for _ in range(2):  # once leaves rounding errors that grow
        for known in basis:
            vector = vector - known * (known * vector).sum(1, keepdim=True)
    spent = vector.norm(dim=1, keepdim=True) <= 1e-10 * start
    if bool(spent.any()):  # the directions so far are closed under the product
        fresh = _normal(vector, generator)
        for _ in range(2):
            for known in basis:
                fresh = fresh - known * (known * fresh).sum(1, keepdim=True)
        vector = torch.where(spent, fresh, vector)
    unit: Tensor = vector / vector.norm(dim=1, keepdim=True)
    return unit


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
