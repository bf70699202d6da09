"""Trainings on parts of the data before the main training, a slice at a time.

Each starts from a fresh initialisation and follows the plan of the main training, so that the
score is of the whole procedure as used on all data. The order of the data is the same for every
architecture, so that architectures are compared on the same parts, and differs between replicates.

A slice goes up to the next stop, as in the main training: a killed trial loses at most one
slice, and a slow one is not mistaken for a hung one. Trainings that do not depend on each other go
side by side, as one program (`together.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nas_evidence.data.tensors import TensorData, select
from nas_evidence.data.units import Units
from nas_evidence.models import build
from nas_evidence.spec.schedule import Stop, next_stop, on_a_part
from nas_evidence.spec.study import Assignment, derive_seed
from nas_evidence.training.checkpoint import restore, state_of
from nas_evidence.training.loop import DivergedError, Member, begin, train_epochs
from nas_evidence.training.online import update
from nas_evidence.training.settling import Settling, begin_settling, load_settling, settle_slices


@dataclass
class Run(Member):
    """A separate training on some of the data: its scheduled epochs, then its settling."""

    settling: Settling | None = None


def order_of_data(n: int, assignment: Assignment, units: Units | None = None) -> Tensor:
    """Return the order of `n` data [n], the same for every architecture.

    Groups are in one piece each, in random order; times in their own order.
    """
    generator = torch.Generator().manual_seed(derive_seed("blocks", assignment.replicate))
    rows = torch.randperm(n, generator=generator)
    if units is None:
        return rows
    ranks = torch.randperm(units.count, generator=generator)
    return torch.from_numpy(units.ordered(rows.numpy(), ranks.numpy()))


def cuts_of(order: Tensor, wanted: Sequence[int], units: Units | None = None) -> list[int]:
    """Return where to cut an order of the data: where it is wanted, or nearest between two units.

    Raises:
        ValueError: if there are fewer units than parts.
    """
    return list(wanted) if units is None else units.cuts(order.numpy(), wanted)


def part_of(
    rows: Tensor | None, data: TensorData, assignment: Assignment, purpose: str
) -> tuple[TensorData, Assignment]:
    """Return some rows of the data, or all of them, and their assignment with a seed of its own.

    The scale of real targets is fitted to these rows alone. There are no estimators.
    """
    alone = assignment.model_copy(
        update={"estimators": (), "seed": assignment.derived_seed(purpose)}
    )
    if rows is not None:
        y = data.y_train[rows.to(data.y_train.device)]
        units = None if data.units is None else data.units.at(rows.cpu().numpy())
        if (own := data.fitted_to(rows)) is not None:
            y, _ = data.seen_from(rows, rows)
        x = select(data.x_train, rows)
        data = replace(data, x_train=x, y_train=y, units=units, own=own)
    return data, alone


def new_run(data: TensorData, given: Assignment) -> Run:
    """Return a new run on all of some data, before its first epoch."""
    generator = torch.Generator().manual_seed(given.derived_seed("init"))
    width = given.plan.head_width(data.n_outputs)
    model = build(given.architecture, data.input_shape, width, generator)
    return Run(begin(model.to(data.x_train.device), given.plan), data, given)


def run_state(run: Run) -> dict[str, Any]:
    """Return all of a run as tensors and plain values, for `load_run`."""
    settling = None if run.settling is None else run.settling.state_dict()
    return {"training": state_of(run.training), "settling": settling}


def load_run(run: Run, state: Mapping[str, Any]) -> Run:
    """Return a new run after it has continued from its `run_state`."""
    restore(run.training, state["training"])
    if state["settling"] is not None:
        run.settling = load_settling(run, state["settling"])
    return run


def train_slices(runs: Sequence[Run]) -> list[bool | DivergedError]:
    """Train up to the next stop side by side, or settle for a round.

    Runs that have diverged or are over must not be passed again. The group, and with it the last
    digits of each, is then a function of the assignment.

    Args:
        runs: of one architecture; those not settling must have done equally many epochs.

    Returns:
        For each whether it is over, or the error if it diverged.
    """
    settling = {k: run.settling for k, run in enumerate(runs) if run.settling is not None}
    found: dict[int, bool | DivergedError] = {}
    found |= zip(settling, settle_slices(list(settling.values())), strict=True)
    training = {k: run for k, run in enumerate(runs) if run.settling is None}
    if training:
        first = next(iter(training.values()))
        plan = first.assignment.plan
        stop = on_a_part(next_stop(plan, first.training.epoch), plan)
        for k, error in _train_to(stop.epoch, training).items():
            try:
                found[k] = _end_slice(runs[k], stop) if error is None else error
            except DivergedError as late:
                found[k] = late
    return [found[k] for k in range(len(runs))]


def _train_to(epoch: int, runs: Mapping[int, Run]) -> dict[int, DivergedError | None]:
    """Train up to an epoch; return who diverged, and how."""
    found: dict[int, DivergedError | None] = dict.fromkeys(runs)
    while left := {k: epoch - run.training.epoch for k, run in runs.items() if found[k] is None}:
        most = max(left.values())
        if not most:
            break
        # A group in which one diverges is behind the others of its kind.
        behind = [k for k in left if left[k] == most]
        errors = train_epochs([runs[k] for k in behind], n_epochs=most)
        found |= dict(zip(behind, errors, strict=True))
    return found


def _end_slice(run: Run, stop: Stop) -> bool:
    """Update the hyperparameters; after the last epoch begin to settle. Tell if it is over."""
    if stop.update:
        update(run.training, run.data, run.assignment)
    if not stop.last:
        return False
    run.settling = settling_after(run)
    if run.settling is not None:
        run.settling.reported = False
    return run.settling is None


def settling_after(of: Member) -> Settling | None:
    """Return the settling of a training whose epochs are over, None if the plan has none."""
    settling = begin_settling(of, of.assignment.plan.settle * of.training.epoch)
    return settling if settling.budget else None


def seconds_of(run: Run) -> float:
    """Return the seconds of a run, including its updates and its settling."""
    settling = 0.0 if run.settling is None else run.settling.seconds
    return run.training.train_seconds + run.training.evidence_seconds + settling
