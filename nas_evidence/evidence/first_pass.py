"""Prequential evidence of the first pass over the data, with a posterior in place of a point.

    Σ_b Σ_{n in b} log ∫ p(y_n | f) N(f; f_n(θ_b), diag(v_n)) df

    b    minibatches of the first epoch, in their order       θ_b  the parameters before step b
    v_n  Σ_p J_ncp² / (δ_p + κ h_p), variance of output c of datum n [C]: the Laplace posterior of
         the linearised network (Immer et al. 2021, "Improving predictions")
    h    diagonal of the Gauss-Newton matrix of the minibatches before b, each at its own θ
    δ    prior precisions        κ  likelihood power

A sum of predictions of data not seen before is a log evidence (Dawid 1984; Lyle et al. 2020,
section 3, with one point for the posterior: `prequential_epoch1`). Here an untrained network is
unsure of itself, and is not punished for guesses that it does not make.

Gaussian noise: the integral is N(y; f, v + s²). Classes: softmax(f / √(T² + π v / 8)), MacKay
(1992) generalised by Gibbs (1997); an approximation. Data of one minibatch are predicted one by
one from those before it.
"""

import math

import torch
from torch import Tensor

from nas_evidence.likelihood import Categorical, Gaussian, Likelihood


def log_predictive(
    outputs: Tensor, variances: Tensor, targets: Tensor, likelihood: Likelihood
) -> Tensor:
    """Return the log predictive density of each datum in nats, float64 [n].

    Args:
        outputs: f [n, C].
        variances: v >= 0 [n, C]; all 0 gives the log likelihood of f.
        targets: int64 [n] or float [n, C].
        likelihood: categorical or Gaussian.

    >>> unsure = torch.full((1, 2), 1e12)
    >>> found = log_predictive(
    ...     torch.tensor([[9.0, 0.0]]), unsure, torch.tensor([1]), Categorical()
    ... )
    >>> abs(float(found) - math.log(0.5)) < 1e-4
    True
    """
    f, v = outputs.double(), variances.double()
    if isinstance(likelihood, Categorical):
        scaled = f / (likelihood.temperature**2 + math.pi / 8 * v).sqrt()
        return torch.log_softmax(scaled, dim=1).gather(1, targets[:, None])[:, 0]
    assert isinstance(likelihood, Gaussian)
    spread = v + likelihood.noise_std**2
    return -0.5 * ((targets.double() - f).square() / spread + (2 * math.pi * spread).log()).sum(1)
