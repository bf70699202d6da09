"""Structured curvature matrices and their log determinant against a prior.

    log|H + D| − log|D| = Σ log1p(λ / δ)      H  curvature of the summed nll  P x P
                                              D  prior precision, δ_l for tensor l of the G

`BlockDiagonal` has one block for each parameter tensor and therefore a spectrum for each; its
blocks are `Diagonal`, `Dense` or `Kronecker`. `FullMatrix` and `FullKernel` couple the tensors:
the P x P matrix H itself, or the M x M Gram matrices of the rows J with H = Jᵀ J, used when there
are fewer rows than parameters (Immer et al. 2021, Eq. 8, in its symmetric form):

    log|H + D| − log|D| = log|I + Σ_l K_l / δ_l|,   K_l = J_l J_lᵀ

Everything here is float64. Log determinants are sums of log1p, never the difference of two sums
of logs, and are differentiable in the prior precision. With S = D^{-1/2} H D^{-1/2} the effective
number of parameters of tensor l is γ_l = tr_l[S (I + S)⁻¹] = Σ λ / (λ + δ_l) for a block.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Diagonal:
    """A diagonal block, or any block in its eigenbasis: `values` [size]."""

    values: Tensor

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.values.numel()

    def spectrum(self) -> tuple[Tensor, int]:
        """Return the eigenvalues [size], clamped at 0, and how many were below."""
        return _clamped(self.values.flatten())

    def trace(self) -> Tensor:
        """Return the trace []."""
        return self.values.sum()


@dataclass(frozen=True)
class Dense:
    """A symmetric block: `matrix` [size, size]."""

    matrix: Tensor

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.matrix)

    def spectrum(self) -> tuple[Tensor, int]:
        """Return the eigenvalues [size], clamped at 0, and how many were below."""
        return _clamped(torch.linalg.eigvalsh(self.matrix))

    def trace(self) -> Tensor:
        """Return the trace []."""
        return self.matrix.trace()


@dataclass(frozen=True)
class Kronecker:
    """The block `scale` · SB ⊗ SA of a weight (out, in), one pair for each convolution group.

    inputs     SA = Σ_{n,t} a aᵀ    [groups, d_in, d_in]
    gradients  SB = Σ_{n,t,c} s sᵀ  [groups, d_out, d_out]
    scale      1 / (N |T|): one over data points times positions
    """

    inputs: Tensor
    gradients: Tensor
    scale: float

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.inputs) * self.inputs.shape[1] * self.gradients.shape[1]

    def spectrum(self) -> tuple[Tensor, int]:
        """Return the eigenvalues [size], clamped at 0, and how many factor eigenvalues were below.

        The factors are clamped, not the product: two rounding errors below zero would multiply
        to a positive eigenvalue.
        """
        left, n_left = _clamped(torch.linalg.eigvalsh(self.gradients))
        right, n_right = _clamped(torch.linalg.eigvalsh(self.inputs))
        return (self.scale * left[:, :, None] * right[:, None, :]).flatten(), n_left + n_right

    def trace(self) -> Tensor:
        """Return the trace []."""
        left = self.gradients.diagonal(dim1=1, dim2=2).sum(1)
        right = self.inputs.diagonal(dim1=1, dim2=2).sum(1)
        return self.scale * (left * right).sum()


Block = Diagonal | Dense | Kronecker


@dataclass(frozen=True)
class BlockDiagonal:
    """One block for each parameter tensor, in the order of `named_parameters()`."""

    names: tuple[str, ...]
    blocks: tuple[Block, ...]

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
        """Number of eigenvalues that rounding had put below zero."""
        return sum(n for _, n in self._spectra)

    def spectra(self) -> tuple[Tensor, ...]:
        """Return the eigenvalues of each block, float64, clamped at 0; decomposed once."""
        return tuple(values for values, _ in self._spectra)

    def trace(self) -> Tensor:
        """Return the trace of each block [G]."""
        return torch.stack([block.trace() for block in self.blocks])

    def log_det_ratio(self, prior_precision: Tensor) -> Tensor:
        """Return Σ log1p(λ / δ_l) for each tensor [G], differentiable in δ [G]."""
        pairs = zip(self.spectra(), self._beside(prior_precision), strict=True)
        return torch.stack([torch.log1p(values / delta).sum() for values, delta in pairs])

    def effective_parameters(self, prior_precision: Tensor) -> Tensor:
        """Return γ_l = Σ λ / (λ + δ_l) for each tensor [G]."""
        pairs = zip(self.spectra(), self._beside(prior_precision), strict=True)
        return torch.stack([(values / (values + delta)).sum() for values, delta in pairs])

    def scaled(self, factor: float | Tensor) -> "BlockDiagonal":
        """Return the spectrum of `factor` · H, differentiable in `factor` (noise, tempering)."""
        return BlockDiagonal(self.names, tuple(Diagonal(s * factor) for s in self.spectra()))

    def _beside(self, prior_precision: Tensor) -> Tensor:
        return prior_precision.to(self.spectra()[0])

    @cached_property
    def _spectra(self) -> tuple[tuple[Tensor, int], ...]:
        for name, block in zip(self.names, self.blocks, strict=True):
            if not bool(torch.isfinite(block.trace())):
                raise ValueError(f"the curvature of `{name}` is not finite; the model diverged")
        return tuple(block.spectrum() for block in self.blocks)


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
        """Number of eigenvalues of H that rounding had put below zero."""
        return _clamped(torch.linalg.eigvalsh(self.matrix))[1]

    def trace(self) -> Tensor:
        """Return the trace of the block of each tensor [G]."""
        return _sums(self.matrix.diagonal(), self.sizes)

    def log_det_ratio(self, prior_precision: Tensor) -> Tensor:
        """Return log|H + D| − log|D| [1], differentiable in δ [G]."""
        eigenvalues = torch.linalg.eigvalsh(self._whitened(prior_precision))
        return torch.log1p(eigenvalues.clamp(min=0)).sum()[None]

    def effective_parameters(self, prior_precision: Tensor) -> Tensor:
        """Return γ_l = tr_l[S (I + S)⁻¹] for each tensor [G]."""
        eigenvalues, vectors = torch.linalg.eigh(self._whitened(prior_precision))
        eigenvalues = eigenvalues.clamp(min=0)
        shares = vectors.square() @ (eigenvalues / (1 + eigenvalues))
        return _sums(shares, self.sizes)

    def scaled(self, factor: float | Tensor) -> "FullMatrix":
        """Return `factor` · H, differentiable in `factor` (noise, tempering)."""
        return FullMatrix(self.names, self.sizes, self.matrix * factor)

    def _whitened(self, prior_precision: Tensor) -> Tensor:
        sizes = torch.tensor(self.sizes, device=self.matrix.device)
        root = prior_precision.to(self.matrix).rsqrt().repeat_interleave(sizes)
        return root[:, None] * self.matrix * root[None, :]


@dataclass(frozen=True)
class FullKernel:
    """The Gram matrices K_l = J_l J_lᵀ [G, M, M] of the M rows of J, H = Jᵀ J."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    grams: Tensor

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    @cached_property
    def n_clamped(self) -> int:
        """Number of eigenvalues of J Jᵀ that rounding had put below zero."""
        return _clamped(torch.linalg.eigvalsh(self.grams.sum(0)))[1]

    def trace(self) -> Tensor:
        """Return the trace of the block of each tensor [G]."""
        return self.grams.diagonal(dim1=1, dim2=2).sum(1)

    def log_det_ratio(self, prior_precision: Tensor) -> Tensor:
        """Return log|I + Σ_l K_l / δ_l| [1], differentiable in δ [G]."""
        eigenvalues = torch.linalg.eigvalsh(self._kernel(prior_precision))
        return torch.log1p(eigenvalues.clamp(min=0)).sum()[None]

    def effective_parameters(self, prior_precision: Tensor) -> Tensor:
        """Return γ_l = tr[(I + K)⁻¹ K_l] / δ_l for each tensor [G]."""
        eigenvalues, vectors = torch.linalg.eigh(self._kernel(prior_precision))
        inverse = (vectors / (1 + eigenvalues.clamp(min=0))) @ vectors.T
        traces: Tensor = (self.grams * inverse).sum((1, 2))
        return traces / prior_precision.to(self.grams)

    def scaled(self, factor: float | Tensor) -> "FullKernel":
        """Return the kernel of `factor` · H, differentiable in `factor` (noise, tempering)."""
        return FullKernel(self.names, self.sizes, self.grams * factor)

    def _kernel(self, prior_precision: Tensor) -> Tensor:
        inverse = 1 / prior_precision.to(self.grams)
        kernel: Tensor = torch.tensordot(inverse, self.grams, dims=1)
        return kernel


Structured = BlockDiagonal | FullMatrix | FullKernel


def _clamped(eigenvalues: Tensor) -> tuple[Tensor, int]:
    return eigenvalues.clamp(min=0), int((eigenvalues < 0).sum())


def _sums(values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return torch.stack([part.sum() for part in torch.split(values, list(sizes))])
