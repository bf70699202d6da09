"""A folder of images by class: `pets/cat/1.png`, `pets/dog/2.jpg`, ...

The name of a folder is the class of the images in it. With folders `train` and `test` at the top,
each has the classes below it. Images are read as 8-bit grey or RGB values [C, H, W]; all must have
one size, or are resized to `image_size`.
"""

import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from nas_evidence.data.arrays import Meaning, RawArrays
from nas_evidence.data.mapped import Array
from nas_evidence.data.table_file import test_rows, test_sentence
from nas_evidence.data.targets import targets_of
from nas_evidence.plumbing.foreign_text import on_one_line
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import DatasetSpec

#: The formats that PIL may take a file for, whatever its name: others run programs (EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
#: What PIL raises for damaged files.
_DAMAGED = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, ArithmeticError,
    AttributeError, MemoryError, RuntimeError, struct.error, zlib.error,
)  # fmt: skip
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def read(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return the images as uint8 [n, C, H, W], grey only if all are.

    Raises:
        ValueError: if there are no images, fewer than two classes, or several sizes.
    """
    assert spec.path is not None  # DatasetSpec checks it
    folder = Path(data_root or ".").expanduser() / Path(spec.path).expanduser()
    if spec.task == "regression":
        raise UserError(
            f"the images of {folder} have classes, so task cannot be regression"
        ).with_code("images-regression")
    files, test_files = image_files(folder)
    grey = all(_is_grey(path) for path in (*files, *test_files))
    x = _read_all([*files, *test_files], grey=grey, size=spec.image_size)
    labels = np.array([path.parent.name for path in files])
    found = targets_of(
        labels,
        np.array([path.parent.name for path in test_files]) if test_files else None,
        task="classification",
        where=f"the folders of {folder}",
        scale=spec.scale,
    )
    train, test = x[: len(files)], x[len(files) :]
    y, y_test = found.train, found.test
    if spec.test_fraction is not None:
        if test_files:
            raise UserError(
                f"`test_fraction` is for data without test rows, but {folder} has a folder test; "
                "leave it out"
            ).with_code("images-test-fraction")
        in_test = test_rows(y, spec.test_fraction, seed, None)
        train, test, y, y_test = x[~in_test], x[in_test], y[~in_test], y[in_test]
    said = (found.sentence, test_sentence(len(train), len(test)))
    return RawArrays(train, y, test, y_test, Meaning(found.classes, said=said))


def is_image_folder(folder: Path) -> bool:
    """Tell whether a folder has a folder with an image in it."""
    return folder.is_dir() and next(_images_below(folder), None) is not None


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the image files for training and testing, sorted by class and name.

    Raises:
        ValueError: if there are none.
    """
    if not folder.is_dir():
        raise UserError(
            f"data set 'images' needs the folder {folder.name} in {folder.parent}, but it is not "
            "there; correct path in [dataset] or --data-root"
        ).with_code("images-folder-missing")
    split = (folder / "train").is_dir() and (folder / "test").is_dir()
    top = folder / "train" if split else folder
    files = sorted(_images_below(top))
    if not files:
        raise UserError(
            f"{folder} must hold one folder of images per class, such as {folder.name}/cat/1.png, "
            f"but has none (endings: {', '.join(ENDINGS)})"
        ).with_code("images-without-classes")
    return files, sorted(_images_below(folder / "test")) if split else []


def _images_below(folder: Path):  # type: ignore[no-untyped-def]
    return (p for p in folder.glob("*/*") if p.suffix.lower() in ENDINGS and p.is_file())


def _is_grey(path: Path) -> bool:
    from PIL import Image  # late: not every study has images

    with _reading(path), Image.open(path, formats=_FORMATS) as image:
        return image.mode in ("1", "L", "LA", "I", "I;16", "F")


def _read_all(paths: Sequence[Path], *, grey: bool, size: int | None) -> Array:
    """Return all images, uint8 [n, C, H, W]."""
    from PIL import Image

    first: tuple[int, int] | None = None
    arrays = []
    for path in paths:
        with _reading(path), Image.open(path, formats=_FORMATS) as stored:
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
def _reading(path: Path) -> Iterator[None]:
    """Name the file of whatever goes wrong when PIL opens or decodes it."""
    from PIL import Image, UnidentifiedImageError

    remedy = "remove it, or repair it"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most = f"it has more than {Image.MAX_IMAGE_PIXELS:,} pixels; make it smaller, or remove it"
        raise UserError(f"{path} is not read as an image: {most}").with_code(
            "image-not-read"
        ) from None
    except UnidentifiedImageError:
        why = f"it is none of {', '.join(_FORMATS)}; {remedy}"
        raise UserError(f"{path} cannot be read as an image: {why}").with_code(
            "image-unreadable"
        ) from None
    except _DAMAGED as error:
        why = on_one_line(error) or type(error).__name__
        raise UserError(f"{path} cannot be read as an image: {why}; {remedy}").with_code(
            "image-unreadable-with-remedy"
        ) from error
