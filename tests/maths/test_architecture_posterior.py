"""Claims about the posterior over architectures: formulas, priors, and what must not matter."""

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.optimize import approx_fprime
from scipy.spatial.distance import cdist

from nas_evidence.maths import architecture_posterior
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
