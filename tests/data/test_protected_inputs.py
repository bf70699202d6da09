"""Inputs of studies and exports that version 0.1.0 made at 52e6435a stay what they were.

`protected/inputs.json` holds the digests that this commit gave. It is made so:
PYTHONPATH=CHECKOUT python tests/data/test_protected_inputs.py, with the tree of that commit.
"""

import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.as_before import ReadBefore, all_rows, other_rows, read_as_before
from nas_evidence.data.digest import data_digest
from nas_evidence.data.given import features_of
from nas_evidence.data.source import (
    Source,
    source_in_memory,
    source_of,
    stored_rows,
    stored_source,
)
from nas_evidence.spec.study import DatasetSpec

MADE = Path(__file__).parent / "protected" / "inputs.json"
#: What is given to a study, and new data for it, if they can be of its kind.
Made = tuple[Source, Any]


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, shape)


def integers(seed: int, *shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 200, shape).astype(dtype)


def table(seed: int, n: int = 40) -> pd.DataFrame:
    x = numbers(seed, n, 3)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(town=["rome", "oslo"] * (n // 2))
    frame.loc[::7, "b"] = np.nan
    price, size = np.exp(x[:, 0]) + 1, x[:, 1] - x[:, 2]
    return frame.assign(pet=np.where(x[:, 0] > 0, "dog", "cat"), price=price, size=size)


def source(name: str, path: Path, **keys: Any) -> Source:
    found = source_of(DatasetSpec(name=name, path=str(path), **keys))
    assert found is not None
    return found


def pictures(home: Path, make: Callable[[int], Any], ending: str = "png", **keys: Any) -> Made:
    for part, rows in (("train", range(14)), ("test", range(14, 18)), ("new", range(18, 22))):
        for i in rows:
            to = home / part / ("cat" if i % 2 else "dog") / f"{i:02}.{ending}"
            to.parent.mkdir(parents=True, exist_ok=True)
            image, how = make(i), {}
            if isinstance(image, tuple):
                image, how = image
            image = image if isinstance(image, Image.Image) else Image.fromarray(image)
            image.save(to, **how)
    return source("images", home, **keys), home / "new"


def turned(i: int) -> tuple[Image.Image, dict[str, Any]]:
    exif = Image.Exif()
    exif[0x0112] = 1 + i % 4
    return Image.fromarray(integers(i, 6, 8, 3)), {"exif": exif}


def turned_tiff(i: int) -> tuple[Image.Image, dict[str, Any]]:
    tags = ImageFileDirectory_v2()
    tags[274] = 1 + i % 4
    return Image.fromarray(integers(i, 6, 8, dtype=np.float32)), {"tiffinfo": tags}


def of_mode(mode: str) -> Callable[[int], Image.Image]:
    def make(i: int) -> Image.Image:
        if mode == "RGBA":
            return Image.fromarray(integers(i, 6, 8, 4))
        return Image.fromarray(integers(i, 6, 8, 3)).convert(mode)

    return make


def npz(home: Path, **arrays: Any) -> Path:
    np.savez(home / "own.npz", **arrays)
    return home / "own.npz"


def idx(home: Path, folder: str, zipped: bool) -> None:
    raw = home / folder / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", 30), ("t10k", 10)):
        for what, values in (
            ("images-idx3", integers(n, n, 28, 28)),
            ("labels-idx1", np.arange(n, dtype=np.uint8) % 10),
        ):
            shape = b"".join(int(k).to_bytes(4, "big") for k in values.shape)
            content = (0x0800 + values.ndim).to_bytes(4, "big") + shape + values.tobytes()
            name = f"{part}-{what}-ubyte"
            if zipped:
                (raw / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (raw / name).write_bytes(content)


def named(name: str, home: Path, **keys: Any) -> Source:
    return stored_source(DatasetSpec(name=name, **keys), data_root=home)


def mnist(home: Path) -> Made:
    idx(home, "MNIST", zipped=True)
    return named("mnist", home, max_train=20), integers(3, 5, 28, 28)


def fashion(home: Path) -> Made:
    idx(home, "FashionMNIST", zipped=False)
    return named("fashion_mnist", home), integers(3, 5, 28, 28)


def vectors(home: Path) -> Made:
    x = numbers(0, 40, 4)
    x[3, 1] = np.nan
    y = np.array(["no", "yes"])[np.arange(40) % 2]
    path = npz(home, x_train=x, y_train=y, x_test=x[:6] + 1, y_test=y[:6])
    return source("npz", path), x[:5]


def grouped_vectors(home: Path) -> Made:
    x = numbers(0, 40, 4).astype(np.float32)
    path = npz(home, X=x, y=x[:, 0] ** 2, doctor=np.arange(40) // 4)
    return source("npz", path, groups="doctor", test_fraction=0.25), x[:5]


def images_in_npz(home: Path) -> Made:
    x = integers(0, 24, 6, 8, 3)
    return source("npz", npz(home, x_train=x, y_train=np.arange(24) % 3)), x[:4]


def float_images(home: Path) -> Made:
    x = numbers(0, 24, 6, 8)
    return source("npz", npz(home, x_train=x, y_train=np.eye(3)[np.arange(24) % 3])), x[:4]


def on_disk(home: Path) -> Made:
    x = integers(0, 24, 6, 8, 3)
    np.save(home / "x_train.npy", x)
    np.save(home / "y_train.npy", np.arange(24) % 3)
    return source("npz", home), x[:4]


def given(data: Any, y: Any = None, new: Any = None, **keys: Any) -> Callable[[Path], Made]:
    return lambda home: (source_in_memory(data, y, keys), new)


def pets(*targets: str, **keys: Any) -> Callable[[Path], Made]:
    kept = ["a", "b", "c", "town", *targets]
    frame, new = (table(seed)[kept] for seed in (0, 1))
    return given(frame, None, new, target=",".join(targets), **keys)


def counted(home: Path) -> Made:
    frame = table(0).assign(n=np.arange(40) % 4)
    keys = {"target": "pet", "weights": "n", "class_weight": "balanced"}
    return source_in_memory(frame, None, keys), table(1).assign(n=1)


def in_time(home: Path) -> Made:
    day = pd.date_range("2026-01-01", periods=40, freq="D").astype(str)
    frame = table(0).assign(day=day)
    keys = {"target": "price", "time_column": "day", "test_fraction": 0.25}
    return source_in_memory(frame, None, keys), table(1).assign(day=day)


def pil(home: Path) -> Made:
    images = [Image.fromarray(integers(i, 6, 8, 3)) for i in range(14)]
    return source_in_memory(images, [*"ab"] * 7, {"image_size": 5}), images[:3]


def pairs(home: Path) -> Made:
    x = numbers(0, 30, 4).astype(np.float32)
    return source_in_memory([(x[i], i % 3) for i in range(30)], None, {}), x[:4]


X = numbers(0, 40, 4)
CASES: dict[str, Callable[[Path], Made]] = {
    "grey images": lambda home: pictures(home, lambda i: integers(i, 6, 8)),
    "images of two kinds, resized": lambda home: pictures(
        home, lambda i: integers(i, 6 + i % 2, 8, *[3] * (i % 2)), image_size=5
    ),
    "images turned by EXIF": lambda home: pictures(home, turned, image_size=7),
    "TIFFs turned by their tag": lambda home: pictures(home, turned_tiff, "tif", image_size=7),
    "16-bit images": lambda home: pictures(
        home, lambda i: integers(i, 6, 8, dtype=np.uint16) * 300
    ),
    "16-bit TIFFs, resized": lambda home: pictures(
        home, lambda i: integers(i, 6, 8, dtype=np.uint16) * 300, "tif", image_size=5
    ),
    "32-bit images": lambda home: pictures(
        home, lambda i: integers(i, 6, 8, dtype=np.int32) * 9999, "tif"
    ),
    "float images": lambda home: pictures(
        home, lambda i: integers(i, 6, 8) / np.float32(7), "tif"
    ),
    "images of CMYK": lambda home: pictures(home, of_mode("CMYK"), "tif"),
    "images with palettes": lambda home: pictures(home, of_mode("P"), "gif"),
    "transparent images": lambda home: pictures(home, of_mode("RGBA")),
    "images of one bit": lambda home: pictures(home, of_mode("1")),
    "images of PIL": pil,
    "digits": lambda home: (named("digits", home, max_train=200), None),
    "diabetes": lambda home: (named("diabetes", home), numbers(0, 4, 10)),
    "mnist": mnist,
    "fashion_mnist": fashion,
    "vectors": vectors,
    "grouped vectors": grouped_vectors,
    "images in npz": images_in_npz,
    "float images in npz": float_images,
    "images on disk": on_disk,
    "pairs": pairs,
    "arrays": given(X, (X[:, 0] > 0).tolist(), X[:5]),
    "arrays and two targets": given(X, X[:, :2] ** 2, X[:5]),
    "arrays and numbered labels": given(X, np.arange(40) % 3, X[:5]),
    "arrays of integers": given(
        integers(0, 40, 3, dtype=np.int64), integers(1, 40) / 7, integers(2, 4, 3)
    ),
    "labels as text": pets("pet"),
    "real target": pets("price"),
    "real target on a scale": pets("price", target_scale="log"),
    "two targets": pets("price", "size", test_fraction=0.25),
    "groups": pets("pet", groups="town", task="classification"),
    "weights": counted,
    "times": in_time,
}


def digests(make: Callable[[Path], Made], home: Path) -> dict[str, Any]:
    """Return what a study of the data holds, and what it makes of new data and of all rows."""
    (home / "data").mkdir()
    (home / "study").mkdir()
    data, new = make(home / "data")
    arrays = data.arrays(seed=0)
    found = {"search": data_digest(arrays), "content": data.spec.content}
    found["classes"] = [*map(str, arrays.meaning.classes)]
    if data.files:
        data.write(home / "study")
        again = stored_source(data.spec, base=home / "study").arrays(seed=0)
        found["resume"] = data_digest(again)
        before = ReadBefore.of(arrays, data.spec, "runs/pets")
        rows = stored_rows(data.spec, base=home / "study")
        found["refit"] = _again(before, all_rows(before, rows, "all"))
        if new is not None and isinstance(new, pd.DataFrame | Path):
            found["refit on new rows"] = _again(before, other_rows(before, new))
    if new is not None:
        given = features_of(
            new,
            arrays.meaning.preparation,
            target=",".join(arrays.meaning.targets) or None,
            weights=data.spec.weights,
            images=arrays.meaning.images,
        )
        known = given.labelled()
        found["predict"] = _digest(given.inputs)
        found["evaluate"] = None if known is None else _digest(known.inputs, known.truth)
    return found


def _again(before: ReadBefore, source: Source) -> str:
    return data_digest(read_as_before(before, source, seed=0).arrays(seed=0))


def _digest(x: Any, y: Any = ()) -> str:
    zeros = np.zeros(1, np.float32)
    y = np.array([str(one) for one in np.ravel(y)])
    empty = (x[:0], y[:0])
    return data_digest(
        ArrayData("new", x, y, *empty, "labels", 1, x.shape[1:], zeros, zeros, zeros, zeros)
    )


@pytest.mark.parametrize("name", CASES)
def test_inputs_of_earlier_studies_are_the_same_bit_by_bit(name: str, tmp_path: Path) -> None:
    assert digests(CASES[name], tmp_path) == json.loads(MADE.read_text("utf-8"))[name]


def _made() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, make in CASES.items():
        with tempfile.TemporaryDirectory() as home:
            yield name, digests(make, Path(home))


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(found)}" for name, found in _made())
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
