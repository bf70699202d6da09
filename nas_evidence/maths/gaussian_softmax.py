"""Mean class probabilities when the logits are Gaussian: p = E softmax(f / T), f ~ N(m, S).

    pairwise   p_k ∝ 1 / Σ_j exp(−z_kj),   z_kj = (m_k − m_j) / √(T² + π/8 Var(f_k − f_j))
    sampled    Σ_i softmax(f_i / T) / n,   f_i ~ N(m, S)

    m  means of the logits [n, C]      S  their covariances [n, C, C]      T  temperature

The pairwise form puts MacKay's approximation (1992) of the mean of a sigmoid into
softmax_k = 1 / Σ_j exp(f_j − f_k) (Lu, Ie and Sha 2020, "Mean-field approximation to
Gaussian-softmax integral", their third form), and divides by the sum. For two classes it is
MacKay's formula. Like the softmax it sees only differences of logits: a shift that all logits of a
row share, which only the prior bounds and which was most of the variance in linear models, drops
out. Scaling each logit by its own variance instead makes probabilities too even.
"""

import math

import torch
from torch import Tensor


def pairwise_mean(means: Tensor, covariances: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Return mean probabilities by the pairwise form [n, C]; arguments as of `pairwise_logits`.

    >>> pairwise_mean(torch.tensor([[1.0, 1.0]]), torch.eye(2)[None]).tolist()
    [[0.5, 0.5]]
    """
    return pairwise_logits(means, covariances, temperature).softmax(1)


def pairwise_logits(
    means: Tensor, covariances: Tensor, temperature: Tensor | float = 1.0
) -> Tensor:
    """Return logits whose softmax is the pairwise form [n, C], in closed form.

    Args:
        means: of the logits [n, C], float64.
        covariances: of the logits [n, C, C].
        temperature: T > 0, or that of each row [n, 1].
    """
    if isinstance(temperature, Tensor):
        temperature = temperature[:, :, None]
    gaps = means[:, :, None] - means[:, None, :]
    each = covariances.diagonal(dim1=1, dim2=2)
    variances = each[:, :, None] + each[:, None, :] - covariances - covariances.mT
    z = gaps / (temperature**2 + math.pi / 8 * variances.clamp(min=0)).sqrt()
    return -torch.logsumexp(-z, 2)


def log_sampled_mean(
    means: Tensor,
    covariances: Tensor,
    temperature: Tensor | float = 1.0,
    *,
    n_draws: int,
    generator: torch.Generator,
) -> Tensor:
    """Return logarithms of mean probabilities over draws of the logits [n, C], always finite.

    Args:
        means: of the logits [n, C], float64.
        covariances: of the logits [n, C, C]; or variances of independent ones [n, C].
        temperature: T > 0, or that of each row [n, 1].
        n_draws: draws per row.
        generator: of the draws, on the CPU.
    """
    noise = torch.randn(n_draws, *means.shape, generator=generator, dtype=means.dtype).to(means)
    if covariances.ndim == 2:
        moved = covariances.sqrt() * noise
    else:
        values, vectors = torch.linalg.eigh(covariances)
        root = vectors * values.clamp(min=0).sqrt()[:, None, :]
        moved = (root @ noise[..., None])[..., 0]
    logs = ((means + moved) / temperature).log_softmax(-1)
    found: Tensor = logs.logsumexp(0) - math.log(n_draws)
    return found
