"""Mixtures of predictive densities that are on different scales, such as those of other folds.

    F(y) = Σ_k w_k F_k(y)

Each part has a scale of its own, so the mixture is on none: its quantiles are found by halving an
interval. Parts on one scale are mixed on it (`Density.mixed`), which is faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas_evidence.maths.density import Density, Floats
from nas_evidence.maths.target_scale import OnScale, TargetScale

#: Halvings of an interval around a quantile: to the precision of float64.
_HALVINGS = 50


@dataclass(frozen=True)
class Mixture:
    """The mixture of K densities of the same data; methods as of `Density`.

    weights  [K], sum 1
    parts    K densities of n data and C targets, in the unit of the targets
    """

    weights: Floats
    parts: Sequence[OnScale]

    @cached_property
    def mean(self) -> Floats:
        """The means [n, C]."""
        return np.asarray(np.tensordot(self.weights, [part.mean for part in self.parts], 1))

    @cached_property
    def std(self) -> Floats:
        """The standard deviations [n, C]."""
        away = [np.square(part.std) + np.square(part.mean - self.mean) for part in self.parts]
        return np.asarray(np.sqrt(np.tensordot(self.weights, away, 1)))

    @property
    def least(self) -> Floats:
        """The least possible value of each target."""
        return np.asarray(np.minimum.reduce([part.least for part in self.parts]))

    @property
    def n_medians(self) -> int:
        """How many rows have a median in place of a mean in some part."""
        return max(part.n_medians for part in self.parts)

    def log_density(self, targets: Floats) -> Floats:
        """Return the joint log density of the targets of each datum [n], nats."""
        from scipy.special import logsumexp  # late, as all of scipy here

        each = np.stack([part.log_density(targets) for part in self.parts])
        with np.errstate(divide="ignore"):
            return np.asarray(logsumexp(each, axis=0, b=self.weights[:, None]))

    def cdf(self, values: Floats) -> Floats:
        """Return the probability of less than `values`, for each target alone [n, C]."""
        from scipy.special import ndtr

        weights, means, stds, scale = self._components
        g = scale.forward(values)
        each = ndtr((np.where(np.isnan(g), -np.inf, g) - means) / stds)  # NaN is below the support
        return np.asarray(np.tensordot(weights, each, 1))

    @cached_property
    def _components(self) -> tuple[Floats, Floats, Floats, TargetScale]:
        """Weights [K'], means and standard deviations [K', n, C] of all normals, and their scales.

        The parameters of the scales are [P, K', n, C]: quantiles need many values of `cdf`.
        """
        first = self.parts[0]
        found, shape = [], first.normals.means.shape[1:]
        for weight, part in zip(self.weights, self.parts, strict=True):
            own = part.scale.parameters
            own = np.broadcast_to(own if own.ndim > 2 else own[:, None], (len(own), *shape))
            for k, share in enumerate(part.normals.weights):
                std = np.broadcast_to(part.normals.stds[k], shape)
                found.append((weight * share, part.normals.means[k], std, own))
        weights, means, stds, parameters = map(np.array, zip(*found, strict=True))
        return weights, means, stds, replace(first.scale, parameters=parameters.swapaxes(0, 1))

    def quantile(self, probability: float) -> Floats:
        """Return the values that are not exceeded with a probability [n, C]."""
        each = np.stack([part.quantile(probability) for part in self.parts])
        low, high = each.min(0), each.max(0)  # the mixture's lies between those of its parts
        for _ in range(_HALVINGS):
            middle = low + (high - low) / 2
            below = self.cdf(middle) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(low + (high - low) / 2)

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """Return the ends of the central intervals of probability `level` [n, C]."""
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def at(self, rows: NDArray[Any]) -> "Mixture":
        """Return the densities of some data."""
        return Mixture(self.weights, [part.at(rows) for part in self.parts])

    def column(self, k: int) -> "Mixture":
        """Return the densities of one target alone."""
        return Mixture(self.weights, [part.column(k) for part in self.parts])

    def mixed(
        self, weights: Floats, others: Sequence["Mixture"], of_weights: Sequence[Floats]
    ) -> tuple["Mixture", Floats]:
        """Return the mixture with others; see `Density.mixed`.

        The spread without noise is Σ w_k of_weights_k², and that of the means of the parts.
        """
        each = [self, *others]
        own = [w * part.weights for w, part in zip(weights, each, strict=True)]
        whole = Mixture(np.concatenate(own), [one for part in each for one in part.parts])
        return whole, _spread(weights, [part.mean for part in each], of_weights)


def mixed_apart(
    weights: Floats, parts: Sequence[OnScale], of_weights: Sequence[Floats]
) -> tuple[Mixture, Floats]:
    """Return the mixture of densities on different scales, and its spread without noise [n, C]."""
    return Mixture(weights, parts), _spread(weights, [part.mean for part in parts], of_weights)


def on_different_scales(parts: Sequence[Density]) -> list[OnScale]:
    """Return the densities if they are on different scales; none if on one, or not on scales."""
    own = [part for part in parts if isinstance(part, OnScale)]
    if len(own) < len(parts) or all(
        np.array_equal(own[0].scale.parameters, other.scale.parameters) for other in own
    ):
        return []
    return own


def _spread(weights: Floats, means: Sequence[Floats], of_weights: Sequence[Floats]) -> Floats:
    away = np.square(means - np.tensordot(weights, means, 1))
    return np.asarray(np.sqrt(np.tensordot(weights, np.square(of_weights) + away, 1)))
