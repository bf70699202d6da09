"""Training with online Laplace updates (Immer et al. 2021, Algorithm 1).

    minimise over theta   nll_mean(theta) + 1/(2N) theta^T Delta theta        one epoch at a time
    every F epochs        log q(D) = l - 1/2 theta^T Delta theta - 1/2 log|H + Delta| / |Delta|
                          maximised over log Delta at fixed theta

    theta [P], Delta = diag(delta), one delta a parameter tensor [G]; N data; nats throughout.

How this differs from the published code: the curvature pass sees the fixed, un-augmented training
set in evaluation mode and leaves the mode as it was; N counts the points visited; the prior is the
only regulariser, and precisions are clamped.
"""

import math
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nas_evidence.curvature import CurvaturePass, curvature_pass
from nas_evidence.data.tensors import TensorData, batches
from nas_evidence.evidence.laplace import laplace_estimate, squared_norms
from nas_evidence.evidence.sotl import prequential_epoch1, sotl, sotl_e, sotl_ema
from nas_evidence.likelihood import Categorical
from nas_evidence.maths.structured import BlockDiagonal
from nas_evidence.record import CurvePoint, Evaluation, EvidenceEstimate
from nas_evidence.spec import CURVE_SCORES, LAPLACE_KINDS, Assignment, TrainingPlan
from nas_evidence.training.hyperparameters import update_prior_precision

#: Rows of a curvature pass; independent of the batch size of training.
CURVATURE_BATCH = 512


class DivergedError(ArithmeticError):
    """The training loss is no longer finite."""


@dataclass
class Training:
    """What the next epoch needs; `curve` and `evaluations` are what was seen on the way."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    prior_precision: Tensor  # [G], float64, > 0, one a parameter tensor
    epoch: int = 0
    curve: list[CurvePoint] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    train_seconds: float = 0.0
    evidence_seconds: float = 0.0


def begin(model: nn.Module, plan: TrainingPlan) -> Training:
    """Return the state before the first epoch, with the optimiser of the plan."""
    # Fixup scalars move with a tenth of the learning rate (Zhang et al. 2019, section 4).
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
    count = sum(1 for _ in model.parameters())
    precision = torch.full((count,), plan.prior_precision, dtype=torch.float64)
    return Training(model=model, optimiser=optimiser, prior_precision=precision)


def learning_rate(plan: TrainingPlan, epoch: int) -> float:
    """Return the learning rate of the 1-based `epoch`."""
    if plan.schedule == "cosine":
        return plan.learning_rate * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / plan.epochs))
    if plan.schedule == "steps":
        return plan.learning_rate * plan.decay ** sum(epoch > m for m in plan.milestones)
    return plan.learning_rate


def train_epoch(state: Training, data: TensorData, assignment: Assignment) -> None:
    """Run one epoch and append its point to the curve; losses are taken before each step.

    Raises:
        DivergedError: if a loss is not finite.
    """
    started = time.perf_counter()
    plan, model, epoch = assignment.plan, state.model, state.epoch + 1
    rate = learning_rate(plan, epoch)
    for group in state.optimiser.param_groups:
        group["lr"] = rate * group["relative"]
    n_data = len(data.x_train)
    parameters = list(model.parameters())
    # delta / N, no larger than half the inverse learning rate: beyond it a step overshoots zero.
    decay = (state.prior_precision / n_data).clamp(max=0.5 / rate).tolist()
    order = torch.Generator().manual_seed(assignment.derived_seed("order", epoch))
    likelihood = Categorical()
    nll_sum = torch.zeros((), dtype=torch.float64, device=data.x_train.device)
    model.train()
    for index in batches(n_data, plan.batch_size, order):
        rows = index.to(data.x_train.device)
        loss = likelihood.nll_mean(model(data.x_train[rows]), data.y_train[rows])
        nll_sum += loss.detach().double() * len(rows)
        state.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter, strength in zip(parameters, decay, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter, alpha=strength)
        state.optimiser.step()
    mean = nll_sum.item() / n_data
    if not math.isfinite(mean):
        raise DivergedError(f"the training loss is {mean} in epoch {epoch}")
    state.epoch = epoch
    losses = [point.train_nll_per_datum for point in state.curve] + [mean]
    seconds = time.perf_counter() - started
    state.train_seconds += seconds
    state.curve.append(
        CurvePoint(
            epoch=epoch,
            train_nll_per_datum=mean,
            learning_rate=rate,
            sotl=sotl(losses),
            sotl_e=sotl_e(losses, plan.sotl_epochs),
            sotl_ema=sotl_ema(losses, plan.sotl_gamma),
            prequential_epoch1=prequential_epoch1(losses, n_data),
            seconds=seconds,
        )
    )


def evaluate(state: Training, data: TensorData, assignment: Assignment) -> None:
    """Update the prior precisions if it is time, then append every score at this epoch."""
    started = time.perf_counter()
    online = assignment.plan.online
    passes: dict[str, CurvaturePass] = {}

    def at(kind: str) -> CurvaturePass:
        if kind not in passes:
            passes[kind] = _pass(kind, state, data, assignment)
        return passes[kind]

    if state.epoch % online.every == 0 and state.epoch > online.burn_in:
        curvature = at(online.curvature).curvature
        assert isinstance(curvature, BlockDiagonal), online.curvature
        state.prior_precision = update_prior_precision(
            curvature.spectra(),
            squared_norms(state.model),
            curvature.sizes,
            state.prior_precision,
            method=online.hyper_step,
            steps=online.hyper_steps,
            learning_rate=online.hyper_learning_rate,
            groups=online.prior_groups,
            names=curvature.names,
            shapes=[p.shape for p in state.model.parameters()],
        )
    estimates = [
        laplace_estimate(kind, at(kind), state.model, state.prior_precision)
        for kind in assignment.estimators
        if kind in LAPLACE_KINDS
    ]
    estimates += _free_scores(state, len(data.x_train), assignment.plan)
    state.evaluations += [Evaluation(epoch=state.epoch, estimate=e) for e in estimates]
    state.evidence_seconds += time.perf_counter() - started


def _pass(kind: str, state: Training, data: TensorData, assignment: Assignment) -> CurvaturePass:
    seed = assignment.derived_seed(f"curvature:{kind}", state.epoch)
    done = curvature_pass(
        kind,
        state.model,
        data.x_train,
        data.y_train,
        Categorical(),
        batch_size=CURVATURE_BATCH,
        generator=torch.Generator().manual_seed(seed),  # on the CPU: the same for every device
    )
    if not (math.isfinite(done.log_likelihood) and bool(done.curvature.trace().isfinite().all())):
        raise DivergedError(
            f"log likelihood {done.log_likelihood} or {kind} not finite after epoch {state.epoch}"
        )
    return done


def _free_scores(state: Training, n_data: int, plan: TrainingPlan) -> list[EvidenceEstimate]:
    """Return the scores that need no further pass: larger is better, so losses change sign."""
    point = state.curve[-1]
    notes = {
        "sotl_e": f"E = {plan.sotl_epochs}",
        "sotl_ema": f"gamma = {plan.sotl_gamma}",
    }
    names = (*CURVE_SCORES, "train_nll_per_datum")
    scores = [
        EvidenceEstimate(estimator=name, value=-getattr(point, name), note=notes.get(name, ""))
        for name in names
    ]
    count = sum(p.numel() for p in state.model.parameters())
    scores.append(EvidenceEstimate(estimator="n_parameters", value=count))
    return [
        s.model_copy(update={"per_datum": s.value / n_data})
        if s.estimator == "prequential_epoch1"
        else s
        for s in scores
    ]
