from dataclasses import replace

import pytest
import reference
import torch
from torch.testing import assert_close

from nas_evidence.maths import eigenvalues as eigenvalues_module
from nas_evidence.maths.blocks import (
    Dense,
    Diagonal,
    FewInputs,
    Kronecker,
    LowRank,
    Once,
    Rotated,
)
from nas_evidence.maths.structured import BlockDiagonal, FullKernel, FullMatrix

DELTA = torch.tensor([0.3, 2.0], dtype=torch.float64)


def _gram(rows: int, size: int, *, seed: int) -> torch.Tensor:
    j = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).double()
    return j.T @ j


def _kronecker(groups: int) -> tuple[Kronecker, torch.Tensor]:
    a = torch.stack([_gram(7, 3, seed=i) for i in range(groups)])
    b = torch.stack([_gram(7, 2, seed=9 + i) for i in range(groups)])
    dense = torch.block_diag(*[0.2 * torch.kron(y, x) for x, y in zip(a, b, strict=True)])
    return Kronecker(a, b, n_data=5, n_positions=1), dense


def _few_inputs(rows: torch.Tensor, kronecker: Kronecker) -> torch.Tensor:
    return 0.1 * torch.kron(kronecker.gradients[0], rows.T @ rows)


def _structures() -> dict[str, tuple[BlockDiagonal, list[torch.Tensor]]]:
    diagonal = torch.rand(4, generator=torch.Generator().manual_seed(1)).double()
    dense = _gram(3, 5, seed=2)
    few = torch.randn(2, 5, generator=torch.Generator().manual_seed(3)).double()
    kronecker, kronecker_dense = _kronecker(1)
    left, right = (
        torch.linalg.eigh(_gram(7, 2, seed=4))[1],
        torch.linalg.eigh(_gram(7, 3, seed=5))[1],
    )
    inside = torch.rand(1, 2, 3, generator=torch.Generator().manual_seed(6)).double()
    basis = torch.kron(left, right)
    grouped, grouped_dense = _kronecker(2)
    blocks = {
        "diagonal": (Diagonal(diagonal), torch.diag(diagonal)),
        "dense": (Dense(dense), dense),
        "rows": (LowRank(few), few.T @ few),
        "few inputs": (FewInputs(few, kronecker.gradients, 5, 2), _few_inputs(few, kronecker)),
        "kronecker": (kronecker, kronecker_dense),
        "grouped": (grouped, grouped_dense),
        "rotated": (
            Rotated(inside, left[None], right[None]),
            basis @ torch.diag(inside.flatten()) @ basis.T,
        ),
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
    return FullMatrix(("w", "b"), (5, 2), j.T @ j), FullKernel(("w", "b"), (j[:, :5], j[:, 5:]))


def test_kernel_form_equals_parametric_form() -> None:
    matrix, kernel = _full()
    spread = torch.cat([DELTA[:1].expand(5), DELTA[1:].expand(2)])
    expected = reference.log_det_ratio(matrix.matrix, spread)
    for structure in (matrix, kernel):
        assert_close(structure.log_det_ratio(DELTA).item(), expected, rtol=1e-12, atol=0)
    assert_close(matrix.trace(), kernel.trace())
    assert_close(matrix.effective_parameters(DELTA), kernel.effective_parameters(DELTA))


@pytest.mark.parametrize("structure", [*(s for s, _ in _structures().values()), *_full()])
def test_a_factor_on_the_curvature_has_its_gradient(structure: BlockDiagonal) -> None:
    # The gradient in the noise goes through here; a reference code detaches it for Kronecker.
    factor = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    value = structure.log_det_ratio(DELTA / factor).sum()
    (gradient,) = torch.autograd.grad(value, factor)
    assert_close(gradient, structure.effective_parameters(DELTA / 1.7).sum() / 1.7)


def _dense_of(structure: BlockDiagonal | FullMatrix | FullKernel) -> torch.Tensor:
    if isinstance(structure, FullMatrix):
        return structure.matrix
    if isinstance(structure, FullKernel):
        rows = torch.cat(structure.rows, 1)
        return rows.T @ rows
    return torch.block_diag(*next(m for s, m in _structures().values() if _same(s, structure)))


def _same(one: BlockDiagonal, other: BlockDiagonal) -> bool:
    return type(one.blocks[0]) is type(other.blocks[0]) and one.sizes == other.sizes


ALL = [*(s for s, _ in _structures().values()), *_full()]


@pytest.mark.parametrize("structure", ALL)
def test_inverse_quadratic_matches_a_solve(structure: BlockDiagonal) -> None:
    vector = torch.randn(structure.n_parameters, generator=torch.Generator().manual_seed(8))
    vector = vector.double()
    spread = DELTA.repeat_interleave(torch.tensor(structure.sizes))
    expected = vector @ torch.linalg.solve(_dense_of(structure) + torch.diag(spread), vector)
    assert_close(structure.inverse_quadratic(vector, DELTA), expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize("structure", ALL)
def test_slopes_are_the_derivatives_in_log_precision(structure: BlockDiagonal) -> None:
    value, effective, hessian = structure.slopes(DELTA)
    assert_close(value, structure.log_det_ratio(DELTA).sum())
    assert_close(effective, structure.effective_parameters(DELTA))
    expected = torch.autograd.functional.hessian(
        lambda x: -structure.log_det_ratio(x.exp()).sum(), DELTA.log()
    )
    assert_close(hessian, expected, rtol=1e-9, atol=1e-12)


def test_rounding_below_zero_is_clamped_and_counted() -> None:
    tilted = torch.diag(torch.tensor([1.0, -1e-9, 2.0], dtype=torch.float64))
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    blocks = (Dense(tilted), Kronecker(tilted[None], -1e-9 * one, 1, 1))
    structure = BlockDiagonal(("a", "b"), blocks)
    assert structure.n_clamped == 3
    assert min(float(s.min()) for s in structure.spectra()) == 0.0


def test_a_spectrum_that_is_not_finite_is_refused_by_name() -> None:
    broken = BlockDiagonal(("w",), (Dense(torch.full((2, 2), torch.nan).double()),))
    with pytest.raises(ValueError, match="`w` is not finite"):
        broken.spectra()


def test_eigenvalues_in_batches_are_those_of_each_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = (3, 5, 3, 1, 5, 3)
    stacks = [
        torch.stack([_gram(7, side, seed=10 * i + k) for k in range(1 + i % 2)])
        for i, side in enumerate(sides)
    ]
    solver, calls = torch.linalg.eigvalsh, []

    def counted(matrices: torch.Tensor) -> torch.Tensor:
        calls.append(matrices.shape)
        return solver(matrices)

    monkeypatch.setattr(torch.linalg, "eigvalsh", counted)
    for most, n_calls in ((1 << 22, 3), (1, len(sides))):  # a call for a side; for each alone
        monkeypatch.setattr(eigenvalues_module, "_ELEMENTS", most)
        calls.clear()
        found = eigenvalues_module.eigenvalues(stacks)
        assert len(calls) == n_calls
        for values, stack in zip(found, stacks, strict=True):
            assert_close(values, solver(stack), rtol=1e-12, atol=0)


def test_spectra_of_all_blocks_take_a_solver_call_for_each_side_of_a_factor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = [_kronecker(2)[0], _kronecker(1)[0], Dense(_gram(3, 3, seed=5))]
    blocks += [Dense(torch.ones(1, 1).double()), LowRank(torch.ones(2, 4))]
    expected = [block.spectrum()[0] for block in blocks]
    solver, calls = torch.linalg.eigvalsh, []
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda x: calls.append(x.shape) or solver(x))
    fresh = [replace(block, of_inputs=Once()) for block in blocks[:2]]
    curvature = BlockDiagonal(tuple("abcde"), (*fresh, *blocks[2:]))
    for values, of_block in zip(curvature.spectra(), expected, strict=True):
        assert_close(values, of_block, rtol=1e-12, atol=0)
    # A Jᵀ J of few rows is decomposed by itself, from J Jᵀ.
    assert sorted(shape[-1] for shape in calls) == [2, 2, 3]
