"""Data as numpy arrays: the result of a reader, stratified subsets, and scaling.

Integer targets are labels, floating-point targets are real numbers. Test labels are used only to
stratify the rows that `max_test` selects.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nas_evidence.data.image_reading import ImageReading
from nas_evidence.data.mapped import Array, MappedRows
from nas_evidence.maths.target_scale import TargetScale, identity, least_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import Domain
from nas_evidence.spec.likelihoods import Stored, TargetKind, Task, default_of, stored_kind
from nas_evidence.spec.study import OF_IMAGES, TrainingPlan

if TYPE_CHECKING:
    from nas_evidence.data.table_columns import Preparation
    from nas_evidence.data.units import Units

#: Inputs: in memory, or rows of a file that are read when indexed.
Inputs = Array | MappedRows

#: Maximum number of rows and of elements processed at once, so that no copy of all data is made.
SLICE_ROWS = 4096
SLICE_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Meaning:
    """What inputs and outputs stand for, and what was decided about them.

    classes      the values that labels 0..C-1 stand for; empty if they are just numbers
    targets      names of the columns of the targets
    preparation  how the columns of a table became features; None for images, and vectors on disk
    said         sentences for the user: the task, the features, the rows
    change       the end of the first sentence if the task was inferred: how to change it
    class_weight what an error on a row of each class costs; empty without class weights
    images       how files of images became inputs; None for other data
    """

    classes: tuple[str | int | bool, ...] = ()
    targets: tuple[str, ...] = ()
    preparation: "Preparation | None" = None
    said: tuple[str, ...] = ()
    change: str = ""
    class_weight: Mapping[str, float] = field(default_factory=dict)
    images: ImageReading | None = None

    @property
    def class_weights(self) -> NDArray[np.float64] | None:
        """The class weights in the order of the classes [C], None without any."""
        return np.array([*self.class_weight.values()]) if self.class_weight else None

    def settled(self) -> "Meaning":
        """Return the same with the task as one that was given, no longer to be changed."""
        said = tuple(sentence.removesuffix(self.change) for sentence in self.said[:1])
        return replace(self, said=said + self.said[1:], change="")


class RawArrays(NamedTuple):
    """A data set as read: images [n, C, H, W] or vectors [n, d], uint8 or float32.

    Targets are of `task`: labels int64 [n], others float64 [n, C]. `units` are the groups or times
    of the training rows, if they were asked for.
    """

    x_train: Inputs
    y_train: Array
    x_test: Inputs
    y_test: Array
    meaning: Meaning = Meaning()
    units: "Units | None" = None
    task: Task = "classification"


@dataclass(frozen=True)
class ArrayData:
    """A data set as requested, not yet normalised.

    y_train, y_test  labels: int64 [n]; real targets: float64 [n, n_outputs], in their own unit
    n_outputs        classes, or columns of real targets: the width of a network's head
    mean, std        float32, of the training set only: per channel [C, 1, 1] for images, per
                     feature [d] for vectors; std is 1 where the training set is constant;
                     0 and 1 for the features of 0 and 1 of a table
    y_mean, y_std    the same for real targets, float64 [n_outputs]; 0 and 1 for labels
    fitted_scale     on which networks see the targets, None for "identity"
    meaning          names of classes and columns; there may be no test rows
    units            groups or times of the training rows, which folds do not divide
    """

    name: str
    x_train: Inputs
    y_train: Array
    x_test: Inputs
    y_test: Array
    task: Stored
    n_outputs: int
    input_shape: tuple[int, ...]  # (C, H, W) or (d,)
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    y_mean: NDArray[np.float64]
    y_std: NDArray[np.float64]
    meaning: Meaning = Meaning()
    units: "Units | None" = None
    fitted_scale: TargetScale | None = None

    @property
    def scale(self) -> TargetScale:
        """How networks see the targets; densities are of targets divided by y_std on any scale."""
        return self.fitted_scale or self.standardisation

    @property
    def standardisation(self) -> TargetScale:
        """The scale on which real targets are only standardised, as simple models see them."""
        return identity(self.y_mean, self.y_std, least_of(self.y_train))

    @property
    def n_train(self) -> int:
        """Number of training examples."""
        return len(self.x_train)

    @property
    def kind(self) -> TargetKind:
        """The kind of target."""
        return stored_kind(self.task)


def slices(x: Inputs) -> Iterator[Array]:
    """Yield all rows in order, in slices."""
    n_elements = int(np.prod(x.shape[1:]))
    step = min(SLICE_ROWS, max(1, SLICE_ELEMENTS // n_elements))
    return (x[start : start + step] for start in range(0, len(x), step))


def row_hashes(x: Inputs) -> Iterator[int]:
    """Yield a hash of the bytes of each row, as float32 without negative zeros."""
    return (hash(row.tobytes()) for part in slices(x) for row in part.astype(np.float32) + 0)


def value_range(x: Inputs) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    return min(float(p.min()) for p in slices(x)), max(float(p.max()) for p in slices(x))


def moments(x: Inputs) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mean and standard deviation over the examples, and over the pixels of images.

    Both broadcast to one example. The standard deviation is 1 where all values are equal. Sums
    are in float64, slice by slice, so that no float64 copy of the data is made.
    """
    axes = (0, 2, 3) if len(x.shape) == 4 else (0,)
    n_values = int(np.prod([x.shape[axis] for axis in axes]))
    total = sum(part.sum(axes, dtype=np.float64, keepdims=True) for part in slices(x))
    mean = total / n_values
    squares, low, high = 0.0, np.inf, -np.inf
    for part in slices(x):
        squares = squares + np.square(part - mean).sum(axes, keepdims=True)
        low = np.minimum(low, part.min(axes, keepdims=True))
        high = np.maximum(high, part.max(axes, keepdims=True))
    std = np.where(low == high, 1.0, np.sqrt(squares / n_values))
    return mean[0].astype(np.float32), std[0].astype(np.float32)


class _HasTask(Protocol):
    @property
    def task(self) -> Stored:
        """What the targets are."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""


def check_task(plan: TrainingPlan, data: _HasTask) -> None:
    """Check that the likelihood of the plan fits the targets, and its augmentation the inputs.

    Raises:
        ValueError: if not; names both, and the remedy.
    """
    kind = stored_kind(data.task)
    if plan.declared.kind is not kind:
        needed = default_of(kind.task)
        raise UserError(
            "likelihood-of-targets",
            f'`likelihood` must be "{needed}" if the targets are {kind.values}, but got '
            f'"{plan.likelihood}"; set likelihood = "{needed}" in [plan]',
        )
    if plan.augment and len(data.input_shape) != 3:
        raise UserError(
            "augment-without-images",
            f"`augment` needs images, but an input has the shape {list(data.input_shape)}; remove "
            "`augment` from [plan]",
        )


def check_space(space: Mapping[str, Mapping[str, Domain]], data: _HasTask) -> None:
    """Check that inputs can be what a space of architectures asks for.

    Args:
        space: the domains of each family.
        data: the data of the study.

    Raises:
        ValueError: if every family needs images and inputs are vectors.
    """
    if len(data.input_shape) == 1 and space.keys() <= OF_IMAGES:
        raise UserError(
            "families-of-images",
            f"{' and '.join(space)} need{'s' * (len(space) == 1)} images, but an input is a "
            f"vector of {data.input_shape[0]} numbers; search another family, such as mlp",
        )
