"""Claims about the race: probabilities that hold, and replicates where they decide."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import scipy.special
from scipy import integrate, stats

from nas_evidence.maths import finalists
from nas_evidence.maths.finalists import (
    _CEILING,
    _NORMAL,
    FAMILY_SPREAD,
    N_DRAWS,
    NOISE_RATIO,
    _Grid,
    _log_below,
    _log_density,
    _log_given_s,
    _log_prior,
    _normal_below,
    next_replicates,
    posterior_of,
)
from nas_evidence.spec.study import derive_seed

#: Standard errors that a frequency over the draws may be off.
K = 4.0


def test_two_architectures_with_many_repeats_differ_as_a_normal_says() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=400)
    noise = (noise - noise.mean()) / noise.std()
    values = [noise + shift for shift in (0.06, 0.0, -3.0, -4.0, -5.0, -7.0)]  # a wide prior
    found = posterior_of(values, ["mlp"] * 6, seed=1)
    expected = stats.norm.cdf(0.06 / np.sqrt(2 / 400))
    assert abs(found.best[0] - expected) < 0.03
    assert found.noise == pytest.approx([1.0] * 6, rel=0.1)


def test_probabilities_add_up_and_the_worse_half_has_none() -> None:
    values = [[float(i), i + 0.3, i - 0.2] if i > 16 else [float(i)] for i in range(20)]
    found = posterior_of(values, ["mlp", "cnn"] * 10, seed=0)
    assert found.best.sum() == pytest.approx(1.0)
    assert (found.best[:10] == 0).all()
    assert found.draws.shape == (N_DRAWS, 20)


def test_a_winner_of_one_seed_is_expected_to_fall_back() -> None:
    rng = np.random.default_rng(3)
    values = [[x, x + rng.normal(), x + rng.normal()] for x in rng.normal(size=9)]
    values.append([max(map(np.mean, values)) + 3.0])
    found = posterior_of(values, ["mlp"] * 10, seed=0)
    assert found.draws[:, -1].mean() < values[-1][0] - 0.5


def test_the_noise_of_a_family_is_its_own() -> None:
    rng = np.random.default_rng(0)
    calm = [list(3 + 0.01 * rng.normal(size=6)) for _ in range(4)]
    loud = [list(3 + 1.0 * rng.normal(size=6)) for _ in range(4)]
    found = posterior_of([*calm, *loud], ["mlp"] * 4 + ["cnn"] * 4, seed=0)
    assert found.noise[0] < 0.2 * found.noise[-1]


@pytest.mark.parametrize("values", [[[1.0, 2.0]], [[1.0], [2.0]], [[1.0, 1.0], [2.0, 2.0]]])
def test_without_noise_to_measure_nothing_is_said(values: list[list[float]]) -> None:
    assert posterior_of(values, ["mlp"] * len(values), seed=0) is None


def test_replicates_go_to_those_that_may_be_best_and_repeat_with_the_seed() -> None:
    values = [[3.0, 3.1, 2.9], [3.05, 2.95, 3.0], [0.0, 0.1, 0.2], [-1.0, -1.1, -0.9]]
    found = posterior_of(values, ["mlp"] * 4, seed=0)
    chosen = next_replicates(found, [0, 1, 2, 3], 40, seed=5)
    assert set(chosen) == {0, 1}
    assert 10 <= chosen.count(0) <= 30
    assert next_replicates(found, [0, 1, 2, 3], 40, seed=5) == chosen


def test_of_thousands_those_far_behind_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [[float(i), i + 0.3, i - 0.2] if i > 16 else [float(i)] for i in range(20)]
    whole = posterior_of(values, ["mlp"] * 20, seed=0)
    monkeypatch.setattr(finalists, "MOST_DRAWN", 8)
    found = posterior_of(values, ["mlp"] * 20, seed=0)
    assert np.isneginf(found.draws[:, :12]).all()
    assert np.isfinite(found.draws[:, 12:]).all()
    np.testing.assert_allclose(found.best, whole.best, atol=0.03)


def test_the_unit_of_the_score_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    values = [
        mu + 0.5 * rng.normal(size=3 if i < 4 else 1) for i, mu in enumerate(rng.normal(size=9))
    ]
    families = ["mlp", "cnn", "linear"] * 3
    one = posterior_of(values, families, seed=4)
    other = posterior_of([1000 + 70 * own for own in values], families, seed=4)
    np.testing.assert_allclose(one.best, other.best, atol=2 / N_DRAWS)
    np.testing.assert_allclose(70 * one.noise, other.noise, rtol=1e-6)


def test_one_of_the_worse_half_by_a_single_noisy_seed_may_still_be_the_best() -> None:
    rng = np.random.default_rng(1)
    values = [list(3.0 * rng.normal(size=3)) for _ in range(5)]
    values += [[own] for own in (min(map(min, values)) - 0.1 * np.arange(1, 13))]
    found = posterior_of(values, ["mlp"] * 17, seed=0)
    assert 0.0 < found.best[-6:].sum() < found.best[:5].sum()


@pytest.mark.parametrize("shape", [_NORMAL, _CEILING])
def test_density_and_distribution_of_a_mean_are_integrals_over_the_true_score(shape: int) -> None:
    y, m, t, u = 0.3, 0.8, 0.7, 0.4

    def density(mu: float) -> float:
        of_mu = stats.norm.pdf(mu, m, t) if shape == _NORMAL else stats.expon.pdf(m - mu, 0, t)
        return float(of_mu)

    ends = (-9.0, m if shape == _CEILING else 9.0)
    wanted = [
        integrate.quad(lambda mu, of=of: density(mu) * of(y, mu, u), *ends, points=[m, y])[0]
        for of in (stats.norm.pdf, stats.norm.cdf)
    ]
    given = (np.array(m), np.array(t), np.array(u**2), shape)
    found = [float(np.exp(log(y, *given))) for log in (_log_density, _log_below)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_prior_is_flat_in_m_for_both_shapes_and_normal_in_the_logarithms() -> None:
    m = np.stack([np.linspace(0, 3, 7), np.linspace(0, 2, 7) ** 2])
    s = np.geomspace(0.01, 9, 200)
    grid = _Grid(m, np.gradient(m, axis=1), np.array([1.0]), s)
    by_m = np.exp(_log_prior(grid))[:, :, 0]
    at_ratio = np.argmin(np.abs(s - NOISE_RATIO))
    np.testing.assert_allclose(by_m[..., at_ratio].sum(1), grid.step.sum(1), rtol=0.01)
    np.testing.assert_allclose(by_m[0] / by_m[1], (grid.step[0] / grid.step[1])[:, None] + 0 * s)
    given = np.exp(_log_given_s(grid))[at_ratio]
    assert given.sum() == pytest.approx(1.0)
    spread = np.sqrt((given * np.log(s / s[at_ratio]) ** 2).sum())
    assert spread == pytest.approx(FAMILY_SPREAD, rel=1e-2)


@pytest.mark.parametrize("m", [1.0, -2.0, -50.0])
def test_a_cut_off_normal_has_its_distribution_near_and_far_out(m: float) -> None:
    n, centre, u = 20_000, 0.5, 1.5
    cuts = np.full((n, 1), m)
    rng = np.random.default_rng(0)
    drawn = _normal_below(rng, np.full((n, 1), centre), np.full((n, 1), u), cuts)[:, 0]
    assert drawn.max() <= m
    z = (m - centre) / u
    mean = centre - u * np.exp(stats.norm.logpdf(z) - stats.norm.logcdf(z))
    assert abs(drawn.mean() - mean) < K * drawn.std() / np.sqrt(n) + 2 * u / abs(z) ** 3 * (z < -9)


@pytest.mark.slow
def test_a_claim_holds_as_often_as_it_says_in_studies_drawn_from_the_model() -> None:
    rng = np.random.default_rng(0)
    claims, hits = [], []
    for _ in range(150):
        truth = rng.normal(size=8) if rng.random() < 0.5 else -rng.exponential(size=8)
        values = [truth[i] + 0.5 * rng.normal(size=3) for i in range(8)]
        found = posterior_of(values, ["mlp"] * 8, seed=1)
        first = int(np.argmax([v.mean() for v in values]))
        claims.append(found.best[first])
        hits.append(first == truth.argmax())
    error = np.sqrt(sum(p * (1 - p) for p in claims)) / 150
    assert abs(np.mean(hits) - np.mean(claims)) < K * error


# --- the posterior of the finalists against sums over a grid of all unknowns


Array = npt.NDArray[np.float64]


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 9])
@pytest.mark.parametrize("draw", [0, 1])
def test_it_is_the_sum_over_a_grid_of_all_unknowns(n: int, draw: int) -> None:
    """Five architectures, and nine of which the worse ones are censored; half of it is noise."""
    random = np.random.default_rng(derive_seed(0, "finalists", n, draw))
    true = random.normal(size=n)
    replicates = [list(m + 0.8 * random.normal(size=3 if n < 6 else 2)) for m in true]
    found = posterior_of(replicates, ["one"] * n, seed=0)
    best, centre = brute_force(replicates, n_exact=6)
    # 4 errors of the draws, 0.01 of grids
    assert np.abs(found.best - best).max() < 4 * 0.5 / N_DRAWS**0.5 + 0.01
    error = found.draws.std(0).max() / N_DRAWS**0.5
    assert np.abs(found.draws.mean(0) - centre).max() < 4 * error + 0.01


def brute_force(replicates: list[list[float]], n_exact: int) -> tuple[Array, Array]:
    """Return the probability of each architecture of one family to be the best, and means [n].

    The true scores are summed over a grid, for each cell of a grid of the model's other unknowns.
    The common noise is integrated out by hand: log s_f given t is N(log q t, 1 + w²). All but the
    best `n_exact` enter as below the worst of these.
    """
    means = np.array([np.mean(one) for one in replicates])
    within = np.array([len(one) * np.var(one) for one in replicates])[:, None]
    r = np.array([[len(one)] for one in replicates])
    exact = means[:, None] >= np.sort(means)[-n_exact:][0]
    cut, spread = means[exact[:, 0]].min(), means[exact[:, 0]].std() + 0.3
    low, high = means.min() - 4 * spread, means.max() + 4 * spread
    mu, m = np.linspace(low - spread, high + spread, 400), np.linspace(low, high, 41)
    away = mu[:, None] - m  # [mu, M]
    cells: list[tuple[Array, Array, Array]] = []
    for t in spread * np.geomspace(0.05, 12, 19):
        for s in np.geomspace(0.1, 1.6, 17):
            log_s = -0.5 * np.log(s / t / NOISE_RATIO) ** 2 / (1 + FAMILY_SPREAD**2)
            likely = -0.5 * (r * (means[:, None] - mu) ** 2 + within) / s**2 - r * np.log(s)
            left = scipy.special.log_ndtr((cut - mu) / (s / np.sqrt(r)))
            given = np.exp(np.where(exact, likely, left))  # [n, mu]
            for prior in (
                np.exp(-0.5 * (away / t) ** 2) / (t * math.sqrt(2 * math.pi)),
                np.where(away < 0, np.exp(np.minimum(away, 0) / t) / t, 0.0),
            ):
                weight = log_s + np.log(np.maximum(given @ prior, 1e-300)).sum(0)  # [M]
                cells.append((weight, np.exp(likely), prior))
    top = max(float(weight.max()) for weight, _, _ in cells)
    best, centre, total = np.zeros(len(means)), np.zeros(len(means)), 0.0
    for weight, likely_, prior in cells:
        for k in np.flatnonzero(weight > top - 7):
            posterior = likely_ * prior[:, k]
            posterior /= posterior.sum(1, keepdims=True)
            below = np.maximum(np.cumsum(posterior, 1) - 0.5 * posterior, 1e-300)
            others = np.exp(np.log(below).sum(0) - np.log(below))
            share = math.exp(weight[k] - top)
            best += share * (posterior * others).sum(1)
            centre, total = centre + share * posterior @ mu, total + share
    return np.asarray(best / best.sum()), np.asarray(centre / total)
