"""Least-squares weights of a linear combination of models (Lyle et al. 2020, section 3.3).

    w* = argmin E ‖Φ w − y‖² = (MᵀM + diag(V))⁻¹ Mᵀ y        Φ = M + noise
    w*_i = α ‖y‖² / (1 + α² ‖y‖² Σ_j σ_j⁻²) · 1 / σ_i²       if M_i = α y + ε_i, ε_i ⊥ y, ε_j

    M  mean predictions [n, m] of m models       V_i  summed variance of the predictions of model i
    y  targets [n]                               σ_i² = ‖ε_i‖² + V_i

With errors orthogonal to the targets and to each other the largest weight goes to the model of the
smallest expected squared error, which is the one of the largest L (Proposition 3.5). The paper's
constant in front of 1 / σ_i² and the missing square of w_i in its loss are corrected.
"""

import torch
from torch import Tensor


def combination_weights(means: Tensor, targets: Tensor, variances: Tensor) -> Tensor:
    """Return w* [m] for mean predictions [n, m], targets [n] and summed variances V >= 0 [m]."""
    gram = means.mT @ means + torch.diag(variances)
    weights: Tensor = torch.linalg.solve(gram, means.mT @ targets)
    return weights


def orthogonal_weights(*, alpha: float, squared_norm: float, errors: Tensor) -> Tensor:
    """Return w* [m] for the share α of the targets, ‖y‖² > 0 and σ_i² > 0 [m]."""
    together = float((1 / errors).sum())
    return alpha * squared_norm / (1 + alpha**2 * squared_norm * together) / errors
