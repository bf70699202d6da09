"""Log evidence from replicas at many temperatures (the ladder of Baldock and Marzari 2019).

    log Z = Σ_i Δ_i      π_β(w) ∝ p(w) exp(β U(w)),   U(w) = log p(y|w),   β_i = (i / (n − 1))⁵
    Δ_i solves  ⟨σ(h_i U − Δ_i)⟩_i = ⟨σ(Δ_i − h_i U)⟩_{i+1}          σ  logistic function

    Δ_i  log ratio of the normalisers of neighbours, nats      h_i = β_{i+1} − β_i

β multiplies the likelihood only; at β = 0 the replicas are fresh exact draws from the normalised
prior. Δ_i is the acceptance ratio of Bennett (1976), of least variance from samples of two
neighbours. Differs from the paper: its ladder T <= 100 stops short of the prior, which costs 8 to
12 nats on a small problem, and it tunes step sizes while sampling. `integral` among the terms is

    log Z ≈ Σ_i h_i (u_i + u_{i+1}) / 2 − h_i² / 12 (v_{i+1} − v_i)

    u_i, v_i  mean and variance of U at β_i; v is the slope of u, which corrects the trapezium rule

docs/reference/estimators.md says what both are worth.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from torch import Tensor, nn

from nas_evidence.evidence.network_density import (
    estimate_of_runs,
    gaussian_density,
    network_density,
    spread_precision,
)
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.hmc import (
    Density,
    Path,
    Replicas,
    Tuning,
    exchange,
    hmc_step,
    replicas_at,
    warm_up,
)
from nas_evidence.scores.sampling import sampled_score
from nas_evidence.scores.sampling_plan import LADDER, LadderPlan
from nas_evidence.spec.record import EvidenceEstimate

#: β_i = (i / (n − 1))⁵: dense near the prior, where ⟨U⟩ changes over decades of β.
_POWER = 5
_FIRST_STEP = 0.1
_FEW_SWAPS = 0.02
_HALVINGS = 60  # of an interval that has the root: to rounding


@dataclass(frozen=True)
class LadderSamples:
    """Samples of independent ladders.

    log_likelihoods  U [n_samples, n_ladders, n_nodes], nats
    acceptance       of trajectories, at the node where it is lowest
    swap_probability of the pair of neighbours where it is lowest
    """

    log_likelihoods: Tensor
    acceptance: float
    swap_probability: float

    def log_evidence(self) -> Tensor:
        """Return the sum of Bennett's ratios of each ladder [n_ladders], nats."""
        nodes = inverse_temperatures(self.log_likelihoods.shape[2]).to(self.log_likelihoods)
        scaled = nodes.diff() * self.log_likelihoods[:, :, :-1]
        after = nodes.diff() * self.log_likelihoods[:, :, 1:]
        return acceptance_ratio(scaled, after).sum(1)

    def integral(self) -> Tensor:
        """Return the corrected trapezium integral of each ladder [n_ladders], nats."""
        nodes = inverse_temperatures(self.log_likelihoods.shape[2])
        means, variances = self.log_likelihoods.mean(0), self.log_likelihoods.var(0)
        return corrected_trapezium(nodes.to(means), means, variances)


def inverse_temperatures(n_nodes: int) -> Tensor:
    """Return β_i = (i / (n − 1))⁵, float64 [n].

    >>> inverse_temperatures(3).tolist()
    [0.0, 0.03125, 1.0]
    """
    return (torch.arange(n_nodes, dtype=torch.float64) / (n_nodes - 1)) ** _POWER


def acceptance_ratio(before: Tensor, after: Tensor) -> Tensor:
    """Return log(Z' / Z) [...] in nats, from values of log(p' / p) (Bennett 1976, eq. 12).

    Z and Z' are the integrals of p and p', which are not normalised.

    Args:
        before: at n draws from p [n, ...].
        after: at n draws from p' [n, ...].
    """
    both = torch.cat([before, after])
    low, high = both.amin(0), both.amax(0)
    for _ in range(_HALVINGS):  # the difference falls with Δ: one root
        middle = 0.5 * (low + high)
        gap = (before - middle).sigmoid().sum(0) - (middle - after).sigmoid().sum(0)
        low, high = torch.where(gap > 0, middle, low), torch.where(gap > 0, high, middle)
    return 0.5 * (low + high)


def corrected_trapezium(nodes: Tensor, values: Tensor, slopes: Tensor) -> Tensor:
    """Return ∫ f over the nodes [n] from values and slopes of f [..., n]; exact for cubics."""
    h = nodes.diff()
    return (0.5 * h * (values[..., :-1] + values[..., 1:]) - h**2 / 12 * slopes.diff()).sum(-1)


def sampled_ladders(
    log_likelihood: Density,
    prior_precision: Tensor,
    *,
    plan: LadderPlan,
    generator: torch.Generator,
) -> LadderSamples:
    """Return samples of the log likelihood at every temperature, prior N(0, diag(δ)⁻¹).

    Args:
        log_likelihood: U, with its constants.
        prior_precision: δ [P].
        plan: numbers of nodes and samples.
        generator: on the device of `prior_precision`.
    """
    path = Path(gaussian_density(prior_precision), log_likelihood)
    betas = inverse_temperatures(plan.n_nodes).to(prior_precision).repeat(plan.n_ladders)
    spread = prior_precision.rsqrt()
    swaps: list[float] = []

    def prior_draws(count: int) -> Tensor:
        like = spread.expand(count, -1)
        noise = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        return like * noise

    def renew_and_swap(state: Replicas, trajectory: int) -> Replicas:
        fresh = replicas_at(path, prior_draws(plan.n_ladders))
        swapped, probability = exchange(
            _with_first(state, fresh, plan.n_nodes),
            betas=betas,
            n_nodes=plan.n_nodes,
            odd=trajectory % 2 == 1,
            generator=generator,
        )
        swaps.append(float(probability.view(plan.n_ladders, -1).mean(0).min()))
        return swapped

    step_size = torch.full_like(betas, _FIRST_STEP)
    state, tuning = warm_up(
        path,
        replicas_at(path, prior_draws(len(betas))),
        betas=betas,
        tuning=Tuning(step_size, spread.expand(len(betas), -1), plan.n_leapfrog),
        n_trajectories=plan.n_burn_in,
        generator=generator,
        pools=plan.n_nodes,
        between=renew_and_swap,
    )
    swaps.clear()
    values, accepted = [], []
    for trajectory in range(plan.n_samples):
        state, probability = hmc_step(path, state, betas=betas, tuning=tuning, generator=generator)
        state = renew_and_swap(state, trajectory)
        values.append(state.tilt.view(-1, plan.n_nodes))
        accepted.append(probability.view(-1, plan.n_nodes).mean(0))
    rates = torch.stack(accepted).mean(0)
    return LadderSamples(torch.stack(values), float(rates.min()), fmean(swaps))


def temperature_ladder_evidence(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    likelihood: Likelihood,
    prior_precision: float | Tensor | Mapping[str, float],
    generator: torch.Generator,
    plan: LadderPlan = LADDER,
) -> EvidenceEstimate:
    """Return the log evidence of a tiny network in nats, with its standard error.

    The parameters of the model do not matter. The cost is (n_burn_in + n_samples) n_leapfrog
    gradients of n_ladders n_nodes networks: for up to some hundred parameters.

    Args:
        model: any module whose output for a datum does not depend on the rest of the batch.
        inputs: [n, ...].
        targets: int64 [n] or real [n, C].
        likelihood: `Categorical()` or `Gaussian(noise_std)`.
        prior_precision: > 0; one number, or one per parameter tensor [G].
        generator: on the device of the model.
        plan: numbers of nodes and samples.

    Raises:
        ValueError: for an impossible precision, or targets that the likelihood refuses.
    """
    started = time.perf_counter()
    precision = spread_precision(model, prior_precision)
    density = network_density(model, inputs, targets, likelihood)
    samples = sampled_ladders(density, precision, plan=plan, generator=generator)
    unreliable = _unreliable(samples)
    terms = {
        "integral": float(samples.integral().mean()),
        "prior_log_likelihood": float(samples.log_likelihoods[:, :, 0].mean()),
        "posterior_log_likelihood": float(samples.log_likelihoods[:, :, -1].mean()),
        "acceptance": samples.acceptance,
        "swap_probability": samples.swap_probability,
        "n_data": float(len(inputs)),
    }
    return estimate_of_runs(
        "temperature_ladder",
        samples.log_evidence().tolist(),
        terms,
        n_data=len(inputs),
        seconds=time.perf_counter() - started,
        note=unreliable,
        valid=not unreliable,
    )


#: The estimate for the trained network of a study, with the default plan; nats.
score = partial(sampled_score, "temperature_ladder", temperature_ladder_evidence)


def _unreliable(samples: LadderSamples) -> str:
    if samples.swap_probability < _FEW_SWAPS:
        return f"neighbours exchange with probability {samples.swap_probability:.2g}: more nodes"
    return ""


def _with_first(state: Replicas, fresh: Replicas, n_nodes: int) -> Replicas:
    ladder = torch.arange(len(state.tilt), device=state.tilt.device)
    copies = fresh.permuted(ladder // n_nodes)
    return copies.where(ladder % n_nodes == 0, state)
