"""What a trained network says of rows of data, as delivered.

    classes        softmax of the outputs, divided by the temperature T
    real targets   normal, of variance σ² + Var f(x), with the Laplace posterior of the network

σ is the learned noise, or with `likelihood = "heteroscedastic"` that of the row. The likelihood
makes the distributions (`likelihoods/predictive.py`), and its declaration says whether the
posterior counts. Log losses of trials, folds, reports and exports are all of this kind.
"""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from nas_evidence.data.tensors import OwnTargets, TensorData
from nas_evidence.evidence.posterior import fit_posterior
from nas_evidence.likelihoods.predictive import Predictive, joined
from nas_evidence.maths.full_precision import full_precision
from nas_evidence.spec.study import EVIDENCE_BATCH, TrainingPlan
from nas_evidence.training.network import Network

#: Returns the distributions of the targets for inputs [m, ...], on the CPU.
Predict = Callable[[Tensor], Predictive]


def predict_rows(network: Network, x: Tensor, y: Tensor, own: OwnTargets | None = None) -> Predict:
    """Return the predictions of a network as a function of the inputs.

    The posterior is fitted on the device of the network, where the inputs must be.

    Args:
        network: at its hyperparameters.
        x: the preprocessed inputs that it was trained on.
        y: their targets.
        own: the targets with their scale, if that is no identity: it bounds means and their
            uncertainty.
    """
    model, likelihood = copy.deepcopy(network.model).eval(), network.likelihood
    posterior = None
    if network.plan.declared.averaged:
        names = [name for name, _ in model.named_parameters()]
        precisions = network.hyper.precision[:, None].unbind()
        posterior = fit_posterior(
            model,
            x,
            y,
            likelihood,
            dict(zip(names, precisions, strict=True)),
            likelihood_power=network.plan.likelihood_power,
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


def on_test_rows(
    predict: Predict, data: TensorData, plan: TrainingPlan, factor: float
) -> dict[str, float]:
    """Return the metrics of predictions of the test data, for reports only; none without.

    The nll per datum in nats, for standardised targets if they are real; and the accuracy as a
    fraction, weighted by the class weights; or the root mean squared error of the means of the
    predictive distributions, in the unit of the targets, its mean over several.

    Args:
        predict: of a network.
        data: that it was trained on.
        plan: of its training.
        factor: on the spread of the predictions.
    """
    y = data.seen_test
    if not len(y):
        return {}
    nll, parts, own = 0.0, [], data.own
    if own is not None:
        nll -= float(own.scale.log_jacobian(own.test, own.unit).sum())
    for start in range(0, len(y), EVIDENCE_BATCH):
        rows = slice(start, start + EVIDENCE_BATCH)
        part = predict(data.x_test[rows]).at(factor)
        nll -= float(part.log_density(y[rows].cpu()).sum())
        parts.append(part)
    scale, truth, unit = data.tested
    delivered = joined(parts).delivered(scale)
    of_nll, column = plan.declared.kind.tests
    usual = delivered.usual(truth, unit=unit, class_weights=data.class_weights)
    # Without the log loss where a test target is outside the support of the scale.
    return {column: usual} | ({of_nll: nll / len(y)} if math.isfinite(nll) else {})
