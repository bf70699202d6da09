"""The entropy of descent with momentum (the heavy ball), beside that of plain descent.

Duvenaud, Maclaurin and Adams (2016) have the plain one.

    v_{t+1} = β v_t − α g_t       θ_{t+1} = θ_t + v_{t+1}
    S_{t+1} = S_t + P log β       S_0 = entropy of θ_0 ~ prior and v_0 ~ N(0, s² / δ), independent
    log p(D) >= E[log p(D, θ_t) + log r_t(v_t)] + S_t          any density r_t

    g_t  gradient of N/M Σ_batch nll     α = learning rate / N     P parameters     all in nats

One step maps (θ, v) one to one, whatever the curvature, and its Jacobian is β^P: no Hessian is
needed, and no step is too long. To bound the evidence of θ alone the model gets a velocity with
density r_t that says nothing about the data; here the independent Gaussian with the mean and
variance of the velocities of the other half of the draws, so that the bound holds. It is beside
that of plain descent in docs/reference/estimators.md. The paper leaves momentum out ("would need
to estimate a distribution").
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from nas_evidence.curvature.likelihood import Likelihood
from nas_evidence.evidence.network_density import (
    FlatLogLikelihood,
    flat_log_likelihood,
    gaussian_density,
    spread_precision,
)
from nas_evidence.scores.sampling_plan import MOMENTUM, MomentumPlan
from nas_evidence.scores.sgd_entropy import N_CHECKPOINTS, DescentCurve, rows_of_draws
from nas_evidence.spec.record import EvidenceEstimate


@dataclass(frozen=True)
class HeavyBallCurve(DescentCurve):
    """The path of descents with momentum; the entropy [K] is that of (θ, v).

    velocity   v_t [R, K, P]
    """

    velocity: Tensor

    @property
    def bounds(self) -> Tensor:
        """Return the bounds [R, K] in nats, each with r_t from the other half of the draws.

        The expectation of each column is a lower bound on the log evidence.
        """
        bounds = self.log_joint + self.entropy
        for mine in (0, 1):
            log_r = _density(self.velocity[1 - mine :: 2])
            bounds[mine::2] += log_r(self.velocity[mine::2])
        return bounds


def descend_with_momentum(
    log_likelihood: FlatLogLikelihood,
    inputs: Tensor,
    targets: Tensor,
    *,
    prior_precision: Tensor,
    plan: MomentumPlan,
    generator: torch.Generator,
) -> HeavyBallCurve:
    """Return log joint, velocities and joint entropy along `plan.n_seeds` independent descents.

    Args:
        log_likelihood: of flat parameters on inputs and targets.
        inputs: [n, ...].
        targets: [n] or [n, C].
        prior_precision: δ [P]; the draws start from N(0, diag(δ)⁻¹).
        plan: of the descent.
        generator: on the device of the precision.
    """
    n_data, like = len(inputs), prior_precision
    batch_size = min(plan.batch_size or n_data, n_data)
    rate = plan.learning_rate / n_data

    def one(theta: Tensor, v: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        g = grad(lambda flat: -n_data / batch_size * log_likelihood(flat, x, y))(theta)
        after = plan.momentum * v - rate * g
        return theta + after, after

    step: Callable[..., tuple[Tensor, Tensor]] = vmap(one)
    energy = vmap(lambda flat: log_likelihood(flat, inputs, targets))
    prior = gaussian_density(prior_precision)
    shape = (plan.n_seeds, len(like))

    def draws(spread: float) -> Tensor:
        noise = torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
        return spread * noise * like.rsqrt()

    theta, v = draws(1.0), draws(plan.first_speed)
    first = float((1 + (2 * math.pi / like).log()).sum()) + len(like) * math.log(plan.first_speed)
    stride = max(1, plan.n_steps // N_CHECKPOINTS)
    steps, joints, velocities = [], [], []
    for t in range(plan.n_steps + 1):
        if t % stride == 0:
            steps.append(t)
            joints.append((energy(theta) + prior(theta)[0]).detach())
            velocities.append(v.detach())
        if t == plan.n_steps:
            break
        rows = rows_of_draws(n_data, batch_size, plan.n_seeds, generator)
        given = (theta, v, inputs[rows], targets[rows])
        if t == 0:  # traced once: otherwise Python takes most of the time of tiny networks
            step = make_fx(step)(*given)
        theta, v = step(*given)
    lost = len(like) * math.log(plan.momentum)
    entropy = torch.tensor([first + t * lost for t in steps]).to(like)
    return HeavyBallCurve(
        tuple(steps), torch.stack(joints, 1), entropy, torch.stack(velocities, 1)
    )


def heavy_ball_bound(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    likelihood: Likelihood,
    prior_precision: float | Tensor | Mapping[str, float],
    generator: torch.Generator,
    plan: MomentumPlan = MOMENTUM,
) -> EvidenceEstimate:
    """Return a lower bound, in expectation, on the log evidence in nats, with its standard error.

    The parameters of the model do not matter. A step costs one gradient. The estimate is named
    `sgd_entropy`, whose bound it is, by another descent.

    Args:
        model: any module whose output for a datum does not depend on the rest of the batch.
        inputs: [n, ...].
        targets: int64 [n] or real [n, C].
        likelihood: `Categorical()` or `Gaussian(noise_std)`.
        prior_precision: > 0; one number, or one per parameter tensor or parameter.
        generator: on the device of the model.
        plan: of the descent.

    Raises:
        ValueError: for an impossible precision, or targets that the likelihood refuses.
    """
    started = time.perf_counter()
    log_likelihood, x, y = flat_log_likelihood(model, inputs, targets, likelihood)
    precision = spread_precision(model, prior_precision)
    curve = descend_with_momentum(
        log_likelihood, x, y, prior_precision=precision, plan=plan, generator=generator
    )
    return curve.estimate(n_data=len(inputs), started=started)


def _density(velocity: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the log density [R, K] of the independent Gaussian fitted to draws [R', K, P]."""
    mean, variance = velocity.mean(0), velocity.var(0)
    variance = variance.clamp(min=torch.finfo(variance.dtype).tiny)

    def log_r(v: Tensor) -> Tensor:
        each = (v - mean).square() / variance + (2 * math.pi * variance).log()
        return -0.5 * each.sum(2)

    return log_r
