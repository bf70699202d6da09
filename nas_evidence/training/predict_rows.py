"""What a trained network says of rows of data, as delivered.

    classes        softmax of the outputs, divided by the temperature T
    real targets   normal, of variance σ² + Var f(x), with the Laplace posterior of the network

σ is the learned noise, or with `likelihood = "heteroscedastic"` that of the row. The likelihood
makes the distributions (`likelihoods/predictive.py`), and its declaration says whether the
posterior counts. Log losses of trials, folds, reports and exports are all of this kind.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nas_evidence.data.tensors import OwnTargets
from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.likelihoods.predictive import Predictive
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.spec.study import EVIDENCE_BATCH, TrainingPlan
from nas_evidence.training.loop import Training, likelihood_of

#: Returns the distributions of the targets for inputs [m, ...], on the CPU.
Predict = Callable[[Tensor], Predictive]


def predict_rows(
    training: Training, plan: TrainingPlan, x: Tensor, y: Tensor, own: OwnTargets | None = None
) -> Predict:
    """Return the predictions of a network as a function of the inputs.

    The posterior is fitted on the device of the network, where the inputs must be.

    Args:
        training: the network and its hyperparameters.
        plan: of the training.
        x: the preprocessed inputs that it was trained on.
        y: their targets.
        own: the targets with their scale, if that is no identity: it bounds means and their
            uncertainty.
    """
    model = copy.deepcopy(training.model).eval()
    likelihood = likelihood_of(plan, training.noise_std)
    posterior = None
    if plan.declared.averaged:
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

    def predict(inputs: Tensor) -> Predictive:
        covariance = None if posterior is None else posterior.output_covariance(model, inputs)
        outputs = outputs_of(model, inputs)
        if own is None:
            return likelihood.predictive(outputs, covariance).cpu()
        found = likelihood.predictive(outputs, covariance, own.scale.most_std)
        return found.held(own.held).cpu()

    return predict


@torch.no_grad()
def outputs_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs [n, C] of a model for inputs, in evaluation mode and full precision."""
    model.eval()
    starts = range(0, len(x), EVIDENCE_BATCH)
    with full_precision():
        return torch.cat([model(x[i : i + EVIDENCE_BATCH]) for i in starts])
