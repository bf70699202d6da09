"""Directions that no datum informs count for nothing, however narrow the prior is not."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.likelihood import Categorical
from nas_evidence.maths.blocks import Dense, Kronecker, without_noise
from nas_evidence.maths.structured import BlockDiagonal

FLOAT = torch.finfo(torch.float32).eps
TINY = 6e-6  # the lowest prior precision, e^-12


def deficient(dtype: torch.dtype, kind: str) -> tuple[BlockDiagonal, Tensor]:
    """30 data for 60 inputs far from 0, and a softmax head, whose gradients sum to 0."""
    random = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 5)).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Small: a saturated softmax has eigenvalues below float32 that are not noise.
            parameter.copy_(0.1 * torch.rand(parameter.shape, generator=random) - 0.05)
    x = (torch.randn(30, 60, generator=random) + 2).to(dtype)
    y = torch.randint(0, 5, (30,), generator=random)
    curvature = curvature_pass(
        kind, model.to(dtype), x, y, Categorical(), batch_size=8,
        generator=torch.Generator().manual_seed(0),
    ).curvature  # fmt: skip
    assert isinstance(curvature, BlockDiagonal)
    return curvature, torch.randn(curvature.n_parameters, generator=random).double()


@pytest.mark.parametrize("kind", ["kfac_ggn", "kfac_ggn_mc", "kfac_ef"])
def test_float32_factors_give_the_log_determinant_of_float64_at_a_tiny_precision(
    kind: str,
) -> None:
    single, vector = deficient(torch.float32, kind)
    double, _ = deficient(torch.float64, kind)
    precision = torch.full((4,), TINY, dtype=torch.float64)
    # Noise of 1e-7 that survives is worth 12 nats here.
    found, expected = single.log_det_ratio(precision), double.log_det_ratio(precision)
    assert_close(found, expected, atol=0.02, rtol=0)
    found, expected = (c.inverse_quadratic(vector, precision) for c in (single, double))
    assert_close(found, expected, rtol=0.02, atol=0)


def test_eigenvalues_within_rounding_are_zero_and_all_others_stay() -> None:
    values = torch.tensor([-1e-7, 1e-7, 1e-3, 1.0], dtype=torch.float64)
    kept, below = without_noise(values, FLOAT)
    assert kept.tolist() == [0.0, 0.0, 1e-3, 1.0]
    assert below == 1
    kept, _ = without_noise(values, torch.finfo(torch.float64).eps)
    assert kept.tolist() == [0.0, 1e-7, 1e-3, 1.0]
    kept, below = without_noise(torch.zeros(3).double(), FLOAT)
    assert (kept.tolist(), below) == ([0.0, 0.0, 0.0], 0)


def test_a_sum_of_blocks_has_the_coarser_rounding() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    assert Dense(eye).plus(Dense(eye, FLOAT)).rounding == FLOAT
    pair = (eye[None], eye[None], 3, 1)
    assert Kronecker(*pair, FLOAT).plus(Kronecker(*pair)).rounding == FLOAT
