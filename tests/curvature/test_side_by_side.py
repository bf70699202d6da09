"""Perceptrons side by side have the passes, and the spectra, that each has alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from cases import CASES, case
from messages import refused
from torch import Tensor, nn
from torch.testing import assert_close

from nas_evidence.curvature import (
    CurvaturePass,
    curvature_pass,
    curvature_passes,
    layerwise,
    squares,
    sweep,
    wide,
)
from nas_evidence.curvature.layers import WeightLayer
from nas_evidence.curvature.side_by_side import Member, can_join, kroneckers_side_by_side
from nas_evidence.curvature.squares import weight_squares
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.likelihoods.gaussian import Gaussian, gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.maths.blocks import FewInputs, Kronecker
from nas_evidence.maths.eigenvalues import eigenvalues
from nas_evidence.maths.structured import BlockDiagonal

#: Two batches of eight rows at most, the second of no, one and of some rows.
SIZES, ROWS = (13, 8, 9), 8
KINDS: dict[str, list[Likelihood]] = {
    "labels": [Categorical(0.7)] * 3,
    "reals": [Gaussian(0.3), gaussian([0.2, 0.5, 2.0, 1.0]), Gaussian(1.0)],
    "pairs": [Heteroscedastic()] * 3,
}


def member(kind: str, k: int, hidden: tuple[int, ...], n_inputs: int = 5) -> Member:
    """A perceptron with four outputs in float64, and its data."""
    draw = torch.Generator().manual_seed(k)
    widths = [n_inputs, *hidden, 4]
    layers: list[nn.Module] = [nn.Flatten()]
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw, dtype=torch.float64))
    x = torch.randn(SIZES[k], 1, n_inputs, generator=draw, dtype=torch.float64)
    y: Tensor = torch.randn(SIZES[k], 2 if kind == "pairs" else 4, generator=draw).double()
    y = y.argmax(1) if kind == "labels" else y
    signs = torch.Generator().manual_seed(100 + k)
    return Member(model, x, y, KINDS[kind][k], signs, {})


def alone(one: Member, n_draws: int) -> list[CurvaturePass]:
    return curvature_passes(
        "kfac_ggn_mc", one.model, one.inputs, one.targets, one.likelihood,
        batch_size=ROWS, n_draws=n_draws, generator=one.generator,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [(), (6,), (9, 40)])  # fewer rows than 40
@pytest.mark.parametrize("n_inputs", [5, 10])  # more rows than columns, or not of all
def test_passes_side_by_side_are_those_of_each_alone(
    kind: str, hidden: tuple[int, ...], n_inputs: int
) -> None:
    members = [member(kind, k, hidden, n_inputs) for k in range(3)]
    assert all(can_join(one.model, max(SIZES)) for one in members)
    found = kroneckers_side_by_side(members, batch_size=ROWS, n_draws=2)
    for k, draws in enumerate(found):
        for one, right in zip(draws, alone(member(kind, k, hidden, n_inputs), 2), strict=True):
            assert math.isclose(one.log_likelihood, right.log_likelihood, rel_tol=1e-12)
            assert one.squared_errors == pytest.approx(right.squared_errors, rel=1e-12)
            assert (one.n_data, one.n_outputs) == (SIZES[k], 4)
            mine, theirs = one.curvature, right.curvature
            assert isinstance(mine, BlockDiagonal)
            assert isinstance(theirs, BlockDiagonal)
            assert mine.names == theirs.names
            assert_close(mine.trace(), theirs.trace(), rtol=1e-10, atol=0)
            for values, others in zip(mine.spectra(), theirs.spectra(), strict=True):
                assert_close(values, others, rtol=1e-8, atol=1e-10 * float(others.max()))
            vector, delta = torch.ones(mine.n_parameters).double(), torch.ones(len(mine.names))
            one_form, other = (c.inverse_quadratic(vector, delta) for c in (mine, theirs))
            assert_close(one_form, other, rtol=1e-8, atol=0)


def test_the_factor_of_the_inputs_is_computed_once_for_each_data_set() -> None:
    first = member("labels", 0, (6,))
    ((before,),) = kroneckers_side_by_side([first], batch_size=ROWS)
    assert isinstance(before.curvature, BlockDiagonal)
    before.curvature.spectra()
    ((matrix, once),) = first.kept.values()
    assert once.has("values")
    matrix.mul_(4.0)  # what is kept is what is used
    again = replace(first, generator=torch.Generator().manual_seed(100))
    ((after,), _) = kroneckers_side_by_side([again, member("labels", 1, (6,))], batch_size=ROWS)
    assert_close(after.curvature.trace()[0], 4 * before.curvature.trace()[0])
    assert_close(after.curvature.trace()[1:], before.curvature.trace()[1:])


def test_many_columns_are_decomposed_as_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = []

    def noted(matrices: Sequence[Tensor]) -> list[Tensor]:
        sides.extend(matrix.shape[-1] for matrix in matrices)
        return eigenvalues(matrices)

    monkeypatch.setattr("nas_evidence.curvature.side_by_side.eigenvalues", noted)
    for n_inputs in (8, 30):
        members = [member("labels", k, (6,), n_inputs) for k in (1, 2)]
        for (draw,) in kroneckers_side_by_side(members, batch_size=ROWS):
            assert isinstance(draw.curvature, BlockDiagonal)
            draw.curvature.spectra()
    # Gradients of both layers, inputs of the second; then the data of 8 and 9 rows.
    assert sides == [6, 4, 6, 8, 8, 6, 4, 6, 8, 9]


def test_one_that_has_diverged_does_not_disturb_the_spectra_of_the_others() -> None:
    members = [member("labels", k, (6,)) for k in range(3)]
    with torch.no_grad():
        next(members[1].model.parameters()).fill_(math.nan)
    found = kroneckers_side_by_side(members, batch_size=ROWS)
    assert [bool(one.curvature.trace().isfinite().all()) for (one,) in found] == [
        True,
        False,
        True,
    ]
    for k in (0, 2):
        mine, (right,) = found[k][0].curvature, alone(member("labels", k, (6,)), 1)
        delta = torch.ones(4).double()
        assert_close(mine.log_det_ratio(delta), right.curvature.log_det_ratio(delta))


# --- several Monte-Carlo draws in one sweep: the same numbers as one sweep for each


DRAWN = ("diag_ggn_mc", "kfac_ggn_mc")


class _TwoCalls(nn.Module):
    """A module that hooks cannot follow: its layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(torch.tanh(self.inner(x))))
        return out


def _words() -> nn.Module:
    return nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.LayerNorm(20), nn.Linear(20, 3))


def _compare(
    kind: str, model: nn.Module, x: torch.Tensor, y: torch.Tensor, likelihood: Likelihood
) -> None:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    one_by_one = generator()
    expected = [
        curvature_pass(kind, model, x, y, likelihood, batch_size=4, generator=one_by_one)
        for _ in range(3)
    ]
    together = curvature_passes(
        kind, model, x, y, likelihood, batch_size=4, n_draws=3, generator=generator()
    )
    assert len(together) == 3
    for found, alone in zip(together, expected, strict=True):
        assert found.log_likelihood == alone.log_likelihood
        for one, other in zip(found.curvature.spectra(), alone.curvature.spectra(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    first, second = (draw.curvature.trace() for draw in together[:2])
    assert not torch.equal(first, second)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("name", CASES)
def test_draws_of_one_sweep_are_those_of_one_sweep_each(kind: str, name: str) -> None:
    c = case(name)
    _compare(kind, c.model, c.x, c.y, c.likelihood)


@pytest.mark.parametrize("kind", DRAWN)
def test_draws_share_the_counts_of_an_embedding(kind: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randint(0, 7, (9, 5)), torch.randint(0, 3, (9,))
    _compare(kind, _words(), x, y, Categorical())


def test_draws_share_the_rows_of_a_wide_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "WIDE", 5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 3))
    _compare("kfac_ggn_mc", model, torch.randn(9, 12), torch.arange(9) % 3, Categorical())


def test_draws_of_a_model_without_hooks_are_those_of_one_sweep_each() -> None:
    torch.manual_seed(0)
    _compare("diag_ggn_mc", _TwoCalls(), torch.randn(9, 4), torch.arange(9) % 3, Categorical())


def test_draws_call_the_model_as_often_as_one_does() -> None:
    c = case("conv_plain")
    calls: list[int] = []  # the draws of each call
    for n_draws in (1, 4):
        handle = c.model.register_forward_hook(lambda *_, n=n_draws: calls.append(n))
        curvature_passes(
            "kfac_ggn_mc", c.model, c.x, c.y, c.likelihood,
            batch_size=4, n_draws=n_draws, generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        handle.remove()
    assert calls.count(4) == calls.count(1) > 0


def test_an_exact_kind_has_one_draw() -> None:
    c = case("mlp")
    with refused("n-draws-of-kind", 2, "'diag_ggn'"):
        curvature_passes("diag_ggn", c.model, c.x, c.y, c.likelihood, batch_size=4, n_draws=2)


def test_the_evidence_is_the_mean_over_the_draws() -> None:
    c = case("mlp")
    random = torch.Generator().manual_seed(5)
    alone = [
        c.estimate("kfac_ggn_mc", prior_precision=1.0, generator=random, n_draws=1).value
        for _ in range(4)
    ]
    again = torch.Generator().manual_seed(5)
    found = c.estimate("kfac_ggn_mc", prior_precision=1.0, generator=again, n_draws=4)
    assert found.value == pytest.approx(sum(alone) / 4, rel=1e-13)


# --- the input factor of a layer that reads the data is computed once, and never a stale one


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every layer whose input is summed adds its path, for each batch."""
    paths: list[str] = []
    rows, gram = WeightLayer.input_rows, WeightLayer.input_gram

    def input_gram(layer: WeightLayer, a: Tensor) -> Tensor | None:
        found = gram(layer, a)
        if found is not None:
            paths.append(layer.path)
        return found

    def input_rows(layer: WeightLayer, a: Tensor) -> Iterator[Tensor]:
        paths.append(layer.path)
        return rows(layer, a)

    monkeypatch.setattr(WeightLayer, "input_gram", input_gram)
    monkeypatch.setattr(WeightLayer, "input_rows", input_rows)
    return paths


def mlp(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(18, width), nn.Tanh(), nn.Linear(width, 3))


def cnn(padding: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 2, padding=padding), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)
    )


def data(n: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 2, 3, 3, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def run(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    kept: dict[Any, Any] | None = None,
    *,
    batch_size: int = 4,
    reduce: tuple[str, ...] = (),
) -> BlockDiagonal:
    model(x[:1])  # shapes of lazy layers
    (found,) = curvature_passes(
        "kfac_ggn",
        model,
        x,
        y,
        Categorical(),
        batch_size=batch_size,
        kfac_reduce=reduce,
        kept=kept,
    )
    assert isinstance(found.curvature, BlockDiagonal)
    return found.curvature


def first(curvature: BlockDiagonal) -> Tensor:
    block = curvature.blocks[0]
    assert isinstance(block, Kronecker | FewInputs)
    return block.inputs


def test_later_passes_of_any_network_take_the_factor_over(summed: list[str]) -> None:
    (x, y), kept = data(), dict[Any, Any]()
    one = run(mlp(), x, y, kept)
    assert summed.count("1") == 3  # three batches
    other = run(mlp(7), x, y, kept)
    assert summed.count("1") == 3
    assert summed.count("3") == 6
    assert torch.equal(first(one), first(other))
    assert torch.equal(first(run(mlp(), x, y)), first(one))


def test_convolutions_take_it_over_where_their_geometry_is_the_same(summed: list[str]) -> None:
    (x, y), kept = data(), dict[Any, Any]()
    found = [first(run(cnn(padding), x, y, kept)) for padding in (0, 1, 0, 1)]
    assert summed.count("0") == 3 * 2  # three batches, each padding once
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])


def test_a_caller_that_owns_no_data_never_gets_a_stale_factor() -> None:
    x, y = data()
    run(mlp(), x, y)
    x[3] *= 2
    torch.testing.assert_close(
        first(run(mlp(), x, y))[0], (x.flatten(1).mT @ x.flatten(1)).double(), rtol=1e-5, atol=1e-5
    )


def test_another_batch_size_has_a_factor_of_its_own() -> None:
    (x, y), kept = data(), dict[Any, Any]()
    for size in (4, 10, 3):
        found = first(run(mlp(), x, y, kept, batch_size=size))
        assert torch.equal(first(run(mlp(), x, y, batch_size=size)), found)
    assert len(kept) == 3


class _Part(nn.Module):
    """Reads something made of the data, or a part of them."""

    def __init__(self, what: str, width: int) -> None:
        super().__init__()
        self.what, self.layer = what, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.what == "part":
            x = x[:, :9]
        elif self.what == "twice":
            x = 2 * x
        elif self.what == "reversed":
            x = x.flip(1)
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("what", "width"), [("part", 9), ("twice", 18), ("reversed", 18)])
@pytest.mark.parametrize("n", [1, 9])
def test_what_is_made_of_the_data_is_not_taken_for_them(what: str, width: int, n: int) -> None:
    (x, y), kept = data(n), dict[Any, Any]()
    run(_Part("as it is", 18), x, y, kept)
    found = first(run(_Part(what, width), x, y, kept))
    inputs = x.flatten(1)
    inputs = {"part": inputs[:, :9], "twice": 2 * inputs, "reversed": inputs.flip(1)}[what]
    torch.testing.assert_close(found[0], (inputs.mT @ inputs).double(), rtol=1e-5, atol=1e-5)


def test_reduced_layers_sum_their_own_factor() -> None:
    (x, y), kept = data(), dict[Any, Any]()
    model = nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plain, reduced, again = (run(model, x, y, kept, reduce=to) for to in ((), ("0",), ()))
    assert torch.equal(plain.spectra()[0], again.spectra()[0])
    assert not torch.allclose(plain.spectra()[0], reduced.spectra()[0])


def test_no_more_factors_are_kept_than_the_limit_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y), kept = data(), dict[Any, Any]()
    monkeypatch.setattr(layerwise, "MOST_KEPT", 2 * 8 * 18 * 18)
    found = []
    for size in (4, 10, 4, 3):
        run(mlp(), x, y, kept, batch_size=size)
        found.append(len(kept))
    assert found == [1, 2, 2, 1]
    monkeypatch.setattr(layerwise, "MOST_KEPT", 8 * 18 * 18 - 1)
    run(mlp(), x, y, kept, batch_size=5)
    assert not kept


class _Branches(nn.Module):
    """Two layers read the data, and a third what they make of them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(18, 3), nn.Linear(18, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(torch.tanh(self.one(x) + self.two(x)))  # type: ignore[no-any-return]


def test_the_first_layer_and_all_that_read_the_data_are_summed_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    single, double = (torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))
    for trusted, expected in ((False, (double, single, single)), (True, (double, double, single))):
        # A network that is not trusted gets a copy of its inputs.
        monkeypatch.setattr(sweep, "is_trusted", lambda model, trusted=trusted: trusted)
        blocks = [b for b in run(_Branches(), *data()).blocks if isinstance(b, Kronecker)]
        assert tuple(block.rounding_of_inputs for block in blocks) == expected


def test_an_embedding_has_the_rounding_of_its_gradients() -> None:
    x, y = torch.arange(20).reshape(10, 2) % 5, torch.arange(10) % 3
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))
    block = run(model, x, y).blocks[0]
    assert isinstance(block, Kronecker)
    assert block.rounding_of_inputs == torch.finfo(torch.float32).eps


# --- squared weight gradients: every kernel against the gradient of each datum, one by one


#: Modules and inputs [n, ...] that reach each kernel in float64, by number of positions.
SQUARED = {
    "pairs of 1": (lambda: nn.Conv2d(3, 5, 3, padding=1), (4, 3, 1, 1)),
    "pairs of 4": (lambda: nn.Conv2d(3, 5, 3, padding=1, stride=2), (4, 3, 3, 4)),
    "pairs in groups": (lambda: nn.Conv2d(4, 6, 2, groups=2), (4, 4, 2, 3)),
    "pairs of a sequence": (lambda: nn.Linear(3, 5), (4, 3, 3)),
    "pairs of one vector": (lambda: nn.Linear(3, 5), (4, 3)),
    "products": (lambda: nn.Conv2d(3, 5, 3, padding=(1, 2), dilation=(1, 2)), (4, 3, 5, 6)),
    "products in groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding="same"), (4, 4, 5, 3)),
    "products of a sequence": (lambda: nn.Linear(3, 5), (4, 7, 3)),
}


def one_by_one(module: nn.Module, a: Tensor, s: Tensor) -> Tensor:
    total = torch.zeros_like(module.weight)
    for datum, direction in zip(a.split(1), s.split(1), strict=True):
        (gradient,) = torch.autograd.grad(module(datum), module.weight, direction)
        total += gradient.square()
    return total.flatten()


def example(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    a = torch.randn(shape, generator=random, dtype=dtype)
    out = module.to(dtype)(a)
    return a, torch.randn(out.shape, generator=random, dtype=dtype)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", SQUARED)
def test_squares_are_those_of_the_gradients_one_by_one(name: str, last: bool) -> None:
    make, shape = SQUARED[name]
    module = make()
    a, s = example(module, shape, torch.float64)
    expected = one_by_one(module, a, s)
    if last and a.ndim == 4:
        a, s = (t.contiguous(memory_format=torch.channels_last) for t in (a, s))
    found = weight_squares(module.requires_grad_(False), a, s)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("elements", [1, 1 << 20], ids=["one datum at a time", "all at once"])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("arguments", [{"padding": 1}, {"stride": 2, "groups": 2, "dilation": 2}])
def test_the_grouped_kernel_of_float32_agrees_with_float64(
    arguments: dict[str, int], last: bool, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squares, "_GROUPED_ELEMENTS", elements)
    module = nn.Conv2d(8, 12, 3, **arguments)
    a, s = example(module, (5, 8, 9, 9), torch.float64)
    expected = one_by_one(module, a, s)
    a, s = a.float(), s.float()
    if last:
        a, s = (t.contiguous(memory_format=torch.channels_last) for t in (a, s))
    found = weight_squares(module.float().requires_grad_(False), a, s)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)


def test_data_in_several_chunks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for make, shape in SQUARED.values():
        module = make()
        a, s = example(module, shape, torch.float64)
        module.requires_grad_(False)
        whole = weight_squares(module, a, s)
        with monkeypatch.context() as patched:
            patched.setattr(squares, "_ELEMENTS", 1)
            torch.testing.assert_close(weight_squares(module, a, s), whole, rtol=1e-12, atol=0)


def test_gradients_that_cancel_have_squares_of_at_least_zero() -> None:
    module = nn.Conv2d(1, 1, 1, bias=False).requires_grad_(False)
    a = torch.tensor([0.1, 0.2, 0.3, 0.1]).reshape(1, 1, 2, 2)
    s = torch.tensor([0.3, 0.3, -0.3, 0.0]).reshape(1, 1, 2, 2)  # Σ_t s_t a_t = 0 but for rounding
    found = weight_squares(module, a, s)
    assert 0 <= float(found) < 1e-8
