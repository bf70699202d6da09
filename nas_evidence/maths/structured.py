"""Structured curvature matrices and their log determinant against a prior.

    log|H + Δ| − log|Δ| = Σ log1p(λ / δ)      H  curvature of the summed nll  P x P
                                              Δ  prior precision, δ_l for tensor l of the G

`BlockDiagonal` has one block, and so one spectrum, per parameter tensor.
`FullMatrix` and `FullKernel` couple the tensors: the P x P matrix H itself, or the M x M Gram
matrices of the rows J with H = Jᵀ J, used when there are fewer rows than parameters (Immer et al.
2021, Eq. 8, in its symmetric form):

    log|H + Δ| − log|Δ| = log|I + Σ_l K_l / δ_l|,   K_l = J_l J_lᵀ

Everything here is float64. Log determinants are sums of log1p, never the difference of two sums
of logs, and are differentiable in the prior precision. With S = Δ^{-1/2} H Δ^{-1/2} the effective
number of parameters of tensor l is γ_l = tr_l[S (I + S)⁻¹] = Σ λ / (λ + δ_l) for a block.

A factor c on the curvature (likelihood power, noise) needs no new object: all of these depend on
H Δ⁻¹ alone, so c H with precision δ equals H with δ / c, including gradients in c.

`Binned` has the sums of a `BlockDiagonal` from 64 bins per octave of each large spectrum, each
with its count and mean. The relative error of γ is then at most 1.5e-5, and 5e-6 in bins that are
evenly filled. A Newton step on the full spectra squares that error.

`prior_precision` is [G], one for each tensor.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nas_evidence.maths.blocks import Block, clamped
from nas_evidence.maths.eigenvalues import eigenvalues
from nas_evidence.maths.precisions import of_each_parameter

Array = npt.NDArray[np.float64]


class Slopes(NamedTuple):
    """The log determinant and its derivatives in x = log δ."""

    log_det_ratio: Tensor  # log|H + Δ| − log|Δ| []
    effective: Tensor  # γ = −∂(log|H + Δ| − log|Δ|)/∂x  [G]
    hessian: Tensor  # ∂γ_l/∂x_m  [G, G]


#: Smaller spectra are not binned.
_LARGE = 4096


@dataclass(frozen=True)
class Binned:
    """Spectra as values with weights [B], on the CPU; `tensor` [B], ascending, has their owner."""

    values: Tensor
    weights: Tensor
    tensor: Tensor
    n_tensors: int

    def trace(self) -> Tensor:
        """Return the trace of each block [G]."""
        values, weights = self.values.numpy(), self.weights.numpy()
        return torch.from_numpy(self._sums(weights * values))

    def slopes(self, prior_precision: Tensor) -> Slopes:
        """Return the log determinant with its derivatives, for δ [G]; the Hessian is diagonal."""
        of_each = self.by_tensor(prior_precision.detach().cpu().double().numpy())
        log_dets, effective, second = map(torch.from_numpy, of_each)
        return Slopes(log_dets.sum(), effective, torch.diag(second))

    def by_tensor(self, prior_precision: Array) -> tuple[Array, Array, Array]:
        """Return Σ log1p(λ / δ_l), γ_l and ∂γ_l/∂x_l of each tensor [G], for δ [G].

        In numpy, which has a tenth of torch's overhead for sums of short pieces.
        """
        values, weights = self.values.numpy(), self.weights.numpy()
        delta = np.repeat(prior_precision, self._lengths)
        share = values / (values + delta)
        log_dets = self._sums(weights * np.log1p(values / delta))
        weighted = weights * share
        return log_dets, self._sums(weighted), -self._sums(weighted * (1 - share))

    @cached_property
    def _lengths(self) -> npt.NDArray[np.int64]:
        """How many values each tensor has [G]."""
        return np.bincount(self.tensor.numpy(), minlength=self.n_tensors)

    def _sums(self, values: Array) -> Array:
        """Return the sums of values [B] by tensor [G]."""
        found, some = np.zeros(self.n_tensors), self._lengths > 0
        starts = np.cumsum(self._lengths) - self._lengths
        if some.any():
            found[some] = np.add.reduceat(values, starts[some])
        return found


#: Leading bits of a float64 >= 0 that decide its bin: its exponent and 64 steps per octave.
_BITS = 17


def _bins(spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and counts of 64 bins per octave, by the leading bits of the floats."""
    if len(spectrum) <= _LARGE:
        return spectrum, torch.ones(len(spectrum), dtype=torch.float64)
    bits = spectrum.contiguous().view(torch.int64) >> (63 - _BITS)
    bits -= bits.min()
    counts = torch.bincount(bits).double()
    means = torch.bincount(bits, spectrum) / counts
    return means[counts > 0], counts[counts > 0]


def _binned_at_once(spectra: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return `_bins` of each spectrum, on the CPU, with three reads from a GPU for all of them."""
    is_large = [len(values) > _LARGE for values in spectra]
    small = [v for v, large in zip(spectra, is_large, strict=True) if not large]
    large = [v for v, large in zip(spectra, is_large, strict=True) if large]
    few = iter(torch.split(torch.cat(small).cpu(), [len(v) for v in small]) if small else ())
    many = iter(_large_bins(large) if large else ())
    return [
        next(many) if large else ((values := next(few)), torch.ones_like(values))
        for large in is_large
    ]


def _large_bins(spectra: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    values = torch.cat(list(spectra))
    owners = torch.cat([torch.full_like(v, i, dtype=torch.int64) for i, v in enumerate(spectra)])
    bins, order = (owners << _BITS | values.view(torch.int64) >> (63 - _BITS)).sort(stable=True)
    bins, counts = torch.unique_consecutive(bins, return_counts=True)
    means = torch.segment_reduce(values[order], "sum", lengths=counts) / counts
    numbers = torch.stack([means, counts.double(), (bins >> _BITS).double()]).cpu()
    means, counts, owners = numbers.unbind()
    return ((means[owners == i], counts[owners == i]) for i in range(len(spectra)))


#: The eigenvalues of each block, clamped at 0, and how many of them were negative [].
Spectra = tuple[tuple[Tensor, Tensor], ...]


@dataclass(frozen=True)
class Known:
    """What is computed of several networks as one batch.

    trace    of each block [G]
    spectra  returns the eigenvalues, which are computed when they are first needed
    """

    trace: Tensor
    spectra: Callable[[], Spectra]


@dataclass(frozen=True)
class BlockDiagonal:
    """One block per parameter tensor, in the order of `named_parameters()`.

    known  of it in advance; None if nothing is
    """

    names: tuple[str, ...]
    blocks: tuple[Block, ...]
    known: Known | None = field(default=None, repr=False, compare=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of parameters of each tensor."""
        return tuple(block.size for block in self.blocks)

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    @property
    def n_clamped(self) -> int:
        """Number of eigenvalues that rounding made negative."""
        return int(torch.stack([n for _, n in self._spectra]).sum())

    def spectra(self) -> tuple[Tensor, ...]:
        """Return the eigenvalues of each block, float64, clamped at 0; decomposed once."""
        return tuple(values for values, _ in self._spectra)

    def trace(self) -> Tensor:
        """Return the trace of each block [G]."""
        if self.known is not None:
            return self.known.trace
        return torch.stack([block.trace() for block in self.blocks])

    def log_det_ratio(self, prior_precision: Tensor) -> Tensor:
        """Return Σ log1p(λ / δ_l) for each tensor [G], differentiable in δ."""
        blocks = zip(self.spectra(), self._of_blocks(prior_precision), strict=True)
        return torch.stack([torch.log1p(values / delta).sum() for values, delta in blocks])

    def effective_parameters(self, prior_precision: Tensor) -> Tensor:
        """Return γ_l = Σ λ / (λ + δ_l) for each tensor [G]."""
        blocks = zip(self.spectra(), self._of_blocks(prior_precision), strict=True)
        return torch.stack([(values / (values + delta)).sum() for values, delta in blocks])

    def slopes(self, prior_precision: Tensor) -> Slopes:
        """Return the log determinant with its derivatives, for δ [G]; the Hessian is diagonal."""
        blocks = zip(self.spectra(), prior_precision.tolist(), strict=True)
        log_dets, effective, kept = [], [], []
        for values, delta in blocks:
            share = values / (values + delta)
            effective.append(share.sum())
            kept.append(effective[-1] - share @ share)
            log_dets.append((values / delta).log1p_().sum())
        hessian = torch.diag(-torch.stack(kept))
        return Slopes(torch.stack(log_dets).sum(), torch.stack(effective), hessian)

    @cached_property
    def binned(self) -> Binned:
        """The same spectra, large ones in bins."""
        return binned_together([self])

    def inverse_quadratic(self, vector: Tensor, prior_precision: Tensor) -> Tensor:
        """Return vᵀ (H + Δ)⁻¹ v [] for v [P]."""
        parts = torch.split(vector.to(self.spectra()[0]), list(self.sizes))
        triples = zip(self.blocks, parts, self._of_blocks(prior_precision), strict=True)
        return torch.stack([b.inverse_quadratic(v, delta) for b, v, delta in triples]).sum()

    def _of_blocks(self, prior_precision: Tensor) -> tuple[Tensor, ...]:
        return prior_precision.to(self.spectra()[0]).unbind()

    @cached_property
    def _spectra(self) -> Spectra:
        for name, trace in zip(self.names, self.trace().tolist(), strict=True):
            if not math.isfinite(trace):
                raise ValueError(f"the curvature of `{name}` is not finite; the model diverged")
        if self.known is not None:
            return self.known.spectra()
        matrices = [block.to_solve() for block in self.blocks]
        # The gradient factor of a weight may be the block of its bias: one decomposition.
        once = {_identity(matrix): matrix for each in matrices for matrix in each}
        solved = dict(zip(once, eigenvalues(list(once.values())), strict=True))
        return tuple(
            block.spectrum([solved[_identity(matrix)] for matrix in each])
            for block, each in zip(self.blocks, matrices, strict=True)
        )


def _identity(matrix: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return what tells two tensors in memory apart."""
    return matrix.data_ptr(), tuple(matrix.shape), matrix.stride()


def binned_together(curvatures: Sequence[BlockDiagonal]) -> Binned:
    """Return the spectra of all tensors, curvature after curvature; large ones in bins."""
    spectra = [values for one in curvatures for values in one.spectra()]
    if all(len(values) <= _LARGE for values in spectra):
        values = torch.cat(spectra).cpu()
        weights, lengths = torch.ones_like(values), [len(each) for each in spectra]
    else:
        on_cpu = spectra[0].device.type == "cpu"
        parts = [_bins(each) for each in spectra] if on_cpu else _binned_at_once(spectra)
        values, weights = (torch.cat(one) for one in zip(*parts, strict=True))
        lengths = [len(each) for each, _ in parts]
    owners = torch.arange(len(spectra)).repeat_interleave(torch.tensor(lengths))
    return Binned(values, weights, owners, len(spectra))


@dataclass(frozen=True)
class FullMatrix:
    """The P x P matrix H; rows and columns follow `names`, each tensor flattened."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    matrix: Tensor

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    @cached_property
    def n_clamped(self) -> int:
        """Number of eigenvalues of H that rounding made negative."""
        return int(clamped(torch.linalg.eigvalsh(self.matrix))[1])

    def trace(self) -> Tensor:
        """Return the trace of the block of each tensor [G]."""
        return _sums(self.matrix.diagonal(), self.sizes)

    def log_det_ratio(self, prior_precision: Tensor) -> Tensor:
        """Return log|H + Δ| − log|Δ| [1], differentiable in δ."""
        eigenvalues = torch.linalg.eigvalsh(self._whitened(self._root(prior_precision)))
        return torch.log1p(eigenvalues.clamp(min=0)).sum()[None]

    def effective_parameters(self, prior_precision: Tensor) -> Tensor:
        """Return γ_l = tr_l[S (I + S)⁻¹] for each tensor [G]."""
        eigenvalues, vectors = self._decomposed(self._root(prior_precision))
        shares = vectors.square() @ (eigenvalues / (1 + eigenvalues))
        return _sums(shares, self.sizes)

    def slopes(self, prior_precision: Tensor) -> Slopes:
        """Return the log determinant with its derivatives, for δ [G].

        With W = (I + S)⁻¹ the Hessian is ‖W_lm‖² − [l = m] tr W_ll. To avoid cancellation its
        diagonal is computed as ‖W_ll‖² − tr W_ll = −Σ_{m≠l} ‖W_lm‖² − tr[S W²]_ll.
        """
        eigenvalues, vectors = self._decomposed(self._root(prior_precision))
        kept = 1 / (1 + eigenvalues)
        weights = torch.stack([eigenvalues * kept, eigenvalues * kept.square()], 1)
        effective, damped = (_sums(v, self.sizes) for v in (vectors.square() @ weights).unbind(1))
        squares = ((vectors * kept) @ vectors.mT).square()
        hessian = torch.stack([_sums(part.sum(0), self.sizes) for part in self._split(squares)])
        hessian.fill_diagonal_(0)
        hessian -= torch.diag(hessian.sum(1) + damped)
        return Slopes(torch.log1p(eigenvalues).sum(), effective, hessian)

    def inverse_quadratic(self, vector: Tensor, prior_precision: Tensor) -> Tensor:
        """Return vᵀ (H + Δ)⁻¹ v [] for v [P]."""
        root = self._root(prior_precision)
        eigenvalues, vectors = self._decomposed(root)
        coordinates = vectors.mT @ (root * vector.to(root))
        return (coordinates.square() / (1 + eigenvalues)).sum()

    def _root(self, prior_precision: Tensor) -> Tensor:
        """Return the diagonal of Δ^{-1/2} [P]."""
        root = prior_precision.to(self.matrix).rsqrt()
        return of_each_parameter(root, self.sizes)

    def _whitened(self, root: Tensor) -> Tensor:
        return root[:, None] * self.matrix * root[None, :]

    def _decomposed(self, root: Tensor) -> tuple[Tensor, Tensor]:
        eigenvalues, vectors = torch.linalg.eigh(self._whitened(root))
        return eigenvalues.clamp(min=0), vectors

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, list(self.sizes))


@dataclass(frozen=True)
class FullKernel:
    """The rows of J [M, P], H = Jᵀ J, stored per tensor in the dtype of the model."""

    names: tuple[str, ...]
    rows: tuple[Tensor, ...]  # [M, size] each

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of parameters of each tensor."""
        return tuple(rows.shape[1] for rows in self.rows)

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    @cached_property
    def grams(self) -> Tensor:
        """K_l = J_l J_lᵀ [G, M, M]."""
        return torch.stack([(rows := j.double()) @ rows.mT for j in self.rows])

    @cached_property
    def n_clamped(self) -> int:
        """Number of eigenvalues of J Jᵀ that rounding made negative."""
        return int(clamped(torch.linalg.eigvalsh(self.grams.sum(0)))[1])

    def trace(self) -> Tensor:
        """Return the trace of the block of each tensor [G]."""
        return self.grams.diagonal(dim1=1, dim2=2).sum(1)

    def log_det_ratio(self, prior_precision: Tensor) -> Tensor:
        """Return log|I + Σ_l K_l / δ_l| [1], differentiable in δ [G]."""
        eigenvalues = torch.linalg.eigvalsh(self._kernel(prior_precision))
        return torch.log1p(eigenvalues.clamp(min=0)).sum()[None]

    def effective_parameters(self, prior_precision: Tensor) -> Tensor:
        """Return γ_l = tr[(I + K)⁻¹ K_l] / δ_l for each tensor [G]."""
        eigenvalues, vectors = self._decomposed(prior_precision)
        inverse = (vectors / (1 + eigenvalues)) @ vectors.mT
        traces: Tensor = (self.grams * inverse).sum((1, 2))
        return traces / prior_precision.to(self.grams)

    def slopes(self, prior_precision: Tensor) -> Slopes:
        """Return the log determinant with its derivatives, for δ [G].

        The Hessian is tr[V_l V_m] − [l = m] γ_l with V_l = (I + K)⁻¹ K_l / δ_l.
        """
        eigenvalues, vectors = self._decomposed(prior_precision)
        inverse = (vectors / (1 + eigenvalues)) @ vectors.mT
        parts = inverse @ (self.grams / prior_precision.to(self.grams)[:, None, None])
        effective = parts.diagonal(dim1=1, dim2=2).sum(1)
        hessian = torch.einsum("lij,mji->lm", parts, parts) - torch.diag(effective)
        return Slopes(torch.log1p(eigenvalues).sum(), effective, hessian)

    def inverse_quadratic(self, vector: Tensor, prior_precision: Tensor) -> Tensor:
        """Return vᵀ (H + Δ)⁻¹ v [] for v [P], by Woodbury's identity."""
        precision = prior_precision.to(self.grams)
        parts = torch.split(vector.to(self.grams), list(self.sizes))
        triples = list(zip(self.rows, parts, precision, strict=True))
        projected = torch.stack([j.double() @ v / delta for j, v, delta in triples]).sum(0)
        plain = torch.stack([v.square().sum() / delta for _, v, delta in triples]).sum()
        eigenvalues, vectors = self._decomposed(prior_precision)
        return plain - ((vectors.mT @ projected).square() / (1 + eigenvalues)).sum()

    def as_matrix(self) -> FullMatrix:
        """Return Jᵀ J [P, P]."""
        rows = torch.cat(self.rows, 1).double()
        return FullMatrix(self.names, self.sizes, rows.mT @ rows)

    def _decomposed(self, prior_precision: Tensor) -> tuple[Tensor, Tensor]:
        eigenvalues, vectors = torch.linalg.eigh(self._kernel(prior_precision))
        return eigenvalues.clamp(min=0), vectors

    def _kernel(self, prior_precision: Tensor) -> Tensor:
        kernel: Tensor = torch.tensordot(1 / prior_precision.to(self.grams), self.grams, dims=1)
        return kernel


Structured = BlockDiagonal | FullMatrix | FullKernel


def _sums(values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return torch.stack([part.sum() for part in torch.split(values, list(sizes))])
