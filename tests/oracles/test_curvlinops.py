"""curvlinops: the Gauss-Newton matrix, and KFAC in its "expand" and "reduce" forms."""

import pytest
import torch
from cases import Case, case
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import curvature_pass
from nas_evidence.maths.blocks import Kronecker
from nas_evidence.maths.structured import FullKernel, FullMatrix

curvlinops = pytest.importorskip("curvlinops", reason="curvlinops is an oracle, no dependency")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def loss_of(c: Case) -> tuple[nn.Module, float]:
    """Their loss and what turns its curvature into ours."""
    if c.noise_std is None:
        return nn.CrossEntropyLoss(reduction="sum"), 1.0
    return nn.MSELoss(reduction="sum"), 0.5 / c.noise_std**2


def dense(operator: object) -> Tensor:
    size = operator.shape[1]  # type: ignore[attr-defined]
    return operator @ torch.eye(size, dtype=torch.float64)  # type: ignore[operator]


def build(kind: str, c: Case, **arguments: object) -> Tensor:
    loss, scale = loss_of(c)
    parameters = dict(c.model.named_parameters())
    operator = getattr(curvlinops, kind)
    try:
        made = operator(c.model, loss, parameters, [(c.x, c.y)], **arguments)
    except (TypeError, AttributeError, ValueError):  # of releases that take a list
        made = operator(c.model, loss, list(parameters.values()), [(c.x, c.y)], **arguments)
    return scale * dense(made)


def plain(name: str) -> Case:
    """A case in evaluation mode that writes nothing in place."""
    c = case(name)
    c.model.eval()
    for module in c.model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return c


@pytest.mark.parametrize("name", ["mlp", "regression", "conv_plain", "conv_groups", "residual"])
def test_full_gauss_newton_agrees(name: str) -> None:
    c = plain(name)
    expected = build("GGNLinearOperator", c)
    found = curvature_pass("full_ggn", c.model, c.x, c.y, c.likelihood, batch_size=4).curvature
    assert isinstance(found, FullMatrix | FullKernel)
    matrix = found if isinstance(found, FullMatrix) else found.as_matrix()
    assert_close(matrix.matrix, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("name", ["mlp", "regression", "conv_plain", "conv_stride_padding"])
def test_kronecker_weights_agree(name: str, approx: str) -> None:
    c = plain(name)
    expected = build(
        "KFACLinearOperator",
        c,
        fisher_type="type-2",
        kfac_approx=approx,
        separate_weight_and_bias=True,
    )
    paths = [n for n, m in c.model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    passed = curvature_pass(
        "kfac_ggn",
        c.model,
        c.x,
        c.y,
        c.likelihood,
        batch_size=4,
        kfac_reduce=paths if approx == "reduce" else (),
    )
    start = 0
    for block in passed.curvature.blocks:
        part = expected[start : start + block.size, start : start + block.size]
        start += block.size
        if isinstance(block, Kronecker):
            found = block.scale * torch.kron(block.gradients[0], block.inputs[0])
            assert_close(found, part, rtol=1e-9, atol=1e-12)
