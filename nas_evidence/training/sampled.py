"""Estimators that sample, for the tiny networks of a study: once, at the end of training.

They ask for the evidence of an architecture at its learned prior precisions, not of one trained
network: the ladder and the descent start from the prior, the integration from the trained
parameters. All in float64, on the CPU or GPU of the model.

Each costs far more than the training. Beyond `LARGEST` parameters times data there is no estimate,
and the note says so; a study of such architectures is meant to be small.
"""

import copy

import torch

from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.sgd_entropy import sgd_entropy_bound
from nas_evidence.evidence.temperature_ladder import temperature_ladder_evidence
from nas_evidence.evidence.thermodynamic import thermodynamic_evidence
from nas_evidence.record import EvidenceEstimate
from nas_evidence.scores import SAMPLED_KINDS
from nas_evidence.spec import Assignment
from nas_evidence.training.loop import Training, likelihood_of

#: Parameters times data: some minutes on one core.
LARGEST = 200_000


def sampled_estimates(
    state: Training, data: TensorData, assignment: Assignment
) -> list[EvidenceEstimate]:
    """Return the sampled evidences that are asked for, nats; not valid where too dear."""
    kinds = [kind for kind in assignment.estimators if kind in SAMPLED_KINDS]
    count = sum(p.numel() for p in state.model.parameters()) * len(data.x_train)
    why = _refusal(count, assignment)
    if why:
        return [
            EvidenceEstimate(estimator=kind, value=float("-inf"), valid=False, note=why)
            for kind in kinds
        ]
    return [_estimate(kind, state, data, assignment) for kind in kinds]


def _refusal(count: int, assignment: Assignment) -> str:
    if assignment.plan.likelihood_power != 1:
        return "sampled for likelihood_power = 1 only"
    if count > LARGEST:
        return f"parameters times data are {count}, and at most {LARGEST} are sampled"
    return ""


def _estimate(
    kind: str, state: Training, data: TensorData, assignment: Assignment
) -> EvidenceEstimate:
    device = data.x_train.device
    seed = assignment.derived_seed(f"sampled:{kind}")
    generator = torch.Generator(device).manual_seed(seed)
    model = copy.deepcopy(state.model).double()
    inputs = data.x_train[:].double()
    targets = data.y_train if data.task == "labels" else data.y_train.double()
    likelihood = likelihood_of(assignment.plan, state.noise_std, state.temperature)
    precision = state.prior_precision.to(device)
    if kind == "thermodynamic":
        return thermodynamic_evidence(
            model, inputs, targets,
            likelihood=likelihood, generator=generator, prior_precision=precision,
        )  # fmt: skip
    if kind == "temperature_ladder":
        return temperature_ladder_evidence(
            model, inputs, targets,
            likelihood=likelihood, generator=generator, prior_precision=precision,
        )  # fmt: skip
    return sgd_entropy_bound(
        model, inputs, targets,
        likelihood=likelihood, generator=generator, prior_precision=precision,
    )  # fmt: skip
