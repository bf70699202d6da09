"""The rows J [N C, P] of a model that is linear in its weights, as its weight space needs them.

    J θ [N, C]      Jᵀ v [P]      Jᵀ W J [P, P]      J_n B J_nᵀ [N, C, C]

The last linear layer of a network, f = A a_n + b, has rows e_c ⊗ (a_n, 1), nearly all of them
zeros. Its products need the inputs alone: Jᵀ W J costs N C² d² / 2 instead of N C³ d², and memory
N d instead of N C² d.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.evidence.jacobian import Jacobian, OuterPart, RowsPart


@dataclass(frozen=True)
class Rows:
    """Any rows, stored [N, C, P]."""

    values: Tensor

    def first(self, n_data: int) -> "Rows":
        """Return the rows of the first data."""
        return Rows(self.values[:n_data])

    def times(self, theta: Tensor) -> Tensor:
        """Return J θ [N, C]."""
        return self.values @ theta

    def transposed(self, v: Tensor) -> Tensor:
        """Return Jᵀ v [P] for v [N, C]."""
        return self.values.flatten(0, 1).mT @ v.flatten()

    def hessian(self, root: Tensor) -> Tensor:
        """Return Jᵀ W J [P, P] for roots of W [K, N, C]."""
        whitened = torch.bmm(root.permute(1, 0, 2), self.values).flatten(0, 1)
        return whitened.mT @ whitened

    def spread(self, matrix: Tensor) -> Tensor:
        """Return J_n B J_nᵀ [N, C, C] for a symmetric matrix B [P, P]."""
        turned = (self.values.flatten(0, 1) @ matrix).view_as(self.values)
        return torch.bmm(turned, self.values.mT)


@dataclass(frozen=True)
class Head:
    """The rows of a last linear layer.

    inputs  (a_n, 1) [N, d + 1], or a_n [N, d] without a bias
    order   place of each parameter in a matrix [C, d + 1], its rows one after another [P]
    """

    inputs: Tensor
    order: Tensor
    n_outputs: int

    def first(self, n_data: int) -> "Head":
        """Return the rows of the first data."""
        return Head(self.inputs[:n_data], self.order, self.n_outputs)

    def times(self, theta: Tensor) -> Tensor:
        """Return J θ [N, C]."""
        matrix = torch.zeros_like(theta)
        matrix[self.order] = theta
        return self.inputs @ matrix.view(self.n_outputs, -1).mT

    def transposed(self, v: Tensor) -> Tensor:
        """Return Jᵀ v [P] for v [N, C]."""
        return (v.mT @ self.inputs).flatten()[self.order]

    def hessian(self, root: Tensor) -> Tensor:
        """Return Jᵀ W J [P, P] for roots of W [K, N, C]."""
        c, d = self.n_outputs, self.inputs.shape[1]
        found = root.new_zeros(c, d, c, d)
        for i in range(c):
            for j in range(i, c):
                weights = (root[:, :, i] * root[:, :, j]).sum(0)
                block = (self.inputs * weights[:, None]).mT @ self.inputs
                found[i, :, j] = found[j, :, i] = block  # symmetric
        return found.view(c * d, c * d)[self.order][:, self.order]

    def spread(self, matrix: Tensor) -> Tensor:
        """Return J_n B J_nᵀ [N, C, C] for a symmetric matrix B [P, P]."""
        c, d = self.n_outputs, self.inputs.shape[1]
        whole = torch.zeros_like(matrix)
        whole[self.order[:, None], self.order] = matrix
        blocks = whole.view(c, d, c, d)
        rows = [
            torch.stack(
                [((self.inputs @ blocks[i, :, j]) * self.inputs).sum(1) for j in range(c)], 1
            )
            for i in range(c)
        ]
        return torch.stack(rows, 1)


Design = Rows | Head


def design_of(jacobian: Jacobian) -> Design:
    """Return the rows of a Jacobian in their cheapest form.

    Raises:
        DoesNotFitError: if memory is short.
    """
    return _head(jacobian) or Rows(jacobian.rows().view(*jacobian.outputs.shape, -1))


def _head(jacobian: Jacobian) -> Head | None:
    """Return the rows of a last layer, None if they are those of another model."""
    weight, *bias = jacobian.parts
    if not isinstance(weight, OuterPart) or len(bias) > 1 or not _is_identity(weight.s):
        return None
    c, d = jacobian.outputs.shape[1], weight.a.shape[1]
    place = torch.arange(c * (d + len(bias))).view(c, -1)
    if not bias:
        return Head(weight.a, place.flatten(), c)
    if not isinstance(bias[0], RowsPart) or not _is_identity(bias[0].values):
        return None
    order = torch.cat([place[:, :d].flatten(), place[:, d]])
    return Head(torch.cat([weight.a, torch.ones_like(weight.a[:, :1])], 1), order, c)


def _is_identity(s: Tensor) -> bool:
    """Return whether every matrix of s [N, C, d] is the identity."""
    return s.shape[1] == s.shape[2] and torch.equal(s, torch.eye(s.shape[1]).to(s).expand_as(s))
