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
from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.data.augmentation import moves_of_epoch
from nas_evidence.likelihoods import Likelihood, Scale, likelihood, scales_of
from nas_evidence.models.modes import in_training_mode
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.record import CurvePoint
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.network import Network
from nas_evidence.training.together import (
    Batch,
    LossSums,
    Program,
    minibatches,
    n_together,
    totals_of,
)

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
        constant = _Constant.of(chosen, program.theta)
        for batches in _epochs_of(chosen, n_epochs):
            rates = _begin_epoch(chosen, program, constant)
            sums: list[LossSums] = []
            for batch in batches:
                nll = program.step(batch, constant.scale_of(batch))
                sums.append(batch.sums_of(nll))
            totals = totals_of(sums, len(chosen))
            seconds, started = time.perf_counter() - started, time.perf_counter()
            for at, (k, rate) in enumerate(zip(places, rates, strict=True)):
                share, mean = seconds * counts[k] / sum(counts), totals[at] / counts[k]
                errors[k] = _end_epoch(networks[k], constant.likelihoods[at], mean, rate, share)
            if any(errors.values()):
                break
    return [errors[k] for k in range(len(networks))]


@dataclass(frozen=True)
class _Constant:
    """What no epoch of a slice changes: K networks keep their hyperparameters.

    likelihoods  of each
    scale        of each [K, 1] or [K, C]; None if all are 1
    decay        weight decay before its limit [K, G], float64, on the CPU
    largest      of each network
    """

    likelihoods: list[Likelihood]
    scale: Tensor | None
    decay: Tensor
    largest: list[float]

    @classmethod
    def of(cls, networks: Sequence[Network], like: Tensor) -> "_Constant":
        """Return it; scalars are copied to the device of `like`."""
        found, plan = [network.likelihood for network in networks], networks[0].plan
        one = all(scale == 1 for each in found for scale in each.each_scale)
        decay = [
            network.hyper.precision
            * (network.hyper.scale**2 / (plan.likelihood_power * len(network.data.x_train)))
            for network in networks
        ]
        scale, decays = None if one else scales_of(found, like), torch.stack(decay)
        return cls(found, scale, decays, decays.amax(1).tolist())

    def scale_of(self, batch: Batch) -> Tensor | None:
        """Return the scale of the networks of a minibatch."""
        if self.scale is None or len(batch.sizes) == len(self.scale):
            return self.scale
        return self.scale[: len(batch.sizes)]


def _epochs_of(networks: Sequence[Network], n_epochs: int) -> Iterator[Iterator[Batch]]:
    """Return the minibatches of the next epochs."""
    epochs = [[network.epoch + k for network in networks] for k in range(1, n_epochs + 1)]
    data = [network.data for network in networks]
    of_epochs = [list(zip(networks, at, strict=True)) for at in epochs]
    orders = [[_order(network, epoch) for network, epoch in of_one] for of_one in of_epochs]
    moves = [
        [moves_of_epoch(one.data, one, epoch) for one, epoch in of_one] for of_one in of_epochs
    ]
    return minibatches(data, orders, networks[0].plan.batch_size, moves)


def _begin_epoch(
    networks: Sequence[Network], program: Program, constant: _Constant
) -> list[float]:
    """Prepare the steps of an epoch, and return the learning rates.

    Scalars are copied to the device here, once per epoch.
    """
    plan, decay = program.plan, constant.decay
    rates = [learning_rate(plan, network.epoch + 1) for network in networks]
    # At most half the inverse learning rate: beyond it a step overshoots zero.
    limits = [0.5 / rate for rate in rates]
    if not all(most <= limit for most, limit in zip(constant.largest, limits, strict=True)):
        decay = torch.minimum(decay, torch.tensor(limits, dtype=torch.float64)[:, None])
    program.set_decay(decay)
    n_steps = [-(-len(network.data.x_train) // plan.batch_size) for network in networks]
    program.begin_epoch(rates, n_steps)
    return rates


def _order(network: Network, epoch: int) -> Tensor:
    """Return the order of the data in an epoch [n], the same for every device."""
    seed = network.derived_seed("order", epoch)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(len(network.data.x_train), generator=generator)


def _end_epoch(
    network: Network, found: Likelihood, mean: float, rate: float, seconds: float
) -> DivergedError | None:
    epoch = network.epoch + 1
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
            learning_rate=rate,
            seconds=seconds,
            **{} if (key := declared(found.name).scale) is None else {key: found.scale},
        )
    )
    return None
