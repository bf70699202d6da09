"""Images shifted and reflected at random, in training and in the evidence.

    log q(y) with augmentation: of  κ Σ_n log p(y_n | a_n(x_n), θ) + log p(θ)

    a_n  random operations on image n, drawn anew in each epoch of training, once for the evidence
    κ    likelihood power: how often an image and its variants count (5 in Immer et al. 2021, after
         Osawa et al. 2019)

Operations have the names and meanings of torchvision's: `RandomCrop` with a padding of an eighth
of each side and `padding_mode = "edge"`, which needs no colour, and `RandomHorizontalFlip` with
probability 1/2. Draws are made on the CPU, so they are the same on every device.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

import torch
from torch import Tensor

from nas_evidence.data.tensors import IndexedRows, TensorData
from nas_evidence.spec.study import TrainingPlan


class Planned(Protocol):
    """What is needed of an `Assignment`: the plan, and seeds of random streams."""

    @property
    def plan(self) -> TrainingPlan:
        """Return the plan of the training."""

    def derived_seed(self, purpose: str, counter: int = 0) -> int:
        """Return the seed of one random stream."""


def padding(size: int) -> int:
    """Return the padding in pixels of a side: an eighth, at least 1.

    >>> [padding(size) for size in (8, 28, 32, 64)]
    [1, 4, 4, 8]
    """
    return max(1, (size + 4) // 8)


def drawn_moves(
    augment: Sequence[str], n: int, size: tuple[int, int], generator: torch.Generator
) -> Tensor:
    """Return what is done to each of `n` images of some height and width, at random: int64 [n, 3].

    It is moved down and right by whole pixels, then reflected where the third number is 1.
    """
    moves = torch.zeros(n, 3, dtype=torch.int64)
    if "RandomCrop" in augment:
        for axis, side in enumerate(size):
            most = padding(side)
            moves[:, axis] = torch.randint(-most, most + 1, (n,), generator=generator)
    if "RandomHorizontalFlip" in augment:
        moves[:, 2] = torch.rand(n, generator=generator) < 0.5
    return moves


def moved(x: Tensor, moves: Tensor) -> Tensor:
    """Return images [n, C, H, W] after their moves; outside the nearest edge is repeated."""
    n, channels, height, width = x.shape
    down, right, flip = moves.to(x.device).unbind(1)
    rows = (torch.arange(height, device=x.device) - down[:, None]).clamp_(0, height - 1)
    across = torch.arange(width, device=x.device).expand(n, width)
    across = torch.where(flip[:, None] > 0, width - 1 - across, across)
    columns = (across - right[:, None]).clamp_(0, width - 1)
    index = (rows[:, :, None] * width + columns[:, None, :]).view(n, 1, -1)
    return x.flatten(2).gather(2, index.expand(-1, channels, -1)).view_as(x)


def moves_of_epoch(data: TensorData, given: Planned, epoch: int) -> Tensor | None:
    """Return the moves of an epoch (from 1; 0 is the evidence); None without augmentation.

    In training the k-th are those of the k-th image in the order of the epoch.
    """
    augment = given.plan.augment
    if not augment:
        return None
    height, width = data.input_shape[1:]
    generator = torch.Generator().manual_seed(given.derived_seed("augment", epoch))
    return drawn_moves(augment, len(data.x_train), (height, width), generator)


def data_of_evidence(data: TensorData, given: Planned) -> TensorData:
    """Return the data whose evidence is computed: with augmentation, the images moved once.

    The draw is the same at every evaluation of a trial, and in its export.
    """
    moves = moves_of_epoch(data, given, 0)
    if moves is None:
        return data
    return replace(data, x_train=moved_rows(data.x_train, moves))


def moved_rows(x: Tensor, moves: Tensor) -> Tensor:
    """Return images that are moved when they are indexed."""
    rows = IndexedRows(x.shape, x.device, lambda index: moved(x[index], moves[index]))
    return cast(Tensor, rows)
