"""Ways to less noise in a score, each alone.

shared    networks of one seed start from the first units of one wide network, and see the
          same minibatches
averaged  the mean of the weights over the last quarter of the epochs, in folds and on all rows
steps     folds take as many steps as the training on all rows, not as many epochs
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from nas_evidence import models
from nas_evidence.spec.study import ArchitectureSpec, Assignment
from nas_evidence.training import loop, parts

WAYS = ("shared", "averaged", "steps")
#: The widest MLP of the pools, and the deepest.
_WIDEST, _DEEPEST = 128, 4
#: Part of the epochs before the average begins.
_BEFORE = 0.75


@contextmanager
def way(name: str) -> Iterator[None]:
    """Train by one of `WAYS`; by none if the name is empty."""
    with ExitStack() as stack:
        if name == "shared":
            stack.enter_context(patch.object(parts, "build", _cut))
        if name == "averaged":
            stack.enter_context(patch.object(loop, "_epoch", _averaged(loop._epoch)))
        if name == "steps":
            stack.enter_context(patch("nas_evidence.scores.folds.part_of", _longer))
        yield


def _cut(
    architecture: ArchitectureSpec,
    shape: tuple[int, ...],
    n_outputs: int,
    generator: torch.Generator,
) -> nn.Module:
    """Return a network whose weights are the first of those of the widest, by fan-in."""
    own = models.build(architecture, shape, n_outputs, torch.Generator().manual_seed(0))
    wide = architecture.model_copy(update={"values": {"depth": _DEEPEST, "width": _WIDEST}})
    other = dict(models.build(wide, shape, n_outputs, generator).named_parameters())
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            if parameter.ndim == 2:
                rows, columns = parameter.shape
                full: Tensor = other[name]
                scale = (full.shape[1] / columns) ** 0.5
                parameter.copy_(scale * full[:rows, :columns])
    return own


def _averaged(epoch: Any) -> Any:
    """Return an epoch of a group whose last one leaves the average."""

    def one(networks: Any, program: Any) -> Tensor:
        sums: Tensor = epoch(networks, program)
        for k, network in enumerate(networks):
            last = network.plan.epochs
            if network.epoch + 1 > _BEFORE * last:
                total, count = getattr(network, "average", (0.0, 0))
                network.average = total, count = total + program.theta[k], count + 1
                if network.epoch + 1 == last:
                    program.theta[k] = total / count
        return sums

    return one


def _longer(
    rows: Tensor | None, data: Any, assignment: Assignment, *more: Any, **also: Any
) -> Any:
    """Return a part with as many steps as all rows have."""
    part, given = parts.part_of(rows, data, assignment, *more, **also)
    plan, share = given.plan, len(data.x_train) / len(part.x_train)
    epochs = round(plan.epochs * share)
    online = plan.online.model_copy(update={"every": max(1, round(plan.online.every * share))})
    longer = plan.model_copy(update={"epochs": epochs, "online": online})
    return part, given.model_copy(update={"plan": longer})
