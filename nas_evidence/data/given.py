"""New data for a trained network: tables, arrays, tensors, images, or files of them."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data.array_files import arrays_of_part, as_frame
from nas_evidence.data.arrays import ArrayData, row_hashes
from nas_evidence.data.cells import with_numbers_read
from nas_evidence.data.image_reading import ImageReading
from nas_evidence.data.images import are_images, are_of_pil, new_images, new_images_in_memory
from nas_evidence.data.mapped import Array, arranged
from nas_evidence.data.preparation import doubts_of, in_known_forms, inputs_of
from nas_evidence.data.reading import check_aligned, read, targets_in
from nas_evidence.data.said import listed
from nas_evidence.data.source import pairs_of
from nas_evidence.data.table_columns import Preparation
from nas_evidence.data.units import weights_of
from nas_evidence.plumbing.user_error import UserError

_EMPTY = "the new data have no rows, so there is nothing to predict"


@dataclass(frozen=True)
class Given:
    """Raw inputs of a network [n, ...], and the true labels or targets [n] if they came along.

    A missing truth is NaN or None, a missing number of a vector NaN if none was missing in
    training; `doubts` say which columns are unlike the training data; `weights` is the column of
    how often each row occurs, if the data have that of the training; `unused` names the columns of
    a table that are no input; `names` are the files of images; `index` is that of a table, None of
    rows that have positions alone.
    """

    inputs: Array
    truth: Array | None = None
    doubts: tuple[str, ...] = ()
    weights: pd.Series | None = None
    unused: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    index: pd.Index | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """The doubts, and how many rows have no target, if some have one."""
        n = len(self.inputs)
        lacking = 0 if self.truth is None else n - len(_known(self.truth))
        told = f"{lacking} of {n} rows have no target: metrics are of the others"
        return (*self.doubts, *[told] * (0 < lacking < n))

    def with_truth(self, y: Any) -> "Given":
        """Return it with the true labels or targets [n] or [n, C].

        Raises:
            ValueError: if they are not of these rows, by their index or their number.
        """
        check_aligned(self.index, {"y": y})
        truth = np.asarray(y)
        if len(truth) != len(self.inputs):
            raise UserError(
                "evaluate-length",
                f"there are {len(self.inputs)} rows of data, but {len(truth)} true values",
            )
        return replace(self, truth=truth)

    def labelled(self) -> "Given | None":
        """Return the rows whose truth is known, each as often as it occurs; None without any.

        Their index is that of the rows, or their numbers.

        Raises:
            ValueError: for weights of these rows that are no frequencies.
        """
        if self.truth is None or not len(rows := _known(self.truth)):
            return None
        if self.weights is not None:
            column = self.weights.iloc[rows]
            rows = rows.repeat(weights_of(column, str(column.name), "the rows with a target"))
        index = pd.RangeIndex(len(self.inputs)) if self.index is None else self.index
        return Given(self.inputs[rows], self.truth[rows], index=index[rows])


def _known(truth: Array) -> Array:
    """Return the numbers of the rows without a missing target."""
    return np.flatnonzero(~np.atleast_2d(pd.isna(truth).T).any(0))


def features_of(
    data: Any,
    preparation: Preparation | None,
    *,
    target: str | None = None,
    weights: str | None = None,
    images: ImageReading | None = None,
) -> Given:
    """Return data as raw inputs of a network.

    Args:
        data: what `reading.read` takes: a path, a table of any library, an array, or a tensor.
        preparation: of the columns of a table; None if the network was trained on arrays.
        target: column of the truth, or several separated by commas, if the data hold them.
        weights: column of how often each row occurs, if the data hold it.
        images: how files of images became the training inputs.

    Raises:
        ValueError: if the data are of another kind, or cannot be read.
    """
    if isinstance(data, Given):
        return data
    truth = None
    if _is_data_set(data):
        data, truth = pairs_of(data)
    if images is not None and preparation is None and (read_so := _of_images(data, images)):
        return read_so if truth is None else replace(read_so, truth=truth)
    also = () if weights is None else (weights,)
    found = read(data, None if preparation is None else preparation.written, also)
    if isinstance(found, pd.DataFrame):
        given = _of_table(found, preparation, target, weights)
        is_own = isinstance(data, pd.DataFrame | pd.Series)
        # That of other tables is made here, but for what a file of pandas has kept.
        by_position = not is_own and isinstance(found.index, pd.RangeIndex)
        return given if by_position else replace(given, index=found.index)
    if not isinstance(data, str | Path):
        given = _of_array(found["x_train"], preparation)
        return given if truth is None else replace(given, truth=truth)
    path = Path(data)
    part = next((part for part in ("test", "train") if f"x_{part}" in found), None)
    if part is None:
        raise UserError(
            "npz-without-arrays",
            f"{path} must have an array x, x_test or x_train; write it with numpy.savez",
        )
    x, y = arrays_of_part(found, part, path)
    counts = found.get(weights or "")
    of_rows = counts is not None and counts.shape == x.shape[:1]
    column = pd.Series(counts, name=weights) if of_rows else None
    return replace(_of_array(x[:], preparation), truth=y, weights=column)


def _is_data_set(data: Any) -> bool:
    """Return whether data are a torch Dataset of pairs, known by what it has, without torch."""
    own = isinstance(data, str | list | tuple | Mapping) or hasattr(data, "shape")
    other = any(hasattr(data, name) for name in ("__array__", "to_pandas", "__arrow_c_stream__"))
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return indexed and not own and not other


def unlike_range(images: Array, low: float, high: float) -> Iterator[str]:
    """Yield a sentence if values of images are of another range than those of training.

    They are if they lie further outside it than it is wide, or all in a hundredth of it at 0: as
    values from 0 to 1 of images that were given as 0 to 255, or the reverse.
    """
    least, most = (float(end) for end in (images.min(), images.max()))
    width = high - low
    if least < low - width or most > high + width or 100 * max(-least, most) < width:
        yield (
            f"values are from {least:.4g} to {most:.4g}, but those of training from {low:.4g} to "
            f"{high:.4g}: are they on the same scale?"
        )


def _of_images(data: Any, reading: ImageReading) -> Given | None:
    """Return files of images, or images of PIL, as inputs; None for data of other kinds."""
    if are_of_pil([data]):
        data = [data]
    if are_of_pil(data):
        found = new_images_in_memory(data, reading)
    elif isinstance(data, str | Path) and are_images(Path(data).expanduser()):
        found = new_images(Path(data).expanduser(), reading)
    else:
        return None
    truth = found.arrays.get("y_train")
    given = _of_array(found.arrays["x_train"], None)
    return replace(given, truth=truth, doubts=found.doubts, names=found.names)


def _of_array(array: Array, preparation: Preparation | None) -> Given:
    if array.ndim and not len(array):
        raise UserError("nothing-to-predict", _EMPTY)
    if preparation is not None and (array.ndim != 2 or array.shape[1] != len(preparation.names)):
        raise _other_columns(preparation, f"an array {list(array.shape)}")
    if preparation is not None and array.dtype.kind in "biufOUS":
        frame = as_frame(array) if array.dtype.kind in "biuf" else pd.DataFrame(array)
        frame = frame.set_axis([*preparation.names], axis=1)
        return _of_table(with_numbers_read(frame, written=preparation.written), preparation, None)
    if array.dtype.kind not in "biuf":
        raise UserError(
            "inputs-not-numbers", f"inputs must be numbers, but are {array.dtype}; convert them"
        )
    found = arranged(array) if array.ndim > 2 else np.ascontiguousarray(array, np.float32)
    return _checked(found)


def _other_columns(preparation: Preparation, found: str) -> UserError:
    names, n = preparation.names, len(preparation.names)
    those = "" if preparation.unnamed else f" ({listed(names)})"
    return UserError(
        "other-columns",
        f"the new data must have the {n} columns of the training data{those}, but are {found}; "
        f"give a table with them, or an array [n, {n}]",
    )


def rows_seen(inputs: Array, trained: ArrayData) -> int:
    """Return how many rows of inputs [n, ...] equal a training row in all features.

    0 if they are no more than new rows would be by chance: as many as the share of training rows
    that equal another one, within three standard deviations. Copies in one unit, which weights
    make, are one row.
    """
    units = range(trained.n_train) if trained.units is None else trained.units.of
    distinct = set(zip(units, row_hashes(trained.x_train), strict=True))
    counts = Counter(row for _, row in distinct)
    alike = 1 - sum(count == 1 for count in counts.values()) / len(distinct)
    n, seen = len(inputs), sum(row in counts for row in row_hashes(inputs))
    spread = math.sqrt(n * alike * (1 - alike) * (1 + n / len(distinct)))
    return seen if seen > n * alike + 3 * spread else 0


def _checked(inputs: Array, truth: Array | None = None) -> Given:
    """Return inputs that are finite, but for missing numbers of vectors, which stay NaN."""
    missing = np.isnan(inputs) & (inputs.ndim == 2)
    bad = np.flatnonzero(~(np.isfinite(inputs) | missing).reshape(len(inputs), -1).all(1))
    if len(bad):
        raise UserError(
            "inputs-not-finite",
            f"inputs must be finite in float32, as those of the training were, but {len(bad)} of "
            f"{len(inputs)} rows are not, the first at row {bad[0]}; remove or fill them",
        )
    n = int(missing.sum())
    told = f"{n} missing cell{'s' * (n != 1)}, none in training, replaced by the mean"
    return Given(inputs, truth, (told,) if n else ())


def _of_table(
    frame: pd.DataFrame,
    preparation: Preparation | None,
    target: str | None,
    weights: str | None = None,
) -> Given:
    targets = targets_in(frame, target)
    truth = (
        np.asarray(frame[[*targets]] if len(targets) > 1 else frame[targets[0]])
        if targets
        else None
    )
    if frame.empty:
        raise UserError("nothing-to-predict", _EMPTY)
    if preparation is None:
        inputs = frame.drop(columns=[*targets])
        for name in inputs.columns:
            if not pd.api.types.is_numeric_dtype(inputs[name]):
                raise UserError(
                    "new-column-not-numbers",
                    f"column {str(name)!r} of the new data must hold numbers, as the arrays that "
                    f"the network was trained on, but is {inputs[name].dtype}; leave it out",
                )
        values = inputs.to_numpy(dtype=np.float64, na_value=np.nan)
        return _checked(np.ascontiguousarray(values, np.float32), truth)
    if preparation.unnamed and not {*preparation.names} <= {*frame.columns}:
        names = [name for name in frame.columns if name not in (*targets, weights)]
        if len(names) != len(preparation.names):
            raise _other_columns(preparation, f"a table with {len(names)}")
        frame = frame.rename(columns=dict(zip(names, preparation.names, strict=True)))
    frame = in_known_forms(frame, preparation)
    inputs = inputs_of(preparation, frame, "the new data")
    column = frame[weights] if weights in frame.columns else None
    doubts = tuple(doubts_of(preparation, frame))
    used = {*preparation.places, *targets, weights}
    unused = tuple(str(name) for name in frame.columns if name not in used)
    return Given(inputs, truth, doubts, column, unused)
