"""The factor on the spread: against a grid and the closed form, and 1 where nothing is wrong."""

import math

import pytest
import torch
from torch import Tensor

from nas_evidence.likelihoods.predictive import Classes, Reals
from nas_evidence.maths.spread_factor import MOST, class_factor, real_factor


def drawn(n: int = 80, n_classes: int = 4, *, times: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return logits [n, C], and labels from the softmax of them divided by `times`."""
    generator = torch.Generator().manual_seed(n)
    logits = 2 * torch.randn(n, n_classes, generator=generator).double()
    p = (logits / times).softmax(1)
    return logits, torch.multinomial(p, 1, generator=generator)[:, 0]


def objective(logits: Tensor, labels: Tensor, factor: float, rows: float) -> float:
    logs = (logits / factor).log_softmax(1)
    own = (logits.softmax(1) * logs).sum(1).mean()
    return float(logs.gather(1, labels[:, None]).sum() + rows * own)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rows", [0, 7.5, 160])
def test_the_factor_of_classes_is_the_best_of_a_fine_grid(times: float, rows: float) -> None:
    logits, labels = drawn(times=times)
    grid = torch.logspace(-1, 1, 4001, dtype=torch.float64)
    best = max(grid.tolist(), key=lambda c: objective(logits, labels, c, rows))
    assert class_factor(logits, labels, rows=rows) == pytest.approx(best, rel=1.2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 13])
def test_the_factor_of_real_targets_is_the_best_of_a_fine_grid(rows: float) -> None:
    z = 1.7 * torch.randn(60, 2, generator=torch.Generator().manual_seed(1)).double()

    def value(c: float) -> float:
        own = 2 * (-math.log(c) - 0.5 / c**2)
        return float(-z.numel() * math.log(c) - 0.5 * (z / c).square().sum()) + rows * own

    grid = torch.logspace(-1, 1, 4001, dtype=torch.float64).tolist()
    assert real_factor(z, rows=rows) == pytest.approx(max(grid, key=value), rel=1.2e-3)


@pytest.mark.parametrize("rows", [0, 10, 1000])
def test_where_one_is_the_likeliest_factor_it_stays_one_at_any_strength(rows: float) -> None:
    logits, labels = drawn()
    likeliest = class_factor(logits, labels, rows=0)
    assert class_factor(logits / likeliest, labels, rows=rows) == pytest.approx(1, abs=1e-9)
    z = torch.randn(50, 3, generator=torch.Generator().manual_seed(2)).double()
    z /= z.square().mean().sqrt()
    assert real_factor(z, rows=rows) == pytest.approx(1, abs=1e-12)


def test_more_rows_bring_the_factor_nearer_to_one_and_never_past_it() -> None:
    logits, labels = drawn(times=3.0)
    factors = [class_factor(logits, labels, rows=m) for m in (0, 10, 100, 1000)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] > 1


def test_predictions_that_are_never_wrong_get_a_bounded_factor() -> None:
    logits = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    assert class_factor(logits, torch.tensor([0, 1]), rows=0) == pytest.approx(1 / MOST)
    assert class_factor(1000 * logits, torch.tensor([1, 0]), rows=0) == pytest.approx(MOST)
    assert real_factor(torch.zeros(4, 1), rows=0) == 1 / MOST
    assert class_factor(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)) == 1


def test_where_no_prediction_says_anything_the_factor_is_one() -> None:
    logits = torch.full((5, 3), 0.3).double()
    for rows in (0, 160):
        assert class_factor(logits, torch.tensor([0, 1, 2, 0, 0]), rows=rows) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_are_refused(value: float) -> None:
    outputs, spread = torch.tensor([[1.0, value], [0.0, 1.0]]), torch.ones(2, 1)
    for of, targets in ((Classes, torch.tensor([0, 1])), (Reals, torch.zeros(2, 2))):
        with pytest.raises(ValueError, match="1 of 2 predictions are NaN or infinite"):
            of(outputs, spread).factor(targets)
