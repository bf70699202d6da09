"""The difference of two models' losses over the same data, with an interval.

    d_i = l_i - m_i        differences, nats              m  mean      s  standard deviation
    T   = (m - E d) √n / s                                g  skewness of d
    t   = Student's quantile of n - 1 degrees
    h(T) = T + a T² + a² T³ / 3 + b,   a = g / (3 √n),  b = g / (6 √n)

    low  = m - s / √n max(t, h⁻¹(t))           high = m - s / √n min(-t, h⁻¹(-t))

Log losses of Gaussian predictions grow with the square of the error, so d is skewed: over 50 data
Student's interval misses the mean in one case of twelve, on one side. h (Hall 1992, "On the
removal of skewness by transformation") corrects for the skewness that the data show; where they
show some by chance it makes one end too short, so each end is the further one of the two.

A classifier can cost most by a mistake that is too rare to be among the data. For labels the
interval therefore also holds m ± z √(v / n), where v is the variance expected for labels drawn
from w p + (1 - w) q, the mixture of both predictions, with w as the data say: the mean of its
posterior under a uniform prior. Log losses of real targets have no such bound, and what a model
that the data reject expects of itself is no measure of the error.
"""

import math
from typing import NamedTuple

import numpy as np

from nas_evidence.maths.metrics import LEAST, Floats, Labels

#: Probability of the intervals.
LEVEL = 0.95
#: Weights w = sin² a at which its posterior is computed, evenly spaced in a, and dw / da there.
_ANGLES = np.pi / 2 * np.arange(0.5, 25) / 25
_WEIGHTS, _STEPS = np.sin(_ANGLES) ** 2, np.sin(2 * _ANGLES)


class Paired(NamedTuple):
    """A mean difference in nats per datum, and the interval of `LEVEL` for its expectation."""

    mean: float
    low: float
    high: float


def paired_interval(differences: Floats, *, expected_variance: float = 0.0) -> Paired:
    """Return the mean of differences [n] over data, and its interval; infinite for one datum.

    Args:
        differences: of the losses on each datum, nats.
        expected_variance: v, nats^2; 0 for real targets.

    >>> found = paired_interval(np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    >>> [round(value, 3) for value in found]  # no skewness: Student's interval
    [2.0, 0.037, 3.963]
    """
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return Paired(mean, -math.inf, math.inf)
    from scipy.special import ndtri, stdtrit  # late: who predicts compares nothing

    error, skewness = float(differences.std(ddof=1) / math.sqrt(n)), _skewness(differences)
    t = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    at_least = float(ndtri((1 + LEVEL) / 2)) * math.sqrt(expected_variance / n)
    below = max(error * max(t, _untransformed(t, skewness, n)), at_least)
    above = max(error * -min(-t, _untransformed(-t, skewness, n)), at_least)
    return Paired(mean, mean - below, mean + above)


def _skewness(values: Floats) -> float:
    """Return the skewness, 0 for values that are equal but for rounding."""
    away = values - values.mean()
    spread = float(np.sqrt((away**2).mean()))
    if spread <= 1e-9 * float(np.abs(values).max()):
        return 0.0
    return float(((away / spread) ** 3).mean())


def _untransformed(value: float, skewness: float, n: int) -> float:
    """Return T with h(T) = value."""
    a, b = skewness / (3 * math.sqrt(n)), skewness / (6 * math.sqrt(n))
    if abs(a) < 1e-6:  # the limit, where the formula below divides rounding errors
        return value
    return float((np.cbrt(1 + 3 * a * (value - b)) - 1) / a)


def expected_variance_of_classes(one: Floats, other: Floats, labels: Labels) -> float:
    """Return v in nats^2: what to expect of labels as the two models predict them.

    Args:
        one: probabilities [n, C].
        other: the same of the other model.
        labels: [n], which say how much each of them is to be believed.

    >>> even, sure = np.full((50, 2), 0.5), np.tile([0.9, 0.1], (50, 1))
    >>> expected_variance_of_classes(even, even, np.zeros(50, np.int64))
    0.0
    >>> v = expected_variance_of_classes(sure, even, np.zeros(50, np.int64))
    >>> bool(0.09 < v / np.log(9) ** 2 < 0.11)  # nearly that by `sure` alone, 0.09
    True
    """
    one, other = (p.clip(LEAST, 1) for p in (one, other))
    weight = _weight(*(p[np.arange(len(labels)), labels] for p in (one, other)))
    share, gap = weight * one + (1 - weight) * other, np.log(one) - np.log(other)
    mean = float((share * gap).sum(1).mean())
    return float((share * (gap - mean) ** 2).sum(1).mean())


def _weight(own: Floats, others: Floats) -> float:
    """Return the posterior mean of w, given what each model said of the truth [n]."""
    from scipy.special import logsumexp

    mixed = _WEIGHTS[:, None] * own + (1 - _WEIGHTS[:, None]) * others
    # Products of 16 of at least 2.2e-16 do not underflow, and cost fewer logarithms.
    logs = np.log(np.multiply.reduceat(mixed, np.arange(0, len(own), 16), axis=1)).sum(1)
    return float(np.exp(logsumexp(logs, b=_STEPS * _WEIGHTS) - logsumexp(logs, b=_STEPS)))
