"""Densities and their CRPS: closed forms, draws, the definition; mixed, cut off and mapped."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from nas_evidence.maths.crps import crps
from nas_evidence.maths.gaussian_softmax import log_sampled_mean, pairwise_mean
from nas_evidence.maths.mixed_density import Mixture, mixed_apart, on_different_scales
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import CURVES, OnScale, fit


def of_normal(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Gneiting & Raftery (2007), eq. 21."""
    z = (y - mean) / std
    return std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))


def of_log_normal(mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Baran & Lerch (2015): y (2 F(y) - 1) - 2 e^(m + s^2/2) (P(z - s) + P(s / sqrt 2) - 1)."""
    z = (np.log(y) - mean) / std
    far = norm.cdf(z - std) + norm.cdf(std / math.sqrt(2)) - 1
    return y * (2 * norm.cdf(z) - 1) - 2 * np.exp(mean + std**2 / 2) * far


def of_mixture(w: np.ndarray, mean: np.ndarray, std: np.ndarray, y: float) -> float:
    """Grimit et al. (2006): E|Y - y| - E|Y - Y'| / 2."""

    def a(m: np.ndarray, v: np.ndarray) -> np.ndarray:
        s = np.sqrt(v)
        return 2 * s * norm.pdf(m / s) + m * (2 * norm.cdf(m / s) - 1)

    among = a(mean[:, None] - mean, std[:, None] ** 2 + std**2)
    return float(w @ a(y - mean, std**2) - w @ among @ w / 2)


def test_it_is_the_closed_form_of_a_normal_distribution_also_far_away() -> None:
    rng = np.random.default_rng(0)
    mean, std = 100 * rng.normal(size=(60, 2)), rng.gamma(1, size=(60, 2)) + 1e-3
    for far in (0.0, 1.0, 8.0, 300.0):
        y = mean + far * std * rng.choice([-1, 1], mean.shape)
        found = crps(Normals.single(mean, std), y)
        np.testing.assert_allclose(found, of_normal(mean, std, y), rtol=1e-9)


@pytest.mark.parametrize("std", [0.05, 0.8, 3.0])
def test_it_is_the_closed_form_of_a_log_normal_distribution(std: float) -> None:
    rng = np.random.default_rng(1)
    log = fit("log", np.exp(rng.normal(size=(50, 1))))
    mean, y = rng.normal(size=(40, 1)), np.exp(2 * rng.normal(size=(40, 1)))
    found = crps(log.density(mean, np.full(1, std)), y)
    np.testing.assert_allclose(found, of_log_normal(mean, np.array(std), y), rtol=1e-6)


def test_it_is_the_closed_form_of_a_mixture() -> None:
    rng = np.random.default_rng(2)
    w, mean = rng.dirichlet(np.ones(3)), 2 * rng.normal(size=(3, 40, 1))
    std = 10 ** rng.uniform(-3, 1, size=mean.shape)  # narrow ones beside wide ones
    y = 4 * rng.normal(size=(40, 1))
    found = crps(Normals(w, mean, std), y)[:, 0]
    expected = [of_mixture(w, mean[:, i, 0], std[:, i, 0], y[i, 0]) for i in range(40)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", list(CURVES))
@pytest.mark.parametrize("least", [0.0, -np.inf])
def test_it_is_twice_the_mean_pinball_loss_of_the_quantiles_as_delivered(
    name: str, least: float
) -> None:
    """CRPS = 2 int_0^1 pinball_p(F^-1(p), y) dp: with the values that intervals have."""
    rng = np.random.default_rng(3)
    training = np.exp(rng.normal(size=(80, 1)))
    scale = fit(name, training)
    scale = replace(scale, least=np.array([least]))
    mean = scale.forward(training[:4]) - np.array([[0.0], [0.0], [2.0], [2.0]]) * scale.spread
    density = scale.density(mean, 0.7 * scale.spread)
    y = np.array([[0.3], [2.0], [0.1], [6.0]])
    found = crps(density, y)[:, 0]
    for i in range(4):

        def pinball(p: float, i: int = i) -> float:
            q = float(density.quantile(p)[i, 0])
            return 2 * (p - (y[i, 0] < q)) * (y[i, 0] - q)

        kinks = [float(density.cdf(at)[i, 0]) for at in (y, np.full_like(y, least))]
        expected = quad(pinball, 0, 1, points=kinks, limit=400, epsabs=1e-9)[0]
        assert found[i] == pytest.approx(expected, rel=2e-5)


def test_a_target_below_the_support_costs_its_distance_too() -> None:
    log = fit("log", np.exp(np.arange(4.0))[:, None])
    density = log.density(np.zeros((3, 1)), np.full(1, 0.1))
    found = crps(density, np.array([[0.0], [-1.0], [-5.0]]))[:, 0]
    np.testing.assert_allclose(np.diff(found), [1.0, 4.0], rtol=1e-9)


def test_the_distribution_function_of_a_scale_inverts_its_quantiles() -> None:
    scale = fit("yeo_johnson", np.random.default_rng(5).normal(size=(50, 1)))
    density = scale.density(np.zeros((1, 1)), np.ones(1))
    assert isinstance(density, OnScale)
    for p in (0.01, 0.4, 0.99):
        assert density.cdf(density.quantile(p))[0, 0] == pytest.approx(p)
    log = fit("log", np.array([[1.0], [2.0]])).density(np.zeros((2, 1)), np.ones(1))
    assert log.cdf(np.array([[-1.0], [0.0]])).tolist() == [[0.0], [0.0]]


# --- mixtures of normals: closed form with one, draws with several, quantiles invert the cdf


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


# --- a mixture of densities on different scales, beside draws and beside one scale alone


RNG = np.random.default_rng(0)
WEIGHTS = np.array([0.25, 0.75])


def parts(curve: str = "shifted_log") -> list[OnScale]:
    """Two densities of three data, each on a scale fitted to other targets."""
    found = []
    for k in range(2):
        scale = fit(curve, np.exp(RNG.normal(size=(40, 1))) + k)
        found.append(scale.density(RNG.normal(size=(3, 1)), np.array([0.3 + k / 4])))
    return found


def drawn(each: list[OnScale], n: int = 200_000) -> np.ndarray:
    """Draws [n, 3] of the mixture."""
    kind = RNG.random(n) < WEIGHTS[1]
    own = [
        one.scale.inverse(one.normals.means[0] + one.normals.stds[0] * RNG.normal(size=(n, 3, 1)))
        for one in each
    ]
    return np.where(kind[:, None], own[1][..., 0], own[0][..., 0])


def test_moments_quantiles_and_crps_are_those_of_draws() -> None:
    each = parts()
    assert on_different_scales(each) == each
    whole, draws = Mixture(WEIGHTS, each), drawn(each)
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(whole.mean[:, 0] - draws.mean(0)) < 5 * error).all()
    np.testing.assert_allclose(whole.std[:, 0], draws.std(0), rtol=0.03)
    for p in (0.05, 0.5, 0.95):
        at = whole.quantile(p)
        np.testing.assert_allclose(whole.cdf(at), p, atol=1e-9)
        np.testing.assert_allclose((draws < at[:, 0]).mean(0), p, atol=0.005)
    y = draws[:1].T
    other = draws[RNG.permutation(len(draws))]
    expected = np.abs(draws - y[:, 0]).mean(0) - np.abs(draws - other).mean(0) / 2
    np.testing.assert_allclose(crps(whole, y)[:, 0], expected, rtol=0.02)


def test_parts_on_one_scale_have_the_mixture_on_it() -> None:
    first, second = parts("log")
    assert on_different_scales([first, second]) == []
    zeros = [np.zeros((3, 1))] * 2
    there, _ = first.mixed(WEIGHTS, [second], zeros)
    apart, _ = mixed_apart(WEIGHTS, [first, second], zeros)
    y = np.array([[1.0], [2.0], [0.5]])
    np.testing.assert_allclose(apart.log_density(y), there.log_density(y))
    np.testing.assert_allclose(apart.quantile(0.9), there.quantile(0.9))
    np.testing.assert_allclose(apart.mean, there.mean)
    np.testing.assert_allclose(apart.std, there.std)
    np.testing.assert_allclose(crps(apart, y), crps(there, y), rtol=1e-5)


def test_it_is_cut_and_mixed_like_any_density() -> None:
    whole = Mixture(WEIGHTS, parts())
    rows = np.array([2, 0])
    np.testing.assert_array_equal(whole.at(rows).mean, whole.mean[rows])
    np.testing.assert_array_equal(whole.column(0).std, whole.std)
    again, spread = whole.mixed(np.array([0.5, 0.5]), [whole], [np.zeros((3, 1))] * 2)
    np.testing.assert_allclose(again.quantile(0.3), whole.quantile(0.3))
    np.testing.assert_allclose(spread, 0, atol=1e-12)


# --- mean probabilities of Gaussian logits: MacKay's formula, draws, what a softmax cannot see


#: Draws of the brute force.
N = 200_000


def logits(n_classes: int, spread: float, seed: int = 0, n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(n, n_classes, generator=generator, dtype=torch.float64) * 1.5
    root = torch.randn(n, n_classes, n_classes, generator=generator, dtype=torch.float64)
    return means, spread * root @ root.mT / n_classes


def drawn_probabilities(means: Tensor, covariances: Tensor, temperature: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return log_sampled_mean(means, covariances, temperature, n_draws=N, generator=generator).exp()


def test_two_classes_are_mackays_formula() -> None:
    means, covariances = logits(2, 3.0)
    gap = means[:, 0] - means[:, 1]
    variance = covariances[:, 0, 0] + covariances[:, 1, 1] - 2 * covariances[:, 0, 1]
    expected = (gap / (0.7**2 + math.pi / 8 * variance).sqrt()).sigmoid()
    torch.testing.assert_close(pairwise_mean(means, covariances, 0.7)[:, 0], expected)


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_without_variance_the_mean_is_the_softmax(n_classes: int) -> None:
    means, covariances = logits(n_classes, 0.0)
    torch.testing.assert_close(pairwise_mean(means, covariances, 1.3), (means / 1.3).softmax(1))


@pytest.mark.parametrize("shared", [1.0, 1e6])
def test_a_shift_that_all_logits_share_changes_nothing(shared: float) -> None:
    """Neither in the means nor, however uncertain it is, in the covariances."""
    means, covariances = logits(5, 2.0)
    expected = pairwise_mean(means, covariances)
    found = pairwise_mean(means + shared, covariances + shared)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def test_classes_can_be_named_in_any_order() -> None:
    means, covariances = logits(4, 2.0)
    order = torch.tensor([2, 0, 3, 1])
    found = pairwise_mean(means[:, order], covariances[:, order][:, :, order])
    torch.testing.assert_close(found, pairwise_mean(means, covariances)[:, order])


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_two_classes_are_near_the_integral(spread: float) -> None:
    """MacKay's approximation of the mean of a sigmoid is within 0.02 at any variance."""
    means, covariances = logits(2, spread)
    found = pairwise_mean(means, covariances)[:, 0]
    for mean, covariance, p in zip(means, covariances, found, strict=True):
        gap = float(mean[0] - mean[1])
        deviation = math.sqrt(float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]))
        exact, _ = quad(
            lambda z, g=gap, s=deviation: math.exp(-z * z / 2) / (1 + math.exp(-g - s * z)), -9, 9
        )
        assert abs(float(p) - exact / math.sqrt(2 * math.pi)) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "most"), [(0.1, 0.03), (1.0, 0.1)])
def test_more_classes_are_near_the_mean_of_draws(spread: float, most: float) -> None:
    """An approximation: the bounds are on its bias, the draws are within 0.001 (one sigma)."""
    means, covariances = logits(4, spread)
    gap = (pairwise_mean(means, covariances) - drawn_probabilities(means, covariances)).abs().max()
    assert float(gap) < most


def test_draws_of_two_classes_have_the_mean_of_the_integral() -> None:
    means, covariances = torch.tensor([[0.8, 0.0]]).double(), torch.eye(2)[None].double()
    exact, _ = quad(
        lambda z: math.exp(-z * z / 2) / (1 + math.exp(-0.8 - math.sqrt(2) * z)), -9, 9
    )
    # One draw spreads by less than 0.5, so that five standard errors are 0.0056.
    assert (
        abs(float(drawn_probabilities(means, covariances)[0, 0]) - exact / math.sqrt(2 * math.pi))
        < 0.0056
    )


def test_probabilities_sum_to_one_also_for_logits_far_apart() -> None:
    means, covariances = logits(5, 50.0)
    found = pairwise_mean(means * 1e3, covariances)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found.sum(1), torch.ones(len(found), dtype=torch.float64))
