"""The continuous ranked probability score of predictive densities of real targets.

    CRPS(F, y) = int (F(t) - [t >= y])^2 dt                     in the unit of y, smaller is better
               = |y - h(a)| + int_lo^a F^2 h'(z) dz + int_a^hi (1 - F)^2 h'(z) dz

    h  inverse of the scale g of the targets         F  mixture of normals on that scale
    a  g(y), at most hi and at least lo, beyond which F is 1 or 0 in float64

Below the least possible value of the targets F is 0, as for quantiles and intervals. For a point
prediction the CRPS is the absolute error. Matheson & Winkler (1976); Gneiting & Raftery (2007),
eq. 20. One quadrature for every scale and mixture, that of Gauss and Legendre: panels end at
multiples of the sigma of every component, so that a narrow one beside a wide one is not missed.
(scoringrules has closed forms, but none for a mixture that is mapped or cut off.)
"""

from functools import singledispatch
from itertools import pairwise

import numpy as np
from numpy.polynomial.legendre import leggauss

from nas_evidence.maths.density import Density, Floats
from nas_evidence.maths.mixed_density import Mixture
from nas_evidence.maths.normals import Normals
from nas_evidence.maths.target_scale import OnScale, identity

#: Ends of panels, in standard deviations around the mean of each component; beyond the last F is
#: 0 or 1 in float64.
_ENDS = np.array([-10.0, -5.0, -2.5, 0.0, 2.5, 5.0, 10.0])
_NODES, _WEIGHTS = leggauss(10)


@singledispatch
def crps(predictive: Density, targets: Floats) -> Floats:
    """Return the CRPS of each target [n, C], in its own unit.

    >>> one = Normals.single(np.zeros((1, 1)), np.ones(1))
    >>> round(float(crps(one, np.zeros((1, 1)))[0, 0]), 6)  # (sqrt(2) - 1) / sqrt(pi)
    0.233695

    Args:
        predictive: densities of n data and C columns, in the unit of the targets.
        targets: [n, C].

    Raises:
        NotImplementedError: for another class of densities.
    """
    raise NotImplementedError(f"crps of {type(predictive).__name__}")


@crps.register
def _(predictive: Normals, targets: Floats) -> Floats:
    zeros = np.zeros(targets.shape[1])
    least = np.broadcast_to(predictive.least, zeros.shape)
    return crps(OnScale(predictive, identity(zeros, zeros + 1, least)), targets)


@crps.register
def _(predictive: Mixture, targets: Floats) -> Floats:
    # In the unit of the targets: there is no scale on which all parts are normal.
    each = [
        part.scale.inverse(part.normals.means + end * part.normals.stds)
        for part in predictive.parts
        for end in _ENDS
    ]
    inside = np.maximum(np.concatenate(each), predictive.least)
    low, high = inside.min(0), inside.max(0)
    at = np.clip(targets, low, high)
    ends = np.sort(np.concatenate([inside, at[None]]), axis=0)
    found = np.abs(targets - at)
    for a, b in pairwise(ends):
        for node, share in zip((_NODES + 1) / 2, _WEIGHTS / 2, strict=True):
            below = predictive.cdf(a + (b - a) * node)
            found += share * (b - a) * np.where(b <= at, below, 1 - below) ** 2
    return found


@crps.register
def _(predictive: OnScale, targets: Floats) -> Floats:
    from scipy.special import ndtr  # late: whoever trains or predicts asks for no CRPS

    normals, scale = predictive.normals, predictive.scale
    floor = np.where(np.isneginf(scale.least), -np.inf, scale.forward(scale.least))
    ends = normals.means + _ENDS[:, None, None, None] * normals.stds
    low = np.maximum(ends[0].min(0), floor)
    high = np.maximum(ends[-1].max(0), low)
    g = scale.forward(targets)
    at = np.clip(np.where(np.isnan(g), -np.inf, g), low, high)  # NaN is below the support
    ends = np.concatenate([ends.reshape(-1, *at.shape), at[None]])
    ends = np.sort(np.clip(ends, low, high), axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.abs(targets - scale.inverse(at))
        for a, b in pairwise(ends):
            side = np.where(b <= at, 1.0, -1.0)  # F to the left of the target, 1 - F to its right
            for node, share in zip((_NODES + 1) / 2, _WEIGHTS / 2, strict=True):
                z = a + (b - a) * node
                each = ndtr(side * (z - normals.means) / normals.stds)
                tail = np.tensordot(normals.weights, each, 1)
                slope = np.exp(-scale.log_slope(scale.inverse(z)))
                found += share * (b - a) * tail**2 * slope
    return np.asarray(found)
