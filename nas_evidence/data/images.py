"""Images: files as arrays, what becomes of their colours and sizes, and what is left out.

    pets/cat/1.png        the name of a folder is the class of the images in it
    pets/train/cat/1.png  with folders of classes below `train`, the images below `test` are test
                          rows, if there are any

Values  8-bit images are grey or RGB, uint8 [C, H, W]; grey alone if all are. Grey images of 16
        or 32 bits, of signed numbers, or of floats, keep their values, as float32 [1, H, W].
        Whole numbers of a TIFF are signed or not, and white 0 or not, as its tags say.
Turned  as their EXIF orientation says, before anything else.
Size    one for all, or all are resized, each side by itself.

`ImageReading` holds what was decided for the training images, and new ones are read by it. A
training image given to `predict` so has its training input, bit by bit. Whatever is left out is
counted and named.
"""

import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import pandas as pd

from nas_evidence.data.array_files import DAMAGED, names_the_file
from nas_evidence.data.image_reading import ImageReading, Kind
from nas_evidence.data.mapped import Array
from nas_evidence.plumbing.foreign_text import on_one_line
from nas_evidence.plumbing.user_error import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

#: The formats that PIL may take a file for, whatever its name: others run programs (EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
#: Endings of images.
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
#: Names that systems and tools leave beside images; names that begin with a point are hidden.
_OF_SYSTEMS = ("__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")
#: Files and classes named in a sentence.
_NAMED = 3
#: Classes of a data set in memory that are named.
_CLASSES = 10
_BYTES: tuple[Kind, ...] = ("grey", "RGB")
#: What turns an image of an EXIF orientation upright.
_TURNS = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
    7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip
#: Tags of TIFF 6.0: photometric interpretation, whose 0 is white; and format of a sample.
_PHOTOMETRIC, _SAMPLE_FORMAT = 262, 339
_UNSIGNED, _SIGNED = 1, 2
#: Modes of PIL whose values change when they become RGB.
_CONVERTED = ("CMYK", "LAB", "HSV", "YCbCr")
#: Largest whole number up to which float32 has all.
_WHOLE = 1 << 24
_GREY_MODES = ("1", "L", "LA", "La")
#: What is left out: one, several, and the remedy.
_LEFT_OUT = {
    "hidden": ("hidden file or folder", "hidden files or folders", ""),
    "other": ("file with another ending", "files with other endings",
              f"the endings of images are {', '.join(ENDINGS)}"),
    "link": ("link that leads nowhere", "links that lead nowhere", ""),
    "linked": ("link to a folder", "links to folders", "only the folder of a class may be a link"),
    "special": ("pipe or device", "pipes or devices", ""),
    "closed": ("folder that may not be read", "folders that may not be read", ""),
    "below": ("image below the folder of its class", "images below the folders of their classes",
              "move each into the folder of its class to keep it"),
    "deeper": ("image in a folder below", "images in folders below",
               "give one folder of images, or one folder for each class"),
    "beside": ("image in no folder of a class", "images in no folder of a class",
               "move each into one to keep it"),
    "empty": ("folder without images", "folders without images", ""),
    "part": ("image beside `train` and `test`", "images beside `train` and `test`",
             "rename its folder to test for a test of the report"),
}  # fmt: skip


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
    names: tuple[str, ...]
    doubts: tuple[str, ...] = ()


# --- which files there are


def holds_images(folder: Path) -> bool:
    """Return whether a folder has folders of images, one per class."""
    return any(_has_classes(place) for place in (folder, _part(folder, "train")))


def are_images(place: Path) -> bool:
    """Return whether new data are images: a file, a folder, or folders of classes."""
    if place.is_dir():
        inside = (path for path in place.iterdir() if not path.is_dir())
        return holds_images(place) or not all(map(_left_out, inside))
    return place.suffix.lower() in ENDINGS and place.is_file()


def read_images(folder: Path, size: int | None = None) -> ImagesRead:
    """Return the images in folders of classes, and the names of these as targets.

    Args:
        folder: of a folder for each class, or of such folders `train` and `test`.
        size: height and width to resize them to.

    Raises:
        ValueError: if there are no images, one cannot be read, or they are of several sizes or
            kinds.
    """
    if not folder.is_dir():
        raise UserError(
            "images-folder-missing",
            f"data set 'images' needs the folder {folder.name} in {folder.parent}, but it is not "
            "there; correct path in [dataset] or data_root (--data-root)",
        )
    files, left_out = _listed(folder)
    if not files["train"]:
        raise UserError(
            "images-without-classes",
            f"{folder} must hold one folder of images per class, such as {folder.name}/cat/1.png, "
            f"but has none (endings: {', '.join(ENDINGS)}){''.join(f'; {s}' for s in left_out)}",
        )
    paths = [*files["train"], *files["test"]]
    names = tuple(path.relative_to(folder).as_posix() for path in paths)
    labels, n = [path.parent.name for path in paths], len(files["train"])
    x, reading = _read_all(dict(zip(names, paths, strict=True)), size)
    said = [*reading.said, *left_out, *_said_classes(labels[:n])]
    said += _said_copies(x, names, labels, n)
    arrays = {"x_train": x[:n], "y_train": np.array(labels[:n])}
    if len(x) > n:
        arrays |= {"x_test": x[n:], "y_test": np.array(labels[n:])}
    return ImagesRead(arrays, replace(reading, said=tuple(said)), names)


def new_images(place: Path, reading: ImageReading) -> ImagesRead:
    """Return new images, read as those of training: of a file, or of a folder.

    Folders of classes hold the true classes; of `train` and `test` the images of `test` are
    taken. Images in one folder have no classes.

    Raises:
        ValueError: if there are no images, or one cannot be read as those of training were.
    """
    if place.is_file():
        return _as_in_training({place.name: place}, reading)
    files, left_out = _listed(place)
    if paths := files["test"] or files["train"]:
        named = {path.relative_to(place).as_posix(): path for path in paths}
        found = _as_in_training(named, reading, left_out)
        labels = np.array([path.parent.name for path in paths])
        return replace(found, arrays=found.arrays | {"y_train": labels})
    named, others = {}, defaultdict[str, list[str]](list)
    for path in sorted(place.iterdir()):
        if (kind := _left_out(path)) or path.is_dir():
            for one, why in [(path, kind)] if kind else _all_within(path):
                others[why or "deeper"].append(one.relative_to(place).as_posix())
        else:
            named[path.name] = path
    if not named:
        raise UserError(
            "no-new-images",
            f"{place} holds no images (endings: {', '.join(ENDINGS)}); name a folder of "
            "images, or of one folder of images per class",
        )
    return _as_in_training(named, reading, [*_told(others)])


def images_in_memory(images: Sequence["Image"], size: int | None = None) -> ImagesRead:
    """Return images of PIL as they are read from files."""
    named = {f"image {i}": image for i, image in enumerate(images)}
    x, reading = _read_all(named, size)
    return ImagesRead({"x_train": x}, reading, ())


def new_images_in_memory(images: Sequence["Image"], reading: ImageReading) -> ImagesRead:
    """Return images of PIL, read as those of training."""
    found = _as_in_training({f"image {i}": image for i, image in enumerate(images)}, reading)
    return replace(found, names=())


def are_of_pil(values: object) -> bool:
    """Return whether values are images of PIL in a list, a Series or an array of objects [n].

    Does not import PIL.
    """
    return (
        (isinstance(values, list | tuple) or _is_of_objects(values))
        and len(values) > 0
        and all(any(k.__module__ == "PIL.Image" for k in type(v).__mro__) for v in values)
    )


def _is_of_objects(values: object) -> TypeGuard["pd.Series | Array"]:
    return (
        isinstance(values, pd.Series | np.ndarray) and values.dtype == object and values.ndim == 1
    )


def said_names(dataset: object) -> list[str]:
    """Say which classes the numbers of a data set such as torchvision's ImageFolder are."""
    names = getattr(dataset, "classes", None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return []
    listed = ", ".join(f"{i} is {on_one_line(name)}" for i, name in enumerate(names[:_CLASSES]))
    more = ", ..." * (len(names) > _CLASSES)
    return [f"the classes of the data set stay numbers: {listed}{more}"]


def _has_classes(folder: Path) -> bool:
    with suppress(PermissionError):  # a folder that others own is none of the user's data
        homes = folder.iterdir() if folder.is_dir() else ()
        return any(
            not _left_out(path)
            for home in homes
            if home.is_dir() and not _is_hidden(home.name)
            for path in home.iterdir()
            if not path.is_dir()
        )
    return False


def _part(folder: Path, name: str) -> Path:
    """Return the folder `train` or `test` in a folder, also if written `Train`."""
    exact = folder / name
    if exact.is_dir() or not folder.is_dir():
        return exact
    with suppress(PermissionError):
        alike = (path for path in sorted(folder.iterdir()) if path.name.casefold() == name)
        return next((path for path in alike if path.is_dir()), exact)
    return exact


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _OF_SYSTEMS


def _left_out(path: Path) -> str:
    """Return why a file or folder is no image, a key of `_LEFT_OUT`; "" for images and folders."""
    if _is_hidden(path.name):
        return "hidden"
    if path.is_dir():
        return ""
    if path.suffix.lower() not in ENDINGS:
        return "other"
    if path.is_file():
        return ""
    return "link" if path.is_symlink() else "special"


def _listed(folder: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the images of each part, and sentences about what is left out."""
    split = _has_classes(_part(folder, "train"))
    parts = ("train", "test")
    places = {part: _part(folder, part) for part in parts} if split else {"train": folder}
    files: dict[str, list[Path]] = {"train": [], "test": []}
    others = defaultdict[str, list[str]](list)

    def leave_out(path: Path, kind: str) -> None:
        others[kind].append(path.relative_to(folder).as_posix())

    for path in sorted(folder.iterdir()) if split else ():
        if path in places.values():
            continue
        kind = _left_out(path) or ("" if path.is_dir() else "beside")
        for one, why in [(path, kind)] if kind else _all_within(path):
            leave_out(one, why or "part")
    for part, place in places.items():
        for home in sorted(place.iterdir()) if place.is_dir() else ():
            if (kind := _left_out(home)) or not home.is_dir():
                leave_out(home, kind or "beside")
                continue
            if _holds(home, place):
                leave_out(home, "linked")
                continue
            n_before = len(files[part])
            for path in sorted(home.iterdir()):
                if kind := _left_out(path):
                    leave_out(path, kind)
                elif path.is_dir():
                    for below, why in _all_within(path):
                        leave_out(below, why or "below")
                else:
                    files[part].append(path)
            if len(files[part]) == n_before:
                leave_out(home, "empty")
    return files, [*_told(others)]


def _holds(link: Path, folder: Path) -> bool:
    """Tell whether a link leads to a folder, or to one above it: following it has no end."""
    return link.is_symlink() and folder.resolve().is_relative_to(link.resolve())


def _all_within(folder: Path) -> list[tuple[Path, str]]:
    """Return all below a folder with why it is left out, "" for images; the folder if empty.

    Hidden and linked folders are not entered.
    """
    if folder.is_symlink():
        return [(folder, "linked")]
    found: list[tuple[Path, str]] = []
    try:
        for path in sorted(folder.iterdir()):
            if (kind := _left_out(path)) or not path.is_dir():
                found.append((path, kind))
            else:
                found += _all_within(path)
    except PermissionError:
        return [(folder, "closed")]
    return found or [(folder, "empty")]


def _told(others: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a sentence for each kind of thing that is left out."""
    for kind, (one, several, remedy) in _LEFT_OUT.items():
        if names := others.get(kind):
            more = f"; {remedy}" if remedy else ""
            yield f"left out: {_counted(len(names), one, several)} ({_listing(names)}){more}"


def _counted(n: int, one: str, several: str) -> str:
    return f"{n} {one if n == 1 else several}"


def _listing(names: Sequence[str]) -> str:
    return ", ".join(map(on_one_line, names[:_NAMED])) + ", ..." * (len(names) > _NAMED)


# --- from files to arrays


def _read_all(items: Mapping[str, "Path | Image"], size: int | None) -> tuple[Array, ImageReading]:
    """Return training images [n, C, H, W], and how new ones are read; `said` is about pixels."""
    kinds = _kinds(items)
    counts = Counter(kinds.values())
    kind: Kind = "RGB" if counts["RGB"] else next(iter(counts))
    if len(counts) > 1 and not {*counts} <= {*_BYTES}:
        a, b = (next(name for name, own in kinds.items() if own == one) for one in [*counts][:2])
        raise UserError(
            "image-kinds-differ",
            f"images must be of one kind, but {a} is {kinds[a]} and {b} is {kinds[b]}; save all "
            "as one kind",
        )
    x, sizes, traits = _pixels_of(items, ImageReading(kind, size))
    height, width = x.shape[2:]
    said = f"images: {len(x)} of {height} x {width} pixels, {kind}"
    said += "" if kind in _BYTES else ", with their own values"
    if size is None:
        said += "; image_size=N (--image-size) to resize"
    elif (low := min(sizes)) != (high := max(sizes)) or low != (height, width):
        from_ = " x ".join(map(str, low)) + (f" to {high[0]} x {high[1]}" if high != low else "")
        said += (
            f", resized from {from_}, each side by itself; image_size=N (--image-size) to change"
        )
    sentences = [said]
    if kind == "RGB" and counts["grey"]:
        grey = [name for name, own in kinds.items() if own == "grey"]
        sentences.append(
            f"{len(grey)} of {len(x)} images are grey and are read as RGB, as others have colours "
            f"({_listing(grey)}); save all as grey to change"
        )
    return x, ImageReading(kind, size, (*sentences, *_said_traits(traits)))


def _as_in_training(
    items: Mapping[str, "Path | Image"], reading: ImageReading, left_out: Sequence[str] = ()
) -> ImagesRead:
    kinds = _kinds(items)
    both = {*_BYTES}
    for name, kind in kinds.items():
        if kind != reading.kind and not {kind, reading.kind} <= both:
            raise UserError(
                "new-image-kind",
                f"images must be {reading.kind}, as those of training, but {name} is {kind}; save "
                f"it as {reading.kind}",
            )
    x, _, traits = _pixels_of(items, reading)
    doubts = list(left_out)
    if reading.kind == "grey" and (colour := [n for n, kind in kinds.items() if kind == "RGB"]):
        doubts.append(
            f"{_counted(len(colour), 'image has', 'images have')} colours, which no image of "
            f"training has, and {'is' if len(colour) == 1 else 'are'} read as grey "
            f"({_listing(colour)})"
        )
    doubts += _said_traits({key: names for key, names in traits.items() if key != "turned"})
    return ImagesRead({"x_train": x}, reading, tuple(items), tuple(doubts))


def _kinds(items: Mapping[str, "Path | Image"]) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for name, item in items.items():
        with _opened(item) as image:
            mode, signed = image.mode, _is_signed_byte(image)
        if signed:
            found[name] = "8-bit signed grey"
        elif mode.startswith("I;16"):
            found[name] = "16-bit grey"
        elif mode in ("I", "F"):
            found[name] = "32-bit grey" if mode == "I" else "float grey"
        else:
            found[name] = "grey" if mode in _GREY_MODES else "RGB"
    return found


def _pixels_of(
    items: Mapping[str, "Path | Image"], reading: ImageReading
) -> tuple[Array, list[tuple[int, int]], dict[str, list[str]]]:
    """Return images [n, C, H, W], their own heights and widths, and names by trait."""
    from PIL.Image import fromarray

    arrays: list[Array] = []
    sizes: list[tuple[int, int]] = []
    traits = defaultdict[str, list[str]](list)
    for name, item in items.items():
        with _opened(item) as stored:
            if any(";16" in str(tile[3]) for tile in getattr(stored, "tile", ())) and (
                reading.kind in _BYTES
            ):
                traits["deep"].append(name)
            turned = _turned(stored)
            if turned is not stored:
                traits["turned"].append(name)
            if _is_transparent(turned):
                traits["alpha"].append(name)
            if turned.mode in _CONVERTED:
                traits[turned.mode].append(name)
            if getattr(stored, "n_frames", 1) > 1:
                traits["frames"].append(name)
            if reading.kind in _BYTES:
                image = _of_bytes(turned, reading.kind)
            else:
                values = _values(turned, stored)
                if not np.isfinite(values).all():
                    raise UserError(
                        "image-not-finite",
                        f"images must be finite, but {name} has "
                        f"{values[~np.isfinite(values)][0]}; remove it, or fill these pixels",
                    )
                if (
                    values.dtype.kind in "iu"
                    and max(-int(values.min()), int(values.max())) > _WHOLE
                ):
                    traits["rounded"].append(name)
                image = fromarray(values.astype(np.float32))
        sizes.append((image.height, image.width))
        if reading.size is None and sizes[-1] != sizes[0]:
            continue
        arrays.append(_resized(image, reading))
    if reading.size is None and len({*sizes}) > 1:
        names = list(items)
        at = next(i for i, size in enumerate(sizes) if size != sizes[0])
        (height, width), (other_height, other_width) = sizes[0], sizes[at]
        raise UserError(
            "image-sizes-differ",
            f"images must have one size, but {names[0]} is {width} x {height} "
            f"and {names[at]} is {other_width} x {other_height}; give image_size=N (--image-size) "
            "to resize all to N x N",
        )
    return np.stack(arrays), sizes, dict(traits)


def _turned(stored: "Image") -> "Image":
    """Return an image as its EXIF orientation says; the same object if that is upright."""
    from PIL.Image import Transpose

    if stored.format == "TIFF":  # PIL turns these as it decodes them, and takes the tag out
        turns = _orientation(stored) != 1
        stored.load()
        return stored.copy() if turns else stored
    stored.load()  # first, as reading the EXIF data of some decodes them, too
    turn = _TURNS.get(_orientation(stored))
    return stored if turn is None else stored.transpose(Transpose[turn])


def _orientation(image: "Image") -> int:
    """Return the EXIF orientation, 1 to 8; 1, upright, if it has none that can be read."""
    try:
        found = image.getexif().get(0x0112, 1)
    except DAMAGED:
        return 1
    return found if found in _TURNS else 1


def _is_transparent(image: "Image") -> bool:
    if not image.has_transparency_data:
        return False
    low, _ = image.convert("RGBA").getchannel("A").getextrema()
    return bool(low < 255)  # type: ignore[operator]


def _of_bytes(image: "Image", kind: Kind) -> "Image":
    if kind == "RGB" or image.mode == "LAB":  # which PIL converts to RGB alone
        image = image.convert("RGB")
    return image.convert("L") if kind == "grey" else image


def _is_signed_byte(image: "Image") -> bool:
    return image.mode == "L" and _tag(image, _SAMPLE_FORMAT) == _SIGNED


def _tag(image: "Image", number: int) -> object:
    """Return a tag of a TIFF that is open; None if the image is another, or lacks it."""
    found = getattr(image, "tag_v2", {}).get(number)
    return found[0] if isinstance(found, tuple) and found else found


def _values(image: "Image", stored: "Image") -> Array:
    """Return the numbers [H, W] of a grey image, which PIL may have read as of another type.

    Args:
        image: as it is turned.
        stored: the same as it was opened, with the tags of a TIFF.
    """
    values = np.asarray(image)
    if _is_signed_byte(stored):
        return values.view(np.int8)
    if stored.format != "TIFF":
        return values
    if image.mode == "I" and (_tag(stored, _SAMPLE_FORMAT) or _UNSIGNED) == _UNSIGNED:
        return values.view(np.uint32)
    if image.mode.startswith("I;16") and _tag(stored, _PHOTOMETRIC) == 0:
        return ~values  # PIL does this for 8 bits
    return values


def _format_of_tiff(file: Path) -> str:
    """Return what the samples of a TIFF are, "" if it is none."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    found: dict[int, object] = {}
    with suppress(*DAMAGED), file.open("rb") as stream:
        tags = ImageFileDirectory_v2(stream.read(8))
        stream.seek(tags.next)
        tags.load(stream)
        found = dict(tags)
    bits = found.get(258)
    if not isinstance(bits, tuple):
        return ""
    kinds = {1: "unsigned integers", 2: "signed integers", 3: "floats"}
    of = found.get(_SAMPLE_FORMAT, (1,))
    kind = kinds.get(of[0], "other numbers") if isinstance(of, tuple) else "numbers"
    return f"a TIFF of {_counted(len(bits), 'channel', 'channels')} of {bits[0]}-bit {kind}"


def _resized(image: "Image", reading: ImageReading) -> Array:
    from PIL import Image

    if reading.size is not None:
        image = image.resize((reading.size, reading.size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels.transpose(2, 0, 1) if reading.kind == "RGB" else pixels[None]


@contextmanager
def _opened(item: "Path | Image") -> Iterator["Image"]:
    """Open an image; name its file if PIL cannot open or decode it."""
    from PIL import Image, UnidentifiedImageError

    if not isinstance(item, Path):
        with nullcontext(item) as image:
            yield image
        return
    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    with (
        names_the_file(item, "an image", "remove it, or repair it", bombs),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(item, formats=_FORMATS)
        except UnidentifiedImageError:
            if not (what := _format_of_tiff(item)):
                raise
            raise UserError(
                "tiff-of-other-numbers",
                f"{item} is {what}, which cannot be read; save it as floats of 32 bits, or as "
                "integers of 8 or 16 bits",
            ) from None
        with image:
            yield image


# --- what is said of them


def _said_traits(traits: Mapping[str, Sequence[str]]) -> list[str]:
    words = {
        "turned": "turned as the EXIF orientation says",
        "alpha": "read without transparency",
        **{mode: f"converted from {mode} to RGB" for mode in _CONVERTED},
        "deep": "read with 8 of 16 bits per channel",
        "rounded": "rounded to float32, as values exceed 16,777,216",
        "frames": "read as the first of several frames",
    }
    return [
        f"{_counted(len(traits[key]), 'image is', 'images are')} {how} ({_listing(traits[key])})"
        for key, how in words.items()
        if key in traits
    ]


def _said_classes(labels: Sequence[str]) -> list[str]:
    """Say which classes have one image."""
    counts = Counter(labels)
    said = []
    if alone := [name for name, n in counts.items() if n == 1]:
        said.append(
            f"{_counted(len(alone), 'class has', 'classes have')} one image: {_listing(alone)}"
        )
    return said


def _said_copies(
    x: Array, names: Sequence[str], labels: Sequence[str], n_train: int
) -> Iterator[str]:
    """Say which images are equal to an earlier one: in training and test, in two classes, ..."""
    first: dict[bytes, int] = {}
    found = defaultdict[str, list[str]](list)
    for i, image in enumerate(x):
        content = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
        earlier = first.setdefault(content, i)
        if earlier == i:
            continue
        part = "test" if earlier < n_train <= i else ""
        kind = part or ("classes" if labels[i] != labels[earlier] else "copies")
        found[kind].append(f"{names[i]} is {names[earlier]}")
    for kind, one, several, remedy in (
        (
            "test",
            "test image is",
            "test images are",
            "in the training, so the test looks too good",
        ),
        ("classes", "image is", "images are", "in another class too"),
        ("copies", "image is", "images are", "in its class twice"),
    ):
        if copies := found.get(kind):
            yield f"{_counted(len(copies), one, several)} {remedy} ({_listing(copies)})"
