"""Scales of real targets: bijections, their slopes, fits, and densities mapped through them."""

import itertools
import json
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import lognorm, norm

from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import (
    CURVES,
    MOST_FITTED,
    OnScale,
    TargetScale,
    by_row,
    fit,
    identity,
)
from nas_evidence.spec.dataset import AskedScale, TargetScaleName

NAMES = tuple(CURVES)
#: Parameters within the bounds of a fit, and some at them.
PARAMETERS = {
    "identity": [()],
    "log": [()],
    "shifted_log": [(0.001,), (3.0,), (1e4,)],
    "yeo_johnson": [(0.0, 2.0), (1e-12, 1.0), (0.7, 1e-3), (1.0, 1.0), (2.0, 50.0)],
    "sinh_arcsinh": [(0.0, 1.0, 0.0, 1.0), (2.0, 0.1, 3.0, 0.2), (-1.0, 30.0, -3.0, 5.0)],
}
CASES = [(name, parameters) for name in NAMES for parameters in PARAMETERS[name]]


def scale_of(name: str, parameters: tuple[float, ...], n: int = 1) -> TargetScale:
    columns = np.repeat(np.array(parameters, float)[:, None], n, 1).reshape(-1, n)
    none = np.full(n, np.inf)
    return TargetScale(name, columns, np.zeros(n), np.ones(n), -none, -none, none)


def some_targets(name: str, n: int = 400) -> np.ndarray:
    """Return targets in every support, over nine decades."""
    rng = np.random.default_rng(0)
    y = 10 ** rng.uniform(-4, 5, n)
    return (y if "log" in name else y * rng.choice([-1, 1], n))[:, None]


def skewed(n: int = 500) -> np.ndarray:
    return np.exp(6 + 0.8 * np.random.default_rng(1).normal(size=(n, 1)))


def log_likelihood(name: str, y: np.ndarray) -> float:
    scale = fit(name, y)
    z = scale.standardised(y)
    return float(norm.logpdf(z).sum() + scale.log_jacobian(y, y.std(0)).sum())


def test_the_names_of_the_study_file_are_the_curves() -> None:
    assert get_args(TargetScaleName) == NAMES
    assert get_args(AskedScale) == (*NAMES, "auto")
    assert all(len(curve.parameters) <= 4 for curve in CURVES.values())


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_the_inverse_of_a_scale_undoes_it(name: str, parameters: tuple[float, ...]) -> None:
    """Rounding of g by one part in 1e16 moves y by 1e-16 |g| / g'(y)."""
    scale, y = scale_of(name, parameters), some_targets(name)
    g, slope = scale.forward(y), np.exp(scale.log_slope(y))
    error = np.abs(scale.inverse(g) - y)
    assert (error <= 1e-13 * (np.abs(y) + np.abs(g) / slope + sum(map(abs, parameters)))).all()


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_the_log_slope_is_that_of_automatic_differentiation(
    name: str, parameters: tuple[float, ...]
) -> None:
    y = torch.from_numpy(some_targets(name)).requires_grad_()
    p = torch.tensor(parameters, dtype=torch.float64)[:, None]
    curve = CURVES[name]
    (slope,) = torch.autograd.grad(curve.forward(y, p, torch).sum(), y)
    found = scale_of(name, parameters).log_slope(y.detach().numpy())
    np.testing.assert_allclose(found, slope.log().numpy(), rtol=1e-9, atol=1e-9)
    assert (slope > 0).all()


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_torch_and_numpy_have_one_formula(name: str, parameters: tuple[float, ...]) -> None:
    scale, y = scale_of(name, parameters), some_targets(name)
    g = scale.forward(y)
    p = torch.from_numpy(scale.parameters)
    found = CURVES[name].inverse(torch.from_numpy(g), p, torch).numpy()
    rounding = 1e-15 * sum(map(abs, parameters))  # of what is subtracted last
    np.testing.assert_allclose(found, scale.inverse(g), rtol=1e-12, atol=rounding)


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_a_scale_is_onto_the_real_line_and_increases(
    name: str, parameters: tuple[float, ...]
) -> None:
    g = np.linspace(-30, 30, 61)[:, None]
    y = scale_of(name, parameters).inverse(g)
    assert np.isfinite(y).all()
    assert (np.diff(y, axis=0) >= 0).all()
    inside = np.abs(g) < 8  # beyond, 1e4 hides the shift in float64
    np.testing.assert_allclose(
        scale_of(name, parameters).forward(y)[inside], g[inside], rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("value", [0.0, -1.0, -1e30])
def test_what_is_outside_the_support_has_no_density(value: float) -> None:
    scale = fit("log", skewed())
    y = np.array([[value], [1.0]])
    assert scale.holds(y).tolist() == [False, True]
    assert scale.log_jacobian(y, np.ones(1))[0] == -np.inf
    found = scale.density(np.zeros((2, 1)), np.ones(1)).log_density(y)
    assert found[0] == -np.inf
    assert np.isfinite(found[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_network_sees_mean_0_and_variance_1(name: str) -> None:
    y = np.concatenate([skewed(), 1 + skewed()[::-1] ** 0.3], 1)
    z = fit(name, y).standardised(y)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-10)
    np.testing.assert_allclose(z.std(0), 1, atol=1e-10)


def test_identity_is_the_standardisation_of_the_data_to_the_last_bit() -> None:
    y = skewed()
    scale = fit("identity", y)
    assert np.array_equal(scale.standardised(y), (y - y.mean(0)) / y.std(0))
    assert (scale.log_jacobian(y, y.std(0)) == 0).all()
    normals = Normals.single(y, np.ones(1))
    assert scale.mixture(normals) == replace(normals, least=scale.least)
    again = identity(y.mean(0), y.std(0), scale.least)
    assert np.array_equal(again.standardised(y), scale.standardised(y))


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", ["shifted_log", "yeo_johnson", "sinh_arcsinh"])
@pytest.mark.parametrize(
    "y",
    [
        skewed(),
        np.random.default_rng(2).normal(size=(300, 1)),
        np.random.default_rng(3).poisson(2.0, (300, 1)).astype(float),
        -skewed(200),
        np.random.default_rng(4).standard_t(3, (300, 1)),
    ],
    ids=["skewed", "normal", "counts", "negative", "heavy"],
)
def test_no_scale_with_parameters_is_much_less_likely_than_identity(
    name: str, y: np.ndarray
) -> None:
    """Each has the identity as a limit, a thousand standard deviations away or closer."""
    assert log_likelihood(name, y) >= log_likelihood("identity", y) - 0.005 * len(y)


@pytest.mark.slow
def test_no_other_parameter_is_likelier_than_the_fitted_one() -> None:
    """Brute force over a fine grid in the bounds of the fit."""
    y = skewed(200)
    fitted = log_likelihood("shifted_log", y)
    for c in np.geomspace(1e-3 * y.std(), 1e3 * y.std(), 2000):
        g = np.log(y + c)
        other = norm.logpdf((g - g.mean()) / g.std()) - g - math.log(g.std()) + np.log(y.std())
        assert other.sum() <= fitted + 1e-6


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", [1e-6, 100.0])
def test_densities_do_not_depend_on_the_unit_of_the_targets(name: str, unit: float) -> None:
    assert log_likelihood(name, unit * skewed()) == pytest.approx(
        log_likelihood(name, skewed()), abs=1e-3
    )


def test_many_zeros_do_not_draw_the_shift_to_them() -> None:
    """The likelihood of log(y + c) grows without bound as c falls to 0 where y is often 0."""
    rng = np.random.default_rng(5)
    y = np.where(rng.random(400) < 0.4, 0.0, 5 + rng.exponential(20, 400))[:, None]
    least = y[y > 0].min()
    assert fit("shifted_log", y).parameters[0, 0] >= least * (1 - 1e-9)
    assert fit("yeo_johnson", y).parameters[1, 0] >= least * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fit_is_deterministic_and_does_not_depend_on_the_order(name: str) -> None:
    y = skewed(MOST_FITTED + 1000)
    one, again, other = fit(name, y), fit(name, y), fit(name, y[::-1])
    assert np.array_equal(one.parameters, again.parameters)
    assert np.array_equal(one.parameters, other.parameters)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0], [1.0, 2.0], [1e-30, 1e30], [1.0, 1e5] * 9])
def test_few_and_extreme_targets_have_a_finite_scale(name: str, values: list[float]) -> None:
    y = np.array(values)[:, None]
    scale = fit(name, y)
    assert np.isfinite(scale.standardised(y)).all()
    assert np.isfinite(scale.log_jacobian(y, np.ones(1))).all()
    assert (scale.spread > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_json_keeps_a_scale_to_the_last_bit(name: str) -> None:
    scale = fit(name, np.concatenate([skewed(), skewed() - 300], 1) if name == "identity"
                else np.concatenate([skewed(), 2 * skewed()], 1))  # fmt: skip
    again = TargetScale.from_json(json.loads(json.dumps(scale.to_json())))
    assert again.name == name
    for field in ("parameters", "centre", "spread", "least", "lowest", "highest"):
        assert np.array_equal(getattr(again, field), getattr(scale, field))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters"), CASES[1:])
def test_the_density_integrates_to_one_and_has_the_mean_and_the_spread_of_integrals(
    name: str, parameters: tuple[float, ...]
) -> None:
    scale = scale_of(name, parameters)
    weights = np.array([0.3, 0.7])
    normals = Normals(weights, np.array([[[0.4]], [[-0.2]]]), np.array([[[0.5]], [[0.3]]]))
    found = scale.mixture(normals)
    assert isinstance(found, OnScale)
    # Between quantiles, since y may span many decades.
    ends = [float(found.quantile(q)[0, 0]) for q in (1e-9, 0.01, 0.1, 0.5, 0.9, 0.99, 1 - 1e-9)]

    def integral(power: int) -> float:
        return sum(
            quad(lambda y: y**power * math.exp(float(found.log_density(np.array([[y]]))[0])), a, b,
                 epsabs=0, epsrel=1e-9, limit=200)[0]
            for a, b in itertools.pairwise(ends)
        )  # fmt: skip

    total, mean, square = (integral(k) for k in range(3))
    size = math.sqrt(square)
    assert total == pytest.approx(1, abs=1e-6)
    assert float(found.mean[0, 0]) == pytest.approx(mean, abs=1e-5 * size)
    assert float(found.std[0, 0]) == pytest.approx(
        math.sqrt(max(0.0, square - mean**2)), abs=1e-3 * size
    )


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_the_logarithm_has_the_closed_form_of_the_log_normal_distribution(spread: float) -> None:
    mean = np.array([[2.0], [-1.0]])
    found = scale_of("log", ()).density(mean, np.array([spread]))
    exact = lognorm(s=spread, scale=np.exp(mean))
    np.testing.assert_allclose(found.mean, exact.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.std, exact.std(), rtol=1e-9)
    np.testing.assert_allclose(found.interval(0.9)[0], exact.ppf(0.05), rtol=1e-12)
    y = np.array([[0.5], [7.0]])
    np.testing.assert_allclose(found.log_density(y), exact.logpdf(y)[:, 0], rtol=1e-12)


def test_a_mean_that_is_not_finite_is_the_median_and_is_counted() -> None:
    found = scale_of("log", ()).density(np.array([[800.0], [1.0]]), np.array([[0.1], [0.1]]))
    assert found.n_medians == 1
    assert found.mean[0, 0] == found.quantile(0.5)[0, 0]


@pytest.mark.parametrize("name", ["shifted_log", "yeo_johnson", "sinh_arcsinh"])
def test_no_interval_goes_below_0_where_no_target_does(name: str) -> None:
    y = np.random.default_rng(6).exponential(3.0, (300, 1))
    y[:40] = 0.0
    scale = fit(name, y)
    wide = scale.density(scale.forward(y), 3 * scale.spread)
    low, high = wide.interval(0.95)
    assert low.min() == 0
    assert (high > low).all()
    signed = fit(name, y - 1)
    assert signed.density(signed.forward(y - 1), 3 * signed.spread).interval(0.95)[0].min() < 0


@pytest.mark.parametrize("name", NAMES[1:])
def test_means_on_a_scale_are_held_half_a_spread_beyond_its_training_targets(name: str) -> None:
    y = skewed(60)
    scale = fit(name, y)
    g = scale.forward(y)
    ends = np.array([[g.min()], [g.max()]])
    out = np.array([[-1.0], [1.0]])
    far = scale.density(np.concatenate([g, ends + 9e3 * out]), scale.spread)
    half = 0.5 * g.std() * out
    np.testing.assert_allclose(far.normals.means[0], np.concatenate([g, ends + half]), rtol=1e-12)


def test_means_on_the_scale_identity_are_not_held() -> None:
    far = np.array([[-9e9], [9e9]])
    y = skewed(60) - 500  # of both signs: a mean of targets from 0 on is cut at 0
    assert np.array_equal(fit("identity", y).density(far, np.ones((2, 1))).mean, far)


def test_rows_with_scales_of_their_own_are_as_each_alone() -> None:
    y = np.concatenate([skewed(60), skewed(60)[::-1] ** 0.5], 1)
    halves = np.arange(30), np.arange(30, 60)
    scales = [fit("yeo_johnson", y[rows]) for rows in halves]
    whole = by_row(list(zip(halves, scales, strict=True)), 60)
    for rows, scale in zip(halves, scales, strict=True):
        assert np.array_equal(whole.standardised(y)[rows], scale.standardised(y[rows]))
        alone, some = (
            scale.density(y[rows], np.ones(2)),
            whole.at(rows).density(y[rows], np.ones(2)),
        )
        assert np.array_equal(alone.mean, some.mean)
        assert np.array_equal(alone.interval(0.9), some.interval(0.9))
