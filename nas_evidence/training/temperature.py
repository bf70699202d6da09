"""The softmax temperature as a hyperparameter, at fixed parameters of the network.

    maximise over log T   log p(D|θ, T) − ½ θᵀ Δ θ − ½ log|H(T) + Δ| / |Δ|,  Δ the best at each T

T divides the outputs. H(T) = Σ Jᵀ (diag p_T − p_T p_Tᵀ) J / T² is not H(1) / T², so every T costs
a pass over the data. Three points bracket the maximum and Brent's method (1973) refines it, with
ten passes in all. The starting value is among the candidates, so the evidence never decreases.
"""

import functools
import math
from collections.abc import Callable

from scipy.optimize import minimize_scalar

LOG_TEMPERATURE_RANGE = (-3.0, 3.0)
_FIRST_STEP = 0.2  # in log T; grows by half while the maximum lies outside
_TOLERANCE = 2e-3  # in log T
_MAX_BRENT = 8  # evaluations after the bracket


def fit_temperature(evidence: Callable[[float], float], start: float) -> float:
    """Return the temperature near `start` that maximises the evidence.

    Args:
        evidence: nats, a smooth function of the temperature.
        start: the current temperature, > 0.
    """
    values: dict[float, float] = {}

    @functools.cache
    def loss(log_temperature: float) -> float:
        values[log_temperature] = -evidence(math.exp(log_temperature))
        return values[log_temperature]

    left, right = _bracket(loss, math.log(start))
    minimize_scalar(
        loss,
        bounds=(left, right),
        method="bounded",
        options={"xatol": _TOLERANCE, "maxiter": _MAX_BRENT},
    )
    return math.exp(min(values, key=values.__getitem__))


def _bracket(loss: Callable[[float], float], start: float) -> tuple[float, float]:
    """Return two points that bracket a minimum, or end at a bound of the range."""
    low, high = LOG_TEMPERATURE_RANGE
    middle = min(high, max(low, start))
    left, right = max(low, middle - _FIRST_STEP), min(high, middle + _FIRST_STEP)
    while loss(left) < loss(middle) and left > low:
        right, middle, left = middle, left, max(low, left - 1.5 * (middle - left))
    while loss(right) < loss(middle) and right < high:
        left, middle, right = middle, right, min(high, right + 1.5 * (right - middle))
    return left, right
