"""The input factor of a layer that reads the data is computed once, and never a stale one."""

from collections import OrderedDict
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from nas_evidence.curvature import curvature_pass, input_factors, layerwise
from nas_evidence.curvature.layers import WeightLayer
from nas_evidence.curvature.likelihood import Categorical
from nas_evidence.maths.blocks import FewInputs, Kronecker
from nas_evidence.maths.structured import BlockDiagonal


@pytest.fixture(autouse=True)
def none_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without factors of other tests."""
    monkeypatch.setattr(input_factors, "_FACTORS", OrderedDict())


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


def run(model: nn.Module, x: Tensor, y: Tensor, batch_size: int = 4) -> BlockDiagonal:
    model(x[:1])  # shapes of lazy layers
    curvature = curvature_pass("kfac_ggn", model, x, y, Categorical(), batch_size=batch_size)
    assert isinstance(curvature.curvature, BlockDiagonal)
    return curvature.curvature


def first(curvature: BlockDiagonal) -> Tensor:
    block = curvature.blocks[0]
    assert isinstance(block, Kronecker | FewInputs)
    return block.inputs


def test_later_passes_of_any_network_take_the_factor_over(summed: list[str]) -> None:
    x, y = data()
    one = run(mlp(), x, y)
    assert summed.count("1") == 3  # three batches
    other = run(mlp(7), x, y)
    assert summed.count("1") == 3
    assert summed.count("3") == 6
    assert torch.equal(first(one), first(other))
    input_factors._FACTORS.clear()
    assert torch.equal(first(run(mlp(), x, y)), first(one))


def test_convolutions_take_it_over_where_their_geometry_is_the_same(summed: list[str]) -> None:
    x, y = data()
    found = [first(run(cnn(padding), x, y)) for padding in (0, 1, 0, 1)]
    assert summed.count("0") == 3 * 2  # three batches, each padding once
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])


def test_data_modified_in_place_have_another_factor() -> None:
    x, y = data()
    run(mlp(), x, y)
    x[3] *= 2
    found = first(run(mlp(), x, y))
    input_factors._FACTORS.clear()
    assert torch.equal(found, first(run(mlp(), x, y)))


@pytest.mark.parametrize("way", ["of numpy", "seen by numpy"])
def test_data_modified_by_numpy_have_another_factor(way: str) -> None:
    x, y = data()
    if way == "of numpy":
        array = x.numpy().copy()
        x = torch.from_numpy(array)
        run(mlp(), x, y)
    else:
        run(mlp(), x, y)
        array = x.numpy()
    array[3] *= 2
    found = first(run(mlp(), x, y))
    input_factors._FACTORS.clear()
    assert torch.equal(found, first(run(mlp(), x, y)))


def test_content_is_read_once_while_torch_owns_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data()
    run(mlp(), x, y)
    monkeypatch.delattr(input_factors, "hashlib")
    run(mlp(), x, y)


def test_another_batch_size_has_a_factor_of_its_own() -> None:
    x, y = data()
    found = {batch_size: first(run(mlp(), x, y, batch_size)) for batch_size in (4, 10, 3)}
    for batch_size, factor in found.items():
        input_factors._FACTORS.clear()
        assert torch.equal(first(run(mlp(), x, y, batch_size)), factor)


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
    x, y = data(n)
    run(_Part("as it is", 18), x, y)
    found = first(run(_Part(what, width), x, y))
    inputs = x.flatten(1)
    inputs = {"part": inputs[:, :9], "twice": 2 * inputs, "reversed": inputs.flip(1)}[what]
    torch.testing.assert_close(found[0], (inputs.mT @ inputs).double(), rtol=1e-5, atol=1e-5)


def test_reduced_layers_sum_their_own_factor() -> None:
    x, y = data()
    model = nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plain = curvature_pass("kfac_ggn", model, x, y, Categorical(), batch_size=4)
    reduced = curvature_pass(
        "kfac_ggn", model, x, y, Categorical(), batch_size=4, kfac_reduce=["0"]
    )
    again = curvature_pass("kfac_ggn", model, x, y, Categorical(), batch_size=4)
    spectra = [one.curvature.spectra()[0] for one in (plain, reduced, again)]
    assert torch.equal(spectra[0], spectra[2])
    assert not torch.allclose(spectra[0], spectra[1])


def test_rows_selected_again_are_recognised(summed: list[str]) -> None:
    x, y = data()
    one = run(mlp(), x[[1, 4, 5, 8]], y[:4])
    other = run(mlp(7), x[[1, 4, 5, 8]], y[:4])
    assert summed.count("1") == 1
    assert torch.equal(first(one), first(other))
    run(mlp(), x[[1, 4, 5, 9]], y[:4])
    assert summed.count("1") == 2


def test_factors_longest_unused_are_forgotten(
    summed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_factors, "_MOST", 2 * 8 * 18 * 18)
    x, y = data()
    for rows in (slice(0, 4), slice(4, 8), slice(0, 4), slice(2, 6), slice(0, 4)):
        run(mlp(), x[rows], y[rows])
    assert summed.count("1") == 3
    run(mlp(), x[4:8], y[4:8])
    assert summed.count("1") == 4
    assert len(input_factors._FACTORS) == 2


def test_a_factor_above_the_limit_is_not_kept(
    summed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_factors, "_MOST", 8 * 18 * 18 - 1)
    x, y = data()
    run(mlp(), x, y)
    run(mlp(), x, y)
    assert summed.count("1") == 6


def test_shards_do_not_share_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layerwise, "FLUSH_EVERY", 1)
    x, y = data()
    whole, half = first(run(mlp(), x, y)), first(run(mlp(), x[:5], y[:5]))
    rows = x[:5].flatten(1)
    torch.testing.assert_close(half[0], (rows.mT @ rows).double(), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(half, whole)
