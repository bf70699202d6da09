"""Dense curvature: exact blocks of tensors, and the full matrix, each in two forms.

    H = Σ_{n,k} j jᵀ,   j = J_nᵀ r_k  [P]      M rows j in all: N (C − 1) or N C for the GGN,
                                               N for the empirical Fisher
    P <= M   the P x P matrix                  M < P   the rows, for M x M Gram matrices

For a block P is the number of parameters of its tensor.
The memory is estimated first; if there is too little, an error states the estimate.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from nas_evidence.curvature.capture import Collector
from nas_evidence.curvature.layers import Layer
from nas_evidence.curvature.layerwise import Sums
from nas_evidence.curvature.memory import COPIES, require_memory, squares
from nas_evidence.curvature.sweep import Sweep
from nas_evidence.maths.blocks import Block, Dense, LowRank
from nas_evidence.maths.structured import BlockDiagonal, FullKernel, FullMatrix

_INSTEAD = "kfac_ggn, ekfac_ggn or a diagonal kind"


@dataclass
class BlockCollector(Collector):
    """The exact block of each parameter tensor: the sum of outer products, or the rows."""

    stored: dict[str, Tensor]  # [M, size] of the tensors with more parameters than rows
    filled: dict[str, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)

    def receive(self, layer: Layer, a: Tensor | None, g: Tensor, last: bool) -> None:
        """Add the outer products of one column, or store its rows."""
        assert a is not None
        for name, gradients in zip(layer.names, layer.gradients(a, g), strict=True):
            if name in self.stored:
                start = self.filled.get(name, 0)
                self.filled[name] = start + len(gradients)
                self.stored[name][start : self.filled[name]] = gradients
                continue
            rows = gradients.double()
            self.sums.add(name, rows.mT @ rows)

    def block(self, name: str) -> Block:
        """Return the block of one tensor."""
        if name in self.stored:
            return LowRank(self.stored[name])
        return Dense(self.sums.total(name))


@dataclass
class RowCollector(Collector):
    """The rows j of each column, summed to the P x P matrix or stored."""

    names: tuple[str, ...]
    matrix: Tensor | None  # [P, P], or None to store
    column: dict[str, Tensor] = field(default_factory=dict)
    stored: dict[str, list[Tensor]] = field(default_factory=dict)

    def receive(self, layer: Layer, a: Tensor | None, g: Tensor, last: bool) -> None:
        """Take the part of the rows that belongs to the layer."""
        assert a is not None
        self.column.update(zip(layer.names, layer.gradients(a, g), strict=True))

    def end_column(self) -> None:
        """Add the rows, now complete, to the matrix or to the store."""
        if self.matrix is not None:
            rows = torch.cat([self.column[name] for name in self.names], dim=1).double()
            self.matrix.addmm_(rows.mT, rows)
        else:
            for name in self.names:
                self.stored.setdefault(name, []).append(self.column[name])
        self.column.clear()

    def rows(self, name: str) -> Tensor:
        """Return the rows of one tensor [M, size], and free them."""
        return torch.cat(self.stored.pop(name))


def tensor_blocks(sweep: Sweep) -> BlockDiagonal:
    """Return the exact block of each parameter tensor, each in its smaller form."""
    names, sizes, device = _names(sweep), _sizes(sweep), sweep.inputs.device
    n_rows = len(sweep.inputs) * sweep.n_columns
    wide = {name: size for name, size in zip(names, sizes, strict=True) if n_rows < size}
    square = [size for size in sizes if size <= n_rows]
    dtype = next(sweep.model.parameters()).dtype
    n_bytes = squares(square) if square else 0
    if wide:
        n_bytes += n_rows * dtype.itemsize * sum(wide.values())
        n_bytes += 8 * COPIES * n_rows * max(wide.values())
    what = f"a block for each of {len(sizes)} tensors, the largest with {max(sizes)} parameters,"
    require_memory(what, n_bytes, device, instead=_INSTEAD)
    stored = {
        name: torch.zeros(n_rows, size, dtype=dtype, device=device) for name, size in wide.items()
    }
    collector = BlockCollector(stored)
    sweep.run(collector)
    return BlockDiagonal(names, tuple(collector.block(name) for name in names))


def full(sweep: Sweep) -> FullMatrix | FullKernel:
    """Return the full curvature in its smaller form."""
    n_parameters, n_rows = sum(_sizes(sweep)), len(sweep.inputs) * sweep.n_columns
    return full_matrix(sweep) if n_parameters <= n_rows else full_kernel(sweep)


def full_matrix(sweep: Sweep) -> FullMatrix:
    """Return the full curvature as a P x P matrix."""
    sizes, names = _sizes(sweep), _names(sweep)
    total, device = sum(sizes), sweep.inputs.device
    n_bytes = 8 * total * (COPIES * total + 2 * sweep.batch_size)
    require_memory(f"the full curvature of {total} parameters", n_bytes, device, instead=_INSTEAD)
    matrix = torch.zeros(total, total, dtype=torch.float64, device=device)
    sweep.run(RowCollector(names, matrix))
    return FullMatrix(names, sizes, matrix)


def full_kernel(sweep: Sweep) -> FullKernel:
    """Return the full curvature as the rows of J."""
    sizes, names = _sizes(sweep), _names(sweep)
    rows = len(sweep.inputs) * sweep.n_columns
    stored = rows * (sum(sizes) * next(sweep.model.parameters()).element_size() + 8 * max(sizes))
    n_bytes = stored + 8 * rows**2 * (2 * len(sizes) + COPIES)
    what = f"the kernel of {rows} rows for {sum(sizes)} parameters"
    require_memory(what, n_bytes, sweep.inputs.device, instead=_INSTEAD)
    collector = RowCollector(names, None)
    sweep.run(collector)
    return FullKernel(names, tuple(collector.rows(name) for name in names))


def _names(sweep: Sweep) -> tuple[str, ...]:
    return tuple(name for layer in sweep.layers for name in layer.names)


def _sizes(sweep: Sweep) -> tuple[int, ...]:
    return tuple(parameter.numel() for parameter in sweep.model.parameters())
