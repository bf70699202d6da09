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
from dataclasses import dataclass, replace
from typing import Protocol, cast

import torch
from torch import Tensor

from nas_evidence.data.tensors import TensorData
from nas_evidence.spec.study import TrainingPlan


class Planned(Protocol):
    """What is needed of an `Assignment`: the plan, and the seeds of random streams."""

    @property
    def plan(self) -> TrainingPlan:
        """Return the plan of the training."""

    @property
    def seed(self) -> int:
        """Return the seed of all random streams."""

    def derived_seed(self, purpose: str, counter: int = 0) -> int:
        """Return the seed of one random stream."""


@dataclass(frozen=True)
class Moves:
    """What is done to each of n images: moved down and right by whole pixels, then reflected.

    shift  int64 [n, 2]      flip  bool [n]
    """

    shift: Tensor
    flip: Tensor

    def __getitem__(self, index: slice | Tensor) -> "Moves":
        return Moves(self.shift[index], self.flip[index])

    def to(self, device: torch.device) -> "Moves":
        """Return the moves on a device."""
        return Moves(self.shift.to(device), self.flip.to(device))


def padding(size: int) -> int:
    """Return the padding in pixels of a side: an eighth, at least 1.

    >>> [padding(size) for size in (8, 28, 32, 64)]
    [1, 4, 4, 8]
    """
    return max(1, (size + 4) // 8)


def drawn_moves(
    augment: Sequence[str], n: int, size: tuple[int, int], generator: torch.Generator
) -> Moves:
    """Return random moves of `n` images of some height and width."""
    shift, flip = torch.zeros(n, 2, dtype=torch.int64), torch.zeros(n, dtype=torch.bool)
    if "RandomCrop" in augment:
        sides = [padding(side) for side in size]
        drawn = [torch.randint(-p, p + 1, (n,), generator=generator) for p in sides]
        shift = torch.stack(drawn, 1)
    if "RandomHorizontalFlip" in augment:
        flip = torch.rand(n, generator=generator) < 0.5
    return Moves(shift, flip)


def moved(x: Tensor, moves: Moves) -> Tensor:
    """Return images [n, C, H, W] after their moves; outside the nearest edge is repeated."""
    n, channels, height, width = x.shape
    down, right = moves.shift.to(x.device).unbind(1)
    rows = (torch.arange(height, device=x.device) - down[:, None]).clamp_(0, height - 1)
    across = torch.arange(width, device=x.device).expand(n, width)
    across = torch.where(moves.flip.to(x.device)[:, None], width - 1 - across, across)
    columns = (across - right[:, None]).clamp_(0, width - 1)
    index = (rows[:, :, None] * width + columns[:, None, :]).view(n, 1, -1)
    return x.flatten(2).gather(2, index.expand(-1, channels, -1)).view_as(x)


def moves_of_epoch(data: TensorData, given: Planned, epoch: int) -> Moves | None:
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
    return replace(data, x_train=cast(Tensor, MovedRows(data.x_train, moves)))


class MovedRows:
    """Images that are moved when indexed, by a slice or an index tensor.

    Replaces a tensor where `NormalisedRows` does.
    """

    dtype = torch.float32

    def __init__(self, x: Tensor, moves: Moves) -> None:
        self._x, self._moves = x, moves
        self.shape, self.device = x.shape, x.device

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        chosen = index.cpu() if isinstance(index, Tensor) else index
        return moved(self._x[index], self._moves[chosen])
