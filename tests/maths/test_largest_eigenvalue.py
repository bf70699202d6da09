"""The largest eigenvalue from above: exact in closed form, never below the truth at random."""

import pytest
import torch
from torch import Tensor

from nas_evidence.maths.largest_eigenvalue import largest_eigenvalue


def matrices(values: Tensor, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    size = len(values)
    basis = torch.linalg.qr(torch.randn(count, size, size, generator=generator).double())[0]
    return (basis * values) @ basis.mT


def limits(a: Tensor, seed: int = 0, **known: int) -> tuple[Tensor, Tensor]:
    return largest_eigenvalue(
        lambda v: (a @ v[..., None])[..., 0], a[..., 0],
        generator=torch.Generator().manual_seed(seed), **known,
    )  # fmt: skip


@pytest.mark.parametrize(
    "values", [[-3.0, 0.2, 0.5], [1.0] * 6, [0.0] * 4, [0.7], [-2.0, -1.0]], ids=str
)
def test_with_a_step_for_each_dimension_both_limits_are_the_eigenvalue(
    values: list[float],
) -> None:
    a = matrices(torch.tensor(values, dtype=torch.float64), 5)
    low, high = limits(a)
    expected = torch.full((5,), max(values), dtype=torch.float64)
    torch.testing.assert_close(low, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(high, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("size", [60, 300])
@pytest.mark.parametrize("spectrum", ["even", "one_out", "close_pair", "negative"])
def test_the_truth_is_between_the_limits(size: int, spectrum: str) -> None:
    values = torch.linspace(-0.2, 0.3, size).double()
    if spectrum == "one_out":
        values[-1] = 0.6
    elif spectrum == "close_pair":
        values[-2:] = torch.tensor([0.5999, 0.6])
    elif spectrum == "negative":
        values = values - 1.0
    a = matrices(values, 40 if size == 60 else 8)
    low, high = limits(a)
    truth = float(values.max())
    assert bool((low <= truth + 1e-12).all())
    assert bool((high >= truth).all())
    assert bool((high - low < 0.25 * (values.max() - values.min())).all())


def test_too_few_steps_for_a_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="`n_steps` must be larger for 60 parameters, but got 5"):
        limits(matrices(torch.ones(60).double(), 1), n_steps=5)
