"""The user's own arrays: x_train and y_train, and x_test and y_test if there are test rows.

    own.npz           read into memory
    own/x_train.npy   a folder of .npy files: inputs stay on disk and are read as needed

    x  [n, d], [n, H, W], [n, C, H, W] or [n, H, W, C]; numbers of any type
    y  labels of any kind [n] or one-hot [n, C]; real targets [n] or [n, C]; see `targets.py`

Vectors in memory are a table with the columns x0, x1, ... (see `preparation.py`): a missing number
is NaN, and a constant column is left out. Vectors on disk stay there as they are, unless a number
is missing. With four axes, the last holds the channels if its length is 1 or 3, otherwise
the second. `x` and `y`, or `X` and `y`, are other names of x_train and y_train. A folder with
`classes.json`, the names of the labels 0..C-1 or an empty list, was written by a study and is read
into memory.
"""

import json
import shlex
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import Inputs, Meaning, RawArrays, slices
from nas_evidence.data.content import check_content, fingerprint
from nas_evidence.data.mapped import Array, MappedRows, arranged
from nas_evidence.data.table_file import CSV, PARQUET, prepared, test_rows, test_sentence
from nas_evidence.data.targets import ClassName, Targets, said_classes, targets_of
from nas_evidence.data.units import said_units, units_of
from nas_evidence.data.weights import repeated, said_weights, weights_of
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import DatasetSpec

#: What numpy raises for damaged files; a file that is no archive has no `with`.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, TypeError, ValueError, LookupError,
    AttributeError, NotImplementedError, OverflowError, RuntimeError, MemoryError, SyntaxError,
    tokenize.TokenError, OSError,
)  # fmt: skip
KEYS = ("x_train", "y_train", "x_test", "y_test")
_OTHER_NAMES = {"x": "x_train", "X": "x_train", "y": "y_train"}
CLASSES = "classes.json"
#: Files of a folder, in the order of its fingerprint.
FILES = (*(f"{key}.npy" for key in KEYS), CLASSES)


def read(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return the arrays of the file; a relative `path` is relative to `data_root` if given.

    Raises:
        ValueError: If the file or a key is missing, or an array breaks a rule above.
    """
    assert spec.path is not None  # DatasetSpec checks it
    path = Path(data_root or ".").expanduser() / Path(spec.path).expanduser()
    kept = (path / CLASSES).is_file()
    also = spec.columns_of_rows
    if path.is_dir():
        arrays = _read_folder(path, also, mapped=not kept)
    else:
        arrays = _read_keys(path, also=also)
    if spec.content is not None:
        check_content(fingerprint(path, files_of(spec)), spec.content, str(path))
    return arrays_of(arrays, spec, seed=seed, path=path, classes=_classes_of(path))


def files_of(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the files of a folder in the order of its fingerprint, with those that a study names.

    >>> files_of(DatasetSpec(name="npz", path=".", groups="patient"))[-2:]
    ('classes.json', 'patient.npy')
    """
    return (*FILES, *(f"{name}.npy" for name in spec.columns_of_rows))


def arrays_of(
    arrays: Mapping[str, Array],
    spec: DatasetSpec,
    *,
    seed: int,
    path: Path,
    classes: tuple[ClassName, ...] = (),
) -> RawArrays:
    """Return a data set from the arrays x_train, y_train, and x_test, y_test if there are any.

    Args:
        arrays: by name.
        spec: its `task` and `test_fraction` are used.
        seed: of the split.
        path: where the arrays are from, for messages; memory-mapped inputs are files in it.
        classes: names of the labels 0..C-1.

    Raises:
        ValueError: If an array breaks a rule above.
    """
    if ("x_test" in arrays) != ("y_test" in arrays):
        has, lacks = ("x_test", "y_test") if "x_test" in arrays else ("y_test", "x_test")
        raise UserError(f"{path} has {has} but no {lacks}; add it, or leave out both").with_code(
            "npz-half-of-a-pair"
        )
    tested = "x_test" in arrays
    x = _inputs(arrays["x_train"], "x_train", path)
    x_test = _inputs(arrays["x_test"], "x_test", path) if tested else None
    for part in ("train", "test") if tested else ("train",):
        n_x, n_y = len(arrays[f"x_{part}"]), len(arrays[f"y_{part}"])
        if n_x != n_y:
            raise UserError(
                f"x_{part} and y_{part} must have equal lengths, but have {n_x} and {n_y} in "
                f"{path}"
            ).with_code("npz-lengths-by-header")
    if x_test is not None and (
        x.shape[1:] != x_test.shape[1:] or (x.dtype == np.uint8) != (x_test.dtype == np.uint8)
    ):
        raise UserError(
            "x_train and x_test must agree in shape and kind of number, but an example is "
            f"{x.dtype} {list(x.shape[1:])} and {x_test.dtype} "
            f"{list(x_test.shape[1:])} in {path}"
        ).with_code("npz-test-differs")
    found = targets_of(
        arrays["y_train"],
        arrays.get("y_test"),
        task=spec.task,
        where=f"y_train in {path}",
        integers_are_labels=True,
        scale=spec.scale,
    )
    found = _named(found, classes, path)
    units = units_of(spec, _of_rows(arrays, spec.units_column, path), str(path))
    weights, test_weights = _of_rows(arrays, spec.weights, path), None
    if weights is not None:
        weights = weights_of(weights, spec.weights, str(path))
        if tested:
            raise UserError(
                f"`weights` have no values for the rows of x_test in {path}; leave x_test out and "
                "set test_fraction, or leave the weights out"
            ).with_code("npz-weights-of-test")
    x_rest = x_test if x_test is not None else _rows(x, np.zeros(len(x), dtype=bool))
    train, test = found.train, found.test
    if spec.test_fraction is not None:
        if tested:
            raise UserError(
                f"`test_fraction` is for data without test rows, but {path} has x_test; "
                "leave it out"
            ).with_code("npz-test-fraction")
        in_test = test_rows(found.train, spec.test_fraction, seed, units)
        units = None if units is None else units.at(~in_test)
        if weights is not None:
            weights, test_weights = weights[~in_test], weights[in_test]
        x, x_rest = _rows(x, ~in_test), _rows(x, in_test)
        train, test = found.train[~in_test], found.train[in_test]
    preparation, more = None, list[str]()
    if len(x.shape) == 2 and not (isinstance(x, MappedRows) and isinstance(x_rest, MappedRows)):
        x, x_rest, preparation, more = prepared(
            as_frame(x[:]), as_frame(x_rest[:]), train, spec, where=str(path), unnamed=True
        )
    elif spec.drop or spec.categorical or spec.numeric:
        raise UserError(
            f"`drop`, `categorical` and `numeric` are of tables and of vectors in memory, but "
            f"x_train in {path} has the shape {list(x.shape)}; leave them out"
        ).with_code("columns-of-no-table")
    said = (
        found.sentence,
        *more,
        *said_units(spec, units),
        *said_weights(spec.weights, weights),
        test_sentence(len(train), len(test)),
    )
    meaning = Meaning(found.classes, preparation=preparation, said=said, change=found.change)
    raw = RawArrays(x, train, x_rest, test, meaning, units)
    return raw if weights is None else repeated(raw, weights, test_weights)


def _complete(x: Inputs) -> bool:
    return x.dtype == np.uint8 or not any(np.isnan(part).any() for part in slices(x))


def as_frame(x: Array) -> pd.DataFrame:
    """Return vectors [n, d] as a table with the columns x0, x1, ...; float32 or float64."""
    small = x.dtype.itemsize < 4 or x.dtype == np.float32
    return pd.DataFrame(x.astype(np.float32 if small else np.float64, copy=False)).add_prefix("x")


def _of_rows(arrays: Mapping[str, Array], name: str | None, path: Path) -> Array | None:
    """Return an array with a value for each row of x_train."""
    if name is None:
        return None
    if name not in arrays or np.shape(arrays[name]) != np.shape(arrays["x_train"])[:1]:
        found = f"has the shape {list(arrays[name].shape)}" if name in arrays else "is not there"
        raise UserError(
            f"{path} must have an array {name!r} with one value for each of the "
            f"{len(arrays['x_train'])} rows of x_train, but it {found}"
        ).with_code("npz-array-per-row")
    return np.asarray(arrays[name])


def read_rows(path: Path, weights: str | None = None) -> tuple[Array, Array | None, Array | None]:
    """Return x_test, y_test and weights of an .npz file or a folder of .npy files.

    They are those of x_train if there are no others. The targets are None if they are absent, and
    the weights unless there is one for each row.

    Raises:
        ValueError: If a file is missing, damaged, or has no inputs, or if lengths differ.
    """
    also = () if weights is None else (weights,)
    if path.is_dir():
        arrays = _read_folder(path, also, mapped=False, needed=())
    else:
        arrays = _read_keys(path, needed=(), also=also)
    for part in ("test", "train"):
        if (x := arrays.get(f"x_{part}")) is not None:
            y, counts = arrays.get(f"y_{part}"), arrays.get(weights or "")
            if y is not None and len(y) != len(x):
                raise UserError(
                    f"x_{part} and y_{part} must have equal lengths, but have {len(x)} and "
                    f"{len(y)} in {path}"
                ).with_code("npz-lengths")
            if y is not None and (named := _classes_of(path)):
                y = np.array(named)[y]
            of_rows = counts is not None and counts.shape == x.shape[:1]
            inputs = np.asarray(_inputs(x, f"x_{part}", path)[:])
            return inputs, y, counts if of_rows else None
    raise UserError(
        f"{path} must have an array x, x_test or x_train; write it with numpy.savez"
    ).with_code("npz-without-arrays")


def _rows(x: Inputs, chosen: Array) -> Inputs:
    """Return the rows where `chosen` is true; rows of a file stay in the file."""
    return x.subset(np.flatnonzero(chosen)) if isinstance(x, MappedRows) else x[chosen]


def _classes_of(path: Path) -> tuple[ClassName, ...]:
    """Return the names of the labels of a folder that a study wrote, else nothing."""
    names = path / CLASSES
    return tuple(json.loads(names.read_text(encoding="utf-8"))) if names.is_file() else ()


def holds_arrays(folder: Path) -> bool:
    """Tell whether a folder has inputs as .npy files."""
    return any((folder / f"x_{part}.npy").is_file() for part in ("train", "test"))


def _named(found: Targets, classes: tuple[ClassName, ...], path: Path) -> Targets:
    if not classes or not found.classes:
        return found
    if found.classes != tuple(range(len(classes))):
        raise UserError(
            f"{path / CLASSES} names {len(classes)} classes, but the labels there are others; "
            "remove that file"
        ).with_code("npz-class-names")
    return Targets(found.train, found.test, classes, said_classes(classes))


def _read_keys(
    path: Path, *, needed: Sequence[str] = KEYS[:2], also: tuple[str, ...] = ()
) -> dict[str, Array]:
    """Return the arrays as stored, and those that are asked for; nothing there is executed."""
    if not path.is_file():
        raise UserError(
            f"data set 'npz' needs the file {path.name} in {path.parent}, but it is not there; "
            "correct path in [dataset] or --data-root"
        ).with_code("npz-missing")
    if path.name.lower().endswith((*CSV, *PARQUET)):
        raise UserError(
            f'{path} is a table, not arrays; set name = "table" and target = COLUMN in '
            f"[dataset], or run `nas-evidence search {shlex.quote(path.name)} --target COLUMN`"
        ).with_code("npz-is-table")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            stored = list(file)
            arrays = {
                _OTHER_NAMES.get(key, key): _plain(partial(file.__getitem__, key), key, path)
                for key in stored
                if _OTHER_NAMES.get(key, key) in KEYS + also
            }
    except _DAMAGED as error:
        if isinstance(error, _ObjectArrayError):
            raise
        raise UserError(
            f"{path} must be an .npz file of plain number arrays, but reading it failed: {error}; "
            "write it with numpy.savez"
        ).with_code("npz-unreadable") from error
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise UserError(
            f"x_train and y_train must be in {path}, but {', '.join(missing)} is missing; "
            f"the file has {', '.join(stored) or 'nothing'}"
        ).with_code("npz-lacks-arrays")
    return arrays


class _ObjectArrayError(UserError):
    """An array of Python objects, which only a pickle could hold."""


def _plain(get: Callable[[], Array], key: str, path: Path) -> Array:
    try:
        return get()
    except ValueError as error:
        if not any(word in str(error) for word in ("Object arrays", "Python objects")):
            raise
        remedy = "str" if key.startswith("y") else "'float32'"
        raise _ObjectArrayError(
            f"{key} in {path} is an array of Python objects, not a plain number array, and is not "
            f"read since that could run code; store it with .astype({remedy})"
        ).with_code("npz-of-objects") from None


def _read_folder(
    folder: Path, also: tuple[str, ...], *, mapped: bool, needed: Sequence[str] = KEYS[:2]
) -> dict[str, Array]:
    """Return the arrays of a folder, mapped or in memory; nothing in the files is executed."""
    mode: Literal["r"] | None = "r" if mapped else None
    arrays = {}
    for key in KEYS + also:
        path = folder / f"{key}.npy"
        if not path.is_file():
            if key not in needed:
                continue
            raise UserError(
                f"data set 'npz' needs the file {path.name} in {folder}, but it does not exist; "
                "correct path in [dataset] or --data-root"
            ).with_code("npy-missing")
        try:
            read = partial(np.load, path, mmap_mode=mode, allow_pickle=False)
            arrays[key] = _plain(read, key, path)
        except (EOFError, ValueError) as error:
            if isinstance(error, _ObjectArrayError):
                raise
            raise UserError(
                f"{path} must be a .npy file of a plain number array, but reading it failed: "
                f"{error}; write it with numpy.save"
            ).with_code("npy-unreadable") from error
    return arrays


def _inputs(x: Array, key: str, path: Path) -> Inputs:
    """Return `x` as [n, d], which may hold NaN, or as images [n, C, H, W], uint8 or float32."""
    if x.ndim not in (2, 3, 4) or x.size == 0:
        raise UserError(
            f"{key} must be vectors [n, d] or images [n, H, W], [n, C, H, W] or [n, H, W, C], "
            f"but its shape is {list(x.shape)} in {path}"
        ).with_code("npz-input-shape")
    if x.dtype.kind not in "biuf":
        raise UserError(
            f"{key} must be numbers, but is {x.dtype} in {path}; convert it, for example with "
            ".astype('float32')"
        ).with_code("npz-not-numbers")
    found: Inputs = x
    if isinstance(x, np.memmap):
        rows = MappedRows(path / f"{key}.npy")
        found = rows if x.ndim > 2 or _complete(rows) else np.array(x)
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
            f"{key} in {path} must be finite in float32, but {len(bad)} of {len(values)} "
            f"rows are not, the first at row {bad[0]}; remove or fill them"
        ).with_code("npz-not-finite")
