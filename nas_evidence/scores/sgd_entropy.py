"""Gradient descent as variational inference (Duvenaud, Maclaurin and Adams 2016).

    log p(y) >= E[log p(y, θ_t)] + S_t        θ_0 ~ prior
    θ_{t+1}  = θ_t − α g_t                     g_t, H_t  gradient and Hessian of N/M Σ_batch nll
    S_{t+1}  = S_t + log|I − α H_t|            S_0 = P/2 (1 + log 2π) − ½ Σ log δ

    E over draws of θ_0, batches and probes      α = learning rate / N      all in nats

t is chosen on half of the draws and evaluated on the other half, both ways, because the maximum of
a noisy mean is no bound. Without full Hessians, with one product H u per probe,

    log|I − A| >= E[−rᵀ A r − ‖A r‖²],   A = α H symmetric, r = ±1 at random

which holds while no eigenvalue of A is in (0.684, 1.099). The largest one is bounded from above at
evenly spaced steps (maths/largest_eigenvalue.py), and followed from below by a power iteration at
all others. The entropy-friendly descent steps along g − g0 tanh(g / g0), with A = α √B H √B and
B = diag(tanh²(g / g0)). docs/reference/estimators.md says what it is worth.

Differs from the published code: one Hessian product instead of two, slogdet instead of log(det),
θ_t paired with S_t instead of S_{t+1}, and the identity in the Jacobian of the entropy-friendly
step, which equation 10 of the paper drops.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from nas_evidence.evidence.network_density import (
    FlatLogLikelihood,
    estimate_of_runs,
    flat_log_likelihood,
    gaussian_density,
    spread_precision,
)
from nas_evidence.likelihoods import Likelihood
from nas_evidence.maths.largest_eigenvalue import largest_eigenvalue
from nas_evidence.scores.sampling import sampled_score
from nas_evidence.scores.sampling_plan import ENTROPY, EntropyPlan
from nas_evidence.spec.record import EvidenceEstimate

#: −a − a² <= log|1 − a| for all a up to this root.
LARGEST_EIGENVALUE = 0.6838
#: A step with a larger eigenvalue of A than this may not be one to one.
ONE_TO_ONE = 1.0
N_CHECKPOINTS = 50
#: Checkpoints after the maximum, and standard errors below it, at which a descent stops.
_PATIENCE, _CLEARLY = 5, 4.0


@dataclass(frozen=True)
class EntropyCurve:
    """The path of descents whose entropy is tracked, for R draws at K checkpoints.

    steps      [K]
    log_joint  log p(y, θ_t) [R, K], nats
    entropy    S_t [R, K]
    largest    upper limit of the largest eigenvalue of A
    positions  θ_t of the last checkpoint [R, P]: independent draws from q_t
    """

    steps: tuple[int, ...]
    log_joint: Tensor
    entropy: Tensor
    largest: float
    positions: Tensor

    @property
    def bounds(self) -> Tensor:
        """Return the bounds [R, K]; the expectation of each column is a lower bound."""
        return self.log_joint + self.entropy

    def best(self) -> tuple[Tensor, int]:
        """Return the bound of each draw [R] at the best step of the other half, and the best step.

        The returned step is the best one for all draws.
        """
        one, other = self.bounds[::2], self.bounds[1::2]
        runs = [one[:, int(other.mean(0).argmax())], other[:, int(one.mean(0).argmax())]]
        return torch.cat(runs), self.steps[int(self.bounds.mean(0).argmax())]


def one_product_bound(
    product: Callable[[Tensor], Tensor], probe: Tensor, root: Tensor
) -> tuple[Tensor, Tensor]:
    """Return −rᵀ A r − ‖A r‖² [] and A r [P] for A = √B (α H) √B.

    Args:
        product: u -> α H u [P].
        probe: r [P].
        root: √B [P].
    """
    image = root * product(root * probe)
    return -(probe * image).sum() - image.square().sum(), image


def descend(
    log_likelihood: FlatLogLikelihood,
    inputs: Tensor,
    targets: Tensor,
    *,
    prior_precision: Tensor,
    plan: EntropyPlan,
    generator: torch.Generator,
    watch: Callable[[int, Tensor], None] = lambda step, positions: None,
) -> EntropyCurve:
    """Return log joint and entropy along `plan.n_seeds` independent descents.

    Args:
        log_likelihood: of flat parameters on inputs and targets.
        inputs: [n, ...].
        targets: [n] or [n, C].
        prior_precision: δ [P]; the draws start from N(0, diag(δ)⁻¹).
        plan: of the descent.
        generator: on the device of the precision.
        watch: told t and the positions θ_t [R, P] of each checkpoint.
    """
    n_data, like = len(inputs), prior_precision
    batch_size = min(plan.batch_size or n_data, n_data)
    step = _step(log_likelihood, n_data, batch_size, plan)
    curvature = _scaled_curvature(log_likelihood, n_data, batch_size, plan)
    energy = vmap(lambda flat: log_likelihood(flat, inputs, targets))
    prior = gaussian_density(prior_precision)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)

    shape = (plan.n_seeds, len(like))
    theta = normal(*shape) * like.rsqrt()
    entropy = torch.full_like(theta[:, 0], _prior_entropy(like))
    direction, largest = normal(*shape), torch.full_like(entropy, -math.inf)
    stride = max(1, plan.n_steps // N_CHECKPOINTS)
    checked = max(1, plan.n_steps // plan.n_checks)
    steps, joints, entropies = [], [], []
    for t in range(plan.n_steps + 1):
        if t % stride == 0:
            steps.append(t)
            watch(t, theta.detach())
            joints.append((energy(theta) + prior(theta)[0]).detach())
            entropies.append(entropy.detach())
            if plan.stop and _has_passed_the_maximum(torch.stack(joints) + torch.stack(entropies)):
                break
        if t == plan.n_steps:
            break
        rows = rows_of_draws(n_data, batch_size, plan.n_seeds, generator)
        probes = normal(plan.n_seeds, plan.n_probes, len(like)).sign()
        x, y = inputs[rows], targets[rows]
        given = (theta, x, y, probes, direction)
        if t == 0:  # traced once: otherwise Python takes most of the time of tiny networks
            step = make_fx(step)(*given)
            if not plan.exact:
                curvature = make_fx(curvature)(theta, x, y, direction)  # not θ twice: one input
        if not plan.exact and t % checked == 0:
            upper = largest_eigenvalue(
                partial(curvature, theta, x, y), theta, generator=generator
            )[1]
            largest = largest.maximum(upper)
        theta, change, direction, found = step(*given)
        entropy, largest = entropy + change, largest.maximum(found)
    return EntropyCurve(
        tuple(steps),
        torch.stack(joints, 1),
        torch.stack(entropies, 1),
        float(largest.max()),
        theta.detach(),
    )


def sgd_entropy_bound(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    likelihood: Likelihood,
    prior_precision: float | Tensor | Mapping[str, float],
    generator: torch.Generator,
    plan: EntropyPlan = ENTROPY,
) -> EvidenceEstimate:
    """Return a lower bound, in expectation, on the log evidence in nats, with its standard error.

    The parameters of the model do not matter. A step costs a gradient, a product with the
    Hessian per probe and one for its largest eigenvalue; or a full Hessian if `plan.exact`.

    Args:
        model: any module whose output for a datum does not depend on the rest of the batch.
        inputs: [n, ...].
        targets: int64 [n] or real [n, C].
        likelihood: `Categorical()` or `Gaussian(noise_std)`.
        prior_precision: > 0; one number, or one per parameter tensor [G].
        generator: on the device of the model.
        plan: of the descent.

    Raises:
        ValueError: for an impossible precision, or targets that the likelihood refuses.
    """
    started = time.perf_counter()
    log_likelihood, x, y = flat_log_likelihood(model, inputs, targets, likelihood)
    precision = spread_precision(model, prior_precision)
    curve = descend(
        log_likelihood, x, y, prior_precision=precision, plan=plan, generator=generator
    )
    limit = ONE_TO_ONE if plan.exact else LARGEST_EIGENVALUE
    too_steep = not curve.largest <= limit
    slower = plan.learning_rate * 0.9 * limit / max(curve.largest, 1e-300)
    runs, best = curve.best()
    column = curve.steps.index(best)
    terms = {
        "best_step": float(best),
        "log_joint": float(curve.log_joint[:, column].mean()),
        "entropy": float(curve.entropy[:, column].mean()),
        "largest_eigenvalue": curve.largest,
        "n_data": float(len(inputs)),
    }
    return estimate_of_runs(
        "sgd_entropy", runs.tolist(), terms,
        n_data=len(inputs), seconds=time.perf_counter() - started, valid=not too_steep,
        note=f"learning rate times curvature reaches {curve.largest:.3g}, above "
        f"{limit:g}: no bound; use learning_rate = {slower:.2g}" if too_steep else "",
    )  # fmt: skip


#: The estimate for the trained network of a study, with the default plan; nats.
score = partial(sampled_score, "sgd_entropy", sgd_entropy_bound)


def rows_of_draws(n: int, size: int, n_draws: int, generator: torch.Generator) -> Tensor:
    """Return the rows of one minibatch for each draw [R, M], on the device of the generator."""
    order = torch.rand(n_draws, n, device=generator.device, generator=generator)
    return order.argsort(1)[:, :size]


def _prior_entropy(precision: Tensor) -> float:
    """Return S_0 of N(0, diag(δ)⁻¹), nats."""
    return float(0.5 * (1 + (2 * math.pi / precision).log()).sum())


def _step(
    log_likelihood: FlatLogLikelihood, n_data: int, batch_size: int, plan: EntropyPlan
) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return the step of all draws: θ, change of entropy, direction, largest eigenvalue."""
    rate = plan.learning_rate / n_data

    def one(
        theta: Tensor, x: Tensor, y: Tensor, probes: Tensor, direction: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        def loss(flat: Tensor) -> Tensor:
            return -n_data / batch_size * log_likelihood(flat, x, y)

        g = grad(loss)(theta)
        squash = torch.zeros_like(g) if plan.threshold is None else (g / plan.threshold).tanh()
        kept = g if plan.threshold is None else g - plan.threshold * squash
        root = torch.ones_like(g) if plan.threshold is None else squash.abs()
        if plan.exact:
            scaled = rate * root[:, None] * jacrev(grad(loss))(theta) * root
            change = torch.linalg.slogdet(torch.eye(len(g)).to(g) - scaled)[1]
            return theta - rate * kept, change, direction, torch.linalg.eigvalsh(scaled)[-1]

        def product(u: Tensor) -> Tensor:
            image: Tensor = grad(lambda flat: rate * (grad(loss)(flat) * u).sum())(theta)
            return image

        change = vmap(lambda r: one_product_bound(product, r, root)[0])(probes).mean()
        # One power iteration per step: from below, but at every step.
        unit = direction / direction.norm().clamp(min=torch.finfo(g.dtype).tiny)
        image = one_product_bound(product, unit, root)[1]
        return theta - rate * kept, change, image, (unit * image).sum()

    return vmap(one)


def _scaled_curvature(
    log_likelihood: FlatLogLikelihood, n_data: int, batch_size: int, plan: EntropyPlan
) -> Callable[..., Tensor]:
    """Return A u [R, P] of all draws, given θ, x, y and u."""
    rate = plan.learning_rate / n_data

    def one(theta: Tensor, x: Tensor, y: Tensor, u: Tensor) -> Tensor:
        def loss(flat: Tensor) -> Tensor:
            return -n_data / batch_size * log_likelihood(flat, x, y)

        root = torch.ones_like(theta)
        if plan.threshold is not None:
            root = (grad(loss)(theta) / plan.threshold).tanh().abs().detach()
        image: Tensor = grad(lambda flat: rate * (grad(loss)(flat) * (root * u)).sum())(theta)
        return root * image

    return vmap(one)


def _has_passed_the_maximum(bounds: Tensor) -> bool:
    """Tell whether the mean of the bounds [K, R] has fallen clearly below its maximum."""
    best = int(bounds.mean(1).argmax())
    if len(bounds) - 1 - best < _PATIENCE:
        return False
    fall = bounds[best] - bounds[-1]
    return bool(fall.mean() > _CLEARLY * fall.std() / len(fall) ** 0.5)
