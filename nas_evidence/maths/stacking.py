"""Weights of an ensemble by stacking, and what the ensemble gains over its best member.

    w = argmax 1/n Σ_i log Σ_k w_k p_ik     over w_k ≥ 0, Σ_k w_k = 1

    p_ik  predictive density that network k, trained without datum i, gives its target
    w     weights [K]

(Yao et al. 2018, "Using stacking to average Bayesian predictive distributions", equation 4;
Wolpert 1992.) The mean is concave in w. With g_k = 1/n Σ_i p_ik / Σ_j w_j p_ij no weights are
better than w by more than max_k g_k − 1 nats per datum: the certificate that ends the ascent.

The outputs of each network are first divided by one of M scales, its likeliest, so that the
weights compare what networks know and not how overconfident they are. In nats per datum the gain
is the mean over data of log Σ_k w_k p_ik − log p_i,best, where w and the scales of the mixture are
cross-fitted, without the data of i, and the best member is the best of all these data at its
likeliest scale. Of several members the best owes a part of its mean to these data, which its own
mean therefore says too much of. The gain is corrected for that by the bootstrap (Efron 1983): the
best member is chosen in each of B resamples, and o is by how much its mean there exceeds that over
all data, on average. To cross-fit the choice instead says too much: of two equally good members,
that with more luck on the other data has less on these, so the one chosen does worse than either.

    gain = 1/n Σ_i (log Σ_k w_k p_ik − log p_i,best) + o        error² = s² / n + o²

benchmarks/claims_sentences.py has how often the truth is within its errors.

A member that gives a datum no chance at any scale has weight 0 and is never the best.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Parts of the data for the cross-fitted gain.
N_PARTS = 10
#: Resamples in which the best member is chosen.
N_RESAMPLES = 500
#: The ascent ends when no weights are better by more than this, nats per datum.
TOLERANCE = 1e-6
_MOST_STEPS = 20_000


@dataclass(frozen=True)
class Stacked:
    """Weights of an ensemble, and its gain.

    weights  [K], ≥ 0, sum 1
    scales   number of the likeliest scale of each member [K]
    best     member that is best alone
    gain     of the cross-fitted ensemble over the best member, nats per datum
    error    standard error of `gain` over the data, and of its correction
    single   log density of the best member, nats per datum, with the same correction
    n        data
    without  data to which a member gives no chance at any scale [K]
    """

    weights: Floats
    scales: NDArray[np.int64]
    best: int
    gain: float
    error: float
    single: float
    n: int
    without: NDArray[np.int64]


def stacking_weights(log_densities: Floats) -> Floats:
    """Return the weights [K] that maximise the mean log density of the mixture.

    Args:
        log_densities: log p_ik in nats [n, K]; each row needs one finite number.

    Raises:
        ValueError: if there are no data, or a row has no finite number.

    >>> even = stacking_weights(np.log([[0.8, 0.2], [0.2, 0.8]]))
    >>> even.round(6).tolist()
    [0.5, 0.5]
    """
    highest = log_densities.max(1, keepdims=True) if log_densities.size else np.empty((0, 1))
    if not (len(highest) and np.isfinite(highest).all()):
        raise ValueError(
            f"every datum needs a finite log density from some network, but the table of shape "
            f"{list(log_densities.shape)} has a row without one"
        )
    p = np.exp(log_densities - highest)
    weights = _sequential_quadratic(p)
    for _ in range(_MOST_STEPS):
        slope = _slope(p, weights)
        if slope.max() - 1 <= TOLERANCE:
            break
        weights = weights * slope  # a step of EM: never lowers the mean
        weights /= weights.sum()
    return weights


def mixture(log_densities: Floats, weights: Floats) -> Floats:
    """Return the log density of the mixture for each datum [n], nats.

    >>> float(mixture(np.log([[0.5, 0.25]]), np.array([0.5, 0.5]))[0]) == math.log(0.375)
    True
    """
    from scipy.special import logsumexp  # late: predictions need no weights

    found: Floats = logsumexp(log_densities, axis=1, b=weights)
    return found


def stacked(log_densities: Floats, *, seed: int = 0) -> Stacked:
    """Return weights fitted to all data, and the gain of weights fitted to other data.

    Args:
        log_densities: of M scales, n data and K networks [M, n, K], nats.
        seed: of the division of the data into `N_PARTS` parts.

    Raises:
        ValueError: if there are fewer than two data, or each network gives no chance to some.
    """
    n, n_members = log_densities.shape[1:]
    if n < 2:
        raise ValueError(f"stacking needs at least two predicted data, but got {n}")
    without = (log_densities == -np.inf).all(0).sum(0)
    if (without > 0).all():
        raise ValueError(
            f"each of the {n_members} networks gives a density of 0 to some of the {n} data, so "
            "none of them can be the best"
        )
    members = np.flatnonzero(without == 0)
    possible, scales, weights = log_densities[:, :, members], *_empty(n_members)
    order = np.random.default_rng(seed).permutation(n)
    together = np.empty(n)
    for part in np.array_split(order, min(N_PARTS, n)):
        rest = np.setdiff1d(order, part)
        own, shares = _fitted(possible[:, rest])
        together[part] = mixture(_at(possible[:, part], own), shares)
    scales[members], weights[members] = _fitted(possible)
    alone = _at(possible, scales[members])
    best = int(alone.mean(0).argmax())
    gains, optimism = together - alone[:, best], _optimism(alone, seed)
    return Stacked(
        weights=weights,
        scales=scales,
        best=int(members[best]),
        gain=float(gains.mean()) + optimism,
        error=math.hypot(float(gains.std(ddof=1)) / math.sqrt(n), optimism),
        single=float(alone[:, best].mean()) - optimism,
        n=n,
        without=without,
    )


def _empty(n_members: int) -> tuple[NDArray[np.int64], Floats]:
    return np.zeros(n_members, np.int64), np.zeros(n_members)


def _optimism(alone: Floats, seed: int) -> float:
    """Return by how much the mean of the best of several members is too large, nats per datum.

    Args:
        alone: log densities of each member [n, K].
        seed: of the resamples.
    """
    n, n_members = alone.shape
    if n_members < 2:
        return 0.0
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=N_RESAMPLES)
    lead = alone - alone[:, [int(alone.mean(0).argmax())]]  # over the best of all data
    inside = counts @ lead / n
    return float((inside.max(1) - lead.mean(0)[inside.argmax(1)]).mean())


def _fitted(log_densities: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the likeliest scale of each network, and the weights."""
    scales = log_densities.mean(1).argmax(0)
    return scales, stacking_weights(_at(log_densities, scales))


def _at(log_densities: Floats, scales: NDArray[np.int64]) -> Floats:
    """Return the log densities of each network at its own scale [n, K]."""
    found: Floats = log_densities[scales, :, np.arange(len(scales))].T
    return found


def _slope(p: Floats, weights: Floats) -> Floats:
    """Return g [K], the gradient of the mean log density."""
    mixed = np.maximum(p @ weights, np.finfo(float).tiny)
    slope: Floats = (p / mixed[:, None]).mean(0)
    return slope


def _sequential_quadratic(p: Floats) -> Floats:
    """Return nearly optimal weights, none of them 0, from which EM can reach any others."""
    from scipy.optimize import minimize

    n_members = p.shape[1]

    def cost(weights: Floats) -> tuple[float, Floats]:
        mixed = np.maximum(p @ weights, np.finfo(float).tiny)
        return -float(np.log(mixed).mean()), -(p / mixed[:, None]).mean(0)

    found = minimize(
        cost,
        np.full(n_members, 1 / n_members),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * n_members,
        constraints={
            "type": "eq",
            "fun": lambda w: w.sum() - 1,
            "jac": lambda w: np.ones(n_members),
        },
        options={"maxiter": 200, "ftol": 1e-12},
    ).x
    weights: Floats = np.maximum(np.nan_to_num(found), 1e-9)
    weights /= weights.sum()
    return weights
