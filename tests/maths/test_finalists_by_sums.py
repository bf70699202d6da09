"""The posterior of the finalists against sums over a grid of all unknowns."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import scipy.special

from nas_evidence.maths.finalists import FAMILY_SPREAD, N_DRAWS, NOISE_RATIO, posterior_of
from nas_evidence.spec.study import derive_seed

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
