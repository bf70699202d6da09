"""Quadratic forms of the logarithm of a matrix known by its products, by Lanczos iterations.

zᵀ log(A) z  ≈  ‖z‖² Σ_k τ_k² log λ_k

λ_k, τ_k  eigenvalues of the tridiagonal matrix that the iteration started from z finds, and the
first components of its eigenvectors (Gauss quadrature; Golub & Meurant 1994)
"""

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


def log_forms(product: Product, starts: Tensor, *, n_steps: int, tolerance: float) -> Tensor:
    """Return zᵀ log(A) z of several vectors by as many Lanczos iterations at once [m], float64.

    Without a basis to orthogonalise against: for few steps where A is near the identity.

    Args:
        product: A V of rows V [m, P], A symmetric positive definite.
        starts: the vectors, its rows [m, P].
        n_steps: at most.
        tolerance: the iterations end where two steps in a row change no form by more than this.
    """
    norms = starts.norm(dim=1, keepdim=True)
    before, vector = torch.zeros_like(starts), starts / norms
    squares = norms[:, 0].double().square()
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    found, calm = torch.zeros_like(squares), 0
    for _ in range(n_steps):
        image = product(vector)
        if beside:
            image = image - beside[-1][:, None] * before
        diagonal.append((image * vector).sum(1))
        image = image - diagonal[-1][:, None] * vector
        matrix = torch.diag_embed(torch.stack(diagonal, 1).double())
        if beside:
            off = torch.stack(beside, 1).double()
            matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
        values, vectors = torch.linalg.eigh(matrix)
        tiny = torch.finfo(starts.dtype).eps
        last, found = (
            found,
            squares * (vectors[:, 0].square() * values.clamp(min=tiny).log()).sum(1),
        )
        calm = calm + 1 if bool(((found - last).abs() <= tolerance).all()) else 0
        beside.append(image.norm(dim=1))
        if calm == 2 or bool((beside[-1] <= tiny).any()):
            break
        before, vector = vector, image / beside[-1][:, None]
    return found
