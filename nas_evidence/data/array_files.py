"""Files that hold arrays: .npz files, folders of .npy files, and folders of images by class.

    own.npz           x_train and y_train, and x_test and y_test if there are test rows; in memory
    own/x_train.npy   the same as .npy files: inputs stay on disk and are read as needed
    pets/cat/1.png    the name of a folder is the class of the images in it; with folders `train`
                      and `test` at the top, each has the classes below it

    x  [n, d], [n, H, W], [n, C, H, W] or [n, H, W, C]; numbers of any type
    y  labels of any kind [n] or one-hot [n, C]; real targets [n] or [n, C]; see `targets.py`

Vectors in memory are a table with the columns x0, x1, ... (see `preparation.py`): a missing number
is NaN, and a constant column is left out. Vectors on disk stay there as they are, unless a number
is missing. With four axes, the last holds the channels if its length is 1 or 3, otherwise the
second. `x` and `y`, or `X` and `y`, are other names of x_train and y_train. Images are read as
8-bit grey or RGB values [C, H, W]; all must have one size, or are resized.
"""

import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import Inputs, slices
from nas_evidence.data.assembly import Rows
from nas_evidence.data.mapped import Array, MappedRows, arranged
from nas_evidence.plumbing.foreign_text import on_one_line
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import DatasetSpec

#: What numpy and PIL raise for damaged files; a file that is no archive has no `with`.
_DAMAGED: tuple[type[Exception], ...] = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, TypeError, ValueError, LookupError,
    AttributeError, ArithmeticError, NotImplementedError, RuntimeError, MemoryError, SyntaxError,
    tokenize.TokenError, OSError,
)  # fmt: skip
KEYS = ("x_train", "y_train", "x_test", "y_test")
_OTHER_NAMES = {"x": "x_train", "X": "x_train", "y": "y_train"}
#: The formats that PIL may take a file for, whatever its name: others run programs (EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
#: Endings of images.
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def rows_of_arrays(arrays: Mapping[str, Array], spec: DatasetSpec, path: Path) -> Rows:
    """Return the arrays x_train, y_train, and x_test, y_test if there are any, as rows.

    Args:
        arrays: by name, those of groups, times and weights among them.
        spec: names these.
        path: where the arrays are from, for messages; memory-mapped inputs are files in it.

    Raises:
        ValueError: if an array breaks a rule above.
    """
    tested = "x_test" in arrays
    if tested != ("y_test" in arrays):
        has, lacks = ("x_test", "y_test") if tested else ("y_test", "x_test")
        raise UserError(f"{path} has {has} but no {lacks}; add it, or leave out both").with_code(
            "npz-half-of-a-pair"
        )
    x, y = part_of(arrays, "train", path)
    x_test, y_test = part_of(arrays, "test", path) if tested else (None, None)
    if x_test is not None and (
        x.shape[1:] != x_test.shape[1:] or (x.dtype == np.uint8) != (x_test.dtype == np.uint8)
    ):
        raise UserError(
            "x_train and x_test must agree in shape and kind of number, but an example is "
            f"{x.dtype} {list(x.shape[1:])} and {x_test.dtype} "
            f"{list(x_test.shape[1:])} in {path}"
        ).with_code("npz-test-differs")
    if tested and spec.weights is not None:
        raise UserError(
            f"`weights` have no values for the rows of x_test in {path}; leave x_test out and "
            "set test_fraction, or leave the weights out"
        ).with_code("npz-weights-of-test")
    assert y is not None
    on_disk = all(isinstance(part, MappedRows) for part in (x, x_test) if part is not None)
    table = len(x.shape) == 2 and not on_disk
    return Rows(
        as_frame(x[:]) if table else x,
        y,
        as_frame(x_test[:]) if table and x_test is not None else x_test,
        y_test,
        str(path),
        f"y_train in {path}",
        units=_of_rows(arrays, spec.units_column, path),
        weights=(_of_rows(arrays, spec.weights, path), None),
    )


def part_of(arrays: Mapping[str, Array], part: str, path: Path) -> tuple[Inputs, Array | None]:
    """Return inputs of one part, [n, d] or [n, C, H, W], and its targets if there are any.

    Raises:
        ValueError: if the inputs break a rule above, or if lengths differ.
    """
    x, y = _inputs(arrays[f"x_{part}"], f"x_{part}", path), arrays.get(f"y_{part}")
    if y is not None and len(y) != len(x):
        raise UserError(
            f"x_{part} and y_{part} must have equal lengths, but have {len(x)} and {len(y)} in "
            f"{path}"
        ).with_code("npz-lengths")
    return x, y


def as_frame(x: Array) -> pd.DataFrame:
    """Return vectors [n, d] as a table with the columns x0, x1, ...; float32 or float64."""
    small = x.dtype.itemsize < 4 or x.dtype == np.float32
    return pd.DataFrame(x.astype(np.float32 if small else np.float64, copy=False)).add_prefix("x")


def _of_rows(arrays: Mapping[str, Array], name: str | None, path: Path) -> Array | None:
    if name is None:
        return None
    if name not in arrays or np.shape(arrays[name]) != np.shape(arrays["x_train"])[:1]:
        found = f"has the shape {list(arrays[name].shape)}" if name in arrays else "is not there"
        raise UserError(
            f"{path} must have an array {name!r} with one value for each of the "
            f"{len(arrays['x_train'])} rows of x_train, but it {found}"
        ).with_code("npz-array-per-row")
    return np.asarray(arrays[name])


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
    if path.is_dir():
        files = {key: path / f"{key}.npy" for key in (*KEYS, *also)}
        stored = [key for key, file in files.items() if file.is_file()]
        load = partial(np.load, mmap_mode="r" if mapped else None, allow_pickle=False)
        read = {key: partial(load, files[key]) for key in stored}
        arrays = {key: _plain(get, key, files[key]) for key, get in read.items()}
    elif path.is_file():
        with (
            _reading(path, "an .npz file of plain number arrays", "write it with numpy.savez"),
            path.open("rb") as stream,
            np.load(stream, allow_pickle=False) as file,
        ):
            stored = list(file)
            named = {_OTHER_NAMES.get(key, key): key for key in stored}
            wanted = [key for key in named if key in (*KEYS, *also)]
            arrays = {k: _plain(partial(file.__getitem__, named[k]), k, path) for k in wanted}
    else:
        raise UserError(
            f"data set 'npz' needs the file {path.name} in {path.parent}, but it is not there; "
            "correct path in [dataset] or --data-root"
        ).with_code("npz-missing")
    if missing := [key for key in needed if key not in arrays]:
        raise UserError(
            f"x_train and y_train must be in {path}, but {', '.join(missing)} is missing; it has "
            f"{', '.join(stored) or 'nothing'}; correct path in [dataset] or --data-root"
        ).with_code("npz-lacks-arrays")
    return arrays


def _plain(get: Callable[[], Array], key: str, path: Path) -> Array:
    try:
        with _reading(path, f"{key} as a plain number array", "write it with numpy.save"):
            return get()
    except UserError as error:
        if not any(word in str(error) for word in ("Object arrays", "Python objects")):
            raise
        remedy = "str" if key.startswith("y") else "'float32'"
        raise UserError(
            f"{key} in {path} is an array of Python objects, not a plain number array, and is not "
            f"read since that could run code; store it with .astype({remedy})"
        ).with_code("npz-of-objects") from None


@contextmanager
def _reading(
    path: Path, what: str, remedy: str, more: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Name the file of whatever goes wrong when it is read."""
    damaged: tuple[type[Exception], ...] = _DAMAGED + more
    try:
        yield
    except damaged as error:
        if isinstance(error, UserError):
            raise
        why = on_one_line(error) or type(error).__name__
        raise UserError(f"{path} cannot be read as {what}: {why}; {remedy}").with_code(
            "array-file-unreadable"
        ) from error


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


def _complete(x: Inputs) -> bool:
    return x.dtype == np.uint8 or not any(np.isnan(part).any() for part in slices(x))


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


# --- images


def read_images(folder: Path, size: int | None = None) -> dict[str, Array]:
    """Return images as uint8 [n, C, H, W], grey only if all are, and the names of their classes.

    Args:
        folder: of a folder for each class, or of such folders `train` and `test`.
        size: height and width to resize them to.

    Raises:
        ValueError: if there are no images, one cannot be read, or they have several sizes.
    """
    if not folder.is_dir():
        raise UserError(
            f"data set 'images' needs the folder {folder.name} in {folder.parent}, but it is not "
            "there; correct path in [dataset] or --data-root"
        ).with_code("images-folder-missing")
    split = (folder / "train").is_dir() and (folder / "test").is_dir()
    places = {"train": folder / "train", "test": folder / "test"} if split else {"train": folder}
    files = {part: sorted(images_below(place)) for part, place in places.items()}
    if not files["train"]:
        raise UserError(
            f"{folder} must hold one folder of images per class, such as {folder.name}/cat/1.png, "
            f"but has none (endings: {', '.join(ENDINGS)})"
        ).with_code("images-without-classes")
    paths = [path for part in files.values() for path in part]
    x, n = _read_all(paths, size), len(files["train"])
    y = np.array([path.parent.name for path in paths])
    arrays = {"x_train": x[:n], "y_train": y[:n]}
    return arrays | ({"x_test": x[n:], "y_test": y[n:]} if len(paths) > n else {})


def images_below(folder: Path) -> Iterator[Path]:
    """Yield the images in the folders of a folder."""
    return (p for p in folder.glob("*/*") if p.suffix.lower() in ENDINGS and p.is_file())


def _read_all(paths: Sequence[Path], size: int | None) -> Array:
    from PIL import Image  # late: not every study has images

    def is_grey(path: Path) -> bool:
        with _decoding(path), Image.open(path, formats=_FORMATS) as image:
            return image.mode in ("1", "L", "LA", "I", "I;16", "F")

    grey = all(map(is_grey, paths))
    first: tuple[int, int] | None = None
    arrays = []
    for path in paths:
        with _decoding(path), Image.open(path, formats=_FORMATS) as stored:
            image = stored.convert("L" if grey else "RGB")
        if size is not None:
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        if first is None:
            first = image.size
        elif image.size != first:
            raise UserError(
                f"images must have one size, but {paths[0].name} is {first[0]} x {first[1]} "
                f"and {path.name} is {image.size[0]} x {image.size[1]}; give --image-size N "
                "to resize all to N x N"
            ).with_code("image-sizes-differ")
        pixels = np.asarray(image, dtype=np.uint8)
        arrays.append(pixels[None] if grey else pixels.transpose(2, 0, 1))
    return np.stack(arrays)


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Name the file of whatever goes wrong when PIL opens or decodes it."""
    from PIL import Image

    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    with _reading(path, "an image", "remove it, or repair it", bombs), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield
