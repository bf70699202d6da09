"""Densities of which only the values are written down, with gradients by autograd."""

from collections.abc import Callable

import torch
from torch import Tensor

from nas_evidence.maths.hmc import Density


def differentiable(log_density: Callable[[Tensor], Tensor]) -> Density:
    """Return a density with gradients, given a function from positions [R, P] to values [R]."""

    def with_gradient(positions: Tensor) -> tuple[Tensor, Tensor]:
        leaves = positions.detach().requires_grad_(True)
        values = log_density(leaves)
        (gradient,) = torch.autograd.grad(values.sum(), leaves, materialize_grads=True)
        return values.detach(), gradient

    return with_gradient
