"""The two trainings of a conditional evidence: on the early data, then on all of them.

The first learns the hyperparameters as the plan says, the last time before its last epoch, so that
its parameters end at a mode for them; the second, from the same initialisation, holds them. The
training proper cannot stand in for the second, since it learns its own. Of real targets the noise
is learned once more at the end, with the precisions.
"""

from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.conditional import conditional_estimate, no_estimate
from nas_evidence.evidence.prequential import block_bounds
from nas_evidence.record import EvidenceEstimate
from nas_evidence.scores import CONDITIONAL_KINDS
from nas_evidence.spec import Assignment
from nas_evidence.training.loop import DivergedError, Training
from nas_evidence.training.online import laplace_estimates
from nas_evidence.training.parts import (
    Part,
    begun,
    order_of_data,
    part_of,
    seconds_of,
    train_slice,
)

_PURPOSE = "conditional"


def difference_due(state: Training, assignment: Assignment) -> bool:
    """Tell whether conditional evidences are asked for and not known yet."""
    return not state.differences and bool(_names(assignment))


def advance_difference(state: Training, data: TensorData, assignment: Assignment) -> None:
    """Train for a slice; after the second training, put the estimates into `state.differences`."""
    names = _names(assignment)
    n_data, n_early = len(data.x_train), _n_early(data, assignment)
    whole = part_of(None, data, assignment, _PURPOSE, learn=False)
    rows = order_of_data(n_data, assignment)[:n_early]
    part = whole if state.early else part_of(rows, data, assignment, _PURPOSE)
    try:
        if not train_slice(state, part):
            return
        found = _evidences(state, part, [name.removeprefix("conditional_") for name in names])
    except DivergedError as error:
        note = f"the training on {len(part.data.x_train)} data diverged: {error}"
        state.differences = [no_estimate(name, note) for name in names]
    else:
        state.evidence_seconds += sum(estimate.seconds for estimate in found)
        if not state.early:
            state.early = found
            state.part = _at_hyperparameters_of(_ended(state), whole)
            return
        state.differences = [
            conditional_estimate(
                early, late, n_early=n_early, n_data=n_data, labels=data.task == "labels"
            )
            for early, late in zip(state.early, found, strict=True)
        ]
    _ended(state)
    state.early = []


def _evidences(state: Training, part: Part, kinds: list[str]) -> list[EvidenceEstimate]:
    assert state.part is not None
    return laplace_estimates(kinds, state.part, part.data, part.assignment)


def _ended(state: Training) -> Training:
    """Take the training on a part out of the state, and count its time."""
    part, state.part = state.part, None
    assert part is not None
    state.evidence_seconds += seconds_of(part)
    return part


def _at_hyperparameters_of(first: Training, whole: Part) -> Training:
    """Return a training on all data that has not begun, with what the first one learned."""
    second = begun(whole)
    for name in ("prior_precision", "noise_std", "temperature"):
        setattr(second, name, getattr(first, name))
    return second


def _n_early(data: TensorData, assignment: Assignment) -> int:
    return block_bounds(assignment.plan.prequential_fractions, len(data.x_train))[0][0]


def _names(assignment: Assignment) -> list[str]:
    return [name for name in assignment.estimators if name in CONDITIONAL_KINDS]
