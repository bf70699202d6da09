"""The same table is the same study from every source, or what was given is no table."""

import json
import unicodedata
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from messages import refused
from scipy import sparse
from table_sources import (
    U,
    Y,
    Z,
    beside,
    every,
    few,
    new,
    prepared,
    said,
    same,
    source,
    study,
    written,
)

from nas_evidence.data.given import features_of
from nas_evidence.data.reading import MOST_CELLS, plain
from nas_evidence.data.source import source_of
from nas_evidence.spec.study import DatasetSpec

N = 24
BASE = pd.DataFrame({"x": Z[:60], "y": Y[:60]})


class Streams:
    """What speaks Arrow and nothing else."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.table = pa.Table.from_pandas(frame)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Converts(Streams):
    """What polars offers: a table that converts itself, which loses digits of integers."""

    def to_pandas(self) -> pd.DataFrame:
        return self.table.to_pandas()


class Unconverted:
    """What converts itself with a package that is not there."""

    def to_pandas(self) -> pd.DataFrame:
        raise ModuleNotFoundError("pyarrow is required")


class Lazy:
    """What a LazyFrame offers."""

    def collect_schema(self) -> None:
        """Not the rows."""


# --- one study, whatever the source


def people() -> pd.DataFrame:
    """Return a table of every kind of column that all formats hold, with gaps."""
    generator = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "size": generator.normal(170, 9, N).round(2),
            "mass": generator.normal(70, 12, N).round(3),
            "town": generator.choice(["rome", "Köln, am Rhein", 'the "hague"', "a\nb"], N),
            "since": pd.date_range("2024-01-31", periods=N, freq="37D").strftime("%Y-%m-%d"),
            "born": (2459000.5 + generator.uniform(0, 9, N)).round(4),
            "code": generator.choice(["01", "02", "x3"], N),
            "count": pd.array(generator.integers(0, 9, N), "Int64"),
            "id": pd.array(every([2**53 + 1, 2**53, 2**53 + 3, None], N), "Int64"),
            "seen": [f"2024-0{1 + i % 9}-01 10:00:00+0{1 + i % 2}:00" for i in range(N)],
            "member": generator.choice([True, False], N).astype(object),
            "paid": [f"${1000 + 7 * i}" for i in range(N)],
            "share": [f"{i * i % 17} %" for i in range(N)],
        }
    )
    frame.loc[2, ["mass", "count"]] = np.nan
    frame.loc[4, "member"] = None
    return frame.assign(price=(frame["size"] * 2.5).round(2))


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON has them."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [*plain.to_dict("records")]


PEOPLE = people()
FILES: dict[str, dict[str, Any]] = {
    "t.csv": {},
    "t.tsv": {"sep": "\t"},
    "t.txt": {"sep": "|"},
    "utf-16.csv": {"encoding": "utf-16"},
    "commas.csv": {"sep": ";", "decimal": ","},
    "t.csv.gz": {},
    "commas.csv.xz": {"sep": ";", "decimal": ","},
    "t.tsv.bz2": {"sep": "\t"},
    "t.csv.zip": {},
    "t.parquet": {},
    "t.feather": {},
}
SOURCES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "frame": lambda frame: frame,
    "records": rows_of,
    "columns": lambda frame: {name: [*frame[name]] for name in frame},
    "polars": lambda frame: pytest.importorskip("polars").from_pandas(frame),
    "pyarrow": pa.Table.from_pandas,
    "speaks Arrow": Streams,
    "converts itself": Converts,
    "duckdb": duckdb.from_df,
    "nullable": pd.DataFrame.convert_dtypes,
    "types of Arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "categories": lambda frame: frame.astype({"town": "category"}),
    "numpy": lambda frame: frame[["size", "born"]].to_numpy(),
}
_JSON: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "t.jsonl": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
    "records.json": json.dumps,
    "columns.json": lambda rows: json.dumps(
        {name: [row[name] for row in rows] for name in rows[0]}
    ),
}


def placed(frame: pd.DataFrame, name: str, folder: Path) -> Any:
    """Return rows in memory, or the path of a file with them."""
    if name in SOURCES:
        return SOURCES[name](frame)
    if name in FILES:
        return written(frame, folder / name, **FILES[name])
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(_JSON[name](rows_of(frame)))
    return folder / name


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, *_JSON, *SOURCES])
def test_a_row_has_its_training_inputs_from_every_source_whatever_is_beside_it(
    name: str, tmp_path: Path
) -> None:
    """Integers above 2^53 stay apart beside gaps; a table is the same study in every format."""
    data = placed(PEOPLE, name, tmp_path / "all")
    keys = {"target": "price", "categorical": ["id"]}
    is_array = name == "numpy"
    arrays = study(data, PEOPLE["price"]) if is_array else study(data, **keys)
    preparation = prepared(arrays)
    if not is_array:
        same(arrays, study(PEOPLE, **keys))
        ids = [one for one in preparation.feature_names if one.startswith("id = 9")]
        assert ids == [f"id = {2**53 + k}" for k in (0, 1, 3)]
        of_towns = study(data, target="town", categorical=["id"])
        assert new(data, of_towns, "town").truth.tolist() == PEOPLE["town"].tolist()
        assert {*of_towns.meaning.classes} == {*PEOPLE["town"]}

    places = iter(range(99))

    @few
    @given(rows=st.lists(st.integers(0, N - 1), min_size=1, max_size=5), target=st.booleans())
    def holds(rows: list[int], target: bool) -> None:
        some = PEOPLE.iloc[rows].reset_index(drop=True)
        some = some if target else some.drop(columns="price")
        found = new(placed(some, name, tmp_path / str(next(places))), arrays, "price")
        np.testing.assert_array_equal(found.inputs, arrays.x_train[rows])
        assert (found.truth is not None) is (target and not is_array)
        assert not [one for one in found.doubts if "is empty" not in one]

    holds()


_KINDS = [st.integers(-50, 50).map(float), st.floats(-1e6, 1e6, width=32),
          st.sampled_from([np.nan, 0.5, 2.0, 3.0]), st.just(7.0)]  # fmt: skip


@pytest.mark.slow
@few
@given(st.data(), st.booleans(), st.booleans())
def test_an_array_is_the_table_of_its_numbers(
    data: st.DataObject, in_32_bits: bool, labels: bool
) -> None:
    """Of integers, reals, missing numbers and constants; the first column varies."""
    kinds = data.draw(st.lists(st.sampled_from(_KINDS), max_size=4))
    columns = [data.draw(st.lists(kind, min_size=N, max_size=N)) for kind in kinds]
    x = np.array([every([0.25, 1.5, 1.5], N), *columns]).T
    x = x.astype(np.float32) if in_32_bits else x
    y = np.arange(N) % 2 if labels else np.sin(np.arange(N))
    names = [chr(ord("a") + i) for i in range(x.shape[1])]
    array = study(x, y, test_fraction=0.25)
    table = study(pd.DataFrame(x, columns=names), y, test_fraction=0.25)
    same(array, table)
    assert len(array.meaning.said) == len(table.meaning.said)
    given_now = new(x[::-1], array), new(pd.DataFrame(x[::-1], columns=names), table)
    np.testing.assert_array_equal(given_now[0].inputs, given_now[1].inputs)
    assert len(given_now[0].doubts) == len(given_now[1].doubts)


@pytest.mark.parametrize("kind", ["memory", "npz", "folder"])
def test_nan_in_arrays_is_filled_as_in_a_frame(kind: str, tmp_path: Path) -> None:
    x, y = np.stack([Z[:40], U[:40], Y[:40]], axis=1), np.stack([Y[:40], U[:40]], axis=1)
    x[3, 0] = x[5, 0] = np.nan
    if kind == "memory":
        arrays = study(x, y)
    else:
        np.savez(tmp_path / "d.npz", x=x, y=y)
        np.save(tmp_path / "x_train.npy", x)
        np.save(tmp_path / "y_train.npy", y)
        path = "d.npz" if kind == "npz" else "."
        arrays = source_of(DatasetSpec(name="npz", path=path), base=tmp_path).arrays(seed=0)
    expected = study(pd.DataFrame(x).add_prefix("x").assign(y=y[:, 0]))
    same(arrays, expected, "x_train", "mean", "std")
    assert arrays.meaning.said[1] == expected.meaning.said[1]
    np.testing.assert_array_equal(new(x, arrays).inputs, arrays.x_train)
    np.savez(tmp_path / "new.npz", x_test=x, y_test=y)
    found = new(tmp_path / "new.npz", arrays)
    np.testing.assert_array_equal(found.inputs, arrays.x_train)
    np.testing.assert_array_equal(found.truth, y)


def test_masked_named_and_sparse_arrays_are_the_numbers_that_they_hold() -> None:
    u, z, y = U[:40], Z[:40], Y[:40]
    masked = np.ma.masked_array(np.stack([u, z], axis=1), mask=np.stack([u > 0.8, z > 9], axis=1))
    assert study(masked, y).input_shape == (3,)
    same(study(masked, y), study(masked.filled(np.nan), y))
    frame = pd.DataFrame({"u": u, "z": z})
    for fields in (frame.to_records(index=False), np.array(frame.to_records(index=False))):
        same(study(fields, y), study(frame, y))
    x = np.eye(40)[:, :3]
    np.testing.assert_array_equal(study(sparse.csr_matrix(x), y).x_train, x)
    np.testing.assert_array_equal(features_of(sparse.csr_array(x), None).inputs, x)
    np.testing.assert_array_equal(
        plain(pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(x))).to_numpy(), x
    )
    with pytest.raises(ValueError, match="TruncatedSVD"):
        plain(sparse.csr_matrix((MOST_CELLS, 2)))


# --- values of other kinds

ROWS = np.array([[0.5, 2.0], [1.0, -1.0]], dtype=np.float32)
VALUES: dict[str, Callable[[], Any]] = {
    "a dict of lists": lambda: {"x": [0.5, 1.0], "z": [2.0, -1.0]},
    "a dict of arrays": lambda: {"z": ROWS[:, 1], "x": pd.Series(ROWS[:, 0])},
    "a dict of tensors": lambda: {"x": torch.tensor(ROWS[:, 0]), "z": torch.tensor(ROWS[:, 1])},
    "records": lambda: [{"x": 0.5, "z": 2.0}, {"x": 1, "z": -1}],
    "bfloat16": lambda: torch.tensor(ROWS).bfloat16(),
    "float8": lambda: torch.tensor(ROWS).to(torch.float8_e4m3fn),
    "sparse": lambda: torch.tensor(ROWS).to_sparse(),
    "a gradient": lambda: torch.tensor(ROWS, requires_grad=True),
    "lists": lambda: ROWS.tolist(),
    "a list of tensors": lambda: [*torch.tensor(ROWS)],
    "a dict of scalars": lambda: {"x": 0.5, "z": 2.0},  # one row
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_many_kinds_are_the_rows_that_they_hold(kind: str) -> None:
    found = new(VALUES[kind](), study(BASE.assign(z=-Z[:60]))).inputs
    np.testing.assert_array_equal(found, ROWS[: 1 if kind == "a dict of scalars" else 2])


def test_targets_may_be_a_list_of_tensors_without_axes() -> None:
    y = [torch.tensor(value) for value in BASE["y"]]
    assert said(BASE[["x"]], y) == said(BASE[["x"]], BASE["y"].to_numpy())


HALF = "\ud83d!"
TEXTS = pd.Series([HALF, "b"] * 30, dtype=object)
LABELS = [0, 1] * 30
NO_DATA: dict[str, tuple[str, Any, tuple[object, ...]]] = {
    "a number": ("data-of-no-kind", 3.0, ("float", "3.0")),
    "None": ("data-of-no-kind", None, ("NoneType",)),
    "an iterator": ("data-of-no-kind", iter([1]), ("list_iterator",)),
    "tables": ("dict-of-tables", {"train": BASE, "test": BASE}, ("'train'", "DataFrame")),
    "matrices": ("dict-of-tables", {"x": ROWS}, ("'x'", "ndarray")),
    "rows of two kinds": ("json-no-table", [{"x": 1}, [2]], ("[2]",)),
    "uneven columns": ("json-columns-differ", {"x": [1, 2], "z": [1]}, ("equal lengths",)),
    "uneven rows": ("rows-of-several-lengths", [[1, 2], [3]], ("NaN",)),
}


@pytest.mark.parametrize("kind", NO_DATA)
def test_what_is_no_data_is_named(kind: str) -> None:
    code, data, says = NO_DATA[kind]
    with refused(code, *says):
        new(data, study(BASE))


@pytest.mark.parametrize(
    ("where", "data", "y"),
    [
        ("column 'c'", BASE.assign(c=TEXTS), None),
        ("column 'y'", BASE.assign(y=TEXTS), None),
        (
            "a column name of data",
            BASE.set_axis(pd.Index([HALF, "y"], dtype=object), axis=1),
            None,
        ),
        ("column 'c'", {"c": [*TEXTS], "y": LABELS}, None),
        ("column 'c'", [{"c": HALF, "y": 0}] * 30, None),
        ("y_train of data", BASE[["x"]].to_numpy(), TEXTS.to_numpy()),
    ],
    ids=["cells", "classes", "names", "columns", "rows", "y"],
)
def test_half_of_a_character_is_refused_with_its_place(where: str, data: Any, y: Any) -> None:
    with refused("half-of-a-character") as caught:
        source(data, y)
    assert str(caught.value).startswith(rf"{where} has the text '\ud83d!'")


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (Unconverted(), None, "pip install pyarrow"),
        (Lazy(), None, "compute it and give"),
        (ROWS, {*"ab"}, r"y must be a list, .* a set; list\(\.\.\.\) makes"),
        (ROWS, (one for one in "ab"), "but is a generator; .* makes a list"),
        (U[:40], Y[:40], r"a single column is x_train\[:, None\]"),
        (np.stack([U, Z], axis=1), U * 1e-300, "span 9.* give the targets another unit"),
    ],
)
def test_what_is_no_list_of_values_is_refused_with_a_remedy(x: Any, y: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        study(x, y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [np.zeros((0, 3)), pd.DataFrame({"a": []})])
def test_no_rows_are_one_sentence(data: Any) -> None:
    with refused("nothing-to-predict"):
        features_of(data, None)


# --- names

TWICE = pd.concat([BASE, BASE[["x"]]], axis=1)
LEVELS = pd.concat({"a": BASE[["x"]], "b": BASE[["y"]]}, axis=1)


@pytest.mark.parametrize(
    ("frame", "name"), [(TWICE, "'x'"), (BASE.rename(columns={"x": 1}).assign(**{"1": 2}), "'1'")]
)
def test_a_name_that_occurs_twice_is_refused_in_each_door(frame: pd.DataFrame, name: str) -> None:
    trained = study(BASE)
    for door in (study, lambda one: study(one.drop(columns="y"), BASE["y"]),
                 lambda one: new(one, trained)):  # fmt: skip
        with refused("column-twice-given", name, 2):
            door(frame)


def test_columns_of_several_levels_and_of_integers_have_names_in_each_door() -> None:
    for found in (study(LEVELS, target="('b', 'y')"), study(LEVELS[["a"]], BASE["y"])):
        assert prepared(found).feature_names == ("('a', 'x')",)
        assert new(LEVELS, found).inputs.shape == (60, 1)
    frame = pd.DataFrame(np.stack([U, Z, Y], axis=1))
    np.testing.assert_allclose(new(frame, study(frame.assign(y=Y))).inputs, frame, rtol=1e-6)
    assert list(frame.columns) == [0, 1, 2]


@pytest.mark.parametrize("before", ["NFC", "NFD"])
def test_names_and_categories_in_another_unicode_form_are_the_same(
    before: Any, tmp_path: Path
) -> None:
    after = "NFD" if before == "NFC" else "NFC"

    def of(form: Any) -> pd.DataFrame:
        towns = [unicodedata.normalize(form, town) for town in ("Köln", "Gießen", "Ulm")]
        return BASE.assign(**{unicodedata.normalize(form, "größe"): U[:60], "town": towns * 20})

    arrays = study(of(before))
    given_now = new(of(after), arrays)
    np.testing.assert_array_equal(given_now.inputs, arrays.x_train)
    assert given_now.doubts == ()
    path, test = written(of(before), tmp_path / "t.csv"), written(of(after), tmp_path / "test.csv")
    assert prepared(study(path, test_path=str(test))) == prepared(study(path))


# --- cells that are no plain values

#: Three cells of training, and one that is new.
NESTED: dict[str, list[Any]] = {
    "lists": [["a"], ["b"], [], ["c"]],
    "structs": [{"k": 1}, {"k": 2}, {"k": None}, {"k": 7}],
    "arrays": [np.array([1, 2]), np.array([3, 4]), np.array([0.5, np.nan]), np.array([9])],
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("door", ["frame", "t.parquet", "t.jsonl", "arrow", "dict"])
def test_cells_of_several_values_are_categories_also_where_they_are_new(
    kind: str, door: str, tmp_path: Path
) -> None:
    *cells, unseen = NESTED[kind]
    frame = BASE.assign(c=cells * 20)
    two = BASE[:2].assign(c=[cells[0], unseen])
    arrays = study(frame)
    data: Any = {"frame": two, "dict": {name: [*two[name]] for name in two}}.get(door)
    if door == "arrow":
        data = pa.Table.from_pandas(two)
    elif data is None:
        data = written(two, tmp_path / "new" / door)
    if door == "t.parquet":
        of_file = study(written(frame, tmp_path / door))
        assert prepared(of_file).feature_names == prepared(arrays).feature_names
    found = new(data, arrays)
    np.testing.assert_array_equal(found.inputs[0], arrays.x_train[0])
    assert "1 cell not seen in training" in " ".join(found.doubts)
    assert found.inputs[1, -1] == 1


@pytest.mark.parametrize("ending", ["parquet", "feather", ""])
@pytest.mark.parametrize("values", [
    pa.array(["u", "v", None]).dictionary_encode(),
    pa.array([1, 2, None]).dictionary_encode(),
    pa.array([[1], [2], None]),
    pa.array([{"a": 1}, {"a": 2}, None]),
], ids=str)  # fmt: skip
def test_types_of_arrow_are_read_where_pandas_cannot(
    ending: str, values: pa.Array, tmp_path: Path
) -> None:
    frame = BASE.assign(
        c=pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([values] * 20)))
    )
    data = written(frame, tmp_path / f"t.{ending}") if ending else pa.Table.from_pandas(frame)
    assert prepared(study(data)) == prepared(study(frame))
    np.testing.assert_array_equal(new(data, study(frame)).inputs, study(frame).x_train)


def test_categories_of_intervals_are_refused_from_arrow() -> None:
    frame = BASE.assign(c=pd.cut(BASE["x"], 3))
    assert prepared(study(frame))
    with refused("table-not-converted", "Table", "give a pandas DataFrame"):
        study(pa.Table.from_pandas(frame))


@pytest.mark.parametrize("codes", [[1, 2, 5], [1.5, 2.5, None], [True, False, None]])
@pytest.mark.parametrize("ordered", [True, False])
def test_categories_of_parquet_are_those_of_the_frame(
    codes: list[Any], ordered: bool, tmp_path: Path
) -> None:
    frame = BASE.assign(c=pd.Categorical(codes * 20, ordered=ordered))
    path = written(frame, tmp_path / "t.parquet")
    assert said(path) == said(frame)
    assert prepared(study(path)) == prepared(study(frame))


@pytest.mark.parametrize(
    "cells", [["u", "v", "", " "], ["5", "7", "", "\u00a0"], [1.5, 2, "", " "]]
)
def test_cells_of_blanks_are_missing_from_every_source(cells: list[Any], tmp_path: Path) -> None:
    table = beside(pd.Series(cells * 10, dtype=object))
    twin = study(table.assign(c=[one if str(one).strip() else None for one in cells] * 10))
    assert prepared(study(table)).columns == prepared(twin).columns
    files = [written(table, tmp_path / name) for name in ("t.csv", "t.jsonl")]
    for data in (table, table.to_dict("records"), *files):
        np.testing.assert_array_equal(new(data, twin).inputs, twin.x_train)


# --- codes with leading zeros

ZIPS, POINTS = ["00123", "123", "0123", "456"], ["1.10", "1.1", "1.9", "2"]


@pytest.mark.parametrize("codes", [ZIPS, POINTS, ["007", "012"], ["007", "x", "7", ""]])
def test_codes_that_are_categories_are_never_merged(codes: list[str], tmp_path: Path) -> None:
    table = beside(every(codes, 40))
    path = written(table, tmp_path / "t.csv")
    found, expected = study(path, categorical=["c"]), study(table, categorical=["c"])
    same(found, expected)
    assert prepared(found).columns == prepared(expected).columns
    assert all(f"c = {one}" in prepared(found).feature_names for one in codes if one)
    for data in (table, path, written(table, tmp_path / "t.parquet")):
        np.testing.assert_array_equal(new(data, found).inputs, found.x_train)


@pytest.mark.parametrize("codes", [ZIPS, POINTS])
def test_codes_of_classes_and_of_groups_are_never_merged(codes: list[str], tmp_path: Path) -> None:
    table = beside(None).assign(c=every(codes, 40), y=every(codes[::-1], 40))
    path, test = (written(table, tmp_path / name) for name in ("t.csv", "test.csv"))
    found = study(path, test_path=str(test), task="classification", groups="c")
    assert {*found.meaning.classes} == {*codes}
    np.testing.assert_array_equal(found.y_test, found.y_train)
    assert found.units is not None
    assert found.units.count == 4
    assert new(path, found, "y").truth.tolist() == table["y"].tolist()


def test_classes_with_leading_zeros_keep_their_names(tmp_path: Path) -> None:
    table = beside(None).assign(y=every(["007", "7", "012", "001"], 40)).drop(columns="c")
    path = written(table, tmp_path / "t.csv")
    names = ("001", "007", "7", "012")  # in this order in each process
    assert study(path).meaning.classes == study(table).meaning.classes == names
    assert study(path, task="regression").meaning.classes == ()


def test_codes_that_become_one_number_are_said(tmp_path: Path) -> None:
    told = "column 'c': '0123' and '123' are read as one number; categorical=c to keep them apart"
    table = beside([*every(["123", "0123", "9"], 39), "5"])
    for data in (table, written(table, tmp_path / "t.csv")):
        assert told in study(data).meaning.said
    of_measurements = table.assign(c=every(["1.50", "1.5"], 40))
    assert "one number" not in said(written(of_measurements, tmp_path / "t.csv"))


@pytest.mark.parametrize("kind", ["int64", "uint64", "Int64", "text", "array"])
def test_whole_numbers_that_float64_merges_are_no_amounts(kind: str) -> None:
    """As categories they stay apart; numbers that float64 has, such as 2^60, are amounts."""
    k, y = np.random.default_rng(1).permutation(40), Y[:40]
    for step, merges in ((1, True), (2**10, False)):
        numbers = [2**60 + int(one) * step for one in k]
        column = pd.Series(numbers, dtype="int64" if kind in ("text", "array") else kind)
        frame = pd.DataFrame({"x0": column.map(str) if kind == "text" else column, "x1": k % 7})
        data: Any = frame.to_numpy() if kind == "array" else frame
        if not merges:
            same(study(data, y), study(frame.astype({"x0": float}), y))
            continue
        with refused("whole-numbers-that-merge", "'x0'", "drop=x0", "categorical=x0"):
            study(data, y)
        names = prepared(study(data, y, categorical=["x0"])).feature_names
        assert {*(f"x0 = {one}" for one in numbers)} <= {*names}


def test_a_very_wide_or_short_table_is_refused() -> None:
    with refused("table-too-short", 5, "at least 10"):
        study(BASE[:5])
    frame = pd.DataFrame(np.zeros((6, 2000))).add_prefix("x").assign(y=1.0)
    with refused("table-too-short", 6, "transpose"):
        study(frame)


@pytest.mark.parametrize(("shift", "says"), [(0.0, False), (2459000.5, True)])
def test_vectors_on_disk_say_where_single_precision_loses_digits(
    shift: float, says: bool, tmp_path: Path
) -> None:
    np.save(tmp_path / "x_train.npy", np.stack([Z, U + shift], axis=1))
    np.save(tmp_path / "y_train.npy", Y)
    found = source_of(DatasetSpec(name="npz", path="."), base=tmp_path).arrays(seed=0)
    assert ("x1: far from 0" in " | ".join(found.meaning.said)) is says


@pytest.mark.parametrize("values", [Z > 0, pd.Categorical((Z > 0) + 8)])
def test_classes_of_test_rows_may_be_in_another_file(values: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({"x": Z, "y": values})
    places = [tmp_path / "t.csv", tmp_path / "t.parquet"]
    for place in places:
        written(table, place)
    for train, test in product(places, repeat=2):
        spec = DatasetSpec(name="table", path=str(train), test_path=str(test), target="y")
        found = source_of(spec).arrays(seed=0)
        np.testing.assert_array_equal(found.y_test, found.y_train)
