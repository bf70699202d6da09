"""Scales of real targets: smooth bijections g of their support onto the real line.

    z = (g(y) - m) / s          log p(y) = log p(z) + log g'(y) - log s

    identity      y
    log           log y                                   y > 0
    shifted_log   log(y + c)                              y > -c, c > 0
    yeo_johnson   sign(u) ((1 + |u|)^p - 1) / p           u = y / b; p = lambda for u >= 0, else
                                                          2 - lambda; lambda in [0, 2]
    sinh_arcsinh  sinh(delta asinh(u) - epsilon)          u = (y - a) / b

    m, s  mean and standard deviation of g(y) over the training rows: a network sees z

Means of predictions on a scale other than identity are held to the range of g(y) in training,
half a standard deviation further at each end, and the weights make them uncertain by at most one.
An inverse is exponential: a network that extrapolates a little predicts many times the largest
target, and a mean of a wide distribution is larger still (decision 28).

The parameters maximise the likelihood of normally distributed g(y) on the training rows; m and s
are profiled out, so that it is -n/2 log s^2 + sum log g'(y). A grid, then Nelder and Mead from its
best point: nothing is random. Median and quartiles give a and b of sinh_arcsinh.

Without bounds this likelihood is infinite: log(y + c) puts its density on the least target as c
falls to minus that target. So y + c is at least the distance from the least target to the next,
and b of yeo_johnson, if there is a target 0, the least other one in absolute value; both are at
least a thousandth of a standard deviation.

Yeo & Johnson (2000); Jones & Pewsey (2009). Beyond [0, 2] the former is not onto the real line.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray

from nas_evidence.maths.normals import Normals

Floats = NDArray[np.float64]

#: Maximum number of rows that parameters are fitted to: of more, as many evenly spaced order
#: statistics.
MOST_FITTED = 20_000
#: Smallest and largest b or y + c, in standard deviations of the targets.
_LEAST, _MOST = 1e-3, 1e3
#: Smallest exponent of yeo_johnson: its formulas need no limit of their own, also where exp(t) - 1
#: takes the place of expm1 (ONNX).
_TINY = 1e-6
_NODES, _WEIGHTS = hermegauss(64)
#: How far means of predictions may be outside the range of training, in standard deviations.
_BEYOND = 0.5
#: Bounds of a `TargetScale`, and what each is where there is none.
_BOUNDS = {"least": -math.inf, "lowest": -math.inf, "highest": math.inf}


class _Curve(NamedTuple):
    """A family of bijections.

    Its functions take values, the parameters [P, ...], and numpy or torch as the namespace.

    parameters  their names
    fitted      returns them for a column of targets [n] that vary
    """

    parameters: tuple[str, ...]
    forward: Callable[[Any, Any, Any], Any]
    inverse: Callable[[Any, Any, Any], Any]
    log_slope: Callable[[Any, Any, Any], Any]
    fitted: Callable[[Floats], Sequence[float]]


def _profiled(name: str, y: Floats, theta: Sequence[float]) -> float:
    """Return the negative log likelihood per row, less a constant; infinite where it is none."""
    curve, p = CURVES[name], np.array(theta)[:, None]
    with np.errstate(all="ignore"):
        variance = float(np.var(curve.forward(y, p, np)))
        value = 0.5 * math.log(variance) if variance > 0 else math.nan
        value -= float(curve.log_slope(y, p, np).mean())
    return value if math.isfinite(value) else math.inf


def _most_likely(
    name: str,
    y: Floats,
    grids: Sequence[Floats],
    parameters: Callable[[Floats], Sequence[float]],
) -> Sequence[float]:
    """Return the parameters of largest likelihood within the box that the grids span.

    Args:
        name: of the curve.
        y: targets [n].
        grids: of each coordinate, increasing.
        parameters: of the curve, from the coordinates.
    """
    from scipy.optimize import minimize  # late: half a second, for a scale that is fitted alone

    points = np.stack(np.meshgrid(*grids, indexing="ij"), -1).reshape(-1, len(grids))
    losses = [_profiled(name, y, parameters(point)) for point in points]
    best = points[int(np.argmin(losses))]
    found = minimize(
        lambda point: _profiled(name, y, parameters(point)),
        best,
        method="Nelder-Mead",
        bounds=[(grid[0], grid[-1]) for grid in grids],
        options={"xatol": 1e-6, "fatol": 1e-10, "maxiter": 400},
    )
    return parameters(np.asarray(found.x if found.fun <= min(losses) else best))


def _logs_from(gap: float, std: float, n: int) -> Floats:
    """Return a grid of logarithms from the smallest to the largest sensible unit."""
    return np.linspace(math.log(max(_LEAST * std, min(gap, std))), math.log(_MOST * std), n)


def _fit_shift(y: Floats) -> Sequence[float]:
    lowest = max(0.0, -float(y.min()))
    gap = float(np.diff(np.unique(y)[:2])[0])
    grid = _logs_from(gap, float(y.std()), 49)
    return _most_likely("shifted_log", y, [grid], lambda point: [lowest + math.exp(point[0])])


def _fit_yeo_johnson(y: Floats) -> Sequence[float]:
    gap = float(np.abs(y[y != 0]).min()) if (y == 0).any() else 0.0
    grids = [np.linspace(0.0, 2.0, 9), _logs_from(gap, float(y.std()), 13)]
    return _most_likely(
        "yeo_johnson", y, grids, lambda point: [float(point[0]), math.exp(point[1])]
    )


def _fit_sinh_arcsinh(y: Floats) -> Sequence[float]:
    low, middle, high = np.quantile(y, (0.25, 0.5, 0.75))
    b = float(high - low) / 1.349 or float(y.std())  # of a normal distribution its std
    grids = [np.linspace(-3.0, 3.0, 13), np.linspace(math.log(0.2), math.log(5.0), 9)]
    return _most_likely(
        "sinh_arcsinh",
        y,
        grids,
        lambda point: [float(middle), b, float(point[0]), math.exp(point[1])],
    )


def _exponent(u: Any, p: Any, xp: Any) -> Any:
    return xp.clip(xp.where(u >= 0, p[0], 2 - p[0]), _TINY, 2.0)


def _yeo_johnson(y: Any, p: Any, xp: Any) -> Any:
    exponent, logs = _exponent(y, p, xp), xp.log1p(xp.abs(y / p[1]))
    return xp.sign(y) * xp.expm1(exponent * logs) / exponent


def _yeo_johnson_inverse(g: Any, p: Any, xp: Any) -> Any:
    exponent = _exponent(g, p, xp)
    return p[1] * xp.sign(g) * xp.expm1(xp.log1p(exponent * xp.abs(g)) / exponent)


def _yeo_johnson_log_slope(y: Any, p: Any, xp: Any) -> Any:
    return (_exponent(y, p, xp) - 1) * xp.log1p(xp.abs(y / p[1])) - xp.log(p[1])


def _sinh_arcsinh_inverse(g: Any, p: Any, xp: Any) -> Any:
    # By exp and log: onnxruntime has neither function for float64.
    arcsinh = xp.sign(g) * xp.log(xp.abs(g) + xp.sqrt(g * g + 1))
    v = (arcsinh + p[2]) / p[3]
    return p[0] + p[1] * (xp.exp(v) - xp.exp(-v)) / 2


def _sinh_arcsinh_log_slope(y: Any, p: Any, xp: Any) -> Any:
    u = (y - p[0]) / p[1]
    w = xp.abs(p[3] * xp.arcsinh(u) - p[2])
    log_cosh = w + xp.log1p(xp.exp(-2 * w)) - math.log(2)
    return log_cosh + xp.log(p[3] / p[1]) - 0.5 * xp.log1p(u * u)


#: Scales by name.
CURVES: Mapping[str, _Curve] = {
    "identity": _Curve(
        (),
        lambda y, p, xp: y,
        lambda g, p, xp: g,
        lambda y, p, xp: xp.zeros_like(y),
        lambda y: (),
    ),
    "log": _Curve(
        (),
        lambda y, p, xp: xp.log(y),
        lambda g, p, xp: xp.exp(g),
        lambda y, p, xp: -xp.log(y),
        lambda y: (),
    ),
    "shifted_log": _Curve(
        ("c",),
        lambda y, p, xp: xp.log(y + p[0]),
        lambda g, p, xp: xp.exp(g) - p[0],
        lambda y, p, xp: -xp.log(y + p[0]),
        _fit_shift,
    ),
    "yeo_johnson": _Curve(
        ("lambda", "b"),
        _yeo_johnson,
        _yeo_johnson_inverse,
        _yeo_johnson_log_slope,
        _fit_yeo_johnson,
    ),
    "sinh_arcsinh": _Curve(
        ("a", "b", "epsilon", "delta"),
        lambda y, p, xp: xp.sinh(p[3] * xp.arcsinh((y - p[0]) / p[1]) - p[2]),
        _sinh_arcsinh_inverse,
        _sinh_arcsinh_log_slope,
        _fit_sinh_arcsinh,
    ),
}


@dataclass(frozen=True)
class TargetScale:
    """The scale of C real targets: a curve g for each, and the standardisation of g(y).

    name        of the curve
    parameters  [P, C], or of each row [P, n, C]
    centre      mean of g(y) in training [C] or [n, C]
    spread      its standard deviation, 1 where it is constant
    least       least value that predictions may have: 0 of targets that are never negative, else
                minus infinity [C] or [n, C]
    lowest      bounds of the means of predictions of g(y): minus and plus infinity for "identity"
    highest     [C] or [n, C]

    >>> scale = fit("log", np.array([[1.0], [np.e**2]]))
    >>> scale.standardised(np.array([[1.0], [np.e]])).ravel().tolist()
    [-1.0, 0.0]
    """

    name: str
    parameters: Floats
    centre: Floats
    spread: Floats
    least: Floats
    lowest: Floats
    highest: Floats

    @property
    def most_std(self) -> float:
        """Largest uncertainty that weights give a mean, in units of `spread`."""
        return math.inf if self.name == "identity" else 1.0

    def forward(self, y: Floats) -> Floats:
        """Return g(y) [n, C]; NaN or infinite outside the support."""
        with np.errstate(all="ignore"):
            return np.asarray(CURVES[self.name].forward(y, self.parameters, np))

    def inverse(self, g: Floats) -> Floats:
        """Return the targets [..., n, C] of values of g; infinite where float64 ends."""
        with np.errstate(over="ignore"):
            return np.asarray(CURVES[self.name].inverse(g, self.parameters, np))

    def log_slope(self, y: Floats) -> Floats:
        """Return log g'(y) [n, C]."""
        with np.errstate(all="ignore"):
            return np.asarray(CURVES[self.name].log_slope(y, self.parameters, np))

    def standardised(self, y: Floats) -> Floats:
        """Return z [n, C], what a network sees."""
        found: Floats = (self.forward(y) - self.centre) / self.spread
        return found

    def restored(self, z: Floats) -> Floats:
        """Return the targets of z [n, C], held as means of predictions are."""
        return self.inverse((self.centre + self.spread * z).clip(self.lowest, self.highest))

    def holds(self, y: Floats) -> NDArray[np.bool_]:
        """Return which rows have all their targets in the support [n]."""
        return np.asarray(np.isfinite(self.forward(y)).all(1))

    def log_jacobian(self, y: Floats, unit: Floats) -> Floats:
        """Return log |dz/du| of each row [n], nats, where u = y / unit; -inf off the support.

        Added to a log density of z it gives that of u.
        """
        each = self.log_slope(y) - np.log(self.spread) + np.log(unit)
        return np.where(self.holds(y), each.sum(1), -np.inf)

    def at(self, rows: NDArray[Any]) -> "TargetScale":
        """Return the scale of some rows, where each row has its own."""
        if self.centre.ndim == 1:
            return self
        return TargetScale(
            self.name,
            self.parameters[:, rows],
            self.centre[rows],
            self.spread[rows],
            *(getattr(self, bound)[rows] for bound in _BOUNDS),
        )

    def column(self, k: int) -> "TargetScale":
        """Return the scale of one target alone."""
        others = (getattr(self, name)[..., [k]] for name in ("centre", "spread", *_BOUNDS))
        return TargetScale(self.name, self.parameters[..., [k]], *others)

    def density(self, mean: Floats, std: Floats) -> "Normals | OnScale":
        """Return what normal distributions of g(y), with means and stds [n, C], say of y."""
        return self.mixture(Normals.single(mean, std))

    def mixture(self, normals: Normals) -> "Normals | OnScale":
        """Return what mixtures of normal distributions of g(y) say of y, their means held."""
        if self.name == "identity":
            return replace(normals, least=self.least)
        held = normals.means.clip(self.lowest, self.highest)
        return OnScale(replace(normals, means=held), self)

    def to_json(self) -> dict[str, Any]:
        """Return it as values of JSON; a bound is null where there is none."""
        values = dict(zip(CURVES[self.name].parameters, self.parameters.tolist(), strict=True))
        return {
            "name": self.name,
            "parameters": values,
            "centre": self.centre.tolist(),
            "spread": self.spread.tolist(),
            **{
                bound: [None if math.isinf(v) else v for v in getattr(self, bound).tolist()]
                for bound in _BOUNDS
            },
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "TargetScale":
        """Return what `to_json` returned."""
        n, names = len(stored["centre"]), CURVES[stored["name"]].parameters
        return cls(
            stored["name"],
            np.array([stored["parameters"][name] for name in names], float).reshape(-1, n),
            np.array(stored["centre"], float),
            np.array(stored["spread"], float),
            *(
                np.array([none if v is None else v for v in stored[bound]], float)
                for bound, none in _BOUNDS.items()
            ),
        )


def fit(name: str, y: Floats) -> TargetScale:
    """Return a scale fitted to the targets of the training rows [n, C], each column alone.

    A column whose values are all equal has the parameters of values one apart.

    Raises:
        KeyError: for an unknown name.
    """
    columns = []
    for column in y.T:
        varies = column.min() < column.max()
        columns.append(CURVES[name].fitted(_fewer(column if varies else column[0] + np.arange(2))))
    parameters = np.array(columns, float).reshape(y.shape[1], -1).T
    g = TargetScale(name, parameters, *(np.zeros(y.shape[1]) for _ in range(5))).forward(y)
    spread = np.where(g.min(0) == g.max(0), 1.0, g.std(0))
    beyond = (np.inf if name == "identity" else _BEYOND) * spread
    lowest, highest = g.min(0) - beyond, g.max(0) + beyond
    return TargetScale(name, parameters, g.mean(0), spread, least_of(y), lowest, highest)


def least_of(y: Floats) -> Floats:
    """Return 0 for each column of targets [n, C] without a negative value, else -inf [C]."""
    return np.where(y.min(0) >= 0, 0.0, -np.inf)


def identity(mean: Floats, std: Floats, least: Floats) -> TargetScale:
    """Return the scale on which targets are only standardised, by these values [C]."""
    no_bound = np.full(len(mean), np.inf)
    return TargetScale("identity", np.zeros((0, len(mean))), mean, std, least, -no_bound, no_bound)


def unscaled(n: int) -> TargetScale:
    """Return the scale on which `n` targets stay as they are."""
    return identity(np.zeros(n), np.ones(n), np.full(n, -np.inf))


def by_row(scales: Sequence[tuple[NDArray[Any], TargetScale]], n: int) -> TargetScale:
    """Return one scale of `n` rows from those of some rows each.

    Rows of none have the first one.
    """
    first = scales[0][1]
    shape = (n, len(first.centre))
    parameters = np.broadcast_to(first.parameters[:, None], (len(first.parameters), *shape)).copy()
    names = ("centre", "spread", *_BOUNDS)
    others = [np.broadcast_to(getattr(first, name), shape).copy() for name in names]
    for rows, scale in scales:
        parameters[:, rows] = scale.parameters[:, None]
        for own, name in zip(others, names, strict=True):
            own[rows] = getattr(scale, name)
    return TargetScale(first.name, parameters, *others)


def _fewer(y: Floats) -> Floats:
    """Return at most `MOST_FITTED` values with about the same distribution, in order."""
    y = np.sort(y)
    if len(y) <= MOST_FITTED:
        return y
    return np.asarray(y[np.linspace(0, len(y) - 1, MOST_FITTED).round().astype(int)])


@dataclass(frozen=True)
class OnScale:
    """Predictive densities of y where g(y) is a mixture of normals; methods as of `Normals`.

        p(y) = p_normal(g(y)) g'(y)      F^-1(q) = g^-1(F_normal^-1(q))

    Mean and standard deviation are of y, by Gauss-Hermite quadrature with 64 nodes: exact for
    polynomials of g of degree 127, and in float64 for the logarithm with a spread below 6.

    >>> log = fit("log", np.array([[1.0], [np.e**2]]))
    >>> found = log.density(np.array([[1.0]]), np.array([0.5]))
    >>> round(float(found.mean[0, 0] / np.exp(1 + 0.5**2 / 2)), 12)
    1.0
    """

    normals: Normals
    scale: TargetScale

    def at(self, rows: NDArray[Any]) -> "OnScale":
        """Return the densities of some data."""
        return OnScale(self.normals.at(rows), self.scale.at(rows))

    def column(self, k: int) -> "OnScale":
        """Return the densities of one target alone."""
        return OnScale(self.normals.column(k), self.scale.column(k))

    @cached_property
    def mean(self) -> Floats:
        """The means [n, C], not below `least`; the median where float64 does not hold the mean."""
        return np.maximum(self._finite_mean, self.least)

    @property
    def _finite_mean(self) -> Floats:
        return np.where(np.isfinite(self._mean), self._mean, self.quantile(0.5))

    @cached_property
    def std(self) -> Floats:
        """The standard deviations [n, C]."""
        mean = self._finite_mean
        return np.sqrt(self._expected(lambda y: np.square(y - mean)))

    @property
    def n_medians(self) -> int:
        """How many rows have a median in place of a mean."""
        return int((~np.isfinite(self._mean)).any(1).sum())

    @cached_property
    def _mean(self) -> Floats:
        return self._expected(lambda y: y)

    def log_density(self, targets: Floats) -> Floats:
        """Return the joint log density of the targets of each datum [n]; -inf off the support."""
        inside = self.scale.holds(targets)
        g = np.where(inside[:, None], self.scale.forward(targets), 0.0)
        found = self.normals.log_density(g) + self.scale.log_slope(targets).sum(1)
        return np.where(inside, found, -np.inf)

    @property
    def least(self) -> Floats:
        """The least possible value of each output [C]; minus infinity where there is none."""
        return self.scale.least

    def cdf(self, values: Floats) -> Floats:
        """Return the probability of less than `values`, for each output alone [n, C]."""
        g = self.scale.forward(values)
        return self.normals.cdf(np.where(np.isnan(g), -np.inf, g))  # NaN is below the support

    def quantile(self, probability: float) -> Floats:
        """Return the values that are not exceeded with a probability [n, C], from `least` on."""
        found = self.scale.inverse(self.normals.quantile(probability))
        return np.maximum(found, self.scale.least)

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """Return the ends of the central intervals of probability `level` [n, C]."""
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def mixed(
        self, weights: Floats, others: Sequence["OnScale"], of_weights: Sequence[Floats]
    ) -> tuple["OnScale", Floats]:
        """Return the mixture with others, and its spread without noise; see `Density.mixed`.

        That spread is the same share of the standard deviation as on the scale.
        """
        parts = [self, *others]
        on_scale = [
            own / part.std * part.normals.stds[0]
            for own, part in zip(of_weights, parts, strict=True)
        ]
        normals, spread = self.normals.mixed(weights, [part.normals for part in others], on_scale)
        whole = OnScale(normals, self.scale)
        return whole, whole.std * spread / normals.std

    def _expected(self, function: Callable[[Floats], Floats]) -> Floats:
        """Return the expectation of a function of y [n, C]."""
        total = np.zeros(self.normals.means.shape[1:])
        own = zip(self.normals.weights, self.normals.means, self.normals.stds, strict=True)
        with np.errstate(over="ignore", invalid="ignore"):
            for weight, mean, std in own:
                for node, share in zip(_NODES, _WEIGHTS / _WEIGHTS.sum(), strict=True):
                    total += weight * share * function(self.scale.inverse(mean + node * std))
        return total
