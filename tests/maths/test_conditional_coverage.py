"""Coverage by quartile of the prediction: counted right, and a warning that is rarely false."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from nas_evidence.likelihoods.predictive import Classes, Reals
from nas_evidence.maths.conditional_coverage import (
    FEWEST,
    Quarter,
    by_quartile,
    clopper_pearson,
    fails,
    failures,
    has_another_shape,
    n_pit,
)
from nas_evidence.maths.metrics import coverage_by_level
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.spread_factor import MOST, class_factor, real_factor
from nas_evidence.maths.target_scale import fit


@pytest.mark.parametrize(("k", "n"), [(0, 7), (3, 7), (7, 7), (180, 200)])
def test_the_binomial_interval_is_that_of_scipy(k: int, n: int) -> None:
    expected = binomtest(k, n).proportion_ci(0.9875, method="exact")
    assert clopper_pearson(k, n, 0.9875) == pytest.approx((expected.low, expected.high))


def test_each_row_is_in_the_quarter_of_its_prediction() -> None:
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(103, 1)), rng.normal(size=(103, 1))
    density = Normals.single(f, np.ones(1))
    found = by_quartile(density, y)
    assert [one.n for one in found] == [26, 26, 26, 25]
    low, high = density.interval(0.9)
    inside = ((low <= y) & (y <= high))[:, 0]
    for one in found:
        mine = (one.low <= f[:, 0]) & (f[:, 0] <= one.high)
        assert mine.sum() == one.n
        assert one.inside_90 == pytest.approx(inside[mine].mean())
    total = coverage_by_level(density, y)
    for name in ("50", "90"):
        mean = sum(one.n * getattr(one, f"inside_{name}") for one in found) / 103
        assert mean == pytest.approx(total[f"coverage_{name}"])


def test_equal_predictions_of_a_file_sorted_by_its_target_are_no_failure() -> None:
    """With the order of the file as their order, 51 to 100 % of such studies were warned."""
    rng, warned = np.random.default_rng(3), 0
    for _ in range(40):
        y = np.sort(rng.normal(size=(400, 1)), axis=0)
        found = by_quartile(Normals.single(np.zeros((400, 1)), np.ones(1)), y)
        warned += bool(failures(found, [40] * 10))
    assert warned <= 4


def test_few_rows_have_no_quarters() -> None:
    few = np.zeros((FEWEST - 1, 1))
    assert by_quartile(Normals.single(few, np.ones(1)), few) == []


def test_equal_predictions_of_a_sorted_file_do_not_fail_intervals_that_are_right() -> None:
    """The order of the file says nothing: one, two and three distinct predictions."""
    rng, warned = np.random.default_rng(2), 0
    for study in range(90):
        f = rng.integers(1 + study % 3, size=(200, 1)).astype(float)
        y = f + rng.normal(size=(200, 1))
        order = y[:, 0].argsort()
        found = by_quartile(Normals.single(f[order], np.ones(1)), y[order])
        warned += any(fails(one.inside_90, one.n) for one in found)
    assert warned <= 9  # 5 %, and two standard errors; 73 of 90 in the order of the rows


def _warns(x: np.ndarray, y: np.ndarray, n_folds: int = 5) -> bool:
    """Whether out-of-fold predictions of a linear model with one noise fail in a quarter."""
    mean, noise = np.empty(len(y)), np.empty(len(y))
    for k in range(n_folds):
        left = np.arange(len(y)) % n_folds == k
        w, *_ = np.linalg.lstsq(x[~left], y[~left], rcond=None)
        mean[left] = x[left] @ w
        noise[left] = np.std(y[~left] - x[~left] @ w)
    density = Normals.single(mean[:, None], noise[:, None])
    return bool(failures(by_quartile(density, y[:, None]), n_pit(density, y[:, None])))


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize(("n", "studies"), [(60, 400), (300, 400), (2000, 150), (20_000, 40)])
@pytest.mark.parametrize("noise", ["normal", "heavy tails"])
def test_where_the_noise_is_the_same_everywhere_a_warning_is_rare(
    n: int, studies: int, noise: str
) -> None:
    """At most 0.05 by its rule; 0.075 leaves room for three standard errors of 400 studies."""
    rng, found = np.random.default_rng(n), 0
    for _ in range(studies):
        x = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
        error = rng.normal(size=n) if noise == "normal" else rng.standard_t(5, size=n)
        found += _warns(x, x @ [0.0, 1.0, 2.0, -1.0] + error)
    assert found / studies <= 0.075


@pytest.mark.parametrize(("n", "least"), [(300, 0.5), (2000, 1.0)])
def test_where_the_noise_grows_with_the_target_a_warning_is_the_rule(n: int, least: float) -> None:
    rng, found = np.random.default_rng(n), []
    for _ in range(40):
        x = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
        found.append(_warns(x, np.exp(x @ [0.0, 0.5, 0.5] + 0.4 * rng.normal(size=n))))
    assert np.mean(found) >= least


def test_what_many_rows_show_is_no_reason_to_warn_within_a_few_per_cent() -> None:
    assert fails(0.88, 10**6) == fails(0.93, 10**6) == 0
    assert fails(0.85, 10**6) == -1
    assert fails(0.95, 10**6) == 1
    assert fails(0.8, 20) == fails(1.0, 20) == 0
    assert fails(0.45, 10**6, level=0.5) == fails(0.55, 10**6, level=0.5) == 0
    assert [fails(s, 10**6, level=0.5) for s in (0.34, 0.66)] == [-1, 1]


def test_intervals_of_half_the_targets_and_the_shape_fail_where_nine_in_ten_hold() -> None:
    halves = [Quarter(200, None, None, share, 0.9) for share in (0.75, 0.5, 0.5, 0.3)]
    assert [(one.quarter, one.sign, one.level) for one in failures(halves, [80] * 10)] == [
        (0, 1, 0.5), (3, -1, 0.5),
    ]  # fmt: skip
    right = [Quarter(200, None, None, 0.5, 0.9)] * 4
    assert failures(right, [80] * 10) == []
    [shape] = failures(right, [200, 150, 100, 50, 50, 50, 50, 50, 50, 50])
    assert (shape.quarter, shape.sign, shape.level) == (None, 0, None)
    narrow = [Quarter(200, None, None, 0.45, 0.85)] * 4  # each may be chance, all four not
    assert [(one.quarter, one.sign) for one in failures(narrow, [80] * 10)] == [(None, -1)]


def test_each_of_several_targets_is_tested_at_its_part_of_the_false_alarms() -> None:
    one = [Quarter(100, None, None, 0.5, share) for share in (0.79, 0.9, 0.9, 0.9)]
    assert failures(one, [40] * 10)
    assert not failures(one, [40] * 10, n_targets=10)


def test_the_noise_of_a_skewed_target_has_another_shape_and_that_of_a_normal_one_not() -> None:
    rng, found = np.random.default_rng(4), []
    normal = Normals.single(np.zeros((500, 1)), np.ones(1))
    for _ in range(60):
        skewed = rng.exponential(size=(500, 1)) - 1
        pits = [n_pit(normal, e) for e in (rng.normal(size=(500, 1)), skewed)]
        found.append([has_another_shape(pit) for pit in pits])
    assert np.mean(found, axis=0).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["identity", "log"])
def test_the_pit_of_the_right_density_is_uniform_and_of_a_narrow_one_at_the_ends(
    name: str,
) -> None:
    rng = np.random.default_rng(2)
    f = rng.normal(size=(5000, 1))
    scale = fit(name, np.exp(f))
    y = scale.inverse(f + rng.normal(size=f.shape))
    right, narrow = (np.array(n_pit(scale.density(f, np.full(1, s)), y)) for s in (1.0, 0.5))
    assert right.sum() == narrow.sum() == 5000
    assert (np.abs(right - 500) < 5 * np.sqrt(450)).all()
    assert min(narrow[0], narrow[-1]) > 1000


# --- the factor on the spread: against a grid and the closed form, and 1 where nothing is wrong


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
