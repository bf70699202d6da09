"""Steps of a hyperparameter update, applied to a training: one pass, its prior, its data.

`online` combines them; `hyperparameters` and `joint` hold the maximisers.
"""

import math

import torch

from nas_evidence.curvature import CurvaturePass
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.maths.structured import BlockDiagonal, Structured
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.hyperparameters import (
    Method,
    precision_of_each_parameter,
    tied_precision,
    update_prior_precision,
)
from nas_evidence.training.joint import (
    Noise,
    fit_noise_and_each_precision,
    fit_prior,
    fit_prior_and_noise,
)
from nas_evidence.training.loop import Training
from nas_evidence.training.prior_groups import PriorGroups, ties_of


def refit_precision(
    state: Training,
    curvature: Structured,
    scale: float,
    plan: TrainingPlan,
    method: Method,
    highest: torch.Tensor | None,
) -> torch.Tensor:
    """Return prior precisions of higher evidence, for `scale` times the curvature.

    None is above `highest` [G] or [P]: with blocks each group has its own concave term, whose
    constrained maximum is the smaller of bound and maximum.
    """
    online = plan.online
    shapes = [p.shape for p in state.model.parameters()]
    if not isinstance(curvature, BlockDiagonal):
        return fit_prior(
            curvature,
            squared_norms(state.model),
            state.prior_precision,
            ties=ties_of(_tied(plan), curvature.names, shapes),
            curvature_scale=scale,
            highest=highest,
            method=method,
            steps=online.hyper_steps,
            learning_rate=online.hyper_learning_rate,
        )
    if online.prior_groups == "parameter":
        best = precision_of_each_parameter(
            curvature, _squares(state), state.prior_precision, curvature_scale=scale
        )
    else:
        best = update_prior_precision(
            curvature.spectra(),
            squared_norms(state.model),
            curvature.sizes,
            state.prior_precision,
            method=method,
            steps=online.hyper_steps,
            learning_rate=online.hyper_learning_rate,
            groups=online.prior_groups,
            names=curvature.names,
            shapes=shapes,
            curvature_scale=scale,
        )
    return best if highest is None else torch.minimum(best, highest)


def fit_noise(
    state: Training,
    curvature: Structured,
    noise: Noise,
    plan: TrainingPlan,
    highest: torch.Tensor | None,
) -> float:
    """Return the noise that maximises the evidence jointly with precisions of at most `highest`.

    With `highest`, the noise does not rise either.
    """
    highest_std = math.inf if highest is None else noise.pass_std
    power, groups = plan.likelihood_power, plan.online.prior_groups
    if groups == "parameter":
        assert isinstance(curvature, BlockDiagonal)
        return fit_noise_and_each_precision(
            curvature,
            _squares(state),
            state.prior_precision,
            noise=noise,
            likelihood_power=power,
            highest=highest,
            highest_std=highest_std,
        )[1]
    shapes = [p.shape for p in state.model.parameters()]
    return fit_prior_and_noise(
        curvature,
        squared_norms(state.model),
        state.prior_precision,
        ties=ties_of(groups, curvature.names, shapes),
        noise=noise,
        likelihood_power=power,
        highest=highest,
        highest_std=highest_std,
    )[1]


def tied_precision_of(state: Training, plan: TrainingPlan) -> torch.Tensor:
    """Return the prior precisions of the state, each group's at its geometric mean."""
    groups = plan.online.prior_groups
    if groups == "parameter":
        return state.prior_precision
    named = dict(state.model.named_parameters())
    ties = ties_of(groups, tuple(named), [p.shape for p in named.values()])
    return tied_precision(state.prior_precision, ties)


def gain_over_a_constant(pass_: CurvaturePass, targets: torch.Tensor, plan: TrainingPlan) -> float:
    """Return by how many nats the network fits the data better than the best constant.

    For real targets with the noise of the plan or, if it is learned, the best noise for each.
    """
    if pass_.squared_error is None:
        counts = torch.bincount(targets).double()
        return pass_.log_likelihood - float(torch.xlogy(counts, counts / counts.sum()).sum())
    squares = float((targets.double() - targets.double().mean(0)).square().sum())
    if not plan.online.learn_noise:
        return (squares - pass_.squared_error) / (2 * plan.noise_std**2)
    if squares == 0:
        return -math.inf  # the constant is perfect
    if pass_.squared_error == 0:
        return math.inf
    return 0.5 * targets.numel() * math.log(squares / pass_.squared_error)


def squares_of_groups(state: Training, plan: TrainingPlan) -> torch.Tensor:
    """Return the squared norms that match the prior precisions [G] or [P], on the CPU."""
    one_each = plan.online.prior_groups == "parameter"
    return (_squares(state) if one_each else squared_norms(state.model)).cpu()


def _tied(plan: TrainingPlan) -> PriorGroups:
    groups = plan.online.prior_groups
    assert groups != "parameter"  # which needs a diagonal kind
    return groups


def _squares(state: Training) -> torch.Tensor:
    """Return θ² [P], float64."""
    return torch.cat([p.detach().double().flatten() for p in state.model.parameters()]).square()
