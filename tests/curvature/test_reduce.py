"""KFAC "reduce" and the trace ratio that tells where it is needed."""

import math

import dense_blocks
import pytest
import reference
import torch
from cases import Case, case
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import KINDS, CurvaturePass, trace_ratios
from nas_evidence.maths.blocks import Kronecker


def run(kind: str, c: Case, *reduced: str) -> CurvaturePass:
    return dense_blocks.run(kind, c, kfac_reduce=reduced)


def _weight(passed: CurvaturePass) -> Tensor:
    block = passed.curvature.blocks[0]
    assert isinstance(block, Kronecker)
    pairs = zip(block.gradients, block.inputs, strict=True)
    return torch.block_diag(*[block.scale * torch.kron(b, a) for b, a in pairs])


def _pooled_linear(**arguments: object) -> Case:
    """Mean over positions right after a convolution: s is the same at every position."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        conv = nn.Conv2d(2, 4, 3, **arguments)
        model = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
        return Case(model, torch.rand(6, 2, 6, 6).double(), torch.randn(6, 4).double(), 0.7)


@pytest.mark.parametrize("arguments", [{}, {"padding": 1, "stride": 2}, {"groups": 2}])
def test_reduce_is_exact_where_gradients_are_equal_at_all_positions(
    arguments: dict[str, int],
) -> None:
    c = _pooled_linear(**arguments)
    exact = reference.tensor_blocks(reference.full_ggn(c.model, c.x, c.noise_std), c.model)
    reduced, expanded = run("kfac_ggn", c, "0"), run("kfac_ggn", c)
    assert_close(_weight(reduced), exact[0], rtol=1e-10, atol=1e-12)
    assert _weight(expanded).trace() < 0.9 * exact[0].trace()
    assert_close(reduced.curvature.blocks[1].matrix, exact[1], rtol=1e-10, atol=1e-12)


def test_reduce_matches_means_and_totals_taken_one_by_one() -> None:
    c = case("conv_stride_padding")
    c.model.eval()
    conv = c.model[0]
    inputs, gradients = 0, 0
    for x in c.x:
        z = conv(x[None]).detach().requires_grad_()
        f = c.model[1:](z.clone())
        mean = reference.patches(conv, x[None]).mean(1)
        inputs = inputs + torch.outer(mean, mean)
        values, vectors = torch.linalg.eigh(reference.output_hessian(f.detach(), None)[0])
        for value, vector in zip(values, vectors.T, strict=True):
            root = value.clamp(min=0).sqrt() * vector
            s = torch.autograd.grad(f, z, root[None], retain_graph=True)[0][0].sum((1, 2))
            gradients = gradients + torch.outer(s, s)
    expected = torch.kron(gradients, inputs) / len(c.x)
    found = run("kfac_ggn", c, "0")
    assert_close(_weight(found), expected, rtol=1e-10, atol=1e-12)
    assert_close(found.curvature.blocks[1].matrix, gradients, rtol=1e-10, atol=1e-12)
    for one, other in zip(found.curvature.blocks[2:], run("kfac_ggn", c).curvature.blocks[2:],
                          strict=True):  # fmt: skip
        assert_close(one.trace(), other.trace())


@pytest.mark.parametrize("kind", [k for k in KINDS if "kfac" in k])
def test_reduce_changes_nothing_with_one_position(kind: str) -> None:
    c = case("mlp")
    one, other = run(kind, c), run(kind, c, "0", "3")
    for a, b in zip(one.curvature.spectra(), other.curvature.spectra(), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("side", [4, 8, 16])
def test_trace_ratio_tells_expand_from_reduce_before_global_pooling(side: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(side)
        conv, head = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 3)
        pooled = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
        x = torch.rand(40, 2, side, side).double()
        c = Case(pooled.double(), x, torch.randint(0, 3, (40,)))
    exact = run("diag_ggn", c)
    expand = trace_ratios(run("kfac_ggn", c), exact)
    reduce = trace_ratios(run("kfac_ggn", c, "0"), exact)
    assert expand["0.weight"] < 6 / side**2
    assert 0.5 < reduce["0.weight"] < 2
    for ratios in (expand, reduce):
        for name in ("0.bias", "4.bias"):
            assert_close(ratios[name], 1.0)


def test_trace_ratio_of_a_dead_layer_is_undefined_and_the_rest_is_told() -> None:
    c = case("mlp")
    with torch.no_grad():
        c.model[3].weight.zero_()
    ratios = trace_ratios(run("kfac_ggn", c), run("diag_ggn", c))
    assert math.isnan(ratios["0.weight"])
    assert_close(ratios["3.bias"], 1.0)


def test_the_estimate_says_which_layers_are_reduced() -> None:
    c = _pooled_linear()
    found, exact = c.estimate("kfac_ggn", kfac_reduce=["0"]), c.estimate("block_ggn")
    assert_close(found.value, exact.value, rtol=1e-10, atol=0)
    assert "kfac_reduce on 0" in found.note


def test_mistakes_are_refused_in_words() -> None:
    c = case("residual")
    with pytest.raises(ValueError, match="got before, nowhere"):
        run("kfac_ggn", c, "nowhere", "before", "conv")
    with pytest.raises(ValueError, match="a block per tensor"):
        trace_ratios(run("kfac_ggn", c), run("full_ggn", c))
