"""A mixture of densities on different scales, beside draws and beside one scale alone."""

import numpy as np

from nas_evidence.maths.crps import crps
from nas_evidence.maths.mixed_density import Mixture, mixed_apart, on_different_scales
from nas_evidence.maths.target_scale import OnScale, fit

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
