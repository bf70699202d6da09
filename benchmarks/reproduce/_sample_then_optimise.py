"""Posterior draws of linear models by gradient descent (Lyle et al. 2020, Algorithm 1).

    θ_0 ~ N(0, D⁻¹),  ỹ = y + s ε        drawn once for each of k runs
    θ_i = argmin ‖ỹ_<=i − Φ_<=i θ‖² / s² + (θ − θ_0)ᵀ D (θ − θ_0)
        = θ_0 + A_i⁻¹ Φ_<=iᵀ (ỹ_<=i − Φ_<=i θ_0) / s²,      A_i = Φ_<=iᵀ Φ_<=i / s² + D

θ_i is an exact draw of p(θ | D_<=i) (Matthews et al. 2017; Osband et al. 2018). The loss of datum
i is taken at θ_{i−1}, before the datum is included, so that L and L_k of `incremental` follow
from the training losses of k descents. A descent of few steps, each from where the last one
ended, draws from another distribution: predictions from D_<i all the same, but no longer those of
the posterior.

Symbols as in `incremental`. Differs from the paper: its printed regulariser has θ_0² where the
prior variance must be, and its sum of losses lacks the normaliser of the Gaussian and the sign of
L.
"""

import torch
from torch import Tensor

from ._incremental import Bounds, bounds_of_draws


def outputs_before_each(
    features: Tensor,
    targets: Tensor,
    *,
    prior_precision: Tensor,
    noise_std: float,
    n_draws: int,
    generator: torch.Generator,
    n_steps: int | None = None,
) -> Tensor:
    """Return f(x_i; θ_{i−1}) of k runs [k, n], in the given order of the data.

    Args:
        features: Φ [n, d].
        targets: [n].
        prior_precision: diagonal of D, > 0 [d].
        noise_std: s > 0.
        n_draws: k >= 1.
        generator: on the CPU.
        n_steps: of gradient descent for each datum, of length 1 / λ_max(A_i); None for the
        optimum.
    """
    phi, y = features.double(), targets.double()
    prior = prior_precision.double()
    normal = torch.randn(n_draws, phi.shape[1], dtype=torch.float64, generator=generator)
    noise = torch.randn(n_draws, len(y), dtype=torch.float64, generator=generator)
    anchor, noisy = normal / prior.sqrt(), y + noise_std * noise
    theta, hessian, pull = anchor, torch.diag(prior), prior * anchor
    outputs = []
    for i, row in enumerate(phi):
        outputs.append(theta @ row)
        hessian = hessian + torch.outer(row, row) / noise_std**2
        pull = pull + noisy[:, i : i + 1] * row / noise_std**2
        if n_steps is None:
            theta = torch.linalg.solve(hessian, pull.mT).mT
        else:
            length = 1 / torch.linalg.eigvalsh(hessian)[-1]
            for _ in range(n_steps):
                theta = theta - length * (theta @ hessian - pull)
    return torch.stack(outputs, 1)


def bounds_over_orders(
    features: Tensor,
    targets: Tensor,
    *,
    prior_precision: Tensor,
    noise_std: float,
    n_draws: int,
    n_orders: int,
    generator: torch.Generator,
    n_steps: int | None = None,
) -> tuple[Bounds, ...]:
    """Return L, L_k and L_S in `n_orders` random orders of the data; log p(D) depends on none.

    Args:
        features: Φ [n, d].
        targets: [n].
        prior_precision: diagonal of D, > 0 [d].
        noise_std: s > 0.
        n_draws: k >= 2.
        n_orders: independent orders, each with its own draws.
        generator: on the CPU.
        n_steps: as in `outputs_before_each`.
    """
    found = []
    for _ in range(n_orders):
        order = torch.randperm(len(targets), generator=generator)
        outputs = outputs_before_each(
            features[order], targets[order], prior_precision=prior_precision, noise_std=noise_std,
            n_draws=n_draws, generator=generator, n_steps=n_steps,
        )  # fmt: skip
        y = targets[order].double()
        found.append(bounds_of_draws(outputs, y, noise_std=noise_std, generator=generator))
    return tuple(found)
