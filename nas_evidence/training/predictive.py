"""The spread of a trained network's predictions, as delivered.

    classes        the softmax temperature T
    real targets   √(s² + Var f(x)), with the Laplace posterior of the data it was trained on

s is the learned noise. Log losses of trials, folds, reports and exports are all of this kind.
"""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from nas_evidence.curvature.likelihood import Gaussian
from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.maths.precisions import Precisions
from nas_evidence.spec.study import TrainingPlan
from nas_evidence.training.loop import Training

#: Returns the spread [m, 1] or [m, C] of the predictions for inputs [m, ...], float64 on the CPU.
Spread = Callable[[Tensor], Tensor]


def predictive_spread(
    training: Training, plan: TrainingPlan, x: Tensor, y: Tensor, *, most_std: float = math.inf
) -> Spread:
    """Return the spread of a network's predictions as a function of the inputs.

    Args:
        training: the network and its hyperparameters.
        plan: of the training.
        x: the preprocessed inputs that it was trained on.
        y: their targets.
        most_std: most √(Var f(x)), standardised.
    """
    if plan.likelihood == "categorical":
        return lambda inputs: torch.full((len(inputs), 1), training.temperature).double()
    model = copy.deepcopy(training.model).cpu().eval()
    named = dict(model.named_parameters())
    precisions = Precisions(training.prior_precision.cpu(), [p.numel() for p in named.values()])
    posterior = fit_posterior(
        model,
        x if x.device.type == "cpu" else x[:].cpu(),
        y.cpu(),
        Gaussian(training.noise_std),
        {k: p.reshape(-1) for k, p in zip(named, precisions.by_tensor(), strict=True)},
        likelihood_power=plan.likelihood_power,
    )
    noise = training.noise_std**2

    def spread(inputs: Tensor) -> Tensor:
        covariance = posterior.output_covariance(model, inputs[:].cpu())
        return (noise + covariance.diagonal(dim1=1, dim2=2).clamp(0, most_std**2)).sqrt()

    return spread
