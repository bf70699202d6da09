"""Which architecture is best by its score, given the noise of the seeds.

    v_ij = mu_i + s_f e_ij       replicate j of architecture i of family f, e_ij standard normal
    log s_f ~ N(log s, w^2)      noise of a family; families share what one alone cannot tell
    mu_i ~ N(m, t^2)             true scores of the architectures, either spread out
    m - mu_i ~ Exp(1 / t)        or crowded below a ceiling m; both are equally likely a priori

(m, log t, log s) have a flat prior on a grid and are integrated out, s_f by Gauss-Hermite
quadrature. Given all of them, with y_i the mean of r_i replicates and u^2 = s_f^2 / r_i,

    normal    mu_i | y ~ N(m + k (y_i - m), k u^2)                    k = t^2 / (t^2 + u^2)
    ceiling   mu_i | y ~ N(y_i + u^2 / t, u^2), cut off above m

The prior of mu_i counters the winner's curse: of many architectures tried once, the first is
first partly by luck, and the prior takes the luck back. Only the better half of the architectures
enters with its values, the others as "below the worst of these" (a censored sample, Tobin 1958),
since the failures of a search say little about its successes. The posterior conditions on all
replicates, so it holds whatever rule decided how many to run (Berger and Wolpert 1988, ch. 4).

Replicates go to the two that are likeliest to change the decision: top-two Thompson sampling
(Russo 2016).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

from nas_evidence.maths.ranking import Floats

Integers = NDArray[np.int64]

N_DRAWS = 4000
#: Each candidate has been trained at least this often before a probability is stated.
MIN_REPEATS = 3
#: w above: standard deviation of the logarithm of the noise over families.
FAMILY_SPREAD = 0.5
#: Fewest architectures that enter with their values.
MIN_EXACT = 6
_N_MEANS, _N_SPREADS, _N_NOISES, _N_FAMILY = 17, 13, 17, 7


@dataclass(frozen=True)
class Posterior:
    """What is known of the true scores of n architectures.

    draws  of the true scores [N_DRAWS, n]; minus infinity for the worse half
    best   probability of each to have the largest true score [n]
    noise  posterior mean of the noise s_f of each architecture's family [n]
    """

    draws: Floats
    best: Floats
    noise: Floats


def posterior_of(
    replicates: Sequence[ArrayLike], families: Sequence[str], *, seed: int
) -> Posterior | None:
    """Return the posterior of the true scores, larger is better.

    None with fewer than two architectures, or if none has two different replicates.

    Args:
        replicates: the values of each architecture, at least one.
        families: the family of each architecture.
        seed: for the draws.
    """
    values = [np.asarray(one, np.float64) for one in replicates]
    r = np.array([len(one) for one in values])
    mean = np.array([one.mean() for one in values])
    within = np.array([((one - one.mean()) ** 2).sum() for one in values])
    n_free = int((r - 1).sum())
    if len(values) < 2 or not within.sum() > 0:
        return None
    n_exact = min(len(values), max(MIN_EXACT, -(-len(values) // 2), int((r > 1).sum())))
    order = np.argsort(-mean, kind="stable")
    exact = np.sort(order[:n_exact])
    names = sorted({families[i] for i in exact})
    family = np.array([names.index(families[i]) for i in exact])
    cut = float(mean[order[n_exact - 1]])
    grid = _grid(mean[exact], cut, float(np.sqrt(within.sum() / n_free)))
    data = _Data(r[exact], mean[exact], within[exact], family)
    by_shape = [_log_likelihood(grid, data, shape, len(names)) for shape in _SHAPES]
    joints = []
    for shape, by_family in zip(_SHAPES, by_shape, strict=True):
        joint = logsumexp(by_family, axis=-1).sum(0)  # [M, T, S]
        joints.append(joint + (len(values) - n_exact) * _log_below(grid, cut, shape))
    rng = np.random.default_rng(seed)
    draws = np.full((N_DRAWS, len(values)), -np.inf)
    noise = np.zeros(len(values))
    draws[:, exact], drawn_noise = _draw(rng, grid, np.stack(joints), np.stack(by_shape), data)
    for position, name in enumerate(names):
        own = [i for i, other in enumerate(families) if other == name]
        noise[own] = drawn_noise[:, position].mean()
    best = np.bincount(draws.argmax(1), minlength=len(values)) / N_DRAWS
    return Posterior(draws, best, noise)


def next_replicates(
    posterior: Posterior, finalists: Sequence[int], n: int, *, seed: int
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
class _Data:
    """Replicates of each architecture [n]: number, mean, sum of squares within; its family."""

    r: Floats
    mean: Floats
    within: Floats
    family: Integers


@dataclass(frozen=True)
class _Grid:
    """Values of m for each shape [2, M], of t [T] and of s [S]."""

    m: Floats
    t: Floats
    s: Floats


#: Shapes of the distribution of true scores: the rows of `_Grid.m`.
_SHAPES = (_NORMAL, _CEILING) = (0, 1)


def _grid(mean: Floats, cut: float, noise: float) -> _Grid:
    spread = max(float(np.sqrt(((mean - cut) ** 2).mean())), noise / 4)
    top = float(mean.max())
    centres = np.linspace(cut - 3 * spread, top, _N_MEANS)
    ceilings = np.linspace(top - 3 * noise, top + 2 * spread, _N_MEANS)
    return _Grid(
        m=np.stack([centres, ceilings]),
        t=spread * np.geomspace(0.03, 6.0, _N_SPREADS),
        s=noise * np.geomspace(0.2, 5.0, _N_NOISES),
    )


def _hermite() -> tuple[Floats, Floats]:
    """Return nodes and weights of the standard normal distribution [D]."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_N_FAMILY)
    return nodes, weights / weights.sum()


def _family_noise(grid: _Grid) -> Floats:
    """Return the noise of a family at each s and node [S, D]."""
    noise: Floats = grid.s[:, None] * np.exp(FAMILY_SPREAD * _hermite()[0])
    return noise


def _log_likelihood(grid: _Grid, data: _Data, shape: int, n_families: int) -> Floats:
    """Return the log likelihood of each family at each node, plus its log weight.

    The array is [F, M, T, S, D], up to a constant that all shapes share.
    """
    s2 = _family_noise(grid)[None, None] ** 2  # [1, 1, S, D]
    t = grid.t[None, :, None, None]
    m = grid.m[shape][:, None, None, None]
    total: Floats = np.zeros((n_families, *np.broadcast_shapes(s2.shape, t.shape, m.shape)))
    total += np.log(_hermite()[1])
    for r, y, within, own in zip(data.r, data.mean, data.within, data.family, strict=True):
        noise = -0.5 * ((r - 1) * np.log(s2) + within / s2)
        u2 = s2 / r
        if shape == _NORMAL:
            of_mean = u2 + t**2
            total[own] += noise - 0.5 * (np.log(2 * np.pi * of_mean) + (y - m) ** 2 / of_mean)
        else:  # exponentially modified normal
            u = np.sqrt(u2)
            total[own] += (
                noise - np.log(t) + (y - m) / t + u2 / (2 * t**2) + log_ndtr((m - y) / u - u / t)
            )
    return total


def _log_below(grid: _Grid, cut: float, shape: int) -> Floats:
    """Return the log probability of a single value below `cut` [M, T, S]."""
    t, s = grid.t[None, :, None], grid.s[None, None, :]
    m = grid.m[shape][:, None, None]
    if shape == _NORMAL:
        below: Floats = log_ndtr((cut - m) / np.sqrt(t**2 + s**2))
        return below
    tail = (cut - m) / t + s**2 / (2 * t**2) + log_ndtr((m - cut) / s - s / t)
    either: Floats = np.minimum(np.logaddexp(log_ndtr((cut - m) / s), tail), 0.0)
    return either


def _draw(
    rng: np.random.Generator, grid: _Grid, joint: Floats, by_family: Floats, data: _Data
) -> tuple[Floats, Floats]:
    """Return draws of the true scores [N_DRAWS, n] and of each family's noise [N_DRAWS, F].

    Args:
        rng: for the draws.
        grid: where the parameters of the model are evaluated.
        joint: log posterior on the grid [2, M, T, S].
        by_family: of each family at each node [2, F, M, T, S, D].
        data: the replicates.
    """
    flat = np.exp(joint - joint.max()).ravel()
    cells = rng.choice(flat.size, size=N_DRAWS, p=flat / flat.sum())
    shape, at_m, at_t, at_s = np.unravel_index(cells, joint.shape)
    m, t = grid.m[shape, at_m][:, None], grid.t[at_t][:, None]
    # The node of each family, by inverting its distribution function.
    logs = by_family[shape, :, at_m, at_t, at_s]  # [N, F, D]
    shares = np.exp(logs - logs.max(-1, keepdims=True)).cumsum(-1)
    at = (rng.random((*shares.shape[:2], 1)) * shares[..., -1:] > shares).sum(-1)  # [N, F]
    noise = _family_noise(grid)[at_s[:, None], at]
    u2 = noise[:, data.family] ** 2 / data.r
    kept = t**2 / (t**2 + u2)
    normal = m + kept * (data.mean - m)
    normal = normal + np.sqrt(kept * u2) * rng.normal(size=u2.shape)
    centre, u = data.mean + u2 / t, np.sqrt(u2)
    highest = ndtr((m - centre) / u)
    under = centre + u * ndtri(np.maximum(rng.random(u2.shape) * highest, 1e-300))
    return np.where(shape[:, None] == _NORMAL, normal, np.minimum(under, m)), noise
