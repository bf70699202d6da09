"""Products of a vector with a Jacobian, by one backward pass."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def vector_jacobian(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    vectors: Tensor | Sequence[Tensor],
    **how: Any,
) -> tuple[Tensor, ...]:
    """Return Σ_o v_oᵀ ∂o/∂i for each input i, as `torch.autograd.grad(outputs, inputs, vectors)`.

    It is the gradient of Σ_o v_oᵀ o, which gives the same numbers. `torch.autograd.grad` with
    vectors imports symbolic shapes, which takes a second in every process.

    Args:
        outputs: o.
        inputs: i.
        vectors: v_o, in the shape of o.
        how: of `torch.autograd.grad`.
    """
    sides = ([side] if isinstance(side, Tensor) else side for side in (outputs, vectors))
    parts = zip(*sides, strict=True)
    with torch.enable_grad():
        total = torch.stack([(o * v).sum() for o, v in parts]).sum()
    return torch.autograd.grad(total, inputs, **how)
