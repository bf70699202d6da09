"""Claims about the posterior over architectures: formulas, priors, and what must not matter."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import scipy.special
from scipy import integrate, stats
from scipy.optimize import approx_fprime
from scipy.spatial.distance import cdist

from nas_evidence.maths import architecture_posterior, finalists
from nas_evidence.maths.architecture_posterior import (
    FAR,
    MOST_KNOWN,
    ArchitecturePosterior,
    Floats,
    Kernel,
    Prior,
    Warp,
    _distances,
    _loss,
    _Observations,
)
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

ORDERED = [True, True, False]
HYPER = Kernel(1.3, 0.2, 0.4, np.array([0.5, 0.8, 1.1]))


def searched(n: int, seed: int = 0) -> tuple[Floats, list[Floats]]:
    """Return architectures of two families, one in five trained three times, and their scores."""
    rng = np.random.default_rng(seed)
    points = rng.random((n, 3))
    points[:, 2] = rng.integers(2, size=n)
    truth = np.sin(4 * points[:, 0]) + points[:, 1] + 0.5 * points[:, 2]
    return points, [truth[i] + 0.1 * rng.normal(size=1 if i % 5 else 3) for i in range(n)]


def covariance(one: Floats, other: Floats, hyper: Kernel, slope: float = 0.0) -> Floats:
    """Return the prior covariance of m + g, written down again: a family is a corner."""

    def at(points: Floats) -> Floats:
        corners = np.eye(2)[points[:, 2].astype(int)] / np.sqrt(2)
        return np.column_stack([points[:, :2] / hyper.lengths[:2], corners / hyper.lengths[2]])

    r = np.sqrt(5) * cdist(at(one), at(other))
    trend = 1 + slope**2 * sum(np.outer(one[:, k] - 0.5, other[:, k] - 0.5) for k in (0, 1))
    return trend + hyper.amplitude**2 * (1 + r + r**2 / 3) * np.exp(-r)


@pytest.mark.parametrize("slope", [0.0, 1.5])
def test_mean_draws_and_predictions_are_those_of_the_joint_normal_distribution_of_all_scores(
    slope: float,
) -> None:
    points, scores = searched(12)
    found = ArchitecturePosterior(points, ORDERED, scores, HYPER, prior=Prior(slope=slope))
    new = searched(4, seed=1)[0]
    everywhere = np.concatenate([points, new])
    of_each = np.repeat(np.arange(12), [len(own) for own in scores])
    truth = covariance(everywhere, everywhere, HYPER, slope) + HYPER.own**2 * np.eye(16)
    seen = truth[np.ix_(of_each, of_each)] + HYPER.noise**2 * np.eye(len(of_each))
    gain = truth[:, of_each] @ np.linalg.inv(seen)
    mean = gain @ found.warp.z(np.concatenate(scores))
    left = truth - gain @ truth[of_each]
    assert found.mean() == pytest.approx(mean[:12])
    predicted, deviation = found.predict(new)
    assert predicted == pytest.approx(mean[12:])
    assert deviation == pytest.approx(np.sqrt(np.diag(left)[12:]))
    drawn = found.warp.z(found.draws(40_000, seed=0))
    assert drawn.mean(0) == pytest.approx(mean[:12], abs=0.01)
    assert np.cov(drawn.T) == pytest.approx(left[:12, :12], abs=0.01)


@pytest.mark.parametrize("prior", [Prior(), Prior((1.0, 0.1, 0.8), (0.5, 0.3, 0.3), slope=1.0)])
def test_hyperparameters_are_fitted_to_the_density_of_all_scores_times_the_prior(
    prior: Prior,
) -> None:
    points, scores = searched(10)
    data = _Observations(
        points=points,
        z=np.array([own.mean() for own in scores]),
        n=np.array([float(len(own)) for own in scores]),
        within=np.array([((own - own.mean()) ** 2).sum() for own in scores]),
    )
    distances = _distances(points, points, np.array(ORDERED))
    of_each = np.repeat(np.arange(10), [len(own) for own in scores])

    def directly(log: Floats) -> float:
        b, t, s = np.exp(log[:3])
        smooth = covariance(points, points, Kernel(b, t, s, np.exp(log[3:])), prior.slope)
        truth = smooth + t**2 * np.eye(10)
        seen = truth[np.ix_(of_each, of_each)] + s**2 * np.eye(len(of_each))
        values = np.concatenate(scores)
        likelihood = stats.multivariate_normal.logpdf(values, np.zeros(len(values)), seen)
        return -float(likelihood + stats.norm.logpdf(log, *prior.of_logarithms(3)).sum())

    start = prior.of_logarithms(3)[0]
    other = start + np.array([0.2, -0.3, 0.4, 0.1, -0.5, 0.3])
    more = data, distances, prior.of_trend(points, points, np.array(ORDERED)), prior
    ours = _loss(other, *more)[0] - _loss(start, *more)[0]
    assert ours == pytest.approx(directly(other) - directly(start))
    slope = approx_fprime(other, directly, 1e-6)
    assert _loss(other, *more)[1] == pytest.approx(slope, abs=1e-4)


def test_one_score_is_enough_and_none_is_refused_with_a_remedy() -> None:
    found = ArchitecturePosterior([[0.5, 0.5, 0.0]], ORDERED, [[3.0]])
    assert found.warp.score(found.mean()) == pytest.approx([3.0])
    with pytest.raises(ValueError, match="needs at least one score"):
        ArchitecturePosterior(np.empty((0, 3)), ORDERED, [])


def test_the_order_of_architectures_and_replicates_does_not_matter() -> None:
    points, scores = searched(15)
    order = np.random.default_rng(0).permutation(15)
    found = ArchitecturePosterior(points, ORDERED, scores)
    other = ArchitecturePosterior(points[order], ORDERED, [scores[i][::-1] for i in order])
    assert other.mean() == pytest.approx(found.mean()[order], abs=1e-5)


@pytest.mark.parametrize(("unit", "shift"), [(1000.0, 0.0), (1e-3, 7.0)])
def test_unit_and_origin_of_the_score_do_not_matter(unit: float, shift: float) -> None:
    points, scores = searched(15)
    found = ArchitecturePosterior(points, ORDERED, scores)
    other = ArchitecturePosterior(points, ORDERED, [unit * own + shift for own in scores])
    assert other.mean() == pytest.approx(found.mean(), abs=1e-4)
    assert other.warp.score(other.mean()) == pytest.approx(
        unit * found.warp.score(found.mean()) + shift, rel=1e-3
    )


def test_a_collapsed_network_neither_bends_the_surface_nor_is_taken_for_a_good_one() -> None:
    points, scores = searched(25)
    best = int(np.argmax([own.mean() for own in scores]))
    near = points[best] + np.array([0.02, 0.0, 0.0])
    before = ArchitecturePosterior(points, ORDERED, scores, HYPER)
    after = ArchitecturePosterior(
        np.vstack([points, near]), ORDERED, [*scores, np.array([-1e6])], HYPER
    )
    for found in (before, after):  # the same unit for both
        found.warp = before.warp
    assert after.warp.score(after.predict(near)[0]) == pytest.approx(
        before.warp.score(before.predict(near)[0]), abs=0.3 * before.warp.unit
    )
    assert after.mean()[-1] < after.mean()[:-1].min() - FAR


def test_a_network_far_above_all_others_keeps_its_own_score_if_the_prior_says_so() -> None:
    points, scores = searched(25)
    best = int(np.argmax([own.mean() for own in scores]))
    points = np.vstack([points, points[best] + np.array([0.02, 0.0, 0.0])])
    scores = [*scores, np.array([max(own.mean() for own in scores) + 4])]
    pulled, alone = (
        ArchitecturePosterior(points, ORDERED, scores, HYPER, prior=Prior(above=above))
        for above in (False, True)
    )
    lost = [scores[-1][0] - found.warp.score(found.mean())[-1] for found in (pulled, alone)]
    assert 0 < lost[1] < 0.1 * lost[0]
    assert alone.mean()[best] < pulled.mean()[best]  # and lifts no neighbour


def test_what_is_warped_comes_back() -> None:
    warp, scores = Warp(2.0, 0.5), np.array([-1e9, -3.0, 1.9, 2.0, 2.1, 50.0])
    assert warp.score(warp.z(scores)) == pytest.approx(scores)
    assert (np.diff(warp.z(scores)) > 0).all()


def test_a_better_neighbourhood_outweighs_a_small_lead() -> None:
    points = np.array([[x, 0.5, 0.0] for x in np.linspace(0, 1, 21)])
    scores = [[float(-abs(x - 0.8) * 4)] for x in points[:, 0]]
    scores[2] = [0.05]  # a lucky seed among bad neighbours
    assert ArchitecturePosterior(points, ORDERED, scores).mean().argmax() == 16


@pytest.mark.slow
def test_the_gain_of_one_trial_is_the_integral_over_its_score() -> None:
    points, scores = searched(20)
    found = ArchitecturePosterior(points, ORDERED, scores, HYPER)
    new = np.array([[0.4, 1.0, 1.0]])
    everywhere = np.concatenate([points, new])
    of_each = np.repeat(np.arange(20), [len(own) for own in scores])
    truth = covariance(everywhere, everywhere, HYPER)
    seen = (truth + HYPER.own**2 * np.eye(21))[np.ix_(of_each, of_each)]
    gain = truth[:, of_each] @ np.linalg.inv(seen + HYPER.noise**2 * np.eye(len(of_each)))
    mean = gain @ found.warp.z(np.concatenate(scores))
    left = (truth - gain @ truth[of_each])[:, -1]
    spread = np.sqrt(left[-1] + HYPER.own**2 + HYPER.noise**2)

    def best(u: float) -> float:
        return float((mean + left / spread * u).max() * stats.norm.pdf(u))

    expected = integrate.quad(best, -9, 9, limit=500, epsabs=1e-9)[0] - mean[:20].max()
    assert found.expected_gain(new, 50_000) == pytest.approx(expected * found.warp.unit, rel=0.02)


def test_a_place_that_looks_better_untried_gains_at_least_what_it_is_ahead() -> None:
    """The best is of what was tried: E max(a, b) - a is at least E b - a (Jensen)."""
    points = np.linspace(0.0, 0.5, 9)[:, None]
    scores = [[5 * x] for x in points[:, 0]]
    hyper = Kernel(0.5, 0.1, 0.1, np.array([0.5]))
    found = ArchitecturePosterior(points, [True], scores, hyper, prior=Prior(slope=3.0))
    new = np.array([[0.8]])
    known = found.predict(points)[0].max()  # means of m + g
    ahead = found.warp.unit * (found.predict(new)[0].item() - known)
    assert ahead > 0.5
    assert found.expected_gain(new) >= ahead - 1e-9


def test_what_is_tried_twice_in_one_place_gains_less_than_two_places() -> None:
    points, scores = searched(20)
    found = ArchitecturePosterior(points, ORDERED, scores, HYPER)
    one = np.array([[0.4, 1.0, 1.0]])
    beside, apart = one + np.array([0.001, 0.0, 0.0]), np.array([[0.4, 1.0, 0.0]])
    gain = found.expected_gain(one)
    assert gain < found.expected_gain(np.vstack([one, beside])) < 1.7 * gain
    assert found.expected_gain(np.vstack([one, apart])) > gain


def test_of_thousands_those_left_out_have_their_neighbours_and_their_own_score() -> None:
    assert MOST_KNOWN == 1000
    points, scores = searched(120)
    exact = ArchitecturePosterior(points, ORDERED, scores, HYPER)
    fewer = ArchitecturePosterior(points, ORDERED, scores, HYPER, most_known=80)
    assert fewer.mean().shape == (120,)
    assert fewer.mean() == pytest.approx(exact.mean(), abs=0.15)
    assert fewer.mean().argmax() == exact.mean().argmax()


def test_an_architecture_left_out_counts_all_its_seeds() -> None:
    """Three seeds weigh as three: the noise of their mean is a third."""
    points, scores = searched(40)
    found = ArchitecturePosterior(points, ORDERED, scores, HYPER, most_known=20)
    rest = found._rest
    n = np.array([len(own) for own in scores], float)[rest]
    assert {1.0, 3.0} == set(n.tolist())
    mean, deviation = found.predict(points[rest])
    own = np.array([found.warp.z(scores[i]).mean() for i in rest])
    kept = 1 / (1 + HYPER.noise**2 / n / deviation**2)
    assert found.mean()[rest] == pytest.approx(mean + kept * (own - mean))


def test_the_median_length_grows_as_the_diagonal_of_the_space() -> None:
    many, one = (np.exp(Prior().of_logarithms(d)[0][3:]) for d in (9, 1))
    assert many == pytest.approx(3 * one.repeat(9))


def test_hyperparameters_are_fitted_to_the_good_and_the_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted: list[_Observations] = []

    def watched(data: _Observations, *_: object) -> Kernel:
        fitted.append(data)
        return HYPER

    monkeypatch.setattr(architecture_posterior, "_fitted", watched)
    points, scores = searched(40)
    found = ArchitecturePosterior(points, ORDERED, scores, most_fitted=8)
    every = np.sort(found._data.z)
    assert len(fitted[0].z) == 8
    assert fitted[0].z.min() == every[0]
    assert np.sort(fitted[0].z)[-4:] == pytest.approx(every[-4:])


def test_equal_scores_promise_nothing() -> None:
    points, new = np.random.default_rng(0).random((5, 3)), np.random.default_rng(1).random((10, 3))
    found = ArchitecturePosterior(points, [True] * 3, [[0.7]] * 5)
    assert found.expected_gain(new) == 0.0


# --- claims about the race: probabilities that hold, and replicates where they decide


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
