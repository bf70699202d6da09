"""Training with the prior as the only regulariser (Immer et al. 2021, Algorithm 1).

    minimise over θ   κ nll_mean(θ) + 1/(2N) θᵀΔθ

    θ [P], Δ = diag(δ), one δ per parameter tensor [G]; N data; κ likelihood
    power; nll_mean in nats, Gaussian or categorical, at the current noise standard deviation σ or
    softmax temperature T. `online` updates δ and σ during training. A heteroscedastic likelihood
    has neither σ nor T: the noise is an output of the network, and σ = 1 below.

Steps are taken on the objective times σ² / κ, or T² / κ. The minimiser is the same, and
the curvature in the outputs is that of σ = T = κ = 1: a learning rate stays stable as the
learned noise gets small, while the gradient of nll_mean grows as 1 / σ². Gradients are clipped to
the norm `GRADIENT_CLIP` (Pascanu et al. 2013): a few long first steps can permanently switch off
all ReLUs of a deep narrow network.

Differs from the published code: the prior is divided by N like the likelihood, also with several
outputs, and κ means the same here as in the evidence.
"""

import math
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nas_evidence.data.augmentation import moves_of_epoch
from nas_evidence.likelihoods import Likelihood, Scale, likelihood, scales_of
from nas_evidence.models.modes import in_training_mode
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.record import CurvePoint
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.network import Network
from nas_evidence.training.together import Batch, Program, minibatches, n_together

#: Factor on the learning rate at each milestone.
DECAY = 0.1


class DivergedError(ArithmeticError):
    """The training loss is not finite, or above the `loss_limit` of the likelihood."""


def likelihood_of(plan: TrainingPlan, noise_std: Scale) -> Likelihood:
    """Return the likelihood of the plan, with this noise where the noise is learned."""
    of = declared(plan.likelihood)
    if of.scale is None:
        return likelihood(plan.likelihood)
    scale: Scale = noise_std if of.learned else getattr(plan, of.scale)
    return likelihood(plan.likelihood, scale)


def learning_rate(plan: TrainingPlan, epoch: int) -> float:
    """Return the learning rate of the 1-based `epoch`."""
    if plan.schedule == "cosine":
        return plan.learning_rate * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / plan.epochs))
    if plan.schedule == "steps":
        return plan.learning_rate * DECAY ** sum(epoch > m for m in plan.milestone_epochs)
    return plan.learning_rate


def train_epoch(network: Network, *, n_epochs: int = 1) -> None:
    """Run `train_epochs` of one network.

    Raises:
        DivergedError: if the loss is not finite, or above the `loss_limit` of the likelihood.
    """
    error = train_epochs([network], n_epochs=n_epochs)[0]
    if error is not None:
        raise error


def train_epochs(networks: Sequence[Network], *, n_epochs: int = 1) -> list[DivergedError | None]:
    """Run epochs of some networks of one architecture and plan; losses are before each step.

    They run as one program where that is faster, each with its own data, hyperparameters and
    epoch. Which networks are in a group determines the last digits of each, so the caller must
    choose groups by the assignment alone. A group ends with the epoch in which one diverges; the
    others of it go on in a new one.

    Args:
        networks: each advances by all these epochs unless it diverges.
        n_epochs: how many; between them nobody may read the parameters.

    Returns:
        For each the error if it diverged, else None.
    """
    last = [network.epoch + n_epochs for network in networks]
    found: list[DivergedError | None] = [None] * len(networks)
    while left := {
        k: last[k] - one.epoch
        for k, one in enumerate(networks)
        if found[k] is None and one.epoch < last[k]
    }:
        most = max(left.values())
        behind, first = [k for k in left if left[k] == most], networks[0]
        size = n_together(first.model, first.data.x_train[:1], first.plan.batch_size, len(behind))
        for start in range(0, len(behind), size):
            group = behind[start : start + size]
            errors = _train_group([networks[k] for k in group], most)
            for k, error in zip(group, errors, strict=True):
                found[k] = error
    return found


def _train_group(networks: Sequence[Network], n_epochs: int) -> list[DivergedError | None]:
    """Run epochs of each as one program, up to one in which a network diverges.

    No number is read from the device within an epoch.
    """
    started = time.perf_counter()
    counts = [len(network.data.x_train) for network in networks]
    # Those with fewer steps leave first, so that the others are always the first rows.
    places = sorted(range(len(networks)), key=lambda k: -counts[k])
    chosen = [networks[k] for k in places]
    errors: dict[int, DivergedError | None] = {}
    models = [in_training_mode(network.model) for network in chosen]
    program = Program(models, [network.optimiser for network in chosen], chosen[0].plan)
    with program:
        for _ in range(n_epochs):
            scale, batches = _begin_epoch(chosen, program)
            sums = torch.zeros(len(chosen), dtype=torch.float64, device=program.theta.device)
            for batch in batches:
                n = len(batch.sizes)
                nll = program.step(batch, None if scale is None else scale[:n])
                batch.add_sums(sums[:n], nll)
            seconds, started = time.perf_counter() - started, time.perf_counter()
            for k, nll_sum in zip(places, sums.tolist(), strict=True):
                share = seconds * counts[k] / sum(counts)
                errors[k] = _end_epoch(networks[k], nll_sum / counts[k], share)
            if any(errors.values()):
                break
    return [errors[k] for k in range(len(networks))]


def _begin_epoch(
    networks: Sequence[Network], program: Program
) -> tuple[Tensor | None, Iterator[Batch]]:
    """Prepare the steps of an epoch; return the scales [K, 1], None if all are 1, and the data.

    Indices and scalars are copied to the device here, once per epoch.
    """
    plan = program.plan
    orders = [_order(network) for network in networks]
    rates = [learning_rate(plan, network.epoch + 1) for network in networks]
    scales = [network.hyper.scale for network in networks]
    # At most half the inverse learning rate: beyond it a step overshoots zero.
    program.set_decay(
        [
            (network.hyper.precision * (scale**2 / (plan.likelihood_power * len(order)))).clamp(
                max=0.5 / rate
            )
            for network, scale, rate, order in zip(networks, scales, rates, orders, strict=True)
        ]
    )
    program.begin_epoch(rates, [-(-len(order) // plan.batch_size) for order in orders])
    given = [network.likelihood for network in networks]
    one = all(scale == 1 for each in given for scale in each.each_scale)
    scale = None if one else scales_of(given, program.theta)
    seen = [network.data for network in networks]
    moves = [moves_of_epoch(one.data, one, one.epoch + 1) for one in networks]
    return scale, minibatches(seen, orders, plan.batch_size, moves, program.encoding)


def _order(network: Network) -> Tensor:
    """Return the order of the data in the next epoch [n], the same for every device."""
    seed = network.derived_seed("order", network.epoch + 1)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(len(network.data.x_train), generator=generator)


def _end_epoch(network: Network, mean: float, seconds: float) -> DivergedError | None:
    epoch, found = network.epoch + 1, network.likelihood
    limit = found.loss_limit(network.data.n_outputs)
    if not mean <= limit:
        return DivergedError(
            f"the training loss is {mean:.6g} nats per datum in epoch {epoch}, but at most "
            f"{limit:.3g} is allowed"
        )
    network.epoch = epoch
    network.train_seconds += seconds
    network.curve.append(
        CurvePoint(
            epoch=epoch,
            train_nll_per_datum=mean - network.data.log_jacobian / len(network.data.x_train),
            learning_rate=learning_rate(network.plan, epoch),
            seconds=seconds,
            **{} if (key := declared(found.name).scale) is None else {key: found.scale},
        )
    )
    return None
