"""The continuous ranked probability score of predictive densities of real targets.

    CRPS(F, y) = int (F(t) - [t >= y])^2 dt                     in the unit of y, smaller is better
               = |y - h(a)| + int_lo^a F^2 h'(z) dz + int_a^hi (1 - F)^2 h'(z) dz

    h  inverse of the scale g of the targets         F  mixture of normals on that scale
    a  g(y), at most hi and at least lo, beyond which F is 1 or 0 in float64

Below the least possible value of the targets F is 0, as for quantiles and intervals. For a point
prediction the CRPS is the absolute error. Matheson & Winkler (1976); Gneiting & Raftery (2007),
eq. 20. One quadrature for every scale and mixture: Gauss and Legendre's, on four panels for each
integral. (scoringrules has closed forms, but none for a density that is mapped or cut off.)
"""

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.special import ndtr

from nas_evidence.maths.normals import Floats, Normals
from nas_evidence.maths.target_scale import OnScale, identity

#: Standard deviations around each mean that are integrated over.
_REACH = 10.0
#: Nodes in [0, 1] and their weights.
_PANELS = 4
_EACH, _WEIGHTS = leggauss(16)
_NODES = ((_EACH + 1) / 2 + np.arange(_PANELS)[:, None]).ravel() / _PANELS
_SHARES = np.tile(_WEIGHTS / 2 / _PANELS, _PANELS)


def crps(predictive: Normals | OnScale, targets: Floats) -> Floats:
    """Return the CRPS of each target [n, C], in its own unit.

    >>> one = Normals.single(np.zeros((1, 1)), np.ones(1))
    >>> round(float(crps(one, np.zeros((1, 1)))[0, 0]), 6)  # (sqrt(2) - 1) / sqrt(pi)
    0.233695

    Args:
        predictive: densities of n data and C columns, in the unit of the targets.
        targets: [n, C].
    """
    if isinstance(predictive, Normals):
        zeros = np.zeros(targets.shape[1])
        least = np.broadcast_to(predictive.least, zeros.shape)
        predictive = OnScale(predictive, identity(zeros, zeros + 1, least))
    normals, scale = predictive.normals, predictive.scale
    floor = np.where(np.isneginf(scale.least), -np.inf, scale.forward(scale.least))
    low = np.maximum((normals.means - _REACH * normals.stds).min(0), floor)
    high = np.maximum((normals.means + _REACH * normals.stds).max(0), low)
    g = scale.forward(targets)
    at = np.clip(np.where(np.isnan(g), -np.inf, g), low, high)  # NaN is below the support

    def integrated(a: Floats, b: Floats, side: float) -> Floats:
        total = np.zeros(at.shape)
        for node, share in zip(_NODES, _SHARES, strict=True):
            z = a + (b - a) * node
            tail = np.tensordot(
                normals.weights, ndtr(side * (z - normals.means) / normals.stds), 1
            )
            total += share * tail**2 * np.exp(-scale.log_slope(scale.inverse(z)))
        return total * (b - a)

    with np.errstate(over="ignore", invalid="ignore"):
        found: Floats = (
            np.abs(targets - scale.inverse(at))
            + integrated(low, at, 1.0)
            + integrated(at, high, -1.0)
        )
    return found
