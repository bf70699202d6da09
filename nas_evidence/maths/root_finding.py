"""The root of a function between two bounds by Brent's method.

    low    f(low) and f(high) have opposite signs; the bracket keeps a root inside
    step   inverse quadratic interpolation, or the secant, while steps shrink; else bisection

Brent (1973), ch. 4, with the order of operations of `scipy.optimize.brentq`, so the results are
the same numbers. Importing scipy.optimize takes half a second, in each process that trains.
"""

import math
from collections.abc import Callable

#: Relative tolerance: four times the distance from 1 to the next float.
_RELATIVE = 2.0**-50
#: Maximum number of steps; bisection alone would need about 60.
_STEPS = 100


def root(function: Callable[[float], float], low: float, high: float, *, xtol: float) -> float:
    """Return where a continuous function is 0, as near as 100 steps come.

    >>> round(root(lambda x: x**2 - 2, 0.0, 2.0, xtol=1e-13), 12)
    1.414213562373

    Args:
        function: whose signs at the bounds are opposite, unless it is 0 at one of them.
        low: lower bound.
        high: upper bound.
        xtol: absolute tolerance, > 0.

    Raises:
        ValueError: if the signs are equal, or a value is NaN.
    """

    def value_at(x: float) -> float:
        value = float(function(x))
        if math.isnan(value):
            raise ValueError(f"no root is found: the function is NaN at {x!r}")
        return value

    before, now = low, high
    f_before, f_now = value_at(before), value_at(now)
    if f_before == 0:
        return before
    if f_now == 0:
        return now
    if (f_before > 0) == (f_now > 0):
        raise ValueError(
            f"no root is found: the function has one sign at {low!r} and {high!r}, "
            f"{f_before!r} and {f_now!r}"
        )
    across = f_across = last = step = 0.0  # `across`: the other end of the bracket
    for _ in range(_STEPS):
        if f_before != 0 and f_now != 0 and (f_before > 0) != (f_now > 0):
            across, f_across = before, f_before
            last = step = now - before
        if abs(f_across) < abs(f_now):
            before, now, across = now, across, now
            f_before, f_now, f_across = f_now, f_across, f_now
        tolerance = (xtol + _RELATIVE * abs(now)) / 2
        half = (across - now) / 2
        if f_now == 0 or abs(half) < tolerance:
            return now
        tried = math.inf
        if abs(last) > tolerance and abs(f_now) < abs(f_before):
            if before == across:
                tried = -f_now * (now - before) / (f_now - f_before)
            else:
                slope = (f_before - f_now) / (before - now)
                slope_across = (f_across - f_now) / (across - now)
                tried = -f_now * (f_across * slope_across - f_before * slope)
                tried /= slope_across * slope * (f_across - f_before)
        if 2 * abs(tried) < min(abs(last), 3 * abs(half) - tolerance):
            last, step = step, tried
        else:
            last = step = half
        before, f_before = now, f_now
        now += step if abs(step) > tolerance else math.copysign(tolerance, half)
        f_now = value_at(now)
    return now
