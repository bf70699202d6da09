"""Stacking: closed form, brute force, certificate, and a gain that promises nothing it has not."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas_evidence.maths.stacking import TOLERANCE, mixture, stacked, stacking_weights


def densities(seed: int, n: int, k: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, k)) * 2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_networks_that_are_each_right_on_their_own_data_get_weights_of_those_shares(
    share: float,
) -> None:
    """Maximum of q log w + (1 - q) log (1 - w): w = q."""
    n = 1000
    right = np.arange(n) < share * n
    table = np.where(np.stack([right, ~right], 1), 0.0, -60.0)
    np.testing.assert_allclose(stacking_weights(table), [share, 1 - share], atol=1e-3)


@pytest.mark.slow
def test_the_weights_are_those_of_a_fine_grid() -> None:
    table = densities(3, 40, 3)
    steps = range(101)
    grid = [(a / 100, b / 100, 1 - (a + b) / 100) for a, b in itertools.product(steps, steps)]
    grid = [w for w in grid if w[2] >= -1e-9]
    values = [mixture(table, np.clip(w, 0, 1)).mean() for w in grid]
    weights = stacking_weights(table)
    np.testing.assert_allclose(weights, grid[int(np.argmax(values))], atol=0.02)
    assert mixture(table, weights).mean() >= max(values) - TOLERANCE


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 6))
def test_no_weights_are_better_and_the_order_of_the_networks_does_not_matter(
    seed: int, n: int, k: int
) -> None:
    table = densities(seed, n, k)
    weights = stacking_weights(table)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    best = mixture(table, weights).mean()
    assert best >= table.mean(0).max() - 1e-5
    assert best >= mixture(table, np.full(k, 1 / k)).mean() - 1e-5
    assert mixture(table[:, ::-1], stacking_weights(table[:, ::-1])).mean() == pytest.approx(
        best, abs=1e-5
    )


def test_a_network_that_gives_no_chance_to_some_data_is_allowed() -> None:
    table = np.array([[0.0, -1.0], [-np.inf, -1.0], [0.0, -1.0]])
    weights = stacking_weights(table)
    assert weights[1] > 0.1
    assert np.isfinite(mixture(table, weights)).all()


def test_data_without_any_density_are_refused() -> None:
    for table in (np.full((2, 2), -np.inf), np.empty((0, 2))):
        with pytest.raises(ValueError, match="needs a finite log density"):
            stacking_weights(table)


def test_copies_of_one_network_gain_nothing() -> None:
    one = densities(0, 50, 1)
    found = stacked(np.repeat(one, 3, axis=1)[None])
    assert found.gain == pytest.approx(0, abs=1e-12)
    assert found.error == pytest.approx(0, abs=1e-12)
    assert found.single == pytest.approx(one.mean())


def test_the_error_of_a_gain_is_that_of_a_mean() -> None:
    """Copies of the data do not change the differences; the error of their mean falls by 1/√k."""
    rng = np.random.default_rng(0)
    right = np.arange(1000) < 300
    table = np.where(np.stack([right, ~right], 1), 0.0, -6.0) + rng.normal(size=(1000, 1))
    found = stacked(table[None])
    gaps = mixture(table, found.weights) - table[:, found.best]
    expected = gaps.std(ddof=1) / np.sqrt(1000)
    assert found.error == pytest.approx(expected, rel=0.05)


def test_each_network_is_compared_at_its_likeliest_scale() -> None:
    table = np.stack([densities(0, 80, 3) - 5 * (m != np.array([0, 2, 1])) for m in range(3)])
    assert stacked(table).scales.tolist() == [0, 2, 1]


@pytest.mark.slow
def test_the_gain_allows_for_the_luck_of_the_best_member() -> None:
    """Two equally good networks of independent errors; without the correction 0.06 is missing."""
    rng, said, seen, plain = np.random.default_rng(4), [], [], []
    for seed in range(40):
        y, f = rng.normal(size=(60, 1)), 0.7 * rng.normal(size=(60, 2))
        table = -0.5 * (y - f) ** 2
        found = stacked(table[None], seed=seed)
        said.append(found.gain)
        plain.append(found.gain + found.single - table.mean(0).max())
        new, g = rng.normal(size=(5000, 1)), 0.7 * rng.normal(size=(5000, 2))
        fresh = -0.5 * (new - g) ** 2
        seen.append((mixture(fresh, found.weights) - fresh[:, found.best]).mean())
    missing, left = np.mean(seen) - np.mean(plain), np.mean(seen) - np.mean(said)
    assert missing > 0.04
    assert -0.01 < left < 0.4 * missing


def test_one_member_gains_nothing_and_a_certain_choice_is_not_corrected() -> None:
    one = densities(0, 50, 1)
    assert stacked(one[None]).gain == pytest.approx(0, abs=1e-12)
    clear = np.column_stack([one[:, 0], one[:, 0] - 9.0])
    assert abs(stacked(clear[None]).gain) < 1e-4


def test_a_member_that_gives_a_datum_no_chance_is_left_out_and_counted() -> None:
    table = densities(1, 40, 3)[None]
    broken = table.copy()
    broken[0, 7, 1] = -np.inf
    found, without = stacked(broken), stacked(table[:, :, [0, 2]])
    assert found.without.tolist() == [0, 1, 0]
    assert found.weights[1] == 0
    assert found.gain == pytest.approx(without.gain)
    assert found.best in (0, 2)
    with pytest.raises(ValueError, match="each of the 3 networks gives a density of 0"):
        stacked(np.where(np.arange(40)[:, None] == [1, 2, 3], -np.inf, table))


@pytest.mark.slow
def test_the_gain_among_networks_that_differ_by_chance_is_not_seen_where_it_was_fitted() -> None:
    """No weights are worth more than even ones, which have density 1 here; fitted ones seem to."""
    rng = np.random.default_rng(5)
    gains, fitted = [], []
    for _ in range(40):
        table = np.log(rng.dirichlet(np.ones(6) * 8, size=30) * 6)
        table -= mixture(table, np.full(6, 1 / 6))[:, None]  # the even mixture has density 1
        weights = stacking_weights(table)
        fitted.append(mixture(table, weights).mean())
        found = stacked(table[None])
        gains.append(found.gain + found.single)
    assert np.mean(fitted) > 0.01  # optimistic
    assert np.mean(gains) < 0.002  # the truth is at most 0
