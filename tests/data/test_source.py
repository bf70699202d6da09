"""Your data as a study keeps them: stored once, found again, and refused if changed."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import refused
from PIL import Image

from nas_evidence.data import load
from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.exact_text import read_csv
from nas_evidence.data.source import array_source, source_of, table_source
from nas_evidence.spec.study import DatasetSpec

NAMES = ("x_train", "y_train", "x_test", "y_test", "mean", "std")


def assert_equal(one: ArrayData, other: ArrayData) -> None:
    for name in NAMES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.meaning == other.meaning


def table(n: int = 30) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {"a": generator.normal(size=n), "b": ["x", "y", None] * (n // 3), "y": [1, 2] * (n // 2)}
    )


def images(folder: Path, size: int = 6) -> Path:
    generator = np.random.default_rng(0)
    for i in range(24):
        home = folder / "pets" / ("cat" if i % 2 else "dog")
        home.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (size + (i == 0), size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(home / f"{i:02}.png")
    return folder / "pets"


def sources(folder: Path) -> list[Any]:
    table().to_csv(folder / "t.csv", index=False)
    np.savez(folder / "a.npz", x=np.random.rand(30, 3), y=["p", "q"] * 15)
    asked = [
        DatasetSpec(name="table", path="t.csv", target="y", test_fraction=0.2),
        DatasetSpec(name="npz", path="a.npz", test_fraction=0.2),
        DatasetSpec(name="images", path=str(images(folder)), image_size=5, test_fraction=0.25),
    ]
    return [source_of(spec, base=folder) for spec in asked]


def test_what_a_study_keeps_loads_as_the_preview_was(tmp_path: Path) -> None:
    for i, source in enumerate(sources(tmp_path)):
        study = tmp_path / f"study{i}"
        source.write(study)
        preview = source.arrays(seed=1)
        assert len(preview.x_test)
        assert_equal(load(source.spec, seed=1, base=study), preview)
        moved = study.rename(tmp_path / f"elsewhere{i}") if study.exists() else study
        assert_equal(load(source.spec, seed=1, base=moved), preview)


def test_changed_data_are_refused_by_name(tmp_path: Path) -> None:
    given = sources(tmp_path)
    for i, source in enumerate(given):
        source.write(tmp_path / f"study{i}")
    table(36).to_parquet(tmp_path / "study0" / "data" / "train.parquet")
    np.savez(tmp_path / "a.npz", x=np.random.rand(30, 3), y=["p", "q"] * 15)
    np.save(tmp_path / "study2" / "data" / "y_train.npy", np.arange(24) % 2)
    own = "kept-data-lost"  # the study's own copies
    for i, (name, code) in enumerate(
        (("train.parquet", own), ("a.npz", "data-changed"), ("data", own))
    ):
        with refused(code, name):
            load(given[i].spec, seed=0, base=tmp_path / f"study{i}")


def test_the_hash_is_of_the_values_and_not_of_the_file(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "t.csv", index=False)
    read_csv(tmp_path / "t.csv").to_parquet(tmp_path / "t.parquet")
    found = [
        source_of(DatasetSpec(name="table", path=name, target="y"), base=tmp_path)
        for name in ("t.csv", "t.parquet")
    ]
    assert found[0].spec == found[1].spec
    other = table_source(table().assign(a=0.0), None, found[0].spec, given="other")
    assert other.spec.content != found[0].spec.content


def picture(size: tuple[int, int] = (40, 40), kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]


def with_size(width: int, height: int) -> bytes:
    """A PNG file whose head, with a right checksum, says that it has this size."""
    content = picture()
    head = b"IHDR" + struct.pack(">II", width, height) + content[24:29]
    return content[:12] + head + struct.pack(">I", zlib.crc32(head)) + content[33:]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (picture()[:-60], "cannot be read as an image: .*truncated.*; remove it, repair it"),
        (flipped(picture(), 2000), "cannot be read as an image: .*; remove it, repair it"),
        (picture(kind="TIFF")[:-400], "cannot be read as an image"),
        (picture(kind="JPEG")[:-400], "cannot be read as an image"),
        (with_size(60_000, 60_000), "exceeds limit of [0-9]+ pixels"),
        (with_size(13_000, 13_000), "exceeds limit of [0-9]+ pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF", "cannot identify image file"),
        (b"", "cannot identify image file"),
    ],
)
def test_a_damaged_huge_or_disguised_picture_is_named(
    content: bytes, why: str, tmp_path: Path
) -> None:
    (images(tmp_path) / "cat" / "bad.png").write_bytes(content)
    spec = DatasetSpec(name="images", path="pets", image_size=5)
    with pytest.raises(ValueError, match=rf"pets/cat/bad\.png .*{why}"):
        source_of(spec, base=tmp_path)


def test_a_path_is_relative_to_the_study_file_and_else_as_before_to_the_folder_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    table().to_csv(tmp_path / "there" / "t.csv", index=False)
    monkeypatch.chdir(tmp_path / "here")
    spec = DatasetSpec(name="table", path="t.csv", target="y")
    assert load(spec, seed=0, base=tmp_path / "there").n_train == 30
    table(60).to_csv(tmp_path / "here" / "t.csv", index=False)
    assert load(spec, seed=0, base=tmp_path / "there").n_train == 30
    (tmp_path / "there" / "t.csv").unlink()
    assert load(spec, seed=0, base=tmp_path / "there").n_train == 60


def test_arrays_of_python_objects_are_text_numbers_or_one_sentence() -> None:
    x = np.random.rand(10, 2)
    spec = DatasetSpec(name="npz", path="data")
    y = np.array(["a", "b"] * 5, dtype=object)
    assert array_source({"x_train": x, "y_train": y}, spec, given="X").arrays(
        seed=0
    ).meaning.classes == ("a", "b")
    with refused("array-of-objects", "x_train", "X"):
        array_source(
            {"x_train": np.array([["a"], [1]], dtype=object), "y_train": y}, spec, given="X"
        )
