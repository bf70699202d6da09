"""Blocks of data predicted by networks trained, as the plan says, on the data before them.

    score        trained on                            predicted
    prequential  the first c_1, c_2, ... c_K of N      up to c_2, c_3, ... N
    heldout_10   the first nine tenths                 the last tenth: the usual split

Every block has its own network. `prequential` does so in `prequential_orders` orders, the second
the reverse of the first.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.data.tensors import TensorData, select
from nas_evidence.evidence.prequential import Block, block_bounds, forecast
from nas_evidence.spec import EVIDENCE_BATCH, Assignment, TrainingPlan
from nas_evidence.training.loop import DivergedError, Training, likelihood_of
from nas_evidence.training.parts import order_of_data, part_of, seconds_of, train_slice

_HELD_OUT = (0.9,)


@dataclass(frozen=True)
class BlockTask:
    """A block to predict, [begin, end) in an order of the data, for a score."""

    score: str
    order: int
    begin: int
    end: int


def fractions_of(
    plan: TrainingPlan, estimators: Collection[str]
) -> Mapping[str, tuple[tuple[float, ...], ...]]:
    """Return where the blocks of each score that is asked for begin, in each order of the data."""
    all_fractions = {
        "prequential": (plan.prequential_fractions,) * plan.prequential_orders,
        "heldout_10": (_HELD_OUT,),
    }
    wanted = {name.removesuffix("_accuracy") for name in estimators}
    return {score: cuts for score, cuts in all_fractions.items() if score in wanted}


def blocks_due(state: Training, data: TensorData, assignment: Assignment) -> list[BlockTask]:
    """Return the blocks that are not scored yet.

    Raises:
        ValueError: the data are too few for a block to hold any.
    """
    due = []
    for score, orders in fractions_of(assignment.plan, assignment.estimators).items():
        tasks = [
            BlockTask(score, order, begin, end)
            for order, fractions in enumerate(orders)
            for begin, end in block_bounds(fractions, len(data.x_train))
        ]
        due += tasks[len(state.blocks.get(score, ())) :]
    return due


def advance_block(
    state: Training, data: TensorData, assignment: Assignment, task: BlockTask
) -> None:
    """Train on the data before a block for a slice; then predict it, and add to `state.blocks`."""
    rows = order_of_data(len(data.x_train), assignment)
    rows = rows.flip(0) if task.order else rows
    purpose = f"{task.score}:{task.begin}" + ":reversed" * task.order
    before = part_of(rows[: task.begin], data, assignment, purpose)
    found = Block(
        begin=task.begin, end=task.end, order=task.order,
        log_evidence=None, scale=1.0, hits=None, seconds=0.0,
    )  # fmt: skip
    try:
        if not train_slice(state, before):
            return
    except DivergedError:
        pass  # the block stays without an evidence
    else:
        found = found.model_copy(
            update=_predicted(state, data, rows[task.begin : task.end], assignment)
        )
    assert state.part is not None
    seconds = found.seconds + seconds_of(state.part)
    state.blocks.setdefault(task.score, []).append(found.model_copy(update={"seconds": seconds}))
    state.evidence_seconds += seconds
    state.part = None


def _predicted(
    state: Training, data: TensorData, block: Tensor, assignment: Assignment
) -> dict[str, object]:
    """Return how well the trained part foretells a block: the fields of a `Block`."""
    started, trained = time.perf_counter(), state.part
    assert trained is not None
    x, y = select(data.x_train, block), data.y_train[block.to(data.y_train.device)]
    likelihood = likelihood_of(assignment.plan, trained.noise_std, trained.temperature)
    guess = forecast(_outputs(trained, x), y, likelihood)
    return {**vars(guess), "seconds": time.perf_counter() - started}


@torch.no_grad()
def _outputs(training: Training, x: Tensor) -> Tensor:
    training.model.eval()
    parts = [training.model(x[i : i + EVIDENCE_BATCH]) for i in range(0, len(x), EVIDENCE_BATCH)]
    return torch.cat(parts)
