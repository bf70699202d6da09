"""Squared weight gradients: every kernel against the gradient of each datum, one by one."""

import pytest
import torch
from torch import Tensor, nn

from nas_evidence.curvature import squares
from nas_evidence.curvature.squares import weight_squares

#: Modules and inputs [n, ...] that reach each kernel in float64, by number of positions.
CASES = {
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
@pytest.mark.parametrize("name", CASES)
def test_squares_are_those_of_the_gradients_one_by_one(name: str, last: bool) -> None:
    make, shape = CASES[name]
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
    for make, shape in CASES.values():
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
