"""Lower bounds on the Laplace evidence from blocks of the data (Immer et al. 2023).

    log|H + D| − log|D| <= Σ_B log|I + D⁻¹ H_B|,     H = Σ_B H_B over a partition of the data
                         ≈ (n_blocks / n_seen) Σ_{B seen} log|I + D⁻¹ H_B|

    H_B  Gauss-Newton curvature of block B, all layers together  [P, P]     D  prior precision

In kernel form the determinant for all data is that of a matrix with blocks K_BB' = J_B D⁻¹ J_B'ᵀ,
and dropping the off-diagonal blocks can only raise it (Fischer). So each partition gives a lower
bound on the full Gauss-Newton evidence, equal to it for one block, at the cost of n_blocks small
kernels instead of a large one; a random subset of the blocks gives an unbiased estimate of that
bound. Unlike Kronecker and diagonal structures it keeps all correlations between layers.

The factor n_blocks / n_seen is outside the determinant: inside, it would reverse the bound.
"""

import math
import time
from collections.abc import Mapping
from statistics import stdev

import torch
from torch import Tensor, nn

from nas_evidence.curvature import curvature_pass
from nas_evidence.curvature.capture import undisturbed
from nas_evidence.curvature.likelihood import Likelihood
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.evidence.network_density import spread_precision
from nas_evidence.spec.estimates import EvidenceEstimate, Term
from nas_evidence.spec.registry import SCORES


def stochastic_lower_bound(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    likelihood: Likelihood,
    prior_precision: float | Tensor | Mapping[str, float],
    block_size: int,
    generator: torch.Generator,
    n_blocks_seen: int | None = None,
) -> EvidenceEstimate:
    """Return a lower bound on the full_ggn evidence of a trained model, nats.

    The parameters of the model are assumed to be the mode. If blocks are left out, the value has
    a standard error and is a bound in expectation.

    Args:
        model: any that `estimate_evidence` accepts with full_ggn.
        inputs: [n, ...].
        targets: int64 [n] or real [n, C].
        likelihood: `Categorical()` or `Gaussian(noise_std)`.
        prior_precision: > 0; one number, or one per parameter tensor.
        block_size: data per block; the last may have fewer.
        generator: on the CPU; assigns the data to blocks.
        n_blocks_seen: number of random blocks to use, at least 2; None for all.

    Raises:
        ValueError: for impossible numbers, or for what `curvature_pass` refuses.
    """
    started = time.perf_counter()
    blocks = _blocks(len(inputs), block_size, n_blocks_seen, generator)
    n_blocks = math.ceil(len(inputs) / block_size)
    tensors = _by_tensor(model, prior_precision)
    ratios: list[float] = []
    for rows in blocks:
        chosen = rows.to(inputs.device)
        passed = curvature_pass(
            "full_ggn", model, inputs[chosen], targets[chosen], likelihood,
            batch_size=len(rows),
        )  # fmt: skip
        ratios.append(float(passed.curvature.log_det_ratio(tensors).sum()))
    log_likelihood = _log_likelihood(model, inputs, targets, likelihood, batch_size=block_size)
    scatter = float((tensors * squared_norms(model)).sum())
    log_det_ratio = n_blocks / len(blocks) * sum(ratios)
    value = log_likelihood - 0.5 * (scatter + log_det_ratio)
    error = None
    if len(blocks) < n_blocks:
        left_out = 1 - len(blocks) / n_blocks  # drawn without replacement
        error = 0.5 * n_blocks * stdev(ratios) * math.sqrt(left_out / len(blocks))
    terms = {
        "log_likelihood": log_likelihood,
        "scatter": scatter,
        "log_det_ratio": log_det_ratio,
        "n_data": float(len(inputs)),
        "block_size": float(block_size),
        "n_blocks_seen": float(len(blocks)),
    }
    return EvidenceEstimate(
        estimator="stochastic_ggn",
        value=value,
        per_datum=value / len(inputs),
        standard_error=error,
        relation=SCORES["stochastic_ggn"].relation,
        terms=tuple(Term(term=k, group="all", value=v) for k, v in terms.items()),
        seconds=time.perf_counter() - started,
        valid=math.isfinite(value),
        note="" if math.isfinite(value) else "the value is not finite; the model diverged",
    )


def _blocks(
    n_data: int, block_size: int, n_seen: int | None, generator: torch.Generator
) -> list[Tensor]:
    """Return the rows of each block to use, from a random partition."""
    if block_size < 1:
        raise ValueError(f"`block_size >= 1` must hold, but got {block_size}")
    blocks = list(torch.split(torch.randperm(n_data, generator=generator), block_size))
    if n_seen is None:
        return blocks
    if not 2 <= n_seen <= len(blocks):
        raise ValueError(
            f"`n_blocks_seen` must be from 2 to {len(blocks)}, the blocks of {block_size} in "
            f"{n_data} data, or None for all, but is {n_seen}"
        )
    order = torch.randperm(len(blocks), generator=generator)[:n_seen]
    return [blocks[i] for i in order]


def _by_tensor(model: nn.Module, given: float | Tensor | Mapping[str, float]) -> Tensor:
    """Return one precision per parameter tensor, float64 [G], on the CPU."""
    spread = spread_precision(model, given).cpu()
    parts = torch.split(spread, [p.numel() for p in model.parameters()])
    if any(bool((part != part[0]).any()) for part in parts):
        raise ValueError(
            "`prior_precision` must be one number per parameter tensor, but differs within one; "
            "the kernel of a block has one factor per tensor"
        )
    return torch.stack([part[0] for part in parts])


def _log_likelihood(
    model: nn.Module, inputs: Tensor, targets: Tensor, likelihood: Likelihood, *, batch_size: int
) -> float:
    """Return log p(D|θ) of all data in nats; the model is left as it was."""
    pairs = zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True)
    with undisturbed(model), torch.no_grad():
        return sum(float(likelihood.log_likelihood(model(x), y)) for x, y in pairs)
