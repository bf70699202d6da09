"""Curvature against dense per-datum Jacobians, and what must not change it."""

import gc
import math
import weakref
from collections.abc import Callable

import dense_blocks
import pytest
import reference
import torch
from cases import CASES, Case, case
from dense_blocks import matrices, run
from messages import refused
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from nas_evidence.curvature import KINDS, CurvaturePass, curvature_pass, row_grams, trace_ratios
from nas_evidence.curvature.layers import WeightLayer
from nas_evidence.maths.blocks import Kronecker
from nas_evidence.spec.registry import CURVATURES


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["diag_ef", "diag_ggn"])
@pytest.mark.parametrize("name", CASES)
def test_a_diagonal_kind_is_the_diagonal_of_the_dense_matrix(name: str, kind: str) -> None:
    c = case(name)
    c.model.eval()
    of_labels = reference.full_ef(c.model, c.x, c.y, c.noise_std)
    dense = of_labels if kind == "diag_ef" else reference.full_ggn(c.model, c.x, c.noise_std)
    expected = reference.tensor_blocks(dense, c.model)
    for found, block in zip(matrices(run(kind, c)), expected, strict=True):
        assert_close(found.diagonal(), block.diagonal(), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in CASES if n != "conv_groups"])
def test_kfac_matches_patches_and_gradients_taken_one_by_one(name: str) -> None:
    c = case(name)
    c.model.eval()
    expected = reference.kfac_blocks(c.model, c.x, c.noise_std)
    for found, block in zip(matrices(run("kfac_ggn", c)), expected, strict=True):
        assert_close(found, block, rtol=1e-10, atol=1e-12)


def test_kfac_of_a_grouped_convolution_is_that_of_its_groups() -> None:
    c = case("conv_groups")
    conv = c.model[0]
    parts = [nn.Conv2d(1, 2, 3, padding=1).double() for _ in range(2)]
    for i, part in enumerate(parts):
        part.load_state_dict(
            {"weight": conv.weight[2 * i : 2 * i + 2], "bias": conv.bias[2 * i : 2 * i + 2]}
        )

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.rest = *parts, c.model[1:]

        def forward(self, x: Tensor) -> Tensor:
            return self.rest(torch.cat([self.first(x[:, :1]), self.second(x[:, 1:])], 1))

    whole = matrices(run("kfac_ggn", c))
    split = matrices(run("kfac_ggn", Case(Split(), c.x, c.y)))
    assert_close(whole[0], torch.block_diag(split[0], split[2]), rtol=1e-10, atol=1e-12)
    for i in range(2):  # the bias block of the whole also holds the terms between groups
        assert_close(whole[1][2 * i :, 2 * i :][:2, :2], split[2 * i + 1])


@pytest.mark.parametrize("name", CASES)
def test_log_likelihood_and_squared_error_come_out_of_the_pass(name: str) -> None:
    c = case(name)
    passed = run("diag_ef", c)
    c.model.eval()
    outputs = c.model(c.x).detach()
    expected = reference.log_likelihood(outputs, c.y, c.noise_std)
    assert_close(passed.log_likelihood, expected, rtol=1e-12, atol=0)
    assert passed.n_data == len(c.x)
    squares = (outputs - c.y).square().sum(0).tolist() if c.noise_std else []
    assert passed.squared_errors == pytest.approx(squares)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", ["mlp", "conv_stride_padding", "residual", "sequence"])
@pytest.mark.parametrize("kind", [k for k in KINDS if not k.endswith("_mc")])
def test_batches_and_order_do_not_matter(kind: str, name: str) -> None:
    c = case(name)
    delta = c.prior_precision
    expected = run(kind, c, batch_size=len(c.x)).curvature.log_det_ratio(delta)
    order = torch.randperm(len(c.x), generator=torch.Generator().manual_seed(1))
    shuffled = Case(c.model, c.x[order], c.y[order], c.noise_std)
    for batch_size in (1, 3):
        found = run(kind, shuffled, batch_size=batch_size).curvature.log_det_ratio(delta)
        assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if not k.startswith("full") and not k.endswith("_mc")]
)
def test_duplicated_data_double_the_curvature(kind: str) -> None:
    c = case("conv_stride_padding")
    twice = Case(c.model, torch.cat([c.x, c.x]), torch.cat([c.y, c.y]))
    one, two = run(kind, c), run(kind, twice)
    for a, b in zip(one.curvature.spectra(), two.curvature.spectra(), strict=True):
        assert_close(2 * a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in KINDS if k.endswith("_mc")])
def test_monte_carlo_mean_is_the_exact_curvature(kind: str) -> None:
    c = case("residual")
    exact = matrices(run(kind.removesuffix("_mc"), c))
    copies = 800  # one draw each for so many copies of the data; blocks then grow by as much
    many = Case(c.model, c.x.repeat(copies, 1, 1, 1), c.y.repeat(copies))
    blocks = [m / copies for m in matrices(run(kind, many, batch_size=700))]
    for found, expected in zip(blocks, exact, strict=True):
        # A draw has relative standard deviation of order one for each of 7 data: 5 errors.
        atol = 5 * expected.abs().max().item() / math.sqrt(copies)
        assert_close(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
def test_saturated_softmax_gives_no_curvature_and_no_nan(kind: str) -> None:
    c = case("mlp")
    with torch.no_grad():
        c.model[3].bias.copy_(torch.tensor([1e4, 0.0, -1e4]))
    c.y.zero_()
    passed = run(kind, c)
    assert_close(passed.curvature.trace(), torch.zeros(4).double(), rtol=0, atol=1e-300)
    assert_close(passed.curvature.log_det_ratio(c.prior_precision).sum().item(), 0.0)


def test_nearly_saturated_softmax_keeps_relative_accuracy() -> None:
    c = case("mlp")
    with torch.no_grad():
        c.model[3].bias.copy_(torch.tensor([60.0, 0.0, 0.0]))
    c.model.eval()
    j = reference.jacobian(c.model, c.x)
    f = c.model(c.x).detach()
    small = (f[:, 1:] - f[:, :1]).exp()  # p of the two other classes, to a relative 1e-26
    difference = j[:, 1:] - j[:, :1]
    expected = torch.einsum("nc,ncp->p", small, difference.square())
    found = torch.cat([m.diagonal() for m in matrices(run("diag_ggn", c))])
    assert_close(found, expected, rtol=1e-9, atol=0)


def _state(c: Case) -> list[object]:
    return [
        [m.training for m in c.model.modules()],
        [p.requires_grad for p in c.model.parameters()],
        [None if p.grad is None else p.grad.clone() for p in c.model.parameters()],
        [p.detach().clone() for p in c.model.parameters()],
        [b.clone() for b in c.model.buffers()],
        [len(m._forward_hooks) + len(m._backward_hooks) for m in c.model.modules()],
        torch.get_rng_state(),
        c.x.clone(),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_left_as_it_was(kind: str) -> None:
    c = case("residual")
    c.model.train()
    c.model.head.eval()  # a mixed mode must come back mixed
    next(c.model.parameters()).grad = torch.ones_like(next(c.model.parameters()))
    before = _state(c)
    with torch.no_grad():
        run(kind, c)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        run(kind, c)
    assert_close(_state(c), before, rtol=0, atol=0)


def test_the_model_is_left_as_it_was_after_an_exception() -> None:
    c = case("residual")
    c.model.train()
    before = _state(c)
    with pytest.raises(ValueError, match="int64"):
        curvature_pass("diag_ef", c.model, c.x, c.y.double(), c.likelihood, batch_size=2)
    assert_close(_state(c), before, rtol=0, atol=0)


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(torch.tanh(self.layer(x))))


class _Tied(_Shared):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.linear(torch.tanh(self.layer(x)), self.layer.weight))


class _Unused(_Shared):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class _Detached(_Shared):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + self.layer(x).detach()[:, :3]


class _InPlace(_Shared):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x)) * 1
        z = self.head(h)
        h += 1
        return z + 0 * h[:, :3]


class _Overridden(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(1, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.memory(x[:, :, None])[0][:, -1]


class _RowsMixed(_Shared):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.repeat(2, 1))[: len(x)])


@pytest.mark.slow
def test_memory_does_not_grow_over_a_hundred_passes() -> None:
    c = case("residual")
    seen = []
    handle = c.model.head.register_forward_hook(lambda _, a, z: seen.append(weakref.ref(z)))
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            run("diag_ef", c)
        alive = sum(ref() is not None for ref in seen)
    finally:
        gc.enable()
        handle.remove()
    assert alive == 0


def _shared_parameter() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    return model


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    return model.requires_grad_(False)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "shared module": (_Shared, "`layer` is called more than once"),
    "shared parameter": (_shared_parameter, "`1.weight` is shared with `0.weight`"),
    "tied weight": (_Tied, "`layer.weight` does not pass through one call"),
    "unused": (_Unused, "`layer` is not called"),
    "detached": (_Detached, "do not depend on the parameters of `layer`"),
    "in place": (_InPlace, "input of `head` is modified in place"),
    "overridden": (lambda: nn.Sequential(_Overridden(4, 3)), "`0.weight` does not pass"),
    "frozen": (_frozen, "no free parameter"),
    "rows": (_RowsMixed, r"`layer` sees an input of shape \[10, 4\] for 5 data points"),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        "`1` of type BatchNorm1d, in training mode",
    ),
    "recurrent": (_Recurrent, "`memory` of type LSTM must take one tensor and return one"),
    "no parameters": (nn.Identity, "no free parameter"),
}
#: What no kind can take, and so no batch normalisation in training mode; all else diagonal and
#: dense kinds can.
HOPELESS = ("unused", "detached", "in place", "frozen", "no parameters")


@pytest.mark.parametrize("reason", REFUSED)
def test_what_has_no_kronecker_factors_is_refused_by_name(reason: str) -> None:
    make, message = REFUSED[reason]
    if reason == "in place":
        pytest.skip("KFAC has read the input before it changes")
    x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
    with pytest.raises(ValueError, match=message) as refusal:
        run("kfac_ggn", Case(make(), x, y))
    if reason not in (*HOPELESS, "batch norm"):
        words = str(refusal.value)
        assert words.startswith("kfac_ggn does not support the model")
        general = [kind for kind, declared in CURVATURES.items() if declared.any_layer]
        assert words.endswith(f"Kinds that take any layer: {', '.join(general)}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "reason", [r for r in REFUSED if r not in (*HOPELESS, "batch norm", "rows")]
)
def test_what_hooks_cannot_follow_has_the_diagonal_of_each_datum(reason: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        make, _ = REFUSED[reason]
        c = Case(make().double(), torch.randn(5, 4).double(), torch.randint(0, 3, (5,)))
    dense = {"diag_ef": reference.full_ef(c.model, c.x, c.y, None)}
    dense["diag_ggn"] = reference.full_ggn(c.model, c.x, None)
    for kind, matrix in dense.items():
        blocks = reference.tensor_blocks(matrix, c.model)
        for found, block in zip(matrices(run(kind, c)), blocks, strict=True):
            assert_close(found.diagonal(), block.diagonal(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["diag_ef", "diag_ggn"])
@pytest.mark.parametrize("reason", ["in place", "detached", "frozen", "no parameters"])
def test_diagonal_kinds_refuse_what_is_wrong(kind: str, reason: str) -> None:
    make, message = REFUSED[reason]
    with pytest.raises(ValueError, match=message):
        run(kind, Case(make(), torch.randn(5, 4), torch.randint(0, 3, (5,))))


@pytest.mark.parametrize("reason", ["unused", "detached", "frozen", "no parameters"])
@pytest.mark.parametrize("kind", ["diag_ef", "block_ggn", "full_ggn", "full_ef"])
def test_what_no_kind_can_take_is_refused_by_the_dense_kinds_too(kind: str, reason: str) -> None:
    make, message = REFUSED[reason]
    message = "do not depend on the parameter" if reason == "unused" else message
    with pytest.raises(ValueError, match=message):
        run(kind, Case(make(), torch.randn(5, 4), torch.randint(0, 3, (5,))))


def test_arguments_are_checked() -> None:
    c = case("mlp")
    arguments = (c.model, c.x, c.y, c.likelihood)
    with refused("unknown-curvature", "diag_ef"):
        curvature_pass("kfac", *arguments, batch_size=2)
    with pytest.raises(ValueError, match="`generator` must be given"):
        curvature_pass("kfac_ggn_mc", *arguments, batch_size=2)
    with pytest.raises(ValueError, match="batch_size >= 1"):
        curvature_pass("diag_ef", *arguments, batch_size=0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (2, 4), "padding": "same"},
        {"kernel_size": (3, 1), "padding": "valid"},
        {"kernel_size": 3, "padding": (2, 0), "stride": (1, 2), "groups": 2},
        {"kernel_size": 3, "padding": 2, "dilation": (2, 1)},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_input_factor_from_rows_is_that_of_the_patches(
    arguments: dict[str, object],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    generator: torch.Generator,
) -> None:
    monkeypatch.setattr(row_grams, "_ELEMENTS", 2000)  # a few data at a time
    conv = nn.Conv2d(4, 6, **arguments).to(dtype)
    layer = WeightLayer("conv", conv, ("weight", "bias"))
    a = torch.randn(11, 4, 7, 6, generator=generator, dtype=dtype)
    found = layer.input_gram(a.transpose(2, 3).contiguous().transpose(2, 3))  # of any strides
    assert found is not None
    expected = sum(rows.mT @ rows for rows in layer.input_rows(a))
    rtol = 1e-4 if dtype == torch.float32 else 1e-12
    assert_close(found, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


# --- KFAC "reduce" and the trace ratio that tells where it is needed


def reduced_pass(kind: str, c: Case, *reduced: str) -> CurvaturePass:
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
    reduced, expanded = reduced_pass("kfac_ggn", c, "0"), reduced_pass("kfac_ggn", c)
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
    found = reduced_pass("kfac_ggn", c, "0")
    assert_close(_weight(found), expected, rtol=1e-10, atol=1e-12)
    assert_close(found.curvature.blocks[1].matrix, gradients, rtol=1e-10, atol=1e-12)
    plain = reduced_pass("kfac_ggn", c).curvature
    for one, other in zip(found.curvature.blocks[2:], plain.blocks[2:], strict=True):
        assert_close(one.trace(), other.trace())


@pytest.mark.parametrize("kind", [k for k in KINDS if "kfac" in k])
def test_reduce_changes_nothing_with_one_position(kind: str) -> None:
    c = case("mlp")
    one, other = reduced_pass(kind, c), reduced_pass(kind, c, "0", "3")
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
    exact = reduced_pass("diag_ggn", c)
    expand = trace_ratios(reduced_pass("kfac_ggn", c), exact)
    reduce = trace_ratios(reduced_pass("kfac_ggn", c, "0"), exact)
    assert expand["0.weight"] < 6 / side**2
    assert 0.5 < reduce["0.weight"] < 2
    for ratios in (expand, reduce):
        for name in ("0.bias", "4.bias"):
            assert_close(ratios[name], 1.0)


def test_trace_ratio_of_a_dead_layer_is_undefined_and_the_rest_is_told() -> None:
    c = case("mlp")
    with torch.no_grad():
        c.model[3].weight.zero_()
    ratios = trace_ratios(reduced_pass("kfac_ggn", c), reduced_pass("diag_ggn", c))
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
        reduced_pass("kfac_ggn", c, "nowhere", "before", "conv")
    with pytest.raises(ValueError, match="a block per tensor"):
        trace_ratios(reduced_pass("kfac_ggn", c), reduced_pass("full_ggn", c))
