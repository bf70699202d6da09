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
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nas_evidence.data.augmentation import moves_of_epoch
from nas_evidence.data.tensors import TensorData
from nas_evidence.likelihoods import Likelihood, Scale, likelihood, scales_of
from nas_evidence.models.modes import in_training_mode
from nas_evidence.spec.likelihoods import declared
from nas_evidence.spec.record import CurvePoint
from nas_evidence.spec.study import Assignment, TrainingPlan
from nas_evidence.training.optimiser import Optimiser
from nas_evidence.training.together import (
    Program,
    minibatches,
    n_together,
)

#: Factor on the learning rate at each milestone.
DECAY = 0.1


class DivergedError(ArithmeticError):
    """The training loss is not finite, or above the `loss_limit` of the likelihood."""


@dataclass
class Training:
    """The state that the next epoch needs, and the `curve` so far.

    prior_precision  one per parameter tensor [G], float64, > 0
    noise_std        σ, of standardised targets; of each of several, once it is learned
    """

    model: nn.Module
    optimiser: Optimiser
    prior_precision: Tensor
    noise_std: Scale
    epoch: int = 0
    curve: list[CurvePoint] = field(default_factory=list)
    best_epoch: int | None = None
    best_evidence: float | None = None
    train_seconds: float = 0.0
    evidence_seconds: float = 0.0


def begin(model: nn.Module, plan: TrainingPlan) -> Training:
    """Return the state before the first epoch, with the optimiser of the plan."""
    # Fixup scalars use a tenth of the learning rate (Zhang et al. 2019, section 4).
    scalars = {
        id(p)
        for module in model.modules()
        if hasattr(module, "elementwise_affine_scalar")
        for p in module.parameters(recurse=False)
    }
    parameters = list(model.parameters())
    relative = [0.1 if id(p) in scalars else 1.0 for p in parameters]
    return Training(
        model=model,
        optimiser=Optimiser(parameters, relative),
        prior_precision=torch.full((len(parameters),), plan.prior_precision, dtype=torch.float64),
        noise_std=plan.noise_std,
    )


def likelihood_of(plan: TrainingPlan, noise_std: Scale) -> Likelihood:
    """Return the likelihood of the plan, with this noise where the noise is learned."""
    of = declared(plan.likelihood)
    if of.scale is None:
        return likelihood(plan.likelihood)
    scale: Scale = noise_std if of.learned else getattr(plan, of.scale)
    return likelihood(plan.likelihood, scale)


def scale_column(of: Likelihood) -> dict[str, float]:
    """Return the column of results that has the scale, the geometric mean of several."""
    column = declared(of.name).scale
    return {} if column is None else {column: of.scale}


def learning_rate(plan: TrainingPlan, epoch: int) -> float:
    """Return the learning rate of the 1-based `epoch`."""
    if plan.schedule == "cosine":
        return plan.learning_rate * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / plan.epochs))
    if plan.schedule == "steps":
        return plan.learning_rate * DECAY ** sum(epoch > m for m in plan.milestone_epochs)
    return plan.learning_rate


@dataclass
class Member:
    """A training, its data, and its plan and seeds."""

    training: Training
    data: TensorData
    assignment: Assignment


def train_epoch(
    state: Training,
    data: TensorData,
    assignment: Assignment,
    *,
    n_epochs: int = 1,
) -> None:
    """Run epochs and append their points to the curve; losses are taken before each step.

    Args:
        state: of the training; advances by these epochs.
        data: on the device of the model.
        assignment: the plan and the seeds.
        n_epochs: how many; between them nobody may read the parameters.

    Raises:
        DivergedError: if the loss is not finite, or above the `loss_limit` of the likelihood.
    """
    member = Member(state, data, assignment)
    error = train_epochs([member], n_epochs=n_epochs)[0]
    if error is not None:
        raise error


def train_epochs(
    members: Sequence[Member],
    *,
    n_epochs: int = 1,
) -> list[DivergedError | None]:
    """Run epochs of each of some trainings of one architecture and plan; see `train_epoch`.

    They run as one program where that is faster, each with its own data, hyperparameters and
    epoch. Which trainings are in a group determines the last digits of each, so the caller must
    choose groups by the assignment alone. A group ends with the epoch in which a member diverges.

    Args:
        members: the trainings; each advances by an epoch at least unless it diverges.
        n_epochs: how many; between them nobody may read the parameters.

    Returns:
        For each member the error if it diverged, else None.
    """
    first, n = members[0], len(members)
    size = n_together(
        first.training.model, first.data.x_train[:1], first.assignment.plan.batch_size, n
    )
    groups = [members[start : start + size] for start in range(0, n, size)]
    return [error for group in groups for error in _train_group(group, n_epochs)]


def _train_group(members: Sequence[Member], n_epochs: int) -> list[DivergedError | None]:
    """Run epochs of each as one program, up to one in which a member diverges."""
    started = time.perf_counter()
    counts = [len(member.data.x_train) for member in members]
    # Those with fewer steps leave first, so that the others are always the first rows.
    places = sorted(range(len(members)), key=lambda k: -counts[k])
    chosen = [members[k] for k in places]
    errors: dict[int, DivergedError | None] = {}
    group = _Group(chosen)
    with group.program:
        for _ in range(n_epochs):
            sums = group.epoch().tolist()
            seconds, started = time.perf_counter() - started, time.perf_counter()
            for k, nll_sum in zip(places, sums, strict=True):
                share = seconds * counts[k] / sum(counts)
                errors[k] = _end_epoch(members[k], nll_sum / counts[k], share)
            if any(errors.values()):
                break
    return [errors[k] for k in range(len(members))]


class _Group:
    """Trainings whose parameters are one program while it is entered."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members, self.plan = members, members[0].assignment.plan
        states = [member.training for member in members]
        models = [in_training_mode(state.model) for state in states]
        self.program = Program(models, [state.optimiser for state in states], self.plan)
        self._decay: list[Tensor] = []  # as set last, one factor per prior precision

    def epoch(self) -> Tensor:
        """Take the steps of an epoch; return the summed nll of each member [K], nats, float64.

        No number is read from the device; indices and scalars are copied to it once per epoch.
        """
        plan, program, members = self.plan, self.program, self.members
        states = [member.training for member in members]
        orders = [_order(member) for member in members]
        rates = [learning_rate(plan, state.epoch + 1) for state in states]
        given = [likelihood_of(plan, state.noise_std) for state in states]
        scales, counts = [one.scale for one in given], [len(order) for order in orders]
        self._set_decay(states, scales, rates, counts)
        program.begin_epoch(rates, [-(-len(order) // plan.batch_size) for order in orders])
        one = all(scale == 1 for each in given for scale in each.each_scale)
        scale = None if one else scales_of(given, program.theta)
        seen = [member.data for member in members]
        moves = [moves_of_epoch(m.data, m.assignment, m.training.epoch + 1) for m in members]
        totals = torch.zeros(len(members), dtype=torch.float64, device=program.theta.device)
        for batch in minibatches(seen, orders, plan.batch_size, moves):
            n = len(batch.sizes)
            nll = program.step(batch, None if scale is None else scale[:n])
            batch.add_sums(totals[:n], nll)
        return totals

    def _set_decay(
        self,
        states: Sequence[Training],
        scales: Sequence[float],
        rates: Sequence[float],
        n_data: Sequence[int],
    ) -> None:
        """Give the program the factors of θ in the gradient, if they are others than before."""
        power = self.plan.likelihood_power
        # At most half the inverse learning rate: beyond it a step overshoots zero.
        decay = [
            (state.prior_precision * (scale**2 / (power * n))).clamp(max=0.5 / rate)
            for state, scale, rate, n in zip(states, scales, rates, n_data, strict=True)
        ]
        if not self._decay or not all(map(torch.equal, decay, self._decay)):
            self._decay, sizes = decay, torch.tensor(self.program.sizes)
            self.program.set_decay([d.repeat_interleave(sizes) for d in decay])


def _order(member: Member) -> Tensor:
    """Return the order of the data in the next epoch [n], the same for every device."""
    seed = member.assignment.derived_seed("order", member.training.epoch + 1)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(len(member.data.x_train), generator=generator)


def _end_epoch(member: Member, mean: float, seconds: float) -> DivergedError | None:
    state, plan = member.training, member.assignment.plan
    epoch, found = state.epoch + 1, likelihood_of(plan, state.noise_std)
    limit = found.loss_limit(member.data.n_outputs)
    if not mean <= limit:
        return DivergedError(
            f"the training loss is {mean:.6g} nats per datum in epoch {epoch}, but at most "
            f"{limit:.3g} is allowed"
        )
    state.epoch = epoch
    state.train_seconds += seconds
    state.curve.append(
        CurvePoint(
            epoch=epoch,
            train_nll_per_datum=mean - member.data.log_jacobian / len(member.data.x_train),
            learning_rate=learning_rate(plan, epoch),
            seconds=seconds,
            **scale_column(found),
        )
    )
    return None
