"""Data on the training device, normalised, and the order of the batches."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nas_evidence.data.arrays import ArrayData, Inputs, Task
from nas_evidence.data.mapped import Array, MappedRows
from nas_evidence.data.units import Units


@dataclass(frozen=True)
class TensorData:
    """Inputs (x - mean) / std in float32 and targets, all on one device.

    Inputs that are rows of a file stay there, as `NormalisedRows` instead of a tensor.
    """

    x_train: Tensor  # [n, *input_shape]
    y_train: Tensor  # labels int64 [n]; real (y - y_mean) / y_std, float32 [n, n_outputs]
    x_test: Tensor
    y_test: Tensor
    task: Task
    n_outputs: int
    input_shape: tuple[int, ...]
    y_mean: Tensor  # float64 [n_outputs], on the CPU; 0 for labels
    y_std: Tensor  # float64 [n_outputs], on the CPU; 1 for labels
    units: Units | None = None  # groups or times of the training rows
    class_weights: NDArray[np.float64] | None = None  # [n_outputs]; see `Meaning`
    #: What is made of these rows alone and used again: nobody changes them.
    made: dict[Any, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def n_classes(self) -> int:
        """Alias of `n_outputs`."""
        return self.n_outputs


class NormalisedRows:
    """Rows of a file as float32 tensors on a device, read and normalised when indexed.

    Replaces a tensor where only length, shape, device, dtype, and indexing by a slice or an index
    tensor are needed.
    """

    dtype = torch.float32

    def __init__(self, rows: MappedRows, mean: Tensor, std: Tensor) -> None:
        self._rows, self._mean, self._std = rows, mean, std
        self.shape = torch.Size(rows.shape)
        self.device = mean.device

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        rows = index.cpu().numpy() if isinstance(index, Tensor) else index
        raw = torch.from_numpy(self._rows[rows]).to(self.device)
        return (raw - self._mean).div_(self._std)


class _Rows:
    """A selection of `NormalisedRows`."""

    dtype = torch.float32

    def __init__(self, rows: NormalisedRows, index: Tensor) -> None:
        self._rows, self._index = rows, index
        self.shape = torch.Size((len(index), *rows.shape[1:]))
        self.device = rows.device

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        chosen = index.cpu() if isinstance(index, Tensor) else index
        return self._rows[self._index[chosen]]


def select(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows `index` of inputs; rows of a file stay in the file."""
    if isinstance(x, NormalisedRows):
        return cast(Tensor, _Rows(x, index))
    return x[index.to(x.device)]


def to_tensors(arrays: ArrayData, device: torch.device | str) -> TensorData:
    """Return the data on `device`; the arrays are copied, never changed or shared."""
    mean, std = (torch.tensor(value, device=device) for value in (arrays.mean, arrays.std))

    def inputs(x: Inputs) -> Tensor:
        if isinstance(x, MappedRows):
            return cast(Tensor, NormalisedRows(x, mean, std))
        # Bytes are copied to the device as bytes; the subtraction makes the float32 copy. Rows lie
        # in one piece, so that a network which flattens them reads the data themselves.
        return (torch.tensor(x, device=device) - mean).div_(std).contiguous()

    def targets(y: Array) -> Tensor:
        if arrays.task == "labels":
            return torch.tensor(y, device=device)
        standardised = (y - arrays.y_mean) / arrays.y_std
        return torch.tensor(standardised, dtype=torch.float32, device=device)

    return TensorData(
        x_train=inputs(arrays.x_train),
        y_train=targets(arrays.y_train),
        x_test=inputs(arrays.x_test),
        y_test=targets(arrays.y_test),
        task=arrays.task,
        n_outputs=arrays.n_outputs,
        input_shape=arrays.input_shape,
        y_mean=torch.tensor(arrays.y_mean),
        y_std=torch.tensor(arrays.y_std),
        units=arrays.units,
        class_weights=arrays.meaning.class_weights,
    )


def batches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Return index tensors that visit 0..n-1 once in a random order; the last may be short.

    The permutation is drawn at the call, on the CPU, so that it is the same for every device.

    >>> [len(rows) for rows in batches(7, 3, torch.Generator().manual_seed(0))]
    [3, 3, 1]
    """
    order = torch.randperm(n, generator=generator)
    return (order[start : start + batch_size] for start in range(0, n, batch_size))
