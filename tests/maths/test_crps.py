"""The CRPS is that of closed forms, of draws, and of the definition; cut off and mapped too."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from nas_evidence.maths.crps import crps
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
