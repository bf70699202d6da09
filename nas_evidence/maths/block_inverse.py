"""(c H + Δ)⁻¹ v for a block-diagonal curvature H: a preconditioner.

    c  scale of the curvature      Δ = diag(δ), one δ per tensor [G]

Each block is decomposed once.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nas_evidence.maths.blocks import Diagonal, Rotated
from nas_evidence.maths.structured import BlockDiagonal


@dataclass(frozen=True)
class BlockInverse:
    """The inverse of a scaled curvature plus prior precision."""

    curvature: BlockDiagonal
    prior_precision: Tensor
    scale: float = 1.0

    def __call__(self, vector: Tensor) -> Tensor:
        """Return (c H + Δ)⁻¹ v [P], float64, for v [P]."""
        parts = torch.split(vector, list(self.curvature.sizes))
        triples = zip(self._decomposed, parts, self.prior_precision, strict=True)
        return torch.cat([_solved(b, v, delta, self.scale) for b, v, delta in triples])

    @cached_property
    def _decomposed(self) -> tuple[Diagonal | Rotated | tuple[Tensor, Tensor], ...]:
        return tuple(
            block if isinstance(block, Diagonal | Rotated) else block.decomposed()
            for block in self.curvature.blocks
        )


def _solved(
    block: Diagonal | Rotated | tuple[Tensor, Tensor], v: Tensor, delta: Tensor, scale: float
) -> Tensor:
    if isinstance(block, Diagonal):
        return v / (scale * block.values.flatten().clamp(min=0) + delta)
    if isinstance(block, Rotated):
        return block.solve(v, delta, scale)
    eigenvalues, vectors = block
    inside = vectors.mT @ v
    solved = vectors @ (inside / (scale * eigenvalues + delta))
    if len(inside) < len(v):  # all other eigenvalues are 0
        solved = solved + (v - vectors @ inside) / delta
    return solved
