"""Rows for architectures that are trained again are read as the study read its own, or refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import refused

from nas_evidence.data.as_before import ReadBefore, all_rows, other_rows, read_as_before
from nas_evidence.data.source import StoredRows, array_source, source_in_memory, stored_rows
from nas_evidence.spec.study import DatasetSpec

PLACE = "runs/pets"


def pets(n: int = 48, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    weight = generator.normal(10, 4, n).round(2)
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(generator.integers(0, 300, n), "D")
    return pd.DataFrame(
        {
            "weight": weight,
            "town": generator.choice(["rome", "oslo"], n),
            "seen": days.strftime("%Y-%m-%d"),
            "same": 1,
            "pet": np.where(weight > 10, "dog", "cat"),
        }
    )


def before_of(frame: pd.DataFrame, **keys: Any) -> ReadBefore:
    source = source_in_memory(frame, None, {"target": "pet", **keys})
    return ReadBefore.of(source.arrays(seed=0), source.spec, PLACE)


def read(data: Any, y: Any = None, *, before: ReadBefore | None = None) -> Any:
    before = before or before_of(pets())
    source = read_as_before(before, other_rows(before, data, y), seed=0)
    return source.arrays(seed=0)


def test_other_rows_have_the_features_of_the_study_in_its_order_and_numbers_of_their_own() -> None:
    more = pets(60, 1)
    mixed = more[["pet", "same", "seen", "town", "weight"]].assign(new=1.5)
    arrays, plain = read(mixed), source_in_memory(more, None, {"target": "pet"}).arrays(seed=0)
    names = arrays.meaning.preparation.feature_names
    assert names == plain.meaning.preparation.feature_names
    np.testing.assert_array_equal(arrays.x_train, plain.x_train)
    np.testing.assert_array_equal(arrays.mean, plain.mean)
    assert f"columns that {PLACE} has not are left out: new" in arrays.meaning.said


def test_all_rows_are_those_of_training_then_those_of_the_test() -> None:
    before = before_of(pets())
    rows = StoredRows(pets(), pets(12, 1))
    source = read_as_before(before, all_rows(before, rows, "pets.csv"), seed=0)
    arrays = source.arrays(seed=0)
    assert (arrays.n_train, len(arrays.x_test), source.spec.test_path) == (60, 0, None)
    weight = arrays.x_train[:, 0]
    np.testing.assert_allclose(weight, pd.concat([pets(), pets(12, 1)])["weight"], rtol=1e-6)


def test_a_split_off_test_belongs_to_all_rows(tmp_path: Path) -> None:
    source = source_in_memory(pets(), None, {"target": "pet", "test_fraction": 0.25})
    source.write(tmp_path)
    before = ReadBefore.of(source.arrays(seed=0), source.spec, PLACE)
    rows = stored_rows(source.spec, base=tmp_path)
    again = read_as_before(before, all_rows(before, rows, "pets.csv"), seed=0)
    assert source.arrays(seed=0).n_train == 36
    assert (again.arrays(seed=0).n_train, again.spec.test_fraction) == (48, None)


def test_a_column_that_would_be_left_out_now_stays_what_it_was() -> None:
    numbered = pets().assign(weight=np.arange(48) * 1.0)  # looks like a row number
    prepared = read(numbered).meaning.preparation
    assert "weight" in prepared.feature_names
    one_town = read(pets().assign(town="rome")).meaning.preparation
    assert "town = rome" in one_town.feature_names


def test_categories_that_are_new_are_learned_and_told() -> None:
    more = pets()
    more.loc[:9, "town"] = "bern"
    arrays = read(more)
    assert "town = bern" in arrays.meaning.preparation.feature_names


def half_of_words(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(weight=np.where(np.arange(48) % 2, frame["weight"].map(str), "heavy"))


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        (lambda f: f.drop(columns="town"), "columns-missing", ["'town'"]),
        (lambda f: f.assign(weight="heavy"), "column-not-numbers", ["'weight'", "'heavy'"]),
        (half_of_words, "refit-column-unlike", ["'weight'", "'heavy'"]),
        (lambda f: f.assign(town=range(48)), "refit-column-unlike", ["'town'", "oslo"]),
        (lambda f: f.assign(seen=3.5), "refit-other-column", ["'seen'", "dates"]),
        (lambda f: f.assign(pet=["cow", *f["pet"][1:]]), "refit-other-classes", ["cow", "cat"]),
        (lambda f: f[f["pet"] == "dog"], "one-class", []),
        (lambda f: f.drop(columns="pet"), "no-such-column", ["'pet'"]),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(
    change: Callable[[pd.DataFrame], pd.DataFrame], code: str, told: list[str]
) -> None:
    with refused(code, *told):
        read(change(pets()))


def test_a_class_without_a_row_is_refused() -> None:
    three = pets()
    three.loc[:5, "pet"] = "cow"
    with refused("refit-other-classes", "cow"):
        read(pets(), before=before_of(three))


def test_rows_without_a_target_are_left_out_of_a_refit() -> None:
    frame = pets(60, 1)
    frame.loc[[3, 9], "pet"] = None
    arrays, kept = read(frame), read(frame.drop(index=[3, 9]))
    np.testing.assert_array_equal(arrays.x_train, kept.x_train)
    np.testing.assert_array_equal(arrays.y_train, kept.y_train)
    assert "left out: 2 of 60 rows, as they have no target; the first is row 3" in (
        arrays.meaning.said
    )


def test_targets_may_be_given_beside_a_table() -> None:
    frame = pets(60, 1)
    arrays = read(frame.drop(columns="pet"), frame["pet"])
    np.testing.assert_array_equal(arrays.y_train, read(frame).y_train)


def test_the_scale_of_the_target_and_the_columns_of_rows_stay() -> None:
    before = before_of(
        pets().assign(price=pets()["weight"] ** 2 + 1, owner=[*range(12)] * 4),
        target="price", groups="owner", target_scale="log", drop=["pet"],
    )  # fmt: skip
    more = pets(60, 1).assign(price=pets(60, 1)["weight"] ** 2 + 1, owner=[*range(12)] * 5)
    arrays = read(more, before=before)
    assert arrays.scale.name == "log"
    assert arrays.units.count == 12
    assert not any("pet" in name for name in arrays.meaning.preparation.feature_names)
    with refused("refit-lacks-column", "'owner'"):
        all_rows(before, StoredRows(more, more.drop(columns="owner")), "pets.csv")


def test_arrays_keep_their_columns_and_images_their_shape() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(30, 3)), np.arange(30) % 2
    x[:, 1] = 4  # left out
    vectors = source_in_memory(x, y, {})
    before = ReadBefore.of(vectors.arrays(seed=0), vectors.spec, PLACE)
    more = generator.normal(size=(40, 3))
    assert read(more, np.arange(40) % 2, before=before).input_shape == (2,)
    with refused("refit-other-shape", "[4]", "[3]"):
        read(np.zeros((40, 4)), np.arange(40) % 2, before=before)
    with refused("refit-without-y"):
        read(more, before=before)

    images = {"x_train": np.zeros((20, 5, 5), np.uint8), "y_train": np.arange(20) % 2}
    images["x_train"][::2] = 9
    spec = DatasetSpec(name="npz", path="data", task="classification")
    source = array_source(images, spec, given="images")
    before = ReadBefore.of(source.arrays(seed=0), source.spec, PLACE)
    joined = {**images, "x_test": images["x_train"][:4], "y_test": images["y_train"][:4]}
    again = all_rows(before, StoredRows(arrays=joined), "images")
    assert read_as_before(before, again, seed=0).arrays(seed=0).n_train == 24
    with refused("refit-other-shape", "[1, 6, 6]", "[1, 5, 5]"):
        read(np.zeros((20, 6, 6), np.uint8), np.arange(20) % 2, before=before)
