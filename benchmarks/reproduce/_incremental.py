"""Evidence as the sum of log predictive densities, datum by datum (Lyle et al. 2020, section 3).

    log p(D) = Σ_i log p(y_i | D_<i)                     θ_ij ~ p(θ | D_<i),  j = 1..k
    L        = Σ_i mean_j log p(y_i | θ_ij)              log p(D) − Σ_i KL_i, in the mean
    L_k      = Σ_i log mean_j p(y_i | θ_ij)              nearer with k, in the mean
    L_S      = Σ_i log N(y_i; mean_j Y_ij, var_j Y_ij)   Y_ij = f(x_i; θ_ij) + s ε

Here the models are linear in their parameters with Gaussian noise. The posterior before each
datum, N(m, Σ), is then known and f(x_i; θ) is normal with mean φ_iᵀ m_i and variance v_i:

    KL_i  divergence of p(θ | D_<=i) from p(θ | D_<i): KL(p(θ | D_<i) ‖ p(θ | D_<=i)), nats
    φ_i   features of datum i [d]    z² = (y_i − φ_iᵀ m_i)² / (v_i + s²)

All three are lower bounds in expectation. log p(D) does not depend on the order of the data, the
bounds do. Differs from the paper: the draws Y of L_S contain the noise, without which L_S is no
bound; its variance is divided by k − 1, and its mean is finite only for k >= 4.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Predictions:
    """The predictive distribution of each datum given those before it, float64 [n] each.

    mean, variance  of the noiseless output; the target has variance + noise_std²
    """

    targets: Tensor
    mean: Tensor
    variance: Tensor
    noise_std: float

    def log_evidence(self) -> float:
        """Return Σ_i log p(y_i | D_<i), exact."""
        spread = (self.variance + self.noise_std**2).sqrt()
        return float(_log_normal(self.targets, self.mean, spread).sum())

    def expected_bound(self) -> float:
        """Return E L = −½ Σ_i [log 2π s² + ((y_i − φ_iᵀ m_i)² + v_i) / s²]."""
        squares = (self.targets - self.mean).square() + self.variance
        constant = len(squares) * math.log(2 * math.pi * self.noise_std**2)
        return float(-0.5 * (constant + squares.sum() / self.noise_std**2))

    def expected_moment_bias(self, n_draws: int) -> float:
        """Return E L_S − log p(D); −inf for k < 4.

        ½ [log m − digamma(m)] − ½ [(k − 1)/(k − 3) (z² + 1/k) − z²] for each datum, with
        m = (k − 1)/2.
        """
        k = n_draws
        if k < 4:
            return -math.inf
        z2 = (self.targets - self.mean).square() / (self.variance + self.noise_std**2)
        half = torch.tensor((k - 1) / 2, dtype=torch.float64)
        gain = 0.5 * (half.log() - torch.digamma(half))
        loss = 0.5 * ((k - 1) / (k - 3) * (z2 + 1 / k) - z2)
        return float((gain - loss).sum())


@dataclass(frozen=True)
class Bounds:
    """Estimates from k draws before each datum, nats: L, L_k and L_S."""

    mean_log: float
    log_mean: float
    moments: float


def predictions(
    features: Tensor, targets: Tensor, *, prior_precision: Tensor, noise_std: float
) -> Predictions:
    """Return the prediction of each datum from those before it, in the given order.

    Args:
        features: Φ [n, d].
        targets: [n].
        prior_precision: of the parameters, > 0 [d].
        noise_std: s > 0.
    """
    phi, y = features.double(), targets.double()
    mean, covariance = phi.new_zeros(phi.shape[1]), torch.diag(1 / prior_precision.double())
    means, variances = [], []
    for row, target in zip(phi, y, strict=True):
        projected = covariance @ row
        means.append(row @ mean)
        variances.append(row @ projected)
        gain = projected / (variances[-1] + noise_std**2)
        mean = mean + gain * (target - means[-1])
        covariance = covariance - torch.outer(gain, projected)
    return Predictions(y, torch.stack(means), torch.stack(variances), noise_std)


def sampled_bounds(predicted: Predictions, *, n_draws: int, generator: torch.Generator) -> Bounds:
    """Return L, L_k and L_S from k independent posterior draws before each datum.

    Args:
        predicted: from `predictions`.
        n_draws: k >= 2; a single draw has no variance.
        generator: on the CPU.

    Raises:
        ValueError: for fewer than two draws.
    """
    shape = (n_draws, len(predicted.targets))
    normal = torch.randn(shape, dtype=torch.float64, generator=generator)
    outputs = predicted.mean + predicted.variance.clamp(min=0).sqrt() * normal
    noise_std = predicted.noise_std
    return bounds_of_draws(outputs, predicted.targets, noise_std=noise_std, generator=generator)


def bounds_of_draws(
    outputs: Tensor, targets: Tensor, *, noise_std: float, generator: torch.Generator
) -> Bounds:
    """Return L, L_k and L_S from the noiseless outputs of k draws before each datum.

    Args:
        outputs: f(x_i; θ_ij) [k, n], θ_ij drawn without having seen datum i.
        targets: [n].
        noise_std: s > 0.
        generator: for the noise in the draws Y of L_S, on the CPU.

    Raises:
        ValueError: for fewer than two draws.
    """
    n_draws = len(outputs)
    if n_draws < 2:
        raise ValueError(f"`n_draws >= 2` must hold for the variance of L_S, but got {n_draws}")
    spread = torch.full_like(targets, noise_std, dtype=torch.float64)
    logs = _log_normal(targets, outputs, spread)
    noise = torch.randn(outputs.shape, dtype=torch.float64, generator=generator)
    draws = outputs + noise_std * noise
    return Bounds(
        mean_log=float(logs.mean(0).sum()),
        log_mean=float((logs.logsumexp(0) - math.log(n_draws)).sum()),
        moments=float(_log_normal(targets, draws.mean(0), draws.std(0)).sum()),
    )


def _log_normal(values: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    standard = (values - mean) / spread
    return -0.5 * (standard.square() + math.log(2 * math.pi)) - spread.log()
