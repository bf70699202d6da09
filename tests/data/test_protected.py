"""What version 0.1.0 stored is read with the same inputs bit by bit, or refused in a sentence.

`protected/` was made by commit 52e6435a, the last one of preparations without a version. Of each
table below, `tables.json` in `copies.zip` has the preparation, and the SHA-256 of the inputs of
its training rows and of five rows given to `predict`, 16 digits each. Keys of columns with a
default are left out. The rest are the studies' own copies, and their [dataset]. `inputs.json` has
what `digests` returns of each of `CASES`, 16 digits each.
"""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2
from table_sources import every, source, written

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
from nas_evidence.data.table_columns import Preparation
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import DatasetSpec

FOLDER = Path(__file__).parent / "protected"
MADE = json.loads((FOLDER / "inputs.json").read_text("utf-8"))

# --- tables

N = 24
K = np.arange(N)
X = (K * 7 % 13) / 8 + 0.1
DAYS = pd.Series(pd.date_range("2024-02-01 08:30", periods=N, freq="31h"))


def dates(form: str) -> list[str]:
    return [*DAYS.dt.strftime(form)]


def frame(cells: Any) -> pd.DataFrame:
    cells = every(cells, N) if isinstance(cells, list) else cells
    return pd.DataFrame({"x": X, "c": cells, "y": X + K % 5})


#: The cells of a column, or a table; the name of its file, "" in memory; and its options.
TABLES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "numbers with gaps": ([1.25, None, 3, 0.1], "t.csv", {}),
    "leading zeros": (["007", "012", "003"], "t.csv", {}),
    "codes": (["007", "7", "1.10", "1.1"], "t.csv", {"categorical": ["c"]}),
    "codes and words": (["01", "02", "x3"], "t.tsv", {}),
    "ids beside gaps": (
        pd.array(every([2**53, 2**53 + 1, None], N), "Int64"), "t.csv", {"categorical": ["c"]}),
    "classes with zeros": (
        frame(X).assign(y=every(["007", "7", "012"], N)), "t.csv", {"task": "classification"}),
    "decimal comma": (["1,5", "2,25", "1.234,5"], "semicolons.csv", {}),
    "thousands": (["$1,234.50", "$12", "$7,000", None], "t.csv", {}),
    "per cent": (["12 %", "7 %", "1.5 %"], "t.csv", {}),
    "a unit": (["1.1 ct", "0.9 ct", "2 ct"], "t.csv", {}),
    "brackets": (["(3)", "4", "(5.5)"], "t.csv", {}),
    "two currencies": (["$3", "€4", "$5.5"], "t.csv", {}),
    "ISO dates": ([*dates("%Y-%m-%d")[:-1], None], "t.csv", {}),
    "day first": (dates("%d.%m.%Y"), "t.csv", {}),
    "short years": (dates("%m/%d/%y %H:%M"), "t.csv", {}),
    "twelve hours": (dates("%Y-%m-%d %I:%M %p"), "t.csv", {}),
    "far dates": ([*dates("%Y-%m-%d")[:-1], "9999-12-31"], "t.csv", {}),
    "UTC text": (dates("%Y-%m-%dT%H:%MZ"), "t.csv", {}),
    "offset text": (dates("%Y-%m-%d %H:%M+02:00"), "t.csv", {}),
    "flags": (["True", "False", "TRUE"], "t.csv", {}),
    "flags and a word": (["?", *every(["True", "false"], N)[1:]], "t.csv", {}),
    "words": (["not known", *K[1:]], "t.csv", {}),
    "quotes": (['a "b"', "c, d", "e\nf"], "t.csv", {}),
    "Windows-1252": (["O’Neil", "Köln", "€"], "windows.csv", {}),
    "UTF-16": (["Köln", "Ulm"], "marked.csv", {}),
    "packed": (["u", "v", None], "t.csv.gz", {}),
    "an index": (pd.concat([pd.Series(K * 5 % N, name="Unnamed: 0"), frame(X)], axis=1), "t.csv",
                 {}),
    "Parquet categories": (pd.Categorical(every([1, 2, 5], N)), "t.parquet", {}),
    "Feather": (pd.array(every([1, None, 3], N), "Int64"), "t.feather", {}),
    "JSON lines": ([["a"], ["b"], []], "t.jsonl", {}),
    "JSON records": ([True, False, None], "t.json", {}),
    "ordered categories": (
        pd.Categorical(every(["low", "high"], N), ["low", "high"], ordered=True), "", {}),
    "local time": (DAYS.dt.tz_localize("Europe/Berlin"), "", {}),
    "UTC": (DAYS.dt.tz_localize("UTC"), "", {}),
    "plain dates": (DAYS, "", {}),
    "durations": (pd.to_timedelta(every([90, None, 3600], N), unit="s"), "", {}),
    "nullable": (pd.array(every([True, None, False], N), "boolean"), "", {}),
    "whole numbers of 60 bits": (2**60 + K * 5 % N, "", {}),
    "tiny numbers": (X * 1e-46, "", {}),
    "a Julian date": (2459000.5 + X, "", {}),
    "an array": (np.stack([X, K % 3, np.where(K == 3, np.nan, K)], axis=1), "", {}),
    "an array of text": (np.array([every(["u", "v"], N), every(["1", "2.5", "7"], N)]).T, "", {}),
}  # fmt: skip
HOW: dict[str, dict[str, Any]] = {
    "t.tsv": {"sep": "\t"},
    "semicolons.csv": {"sep": ";", "decimal": ","},
    "windows.csv": {"encoding": "cp1252"},
    "marked.csv": {"encoding": "utf-16"},
}


def made(name: str, folder: Path) -> tuple[Source, Any]:
    """Return a table of `TABLES` as the source of a study, and five rows without the target."""
    data, file, options = TABLES[name]
    if isinstance(data, np.ndarray) and data.ndim == 2:
        return source(data, X, **options), data[3:8]
    data = data if isinstance(data, pd.DataFrame) else frame(data)
    rows = data.drop(columns="y")[3:8]
    if not file:
        return source(data, **options), rows
    how, rows = HOW.get(file, {}), rows.reset_index(drop=True)
    few = written(rows, folder / "few" / file, **how)
    return source(written(data, folder / "all" / file, **how), **options), few


def digest(inputs: Any) -> str:
    """Return the SHA-256 of inputs, float32 [n, d]."""
    found = np.ascontiguousarray(inputs, np.float32)
    return hashlib.sha256(repr(found.shape).encode() + found.tobytes()).hexdigest()[:16]


with ZipFile(FOLDER / "copies.zip") as stored:
    STORED: dict[str, dict[str, Any]] = json.loads(stored.read("tables.json"))
#: What the present version reads otherwise.
REFUSED = {
    "offset text": {"read-otherwise"},
    "local time": {"read-otherwise"},
    "whole numbers of 60 bits": {"read-otherwise", "whole-numbers-that-merge"},
}


def loaded(name: str, folder: Path) -> Any:
    """Return the training inputs of a study's own copy of its data."""
    with ZipFile(FOLDER / "copies.zip") as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(f"{name}/")])
    spec = DatasetSpec.model_validate_json((folder / name / "spec.json").read_text())
    return stored_source(spec, base=folder / name).arrays(seed=0).x_train


#: What a column was stored with where the file has no key.
DEFAULTS = {
    "fill": 0.0, "indicator": False, "categories": [], "part": "", "order": "year", "zone": None,
    "shift": 0.0, "unit": 1.0, "low": None, "high": None, "words": [], "base": 0,
}  # fmt: skip


@pytest.mark.parametrize("door", ["predict", "resume"])
@pytest.mark.parametrize("name", TABLES)
def test_what_was_stored_of_a_table_gives_the_same_inputs(
    name: str, door: str, tmp_path: Path
) -> None:
    stored = STORED[name]

    def inputs() -> Any:
        if door == "resume":
            return loaded(name, tmp_path)
        text = json.dumps(stored | {"columns": [DEFAULTS | one for one in stored["columns"]]})
        preparation = Preparation.from_json(text)
        return features_of(made(name, tmp_path)[1], preparation).inputs

    if codes := REFUSED.get(name):
        with pytest.raises(UserError, match=r"0\.1\.0") as caught:
            inputs()
        assert caught.value.code in codes
        return
    assert digest(inputs()) == stored["few" if door == "predict" else "train"]


# --- data of other kinds

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


def of_path(name: str, path: Path, **keys: Any) -> Source:
    found = source_of(DatasetSpec(name=name, path=str(path), **keys))
    assert found is not None
    return found


def pictures(
    make: Callable[[int], Any], ending: str = "png", **keys: Any
) -> Callable[[Path], Made]:
    return lambda home: of_pictures(home, make, ending, **keys)


def of_pictures(home: Path, make: Callable[[int], Any], ending: str, **keys: Any) -> Made:
    for part, rows in (("train", range(14)), ("test", range(14, 18)), ("new", range(18, 22))):
        for i in rows:
            to = home / part / ("cat" if i % 2 else "dog") / f"{i:02}.{ending}"
            to.parent.mkdir(parents=True, exist_ok=True)
            image, how = make(i), {}
            if isinstance(image, tuple):
                image, how = image
            image = image if isinstance(image, Image.Image) else Image.fromarray(image)
            image.save(to, **how)
    return of_path("images", home, **keys), home / "new"


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
    return of_path("npz", path), x[:5]


def grouped_vectors(home: Path) -> Made:
    x = numbers(0, 40, 4).astype(np.float32)
    path = npz(home, X=x, y=x[:, 0] ** 2, doctor=np.arange(40) // 4)
    return of_path("npz", path, groups="doctor", test_fraction=0.25), x[:5]


def images_in_npz(home: Path) -> Made:
    x = integers(0, 24, 6, 8, 3)
    return of_path("npz", npz(home, x_train=x, y_train=np.arange(24) % 3)), x[:4]


def float_images(home: Path) -> Made:
    x = numbers(0, 24, 6, 8)
    return of_path("npz", npz(home, x_train=x, y_train=np.eye(3)[np.arange(24) % 3])), x[:4]


def on_disk(home: Path) -> Made:
    x = integers(0, 24, 6, 8, 3)
    np.save(home / "x_train.npy", x)
    np.save(home / "y_train.npy", np.arange(24) % 3)
    return of_path("npz", home), x[:4]


def given(data: Any, y: Any = None, new: Any = None, **keys: Any) -> Callable[[Path], Made]:
    return lambda home: (source(data, y, **keys), new)


def pets(*targets: str, **keys: Any) -> Callable[[Path], Made]:
    kept = ["a", "b", "c", "town", *targets]
    frame, new = (table(seed)[kept] for seed in (0, 1))
    return given(frame, None, new, target=",".join(targets), **keys)


def counted(home: Path) -> Made:
    pets = table(0).assign(n=np.arange(40) % 4)
    keys = {"target": "pet", "weights": "n", "class_weight": "balanced"}
    return source(pets, **keys), table(1).assign(n=1)


def in_time(home: Path) -> Made:
    day = pd.date_range("2026-01-01", periods=40, freq="D").astype(str)
    pets = table(0).assign(day=day)
    keys = {"target": "price", "time_column": "day", "test_fraction": 0.25}
    return source(pets, **keys), table(1).assign(day=day)


def pil(home: Path) -> Made:
    images = [Image.fromarray(integers(i, 6, 8, 3)) for i in range(14)]
    return source(images, [*"ab"] * 7, image_size=5), images[:3]


def pairs(home: Path) -> Made:
    x = numbers(0, 30, 4).astype(np.float32)
    return source_in_memory([(x[i], i % 3) for i in range(30)], None, {}), x[:4]


ARRAY = numbers(0, 40, 4)
CASES: dict[str, Callable[[Path], Made]] = {
    "grey images": pictures(lambda i: integers(i, 6, 8)),
    "images of two kinds, resized": pictures(
        lambda i: integers(i, 6 + i % 2, 8, *[3] * (i % 2)), image_size=5
    ),
    "images turned by EXIF": pictures(turned, image_size=7),
    "TIFFs turned by their tag": pictures(turned_tiff, "tif", image_size=7),
    "16-bit images": pictures(lambda i: integers(i, 6, 8, dtype=np.uint16) * 300),
    "16-bit TIFFs, resized": pictures(
        lambda i: integers(i, 6, 8, dtype=np.uint16) * 300, "tif", image_size=5
    ),
    "32-bit images": pictures(lambda i: integers(i, 6, 8, dtype=np.int32) * 9999, "tif"),
    "float images": pictures(lambda i: integers(i, 6, 8) / np.float32(7), "tif"),
    "images of CMYK": pictures(of_mode("CMYK"), "tif"),
    "images with palettes": pictures(of_mode("P"), "gif"),
    "transparent images": pictures(of_mode("RGBA")),
    "images of one bit": pictures(of_mode("1")),
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
    "arrays": given(ARRAY, (ARRAY[:, 0] > 0).tolist(), ARRAY[:5]),
    "arrays and two targets": given(ARRAY, ARRAY[:, :2] ** 2, ARRAY[:5]),
    "arrays and numbered labels": given(ARRAY, np.arange(40) % 3, ARRAY[:5]),
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
    found = digests(CASES[name], tmp_path)
    assert {k: v[:16] if isinstance(v, str) else v for k, v in found.items()} == MADE[name]
