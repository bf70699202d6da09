"""The exact evidence of a model that is linear in its parameters, with Gaussian noise.

    y = Φ w + σ ε,  w ~ N(0, Δ⁻¹)      log p(y) = Σ_c log N(y_c; 0, σ² I + Φ Δ⁻¹ Φᵀ)

    Φ  features [n, d]      y  targets [n, C], each column with its own parameters
    Δ  prior precision, diagonal [d]      σ  standard deviation of the noise

With the last-layer activations of a network as features it is the evidence of that layer. The
audit and the tests use it as the truth for every estimator.
"""

import math

import torch
from torch import Tensor


def log_evidence_of_linear(
    features: Tensor, targets: Tensor, *, prior_precision: Tensor, noise_std: float
) -> float:
    """Return log p(y) in nats.

    Args:
        features: Φ [n, d], with a column of ones for a bias.
        targets: [n, C].
        prior_precision: Δ > 0 [d].
        noise_std: σ > 0.
    """
    phi, y = features.double(), targets.double()
    covariance = (phi / prior_precision.double()) @ phi.mT
    covariance.diagonal().add_(noise_std**2)
    root = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(root, y, upper=False)
    log_det = 2 * root.diagonal().log().sum()
    n_outputs = y.shape[1]
    constant = y.numel() * math.log(2 * math.pi)
    return float(-0.5 * (white.square().sum() + n_outputs * log_det + constant))


def mode_of_linear(
    features: Tensor, targets: Tensor, *, prior_precision: Tensor, noise_std: float
) -> Tensor:
    """Return the posterior mode of the parameters [d, C]."""
    phi, y = features.double(), targets.double()
    hessian = phi.mT @ phi / noise_std**2 + torch.diag(prior_precision.double())
    mode: Tensor = torch.linalg.solve(hessian, phi.mT @ y / noise_std**2)
    return mode
