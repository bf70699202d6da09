"""Predictive densities of numbers: what metrics, intervals and figures ask of them."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Density(Protocol):
    """Distributions of numbers, for n data and C targets, in the unit of the targets.

    `normals.py` and `target_scale.py` have those of real targets. `crps.py` has the CRPS of each.
    """

    @property
    def mean(self) -> Floats:
        """The means [n, C], not below `least`."""

    @property
    def std(self) -> Floats:
        """The standard deviations [n, C]."""

    @property
    def least(self) -> Floats | float:
        """The least possible value of each target [C]; minus infinity where there is none."""

    @property
    def n_medians(self) -> int:
        """How many rows have a median in place of a mean, because that is not finite."""

    def log_density(self, targets: Floats) -> Floats:
        """Return the joint log density of the targets of each datum [n], nats."""

    def cdf(self, values: Floats) -> Floats:
        """Return the probability of less than `values`, for each target alone [n, C]."""

    def quantile(self, probability: float) -> Floats:
        """Return the values that are not exceeded with a probability [n, C]."""

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """Return the ends of the central intervals of probability `level` [n, C]."""

    def at(self, rows: NDArray[Any]) -> Self:
        """Return the densities of some data."""

    def column(self, k: int) -> Self:
        """Return the densities of one target alone."""

    def mixed(
        self, weights: Floats, others: Sequence[Self], of_weights: Sequence[Floats]
    ) -> tuple[Self, Floats]:
        """Return the mixture with other densities of the same data, as of an ensemble.

        Args:
            weights: of all [K], of this one first; sum 1.
            others: K - 1 of the same class.
            of_weights: the part of each standard deviation that comes from the uncertainty of the
                network's weights, K times [n, C].

        Returns:
            The mixture, and the same part of its standard deviation [n, C]: what is left without
            the noise of the members.
        """
