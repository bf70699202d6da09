"""Data on the training device, normalised, and the order of the batches."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nas_evidence.data.arrays import ArrayData, Inputs
from nas_evidence.data.mapped import Array, MappedRows
from nas_evidence.data.targets import RealTargets, reading_of
from nas_evidence.data.units import Units
from nas_evidence.maths.target_scale import TargetScale, fit, identity
from nas_evidence.spec.likelihoods import Stored

_ROOT_2_PI = math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class OwnTargets:
    """Real targets in their own unit, where networks see them on a scale that is no identity.

    scale        fitted to the training rows
    unit         of densities [C]: standard deviations of all training targets of the study
    train, test  float64 [n, C]
    """

    scale: TargetScale
    unit: NDArray[np.float64]
    train: NDArray[np.float64]
    test: NDArray[np.float64]

    @cached_property
    def log_jacobian(self) -> float:
        """Σ log |dz/du| of the training rows, nats; see `TargetScale.log_jacobian`."""
        return float(self.scale.log_jacobian(self.train, self.unit).sum())

    def seen_on(self, scale: TargetScale) -> tuple[Tensor, NDArray[np.float64]]:
        """Return the training targets on another scale, as `TensorData.seen_from`, on the CPU."""
        return _seen(self.train, scale, "cpu"), scale.log_jacobian(self.train, self.unit)

    @cached_property
    def least_noise(self) -> float:
        """Noise whose density at its mode, times the least gap between targets, is 1.

        A value that can be told from its neighbours has a probability of at most 1, so a smaller
        noise makes its density mean nothing. Standardised, of the closest targets of any column.
        """
        z = self.scale.standardised(self.train)
        gaps = [np.diff(np.unique(column)) for column in z.T]
        return min((float(gap.min()) for gap in gaps if len(gap)), default=0.0) / _ROOT_2_PI

    def held(self, outputs: Tensor) -> Tensor:
        """Return outputs of a network [n, C], held between the bounds of the scale."""
        assert outputs.shape[1] == len(self.scale.centre), "outputs must be means"
        low, high = (
            torch.from_numpy((bound - self.scale.centre) / self.scale.spread).to(outputs)
            for bound in (self.scale.lowest, self.scale.highest)
        )
        return outputs.clamp(low, high)

    def at(self, rows: NDArray[np.int64]) -> "OwnTargets":
        """Return some training rows alone, on the same scale."""
        return replace(self, train=self.train[rows])

    def fitted_to(self, rows: NDArray[np.int64]) -> "OwnTargets":
        """Return some training rows alone, with the scale fitted to them."""
        some = self.train[rows]
        return replace(self, train=some, scale=fit(self.scale.name, some))


@dataclass(frozen=True)
class TensorData:
    """Inputs (x - mean) / std in float32 and targets, all on one device.

    Inputs that are rows of a file stay there, as `IndexedRows` instead of a tensor.
    """

    x_train: Tensor  # [n, *input_shape]
    y_train: Tensor  # labels int64 [n]; real standardised on their scale, float32 [n, n_outputs]
    x_test: Tensor
    y_test: Tensor
    task: Stored
    n_outputs: int
    input_shape: tuple[int, ...]
    y_mean: Tensor  # float64 [n_outputs], on the CPU; 0 for labels
    y_std: Tensor  # float64 [n_outputs], on the CPU; 1 for labels
    units: Units | None = None  # groups or times of the training rows
    class_weights: NDArray[np.float64] | None = None  # [n_outputs]; see `Meaning`
    own: OwnTargets | None = None  # None for labels and for the scale "identity"
    y_least: float | Tensor = -math.inf  # least that real targets may be [n_outputs], standardised
    #: What is made of these rows alone and used again: nobody changes them.
    made: dict[Any, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def log_jacobian(self) -> float:
        """Σ log |dz/du| of the training rows, nats: 0 where `own` is None."""
        return 0.0 if self.own is None else self.own.log_jacobian

    @property
    def least_noise(self) -> float:
        """The least noise that is learned, standardised: 0 where `own` is None."""
        return 0.0 if self.own is None else self.own.least_noise

    @property
    def seen_test(self) -> Tensor:
        """The test targets as networks of these rows see them, like `y_train`."""
        if self.own is None:
            return self.y_test
        return _seen(self.own.test, self.own.scale, self.y_test.device)

    @property
    def tested(self) -> tuple[TargetScale, NDArray[Any], NDArray[np.float64] | float]:
        """The test targets as predictions are judged: their scale, themselves, the unit of errors.

        Without a scale of their own they stay standardised, and the unit is that of the data.
        """
        if self.own is not None:
            return self.own.scale, self.own.test, 1.0
        zeros = np.zeros(self.n_outputs)
        scale = identity(zeros, zeros + 1, zeros + np.asarray(self.y_least))
        return scale, self.y_test.cpu().numpy(), self.y_std.numpy()

    def fitted_to(self, rows: Tensor) -> OwnTargets | None:
        """Return the targets of some training rows with the scale fitted to them; kept."""
        if self.own is None:
            return None
        at = rows.cpu().numpy()
        key = "fitted to", at.tobytes()
        if key not in self.made:
            self.made[key] = self.own.fitted_to(at)
        found: OwnTargets = self.made[key]
        return found

    def seen_from(self, trained: Tensor, rows: Tensor) -> tuple[Tensor, NDArray[np.float64]]:
        """Return targets as a network trained on other rows sees them, and log |dz/du|.

        Args:
            trained: the rows that the scale is fitted to.
            rows: whose targets are asked for.

        Returns:
            The targets of `rows`, like `y_train`; and log |dz/du| of each, nats, float64. Outside
            the support of the scale they are 0 and minus infinity.
        """
        fitted = self.fitted_to(trained)
        if fitted is None or self.own is None:
            return self.y_train[rows.to(self.y_train.device)], np.zeros(len(rows))
        y, scale = self.own.train[rows.cpu().numpy()], fitted.scale
        return _seen(y, scale, self.y_train.device), scale.log_jacobian(y, self.own.unit)


def _seen(y: Array, scale: TargetScale, device: torch.device | str) -> Tensor:
    return torch.tensor(RealTargets().seen(y, scale), device=device)


class IndexedRows:
    """Rows [n, ...] in float32 that are made when indexed: of a file, or of images that are moved.

    Replaces a tensor where only length, shape, device, dtype, and indexing by a slice or an index
    tensor are needed.
    """

    dtype = torch.float32

    def __init__(
        self, shape: Sequence[int], device: torch.device, made: Callable[[slice | Tensor], Tensor]
    ) -> None:
        self.shape, self.device, self._made = torch.Size(shape), device, made

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        return self._made(index.cpu() if isinstance(index, Tensor) else index)

    def subset(self, rows: Tensor) -> "IndexedRows":
        """Return a selection of these rows."""
        rows, shape = rows.cpu(), (len(rows), *self.shape[1:])
        return IndexedRows(shape, self.device, lambda index: self[rows[index]])


def normalised_rows(rows: MappedRows, mean: Tensor, std: Tensor) -> Tensor:
    """Return rows of a file as (x - mean) / std on the device of these; they stay in the file."""

    def made(index: slice | Tensor) -> Tensor:
        some = index.numpy() if isinstance(index, Tensor) else index
        return (torch.from_numpy(rows[some]).to(mean.device) - mean).div_(std)

    return cast(Tensor, IndexedRows(rows.shape, mean.device, made))


def select(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows `index` of inputs; rows of a file stay in the file."""
    if isinstance(x, IndexedRows):
        return cast(Tensor, x.subset(index))
    return x[index.to(x.device)]


def to_tensors(arrays: ArrayData, device: torch.device | str) -> TensorData:
    """Return the data on `device`; the arrays are copied, never changed or shared."""
    mean, std = (torch.tensor(value, device=device) for value in (arrays.mean, arrays.std))
    reading = reading_of(arrays.kind)

    def inputs(x: Inputs) -> Tensor:
        if isinstance(x, MappedRows):
            return normalised_rows(x, mean, std)
        # Bytes are copied to the device as bytes; the subtraction makes the float32 copy. Rows lie
        # in one piece, so that a network which flattens them reads the data themselves.
        return (torch.tensor(x, device=device) - mean).div_(std).contiguous()

    def targets(y: Array) -> Tensor:
        return torch.tensor(reading.seen(y, arrays.scale), device=device)

    own = None
    if arrays.fitted_scale is not None:
        own = OwnTargets(arrays.scale, arrays.y_std, arrays.y_train, arrays.y_test)
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
        own=own,
        y_least=torch.tensor(
            (arrays.standardisation.least - arrays.y_mean) / arrays.y_std
            if arrays.kind.scaled
            else -math.inf
        ),
    )


def batches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Return index tensors that visit 0..n-1 once in a random order; the last may be short.

    The permutation is drawn at the call, on the CPU, so that it is the same for every device.

    >>> [len(rows) for rows in batches(7, 3, torch.Generator().manual_seed(0))]
    [3, 3, 1]
    """
    order = torch.randperm(n, generator=generator)
    return (order[start : start + batch_size] for start in range(0, n, batch_size))
