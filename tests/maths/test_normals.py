"""Mixtures of normals: closed form with one, draws with several, quantiles invert the cdf."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nas_evidence.maths.normals import Normals


def mixtures(seed: int, k: int = 3, n: int = 5, c: int = 2) -> Normals:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(k))
    return Normals(weights, rng.normal(size=(k, n, c)) * 3, rng.gamma(2, size=(k, n, c)) + 0.05)


def test_one_component_is_the_normal_distribution() -> None:
    rng = np.random.default_rng(0)
    mean, std, y = rng.normal(size=(4, 2)), rng.gamma(2, size=(4, 2)), rng.normal(size=(4, 2))
    one = Normals.single(mean, std)
    np.testing.assert_allclose(one.mean, mean)
    np.testing.assert_allclose(one.std, std)
    np.testing.assert_allclose(one.log_density(y), stats.norm.logpdf(y, mean, std).sum(1))
    low, high = one.interval(0.9)
    np.testing.assert_allclose([low, high], stats.norm.interval(0.9, mean, std))


def test_moments_and_quantiles_of_several_are_those_of_draws() -> None:
    mixed, rng = mixtures(1), np.random.default_rng(2)
    chosen = rng.choice(len(mixed.weights), p=mixed.weights, size=400_000)
    for i in (0, 3):
        drawn = rng.normal(mixed.means[chosen, i, 0], mixed.stds[chosen, i, 0])
        assert mixed.mean[i, 0] == pytest.approx(drawn.mean(), abs=0.03)
        assert mixed.std[i, 0] == pytest.approx(drawn.std(), rel=0.01)
        for level in (0.1, 0.5, 0.95):
            found = np.quantile(drawn, level)
            assert mixed.quantile(level)[i, 0] == pytest.approx(found, abs=0.04)


def test_the_joint_density_of_two_outputs_is_not_the_product_of_each() -> None:
    far = Normals(np.array([0.5, 0.5]), np.array([[[0.0, 0.0]], [[9.0, 9.0]]]), np.ones((2, 1, 2)))
    together, mixed = (
        far.log_density(np.zeros((1, 2)))[0],
        far.log_density(np.array([[0.0, 9]]))[0],
    )
    assert together == pytest.approx(np.log(0.5) + 2 * stats.norm.logpdf(0), abs=1e-6)
    assert mixed < -30  # never are both of different components


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.001, 0.999))
def test_quantiles_invert_the_distribution_function_and_are_ordered(
    seed: int, k: int, probability: float
) -> None:
    mixed = mixtures(seed, k)
    np.testing.assert_allclose(mixed.cdf(mixed.quantile(probability)), probability, atol=1e-9)
    low, high = mixed.interval(probability)
    assert (low <= high).all()


@pytest.mark.parametrize("k", [1, 3])
def test_no_mean_or_quantile_is_below_the_least_possible_value_and_others_stay(k: int) -> None:
    free = mixtures(4, k)
    cut = replace(free, least=np.array([0.0, -np.inf]))
    assert free.quantile(0.05).min(0)[0] < 0
    for p in (0.05, 0.5, 0.95):
        found, expected = cut.quantile(p), free.quantile(p)
        np.testing.assert_array_equal(found[:, 0], np.maximum(expected[:, 0], 0))
        np.testing.assert_array_equal(found[:, 1], expected[:, 1])
    np.testing.assert_array_equal(cut.mean, free.mean.clip([0.0, -np.inf]))
    assert (free.mean < 0).any(0).all()
    np.testing.assert_array_equal(cut.std, free.std)
    np.testing.assert_allclose(cut.interval(0.9)[0], cut.quantile(0.05), rtol=1e-9)
