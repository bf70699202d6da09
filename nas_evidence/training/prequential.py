"""Blocks of data predicted by networks trained, as the plan says, on the data before them.

Every block has its own network, from a fresh initialisation, with the online updates of the plan:
what is scored is the whole procedure, as it will be used on all of the data. The order of the data
is the same for every architecture, so that differences between architectures are not those
between blocks, and another one for every replicate.

    score        trained on                            predicted
    prequential  the first c_1, c_2, ... c_K of N      up to c_2, c_3, ... N
    heldout_10   the first nine tenths                 the last tenth: the usual split

`prequential` does so in `prequential_orders` orders, the second the reverse of the first.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nas_evidence.data.tensors import TensorData, select
from nas_evidence.evidence.prequential import Block, block_bounds, forecast
from nas_evidence.models import build
from nas_evidence.spec import EVIDENCE_BATCH, Assignment, TrainingPlan, derive_seed
from nas_evidence.training.loop import (
    DivergedError,
    Training,
    begin,
    likelihood_of,
    train_epoch,
)
from nas_evidence.training.online import evaluate

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


def score_block(
    state: Training, data: TensorData, assignment: Assignment, task: BlockTask
) -> None:
    """Train on the data before a block, predict it, and append it to `state.blocks`."""
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(derive_seed("blocks", assignment.replicate))
    rows = torch.randperm(len(data.x_train), generator=generator)
    rows = rows.flip(0) if task.order else rows
    before, block = rows[: task.begin], rows[task.begin : task.end]
    x, y = select(data.x_train, block), data.y_train[block.to(data.y_train.device)]
    purpose = f"{task.score}:{task.begin}" + ":reversed" * task.order
    found = Block(
        begin=task.begin, end=task.end, order=task.order,
        log_evidence=None, scale=1.0, hits=None, seconds=0.0,
    )  # fmt: skip
    try:
        trained = _trained_on(before, data, assignment, purpose)
    except DivergedError:
        pass  # the block stays without an evidence
    else:
        plan = assignment.plan
        likelihood = likelihood_of(plan, trained.noise_std, trained.temperature)
        guess = forecast(_outputs(trained, x), y, likelihood)
        found = found.model_copy(
            update={
                "log_evidence": guess.log_evidence, "scale": guess.scale, "hits": guess.hits,
            }
        )  # fmt: skip
    seconds = time.perf_counter() - started
    state.blocks.setdefault(task.score, []).append(found.model_copy(update={"seconds": seconds}))
    state.evidence_seconds += seconds


def _trained_on(rows: Tensor, data: TensorData, assignment: Assignment, purpose: str) -> Training:
    """Return a network trained on some rows alone, as the plan says."""
    seed = assignment.derived_seed(purpose)
    alone = assignment.model_copy(update={"estimators": (), "seed": seed})
    some = replace(
        data,
        x_train=select(data.x_train, rows),
        y_train=data.y_train[rows.to(data.y_train.device)],
    )
    generator = torch.Generator().manual_seed(alone.derived_seed("init"))
    model = build(assignment.architecture, data.input_shape, data.n_outputs, generator)
    training = begin(model.to(data.x_train.device), assignment.plan)
    due = _updates(assignment.plan)
    while training.epoch < assignment.plan.epochs and not training.ended:
        train_epoch(training, some, alone)
        if training.epoch in due:
            evaluate(training, some, alone)
    return training


def _updates(plan: TrainingPlan) -> set[int]:
    """Return the epochs of the online updates; the last one would change no parameter."""
    regular = set(plan.evaluation_epochs())
    return {epoch for epoch in regular if epoch < plan.epochs or plan.likelihood == "gaussian"}


@torch.no_grad()
def _outputs(training: Training, x: Tensor) -> Tensor:
    training.model.eval()
    parts = [training.model(x[i : i + EVIDENCE_BATCH]) for i in range(0, len(x), EVIDENCE_BATCH)]
    return torch.cat(parts)
