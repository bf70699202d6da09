"""Which architecture is best by its score, given the noise of the seeds.

    v_ij = mu_i + s_f e_ij       replicate j of architecture i of family f, e_ij standard normal
    log s_f ~ N(log s, w^2)      noise of a family; families share what one alone cannot tell
    mu_i ~ N(m, t^2)             true scores of the architectures, either spread out
    m - mu_i ~ Exp(1 / t)        or crowded below a ceiling m; both are equally likely a priori
    log s/t ~ N(log q, 1)        noise against spread; q is what it is on six real pools

m and log t have a flat prior. (m, log t, log s, log s_f) are integrated out on a grid. Given all
of them, with y_i the mean of r_i replicates and u^2 = s_f^2 / r_i,

    normal    mu_i | y ~ N(m + k (y_i - m), k u^2)                    k = t^2 / (t^2 + u^2)
    ceiling   mu_i | y ~ N(y_i + u^2 / t, u^2), cut off above m

The prior of mu_i counters the winner's curse: of many architectures tried once, the first is
first partly by luck, and the prior takes the luck back. (m, t, s) are learned from the better half
of the architectures: all that were trained more often, and the best of the others. The rest tell
only that they are "below the worst of these" (a censored sample, Tobin 1958), since the failures
of a search say little about its successes. Any of them may still be the best. The posterior
conditions on all replicates, so it holds whatever rule decided how many to run (Berger and
Wolpert 1988, ch. 4).

Replicates go to the two that are likeliest to change the decision: top-two Thompson sampling
(Russo 2016).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

# Not from `ranking`, which imports `scipy.stats`: each driver imports this file.
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

N_DRAWS = 4000
#: Architectures with draws of their own; of thousands, those far behind are not the best.
MOST_DRAWN = 1000
#: Each candidate has been trained at least this often before a probability is stated.
MIN_REPEATS = 3
#: w above: standard deviation of the logarithm of the noise over families.
FAMILY_SPREAD = 0.5
#: q above, the noise of one seed against the spread: `two_fold` of six pools has 0.25 to 1.2.
NOISE_RATIO = 0.3
#: Minimum number of architectures that enter with their values.
MIN_EXACT = 6
#: Points of the grid of m, for each shape.
_N_MEANS = 25
#: Points of the grid of t.
_N_SPREADS = 21
#: Points of the grids of s and of s_f.
_N_NOISES = 25


@dataclass(frozen=True)
class RacePosterior:
    """What is known of the true scores of n architectures.

    draws  of the true scores [N_DRAWS, n]; minus infinity below the first `MOST_DRAWN`
    best   probability of each to have the largest true score [n]
    noise  posterior mean of the noise s_f of each architecture's family [n]
    """

    draws: Floats
    best: Floats
    noise: Floats


def posterior_of(
    replicates: Sequence[ArrayLike], families: Sequence[str], *, seed: int
) -> RacePosterior | None:
    """Return the posterior of the true scores, larger is better.

    None with fewer than two architectures, or if none has two different replicates.

    Args:
        replicates: the values of each architecture, at least one.
        families: the family of each architecture.
        seed: for the draws.
    """
    values = [np.asarray(one, np.float64) for one in replicates]
    names = sorted(set(families))
    data = _Replicates(
        r=np.array([len(one) for one in values]),
        mean=np.array([one.mean() for one in values]),
        within=np.array([((one - one.mean()) ** 2).sum() for one in values]),
        family=np.array([names.index(one) for one in families]),
    )
    if len(values) < 2 or not data.within.sum() > 0:
        return None
    exact, cut = _better_half(data)
    grid = _grid(data, exact, cut)
    by_family = np.stack([_log_likelihood(grid, data, exact, cut, shape) for shape in _SHAPES])
    joint = _log_prior(grid)
    for one in range(len(names)):  # integrate s_f out
        top = by_family[:, one].max(-1, keepdims=True)
        mixed = np.exp(by_family[:, one] - top) @ np.exp(_log_given_s(grid)).T
        joint = joint + top + np.log(np.maximum(mixed, 1e-300))
    drawn = np.sort(np.argsort(-data.mean, kind="stable")[:MOST_DRAWN])
    rng = np.random.default_rng(seed)
    draws = np.full((N_DRAWS, len(values)), -np.inf)
    draws[:, drawn], noise = _draw(rng, grid, joint, by_family, data.of(drawn))
    best = np.bincount(draws.argmax(1), minlength=len(values)) / N_DRAWS
    return RacePosterior(draws, best, noise.mean(0)[data.family])


def next_replicates(
    posterior: RacePosterior, finalists: Sequence[int], n: int, *, seed: int
) -> list[int]:
    """Return which finalists to train again, n times: top-two Thompson sampling.

    Args:
        posterior: of all architectures.
        finalists: their positions.
        n: how many replicates to run before looking again.
        seed: for the choice.
    """
    rng = np.random.default_rng(seed)
    leaders = np.asarray(finalists)[posterior.draws[:, list(finalists)].argmax(1)]
    chosen = []
    for _ in range(n):
        leader = int(rng.choice(leaders))
        others = leaders[leaders != leader]
        challenger = rng.random() < 0.5 and len(others) > 0
        chosen.append(int(rng.choice(others)) if challenger else leader)
    return chosen


@dataclass(frozen=True)
class _Replicates:
    """Replicates of each architecture [n]: number, mean, sum of squares within; its family."""

    r: Floats
    mean: Floats
    within: Floats
    family: Integers

    def of(self, these: Integers) -> "_Replicates":
        """Return the data of some architectures."""
        return _Replicates(self.r[these], self.mean[these], self.within[these], self.family[these])


@dataclass(frozen=True)
class _Grid:
    """Values of m for each shape [2, M], of t [T], and of s and s_f [S]; m is spaced by `step`."""

    m: Floats
    step: Floats
    t: Floats
    s: Floats


#: Shapes of the distribution of true scores: the rows of `_Grid.m`.
_SHAPES = (_NORMAL, _CEILING) = (0, 1)


def _better_half(data: _Replicates) -> tuple[NDArray[np.bool_], float]:
    """Return which architectures enter with their values, and what the others are below.

    Those trained more often than most enter anyway, so that what is left out was left out by the
    same replicates by which it is compared.
    """
    n = len(data.r)
    raced = data.r > np.quantile(data.r, 0.25, method="lower")
    n_exact = min(n, max(MIN_EXACT, -(-n // 2), int(raced.sum()) + 1))
    order = np.lexsort((-data.mean, ~raced))[:n_exact]
    exact = np.zeros(n, bool)
    exact[order] = True
    return exact, float(data.mean[exact & ~raced].min() if n_exact < n else data.mean.min())


def _grid(data: _Replicates, exact: NDArray[np.bool_], cut: float) -> _Grid:
    mean = data.mean[exact]
    known = exact if data.within[exact].sum() > 0 else np.full(len(exact), True)
    noise = _noise_of(data, known)
    own = []
    for one in np.unique(data.family):  # shrunk: log s_f is known up to 1 / sqrt(2 n)
        these = known & (data.family == one)
        n = int((data.r[these] - 1).sum()) if data.within[these].sum() > 0 else 0
        kept = n / (n + 0.5 / FAMILY_SPREAD**2)
        own.append(noise if n == 0 else noise ** (1 - kept) * _noise_of(data, these) ** kept)
    spread = max(float(np.sqrt(((mean - cut) ** 2).mean())), noise / 4)
    top, error = float(mean.max()), noise / float(np.sqrt(data.r[exact][mean.argmax()]))
    lowest = min(cut, float(mean.min()))
    centres = np.linspace(lowest - 4 * spread, top + error, _N_MEANS)
    # Close to the first the ceiling matters most: there the points are dense.
    farthest = float(np.arcsinh((4 * spread + 2 * error) / error))
    ceilings = top + error * np.sinh(np.linspace(-2.1, farthest, _N_MEANS))
    m = np.stack([centres, ceilings])
    return _Grid(
        m=m,
        step=np.gradient(m, axis=1),
        t=spread * np.geomspace(0.08, 8.0, _N_SPREADS),
        s=np.geomspace(0.25 * min(own), 4.0 * max(own), _N_NOISES),
    )


def _noise_of(data: _Replicates, these: NDArray[np.bool_]) -> float:
    return float(np.sqrt(data.within[these].sum() / (data.r[these] - 1).sum()))


def _log_prior(grid: _Grid) -> Floats:
    """Return the log prior of each cell [2, M, T, S]."""
    ratio = np.log(grid.s) - np.log(grid.t[:, None]) - np.log(NOISE_RATIO)
    prior: Floats = np.log(grid.step)[:, :, None, None] - 0.5 * ratio**2
    return prior


def _log_given_s(grid: _Grid) -> Floats:
    """Return the log probability of each value of s_f given each of s [S, S]."""
    away = (np.log(grid.s) - np.log(grid.s)[:, None]) / FAMILY_SPREAD
    log = -0.5 * away**2
    normalised: Floats = log - logsumexp(log, axis=1, keepdims=True)
    return normalised


def _log_likelihood(
    grid: _Grid, data: _Replicates, exact: NDArray[np.bool_], cut: float, shape: int
) -> Floats:
    """Return the log likelihood of the architectures of each family at each s_f [F, M, T, S].

    Up to a constant that all shapes share.
    """
    t, m = grid.t[:, None], grid.m[shape][:, None, None]
    s2 = grid.s**2
    total = np.zeros((data.family.max() + 1, m.size, t.size, s2.size))
    for i in np.flatnonzero(exact):
        r, y, u2 = data.r[i], data.mean[i], s2 / data.r[i]
        of_mean = _log_density(y, m, t, u2, shape)
        total[data.family[i]] += of_mean - 0.5 * ((r - 1) * np.log(s2) + data.within[i] / s2)
    # What is left out is alike within a family, but for the number of replicates.
    left_out = Counter(zip(data.family[~exact], data.r[~exact], strict=True))
    for (one, r), n in left_out.items():
        total[one] += n * _log_below(cut, m, t, s2 / r, shape)
    return total


def _log_density(y: float, m: Floats, t: Floats, u2: Floats, shape: int) -> Floats:
    """Return the log density of a mean of replicates, with the error u."""
    if shape == _NORMAL:
        of_mean = u2 + t**2
        normal: Floats = -0.5 * (np.log(2 * np.pi * of_mean) + (y - m) ** 2 / of_mean)
        return normal
    u = np.sqrt(u2)  # exponentially modified normal
    modified: Floats = -np.log(t) + (y - m) / t + u2 / (2 * t**2) + log_ndtr((m - y) / u - u / t)
    return modified


def _log_below(cut: float, m: Floats, t: Floats, u2: Floats, shape: int) -> Floats:
    """Return the log probability that a mean of replicates, with the error u, is below `cut`."""
    if shape == _NORMAL:
        below: Floats = log_ndtr((cut - m) / np.sqrt(t**2 + u2))
        return below
    u = np.sqrt(u2)
    tail = (cut - m) / t + u2 / (2 * t**2) + log_ndtr((m - cut) / u - u / t)
    either: Floats = np.minimum(np.logaddexp(log_ndtr((cut - m) / u), tail), 0.0)
    return either


def _draw(
    rng: np.random.Generator, grid: _Grid, joint: Floats, by_family: Floats, data: _Replicates
) -> tuple[Floats, Floats]:
    """Return draws of the true scores [N_DRAWS, n] and of each family's noise [N_DRAWS, F].

    Args:
        rng: for the draws.
        grid: where the parameters of the model are evaluated.
        joint: log posterior on the grid [2, M, T, S].
        by_family: log likelihood of each family at each s_f [2, F, M, T, S].
        data: the replicates.
    """
    flat = np.exp(joint - joint.max()).ravel()
    cells = rng.choice(flat.size, size=N_DRAWS, p=flat / flat.sum())
    shape, at_m, at_t, at_s = np.unravel_index(cells, joint.shape)
    m, t = grid.m[shape, at_m][:, None], grid.t[at_t][:, None]
    # The noise of each family, by inverting its distribution function.
    logs = by_family[shape, :, at_m, at_t] + _log_given_s(grid)[at_s][:, None]  # [N, F, S]
    shares = np.exp(logs - logs.max(-1, keepdims=True)).cumsum(-1)
    at = (rng.random((*shares.shape[:2], 1)) * shares[..., -1:] > shares).sum(-1)  # [N, F]
    noise = grid.s[at]
    u = noise[:, data.family] / np.sqrt(data.r)
    draws = np.empty(u.shape)
    rows = shape == _NORMAL
    kept = t[rows] ** 2 / (t[rows] ** 2 + u[rows] ** 2)
    draws[rows] = m[rows] + kept * (data.mean - m[rows])
    draws[rows] += np.sqrt(kept) * u[rows] * rng.normal(size=kept.shape)
    rows = shape == _CEILING
    centre = data.mean + u[rows] ** 2 / t[rows]
    draws[rows] = _normal_below(rng, centre, u[rows], m[rows])
    return draws, noise


def _normal_below(rng: np.random.Generator, centre: Floats, u: Floats, m: Floats) -> Floats:
    """Return draws from N(centre, u^2) cut off above m, which is [n, 1].

    Far out in the tail, where the distribution function underflows, m minus the draw is
    exponential with the rate (centre - m) / u^2, up to a fraction (u / (centre - m))^2.
    """
    z, share = (m - centre) / u, rng.random(u.shape)
    near = centre + u * ndtri(share * ndtr(np.maximum(z, -30.0)))
    return np.where(z > -30.0, np.minimum(near, m), m + u * np.log(share) / np.maximum(-z, 1.0))
