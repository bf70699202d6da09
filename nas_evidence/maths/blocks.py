"""The block of one parameter tensor in a block-diagonal curvature matrix.

    Diagonal   diag(h)                                        one number per parameter
    Rotated    (Q_B ⊗ Q_A) diag(h) (Q_B ⊗ Q_A)ᵀ               diagonal in a Kronecker eigenbasis
    Dense      any symmetric matrix
    LowRank    Jᵀ J, kept as J: fewer rows than parameters
    Kronecker  SB ⊗ SA / (N |T|), one pair per convolution group
    FewInputs  the same with SA = Aᵀ A, kept as A: fewer rows than columns

Everything here is float64, except the rows of `LowRank` and `FewInputs`. A Kronecker block stores
SA, SB and N separately, because the product of sums is not the sum of products.

`spectrum` takes the eigenvalues of the matrices of `to_solve` where those of all blocks have been
computed together, and else computes them.

Sums formed in float32 carry noise where an eigenvalue should be 0, of either sign and up to ε
times the largest one (measured: 1.1 at sides from 36 to 785). Images have many true eigenvalues of
that size, so a threshold there would remove tens of nats at a precision of 0.01. Therefore only
eigenvalues up to ε/10 times the largest are set to 0, and those beyond a rank that is known: a sum
of few rows has no more eigenvalues above 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nas_evidence.maths.eigenvalues import eigenvalues

_DOUBLE = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Diagonal:
    """A diagonal block: `values` [size]."""

    values: Tensor

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.values.numel()

    def to_solve(self) -> list[Tensor]:
        """Return no matrix: the eigenvalues are known."""
        return []

    def spectrum(self, solved: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues [size], clamped at 0, and how many were negative."""
        return clamped(self.values.flatten())

    def trace(self) -> Tensor:
        """Return the trace []."""
        return self.values.sum()

    def inverse_quadratic(self, vector: Tensor, precision: Tensor) -> Tensor:
        """Return vᵀ (H + δ)⁻¹ v [] for v [size] and δ [] or [size]."""
        return (vector.square() / (self.values.flatten().clamp(min=0) + precision)).sum()


@dataclass(frozen=True)
class Rotated:
    """Diagonal in the eigenbasis of a Kronecker block; no sum over data.

    values  [groups, d_out, m]                    m <= d_in; all other eigenvalues are 0
    left    Q_B, columns [groups, d_out, d_out]
    right   Q_A, columns [groups, d_in, m]
    """

    values: Tensor
    left: Tensor
    right: Tensor

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.values.shape[0] * self.values.shape[1] * self.right.shape[1]

    def to_solve(self) -> list[Tensor]:
        """Return no matrix: the eigenvalues are known."""
        return []

    def spectrum(self, solved: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues [size], clamped at 0, and how many were negative."""
        return clamped(padded(self.values.flatten(), self.size))

    def trace(self) -> Tensor:
        """Return the trace []."""
        return self.values.sum()

    def inverse_quadratic(self, vector: Tensor, precision: Tensor) -> Tensor:
        """Return vᵀ (H + δ)⁻¹ v [] for v [size] and δ []."""
        turned, inside = self._turned(vector)
        total = (inside.square() / (self.values.clamp(min=0) + precision)).sum()
        if self.values.shape[2] < self.right.shape[1]:
            total = total + (turned - inside @ self.right.mT).square().sum() / precision
        return total

    def solve(self, vector: Tensor, precision: Tensor, scale: float = 1.0) -> Tensor:
        """Return (c H + δ)⁻¹ v [size] for v [size], δ [] and the scale c."""
        turned, inside = self._turned(vector)
        solved = inside / (scale * self.values.clamp(min=0) + precision) @ self.right.mT
        if self.values.shape[2] < self.right.shape[1]:
            solved = solved + (turned - inside @ self.right.mT) / precision
        return (self.left @ solved).flatten()

    def _turned(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q_Bᵀ V [groups, d_out, d_in] and Q_Bᵀ V Q_A [groups, d_out, m]."""
        turned = self.left.mT @ vector.reshape(*self.values.shape[:2], -1)
        return turned, turned @ self.right


@dataclass(frozen=True)
class Dense:
    """A symmetric block: `matrix` [size, size]; ε, `rounding`, of the dtype of its sums."""

    matrix: Tensor
    rounding: float = _DOUBLE

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.matrix)

    def to_solve(self) -> list[Tensor]:
        """Return the matrix [1, size, size] unless it is a number, as of a Fixup scalar."""
        return [] if self.size == 1 else [self.matrix[None]]

    def spectrum(self, solved: Sequence[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues [size], without noise, and how many were negative."""
        solved = eigenvalues(self.to_solve()) if solved is None else solved
        return without_noise(solved[0][0] if solved else self.matrix[0], self.rounding)

    def trace(self) -> Tensor:
        """Return the trace []."""
        return self.matrix.trace()

    def inverse_quadratic(self, vector: Tensor, precision: Tensor) -> Tensor:
        """Return vᵀ (H + δ)⁻¹ v [] for v [size] and δ []."""
        eigenvalues, vectors = self.decomposed()
        return Diagonal(eigenvalues).inverse_quadratic(vectors.mT @ vector, precision)

    def decomposed(self) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues [size], without noise, and the eigenvectors, columns."""
        eigenvalues, vectors = torch.linalg.eigh(self.matrix)
        return without_noise(eigenvalues, self.rounding)[0], vectors


@dataclass(frozen=True)
class LowRank:
    """The block Jᵀ J of few rows J [M, size], M < size, kept in the dtype of the model.

    It has M eigenvalues besides zeros, those of J Jᵀ [M, M]; no size x size matrix is formed.
    """

    rows: Tensor

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.rows.shape[1]

    def to_solve(self) -> list[Tensor]:
        """Return no matrix: J Jᵀ is large, and there only while it is solved."""
        return []

    def spectrum(self, solved: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues [size], without noise, and how many were negative."""
        rows = self.rows.double()
        values, n_negative = without_noise(torch.linalg.eigvalsh(rows @ rows.mT), _DOUBLE)
        return padded(values, self.size), n_negative

    def trace(self) -> Tensor:
        """Return the trace []."""
        return self.rows.double().square().sum()

    def inverse_quadratic(self, vector: Tensor, precision: Tensor) -> Tensor:
        """Return vᵀ (H + δ)⁻¹ v [] for v [size] and δ []."""
        eigenvalues, vectors = self.decomposed()
        inside = vectors.mT @ vector
        outside = vector - vectors @ inside
        spanned = Diagonal(eigenvalues).inverse_quadratic(inside, precision)
        return spanned + outside.square().sum() / precision

    def decomposed(self) -> tuple[Tensor, Tensor]:
        """Return M eigenvalues, without noise, and eigenvectors [size, M]; all others are 0.

        With Jᵀ = Q R the eigenvectors are Q times those of R Rᵀ: orthogonal to rounding also
        where eigenvalues are tiny, so that nothing cancels against a small precision.
        """
        basis, triangle = torch.linalg.qr(self.rows.double().mT)
        eigenvalues, vectors = torch.linalg.eigh(triangle @ triangle.mT)
        return without_noise(eigenvalues, _DOUBLE)[0], basis @ vectors


class Once:
    """What is computed from a factor at most once, by all blocks that share the factor."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Tensor, Tensor]] = {}

    def has(self, name: str) -> bool:
        """Tell whether it is computed."""
        return name in self._found

    def get(
        self, name: str, compute: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return what `compute` returned at the first call with this name."""
        if name not in self._found:
            self._found[name] = compute()
        return self._found[name]


@dataclass(frozen=True)
class Factors:
    """Two factors whose Kronecker product is a block, from sums over N data and |T| positions.

    inputs       SA = Σ_{n,t} a aᵀ, or the rows a
    gradients    SB = Σ_{n,t,c} g gᵀ  [groups, d_out, d_out]
    n_data       N
    n_positions  |T|
    rounding     ε of the dtype that SB was formed in
    of_inputs    eigenvalues and eigenvectors of SA; one object for blocks with the same inputs
    n_rows       rows a that SA is the sum of, None if it is of something else
    rounding_of_inputs  ε of the dtype that SA was formed in
    """

    inputs: Tensor
    gradients: Tensor
    n_data: int
    n_positions: int
    rounding: float = _DOUBLE
    of_inputs: Once = field(default_factory=Once, repr=False, compare=False)
    n_rows: int | None = None
    rounding_of_inputs: float = _DOUBLE

    @property
    def scale(self) -> float:
        """1 / (N |T|)."""
        return 1 / (self.n_data * self.n_positions)

    def decomposed(self) -> Rotated:
        """Return the block as a diagonal in its eigenbasis, without noise."""
        raise NotImplementedError

    def inverse_quadratic(self, vector: Tensor, precision: Tensor) -> Tensor:
        """Return vᵀ (H + δ)⁻¹ v [] for v [size] and δ []."""
        return self.decomposed().inverse_quadratic(vector, precision)


@dataclass(frozen=True)
class Kronecker(Factors):
    """The block SB ⊗ SA / (N |T|) of a weight (out, in), one pair per convolution group.

    inputs       SA = Σ_{n,t} a aᵀ    [groups, d_in, d_in]
    """

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.inputs) * self.inputs.shape[1] * self.gradients.shape[1]

    def to_solve(self) -> list[Tensor]:
        """Return SB, and SA unless a block with the same inputs has its values."""
        return [self.gradients] if self.of_inputs.has("values") else [self.gradients, self.inputs]

    def spectrum(self, solved: Sequence[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues [size], and how many eigenvalues of the factors were negative.

        Noise is removed from the factors, not the product: two eigenvalues that rounding made
        negative would multiply to a positive one.
        """
        solved = eigenvalues(self.to_solve()) if solved is None else solved
        left, n_left = without_noise(solved[0], self.rounding)
        right, n_right = self.of_inputs.get(
            "values", lambda: without_noise(solved[-1], self.rounding_of_inputs, self.n_rows)
        )
        return (self.scale * left[:, :, None] * right[:, None, :]).flatten(), n_left + n_right

    def is_uncertain(self, values: Tensor, precision: Tensor) -> Tensor:
        """Return whether eigenvalues of SA within rounding may matter at a prior precision δ [].

        On images the log determinant is off by up to 0.3 nats above δ = 10 ε λ_max.

        Args:
            values: the spectrum [size].
            precision: δ.
        """
        inputs, _ = self.of_inputs.get("values", lambda: (values, values))
        rounding = self.rounding_of_inputs
        within = (inputs > 0) & (inputs < rounding * inputs.amax(-1, keepdim=True))
        return within.any() & (precision.to(values) < 10 * rounding * values.max())

    def trace(self) -> Tensor:
        """Return the trace []."""
        left = self.gradients.diagonal(dim1=1, dim2=2).sum(1)
        right = self.inputs.diagonal(dim1=1, dim2=2).sum(1)
        return self.scale * (left * right).sum()

    def decomposed(self) -> Rotated:
        """Return the block as a diagonal in its eigenbasis, without noise."""
        b, left = torch.linalg.eigh(self.gradients)
        a, right = self.of_inputs.get("vectors", lambda: torch.linalg.eigh(self.inputs))
        b = without_noise(b, self.rounding)[0]
        a = without_noise(a, self.rounding_of_inputs, self.n_rows)[0]
        return Rotated(self.scale * b[:, :, None] * a[:, None, :], left, right)


@dataclass(frozen=True)
class FewInputs(Factors):
    """The block SB ⊗ AᵀA / (N |T|) of a weight (out, in) whose inputs A are fewer than `in`.

    AᵀA has no eigenvalues besides zeros and those of A Aᵀ; no in x in matrix is formed.

    inputs       A, one row per datum and position [N |T|, d_in], in the dtype of the model
    gradients    SB = Σ_{n,t,c} g gᵀ  [1, d_out, d_out]
    """

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.inputs.shape[1] * self.gradients.shape[1]

    def to_solve(self) -> list[Tensor]:
        """Return SB; A Aᵀ is large, and there only while it is solved."""
        return [self.gradients]

    def spectrum(self, solved: Sequence[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues [size], and how many eigenvalues of the factors were negative."""
        solved = eigenvalues(self.to_solve()) if solved is None else solved
        left, n_left = without_noise(solved[0][0], self.rounding)
        right, n_right = self.of_inputs.get("values", self._values_of_inputs)
        values = (self.scale * left[:, None] * right).flatten()
        return padded(values, self.size), n_left + n_right

    def trace(self) -> Tensor:
        """Return the trace []."""
        return self.scale * self.gradients[0].trace() * self.inputs.double().square().sum()

    def decomposed(self) -> Rotated:
        """Return the block as a diagonal in its eigenbasis, without noise."""
        b, left = torch.linalg.eigh(self.gradients)
        a, right = self.of_inputs.get("vectors", LowRank(self.inputs).decomposed)
        b = without_noise(b, self.rounding)[0]
        return Rotated(self.scale * b[:, :, None] * a, left, right[None])

    def _values_of_inputs(self) -> tuple[Tensor, Tensor]:
        rows = self.inputs.double()
        return without_noise(torch.linalg.eigvalsh(rows @ rows.mT), _DOUBLE)


Block = Diagonal | Rotated | Dense | LowRank | Kronecker | FewInputs


def padded(eigenvalues: Tensor, size: int) -> Tensor:
    """Return the eigenvalues [size] of a matrix of which all others are 0."""
    return torch.nn.functional.pad(eigenvalues, (size - len(eigenvalues), 0))


def clamped(eigenvalues: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues clamped at 0, and how many were negative."""
    return eigenvalues.clamp(min=0), (eigenvalues < 0).sum()


def without_noise(
    eigenvalues: Tensor, rounding: float, rank: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return eigenvalues with rounding noise set to 0, and how many were negative.

    Args:
        eigenvalues: of symmetric matrices that are positive but for rounding, ascending
            [..., side].
        rounding: ε of the dtype that the matrices were formed in.
        rank: most that are not 0, if known.
    """
    largest = eigenvalues.amax(-1, keepdim=True)
    kept = torch.where(eigenvalues > 0.1 * rounding * largest, eigenvalues, 0.0).clamp(min=0)
    if rank is not None:
        kept[..., : max(0, kept.shape[-1] - rank)] = 0.0
    return kept, (eigenvalues < 0).sum()
