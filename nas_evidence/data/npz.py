"""The user's own data: x_train, y_train, x_test and y_test, in one file or in a folder.

    own.npz           read into memory
    own/x_train.npy   a folder of four .npy files: inputs stay on disk and are read as needed

    x  [n, d], [n, H, W], [n, C, H, W] or [n, H, W, C]; unsigned bytes or floating point
    y  [n], the integers 0..C-1: labels; [n] or [n, C] floating point: real targets

With four axes, the last holds the channels if its length is 1 or 3, otherwise the second.
"""

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from nas_evidence.data.arrays import Array, Inputs, RawArrays, slices
from nas_evidence.data.mapped import MappedRows, arranged
from nas_evidence.spec import DatasetSpec

#: What numpy raises for damaged files; a file that is no archive has no `with`.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, TypeError, ValueError, LookupError,
    AttributeError, NotImplementedError, OverflowError, RuntimeError, MemoryError, SyntaxError,
    tokenize.TokenError, OSError,
)  # fmt: skip
KEYS = ("x_train", "y_train", "x_test", "y_test")


def read(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return the arrays of the file; a relative `path` is relative to `data_root` if given.

    Raises:
        ValueError: If the file or a key is missing, or an array breaks a rule above.
    """
    assert spec.path is not None  # DatasetSpec checks it
    path = Path(data_root or ".").expanduser() / Path(spec.path).expanduser()
    arrays = _read_folder(path) if path.is_dir() else _read_keys(path)
    x_train, x_test = (_inputs(arrays[key], key, path) for key in ("x_train", "x_test"))
    y_train, y_test = (_targets(arrays[key], key, path) for key in ("y_train", "y_test"))
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if len(x) != len(y):
            raise ValueError(
                f"x_{part} and y_{part} must have equal lengths, but have {len(x)} and {len(y)} "
                f"in {path}"
            )
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise ValueError(
            "x_train and x_test must agree in shape and kind of number, but an example is "
            f"{x_train.dtype} {list(x_train.shape[1:])} and {x_test.dtype} "
            f"{list(x_test.shape[1:])} in {path}"
        )
    if y_train.dtype != y_test.dtype or y_train.shape[1:] != y_test.shape[1:]:
        raise ValueError(
            "y_train and y_test must both be labels (integers) or both real (floating point) "
            f"with as many columns, but are {arrays['y_train'].dtype} "
            f"{list(arrays['y_train'].shape)} and {arrays['y_test'].dtype} "
            f"{list(arrays['y_test'].shape)} in {path}"
        )
    if y_train.dtype == np.int64:
        _check_classes(y_train, y_test, path)
    return RawArrays(x_train, y_train, x_test, y_test)


def _read_keys(path: Path) -> dict[str, Array]:
    """Return the four arrays as stored; nothing in the file is executed."""
    if not path.is_file():
        raise ValueError(
            f"data set 'npz' needs the file {path.name} in {path.parent}, but it is not there; "
            "correct path in [dataset] or --data-root"
        )
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            names = list(file)
            arrays = {key: file[key] for key in KEYS if key in names}
    except _DAMAGED as error:
        raise ValueError(
            f"{path} must be an .npz file of plain number arrays, but reading it failed: {error}; "
            "write it with numpy.savez"
        ) from error
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise ValueError(
            f"{', '.join(KEYS)} must be in {path}, but {', '.join(missing)} is missing; "
            f"the file has {', '.join(names) or 'nothing'}"
        )
    return arrays


def _read_folder(folder: Path) -> dict[str, Array]:
    """Return the four arrays of a folder, mapped; nothing in the files is executed."""
    arrays = {}
    for key in KEYS:
        path = folder / f"{key}.npy"
        if not path.is_file():
            raise ValueError(
                f"data set 'npz' needs the file {path.name} in {folder}, but it does not exist; "
                "correct path in [dataset] or --data-root"
            )
        try:
            arrays[key] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (EOFError, ValueError) as error:
            raise ValueError(
                f"{path} must be a .npy file of a plain number array, but reading it failed: "
                f"{error}; write it with numpy.save"
            ) from error
    return arrays


def _inputs(x: Array, key: str, path: Path) -> Inputs:
    """Return `x` as [n, d] or [n, C, H, W], uint8 or float32, checked to be finite."""
    if x.ndim not in (2, 3, 4) or x.size == 0:
        raise ValueError(
            f"{key} must be vectors [n, d] or images [n, H, W], [n, C, H, W] or [n, H, W, C], "
            f"but its shape is {list(x.shape)} in {path}"
        )
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise ValueError(
            f"{key} must be uint8 or floating point, but is {x.dtype} in {path}; "
            "convert it, for example with .astype('float32')"
        )
    found = MappedRows(path / f"{key}.npy") if isinstance(x, np.memmap) else arranged(x)
    if found.dtype != np.uint8:
        _check_finite(found, key, path)
    return found


def _targets(y: Array, key: str, path: Path) -> Array:
    """Return labels as int64 [n], real targets as float64 [n, C], in memory."""
    if y.ndim == 1 and len(y) and np.issubdtype(y.dtype, np.integer):
        return y.astype(np.int64)
    if y.ndim not in (1, 2) or y.size == 0 or not np.issubdtype(y.dtype, np.floating):
        raise ValueError(
            f"{key} must be integers of shape [n] (labels), or floating point of shape [n] or "
            f"[n, C] (real targets), but is {y.dtype} {list(y.shape)} in {path}"
        )
    y = y.astype(np.float64).reshape(len(y), -1)
    _check_finite(y, key, path)
    return y


def _check_finite(values: Inputs, key: str, path: Path) -> None:
    """Refuse NaN and infinity, including float64 values too large for float32."""
    finite = np.concatenate([np.isfinite(p).reshape(len(p), -1).all(1) for p in slices(values)])
    bad = np.flatnonzero(~finite)
    if len(bad):
        raise ValueError(
            f"{key} must be finite in {values.dtype}, but {len(bad)} of {len(values)} examples "
            f"are not in {path}, the first at row {bad[0]}"
        )


def _check_classes(y_train: Array, y_test: Array, path: Path) -> None:
    """Check that training labels are 0..C-1, all used, and that test labels are among them."""
    classes = np.unique(y_train)
    if len(classes) < 2:
        raise ValueError(f"y_train must have at least 2 classes, but has {len(classes)} in {path}")
    if classes[0] != 0 or classes[-1] != len(classes) - 1:
        shown = ", ".join(str(label) for label in classes[:5])
        raise ValueError(
            f"y_train must be the integers 0..C-1, all used, but has {len(classes)} different "
            f"labels from {classes[0]} to {classes[-1]} ({shown}, ...) in {path}; "
            "renumber with np.unique(y, return_inverse=True)"
        )
    if y_test.min() < 0 or y_test.max() >= len(classes):
        raise ValueError(
            f"y_test must be among the training labels 0..{len(classes) - 1}, but ranges from "
            f"{y_test.min()} to {y_test.max()} in {path}"
        )
