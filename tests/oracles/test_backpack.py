"""BackPACK, where its convention is the definition: all but the factor of a convolution."""

import copy

import pytest
import torch
from cases import Case, case
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import CurvaturePass, curvature_pass
from nas_evidence.maths.blocks import Dense, Diagonal, Kronecker

backpack = pytest.importorskip("backpack", reason="BackPACK is an oracle, not a dependency")
from backpack import extensions  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing", "ignore:.*torch.jit.*:FutureWarning"
)


def theirs(c: Case, *wanted: object) -> nn.Module:
    """A copy of the model after one backward pass; dropout, idle here, is left out."""
    layers = [m for m in copy.deepcopy(c.model) if not isinstance(m, nn.Dropout)]
    layers = [nn.ReLU() if isinstance(m, nn.ReLU) else m for m in layers]  # not in place
    model = backpack.extend(nn.Sequential(*layers))
    if c.noise_std is None:
        loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))
    else:  # 1/2 r² / s² is half their loss with the variance 1, which the caller scales
        loss = backpack.extend(nn.MSELoss(reduction="sum"))
    with backpack.backpack(*wanted):
        loss(model(c.x), c.y).backward()
    return model


def ours(kind: str, c: Case) -> CurvaturePass:
    return curvature_pass(kind, c.model, c.x, c.y, c.likelihood, batch_size=4)


def diagonals(kind: str, c: Case) -> list[Tensor]:
    blocks = ours(kind, c).curvature.blocks
    assert all(isinstance(b, Diagonal) for b in blocks)
    return [b.values for b in blocks]


@pytest.mark.parametrize("name", ["mlp", "conv_plain", "conv_stride_padding", "conv_groups"])
def test_diagonal_empirical_fisher_agrees(name: str) -> None:
    c = case(name)
    model = theirs(c, extensions.SumGradSquared())
    for found, parameter in zip(diagonals("diag_ef", c), model.parameters(), strict=True):
        assert_close(found, parameter.sum_grad_squared.flatten(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["mlp", "regression", "conv_plain", "conv_stride_padding"])
def test_diagonal_gauss_newton_agrees(name: str) -> None:
    c = case(name)
    scale = 1.0 if c.noise_std is None else 0.5 / c.noise_std**2
    model = theirs(c, extensions.DiagGGNExact())
    for found, parameter in zip(diagonals("diag_ggn", c), model.parameters(), strict=True):
        expected = scale * parameter.diag_ggn_exact.flatten()
        assert_close(found, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["mlp", "regression", "conv_plain"])
def test_kronecker_factors_agree_but_for_the_weight_of_a_convolution(name: str) -> None:
    c = case(name)
    scale = 1.0 if c.noise_std is None else 0.5 / c.noise_std**2
    model = theirs(c, extensions.KFLR())
    blocks = ours("kfac_ggn", c).curvature.blocks
    for block, parameter in zip(blocks, model.parameters(), strict=True):
        factors = parameter.kflr
        if isinstance(block, Dense):
            assert_close(block.matrix, scale * factors[0], rtol=1e-10, atol=1e-14)
            continue
        assert isinstance(block, Kronecker)
        expected = scale * torch.kron(factors[0], factors[1].flatten(1))
        found = block.scale * torch.kron(block.gradients[0], block.inputs[0])
        if parameter.ndim == 2:
            assert_close(found, expected, rtol=1e-10, atol=1e-14)
        else:  # their factor sums over positions first: too large by about their number
            assert expected.trace() / found.trace() > 0.5 * block.n_positions
