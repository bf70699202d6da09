"""Evidence by ensembles that are drawn, then optimised (Lyle et al. 2020, section 3.2.1).

    L_k = Σ_m log (1/k) Σ_j p(C_m | θ_j^m)         θ_j^m  member j, trained on C_1 ... C_{m−1} only
    θ_j^m = argmin −Σ_n log p̃_j(y_n | f(x_n; θ)) + ½ (θ − θ_j)ᵀ Δ (θ − θ_j),   θ_j ~ N(0, Δ⁻¹)

    C_m  chunks of the data, in random order: 1, 1, 2, 4, ... data, then equal chunks of n / 16
    Δ    prior precision, as learned by the training, as is the noise σ

A member's own data p̃_j are drawn once: targets y + s ε; or with classes, weights of the data from
an exponential distribution of mean 1 (Newton and Raftery 1994), since noise in a label has no
meaning. For each chunk it goes on from where it stood. With a linear model and Gaussian noise
θ_j^m is an exact draw of p(θ | C_<m), and L_k is at most log p(y) in the mean, nearer with larger
k and smaller chunks; for networks it is a score (docs/reference/estimators.md). The term `L` is
the mean over members of single log likelihoods.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import vmap

from nas_evidence.evidence.network_density import (
    FlatLogLikelihood,
    estimate_of_runs,
    flat_log_likelihood,
    spread_precision,
)
from nas_evidence.likelihoods import Likelihood
from nas_evidence.scores.sampling import sampled_score
from nas_evidence.scores.sampling_plan import ENSEMBLE, EnsemblePlan
from nas_evidence.spec.estimates import EvidenceEstimate

_SMALL_STEP, _SMALL_SLOPE = 1e-10, 1e-7


def chunk_ends(n_data: int, n_chunks: int) -> list[int]:
    """Return the ends of the chunks: doublings from 1, then `n_chunks` of about equal size.

    >>> chunk_ends(40, 4)
    [1, 2, 4, 8, 16, 24, 32, 40]
    """
    first = max(1, n_data // (n_chunks + 1))
    doublings = [2**i for i in range(n_data.bit_length()) if 2**i < first]
    equal = [first + (n_data - first) * m // n_chunks for m in range(n_chunks + 1)]
    return sorted({*doublings, *equal})


def sample_then_optimise_evidence(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    likelihood: Likelihood,
    prior_precision: float | Tensor,
    generator: torch.Generator,
    plan: EnsemblePlan = ENSEMBLE,
) -> EvidenceEstimate:
    """Return the mean of L_k over independent ensembles, nats, with its standard error.

    Args:
        model: the network; its parameters do not matter.
        inputs: [n, ...].
        targets: int64 [n], or float [n, C].
        likelihood: with its noise or temperature.
        prior_precision: > 0; one number, or one per parameter tensor [G].
        generator: on the device of the model.
        plan: members, chunks and runs.

    Raises:
        ValueError: if the likelihood refuses these outputs and targets, or there are no data.
    """
    started = time.perf_counter()
    density, x, y = flat_log_likelihood(model, inputs, targets, likelihood)
    precision = spread_precision(model, prior_precision)
    runs = [
        _one_run(_Ensemble(density, likelihood, precision, plan), x, y, generator)
        for _ in range(plan.n_runs)
    ]
    values, means, slopes = zip(*runs, strict=True)
    terms = {"L": sum(means) / len(means), "largest_slope": max(slopes)}
    note = f"{plan.n_runs} ensembles of {plan.n_draws}"
    return estimate_of_runs(
        "sto_lk", values, terms, n_data=len(y), seconds=time.perf_counter() - started, note=note
    )


#: The estimate for the trained network of a study, with the default plan; nats.
score = partial(sampled_score, "sto_lk", sample_then_optimise_evidence)


@dataclass(frozen=True)
class _Ensemble:
    density: FlatLogLikelihood
    likelihood: Likelihood
    precision: Tensor
    plan: EnsemblePlan


def _one_run(
    of: _Ensemble, x: Tensor, y: Tensor, generator: torch.Generator
) -> tuple[float, float, float]:
    """Return L_k, L, and the largest slope ‖∇‖ at the end of a descent, in units of the prior."""
    order = torch.randperm(len(y), device=y.device, generator=generator)
    x, y = x[order], y[order]
    ends = chunk_ends(len(y), of.plan.n_chunks)
    found = [_one_member(of, x, y, ends, generator) for _ in range(of.plan.n_draws)]
    logs = torch.stack([values for values, _ in found])  # [k, M]
    log_mean = (logs.logsumexp(0) - math.log(len(logs))).sum()
    return float(log_mean), float(logs.mean(0).sum()), max(slope for _, slope in found)


def _one_member(
    of: _Ensemble, x: Tensor, y: Tensor, ends: list[int], generator: torch.Generator
) -> tuple[Tensor, float]:
    """Return log p(C_m | θ^m) of each chunk [M] in nats, and the largest slope."""
    scale = of.precision.rsqrt()
    anchor = _normal(scale.shape, y.device, generator) * scale
    learned = of.likelihood.redrawn(y, generator)
    if learned is None:
        draws = torch.rand(len(y), dtype=torch.float64, device=y.device, generator=generator)
        weights = -torch.log1p(-draws)
    moved = torch.zeros_like(anchor).requires_grad_()  # (θ − θ_j) √Δ

    def loss(end: int) -> Tensor:
        theta = anchor + moved * scale
        if learned is not None:
            gained = of.density(theta, x[:end], learned[:end])
        else:
            each = vmap(lambda a, b: of.density(theta, a[None], b[None]))(x[:end], y[:end])
            gained = (weights[:end] * each).sum()
        return 0.5 * moved.square().sum() - gained

    values, slopes, start = [], [0.0], 0
    for end in ends:
        with torch.no_grad():
            values.append(of.density(anchor + moved * scale, x[start:end], y[start:end]))
        if end < len(y):
            slopes.append(_descend(moved, partial(loss, end), of.plan.n_iterations))
        start = end
    return torch.stack(values), max(slopes)


def _normal(shape: torch.Size, device: torch.device, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=device, generator=generator)


def _descend(moved: Tensor, loss: Callable[[], Tensor], n_iterations: int) -> float:
    """Lower a loss in place, and return the norm of its gradient there."""
    optimiser = torch.optim.LBFGS(
        [moved], max_iter=n_iterations, history_size=20, tolerance_grad=_SMALL_SLOPE,
        tolerance_change=_SMALL_STEP, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    closure()
    assert moved.grad is not None
    return float(moved.grad.norm())
