"""Curvature passes over a case, and their blocks as dense matrices."""

from typing import Any

import torch
from cases import Case
from torch import Tensor

from nas_evidence.curvature import CurvaturePass, curvature_pass
from nas_evidence.maths.blocks import Block, Dense, Diagonal, LowRank, Rotated
from nas_evidence.maths.structured import BlockDiagonal


def run(kind: str, c: Case, *, batch_size: int = 4, seed: int = 0, **more: Any) -> CurvaturePass:
    """Pass over a case in uneven batches; `more` are arguments of `curvature_pass`."""
    generator = torch.Generator().manual_seed(seed)
    return curvature_pass(
        kind, c.model, c.x, c.y, c.likelihood, batch_size=batch_size, generator=generator, **more
    )


def matrices(passed: CurvaturePass) -> list[Tensor]:
    """The blocks as dense matrices."""
    assert isinstance(passed.curvature, BlockDiagonal)
    return [_matrix(block) for block in passed.curvature.blocks]


def _matrix(block: Block) -> Tensor:
    if isinstance(block, Diagonal):
        return torch.diag(block.values)
    if isinstance(block, Dense):
        return block.matrix
    if isinstance(block, LowRank):
        return block.rows.double().mT @ block.rows.double()
    if isinstance(block, Rotated):
        triples = zip(block.left, block.right, block.values, strict=True)
        parts = [(torch.kron(b, a), v.flatten()) for b, a, v in triples]
        return torch.block_diag(*[q @ torch.diag(v) @ q.T for q, v in parts])
    pairs = zip(block.gradients, block.inputs, strict=True)
    return torch.block_diag(*[block.scale * torch.kron(b, a) for b, a in pairs])
