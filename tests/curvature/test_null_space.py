"""Float32 factors: what no datum informs counts for nothing, and what little counts stays."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.likelihood import Categorical
from nas_evidence.evidence.laplace import laplace_estimate
from nas_evidence.maths.blocks import Dense, Kronecker, without_noise
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.spec.estimates import EvidenceEstimate

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


def decaying(
    n_data: int, dtype: torch.dtype, precision: float
) -> tuple[EvidenceEstimate, BlockDiagonal]:
    """Data as smooth as images: 400 inputs with variances from 30 down to 6e-8."""
    random = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(400, 400, generator=random).double())[0]
    spread = torch.exp(-torch.arange(400).double() / 20).mul(30).sqrt()
    x = ((torch.randn(n_data, 400, generator=random).double() * spread) @ turn).float()
    y = torch.randint(0, 4, (n_data,), generator=random)
    model = nn.Sequential(nn.Linear(400, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=random))
    model = model.to(dtype)
    pass_ = curvature_pass("kfac_ggn", model, x.to(dtype), y, Categorical(), batch_size=512)
    assert isinstance(pass_.curvature, BlockDiagonal)
    found = laplace_estimate("kfac_ggn", pass_, model, torch.full((4,), precision).double())
    return found, pass_.curvature


@pytest.mark.slow
@pytest.mark.parametrize("n_data", [300, 1000])
def test_float32_factors_of_a_spectrum_that_decays_give_the_evidence_of_float64(
    n_data: int,
) -> None:
    """With fewer rows than inputs and with more: eigenvalues near rounding are mostly true."""
    for precision in (1.0, 0.1, 0.01):
        found, expected = (
            decaying(n_data, dtype, precision)[0] for dtype in (torch.float32, torch.float64)
        )
        assert_close(found.value, expected.value, atol=0.2, rtol=0)
        assert not expected.note


def test_a_prior_precision_within_rounding_is_noted() -> None:
    assert "log determinant of 0.weight may be off" in decaying(1000, torch.float32, TINY)[0].note
    assert "may be off" not in decaying(1000, torch.float32, 1.0)[0].note
    assert "may be off" not in decaying(1000, torch.float64, TINY)[0].note


def test_eigenvalues_below_a_tenth_of_rounding_or_beyond_the_rank_are_zero() -> None:
    values = torch.tensor([-1e-7, 1e-8, 1e-7, 1.0], dtype=torch.float64)
    kept, below = without_noise(values, FLOAT)
    assert kept.tolist() == [0.0, 0.0, 1e-7, 1.0]
    assert below == 1
    assert without_noise(values, FLOAT, 1)[0].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert without_noise(values, FLOAT, 9)[0].tolist() == kept.tolist()
    kept, _ = without_noise(values, torch.finfo(torch.float64).eps)
    assert kept.tolist() == [0.0, 1e-8, 1e-7, 1.0]
    kept, below = without_noise(torch.zeros(3).double(), FLOAT)
    assert (kept.tolist(), below) == ([0.0, 0.0, 0.0], 0)


def test_a_sum_of_blocks_has_the_coarser_rounding() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    assert Dense(eye).plus(Dense(eye, FLOAT)).rounding == FLOAT
    pair = (eye[None], eye[None], 3, 1)
    assert Kronecker(*pair, FLOAT).plus(Kronecker(*pair)).rounding == FLOAT


def test_a_sum_of_blocks_has_the_rows_of_both() -> None:
    """Of one datum each: two eigenvalues, not one."""
    one, other = (
        Kronecker(torch.diag(torch.tensor(d)).double()[None], torch.ones(1, 1, 1), 1, 1, n_rows=1)
        for d in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    )
    assert int((one.plus(other).spectrum()[0] > 0).sum()) == 2
