"""Conditional evidence of a Bayesian last layer with normal noise, in closed form.

    log q(y) = κ log p(y|0) + Σ_c ½ β² y_cᵀ Φ M⁻¹ Φᵀ y_c − ½ log|M|,  M = I + β Φᵀ Φ,  β = κ / σ_c²

Φ [N, d] are the features divided by the roots of their prior precisions, y_c [N] the targets of
output c. κ is the likelihood power and σ_c the noise, of all or of each.
"""

import torch
from torch import Tensor

from nas_evidence.evidence.softmax_layer import LastLayer, LastLayerFormula, LogDensity
from nas_evidence.likelihoods.gaussian import Gaussian


def of_reals(
    layer: LastLayer,
    y: Tensor,
    n_early: int,
    likelihood: Gaussian,
    *,
    power: float = 1.0,
    seed: int = 0,
) -> LogDensity:
    """Return log q(late data | early data), exactly; see `late_given_early` in last_layer.py."""
    y = y.to(layer.features)
    phi, late = _fewer(layer.features * layer.precision.rsqrt()), y[n_early:]
    alone = power * float(likelihood.log_likelihood(torch.zeros_like(late), late))
    gram, sums = phi[:n_early].mT @ phi[:n_early], phi[:n_early].mT @ y[:n_early]
    whole = gram + phi[n_early:].mT @ phi[n_early:], sums + phi[n_early:].mT @ late
    scales = likelihood.each_scale
    width = y.shape[1] // len(scales)
    for c, std in enumerate(scales):
        columns, beta = slice(c * width, (c + 1) * width), power / std**2
        alone += _regression(whole[0], whole[1][:, columns], beta)
        alone -= _regression(gram, sums[:, columns], beta)
    return LogDensity(alone)


def _regression(gram: Tensor, sums: Tensor, beta: float) -> float:
    """Return log q less the term of outputs 0: ½ ‖L⁻¹ β Φᵀ y‖² − C log|L|, L Lᵀ = I + β Φᵀ Φ."""
    matrix = beta * gram
    matrix.diagonal().add_(1.0)
    root = torch.linalg.cholesky(matrix)
    white = torch.linalg.solve_triangular(root, beta * sums, upper=False)
    return float(0.5 * white.square().sum() - sums.shape[1] * root.diagonal().log().sum())


def _fewer(features: Tensor) -> Tensor:
    """Return features with the same inner products, at most as many as rows."""
    if len(features) >= features.shape[1]:
        return features
    upper: Tensor = torch.linalg.qr(features.mT, mode="r")[1]
    return upper.mT.contiguous()


#: What `late_given_early` looks up.
LAST_LAYER = LastLayerFormula(of_reals)
