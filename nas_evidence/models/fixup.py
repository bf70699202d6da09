"""Scalar scale and bias, which replace normalisation layers (Zhang, Dauphin & Ma, 2019).

    scale  y = s x        bias  y = x + b        s, b  [1]

The class attribute `elementwise_affine_scalar` names the parameter. Curvature recognises the
modules by it and derives the gradient: sum x dy for the scale, sum dy for the bias.
"""

import torch
from torch import Tensor, nn


class FixupScale(nn.Module):
    """Multiply by one learned number."""

    elementwise_affine_scalar = "scale"

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return `scale * x`, of the shape of `x`."""
        return self.scale * x


class FixupBias(nn.Module):
    """Add one learned number."""

    elementwise_affine_scalar = "bias"

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x + bias`, of the shape of `x`."""
        return x + self.bias
