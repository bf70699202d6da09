"""Steps of a hyperparameter update, applied to a training: one pass, its prior, its data.

`online` combines them; `joint` holds the maximiser.
"""

import math

import torch

from nas_evidence.curvature import CurvaturePass
from nas_evidence.evidence.laplace import squared_norms
from nas_evidence.maths.structured import Structured
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.joint import (
    Noise,
    fit_prior,
    fit_prior_and_noise,
    members_of,
    tied_precision,
)
from nas_evidence.training.loop import Training


def refit_precision(
    state: Training,
    curvature: Structured,
    scale: float,
    plan: TrainingPlan,
    highest: torch.Tensor | None,
) -> torch.Tensor:
    """Return prior precisions of higher evidence, for `scale` times the curvature.

    None is above `highest` [G].
    """
    online = plan.online
    return fit_prior(
        curvature,
        squared_norms(state.model),
        state.prior_precision,
        members=members_of(online.prior_groups, len(curvature.names)),
        curvature_scale=scale,
        highest=highest,
        method=online.hyper_step,
        steps=online.hyper_steps,
        learning_rate=online.hyper_learning_rate,
    )


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
    return fit_prior_and_noise(
        curvature,
        squared_norms(state.model),
        state.prior_precision,
        members=members_of(plan.online.prior_groups, len(curvature.names)),
        noise=noise,
        likelihood_power=plan.likelihood_power,
        highest=highest,
        highest_std=math.inf if highest is None else noise.pass_std,
    )[1]


def tied_precision_of(state: Training, plan: TrainingPlan) -> torch.Tensor:
    """Return the prior precisions of the state, each group's at its geometric mean."""
    members = members_of(plan.online.prior_groups, len(state.prior_precision))
    return tied_precision(state.prior_precision, members)


def gain_over_a_constant(pass_: CurvaturePass, targets: torch.Tensor, plan: TrainingPlan) -> float:
    """Return by how many nats the network fits the data better than the best constant.

    For real targets with the noise of the plan or, if it is learned, the best noise for each. A
    network that predicts its noise is compared with the best constant of mean and noise.
    """
    if plan.likelihood == "heteroscedastic":
        variances = targets.double().var(0, correction=0)
        if not bool((variances > 0).all()):
            return -math.inf  # the constant is perfect
        constant = -0.5 * len(targets) * float((2 * math.pi * math.e * variances).log().sum())
        return pass_.log_likelihood - constant
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
