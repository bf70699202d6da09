"""Data on the training device, normalised, and the order in which batches visit it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nas_evidence.data.arrays import Array, ArrayData


@dataclass(frozen=True)
class TensorData:
    """Inputs (x - mean) / std in float32 and labels in int64, all on one device."""

    x_train: Tensor  # [n, *input_shape]
    y_train: Tensor  # [n]
    x_test: Tensor
    y_test: Tensor
    n_classes: int
    input_shape: tuple[int, ...]


def to_tensors(arrays: ArrayData, device: torch.device | str) -> TensorData:
    """Return the data on `device`; the arrays are copied, never changed or shared."""
    mean, std = (torch.tensor(value, device=device) for value in (arrays.mean, arrays.std))

    def normalised(x: Array) -> Tensor:
        # Bytes travel to the device as bytes; the subtraction makes the float32 copy.
        return (torch.tensor(x, device=device) - mean).div_(std)

    return TensorData(
        normalised(arrays.x_train),
        torch.tensor(arrays.y_train, device=device),
        normalised(arrays.x_test),
        torch.tensor(arrays.y_test, device=device),
        arrays.n_classes,
        arrays.input_shape,
    )


def batches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Return index tensors that visit 0..n-1 once in a random order; the last may be short.

    The permutation is drawn at the call, on the CPU, so that it is the same for every device.

    >>> [len(rows) for rows in batches(7, 3, torch.Generator().manual_seed(0))]
    [3, 3, 1]
    """
    order = torch.randperm(n, generator=generator)
    return (order[start : start + batch_size] for start in range(0, n, batch_size))
