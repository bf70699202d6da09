"""What a network says of rows of data: the distributions of their targets.

    Predictive  on the scale on which the network sees the targets, made by `Likelihood.predictive`
    Delivered   in the unit of the targets: class probabilities, or a `Density` of numbers

A trial, its folds, an export and the posterior of your own network all predict by these two:
outputs f and their covariance by the posterior of the weights -> `predictive` -> `at`, the
calibration -> `log_density` of the targets as the network sees them, or `delivered`.

A trial keeps its out-of-fold predictions as a table [n, C + S], `outputs` beside `spread`;
`restored` makes the same of it again. A row that is not predicted is 0 in it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from nas_evidence.maths.decisions import accuracy, decided
from nas_evidence.maths.density import Density, Floats
from nas_evidence.maths.gaussian_softmax import log_sampled_mean, pairwise_logits
from nas_evidence.maths.metrics import rmse
from nas_evidence.maths.spread_factor import class_factor, real_factor
from nas_evidence.maths.target_scale import TargetScale

#: Draws of each row where probabilities are means over draws of the weights.
N_DRAWS = 256


@dataclass(frozen=True)
class Delivered:
    """What is said of rows of data in the unit of their targets.

    probabilities  of classes [n, C], else None
    density        of numbers, else None
    std_model      [n, C]: the part of `density.std` that comes from the uncertainty of the
                   weights; where the scale of the targets is curved, the same share of it as there
    """

    probabilities: Floats | None = None
    density: Density | None = None
    std_model: Floats | None = None

    def usual(
        self, truth: Any, *, unit: Floats | float = 1.0, class_weights: Floats | None = None
    ) -> float:
        """Return the metric that is shown first: the accuracy of classes, the RMSE of numbers.

        Args:
            truth: labels [n], or targets [n, C].
            unit: of the RMSE [C], in the unit of the targets.
            class_weights: w [C], see `maths/decisions.py`.
        """
        if self.density is not None:
            return rmse((self.density.mean - truth) * unit)
        assert self.probabilities is not None
        chosen = decided(self.probabilities, class_weights=class_weights)
        return accuracy(chosen, truth, class_weights)


@dataclass(frozen=True)
class Predictive(ABC):
    """Distributions of the targets of n rows, as the network sees the targets.

    outputs  [n, C]
    spread   [n, S], > 0
    """

    outputs: Tensor
    spread: Tensor

    @abstractmethod
    def log_density(self, targets: Tensor) -> Tensor:
        """Return log p(y_n) [n], nats, float64."""

    @abstractmethod
    def factor(self, targets: Tensor) -> float:
        """Return the c with which `at` makes these targets likeliest, 1 without any.

        See `maths/spread_factor.py`.

        Raises:
            ValueError: if a prediction or a target is not finite.
        """

    @abstractmethod
    def delivered(self, scale: TargetScale) -> Delivered:
        """Return the same in the unit of the targets.

        Args:
            scale: of the targets, or of those of each row.
        """

    def averaged(self, generator: torch.Generator | None = None) -> "Predictive":
        """Return the same, with means over the posterior of the weights taken where they are due.

        Args:
            generator: of draws for these means; None for a closed form.
        """
        return self

    def at(self, factor: float) -> Self:
        """Return the same calibrated, with the spread times a factor."""
        return replace(self, spread=factor * self.spread)

    def held(self, hold: Callable[[Tensor], Tensor]) -> Self:
        """Return the same with means of numbers held between the bounds of their scale.

        Args:
            hold: from means to means [n, C].
        """
        return self

    def cpu(self) -> Self:
        """Return the same on the CPU."""
        return self._each(Tensor.cpu)

    def rows(self, index: Tensor) -> Self:
        """Return the predictions of some rows."""
        return self._each(lambda values: values[index])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        own = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: change(value) for name, value in own.items()})

    @classmethod
    @abstractmethod
    def restored(cls, table: Tensor) -> Self:
        """Return the predictions of which `stored` made a table [n, C + S]."""

    def stored(self) -> Tensor:
        """Return the table that is kept of them [n, C + S], float32."""
        return torch.cat([self.outputs, self.spread], 1).float()


def joined(parts: Sequence[Predictive]) -> Predictive:
    """Return the predictions of the rows of all parts."""
    first = parts[0]
    of = {one.name: [getattr(part, one.name) for part in parts] for one in fields(first)}
    whole = {name: torch.cat(each) for name, each in of.items() if each[0] is not None}
    return replace(first, **whole)


@dataclass(frozen=True)
class Classes(Predictive):
    """Class probabilities softmax(outputs / spread), or their means over the posterior.

    outputs     logits [n, C]
    spread      T [n, 1]
    covariance  of the logits [n, C, C], over which `averaged` takes means; None for none
    """

    covariance: Tensor | None = None

    def log_density(self, targets: Tensor) -> Tensor:
        """Return log p_y [n]; see `Predictive`."""
        return self._logits().log_softmax(1).gather(1, targets[:, None])[:, 0]

    def factor(self, targets: Tensor) -> float:
        """Return c by Brent's method; see `Predictive`."""
        return class_factor(self._logits(), targets)

    @classmethod
    def restored(cls, table: Tensor) -> Self:
        """Return what a table [n, C + 1] holds; see `Predictive`."""
        return cls(table[:, :-1], table[:, -1:])

    def averaged(self, generator: torch.Generator | None = None) -> "Classes":
        """Return the mean probabilities, by pairs of classes or over draws; see `Predictive`."""
        if self.covariance is None:
            return self
        given = self.outputs, self.covariance, self.spread
        if generator is None:
            logits = pairwise_logits(*given)
        else:
            logits = log_sampled_mean(*given, n_draws=N_DRAWS, generator=generator)
        return Classes(logits, torch.ones_like(self.spread))

    def delivered(self, scale: TargetScale) -> Delivered:
        """Return the probabilities; see `Predictive`."""
        return Delivered(probabilities=self._logits().softmax(1).numpy())

    def _logits(self) -> Tensor:
        """Return the logits divided by the temperature [n, C], float64."""
        found = self.averaged()
        return found.outputs.double() / found.spread.double()


@dataclass(frozen=True)
class Reals(Predictive):
    """Normal distributions of real targets.

    outputs     means [n, C]
    spread      standard deviations [n, C]
    of_weights  the part of them that comes from the uncertainty of the weights [n, C]; None if it
                is not known
    """

    of_weights: Tensor | None = None

    def log_density(self, targets: Tensor) -> Tensor:
        """Return the sum over targets of the log densities [n]; see `Predictive`."""
        z, spread = self._residuals(targets), self.spread.double()
        return (-0.5 * z.square() - spread.log() - 0.5 * math.log(2 * math.pi)).sum(1)

    def factor(self, targets: Tensor) -> float:
        """Return c in closed form; see `Predictive`."""
        return real_factor(self._residuals(targets))

    def at(self, factor: float) -> Self:
        """Return the same with all standard deviations times a factor."""
        own = self.of_weights
        found = replace(self, of_weights=None if own is None else factor * own)
        return super(Reals, found).at(factor)

    @classmethod
    def restored(cls, table: Tensor) -> Self:
        """Return what a table [n, 2 C] holds; see `Predictive`."""
        half = table.shape[1] // 2
        return cls(table[:, :half], table[:, half:])

    def held(self, hold: Callable[[Tensor], Tensor]) -> Self:
        """Return the same with means held between bounds; see `Predictive`."""
        return replace(self, outputs=hold(self.outputs))

    def delivered(self, scale: TargetScale) -> Delivered:
        """Return normal densities, or what the inverse of the scale makes of them."""
        mean, std = (one.detach().double().numpy() for one in (self.outputs, self.spread))
        std = std * scale.spread
        density = scale.density(mean * scale.spread + scale.centre, std)
        if self.of_weights is None:
            return Delivered(density=density)
        # Of the standard deviation on the scale and in the target's unit it is one share.
        share = self.of_weights.double().numpy() * scale.spread / std
        return Delivered(density=density, std_model=share * density.std)

    def _residuals(self, targets: Tensor) -> Tensor:
        """Return the standardised residuals [n, C], float64."""
        return (targets.double() - self.outputs.double()) / self.spread.double()


def reals(
    mean: Tensor, noise: Tensor, of_weights: Tensor | None, most_std: float = math.inf
) -> Reals:
    """Return normal distributions from the variances of noise and means.

    Args:
        mean: [n, C].
        noise: its variance [n, C], or of one shape with it by broadcasting, float64.
        of_weights: the variance of the mean by the posterior [n, C], float64; None without one.
        most_std: maximum of its root.
    """
    own = noise.new_zeros(mean.shape) if of_weights is None else of_weights
    own = own.clamp(0, most_std**2)
    return Reals(mean, (noise + own).sqrt(), own.sqrt())
