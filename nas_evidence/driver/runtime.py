"""Forecast of a study's runtime: a few timed training steps, extrapolated."""

import statistics
import time

import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import to_tensors
from nas_evidence.likelihood import Likelihood
from nas_evidence.models import build, infeasible
from nas_evidence.proposing.startup import startup_points
from nas_evidence.registry import CURVATURES, declared
from nas_evidence.spec import ArchitectureSpec, StudySpec
from nas_evidence.training.loop import likelihood_of
from nas_evidence.trial import device_for

#: Architectures timed per family.
TIMED_PER_FAMILY = 3
#: Cost of a curvature pass in training epochs; an exact one has one column per class.
_ONE_COLUMN, _A_COLUMN = 2.0, 0.7
#: Overhead: workers share memory and caches; each trial has a start, a test and files.
_SHARED, _TRIAL_SECONDS = 1.4, 1.0


def forecast_seconds(study: StudySpec, arrays: ArrayData) -> float:
    """Return the expected wall time of the study in seconds, good to a factor of about two."""
    torch.set_num_threads(study.resources.cpus)
    by_family: dict[str, list[ArchitectureSpec]] = {}
    for point in startup_points(study):
        by_family.setdefault(point.family, []).append(point)
    seconds, planned = 0.0, 0
    for points in by_family.values():
        sample = points[:: max(1, len(points) // TIMED_PER_FAMILY)][:TIMED_PER_FAMILY]
        mean = sum(_trial_seconds(point, study, arrays) for point in sample) / len(sample)
        seconds += mean * len(points)
        planned += len(points)
    workers = min(study.resources.workers, study.n_trials)
    mean = seconds / planned * (_SHARED if workers > 1 else 1.0) + _TRIAL_SECONDS
    return mean * study.n_trials / workers


def _trial_seconds(point: ArchitectureSpec, study: StudySpec, arrays: ArrayData) -> float:
    if infeasible(point, arrays.input_shape, arrays.n_outputs):
        return 0.0
    plan = study.plan
    data = to_tensors(arrays, device_for(study.resources.gpus))
    x, y = data.x_train[: plan.batch_size], data.y_train[: plan.batch_size]
    model = build(point, arrays.input_shape, arrays.n_outputs, torch.Generator().manual_seed(0))
    model.to(x.device)
    likelihood = likelihood_of(plan, plan.noise_std, plan.temperature)
    step_seconds = statistics.median(_step_seconds(model, likelihood, x, y) for _ in range(5))
    epoch = step_seconds * max(1, arrays.n_train / plan.batch_size)
    kinds = {plan.online.curvature, *study.estimators}
    columns = sum(
        _A_COLUMN * (arrays.n_outputs - 1) if CURVATURES[kind].columns == "exact" else _ONE_COLUMN
        for kind in kinds
        if kind in CURVATURES
    )
    # Scores with one implementation share its training runs; so do the kinds of one score.
    shared = {(s.implementation, s.trainings) for s in map(declared, study.estimators)}
    trainings = sum(times for _, times in shared)
    updates = _ONE_COLUMN * len(plan.evaluation_epochs())
    whole = plan.epochs * (1 + plan.settle) + columns * len(plan.evaluation_epochs())
    return epoch * (whole + trainings * (plan.epochs * (1 + plan.settle) + updates))


def _step_seconds(
    model: torch.nn.Module, likelihood: Likelihood, x: torch.Tensor, y: torch.Tensor
) -> float:
    """Time one step by hand: the first optimiser of `torch.optim` imports for a second."""
    parameters: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad]
    started = time.perf_counter()
    loss = likelihood.nll_mean(model(x), y)
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    with torch.no_grad():
        torch._foreach_add_(parameters, gradients, alpha=-1e-3)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started
