"""Sampling estimators as scores in studies of tiny networks: once, at the end of training.

They estimate the evidence of an architecture at its learned prior precisions, not of one trained
network: the ladder and the descent start from the prior, the integration from the trained
parameters. All run in float64, on the device of the model.

Each costs far more than the training. Above `LARGEST` parameters times data there is no estimate,
and the note says so.
"""

import copy
from collections.abc import Callable

import torch

from nas_evidence.likelihoods import as_double
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.record import EvidenceEstimate

#: Parameters times data: a few minutes on one core.
LARGEST = 200_000


def sampled_score(
    name: str, estimator: Callable[..., EvidenceEstimate], context: Context
) -> EvidenceEstimate:
    """Return a sampled evidence of the trained network in nats; invalid if too expensive."""
    network, data, plan = context.training, context.data, context.assignment.plan
    count = sum(p.numel() for p in network.model.parameters()) * len(data.x_train)
    why = ""
    if plan.likelihood_power != 1:
        why = "sampled for likelihood_power = 1 only"
    elif count > LARGEST:
        why = f"parameters times data are {count}, and at most {LARGEST} are sampled"
    if why:
        return EvidenceEstimate(estimator=name, value=float("-inf"), valid=False, note=why)
    device = data.x_train.device
    seed = context.assignment.derived_seed(f"sampled:{name}")
    found = estimator(
        copy.deepcopy(network.model).double(),
        data.x_train[:].double(),
        as_double(data.y_train),
        likelihood=network.likelihood,
        generator=torch.Generator(device).manual_seed(seed),
        prior_precision=network.hyper.precision.to(device),
    )
    return found.raised(data.log_jacobian, len(data.x_train))
