"""Images from files: values, sizes and places are kept, and what is left out is named."""

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import refused
from PIL import Image
from table_sources import beside, few, study

from nas_evidence.data import load
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.given import features_of, unlike_range
from nas_evidence.data.image_reading import ImageReading
from nas_evidence.data.proposed import proposed_text
from nas_evidence.data.reading import kind_of
from nas_evidence.data.source import source_in_memory, source_of
from nas_evidence.spec.study import DatasetSpec
from nas_evidence.spec.toml import parse_study

SHAPE = (6, 8)
TURNED = 6  # EXIF: the top is at the right of what is stored


def pixels(seed: int, *more: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*SHAPE, *more)).astype(dtype)


def save(path: Path, values: np.ndarray | Image.Image, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = values if isinstance(values, Image.Image) else Image.fromarray(values)
    image.save(path, **how)
    return path


def folder(
    home: Path, make: Callable[[int], np.ndarray | Image.Image], ending: str = "png"
) -> Path:
    for i in range(12):
        save(home / "pets" / ("cat" if i % 2 else "dog") / f"{i:02}.{ending}", make(i))
    return home / "pets"


def grey(home: Path) -> Path:
    return folder(home, pixels)


def read(place: Path, **keys: Any) -> ArrayData:
    found = source_of(DatasetSpec(name="images", path=str(place), **keys))
    assert found is not None
    return found.arrays(seed=0)


def test_a_study_of_images_samples_the_curvature_that_ranks_nothing(tmp_path: Path) -> None:
    """An exact pass takes a fifth of a training; its name says which one it is."""
    spec = DatasetSpec(name="images", path="pets")
    study = parse_study(proposed_text(spec, read(grey(tmp_path)), name="pets"), "pets")
    assert {"kfac_ggn_mc", "diag_ef", study.objective} <= {*study.estimators}
    assert "kfac_ggn" not in study.estimators


def said_of(place: Path, word: str, **keys: Any) -> str:
    """The one sentence with this word."""
    [found] = [one for one in read(place, **keys).meaning.said if word in one]
    return found


def exif(orientation: int = TURNED) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


# --- values


@pytest.mark.parametrize(
    ("dtype", "ending", "top", "kind"),
    [
        (np.uint16, "png", 65535, "16-bit grey"),
        (np.uint16, "tif", 4095, "16-bit grey"),
        (np.int32, "tif", 1_000_000, "32-bit grey"),
        (np.float32, "tif", 1.0, "float grey"),
    ],
)
def test_deep_grey_keeps_its_values(
    dtype: Any, ending: str, top: float, kind: str, tmp_path: Path
) -> None:
    ramp = np.linspace(0, top, 64).reshape(8, 8).astype(dtype)
    home = folder(tmp_path, lambda i: np.roll(ramp, i), ending)
    data = read(home)
    assert data.x_train.dtype == np.float32
    np.testing.assert_array_equal(data.x_train[6, 0], ramp.astype(np.float32))
    assert kind in said_of(home, "images: 12 of 8 x 8 pixels")


def tiff(file: Path, values: np.ndarray, sample: int, white_is_zero: bool = False) -> Path:
    """Write a grey TIFF byte by byte; `sample` is 1 for unsigned, 2 for signed, 3 for floats."""
    content = values.tobytes()
    tags = [
        (256, 3, SHAPE[1]), (257, 3, SHAPE[0]), (258, 3, 8 * values.itemsize), (259, 3, 1),
        (262, 3, int(not white_is_zero)), (273, 4, 8), (277, 3, 1), (278, 3, SHAPE[0]),
        (279, 4, len(content)), (339, 3, sample),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    head = b"II*\0" + struct.pack("<I", 8 + len(content))
    ifd = struct.pack("<H", len(tags)) + entries + bytes(4)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(head + content + ifd)
    return file


@pytest.mark.parametrize(
    ("dtype", "first", "sample", "white_is_zero", "kind"),
    [
        (np.uint32, 2_000_000_000, 1, False, "32-bit grey"),
        (np.int32, -2_000_000_000, 2, False, "32-bit grey"),
        (np.int16, -100, 2, False, "32-bit grey"),
        (np.uint8, 3, 1, True, "grey"),
        (np.uint16, 300, 1, False, "16-bit grey"),
        (np.uint32, 3_000_000_000, 1, False, ""),
        (np.int8, -60, 2, False, ""),
        (np.uint16, 300, 1, True, ""),
    ],
)
def test_a_tiff_is_what_its_tags_say_or_is_refused(
    dtype: Any, first: int, sample: int, white_is_zero: bool, kind: str, tmp_path: Path
) -> None:
    values = (first + np.arange(48).reshape(SHAPE) % 50).astype(dtype)
    for i in range(12):
        tiff(tmp_path / "pets" / "ab"[i % 2] / f"{i}.tif", values, sample, white_is_zero)
    one = tiff(tmp_path / "new.tif", values, sample, white_is_zero)
    if not kind:
        with refused("tiff-of-other-numbers", "a/0.tif"):
            read(tmp_path / "pets")
        with refused("tiff-of-other-numbers", "new.tif"):
            features_of(one, None, images=ImageReading("grey"))
        return
    data = read(tmp_path / "pets")
    expected = np.iinfo(dtype).max - values if white_is_zero else values
    np.testing.assert_array_equal(data.x_train[0, 0], expected.astype(data.x_train.dtype))
    assert f"pixels, {kind}" in said_of(tmp_path / "pets", "pixels")
    found = features_of(one, None, images=data.meaning.images)
    np.testing.assert_array_equal(found.inputs[0], data.x_train[0])


NAN = np.full(SHAPE, np.nan, np.float32)


@pytest.mark.parametrize(
    ("dtype", "name", "values", "code", "parts"),
    [
        ("float32", "x.tif", NAN, "image-not-finite", ["cat/x.tif", "nan"]),
        ("float32", "x.tif", pixels(1) / 7.0, "array-file-unreadable", ["x.tif", "32-bit floats"]),
        ("uint8", "x.png", pixels(0, dtype=np.uint16), "image-kinds-differ",
         ["cat/x.png is 16-bit grey", "cat/01.tif"]),
        ("uint8", "x.png", pixels(0)[:3], "image-sizes-differ",
         ["8 x 6", "cat/x.png is 8 x 3", "image_size=N"]),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_used_is_named(
    dtype: str, name: str, values: np.ndarray, code: str, parts: list[str], tmp_path: Path
) -> None:
    home = folder(tmp_path, lambda i: pixels(i, dtype=dtype), "tif")
    if values.dtype == np.float64:  # which PIL does not write
        tiff(home / "cat" / name, values, 3)
    else:
        save(home / "cat" / name, values)
    with refused(code, *parts):
        read(home)


def test_resizing_keeps_deep_values_and_averages_over_what_becomes_one_pixel(
    tmp_path: Path,
) -> None:
    home = folder(tmp_path / "deep", lambda i: np.full((8, 8), 300 * i + 7, np.uint16))
    assert sorted({*read(home, image_size=4).x_train.ravel()}) == [300 * i + 7 for i in range(12)]
    halves = np.repeat(np.array([[0, 200]], np.uint8), 4, axis=1).repeat(6, axis=0)
    home = folder(tmp_path, lambda i: np.roll(halves, i, axis=1))
    assert np.abs(read(home, image_size=1).x_train.astype(int) - 100).max() <= 25
    assert read(home, image_size=1).x_train[6, 0, 0, 0] == 100  # dog/00


@pytest.mark.parametrize("ending", ["png", "jpg", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_images_are_turned_as_exif_says(ending: str, orientation: int, tmp_path: Path) -> None:
    home = tmp_path / "pets"
    ramp = np.repeat(np.array([0, 255], np.uint8), 128).reshape(16, 16)  # dark above, light below
    turns: dict[int, Callable[[np.ndarray], np.ndarray]] = {
        2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud, 5: np.transpose,
        6: lambda x: np.rot90(x, -1), 7: lambda x: np.rot90(x.T, 2), 8: np.rot90,
    }  # fmt: skip
    for i in range(12):
        path = home / ("cat" if i % 2 else "dog") / f"{i:02}.{ending}"
        save(path, np.stack([ramp] * 3, 2), exif=exif(orientation) if i == 0 else Image.Exif())
    found = read(home).x_train
    np.testing.assert_allclose(found[6, 0], turns[orientation](ramp), atol=12)  # dog/00
    np.testing.assert_allclose(found[0, 0], ramp, atol=12)


def test_damaged_exif_data_leave_the_image_as_it_is(tmp_path: Path) -> None:
    home = folder(tmp_path, lambda i: pixels(i, 3), "jpg")
    save(home / "cat" / "01.jpg", pixels(1, 3), exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    assert read(home).n_train == 12


# --- what lies beside


@pytest.mark.parametrize(
    "name",
    [
        "cat/notes.txt", "cat/photo.heic", "cat/in/1.png", "1.png", "owl/", "cat/away.png",
        "cat/2023/photo.heic", "cat/2023/1/", "cat/d.png/", "all", "cat/all", "cat/pipe.png",
        ".hidden/a.png", "__MACOSX/cat/a.png", "cat/.ipynb_checkpoints/01.png", "cat/._01.png",
        ".DS_Store", "cat/Thumbs.db", "dog/desktop.ini",
    ],
)  # fmt: skip
def test_what_is_no_image_of_a_class_is_counted_and_named(name: str, tmp_path: Path) -> None:
    home = grey(tmp_path)
    (home / name).parent.mkdir(exist_ok=True, parents=True)
    if name.endswith("/"):
        (home / name).mkdir(parents=True, exist_ok=True)
    elif name.endswith("all"):
        (home / name).symlink_to(home)
    elif name.endswith("pipe.png"):
        os.mkfifo(home / name)
    elif name == "cat/away.png":
        (home / name).symlink_to("nowhere.png")
    elif name.endswith(".png"):
        save(home / name, pixels(99))
    else:
        (home / name).write_text("words")
    assert said_of(home, "left out").startswith(f"left out: 1 file or folder ({name.strip('/')});")
    assert (read(home).n_train, read(home).meaning.classes) == (12, ("cat", "dog"))


def test_a_linked_folder_of_a_class_and_a_linked_image_are_read(tmp_path: Path) -> None:
    home = grey(tmp_path)
    shutil.move(home / "cat", tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "notes.txt").write_text("words")
    (home / "cat").symlink_to(tmp_path / "elsewhere")
    save(tmp_path / "one.png", pixels(77))
    (home / "dog" / "linked.png").symlink_to(tmp_path / "one.png")
    assert read(home).meaning.classes == ("cat", "dog")
    assert read(home).n_train == 13
    assert "1 file or folder (cat/notes.txt)" in said_of(home, "left out")


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("Train", "TEST")])
def test_folders_train_and_test_are_the_training_and_the_test(
    train: str, test: str, tmp_path: Path
) -> None:
    home = tmp_path / "all"
    shutil.copytree(grey(tmp_path), home / train)
    save(home / test / "cat" / "t.png", pixels(50))
    save(home / "val" / "dog" / "v.png", pixels(51))
    (home / "val" / "w.heic").write_text("words")
    assert kind_of(home) == "images"
    data = read(home)
    assert (data.n_train, len(data.x_test), data.meaning.classes) == (12, 1, ("cat", "dog"))
    assert "2 files or folders (val/dog/v.png, val/w.heic)" in said_of(home, "left out")


def test_classes_called_train_and_test_are_classes(tmp_path: Path) -> None:
    home = grey(tmp_path)
    (home / "cat").rename(home / "train")
    (home / "dog").rename(home / "test")
    assert read(home).meaning.classes == ("test", "train")


def test_copies_and_classes_of_like_names_are_said(tmp_path: Path) -> None:
    home = tmp_path / "all"
    shutil.copytree(grey(tmp_path), home / "train")
    shutil.copytree(home / "train" / "dog", home / "test" / "dog")
    shutil.copy(home / "train" / "dog" / "00.png", home / "train" / "cat" / "y.png")
    shutil.copy(home / "train" / "dog" / "02.png", home / "train" / "dog" / "z.png")
    for i, name in enumerate(("Cat", "café", "cafe\u0301")):
        save(home / "train" / name / "1.png", pixels(60 + i))
    said = " ".join(read(home).meaning.said)
    assert "6 images twice, in training and test, so the test looks too good" in said
    assert "1 image twice, in two classes (train/dog/00.png is train/cat/y.png)" in said
    assert "1 image twice, in one class (train/dog/z.png is train/dog/02.png)" in said
    assert "classes that differ in case or accents alone: " in said
    assert "'Cat' and 'cat'" in said
    assert "'cafe\u0301' and 'café'" in said


def deep_colour(file: Path) -> Path:
    """Write an RGB image of 16 bits, which PIL cannot."""
    raw = b"".join(b"\0" + bytes(6 * SHAPE[1]) for _ in range(SHAPE[0]))
    head = struct.pack(">IIBBBBB", SHAPE[1], SHAPE[0], 16, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(c)) + name + c + struct.pack(">I", zlib.crc32(name + c))
        for name, c in chunks
    )
    file.write_bytes(content)
    return file


def of_lab(file: Path) -> Path:
    values = Image.fromarray(pixels(3, 3)).convert("HSV")
    return save(file, Image.frombytes("LAB", values.size, values.tobytes()))


PALETTE = Image.fromarray(pixels(9)).convert("P")
FRAMES = {"save_all": True, "append_images": [Image.fromarray(pixels(8))]}
#: What an image loses, by the name of a file and how it is written.
LOST: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "read without transparency": ("x.png", lambda file: save(file, pixels(9, 4))),
    "read without transparency ": (
        "x.png", lambda file: save(file, PALETTE, transparency=bytes([0] * 256))),
    "converted from CMYK to RGB": (
        "x.jpg", lambda file: save(file, Image.fromarray(pixels(9, 4), "CMYK"))),
    "converted from LAB to RGB": ("x.tif", of_lab),
    "read as the first of several frames": (
        "x.gif", lambda file: save(file, pixels(9), **FRAMES)),
    "read with 8 of 16 bits per channel": ("x.png", deep_colour),
}  # fmt: skip


@pytest.mark.parametrize("how", LOST)
def test_what_an_image_loses_is_said_of_training_and_doubted_of_new_data(
    how: str, tmp_path: Path
) -> None:
    home, (name, write) = folder(tmp_path, lambda i: pixels(i, 3)), LOST[how]
    write(home / "cat" / name)
    assert said_of(home, how.strip()) == f"1 image {how.strip()} (cat/{name})"
    for reading in (read(home).meaning.images, ImageReading("grey")):
        found = features_of(home / "cat" / name, None, images=reading)
        assert f"1 image {how.strip()} ({name})" in found.doubts


def test_whole_numbers_that_float32_rounds_are_said(tmp_path: Path) -> None:
    home = folder(tmp_path, lambda i: pixels(i, dtype=np.int32), "tif")
    save(home / "cat" / "x.tif", pixels(20, dtype=np.int32) + 2**24)
    assert said_of(home, "rounded").startswith("1 image rounded to float32")


def test_an_opaque_alpha_channel_and_a_palette_lose_nothing_and_are_not_said(
    tmp_path: Path,
) -> None:
    home = folder(tmp_path, lambda i: pixels(i, 3))
    opaque = np.concatenate([pixels(19, 3), np.full((*SHAPE, 1), 255, np.uint8)], 2)
    save(home / "cat" / "x.png", opaque)
    save(home / "cat" / "y.png", Image.fromarray(pixels(18)).convert("P"))
    _, images, _ = read(home).meaning.said
    assert images == "images: 14 of 6 x 8 pixels, RGB; image_size=N (--image-size) to resize"


def test_grey_among_colour_and_resizing_are_said(tmp_path: Path) -> None:
    home = folder(tmp_path, lambda i: pixels(i, 3) if i else pixels(i))
    assert said_of(home, "are grey").startswith("1 of 12 images are grey and are read as RGB")
    save(home / "cat" / "01.png", np.zeros((20, 30, 3), np.uint8))
    assert "resized from 6 x 8 to 20 x 30, each side by itself; image_size" in said_of(
        home, "images: 12 of 5 x 5 pixels, RGB", image_size=5
    )


# --- new images


def new(place: object, reading: ImageReading | None) -> Any:
    assert reading is not None
    return features_of(place, None, images=reading)


@few
@given(st.data())
def test_a_training_image_has_its_training_input_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    home = tmp_path_factory.mktemp("any") / "pets"
    deep = data.draw(st.sampled_from(["", "uint16", "int32", "float32"]))
    size = data.draw(st.sampled_from([None, 5, 9]))
    for i in range(12):
        shape = SHAPE if size is None else data.draw(st.sampled_from([SHAPE, (7, 3), (20, 20)]))
        mode = data.draw(st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"]))
        values = np.random.default_rng(i).integers(0, 60_000, shape)
        image = Image.fromarray(values.astype(deep or np.uint8))
        ending = "tif" if deep in ("int32", "float32") or mode == "CMYK" else "png"
        turn = 3 if data.draw(st.booleans()) else 1
        path = home / ("cat" if i % 2 else "dog") / f"{i:02}.{ending}"
        save(path, image if deep else image.convert("RGB").convert(mode), exif=exif(turn))
    trained = read(home, image_size=size)
    found = new(home, trained.meaning.images)
    assert found.inputs.dtype == trained.x_train.dtype
    np.testing.assert_array_equal(found.inputs, trained.x_train)
    assert found.truth.tolist() == [trained.meaning.classes[k] for k in trained.y_train]
    for path in (home / "cat").iterdir():  # each alone: an image does not depend on others
        at = found.names.index(f"cat/{path.name}")
        np.testing.assert_array_equal(
            new(path, trained.meaning.images).inputs[0], found.inputs[at]
        )
    np.testing.assert_array_equal(
        new(home / "cat", trained.meaning.images).inputs, found.inputs[:6]
    )


def test_new_images_of_another_kind_are_converted_said_or_refused(tmp_path: Path) -> None:
    grey_home, colour = grey(tmp_path), folder(tmp_path / "colour", lambda i: pixels(i, 3))
    found = new(grey_home, read(colour).meaning.images)
    assert not found.doubts
    np.testing.assert_array_equal(found.inputs[6], np.stack([pixels(0)] * 3))
    of_grey = read(grey_home).meaning.images
    found = new(colour, of_grey)
    assert found.inputs.shape == (12, 1, *SHAPE)
    assert found.doubts[0].startswith("12 images with colours, which no image of training has")
    deep = save(tmp_path / "deep.png", pixels(0, dtype=np.uint16))
    with refused("new-image-kind", "deep.png is 16-bit grey", "as grey"):
        new(deep, of_grey)


def test_a_folder_without_classes_and_its_other_files_are_named(tmp_path: Path) -> None:
    reading = read(grey(tmp_path)).meaning.images
    save(tmp_path / "new" / "b.png", pixels(1))
    save(tmp_path / "new" / "a.png", pixels(2))
    (tmp_path / "new" / "list.txt").write_text("a b")
    found = new(tmp_path / "new", reading)
    assert (found.names, found.truth) == (("a.png", "b.png"), None)
    assert found.doubts[0].startswith("left out: 1 file or folder (list.txt)")


def test_the_reading_of_images_is_kept_with_a_study(tmp_path: Path) -> None:
    home = folder(tmp_path, lambda i: pixels(i, 3) if i else pixels(i))
    source = source_of(DatasetSpec(name="images", path=str(home), image_size=5))
    assert source is not None
    source.write(tmp_path / "study")
    shutil.rmtree(home)
    kept = load(source.spec, seed=0, base=tmp_path / "study").meaning
    assert kept == source.arrays(seed=0).meaning
    assert kept.images is not None
    assert (kept.images.kind, kept.images.size) == ("RGB", 5)


def test_images_for_a_network_of_a_table_are_refused_as_such(tmp_path: Path) -> None:
    with refused("images-for-a-table", "pets holds images", "trained on a table"):
        features_of(grey(tmp_path), study(beside(pixels(0).ravel())).meaning.preparation)


# --- arrays and objects in memory


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.float64, np.float16, np.bool_])
def test_arrays_of_images_keep_their_values_and_say_what_their_axes_are(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 3000, (12, 4, 5, 3)).astype(dtype)
    data = source_in_memory(x, ["a", "b"] * 6, {}).arrays(seed=0)
    np.testing.assert_array_equal(data.x_train, x.transpose(0, 3, 1, 2).astype(np.float32))
    assert data.meaning.said[1] == (
        "images: 12 of 4 x 5 values, 3 channels, the last axis; give [n, C, H, W] to change"
    )


def test_values_that_float32_does_not_tell_apart_are_said() -> None:
    x = np.random.default_rng(0).integers(0, 9, (12, 4, 5)) + 10**9
    said = source_in_memory(x, ["a", "b"] * 6, {}).arrays(seed=0).meaning.said
    assert "values up to 1000000008 are int64 and are rounded to float32" in said[2]
    fine = source_in_memory(x - 10**9, ["a", "b"] * 6, {}).arrays(seed=0).meaning.said
    assert len(fine) == len(said) - 1


class Photos:
    """A data set like torchvision's ImageFolder: images of PIL, and numbers of classes."""

    def __init__(self, make: Callable[[int], Image.Image]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        if i >= 12:
            raise IndexError(i)
        return self.make(i), i % 2


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda i: Image.fromarray(pixels(i, 3)), (3, *SHAPE)),
        (lambda i: Image.fromarray(pixels(i, 3)).convert("P"), (3, *SHAPE)),
        (lambda i: Image.fromarray(pixels(i)), (1, *SHAPE)),
        (lambda i: Image.fromarray(pixels(i, dtype=np.uint16)), (1, *SHAPE)),
    ],
)
def test_a_data_set_of_images_in_memory_is_read_as_files_are(
    make: Callable[[int], Image.Image], shape: tuple[int, ...], tmp_path: Path
) -> None:
    data = source_in_memory(Photos(make), None, {}).arrays(seed=0)
    assert data.x_train.shape[1:] == shape
    files = read(folder(tmp_path, make)).x_train  # cat: 1, 3, ...; dog: 0, 2, ...
    np.testing.assert_array_equal(data.x_train, files[[6, 0, 7, 1, 8, 2, 9, 3, 10, 4, 11, 5]])
    given = features_of([make(i) for i in range(12)], None, images=data.meaning.images)
    np.testing.assert_array_equal(given.inputs, data.x_train)
    one = features_of(make(3), None, images=data.meaning.images)
    np.testing.assert_array_equal(one.inputs[0], data.x_train[3])
    pairs = features_of(Photos(make), None, images=data.meaning.images)
    np.testing.assert_array_equal(pairs.inputs, data.x_train)
    assert pairs.truth.tolist() == [0, 1] * 6


def test_images_in_a_series_or_an_array_of_objects_are_read_as_a_list_is() -> None:
    listed, y = [Image.fromarray(pixels(i, 3)) for i in range(12)], ["a", "b"] * 6
    series = pd.Series(listed, index=range(12, 0, -1))
    expected = source_in_memory(listed, y, {}).arrays(seed=0)
    for values in (series, series.to_numpy()):
        data = source_in_memory(values, y, {}).arrays(seed=0)
        np.testing.assert_array_equal(data.x_train, expected.x_train)
        assert data.meaning.said == expected.meaning.said
        found = features_of(values, None, images=data.meaning.images)
        np.testing.assert_array_equal(found.inputs, data.x_train)


def test_values_on_another_scale_than_in_training_are_doubted() -> None:
    low, high = 0.0, 255.0
    assert not [*unlike_range(np.full((2, 1, 2, 2), 200.0), low, high)]
    assert not [*unlike_range(pixels(0)[None, None], low, high)]
    [said] = unlike_range(np.array([[[[0.1, 0.9]]]]), low, high)
    assert "from 0.1 to 0.9" in said
    [said] = unlike_range(np.array([[[[0.0, 255]]]]), 0.0, 1.0)
    assert "from 0 to 255" in said
