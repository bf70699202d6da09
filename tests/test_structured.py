import pytest
import reference
import torch
from torch.testing import assert_close

from nas_evidence.maths.structured import (
    BlockDiagonal,
    Dense,
    Diagonal,
    FullKernel,
    FullMatrix,
    Kronecker,
)

DELTA = torch.tensor([0.3, 2.0], dtype=torch.float64)


def _gram(rows: int, size: int, *, seed: int) -> torch.Tensor:
    j = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).double()
    return j.T @ j


def _kronecker(groups: int) -> tuple[Kronecker, torch.Tensor]:
    a = torch.stack([_gram(7, 3, seed=i) for i in range(groups)])
    b = torch.stack([_gram(7, 2, seed=9 + i) for i in range(groups)])
    dense = torch.block_diag(*[0.2 * torch.kron(y, x) for x, y in zip(a, b, strict=True)])
    return Kronecker(a, b, 0.2), dense


def _structures() -> dict[str, tuple[BlockDiagonal, list[torch.Tensor]]]:
    diagonal = torch.rand(4, generator=torch.Generator().manual_seed(1)).double()
    dense = _gram(3, 5, seed=2)
    kronecker, kronecker_dense = _kronecker(1)
    grouped, grouped_dense = _kronecker(2)
    blocks = {
        "diagonal": (Diagonal(diagonal), torch.diag(diagonal)),
        "dense": (Dense(dense), dense),
        "kronecker": (kronecker, kronecker_dense),
        "grouped": (grouped, grouped_dense),
    }
    other = (Diagonal(torch.ones(2).double()), torch.eye(2).double())
    return {
        name: (BlockDiagonal(("w", "b"), (block, other[0])), [matrix, other[1]])
        for name, (block, matrix) in blocks.items()
    }


@pytest.mark.parametrize("name", _structures())
def test_log_det_ratio_matches_dense_algebra(name: str) -> None:
    structure, matrices = _structures()[name]
    expected = [reference.log_det_ratio(m, d) for m, d in zip(matrices, DELTA, strict=True)]
    assert_close(structure.log_det_ratio(DELTA).tolist(), expected, rtol=1e-12, atol=1e-12)
    assert_close(structure.trace(), torch.stack([m.trace() for m in matrices]))
    assert structure.sizes == tuple(len(m) for m in matrices)
    assert structure.n_parameters == sum(structure.sizes)


@pytest.mark.parametrize("name", _structures())
def test_gradient_in_log_precision_is_minus_the_effective_parameters(name: str) -> None:
    structure, _ = _structures()[name]
    log_delta = DELTA.log().requires_grad_()
    (gradient,) = torch.autograd.grad(structure.log_det_ratio(log_delta.exp()).sum(), log_delta)
    assert_close(-gradient, structure.effective_parameters(DELTA))


def _full() -> tuple[FullMatrix, FullKernel]:
    j = torch.randn(4, 7, generator=torch.Generator().manual_seed(3)).double()
    grams = torch.stack([j[:, :5] @ j[:, :5].T, j[:, 5:] @ j[:, 5:].T])
    return FullMatrix(("w", "b"), (5, 2), j.T @ j), FullKernel(("w", "b"), (5, 2), grams)


def test_kernel_form_equals_parametric_form() -> None:
    matrix, kernel = _full()
    spread = torch.cat([DELTA[:1].expand(5), DELTA[1:].expand(2)])
    expected = reference.log_det_ratio(matrix.matrix, spread)
    for structure in (matrix, kernel):
        assert_close(structure.log_det_ratio(DELTA).item(), expected, rtol=1e-12, atol=0)
    assert_close(matrix.trace(), kernel.trace())
    assert_close(matrix.effective_parameters(DELTA), kernel.effective_parameters(DELTA))


def test_gradient_of_coupled_forms_is_minus_the_effective_parameters() -> None:
    for structure in _full():
        log_delta = DELTA.log().requires_grad_()
        (gradient,) = torch.autograd.grad(structure.log_det_ratio(log_delta.exp()), log_delta)
        assert_close(-gradient, structure.effective_parameters(DELTA))


@pytest.mark.parametrize("structure", [*(s for s, _ in _structures().values()), *_full()])
def test_scaling_keeps_the_gradient_in_the_factor(structure: BlockDiagonal) -> None:
    # The gradient in the noise goes through here; a reference code detaches it for Kronecker.
    factor = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    value = structure.scaled(factor).log_det_ratio(DELTA).sum()
    (gradient,) = torch.autograd.grad(value, factor)
    assert_close(gradient, structure.effective_parameters(DELTA / 1.7).sum() / 1.7)


def test_rounding_below_zero_is_clamped_and_counted() -> None:
    tilted = torch.diag(torch.tensor([1.0, -1e-9, 2.0], dtype=torch.float64))
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    blocks = (Dense(tilted), Kronecker(tilted[None], -1e-9 * one, 1.0))
    structure = BlockDiagonal(("a", "b"), blocks)
    assert structure.n_clamped == 3
    assert min(float(s.min()) for s in structure.spectra()) == 0.0


def test_a_spectrum_that_is_not_finite_is_refused_by_name() -> None:
    broken = BlockDiagonal(("w",), (Dense(torch.full((2, 2), torch.nan).double()),))
    with pytest.raises(ValueError, match="`w` is not finite"):
        broken.spectra()
