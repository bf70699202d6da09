"""The input factor of a layer that reads the data is computed once, and never a stale one."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nas_evidence.curvature import curvature_passes, layerwise, sweep
from nas_evidence.curvature.layers import WeightLayer
from nas_evidence.likelihoods.categorical import Categorical
from nas_evidence.maths.blocks import FewInputs, Kronecker
from nas_evidence.maths.structured import BlockDiagonal


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
