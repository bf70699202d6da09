"""The spread of a trained network's predictions, as delivered.

    classes        the softmax temperature T
    real targets   √(σ² + Var f(x)), with the Laplace posterior of the data it was trained on

s is the learned noise, or with `likelihood = "heteroscedastic"` that of the row. The mean f is
then a function of two outputs, and Var f is by the delta method. Log losses of trials, folds,
reports and exports are all of this kind.
"""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.likelihoods import Likelihood
from nas_evidence.likelihoods.gaussian import Gaussian
from nas_evidence.likelihoods.heteroscedastic import Heteroscedastic
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.spec.study import EVIDENCE_BATCH, TrainingPlan
from nas_evidence.training.loop import Training, likelihood_of

#: Returns the spread [m, 1] or [m, C] of the predictions for inputs [m, ...], float64 on the CPU.
Spread = Callable[[Tensor], Tensor]


def predictive_spread(
    training: Training, plan: TrainingPlan, x: Tensor, y: Tensor, *, most_std: float = math.inf
) -> Spread:
    """Return the spread of a network's predictions as a function of the inputs.

    The posterior is fitted on the device of the network, where the inputs must be.

    Args:
        training: the network and its hyperparameters.
        plan: of the training.
        x: the preprocessed inputs that it was trained on.
        y: their targets.
        most_std: most √(Var f(x)), standardised.
    """
    if plan.likelihood == "categorical":
        return lambda inputs: torch.full((len(inputs), 1), plan.temperature).double()
    model = copy.deepcopy(training.model).eval()
    likelihood = likelihood_of(plan, training.noise_std)
    names = [name for name, _ in model.named_parameters()]
    precisions = training.prior_precision[:, None].unbind()
    posterior = fit_posterior(
        model,
        x,
        y,
        likelihood,
        dict(zip(names, precisions, strict=True)),
        likelihood_power=plan.likelihood_power,
    )

    def spread(inputs: Tensor) -> Tensor:
        covariance = posterior.output_covariance(model, inputs)
        with full_precision():
            noise, of_mean = variances(likelihood, model, inputs, covariance)
        return (noise + of_mean.clamp(max=most_std**2)).sqrt().cpu()

    return spread


def predicted_means(outputs: Tensor, likelihood: Likelihood) -> Tensor:
    """Return the outputs [n, C] of classes, or the predicted means [n, C] of real targets."""
    return likelihood.mean(outputs) if isinstance(likelihood, Heteroscedastic) else outputs


@torch.no_grad()
def variances(
    likelihood: Likelihood, model: nn.Module, inputs: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the variances of real targets by their noise, and of their means by the posterior.

    Args:
        likelihood: of real targets, with its noise.
        model: in evaluation mode.
        inputs: preprocessed [n, ...].
        covariance: of the outputs by the posterior of the weights, float64 [n, outputs, outputs].

    Returns:
        Noise [n, C], or [1] or [C] if that of all rows is the same, and the variance of the means
        [n, C].
    """
    if isinstance(likelihood, Gaussian):
        noise = torch.tensor(likelihood.each_scale, dtype=torch.float64).square()
        return noise, covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
    assert isinstance(likelihood, Heteroscedastic)
    starts = range(0, len(inputs), EVIDENCE_BATCH)
    with full_precision():
        outputs = torch.cat([model(inputs[i : i + EVIDENCE_BATCH]) for i in starts])
    return likelihood.variance(outputs), likelihood.mean_variance(outputs, covariance)
