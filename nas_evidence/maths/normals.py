"""Predictive densities of real targets: mixtures of normals, one component per network.

    p(y | x) = Σ_k w_k Π_c N(y_c; μ_kc, σ_kc²)        F_c(q) = Σ_k w_k Φ((q − μ_kc) / σ_kc)

    mean     Σ_k w_k μ_k
    variance Σ_k w_k (σ_k² + μ_k²) − mean²
    interval of probability P: from F⁻¹((1 − P) / 2) to F⁻¹((1 + P) / 2), for each output alone

With one component all of it is the normal distribution's closed form. Means and quantiles, and so
the ends of intervals, are not below the least possible value where one is known; standard
deviations and densities do not change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Log of the root of 2 π.
_LOG_ROOT_2_PI = np.log(np.sqrt(2 * np.pi))
#: Halvings of a bracket of a quantile: to 2⁻⁶⁰ of its width.
_HALVINGS = 60


@dataclass(frozen=True)
class Normals:
    """Mixtures of normals for n data and C outputs.

    weights  [K], sum 1
    means    [K, n, C]
    stds     [K, n, C], > 0
    least    least possible value of each output [C]; minus infinity where there is none
    """

    weights: Floats
    means: Floats
    stds: Floats
    least: Floats | float = -math.inf

    @classmethod
    def single(cls, mean: Floats, std: Floats) -> "Normals":
        """Return normal distributions with these means and standard deviations [n, C]."""
        return cls(np.ones(1), mean[None], np.broadcast_to(std, mean.shape)[None])

    def at(self, rows: NDArray[np.int64]) -> "Normals":
        """Return the distributions of some data."""
        least = self.least if np.ndim(self.least) < 2 else np.asarray(self.least)[rows]
        return Normals(self.weights, self.means[:, rows], self.stds[:, rows], least)

    def column(self, k: int) -> "Normals":
        """Return the distributions of one output alone."""
        least = self.least if np.ndim(self.least) == 0 else np.asarray(self.least)[..., [k]]
        return Normals(self.weights, self.means[..., [k]], self.stds[..., [k]], least)

    def mixed(
        self, weights: Floats, others: Sequence["Normals"], of_weights: Sequence[Floats]
    ) -> tuple["Normals", Floats]:
        """Return the mixture with others, and its spread without noise; see `Density.mixed`."""
        parts = [self, *others]
        whole = Normals(
            np.concatenate([w * part.weights for w, part in zip(weights, parts, strict=True)]),
            np.concatenate([part.means for part in parts]),
            np.concatenate([part.stds for part in parts]),
            self.least,
        )
        noise = np.square(whole.stds) - np.square(np.stack(of_weights))
        variance = np.square(whole.std) - np.tensordot(whole.weights, noise, 1)
        return whole, np.sqrt(variance.clip(min=0))

    @property
    def mean(self) -> Floats:
        """The means [n, C], not below `least`."""
        return np.maximum(np.tensordot(self.weights, self.means, 1), self.least)

    @property
    def n_medians(self) -> int:
        """Return 0: every mean is finite."""
        return 0

    @property
    def std(self) -> Floats:
        """The standard deviations [n, C]."""
        away = np.square(self.means - np.tensordot(self.weights, self.means, 1))
        found: Floats = np.sqrt(np.tensordot(self.weights, np.square(self.stds) + away, 1))
        return found

    def log_density(self, targets: Floats) -> Floats:
        """Return the joint log density of the outputs of each datum [n], nats."""
        z = (targets - self.means) / self.stds
        each: Floats = (-(z**2) / 2 - _LOG_ROOT_2_PI - np.log(self.stds)).sum(2)
        if len(each) == 1:
            return np.asarray(each[0] + np.log(self.weights[0]))
        from scipy.special import logsumexp  # late: workers have one component, and do without

        found: Floats = logsumexp(each, axis=0, b=self.weights[:, None])
        return found

    def cdf(self, values: Floats) -> Floats:
        """Return the probability of less than `values`, for each output alone [n, C]."""
        from scipy.special import ndtr  # late, as all of scipy here

        found: Floats = np.tensordot(self.weights, ndtr((values - self.means) / self.stds), 1)
        return found

    def quantile(self, probability: float) -> Floats:
        """Return the values that are not exceeded with a probability [n, C], from `least` on.

        >>> one = Normals.single(np.array([[2.0]]), np.array([[3.0]]))
        >>> round(float(one.quantile(0.975)[0, 0]), 3)
        7.88
        """
        from scipy.special import ndtri

        each = self.means + ndtri(probability) * self.stds
        if len(self.weights) == 1:
            return np.asarray(np.maximum(each[0], self.least))
        low, high = each.min(0), each.max(0)  # the mixture's lies between its components'
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = self.cdf(middle) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(np.maximum((low + high) / 2, self.least))

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """Return the ends of the central intervals of probability `level` [n, C]."""
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)
