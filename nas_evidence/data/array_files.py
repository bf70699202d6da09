"""Files that hold arrays: .npz files, and folders of .npy files.

    own.npz           x_train and y_train, and x_test and y_test if there are test rows; in memory
    own/x_train.npy   the same as .npy files: inputs stay on disk and are read as needed

    x  [n, d], [n, H, W], [n, C, H, W] or [n, H, W, C]; numbers of any type
    y  labels of any kind [n] or one-hot [n, C]; real targets [n] or [n, C]; see `targets.py`

Vectors in memory are a table with the columns x0, x1, ... (see `preparation.py`): a missing number
is NaN, and a constant column is left out. Vectors on disk stay there as they are, unless a number
is missing. With four axes, `channels_last` says which holds the channels, the last or the
second. `x` and `y`, or `X` and `y`, are other names of x_train and y_train. Files of images are
read in `images.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import Inputs, slices, value_range
from nas_evidence.data.assembly import RowsRead
from nas_evidence.data.image_reading import ImageReading
from nas_evidence.data.mapped import Array, MappedRows, arranged, channels_last
from nas_evidence.data.said import Said
from nas_evidence.plumbing.foreign_text import on_one_line
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import DatasetSpec

#: Steps of float32, in standard deviations of the values, from which on they are told.
_COARSE = 0.01
#: Largest whole number up to which float64 has all.
_WHOLE = 2**53
KEYS = ("x_train", "y_train", "x_test", "y_test")
_OTHER_NAMES = {"x": "x_train", "X": "x_train", "y": "y_train"}


def rows_of_arrays(
    arrays: Mapping[str, Array],
    spec: DatasetSpec,
    path: Path,
    images: ImageReading | None = None,
) -> RowsRead:
    """Return the arrays x_train, y_train, and x_test, y_test if there are any, as rows.

    Args:
        arrays: by name, those of groups, times and weights among them.
        spec: names these.
        path: where the arrays are from, for messages; memory-mapped inputs are files in it.
        images: how files of images became the arrays.

    Raises:
        ValueError: if an array breaks a rule above.
    """
    if (tested := "x_test" in arrays) != ("y_test" in arrays):
        raise UserError(
            "npz-half-of-a-pair", f"{path} must have both x_test and y_test, or neither of them"
        )
    x, y = arrays_of_part(arrays, "train", path)
    x_test, y_test = arrays_of_part(arrays, "test", path) if tested else (None, None)
    if x_test is not None and (
        x.shape[1:] != x_test.shape[1:] or (x.dtype == np.uint8) != (x_test.dtype == np.uint8)
    ):
        raise UserError(
            "npz-test-differs",
            "x_train and x_test must agree in shape and kind of number, but an example is "
            f"{x.dtype} {list(x.shape[1:])} and {x_test.dtype} "
            f"{list(x_test.shape[1:])} in {path}",
        )
    if tested and spec.weights is not None:
        raise UserError(
            "npz-weights-of-test",
            f"`weights` have no values for the rows of x_test in {path}; leave x_test out and "
            "set test_fraction, or leave the weights out",
        )
    assert y is not None
    on_disk = all(isinstance(part, MappedRows) for part in (x, x_test) if part is not None)
    table = len(x.shape) == 2 and not on_disk
    return RowsRead(
        as_frame(x[:]) if table else x,
        y,
        as_frame(x_test[:]) if table and x_test is not None else x_test,
        y_test,
        str(path),
        f"y_train in {path}",
        units=_of_rows(arrays, spec.units_column, path),
        weights=(_of_rows(arrays, spec.weights, path), None),
        images=images,
        read=((), {}) if table or images is not None else (_said_images(arrays["x_train"]), {}),
    )


def _said_images(x: Array) -> tuple[Said, ...]:
    """Say which axis of an array of images holds the channels, and what float32 loses of it."""
    if x.ndim < 3:
        return ()
    channels, height, width = arranged(np.asarray(x[:1])).shape[1:]
    axis = "the last axis" if channels_last(x) else "the second axis"
    of = f"{channels} channels, {axis}" if x.ndim == 4 else "1 channel"
    said = [f"images: {len(x)} of {height} x {width} values, {of}; give [n, C, H, W] to change"]
    if x.dtype.itemsize >= 4 and x.dtype != np.float32:
        low, high = value_range(x)
        step, std = np.spacing(np.float32(max(-low, high))), float(np.asarray(x).std())
        if step > _COARSE * std:
            said.append(
                f"values up to {high:.10g} are {x.dtype} and are rounded to float32, in steps of "
                f"{step:g} beside a standard deviation of {std:.4g}; subtract a constant first"
            )
    return tuple(map(Said, said))


def arrays_of_part(
    arrays: Mapping[str, Array], part: str, path: Path
) -> tuple[Inputs, Array | None]:
    """Return inputs of one part, [n, d] or [n, C, H, W], and its targets if there are any.

    Raises:
        ValueError: if the inputs break a rule above, or if lengths differ.
    """
    x, y = _inputs(arrays[f"x_{part}"], f"x_{part}", path), arrays.get(f"y_{part}")
    if y is not None and len(y) != len(x):
        raise UserError(
            "npz-lengths",
            f"x_{part} and y_{part} must have equal lengths, but have {len(x)} and {len(y)} in "
            f"{path}",
        )
    return x, y


def as_frame(x: Array) -> pd.DataFrame:
    """Return vectors [n, d] as a table with the columns x0, x1, ...

    Its numbers are float32 or float64; integers stay if float64 does not have all of them.
    """
    if x.dtype.kind in "iu" and x.size and max(-int(x.min()), int(x.max())) > _WHOLE:
        return pd.DataFrame(x).add_prefix("x")
    small = x.dtype.itemsize < 4 or x.dtype == np.float32
    return pd.DataFrame(x.astype(np.float32 if small else np.float64, copy=False)).add_prefix("x")


def _of_rows(arrays: Mapping[str, Array], name: str | None, path: Path) -> Array | None:
    if name is None:
        return None
    found, n = arrays.get(name), len(arrays["x_train"])
    if found is None or found.shape != (n,):
        shape = "no such array" if found is None else f"one of the shape {list(found.shape)}"
        raise UserError(
            "npz-array-per-row",
            f"{path} must have an array {name!r} with one value for each of the {n} rows of "
            f"x_train, but has {shape}",
        )
    return np.asarray(found)


def read_arrays(
    path: Path, also: Sequence[str] = (), *, mapped: bool = False, needed: Sequence[str] = ()
) -> dict[str, Array]:
    """Return the arrays of an .npz file or a folder of .npy files; nothing there is executed.

    Args:
        path: of the file or folder.
        also: further arrays to read.
        mapped: leave those of a folder on disk.
        needed: names that must be there.

    Raises:
        ValueError: if something is missing or damaged.
    """
    arrays, wanted = dict[str, Array](), (*KEYS, *also)
    if path.is_dir():
        files = {key: path / f"{key}.npy" for key in wanted}
        stored = [key for key, file in files.items() if file.is_file()]
        for key in stored:
            with _names_the_array(key, files[key]):
                mode: Literal["r"] | None = "r" if mapped else None
                arrays[key] = np.load(files[key], mmap_mode=mode, allow_pickle=False)
    elif path.is_file():
        remedy = "write it with numpy.savez"
        with (
            names_the_file(path, "an .npz file of plain number arrays", remedy),
            path.open("rb") as stream,  # closed, whatever is in it
            np.load(stream, allow_pickle=False) as file,
        ):
            stored = [*file]
            for given in stored:
                if (key := _OTHER_NAMES.get(given, given)) in wanted:
                    with _names_the_array(key, path):
                        arrays[key] = file[given]
    else:
        raise UserError(
            "npz-missing",
            f"data set 'npz' needs the file {path.name} in {path.parent}, but it is not there",
            remedy="correct path in [dataset] or data_root (--data-root)",
        )
    if missing := [key for key in needed if key not in arrays]:
        raise UserError(
            "npz-lacks-arrays",
            f"x_train and y_train must be in {path}, but {', '.join(missing)} is missing; it has "
            f"{', '.join(stored) or 'nothing'}",
            remedy="correct path in [dataset] or data_root (--data-root)",
        )
    return arrays


def _names_the_array(key: str, path: Path) -> AbstractContextManager[None]:
    """Name an array that cannot be read; one of Python objects is not, since it could run code."""
    of = "str" if key.startswith("y") else "'float32'"
    remedy = f"store it with .astype({of})"
    return names_the_file(path, f"{key}, a plain number array", remedy)


@contextmanager
def names_the_file(path: Path, what: str, remedy: str) -> Iterator[None]:
    """Name the file of whatever goes wrong when it is read."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError):
            raise
        why = on_one_line(error) or type(error).__name__
        raise UserError(
            "array-file-unreadable", f"{path} cannot be read as {what}: {why}; {remedy}"
        ) from error


def _inputs(x: Array, key: str, path: Path) -> Inputs:
    """Return `x` as [n, d], which may hold NaN, or as images [n, C, H, W], uint8 or float32."""
    if x.ndim not in (2, 3, 4) or x.size == 0:
        remedy = f"; a single column is {key}[:, None]" if x.ndim == 1 and x.size else ""
        raise UserError(
            "npz-input-shape",
            f"{key} must be vectors [n, d] or images [n, H, W], [n, C, H, W] or [n, H, W, C], "
            f"but its shape is {list(x.shape)} in {path}{remedy}",
        )
    if x.dtype.kind not in "biuf":
        raise UserError(
            "npz-not-numbers",
            f"{key} must be numbers, but is {x.dtype} in {path}; convert it, for example with "
            ".astype('float32')",
        )
    found: Inputs = x
    if isinstance(x, np.memmap):
        found = MappedRows(path / f"{key}.npy")
        if x.ndim == 2 and any(np.isnan(part).any() for part in slices(found)):
            found = np.array(x)
    elif x.ndim > 2:
        found = arranged(x)
    if found.dtype != np.uint8:
        _check_finite(found, key, path)
    return found


def _check_finite(values: Inputs, key: str, path: Path) -> None:
    """Refuse infinity, also of float64 values too large for float32, and NaN in images."""
    fine = np.isfinite if len(values.shape) > 2 else lambda part: ~np.isinf(part)
    with np.errstate(over="ignore"):
        parts = (part.astype(np.float32, copy=False) for part in slices(values))
        finite = np.concatenate([fine(p).reshape(len(p), -1).all(1) for p in parts])
    bad = np.flatnonzero(~finite)
    if len(bad):
        raise UserError(
            "npz-not-finite",
            f"{key} in {path} must be finite in float32, but {len(bad)} of {len(values)} "
            f"rows are not, the first at row {bad[0]}; remove or fill them",
        )
