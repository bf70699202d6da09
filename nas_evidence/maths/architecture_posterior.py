"""A Gaussian process over architectures: the score of each, given the scores of all.

    v_ai = h(z_ai)                            score of replicate i of architecture a
    z_ai = m + g(x_a) + e_a + s n_ai          n_ai standard normal: the luck of a seed
    g    ~ GP(0, b^2 M(r)),  r^2 = sum_k d_k(x, x')^2 / l_k^2,  M Matern 5/2
    e_a  ~ N(0, t^2)                          what is the architecture's own, and not its place's

d_k is the difference of two numbers, and for a choice without order 1 if two values differ, else
0. The family is such a choice, so that families share what they have in common and l tells how
much that is; a key that a family lacks has the same place for all of its architectures.

h is the identity from the median c of the scores upwards and logarithmic below it,
v = c - u (exp(-z) - 1) for z < 0 in units of u, the spread of the better half: what failed badly
is told apart by how badly only in orders of magnitude. What lies more than `FAR` of its standard
deviations below the prediction of all others (Rasmussen and Williams 2006, eq. 5.12) collapsed:
its e_a has a variance of its own, and it tells nothing of its neighbours.

(b, l, t, s) maximise the marginal likelihood times the log-normal priors below (Rasmussen and
Williams 2006, eq. 5.8), by gradients. With 8 scores they stay close to the priors. Only replicates
tell t from s. The best `MOST_FITTED` architectures and others evenly spaced fit (b, l, t, s), and
of thousands `MOST_KNOWN`, chosen likewise, are conditioned on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr

Floats = NDArray[np.float64]

#: Maximum number of architectures that hyperparameters are fitted to.
MOST_FITTED = 128
#: Maximum number of architectures that are conditioned on.
MOST_KNOWN = 1000
#: Standard deviations from the prediction of all others at which a network stands alone.
FAR = 3.0
#: Draws, and their mirror images, behind an expected gain.
N_LUCK = 500
#: Unit of scores that are all equal, relative to their size.
NO_SPREAD = 1e-6
#: Prior variance of m.
_OF_MEAN = 1.0


@dataclass(frozen=True)
class Prior:
    """What is known of (b, t, s, l) before any score, in units of the spread.

    medians  of b, t and s; their logarithms are normal with standard deviations `widths`
    length   median of l over the root of the number of coordinates, and `length_width` its width
    slope    standard deviation of the slope of a linear trend along each ordered coordinate
    above    whether a network far above the prediction of all others stands alone as well
    """

    medians: tuple[float, float, float] = (1.0, 0.3, 0.3)
    widths: tuple[float, float, float] = (0.7, 1.0, 1.0)
    length: float = 0.5
    length_width: float = 1.0
    slope: float = 0.0
    above: bool = False

    def of_logarithms(self, d: int) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the logarithms of (b, t, s, l) [3 + d]."""
        lengths = np.full(d, self.length * np.sqrt(max(d, 1)))
        widths = np.concatenate([self.widths, np.full(d, self.length_width)])
        return np.log(np.concatenate([self.medians, lengths])), widths

    def of_trend(self, one: Floats, other: Floats, ordered: NDArray[np.bool_]) -> Floats:
        """Return the prior covariance of m and the trend, around the middle of the space."""
        a, b = one[:, ordered] - 0.5, other[:, ordered] - 0.5
        found: Floats = _OF_MEAN + self.slope**2 * a @ b.T
        return found


#: What orders architectures of a few hundred rows, where much of the variance of scores is luck of
#: a seed: 0.27 of it in the median of 53 pools, quartiles 0.10 and 0.45 (docs/decisions/0027).
OF_NOISY_SEEDS = Prior((1.0, 0.1, 0.8), (0.5, 0.3, 0.3), length=1.0, length_width=0.5, slope=1.0)


@dataclass(frozen=True)
class Warp:
    """From a score to z, and back: linear from `centre` upwards, logarithmic below it."""

    centre: float
    unit: float

    def z(self, score: ArrayLike) -> Floats:
        """Return scores in units of the spread."""
        t = (np.asarray(score, np.float64) - self.centre) / self.unit
        return np.where(t >= 0, t, -np.log1p(-np.minimum(t, 0.0)))

    def score(self, z: ArrayLike) -> Floats:
        """Return the scores, the inverse of `z`."""
        z = np.asarray(z, np.float64)
        t = np.where(z >= 0, z, -np.expm1(-np.minimum(z, 0.0)))
        return self.centre + self.unit * t

    def moments(self, mean: ArrayLike, deviation: ArrayLike) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the scores of normal z, from its own.

        Below 0 a score is 1 - exp(-z): its moments are those of a cut-off log-normal,
        int_{z<0} exp(-k z) N(z; m, s^2) dz = exp(-k m + k^2 s^2 / 2) Phi((k s^2 - m) / s).
        """
        m, s = np.asarray(mean, np.float64), np.maximum(np.asarray(deviation, np.float64), 1e-12)
        density, above = np.exp(-0.5 * (m / s) ** 2) / np.sqrt(2 * np.pi), ndtr(m / s)
        below, once, twice = (
            np.exp(-k * m + 0.5 * (k * s) ** 2 + log_ndtr((k * s**2 - m) / s)) for k in (0, 1, 2)
        )
        first = m * above + s * density + below - once
        second = (m**2 + s**2) * above + m * s * density + below - 2 * once + twice
        variance = np.maximum(second - first**2, 0.0)
        return self.centre + self.unit * first, self.unit * np.sqrt(variance)


@dataclass(frozen=True)
class Kernel:
    """b, t and s in units of the spread, and l of each coordinate [d]."""

    amplitude: float
    own: float
    noise: float
    lengths: Floats


class ArchitecturePosterior:
    """What is known of the true scores, tried or not, larger is better.

    Args:
        points: coordinates of each architecture [n, d], numbers in [0, 1]; of choices without
            order their positions.
        ordered: which coordinates are numbers [d].
        replicates: the scores of each architecture, at least one.
        hyper: given ones; fitted if None.
        prior: of the hyperparameters, and of a trend.
        most_known: architectures that are conditioned on.
        most_fitted: architectures that fit the hyperparameters.

    Raises:
        ValueError: without any score.
    """

    def __init__(
        self,
        points: ArrayLike,
        ordered: ArrayLike,
        replicates: Sequence[ArrayLike],
        hyper: Kernel | None = None,
        *,
        prior: Prior = Prior(),
        most_known: int = MOST_KNOWN,
        most_fitted: int = MOST_FITTED,
    ) -> None:
        if not replicates:
            raise ValueError("A posterior over architectures needs at least one score; got none.")
        self._ordered, self._hyperprior = np.asarray(ordered, bool), prior
        values = [np.asarray(own, np.float64) for own in replicates]
        self.warp = _warp(np.array([own.mean() for own in values]))
        z = [self.warp.z(own) for own in values]
        data = _Observations(
            points=np.asarray(points, np.float64).reshape(len(z), len(self._ordered)),
            z=np.array([own.mean() for own in z]),
            n=np.array([float(len(own)) for own in z]),
            within=np.array([((own - own.mean()) ** 2).sum() for own in z]),
        )
        self._data, self._which = data, _spread_out(data.z, most_known)
        self._known = data.of(self._which)
        few = data.of(_spread_out(data.z, most_fitted))
        trend = prior.of_trend(few.points, few.points, self._ordered)
        distances = self._distances(few.points, few.points)
        self.hyper = hyper or _fitted(few, distances, trend, prior)
        self._condition()

    def predict(self, points: ArrayLike) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of z of architectures [m, d] not tried yet."""
        cross = self._prior(np.atleast_2d(np.asarray(points, np.float64)), self._known.points)
        mean = cross @ self._weights
        gone = solve_triangular(self._factor, cross.T, lower=True)
        away = np.atleast_2d(np.asarray(points, np.float64))[:, self._ordered] - 0.5
        trend = _OF_MEAN + self._hyperprior.slope**2 * (away**2).sum(1)
        variance = self.hyper.amplitude**2 + trend + self.hyper.own**2 - (gone**2).sum(0)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def mean(self) -> Floats:
        """Return the posterior mean of z of each architecture tried [n], in the order given.

        Those of thousands that are not conditioned on have what the others say of them, and
        their own score.
        """
        found = np.empty(len(self._data.z))
        found[self._which] = self._known.z - self._noise * self._weights
        if len(rest := self._rest):
            mean, deviation = self.predict(self._data.points[rest])
            kept = deviation**2 / (deviation**2 + self.hyper.noise**2 / self._data.n[rest])
            found[rest] = mean + kept * (self._data.z[rest] - mean)
        return found

    def deviation(self) -> Floats:
        """Return the posterior standard deviation of z of each architecture tried [n].

        Of those that are not conditioned on it is that given what the others say.
        """
        found, noise = np.empty(len(self._data.z)), self._noise
        gone = solve_triangular(self._factor, np.diag(noise), lower=True)
        found[self._which] = noise - (gone**2).sum(0)
        if len(rest := self._rest):
            prior = self.predict(self._data.points[rest])[1] ** 2
            own = self.hyper.noise**2 / self._data.n[rest]
            found[rest] = prior * own / (prior + own)
        return np.sqrt(np.maximum(found, 0.0))

    def draws(self, n_draws: int, *, seed: int) -> Floats:
        """Return joint draws of the true scores of the architectures tried [n_draws, n].

        With Sigma the covariance of the observed means and N its diagonal part that is noise, the
        true values are normal around the mean with the covariance N - N Sigma^-1 N. Those of
        thousands that are not conditioned on are drawn one by one.
        """
        rng, mean, noise = np.random.default_rng(seed), self.mean(), self._noise
        gone = solve_triangular(self._factor, np.diag(noise), lower=True)
        values, vectors = np.linalg.eigh(np.diag(noise) - gone.T @ gone)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        away = np.empty((n_draws, len(mean)))
        away[:, self._which] = rng.normal(size=(n_draws, len(noise))) @ root.T
        if len(rest := self._rest):
            prior = self.predict(self._data.points[rest])[1] ** 2
            own = self.hyper.noise**2 / self._data.n[rest]
            spread = np.sqrt(prior * own / (prior + own))
            away[:, rest] = spread * rng.normal(size=(n_draws, len(rest)))
        return self.warp.score(mean + away)

    def expected_improvement(self, points: ArrayLike) -> Floats:
        """Return by how much m + g of each architecture [m] is expected to exceed the best mean.

        Without e_a, of which no neighbour tells anything: with it unknown corners look good.
        """
        mean, deviation = self.predict(points)
        smooth = np.sqrt(np.maximum(deviation**2 - self.hyper.own**2, 1e-12))
        return _expected_excess(mean - self.mean().max(), smooth)

    def thompson(self, points: ArrayLike, *, seed: int) -> Floats:
        """Return an independent draw of z of each architecture [m]."""
        mean, deviation = self.predict(points)
        return mean + deviation * np.random.default_rng(seed).normal(size=len(mean))

    def expected_gain(self, points: ArrayLike, n_luck: int = N_LUCK) -> float:
        """Return by how much one trial of each of `points` [m, d] is expected to raise the best.

        In the unit of the score; the best is the largest posterior mean of m + g. With C the
        posterior covariance of m + g and B the points, their scores move all means by
        C[:, B] L^-T n, L L^T = C[B, B] + t^2 + s^2 and n standard normal (Frazier et al. 2009):
        the points of one place move together, and of what is an architecture's own no score
        of a single seed tells how much is luck, so that none of it is counted as a gain. 0 where
        all scores are equal: they have no unit.
        """
        if not self._data.z.any():
            return 0.0
        new, known = np.atleast_2d(np.asarray(points, np.float64)), self._known.points
        both = np.concatenate([known, new])
        cross = self._prior(both, known)
        mean = cross @ self._weights
        gone = solve_triangular(self._factor, cross.T, lower=True)
        covariance = self._prior(both, new) - gone.T @ gone[:, len(known) :]  # [n + m, m]
        noise = self.hyper.own**2 + self.hyper.noise**2
        factor = np.linalg.cholesky(covariance[len(known) :] + noise * np.eye(len(new)))
        moves = solve_triangular(factor, covariance.T, lower=True)
        luck = np.random.default_rng(0).normal(size=(n_luck, len(new)))
        best = (mean + np.concatenate([luck, -luck]) @ moves).max(1)
        return float(best.mean() - mean[: len(known)].max()) * self.warp.unit

    @property
    def _rest(self) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(len(self._data.z)), self._which)

    def _condition(self) -> None:
        """Solve for all that is known, twice if some networks collapsed."""
        data, own = self._known, np.full(len(self._known.z), self.hyper.own**2)
        smooth = self._prior(data.points, data.points)
        self._noise = self.hyper.noise**2 / data.n
        for again in (True, False):
            self._factor = np.linalg.cholesky(smooth + np.diag(own + self._noise))
            self._weights = cho_solve((self._factor, True), data.z)
            inverse = cho_solve((self._factor, True), np.eye(len(own)))
            away = self._weights / np.sqrt(np.diag(inverse))
            alone = (away < -FAR) | (self._hyperprior.above & (away > FAR))
            if not (again and alone.any()):
                return
            own[alone] += (self._weights / np.diag(inverse))[alone] ** 2

    def _distances(self, one: Floats, other: Floats) -> Floats:
        return _distances(one, other, self._ordered)

    def _prior(self, one: Floats, other: Floats) -> Floats:
        """Return the prior covariance of m + g."""
        squared = np.tensordot(self.hyper.lengths**-2.0, self._distances(one, other), 1)
        trend = self._hyperprior.of_trend(one, other, self._ordered)
        return trend + self.hyper.amplitude**2 * _matern(squared)[0]


@dataclass(frozen=True)
class _Observations:
    """Coordinates [n, d], mean of z, number of replicates, sum of squares within [n]."""

    points: Floats
    z: Floats
    n: Floats
    within: Floats

    def of(self, these: NDArray[np.int64]) -> "_Observations":
        return _Observations(self.points[these], self.z[these], self.n[these], self.within[these])


def _expected_excess(mean: Floats, deviation: Floats) -> Floats:
    """Return the mean of the positive part of normal values."""
    u = mean / deviation
    excess: Floats = deviation * (u * ndtr(u) + np.exp(-0.5 * u**2) / np.sqrt(2 * np.pi))
    return excess


def _warp(means: Floats) -> Warp:
    centre = float(np.median(means))
    better = means[means >= centre] - centre
    # Equal scores have no spread: a unit of what is left of it keeps their errors as small.
    spread = float(np.sqrt((better**2).mean())) or float(means.std())
    unit = spread or NO_SPREAD * (abs(centre) or 1.0)
    return Warp(centre, unit)


def _spread_out(z: Floats, most: int) -> NDArray[np.int64]:
    """Return positions: all, or of more than `most` the best half and others evenly spaced."""
    if len(z) <= most:
        return np.arange(len(z))
    order = np.argsort(-z, kind="stable")
    rest = np.linspace(most // 2, len(z) - 1, most - most // 2).astype(np.int64)
    return np.sort(np.concatenate([order[: most // 2], order[rest]]))


def _distances(one: Floats, other: Floats, ordered: NDArray[np.bool_]) -> Floats:
    """Return squared differences of each coordinate [d, n, m]."""
    apart = one.T[:, :, None] - other.T[:, None, :]
    found: Floats = np.where(ordered[:, None, None], apart**2, apart != 0)
    return found


def _matern(squared: Floats) -> tuple[Floats, Floats]:
    """Return Matern 5/2 at squared distances, and minus twice its derivative by them."""
    r = np.sqrt(5.0 * squared)
    decay = np.exp(-r)
    return (1 + r + r**2 / 3) * decay, (5 / 3) * (1 + r) * decay


def _inverse(factor: Floats) -> Floats:
    """Return the inverse of L Lᵀ; what is above the diagonal of L [n, n] is not read."""
    lower: Floats = np.tril(dpotri(factor, lower=1)[0])
    return lower + np.tril(lower, -1).T


def _fitted(data: _Observations, distances: Floats, trend: Floats, prior: Prior) -> Kernel:
    """Return the hyperparameters of the largest marginal likelihood times prior."""
    medians, _ = prior.of_logarithms(len(distances))
    bounds = [(median - 5.0, median + 5.0) for median in medians]
    found = minimize(
        _loss,
        medians,
        args=(data, distances, trend, prior),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 40},
    )
    b, t, s = np.exp(found.x[:3])
    return Kernel(float(b), float(t), float(s), np.exp(found.x[3:]))


def _loss(
    log: Floats, data: _Observations, distances: Floats, trend: Floats, prior: Prior
) -> tuple[float, Floats]:
    """Return minus the log of marginal likelihood times prior, up to a constant, and gradient.

    Args:
        log: logarithms of (b, t, s, l) [3 + d].
        data: the replicates of n architectures, by their means and sums of squares.
        distances: squared differences of each coordinate [d, n, n].
        trend: prior covariance of m and the trend [n, n].
        prior: of the hyperparameters.
    """
    medians, widths = prior.of_logarithms(len(distances))
    n = len(data.z)
    flat = distances.reshape(len(distances), n * n)
    b2, t2, s2 = np.exp(2 * log[:3])
    inverse_l2 = np.exp(-2 * log[3:])
    matern, slope = _matern((inverse_l2 @ flat).reshape(n, n))
    noise = s2 / data.n
    covariance = trend + b2 * matern + np.diag(t2 + noise)
    factor = cho_factor(covariance, lower=True, check_finite=False)
    weights = cho_solve(factor, data.z, check_finite=False)
    further, within = (data.n - 1).sum(), data.within.sum() / s2
    likelihood = -0.5 * data.z @ weights - np.log(np.diag(factor[0])).sum()
    likelihood -= further * log[2] + 0.5 * within
    a = np.outer(weights, weights) - _inverse(factor[0])
    of_scales = [b2 * (a * matern).sum(), t2 * np.trace(a), np.diag(a) @ noise - further + within]
    of_lengths = 0.5 * b2 * inverse_l2 * (flat @ (a * slope).ravel())
    away = (log - medians) / widths
    gradient = away / widths - np.concatenate([of_scales, of_lengths])
    return float(0.5 * away @ away - likelihood), gradient
