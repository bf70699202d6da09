"""Images as arrays: folders of classes, a folder or file of new images, or images of PIL.

    pets/cat/1.png        the name of a folder is the class of the images in it
    pets/train/cat/1.png  with folders of classes below `train`, those below `test` are test rows

8-bit images are grey if all are, else RGB: uint8 [C, H, W]. Deeper grey keeps its values, float32.
Images are turned as their EXIF data say, and resized each side by itself if a size is asked for.
New images are read by the `ImageReading` of the training: a training image given to `predict` has
its training input, bit by bit. What is left out is counted and named.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nas_evidence.data.array_files import names_the_file
from nas_evidence.data.arrays import row_hashes
from nas_evidence.data.image_reading import ImageReading, Kind
from nas_evidence.data.mapped import Array
from nas_evidence.plumbing.foreign_text import on_one_line
from nas_evidence.plumbing.user_error import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

#: The formats that PIL may take a file for, whatever its name: others run programs (EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_ENDED = ", ".join(ENDINGS)
_OF_SYSTEMS = ("__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")
_BYTES: tuple[Kind, ...] = ("grey", "RGB")
#: Kinds of images by the mode of PIL; every other mode is RGB.
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("1", "L", "LA", "La"), "grey"),
    **dict.fromkeys(("I;16", "I;16L", "I;16B", "I;16N"), "16-bit grey"),
    "I": "32-bit grey", "F": "float grey",
}  # fmt: skip
_OTHER_COLOURS = ("CMYK", "LAB", "HSV", "YCbCr")
#: Tags of TIFF 6.0: photometric interpretation, whose 0 is white; format of a sample, 2 is signed.
_PHOTOMETRIC, _SAMPLE_FORMAT, _SIGNED = 262, 339, 2
#: Largest whole number up to which float32 has all.
_WHOLE = 1 << 24


@dataclass(frozen=True)
class ImagesRead:
    """Images as arrays.

    arrays   x_train [n, C, H, W] and, of folders of classes, y_train [n]; so of test rows
    reading  how they were read
    names    of the images of x_train, then of x_test: their paths below the folder
    doubts   what of new images is left out, or is unlike the training
    """

    arrays: dict[str, Array]
    reading: ImageReading
    names: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def holds_images(folder: Path) -> bool:
    """Return whether a folder has folders of images, one per class."""
    return any(_of_classes(place) for place in (folder, _part(folder, "train")))


def are_images(place: Path) -> bool:
    """Return whether new data are images: a file, a folder, or folders of classes."""
    return _is_image(place) or any(map(_is_image, place.glob("*"))) or holds_images(place)


def read_images(folder: Path, size: int | None = None) -> ImagesRead:
    """Return the images in folders of classes, and the names of these as targets.

    Args:
        folder: of a folder for each class, or of such folders `train` and `test`.
        size: height and width to resize them to.

    Raises:
        ValueError: if there are none, one cannot be read, or they differ in size or kind.
    """
    train, test, left_out = _listed(folder)
    if not train:
        raise UserError(
            "images-without-classes",
            f"{folder} must hold one folder of images per class, such as {folder.name}/cat/1.png, "
            f"but no image is there (endings: {_ENDED}){''.join(f'; {s}' for s in left_out)}",
            remedy="correct path in [dataset] or data_root (--data-root)",
        )
    paths, n = [*train, *test], len(train)
    items = {path.relative_to(folder).as_posix(): path for path in paths}
    x, reading = _read_all(items, size)
    labels, names = _classes_of(paths), tuple(items)
    said = (*reading.said, *left_out, *_said_copies(x, names, labels, n))
    arrays = {"x_train": x[:n], "y_train": labels[:n]}
    arrays |= {"x_test": x[n:], "y_test": labels[n:]} if test else {}
    return ImagesRead(arrays, replace(reading, said=said), names)


def new_images(place: Path, reading: ImageReading) -> ImagesRead:
    """Return new images of a file or folder, read as those of training.

    Folders of classes hold the true classes; of `train` and `test` those of `test` are taken.

    Raises:
        ValueError: if there are no images, or one cannot be read as those of training were.
    """
    if place.is_file():
        return _as_in_training({place.name: place}, reading)
    train, test, left_out = _listed(place)
    paths = test or train
    if not paths:
        paths = sorted(filter(_is_image, place.iterdir()))
        left_out = _told(place, paths)
    if not paths:
        raise UserError(
            "no-new-images",
            f"{place} holds no images (endings: {_ENDED}); name a folder of "
            "images, or of one folder of images per class",
        )
    found = _as_in_training({p.relative_to(place).as_posix(): p for p in paths}, reading, left_out)
    return (
        replace(found, arrays=found.arrays | {"y_train": _classes_of(paths)}) if train else found
    )


def _classes_of(paths: Sequence[Path]) -> Array:
    return np.array([path.parent.name for path in paths])


def images_in_memory(images: Sequence["Image"], size: int | None = None) -> ImagesRead:
    """Return images of PIL as they are read from files."""
    x, reading = _read_all({f"image {i}": image for i, image in enumerate(images)}, size)
    return ImagesRead({"x_train": x}, reading)


def new_images_in_memory(images: Sequence["Image"], reading: ImageReading) -> ImagesRead:
    """Return images of PIL, read as those of training."""
    found = _as_in_training({f"image {i}": image for i, image in enumerate(images)}, reading)
    return replace(found, names=())


def are_of_pil(values: Any) -> bool:
    """Return whether values are images of PIL in a sequence [n]; does not import PIL."""
    listed = isinstance(values, list | tuple) or (
        isinstance(values, pd.Series | np.ndarray) and values.dtype == object and values.ndim == 1
    )
    return (
        listed
        and len(values) > 0
        and all(any(k.__module__ == "PIL.Image" for k in type(v).__mro__) for v in values)
    )


# --- which files there are


def _is_shown(path: Path) -> bool:
    return not path.name.startswith(".") and path.name not in _OF_SYSTEMS


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and _is_shown(path) and path.is_file()


def _of_classes(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*/*") if _is_image(p) and _is_shown(p.parent))


def _part(folder: Path, name: str) -> Path:
    """Return the folder `train` or `test` in a folder, also if written `Train`."""
    alike = (path for path in folder.glob("*") if path.name.casefold() == name and path.is_dir())
    return min(alike, default=folder / name)


def _listed(folder: Path) -> tuple[list[Path], list[Path], list[str]]:
    """Return the images of training and test, and a sentence about what is left out."""
    train, test = (_of_classes(_part(folder, name)) for name in ("train", "test"))
    if not train:
        train, test = _of_classes(folder), []
    return train, test, _told(folder, [*train, *test])


def _told(folder: Path, used: Sequence[Path]) -> list[str]:
    homes = {path.parent for path in used}  # which may be links
    there = {*folder.rglob("*"), *(path for home in homes for path in home.glob("*"))}
    left = sorted(
        path.relative_to(folder).as_posix()
        for path in there.difference(used, homes)
        if not path.is_dir() or path.is_symlink() or not any(path.glob("*"))
    )
    if not left:
        return []
    return [
        f"left out: {_counted(len(left), 'file or folder', 'files or folders')} "
        f"({_listing(left)}); an image ends in {_ENDED} and lies in the folder of its "
        "class, in `train` or `test` if these are there"
    ]


# --- from images to arrays


def _read_all(items: Mapping[str, "Path | Image"], size: int | None) -> tuple[Array, ImageReading]:
    """Return training images [n, C, H, W], and how new ones are read."""
    kinds = _kinds(items)
    kind = "RGB" if "RGB" in kinds.values() else next(iter(kinds.values()))
    _check_kinds(kinds, kind, "image-kinds-differ", f", as {next(iter(kinds))} is")
    x, sizes, said = _pixels_of(items, ImageReading(kind, size))
    height, width = x.shape[2:]
    low, high = min(sizes), max(sizes)
    resized = ""
    if {low, high} != {(height, width)}:
        to = f" to {high[0]} x {high[1]}" * (low != high)
        resized = f", resized from {low[0]} x {low[1]}{to}, each side by itself"
    first = (
        f"images: {len(x)} of {height} x {width} pixels, {kind}{resized}; image_size=N "
        f"(--image-size) to {'change' if resized else 'resize'}"
    )
    if kind == "RGB" and (grey := [name for name, own in kinds.items() if own == "grey"]):
        said.insert(0, f"{len(grey)} of {len(x)} images are grey and are read as RGB, as others "
                       f"have colours ({_listing(grey)}); save all as grey to change")  # fmt: skip
    return x, ImageReading(kind, size, (first, *said))


def _as_in_training(
    items: Mapping[str, "Path | Image"], reading: ImageReading, left_out: Sequence[str] = ()
) -> ImagesRead:
    kinds = _kinds(items)
    _check_kinds(kinds, reading.kind, "new-image-kind", ", as those of training")
    x, _, said = _pixels_of(items, reading)
    coloured = [name for name, kind in kinds.items() if reading.kind == "grey" and kind == "RGB"]
    if coloured:
        said.insert(0, f"{_counted(len(coloured), 'image')} with colours, which no image of "
                       f"training has, read as grey ({_listing(coloured)})")  # fmt: skip
    return ImagesRead({"x_train": x}, reading, tuple(items), (*left_out, *said))


def _kinds(items: Mapping[str, "Path | Image"]) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for name, item in items.items():
        with _opened(item) as image:
            _check_tags(image, name)
            found[name] = _KINDS.get(image.mode, "RGB")
    return found


def _check_tags(image: "Image", name: str) -> None:
    """Refuse a TIFF that PIL reads as other numbers than it holds."""
    tags = getattr(image, "tag_v2", {})
    signed, lowest = _SIGNED in np.atleast_1d(tags.get(_SAMPLE_FORMAT, 1)), 0
    if tags and image.mode == "I" and not signed:
        lowest = image.getextrema()[0]  # type: ignore[assignment]
    if (
        (image.mode == "L" and signed)
        or (_KINDS.get(image.mode) == "16-bit grey" and tags.get(_PHOTOMETRIC) == 0)
        or lowest < 0
    ):
        raise UserError(
            "tiff-of-other-numbers",
            f"{name} is a TIFF of signed bytes, of whole numbers above 2,147,483,647, or of 16 "
            "bits whose 0 is white, which are not read (early versions of 0.1.0 did); save it as "
            "floats of 32 bits, or as unsigned integers of 8 or 16 bits whose 0 is black",
        )


def _check_kinds(kinds: Mapping[str, Kind], kind: Kind, code: str, why: str) -> None:
    for name, own in kinds.items():
        if own != kind and not {own, kind} <= {*_BYTES}:
            raise UserError(
                code, f"images must be {kind}{why}, but {name} is {own}; save it as {kind}"
            )


def _pixels_of(
    items: Mapping[str, "Path | Image"], reading: ImageReading
) -> tuple[Array, list[tuple[int, int]], list[str]]:
    """Return images [n, C, H, W], their own heights and widths, and what they lose in words."""
    from PIL.Image import Resampling

    arrays, sizes, lost = list[Array](), list[tuple[int, int]](), defaultdict[str, list[str]](list)
    for name, item in items.items():
        with _opened(item) as stored:
            tiles = str(getattr(stored, "tile", ""))  # which decoding takes away
            image = _upright(stored)
            losses = {
                "read without transparency": _is_transparent(image),
                f"converted from {image.mode} to RGB": image.mode in _OTHER_COLOURS,
                "read with 8 of 16 bits per channel": ";16" in tiles and reading.kind in _BYTES,
                "rounded to float32, as values exceed 16,777,216": (
                    image.mode == "I" and np.abs(np.asarray(image, np.int64)).max() > _WHOLE
                ),
                "read as the first of several frames": getattr(stored, "n_frames", 1) > 1,
            }
            if reading.kind in _BYTES:
                image = image.convert("RGB").convert("L" if reading.kind == "grey" else "RGB")
            else:
                image = image.convert("F")
        for how in (how for how, happens in losses.items() if happens):
            lost[how].append(name)
        sizes.append((image.height, image.width))
        if reading.size is not None:
            image = image.resize((reading.size, reading.size), Resampling.BILINEAR)
        pixels = np.asarray(image)
        if not np.isfinite(pixels).all():
            raise UserError(
                "image-not-finite",
                f"images must be finite, but {name} has {pixels[~np.isfinite(pixels)][0]}; remove "
                "it, or fill these pixels",
            )
        if arrays and pixels.shape != arrays[0].shape:
            raise UserError(
                "image-sizes-differ",
                f"images must have one size, but {next(iter(items))} is {sizes[0][1]} x "
                f"{sizes[0][0]} and {name} is {image.width} x {image.height}; give image_size=N "
                "(--image-size) to resize all to N x N",
            )
        arrays.append(pixels)
    x = np.stack(arrays)
    said = [f"{_counted(len(own), 'image')} {how} ({_listing(own)})" for how, own in lost.items()]
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 else x[:, None], sizes, said


def _upright(image: "Image") -> "Image":
    """Return an image turned as its EXIF data say; as it is if these cannot be read."""
    from PIL import ImageOps

    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # of any reader of EXIF data
        return image.copy()


def _is_transparent(image: "Image") -> bool:
    if not image.has_transparency_data:
        return False
    low, _ = image.convert("RGBA").getchannel("A").getextrema()
    return bool(low < 255)  # type: ignore[operator]


@contextmanager
def _opened(item: "Path | Image") -> Iterator["Image"]:
    """Open an image; name its file if PIL cannot open or decode it."""
    from PIL import Image

    if not isinstance(item, Path):
        yield item
        return
    remedy = "remove it, repair it, or save it as PNG, or as a TIFF of 32-bit floats"
    with names_the_file(item, "an image", remedy), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(item, formats=_FORMATS) as image:
            yield image


# --- what is said of them


def _said_copies(x: Array, names: Sequence[str], labels: Array, n_train: int) -> list[str]:
    """Say which images are equal to an earlier one: in training and test, in two classes, ..."""
    first: dict[int, int] = {}
    found = defaultdict[str, list[str]](list)
    for i, image in enumerate(row_hashes(x)):
        if (at := first.setdefault(image, i)) == i:
            continue
        where = "in two classes" if labels[at] != labels[i] else "in one class"
        if at < n_train <= i:
            where = "in training and test, so the test looks too good"
        found[where].append(f"{names[i]} is {names[at]}")
    return [
        f"{_counted(len(own), 'image')} twice, {where} ({_listing(own)})"
        for where, own in found.items()
    ]


def _counted(n: int, one: str, several: str = "") -> str:
    return f"{n} {one if n == 1 else several or f'{one}s'}"


def _listing(names: Sequence[str]) -> str:
    return ", ".join(map(on_one_line, names[:3])) + ", ..." * (len(names) > 3)
