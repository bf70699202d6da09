"""A table becomes features that can be applied to any other table; what cannot is one sentence."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import refused

from nas_evidence.data import load
from nas_evidence.data.preparation import inputs_of, prepare
from nas_evidence.data.reading import read_frame
from nas_evidence.data.table_columns import OTHER, Column, Preparation
from nas_evidence.spec.study import DatasetSpec


def frame(n: int = 40) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": generator.normal(50, 10, n),
            "town": generator.choice(["rome", "oslo", "bern"], n),
            "rooms": generator.integers(1, 5, n),
            "new": generator.random(n) < 0.5,
        }
    )
    table.loc[1, "size"] = np.nan
    table.loc[2, "town"] = None
    return table.assign(price=np.linspace(1.5, 9, n))


def prepared(table: pd.DataFrame, **options: Any) -> tuple[Preparation, list[str]]:
    given = {"drop": (), "categorical": (), "numeric": (), "where": "t.csv"}
    preparation, said = prepare(table, **(given | options))
    return preparation, [*map(str, said)]


def test_features_are_those_of_the_column_transformer_of_scikit_learn() -> None:
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    table = pd.DataFrame(
        {
            "age": [3.0, np.nan, 5.0, 8.0],
            "town": ["a", "b", "b", "c"],
            "size": [1, 2, 3, 4],
            "kind": ["x", "x", "y", "y"],
        }
    )
    columns = (
        Column("age", "number", fill=4.0, indicator=True),
        Column("town", "category", categories=("b", "a")),
        Column("size", "number", fill=2.0),
        Column("kind", "category", categories=("x", "y")),
    )
    known = table.assign(town=table["town"].replace("c", OTHER))
    one_hot = OneHotEncoder(categories=[["b", "a", OTHER], ["x", "y", OTHER]], sparse_output=False)
    fill = FunctionTransformer(pd.DataFrame.fillna, kw_args={"value": {"age": 4.0, "size": 2.0}})
    expected = ColumnTransformer(
        [
            ("numbers", fill, ["age", "size"]),
            ("missing", MissingIndicator(features="all"), ["age"]),
            ("categories", one_hot, ["town", "kind"]),
        ],
        sparse_threshold=0,
    ).fit_transform(known)
    np.testing.assert_array_equal(inputs_of(Preparation(columns), table, "t.csv"), expected)


def test_features_are_what_their_names_say() -> None:
    table = frame().drop(columns="price")
    preparation, said = prepared(table)
    x = pd.DataFrame(inputs_of(preparation, table, "t.csv"), columns=preparation.feature_names)
    median = table["size"].median()
    size = next(column for column in preparation.columns if column.name == "size")
    np.testing.assert_allclose(x["size"] + size.shift, table["size"].fillna(median), rtol=1e-6)
    assert x["size is missing"].tolist() == table["size"].isna().astype(float).tolist()
    for town in ("rome", "oslo", "bern"):
        assert x[f"town = {town}"].tolist() == (table["town"] == town).astype(float).tolist()
    assert x["town = (missing)"].sum() == 1
    assert x[f"town = {OTHER}"].sum() == 0
    assert preparation.scaled.sum() == 3
    assert said[0] == (
        "features: 3 numeric columns and 1 of categories, "
        "missing values in 1 filled with the median"
    )


def test_other_tables_may_have_unseen_categories_missing_values_and_more_columns() -> None:
    table = frame().drop(columns="price")
    preparation, _ = prepared(table)
    other = pd.DataFrame({"new": [True], "rooms": [None], "town": ["lima"], "size": [3], "z": [1]})
    x = dict(
        zip(preparation.feature_names, inputs_of(preparation, other, "o.csv")[0], strict=True)
    )
    assert x[f"town = {OTHER}"] == 1
    shifts = {column.name: column.shift for column in preparation.columns}
    assert x["rooms"] + shifts["rooms"] == table["rooms"].median()
    assert x["size"] + shifts["size"] == pytest.approx(3, abs=1e-5)
    with refused("columns-missing", "o.csv", "'town'"):
        inputs_of(preparation, other.drop(columns="town"), "o.csv")
    with refused("column-not-numbers", "'size'", "o.csv", "'big'"):
        inputs_of(preparation, other.assign(size="big"), "o.csv")


def test_a_preparation_travels_as_json() -> None:
    table = frame().drop(columns="price")
    preparation, _ = prepared(table)
    again = Preparation.from_json(preparation.to_json())
    assert again == preparation
    np.testing.assert_array_equal(inputs_of(again, table, "t"), inputs_of(preparation, table, "t"))


@pytest.mark.parametrize(
    ("column", "options", "says"),
    [
        (list(range(40)), {}, "'c' is left out: it looks like a row number"),
        ([7] * 40, {}, "'c' is left out: it has one value only"),
        ([None] * 40, {}, "'c' is left out: it is empty"),
        ([f"name {i}" for i in range(40)] * 2, {}, None),
        ([f"name {i}" for i in range(120)], {}, "has 120 different texts in 120 rows"),
        ([*["1.5", "2"] * 19, "?", "n/a"], {}, "read as numbers and '\\?', 'n/a' as missing"),
    ],
)
def test_columns_are_decided_and_the_decision_is_said(
    column: list[Any], options: dict[str, Any], says: str | None
) -> None:
    table = pd.DataFrame({"a": np.linspace(0, 1, len(column)) ** 2, "c": column})
    _, said = prepared(table, **options)
    text = " ".join(said)
    if says is None:
        assert "'c'" not in text
    else:
        assert re.search(says, text), text


def test_flags_change_what_was_decided() -> None:
    table = pd.DataFrame({"id": range(20), "code": [1, 2] * 10, "a": np.random.rand(20)})
    preparation, _ = prepared(table, numeric=["id"], categorical=["code"], drop=["a"])
    assert preparation.feature_names == ("id", "code = 1", "code = 2", f"code = {OTHER}")


@pytest.mark.parametrize(
    ("column", "options", "says"),
    [
        ([1.0, np.inf] * 20, {}, "'c' of t.csv must be finite in float32, but row 1"),
        (["a", "b"] * 20, {"drop": ["d"]}, "`drop` names the column 'd'"),
        (["a", "b"] * 20, {"drop": ["cc"]}, "; did you mean 'c'"),
        (["a", "b"] * 20, {"numeric": ["c"]}, "'c' of t.csv has no number"),
        (["a", "b"] * 20, {"numeric": ["c"], "categorical": ["c"]}, "cannot be both"),
    ],
)
def test_columns_that_cannot_be_features_are_one_sentence(
    column: Any, options: dict[str, Any], says: str
) -> None:
    table = pd.DataFrame({"a": np.random.rand(40), "c": column})
    with pytest.raises(ValueError, match=says):
        prepared(table, **options)


def spec(path: Path, **keys: Any) -> DatasetSpec:
    return DatasetSpec(name="table", path=str(path), **({"target": "price"} | keys))


def test_numbers_are_scaled_by_the_training_rows_and_features_of_0_and_1_are_not(
    tmp_path: Path,
) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    data = load(spec(tmp_path / "t.csv", test_fraction=0.25), seed=0)
    assert (data.n_train, len(data.x_test)) == (30, 10)
    scaled = data.meaning.preparation.scaled
    np.testing.assert_allclose(data.mean[scaled], data.x_train.mean(0)[scaled], rtol=1e-5)
    assert (data.mean[~scaled] == 0).all()
    assert (data.std[~scaled] == 1).all()


def test_the_split_is_seeded_and_stratified_and_without_it_there_is_no_test(
    tmp_path: Path,
) -> None:
    table = frame().assign(price=["cheap", "dear", "cheap", "cheap"] * 10)
    table.to_parquet(tmp_path / "t.parquet")
    path = tmp_path / "t.parquet"
    one, same, other = (
        load(spec(path, test_fraction=0.2), seed=seed).x_test for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    split = load(spec(path, test_fraction=0.2), seed=1)
    assert np.bincount(split.y_test).tolist() == [6, 2]
    whole = load(spec(path), seed=1)
    assert (len(whole.x_test), len(whole.y_test), whole.n_train) == (0, 0, 40)


@pytest.mark.parametrize("key", ["index_columns", "pandas_type"])
def test_parquet_whose_notes_of_pandas_have_a_flipped_bit_is_read(
    key: str, tmp_path: Path
) -> None:
    path, table = tmp_path / "t.parquet", pa.Table.from_pandas(frame())
    notes = table.schema.metadata[b"pandas"].replace(key.encode(), b"q" + key[1:].encode())
    pq.write_table(table.replace_schema_metadata({"pandas": notes}), path)
    assert [*read_frame(path).columns] == [*frame().columns]


@pytest.mark.parametrize(
    ("content", "keys", "says"),
    [
        (None, {}, r"needs the file t\.csv .*--data-root"),
        ("", {}, "it is empty; a table has a line of names"),
        ("a,price\n" + "1,2024-01-31\n2,2024-02-01\n" * 20, {}, "holds dates; replace them"),
        ("a,price\n" + "1,2\n" * 5, {}, "has 5 rows, but a study needs at least 10"),
        ("a,prices\n" + "1,2\n" * 20, {}, "no column 'price'; did you mean 'prices'"),
        ("a,price\n" + "1,2\n" * 20, {}, "every training row has 2"),
        (
            "a,price\n1,2\n\n3,4,5\n",
            {},
            "line 4 has 3 cells, but the line of names has 2; name each",
        ),
        ("a,price\n" + "1,2\n1,3\n" * 20, {}, "at least one column besides the target"),
        ("a,price\n" + "1,2\n3,3\n" * 20, {"test_fraction": 0.99}, "leaves 0 for training"),
    ],
)
def test_tables_that_cannot_be_used_are_one_sentence(
    content: str | None, keys: dict[str, Any], says: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ValueError, match=says):
        load(spec(tmp_path / "t.csv", **keys), seed=0)
