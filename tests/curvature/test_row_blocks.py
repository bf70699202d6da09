"""Exact blocks kept as rows where there are fewer rows than parameters: the same numbers."""

import pytest
import reference
import torch
from cases import Case
from dense_blocks import run
from largest_tensor import LargestTensor
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import CurvaturePass
from nas_evidence.maths.block_inverse import BlockInverse
from nas_evidence.maths.blocks import Dense, LowRank
from nas_evidence.maths.structured import BlockDiagonal

N_OUTPUTS = 3


def random_net(n_data: int, *, labels: bool, seed: int) -> Case:
    """Tensors of 24, 6, 24, 4, 12 and 3 parameters; 2 or 3 rows for each datum."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, N_OUTPUTS)
    ).double()
    x = torch.randn(n_data, 4).double()
    if labels:
        return Case(model, x, torch.randint(0, N_OUTPUTS, (n_data,)))
    return Case(model, x, torch.randn(n_data, N_OUTPUTS).double(), 0.6)


def blocks_of(passed: CurvaturePass) -> BlockDiagonal:
    assert isinstance(passed.curvature, BlockDiagonal)
    return passed.curvature


def definition(c: Case) -> BlockDiagonal:
    """The blocks as matrices, from dense Jacobians."""
    names = tuple(name for name, _ in c.model.named_parameters())
    matrices = reference.tensor_blocks(reference.full_ggn(c.model, c.x, c.noise_std), c.model)
    return BlockDiagonal(names, tuple(Dense(matrix) for matrix in matrices))


def agree(found: BlockDiagonal, expected: BlockDiagonal) -> None:
    """Compare everything that can be asked of a curvature."""
    random = torch.Generator().manual_seed(0)
    delta = torch.rand(len(found.names), generator=random).double() + 0.1
    vector = torch.randn(found.n_parameters, generator=random).double()
    close = {"rtol": 1e-10, "atol": 1e-10}
    assert found.sizes == expected.sizes
    assert_close(found.trace(), expected.trace(), **close)
    for one, other in zip(found.spectra(), expected.spectra(), strict=True):
        assert_close(one.sort().values, other.sort().values, **close)
    for one, other in zip(found.slopes(delta), expected.slopes(delta), strict=True):
        assert_close(one, other, **close)
    quadratics = [s.inverse_quadratic(vector, delta) for s in (found, expected)]
    assert_close(*quadratics, **close)
    solved = [BlockInverse(s, delta, 0.7)(vector) for s in (found, expected)]
    assert_close(*solved, **close)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("n_data", [1, 3, 7, 40])
def test_rows_and_matrices_give_the_numbers_of_dense_jacobians(
    n_data: int, labels: bool, seed: int
) -> None:
    c = random_net(n_data, labels=labels, seed=seed)
    found = blocks_of(run("block_ggn", c, batch_size=2))
    n_rows = n_data * (N_OUTPUTS - labels)
    for block in found.blocks:
        assert isinstance(block, LowRank if n_rows < block.size else Dense)
    agree(found, definition(c))


def test_a_model_with_a_layer_without_rules_has_the_same_rows() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 6)
            self.scale = nn.Parameter(torch.ones(6))
            self.head = nn.Linear(6, N_OUTPUTS)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x).tanh() * self.scale)

    model = Scaled().double()
    c = Case(model, torch.randn(5, 4).double(), torch.randint(0, N_OUTPUTS, (5,)))
    found = blocks_of(run("block_ggn", c, batch_size=2))
    assert {type(block) for block in found.blocks} == {LowRank, Dense}
    by_name = dict(zip(found.names, found.blocks, strict=True))
    expected = definition(c)
    assert set(by_name) == set(expected.names)
    ordered = BlockDiagonal(expected.names, tuple(by_name[name] for name in expected.names))
    agree(ordered, expected)


@pytest.mark.slow
def test_a_wide_layer_needs_memory_for_its_rows_and_not_for_its_matrix() -> None:
    n_data, width = 184, 150
    model = nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                          nn.Linear(width, 1))  # fmt: skip
    c = Case(model, torch.randn(n_data, 10), torch.randn(n_data, 1), 0.6)
    delta = torch.ones(6).double()
    with LargestTensor() as seen:
        found = blocks_of(run("block_ggn", c, batch_size=2))
        vector = torch.ones(found.n_parameters).double()
        found.slopes(delta)
        found.inverse_quadratic(vector, delta)
        BlockInverse(found, delta)(vector)
    assert isinstance(found.blocks[2], LowRank)
    assert found.blocks[2].rows.dtype == torch.float32
    assert n_data * width**2 <= seen.largest < 2 * n_data * width**2
    assert seen.largest < width**4 / 100


def test_a_tiny_precision_loses_no_digits_to_cancellation() -> None:
    # In the span of the rows vᵀ(H + δ)⁻¹v is |v|²/(λ + δ); |v|²/δ is 10¹⁴ times larger.
    basis = torch.linalg.qr(torch.randn(50, 3).double())[0]
    block = LowRank(1e4 * basis.mT)
    precision = torch.tensor(1e-6, dtype=torch.float64)
    vector = basis @ torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    found = block.inverse_quadratic(vector, precision)
    assert_close(found, torch.tensor(6e-8, dtype=torch.float64), rtol=1e-8, atol=0)
