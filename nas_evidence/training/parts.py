"""Trainings on parts of the data before the main training, a slice at a time.

Each starts from a fresh initialisation and follows the plan of the main training, so that the
score is of the whole procedure as used on all data. The order of the data is the same for every
architecture, so that architectures are compared on the same parts, and differs between replicates.

Trainings that do not depend on each other go side by side, as one program (`together.py`).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nas_evidence.data.tensors import TensorData, select
from nas_evidence.data.units import Units
from nas_evidence.models import build
from nas_evidence.spec.schedule import Stop, next_stop
from nas_evidence.spec.study import Assignment, derive_seed
from nas_evidence.training.network import Network, begin


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


def new_network(data: TensorData, given: Assignment) -> Network:
    """Return a new network for all of some data, before its first epoch."""
    generator = torch.Generator().manual_seed(given.derived_seed("init"))
    width, architecture = given.plan.head_width(data.n_outputs), given.architecture
    model = build(architecture, data.input_shape, width, generator)
    model = model.to(data.x_train.device)
    return begin(model, data, given.plan, given.seed, family=architecture.family)


def stop_of_part(network: Network) -> Stop:
    """Return the next stop of a network of some of the data: the main training's, not evaluated.

    The update after the last epoch is made even where predictions are those of the weights alone:
    the network may settle from it, and densities given the others have its precisions.
    """
    return replace(next_stop(network.plan, network.epoch), evaluate=False)


def seconds_of(network: Network) -> float:
    """Return the seconds of a training, including its updates and its settling."""
    settling = 0.0 if network.settling is None else network.settling.seconds
    return network.train_seconds + network.evidence_seconds + settling
