"""Training with the prior as the only regulariser (Immer et al. 2021, Algorithm 1).

    minimise over theta   kappa nll_mean(theta) + 1/(2N) theta^T Delta theta

    theta [P], Delta = diag(delta), one delta per parameter tensor [G] or per parameter [P]; N
    data; kappa likelihood power; nll_mean in nats, Gaussian or categorical, at the current noise
    standard deviation s or softmax temperature T. `online` updates delta, s and T during training.

Steps are taken on the objective times s^2 / kappa, or T^2 / kappa. The minimiser is the same, and
the curvature in the outputs is that of s = T = kappa = 1: a learning rate stays stable as the
learned noise gets small, while the gradient of nll_mean grows as 1 / s^2. Gradients are clipped to
the norm `gradient_clip` (Pascanu et al. 2013): a few long first steps can permanently switch off
all ReLUs of a deep narrow network.

Differs from the published code: the prior is divided by N like the likelihood, also with several
outputs, and kappa means the same here as in the evidence.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nas_evidence.data.tensors import TensorData, batches
from nas_evidence.likelihood import Categorical, Gaussian, Likelihood
from nas_evidence.maths.precisions import Precisions
from nas_evidence.record import CurvePoint
from nas_evidence.spec import Assignment, TrainingPlan

#: A run counts as diverged if it is this many times worse than a constant prediction.
_ABSURD = 1e4


class DivergedError(ArithmeticError):
    """The training loss is not finite, or above `loss_limit`."""


@dataclass
class Training:
    """The state that the next epoch needs, and the `curve` so far.

    prior_precision    one per parameter tensor [G] or per parameter [P], float64, > 0
    noise_std          s, of standardised targets
    temperature        T
    smoothed_evidence  of the online curvature after each update, per datum in nats
    updates_waited     since `highest_smoothed` last increased
    ended              whether patience stopped the training before its last epoch
    """

    model: nn.Module
    optimiser: torch.optim.Optimizer
    prior_precision: Tensor
    noise_std: float
    temperature: float
    epoch: int = 0
    curve: list[CurvePoint] = field(default_factory=list)
    smoothed_evidence: float | None = None
    highest_smoothed: float | None = None
    updates_waited: int = 0
    best_epoch: int | None = None
    best_evidence: float | None = None
    ended: bool = False
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
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in scalars], "relative": 1.0},
        {"params": [p for p in model.parameters() if id(p) in scalars], "relative": 0.1},
    ]
    groups = [group for group in groups if group["params"]]
    optimiser: torch.optim.Optimizer
    if plan.optimiser == "sgd":
        optimiser = torch.optim.SGD(groups, lr=plan.learning_rate, momentum=plan.momentum)
    else:
        optimiser = torch.optim.Adam(groups, lr=plan.learning_rate)
    sizes = [p.numel() for p in model.parameters()]
    count = sum(sizes) if plan.online.prior_groups == "parameter" else len(sizes)
    return Training(
        model=model,
        optimiser=optimiser,
        prior_precision=torch.full((count,), plan.prior_precision, dtype=torch.float64),
        noise_std=plan.noise_std,
        temperature=plan.temperature,
    )


def likelihood_of(plan: TrainingPlan, noise_std: float, temperature: float) -> Likelihood:
    """Return the likelihood of the plan, with its hyperparameter."""
    return Gaussian(noise_std) if plan.likelihood == "gaussian" else Categorical(temperature)


def learning_rate(plan: TrainingPlan, epoch: int) -> float:
    """Return the learning rate of the 1-based `epoch`."""
    if plan.schedule == "cosine":
        return plan.learning_rate * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / plan.epochs))
    if plan.schedule == "steps":
        return plan.learning_rate * plan.decay ** sum(epoch > m for m in plan.milestones)
    return plan.learning_rate


def train_epoch(
    state: Training,
    data: TensorData,
    assignment: Assignment,
    before_step: Callable[[Tensor, Tensor], float] | None = None,
) -> None:
    """Run one epoch and append its point to the curve; losses are taken before each step.

    Args:
        state: of the training; advances by one epoch.
        data: on the device of the model.
        assignment: the plan and the seeds.
        before_step: called with each minibatch before its step; returns the seconds it took, which
            do not count as training.

    Raises:
        DivergedError: if the loss is not finite, or above `loss_limit`.
    """
    started = time.perf_counter()
    plan, model, epoch = assignment.plan, state.model, state.epoch + 1
    rate = learning_rate(plan, epoch)
    for group in state.optimiser.param_groups:
        group["lr"] = rate * group["relative"]
    n_data = len(data.x_train)
    parameters = list(model.parameters())
    gaussian = plan.likelihood == "gaussian"
    scale = (state.noise_std if gaussian else state.temperature) ** 2
    decay = _weight_decay(state, scale / (plan.likelihood_power * n_data), rate)
    order = torch.Generator().manual_seed(assignment.derived_seed("order", epoch))
    likelihood = likelihood_of(plan, state.noise_std, state.temperature)
    nll_sum = torch.zeros((), dtype=torch.float64, device=data.x_train.device)
    model.train()
    aside = 0.0
    for index in batches(n_data, plan.batch_size, order):
        rows = index.to(data.x_train.device)
        x, y = data.x_train[rows], data.y_train[rows]
        if before_step is not None:
            aside += before_step(x, y)
        loss = likelihood.nll_mean(model(x), y)
        nll_sum += loss.detach().double() * len(rows)
        state.optimiser.zero_grad(set_to_none=True)
        (scale * loss).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter, strength in zip(parameters, decay, strict=True):
                if parameter.grad is not None:
                    parameter.grad.addcmul_(parameter, strength)
        if plan.gradient_clip:
            nn.utils.clip_grad_norm_(parameters, plan.gradient_clip)
        state.optimiser.step()
    mean = nll_sum.item() / n_data
    limit = loss_limit(plan, state.noise_std, data.n_outputs)
    if not mean <= limit:
        raise DivergedError(
            f"the training loss is {mean:.6g} nats per datum in epoch {epoch}, but at most "
            f"{limit:.3g} is allowed"
        )
    state.epoch = epoch
    seconds = time.perf_counter() - started - aside
    state.train_seconds += seconds
    state.curve.append(
        CurvePoint(
            epoch=epoch,
            train_nll_per_datum=mean,
            learning_rate=rate,
            seconds=seconds,
            noise_std=state.noise_std if gaussian else None,
            temperature=None if gaussian else state.temperature,
        )
    )


def loss_limit(plan: TrainingPlan, noise_std: float, n_outputs: int) -> float:
    """Return the nll per datum in nats above which a run counts as diverged.

    For labels 10⁴ times that of equal probabilities, log C. For real targets, which have variance
    1, that of 10⁴ times the squared error of a constant prediction, at the current noise.
    """
    if plan.likelihood == "categorical":
        return _ABSURD * math.log(n_outputs)
    log_variance = math.log(2 * math.pi * noise_std**2)
    return 0.5 * n_outputs * (_ABSURD / noise_std**2 + log_variance)


def _weight_decay(state: Training, per_datum: float, rate: float) -> list[Tensor]:
    """Return the factors of θ in the gradient, [] or of the shape of each parameter tensor."""
    parameters = list(state.model.parameters())
    # At most half the inverse learning rate: beyond it a step overshoots zero.
    decay = (state.prior_precision * per_datum).clamp(max=0.5 / rate)
    parts = Precisions(decay, [p.numel() for p in parameters]).by_tensor()
    return [
        part.to(p) if part.ndim == 0 else part.to(p).view_as(p)
        for part, p in zip(parts, parameters, strict=True)
    ]
