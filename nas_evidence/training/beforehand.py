"""What comes before the first epoch of the training proper: the scores that need trainings."""

from nas_evidence.data.tensors import TensorData
from nas_evidence.evidence.prequential import prequential_estimates
from nas_evidence.record import Evaluation
from nas_evidence.spec import Assignment
from nas_evidence.training.conditional import advance_difference, difference_due
from nas_evidence.training.loop import Training
from nas_evidence.training.prequential import advance_block, blocks_due


def is_beforehand(state: Training, data: TensorData, assignment: Assignment) -> bool:
    """Tell whether trainings on parts of the data are due.

    Raises:
        ValueError: the data are too few for a part to hold any.
    """
    return bool(blocks_due(state, data, assignment)) or difference_due(state, assignment)


def advance_beforehand(state: Training, data: TensorData, assignment: Assignment) -> None:
    """Go on with the first of them for a slice."""
    blocks = blocks_due(state, data, assignment)
    if blocks:
        advance_block(state, data, assignment, blocks[0])
    else:
        advance_difference(state, data, assignment)


def early_scores(state: Training, data: TensorData) -> list[Evaluation]:
    """Return what is known at epoch 0; of a score by blocks, what the finished orders say."""
    estimates = list(state.differences)
    for score, blocks in state.blocks.items():
        orders = {block.order for block in blocks if block.end == len(data.x_train)}
        known = [block for block in blocks if block.order in orders]
        if known:
            estimates += prequential_estimates(known, score, f"{score}_accuracy")
    return [Evaluation(epoch=0, estimate=estimate) for estimate in estimates]
