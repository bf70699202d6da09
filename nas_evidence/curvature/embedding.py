"""An embedding is a linear layer without bias whose inputs are unit vectors.

    z_t = E[v_t] = Eᵀ e_(v_t)        E [V, D], its rows in the order of the V words

    gradient of a datum       Σ_t e_(v_t) s_tᵀ  [V, D]: row v sums the s_t of its positions
    Kronecker factors         SA = diag(number of positions with word v) [V, V],
                              SB = Σ_{n,t,k} g sᵀ [D, D];  block SA ⊗ SB / (N |T|)

The row of `padding_idx` has no gradient; its unit vector counts as zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas_evidence.maths.at_once import elements_at_once
from nas_evidence.maths.blocks import Kronecker

#: On a CPU, maximum number of elements of unit vectors formed at a time.
_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class EmbeddingLayer:
    """`nn.Embedding`: a is whole numbers [n, ...], g is [n, ..., D]."""

    path: str
    module: nn.Embedding
    names: tuple[str, ...]

    def gradients(self, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of each datum [n, V D]."""
        n, (words, length) = len(a), self.module.weight.shape
        columns = self._masked(a, g)
        total = columns.new_zeros(n, words, length)
        places = a.reshape(n, -1, 1).expand(-1, -1, length)
        return (total.scatter_add_(1, places, columns).flatten(1),)

    def squares(self, a: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the sum over data of squared gradients [V D]; only rows that occur are formed."""
        n, (words, length) = len(a), self.module.weight.shape
        datum = torch.arange(n, device=a.device)[:, None]
        keys, place = torch.unique(datum * words + a.reshape(n, -1), return_inverse=True)
        rows = g.new_zeros(len(keys), length)
        rows.index_add_(0, place.flatten(), self._masked(a, g).flatten(0, 1))
        total = g.new_zeros(words, length)
        return (total.index_add_(0, keys % words, rows.square_()).flatten(),)

    def counts(self, a: Tensor) -> Tensor:
        """Return the diagonal of SA [V], in the dtype of the weight."""
        found = torch.bincount(a.flatten(), minlength=len(self.module.weight))
        if self.module.padding_idx is not None:
            found[self.module.padding_idx] = 0
        return found.to(self.module.weight.dtype)

    def gradient_rows(self, g: Tensor) -> Tensor:
        """Return rows [1, m, D] whose Gram matrix is SB."""
        return g.reshape(1, -1, g.shape[-1])

    def chunks(self, a: Tensor, g: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield g [n, 1, D, T] and unit vectors [n, 1, V, T], a few data at a time.

        In this order, because the weight has inputs as rows where a linear layer has outputs.
        """
        words, n_positions = len(self.module.weight), self.n_positions(g)
        most = elements_at_once(_ELEMENTS, g.device, g.dtype)
        step = max(1, most // max(1, words * n_positions))
        for start in range(0, len(a), step):
            rows = slice(start, start + step)
            places = a[rows].reshape(len(a[rows]), -1)
            units = functional.one_hot(places, words).to(g.dtype)
            if self.module.padding_idx is not None:
                units[:, :, self.module.padding_idx] = 0
            columns = g[rows].reshape(*places.shape, -1)
            yield columns.mT[:, None], units.mT[:, None]

    def block(self, counts: Tensor, gradients: Tensor, n_data: int, n_positions: int) -> Kronecker:
        """Return the Kronecker block from the diagonal of SA [V] and SB [1, D, D]."""
        rounding = float(torch.finfo(self.module.weight.dtype).eps)
        sums = (gradients, torch.diag(counts)[None], n_data, n_positions, rounding)
        return Kronecker(*sums, rounding_of_inputs=rounding)

    def n_positions(self, g: Tensor) -> int:
        """Return |T|, the number of positions of an output gradient."""
        return g[0].numel() // g.shape[-1]

    def _masked(self, a: Tensor, g: Tensor) -> Tensor:
        """Return g as [n, T, D], zero where the word is padding."""
        columns = g.reshape(len(g), -1, g.shape[-1])
        if self.module.padding_idx is None:
            return columns
        return columns * (a.reshape(len(a), -1, 1) != self.module.padding_idx)
