"""Tables of other systems, as in public reports, are read as meant or refused in a sentence.

Each row of a list is a case: what somebody had, and what must come of it.
"""

import gzip
import json
import unicodedata
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from messages import refused
from pyarrow import feather

from nas_evidence import search
from nas_evidence.data.arrays import Meaning
from nas_evidence.data.cells import how_read
from nas_evidence.data.given import features_of
from nas_evidence.data.reading import as_written, read, read_frame
from nas_evidence.data.source import source_in_memory, source_of
from nas_evidence.data.table_columns import OTHER, Preparation
from nas_evidence.data.targets import targets_of
from nas_evidence.exporting.predicted import Prediction
from nas_evidence.maths.normals import Normals
from nas_evidence.spec.study import DatasetSpec

N = 60
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=N)
BASE = pd.DataFrame({"x": X, "y": X + GENERATOR.normal(size=N)})
EURO = "a;b\n1.000,50 €;O’Neil\n2,00 €;x\n"
EUROS = {"a": [1000.5, 2.0], "b": ["O’Neil", "x"]}
XC = {"x": [1.5, 2.0], "c": ["u", "v"]}
FRAME = pd.DataFrame(XC)


def meaning(data: Any, y: Any = None, **keys: Any) -> Meaning:
    return source_in_memory(data, y, keys).arrays(seed=0).meaning


def prepared(frame: pd.DataFrame) -> Preparation:
    found = meaning(frame, target="y").preparation
    assert found is not None
    return found


def of_file(path: Path, **keys: Any) -> Meaning:
    given = {"name": "table", "path": str(path), "target": "y", **keys}
    source = source_of(DatasetSpec.model_validate(given))
    assert source is not None
    return source.arrays(seed=0).meaning


# --- files


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ends", [["", ",", ","], ["", ",", ""], ["", ", ,", ","]])
def test_a_separator_at_the_end_of_rows_shifts_no_column(
    separator: str, ends: list[str], tmp_path: Path
) -> None:
    rows = zip(["y,p,q", "1.5,2,3", "2.5,4,5"], ends, strict=True)
    text = "".join(f"{row}{end}\n" for row, end in rows).replace(",", separator)
    (tmp_path / "t.csv").write_text(text)
    frame = read_frame(tmp_path / "t.csv")
    assert frame.to_dict("list") == {"y": [1.5, 2.5], "p": [2, 4], "q": [3, 5]}
    assert as_written(tmp_path / "t.csv")["y"].tolist() == ["1.5", "2.5"]
    assert "too many" in str(how_read(frame)[0][0])


READ: list[tuple[str, str, bytes, dict[str, list[Any]]]] = [
    ("a name of two lines", "t.csv", b'p,"a\nb"\n1,2\n3,4\n', {"p": [1, 3], "a\nb": [2, 4]}),
    ("sep= of spreadsheets", "t.csv", b"sep=;\na;b\n1;2;\n3;4;\n", {"a": [1, 3], "b": [2, 4]}),
    ("Windows-1252", "t.csv", EURO.encode("cp1252"), EUROS),
    ("UTF-32", "t.csv", EURO.encode("utf-32"), EUROS),
    ("no code of Windows-1252", "t.csv", b"a;b\n1;\x81\n2;x\n",
     {"a": [1, 2], "b": ["\\x81", "x"]}),
    ("UTF-16 without a mark", "t.csv", EURO.encode("utf-16-le"), EUROS),
    ("UTF-16 from its big end", "t.csv", EURO.encode("utf-16-be"), EUROS),
    ("names that differ by ö", "t.csv", "ö;ü\n1;2\n".encode("latin-1"), {"ö": [1], "ü": [2]}),
    ("lines of Latin-1", "t.jsonl", '{"x":"ö"}'.encode("latin-1"), {"x": ["ö"]}),
    ("U+2028", "t.jsonl", '{"t":"a\u2028b"}\r\n\r\n{"t":"c"}'.encode(),
     {"t": ["a\u2028b", "c"]}),
    ("lines with a mark", "t.jsonl", '\ufeff{"x":1}\n{"x":2}'.encode(), {"x": [1, 2]}),
    ("lines of UTF-16", "t.jsonl", '{"x":"ö"}\n'.encode("utf-16"), {"x": ["ö"]}),
    ("lines that end in .json", "t.json", b'{"x":1}\n{"x":2}\n', {"x": [1, 2]}),
    ("one row", "t.json", b'{"x":1,"c":"u"}', {"x": [1], "c": ["u"]}),
    *(
        (orient, "t.json", FRAME.to_json(orient=orient).encode(), XC)
        for orient in ("records", "columns")
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "expected"), [pytest.param(*case[1:], id=case[0]) for case in READ]
)
def test_a_file_is_read_as_it_was_meant(
    name: str, content: bytes, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_frame(tmp_path / name).to_dict("list") == expected
    found = read(str(tmp_path / name))  # as `predict`
    assert isinstance(found, pd.DataFrame)
    assert found.to_dict("list") == expected


def test_rows_that_end_early_lack_their_last_cells(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("p,c,d\n1,u,2\n3,v\n\n")
    assert read_frame(tmp_path / "t.csv").isna().to_numpy().tolist() == [
        [False] * 3,
        [False, False, True],
    ]


#: What went by decision says so in words; nothing is read wrongly.
REFUSED: list[tuple[str, str, bytes, tuple[object, ...]]] = [
    ("row names of R", "t.csv", b'p,y\n"1",2,3\n"2",4,5\n', ("line 2 has 3", "names has 2")),
    ("a return in cells", "t.csv", b'p,c\n1,u\n2,"a\rb"\n', ("line 3", "carriage return")),
    ("lines of old Macs", "t.csv", b"p,c\r1,a\r2,b\r", ("line 1", "line feed")),
    ("two returns", "t.csv", b"p,c\r\r\n1,a\r\r\n", ("line 1",)),
    ("rows by number", "t.json", FRAME.to_json(orient="index").encode(), ("'0'", "records")),
    ("a split table", "t.json", FRAME.to_json(orient="split").encode(), ("records",)),
    ("a table with types", "t.json", FRAME.to_json(orient="table").encode(), ("records",)),
    ("two cells more than names", "t.csv", b"y,p\n1,2,3,4\n", ("line 2", 4, 2)),
    ("a cell after a separator too many", "t.csv",
     b"y,p\n" + b"1,2,\n".zfill(900) * 20 + b"1,2,far\n", ("line 22",)),
    ("a quote that does not end", "t.csv", b'a,b\n1,"2\n3,4\n', ("line 2", "quote")),
    ("commas in the first and other cells", "t.csv", b"y,x,c\n" + b"1,2,a,b\n1,2,a\n" * 900,
     ("line 2 has 4", "names has 3")),
    ("gzip without its ending", "t.csv", gzip.compress(b"a,b\n1,2\n"), ("NUL",)),
    ("packed twice", "t.csv.gz", gzip.compress(gzip.compress(b"a,b\n1,2\n")), ("NUL",)),
    ("Parquet without its ending", "t.csv", b"PAR1\0\1", ("NUL",)),
    ("a longer row", "t.csv", b"a,b\n1,2\n1,2,3\n", ("line 3", 3, 2)),
    ("half a character", "t.csv", "a,b\n1,2\n".encode("utf-16")[:-1], ("UTF-16",)),
    ("a line that is cut", "t.jsonl", b'{"x":1}\n\n{"x":2\n', ("line 3",)),
    ("a line that is no row", "t.jsonl", b'{"x":1}\n[2]\n', ("rows that name", "[2]")),
    ("values", "t.json", FRAME.to_json(orient="values").encode(), ("rows that name", "[1.5")),
    ("a number", "t.json", b"3", ("it is 3",)),
    ("nothing", "t.json", b"", ("Expecting value",)),
    ("uneven columns", "t.json", b'{"x":[1,2],"c":[1]}', ("equal lengths",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "says"), [pytest.param(*case[1:], id=case[0]) for case in REFUSED]
)
def test_a_file_that_is_no_table_is_refused_with_its_place(
    name: str, content: bytes, says: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    for read_it in (read_frame, as_written):  # as_written is for the columns of --id
        with refused("table-unreadable", name, *says):
            read_it(tmp_path / name)


def test_a_guess_of_the_encoding_names_the_byte(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a;b\n1;" + b"x" * 1_200_000 + b"\n1;\xe4\n")
    assert "byte 1200009" in str(how_read(read_frame(tmp_path / "t.csv"))[0][0])


def test_columns_that_nothing_separates_are_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("x y\n" + "1 2\n" * 20)
    with refused("no-such-column", "'y'", "semicolons"):
        of_file(tmp_path / "t.txt")


@pytest.mark.parametrize("word", ["None", "NA", "null", "n/a"])
@pytest.mark.parametrize("part", ["path", "test_path"])
def test_a_class_named_as_a_missing_cell_is_not_to_be_removed(
    word: str, part: str, tmp_path: Path
) -> None:
    for name, value in (("path", "bad"), (part, word)):
        BASE.assign(y=["mild", value] * (N // 2)).to_csv(tmp_path / f"{name}.csv", index=False)
    more = {"test_path": str(tmp_path / "test_path.csv")} if part == "test_path" else {}
    with refused("class-named-as-missing", "'y'", word, N // 2, "row 1"):
        of_file(tmp_path / "path.csv", **more)


def test_a_class_named_as_a_missing_cell_of_a_spreadsheet_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sheet(path: Path, keep_default_na: bool = True, **how: Any) -> Any:
        frame = BASE.assign(y=["mild", None if keep_default_na else "None"] * (N // 2))
        return {"sheet": frame} if "sheet_name" in how else frame

    monkeypatch.setattr(pd, "read_excel", sheet)
    (tmp_path / "t.xlsx").touch()
    with refused("class-named-as-missing", "'None'"):
        of_file(tmp_path / "t.xlsx")


# --- tables in memory

TWICE = pd.concat([BASE, BASE[["x"]]], axis=1)
LEVELS = pd.concat({"a": BASE[["x"]], "b": BASE[["y"]]}, axis=1)


@pytest.mark.parametrize(
    ("frame", "name"), [(TWICE, "'x'"), (BASE.rename(columns={"x": 1}).assign(**{"1": 2}), "'1'")]
)
def test_a_name_that_occurs_twice_is_refused_in_each_door(frame: pd.DataFrame, name: str) -> None:
    doors = [
        lambda: meaning(frame, target="y"),
        lambda: meaning(frame.drop(columns="y"), BASE["y"]),
        lambda: features_of(frame, prepared(BASE)),
    ]
    for door in doors:
        with refused("column-twice-given", name, 2):
            door()


def test_columns_of_several_levels_have_names_in_each_door() -> None:
    names = ("('a', 'x')",)
    found = meaning(LEVELS, target="b,y").preparation
    assert found is not None
    assert found.feature_names == names
    assert features_of(LEVELS, found).inputs.shape == (N, 1)
    alone = meaning(LEVELS[["a"]], BASE["y"]).preparation
    assert alone is not None
    assert alone.feature_names == names


#: Three cells of training, and one that is new.
NESTED: dict[str, list[Any]] = {
    "lists": [["a"], ["b"], [], ["c"]],
    "structs": [{"k": 1}, {"k": 2}, {"k": None}, {"k": 7}],
    "arrays": [np.array([1, 2]), np.array([3, 4]), np.array([0.5, np.nan]), np.array([9])],
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("door", ["frame", "parquet", "jsonl", "arrow"])
def test_cells_of_several_values_are_categories_also_where_they_are_new(
    kind: str, door: str, tmp_path: Path
) -> None:
    *cells, unseen = NESTED[kind]
    frame = BASE.assign(c=cells * (N // 3))
    new = BASE[:2].assign(c=[cells[0], unseen])
    preparation = prepared(frame)
    if door == "parquet":
        frame.to_parquet(tmp_path / "t.parquet")
        new.to_parquet(tmp_path / "new.parquet")
        kept = of_file(tmp_path / "t.parquet").preparation
        assert kept is not None
        assert kept.feature_names == preparation.feature_names
        data: Any = tmp_path / "new.parquet"
    elif door == "jsonl":
        new.to_json(tmp_path / "new.jsonl", orient="records", lines=True)
        data = tmp_path / "new.jsonl"
    else:
        data = pa.Table.from_pandas(new) if door == "arrow" else new
    given = features_of(data, preparation)
    np.testing.assert_array_equal(given.inputs[0], features_of(frame, preparation).inputs[0])
    assert "1 cell not seen in training" in " ".join(given.doubts)


def test_the_text_of_a_cell_of_several_values_is_json() -> None:
    cells = prepared(BASE.assign(c=NESTED["structs"][:3] * (N // 3))).columns[-1].categories
    assert {*map(json.dumps, NESTED["structs"][:3])} == {*cells}


# --- dates, prices and digits

DAYS = pd.date_range("2020-01-01", periods=N, freq="13D")
ISO = [f"{day:%Y-%m-%d}" for day in DAYS]
PRICES = [f"${100_000 + 997 * k:,}" for k in range(N)]


def some(cells: list[Any], others: list[Any], every: int = 5) -> list[Any]:
    """Return cells with every fifth one replaced."""
    return [others[k] if k % every == 0 else cell for k, cell in enumerate(cells)]


FAR: list[tuple[str, Any]] = [
    (end, some(ISO, [end] * N, 20))
    for end in ("9999-12-31", "9999-12-31 23:59:59", "0001-01-01", "1500-01-01", "2262-04-12")
] + [
    ("31.12.9999", some([f"{day:%d.%m.%Y}" for day in DAYS], ["31.12.9999"] * N, 20)),
    ("12/31/9999", some([f"{day:%m/%d/%Y}" for day in DAYS], ["12/31/9999"] * N, 20)),
    ("9999-12-31", pd.Series(np.array(some(ISO, ["9999-12-31"] * N, 20), "datetime64[us]"))),
    ("9999-12-31", pd.Series(np.array(some(ISO, ["9999-12-31"] * N, 20), "datetime64[s]"))),
    ("9999-12-31", [date(9999, 12, 31) if k % 20 == 0 else day.date()
                    for k, day in enumerate(DAYS)]),
]  # fmt: skip


@pytest.mark.parametrize(("end", "cells"), FAR)
def test_dates_that_nanoseconds_cannot_hold_are_read(end: str, cells: Any) -> None:
    found = meaning(BASE.assign(d=cells), target="y")
    assert found.preparation is not None
    days = features_of(BASE.assign(d=cells), found.preparation).inputs
    at = found.preparation.feature_names.index("days of d")
    assert len(np.unique(days[:, at])) == N - 2


@pytest.mark.parametrize("end", ["9999-12-31", "0001-01-01"])
def test_new_data_may_have_dates_that_nanoseconds_cannot_hold(end: str, tmp_path: Path) -> None:
    preparation = prepared(BASE.assign(d=ISO))
    BASE[:2].assign(d=[end, ISO[1]]).to_csv(tmp_path / "new.csv")
    given = features_of(tmp_path / "new.csv", preparation)
    assert np.isfinite(given.inputs).all()
    assert given.doubts == ()


def test_times_may_be_dates_that_nanoseconds_cannot_hold() -> None:
    cells = [*ISO[:-1], "9999-12-31"]
    keys = {"target": "y", "time_column": "d"}
    units = source_in_memory(BASE.assign(d=cells), None, keys).arrays(seed=0).units
    assert units is not None
    assert units.of.tolist() == list(range(N))


#: A column, and what it is not read as, with the numbers of cells and a cell of each notation.
TWO_NOTATIONS = {
    "dates with the day first": (
        some(ISO, [f"{day:%d/%m/%Y}" for day in DAYS]),
        ("dates", 48, "2020-01-14", 12, "01/01/2020"),
    ),
    "mostly the other": (
        some([f"{day:%d/%m/%Y}" for day in DAYS], ISO),
        ("dates", 48, "14/01/2020", 12, "2020-01-01"),
    ),
    "dates and words": (
        some(ISO, [f"about {k}" for k in range(N)]),
        ("dates", 48, "2020-01-14", 12, "about 0"),
    ),
    "prices": (
        some(PRICES, [f"{100_000 + k} USD" for k in range(N)]),
        ("numbers", 48, "$100,997", 12, "100000 USD"),
    ),
    "prices with gaps": (
        [*some(PRICES, [f"{100_000 + k} USD" for k in range(N)])[:-6], *[None] * 6],
        ("numbers", 43, "$100,997", 11, "100000 USD"),
    ),
    "numbers and ranges": (
        some([f"{k}.5" for k in range(N)], [f"{k}-{k + 1}" for k in range(N)]),
        ("numbers", 48, "1.5", 12, "0-1"),
    ),
}


@pytest.mark.parametrize("kind", TWO_NOTATIONS)
def test_a_column_of_two_notations_says_so_and_not_to_read_categories(kind: str) -> None:
    cells, (what, n, one, m, other) = TWO_NOTATIONS[kind]
    said = " ".join(meaning(BASE.assign(c=cells), target="y").said)
    assert f"column 'c' is not read as {what}: {n} of {n + m} cells are {what} ({one!r})" in said
    assert f"{m} are not ({other!r}); write all in one notation" in said
    assert "categorical=c" not in said


@pytest.mark.parametrize("kind", [kind for kind in TWO_NOTATIONS if "gaps" not in kind])
@pytest.mark.parametrize("door", ["frame", "series", "file"])
def test_a_target_of_two_notations_is_refused_for_that(
    kind: str, door: str, tmp_path: Path
) -> None:
    cells, (what, n, one, m, other) = TWO_NOTATIONS[kind]
    frame = BASE.assign(y=cells)
    with refused("target-of-two-notations", "'y'", what, n, repr(one), m, repr(other)):
        if door == "frame":
            meaning(frame, target="y")
        elif door == "series":
            meaning(BASE[["x"]], pd.Series(cells, name="y"), task="regression")
        else:
            frame.to_csv(tmp_path / "t.csv", index=False)
            of_file(tmp_path / "t.csv")


@pytest.mark.parametrize("digits", ["$１００", "١٢٣", "1 days 02:30:00"])
def test_numbers_of_other_notations_stay_text(digits: str) -> None:
    frame = BASE.assign(c=some([digits] * N, ["7"] * N))
    assert prepared(frame).feature_names[1:3] == (f"c = {digits}", "c = 7")


# --- names and categories


@pytest.mark.parametrize("before", ["NFC", "NFD"])
def test_names_and_categories_in_another_unicode_form_are_the_same(
    before: Any, tmp_path: Path
) -> None:
    after = "NFD" if before == "NFC" else "NFC"

    def of(form: Any) -> pd.DataFrame:
        towns = [unicodedata.normalize(form, town) for town in ("Köln", "Gießen", "Ulm")]
        return BASE.assign(**{unicodedata.normalize(form, "größe"): X, "town": towns * (N // 3)})

    preparation = prepared(of(before))
    given = features_of(of(after), preparation)
    np.testing.assert_array_equal(given.inputs, features_of(of(before), preparation).inputs)
    assert given.doubts == ()
    of(before).to_csv(tmp_path / "t.csv", index=False)
    of(after).to_csv(tmp_path / "test.csv", index=False)
    of_both = of_file(tmp_path / "t.csv", test_path=str(tmp_path / "test.csv"))
    assert of_both.preparation == of_file(tmp_path / "t.csv").preparation


def test_a_category_that_is_called_other_is_the_one_of_unseen_cells() -> None:
    frame = BASE.assign(c=[OTHER, "a", "b"] * (N // 3))
    preparation = prepared(frame)
    assert preparation.feature_names == ("x", "c = a", "c = b", f"c = {OTHER}")
    given = features_of(frame[:2].assign(c=[OTHER, "new"]), preparation)
    assert given.inputs[:, 1:].tolist() == [[0, 0, 1], [0, 0, 1]]
    assert "1 cell not seen in training ('new')" in " ".join(given.doubts)


def test_the_index_that_pandas_wrote_is_left_out_in_any_order_of_the_rows(tmp_path: Path) -> None:
    BASE.sample(frac=0.6, random_state=0).to_csv(tmp_path / "t.csv")
    found = of_file(tmp_path / "t.csv")
    assert found.preparation is not None
    assert found.preparation.feature_names == ("x",)
    assert "'Unnamed: 0' is left out" in " ".join(found.said)


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
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_many_kinds_are_the_rows_that_they_hold(kind: str) -> None:
    preparation = prepared(BASE.assign(z=-X))
    np.testing.assert_array_equal(features_of(VALUES[kind](), preparation).inputs, ROWS)


def test_a_dict_may_have_columns_of_lists() -> None:
    tags = [["a"], ["b", "c"]]
    preparation = prepared(BASE.assign(tags=tags * (N // 2)))
    given = features_of({"x": [0, 0], "tags": tags}, preparation)
    assert given.inputs[:, 1:].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_targets_may_be_a_list_of_tensors_without_axes() -> None:
    y = [torch.tensor(value) for value in BASE["y"]]
    assert meaning(BASE[["x"]], y).said == meaning(BASE[["x"]], BASE["y"].to_numpy()).said


def test_a_dict_of_scalars_is_one_row() -> None:
    assert features_of({"x": 0.5}, prepared(BASE)).inputs.tolist() == [[0.5]]


@pytest.mark.parametrize("data", [{"x": X.tolist(), "y": BASE["y"]}, BASE.to_dict("records")])
def test_a_study_begins_with_a_dict_of_columns_or_a_list_of_rows(data: Any) -> None:
    found, expected = meaning(data, target="y"), meaning(BASE, target="y")
    assert found.said == expected.said


NO_DATA: list[tuple[str, Any, tuple[object, ...]]] = [
    ("data-of-no-kind", 3.0, ("float", "3.0")),
    ("data-of-no-kind", None, ("NoneType",)),
    ("data-of-no-kind", iter([1]), ("list_iterator",)),
    ("dict-of-tables", {"train": BASE, "test": BASE}, ("'train'", "DataFrame")),
    ("dict-of-tables", {"x": ROWS}, ("'x'", "ndarray")),
    ("json-no-table", [{"x": 1}, [2]], ("[2]",)),
    ("json-no-table", {"x": [1, 2], "z": [1]}, ("equal lengths",)),
    ("rows-of-several-lengths", [[1, 2], [3]], ("NaN",)),
]


@pytest.mark.parametrize(("code", "data", "says"), NO_DATA)
def test_what_is_no_data_is_named(code: str, data: Any, says: tuple[object, ...]) -> None:
    with refused(code, *says):
        features_of(data, prepared(BASE))


# --- what predictions are compared with

P = np.array([[0.9, 0.1], [0.2, 0.8]])
SURE = Normals.single(np.array([[1.0], [2.0]]), np.ones((2, 1)))


@pytest.mark.parametrize(
    ("classes", "truth"),
    [
        ((0, 1), [False, True]),
        ((0, 1), ["False", "True"]),
        ((0, 1), ["0.0", "1.0"]),
        ((0, 1), [0.0, 1.0]),
        ((False, True), [0, 1]),
        ((False, True), ["0", "1"]),
        ((False, True), ["false", "TRUE"]),
        (("0", "1"), [0, 1]),
        ((10, 20), ["10.0", "20"]),
    ],
)
def test_the_truth_may_be_written_unlike_the_classes(classes: Any, truth: list[Any]) -> None:
    found = Prediction(classes, probabilities=P)
    for values in (np.array(truth), np.array(truth, dtype=object)):
        assert found.measures(values)["accuracy"] == 1
        tested = targets_of(np.array(classes), values, task="classification", where="y")
        assert tested.test.tolist() == tested.train.tolist()


@pytest.mark.parametrize(
    ("classes", "wrong"),
    [((0, 1), "yes"), ((1, 2), "True2"), (("01", "1"), "1.0"), (("no", "yes"), "True"),
     ((1, 2**53), str(2**53 + 1))],
)  # fmt: skip
def test_another_label_is_none_of_the_classes(classes: Any, wrong: str) -> None:
    with refused("unknown-test-label", repr(wrong)):
        targets_of(np.array(classes), np.array([wrong]), task="classification", where="y")
    with refused("unknown-true-label", repr(wrong), classes[0]):
        Prediction(classes, probabilities=P).measures(np.array([wrong, wrong], dtype=object))


def test_real_targets_have_no_labels_and_classes_no_density() -> None:
    real = Prediction(density=SURE, targets=("price",), unit=np.ones(1))
    with refused("labels-of-real-targets", "price", "mean"):
        _ = real.labels
    with refused("density-of-classes", "cat", "dog"):
        _ = Prediction(("cat", "dog"), probabilities=P).low


@pytest.mark.parametrize(
    ("truth", "code", "says"),
    [
        (["1", "42509 USD"], "truth-not-numbers", ("'price'", "row 1", "'42509 USD'")),
        ([["1", "2"], ["3", "4"]], "truth-shape", ("'price'", "[2, 2]")),
    ],
)
def test_a_true_target_that_is_no_number_is_named_with_its_row(
    truth: list[Any], code: str, says: tuple[object, ...]
) -> None:
    found = Prediction(density=SURE, targets=("price",), unit=np.ones(1))
    with refused(code, *says):
        found.measures(np.array(truth, dtype=object))


# --- integers beyond 2^53 beside gaps

IDS = [None, 2**53, 2**53 + 1, 2**53 + 3] * 15


def _ids() -> pd.DataFrame:
    return BASE.assign(id=pd.array(IDS, dtype="Int64"))


def _arrow_ids() -> pa.Table:
    return pa.table({"x": X, "y": BASE["y"], "id": pa.array(IDS)})


def _records() -> list[dict[str, Any]]:
    return [
        {"x": x, "y": y, "id": one}
        for (x, y), one in zip(BASE.to_numpy().tolist(), IDS, strict=True)
    ]


class Streamed:
    """A table of another library, which speaks Arrow and has no gaps in its integers."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class Converted(Streamed):
    def to_pandas(self) -> pd.DataFrame:
        return self._table.to_pandas()


def _written(frame: Any, path: Path) -> Path:
    match path.suffix:
        case ".parquet":
            pq.write_table(frame, path)
        case ".feather":
            feather.write_feather(frame, path)
        case ".csv":
            frame.to_csv(path, index=False)
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in frame))
        case ".json":
            path.write_text(json.dumps({name: [row[name] for row in frame] for name in frame[0]}))
    return path


OF_IDS: dict[str, Callable[[Path], Any]] = {
    "a frame": lambda _: _ids(),
    "Arrow": lambda _: _arrow_ids(),
    "what speaks Arrow": lambda _: Streamed(_arrow_ids()),
    "what converts itself": lambda _: Converted(_arrow_ids()),
    "records": lambda _: _records(),
    "columns": lambda _: {"x": X, "y": BASE["y"], "id": IDS},
    "Parquet": lambda folder: _written(_arrow_ids(), folder / "t.parquet"),
    "Feather": lambda folder: _written(_arrow_ids(), folder / "t.feather"),
    "CSV": lambda folder: _written(_ids(), folder / "t.csv"),
    "JSON lines": lambda folder: _written(_records(), folder / "t.jsonl"),
    "JSON": lambda folder: _written(_records(), folder / "t.json"),
}


@pytest.mark.parametrize("source", OF_IDS)
def test_integers_beside_gaps_stay_apart_from_every_source(source: str, tmp_path: Path) -> None:
    data = OF_IDS[source](tmp_path)
    keys = {"categorical": ["id"]}
    found = of_file(data, **keys) if isinstance(data, Path) else meaning(data, target="y", **keys)
    assert found.preparation is not None
    ids = [name for name in found.preparation.feature_names if name.startswith("id = 9")]
    assert ids == [f"id = {2**53 + k}" for k in (0, 1, 3)]
    trained = source_in_memory(_ids(), None, {"target": "y", **keys}).arrays(seed=0)
    new = features_of(data, trained.meaning.preparation)
    np.testing.assert_array_equal(new.inputs, trained.x_train)
    assert not new.doubts


def test_integers_that_no_type_holds_stay_apart(tmp_path: Path) -> None:
    numbers = [None, 10**22, 10**22 + 1]
    pd.DataFrame({"a": pd.Series(numbers, dtype=object), "b": 1}).to_csv(tmp_path / "t.csv")
    assert read_frame(tmp_path / "t.csv")["a"].dropna().tolist() == [*map(str, numbers[1:])]


# --- what pandas notes in a file


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
    column = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([values] * 20)))
    frame = BASE.assign(c=column)
    data: Any = pa.Table.from_pandas(frame)
    if ending:
        data = tmp_path / f"t.{ending}"
        getattr(frame, f"to_{ending}")(data)
    expected = prepared(frame)
    found = of_file(data).preparation if ending else prepared(data)
    assert found == expected
    np.testing.assert_array_equal(
        features_of(data, expected).inputs, features_of(frame, expected).inputs
    )


def test_categories_of_intervals_are_refused_from_arrow() -> None:
    frame = BASE.assign(c=pd.cut(BASE["x"], 3))
    assert prepared(frame)
    with refused("table-not-converted", "Table", "give a pandas DataFrame"):
        prepared(pa.Table.from_pandas(frame))


@pytest.mark.parametrize("codes", [[1, 2, 5], [1.5, 2.5, None], [True, False, None]])
@pytest.mark.parametrize("ordered", [True, False])
def test_categories_of_parquet_are_those_of_the_frame(
    codes: list[Any], ordered: bool, tmp_path: Path
) -> None:
    frame = BASE.assign(c=pd.Categorical(codes * 20, ordered=ordered))
    frame.to_parquet(tmp_path / "t.parquet")
    assert of_file(tmp_path / "t.parquet").said == meaning(frame, target="y").said
    assert of_file(tmp_path / "t.parquet").preparation == prepared(frame)


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.parquet.gz", "t.zip", "t.xls"])
def test_a_file_of_another_ending_is_refused_with_those_that_are_read(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"{}"))
    with refused("table-unreadable", name, ".csv", ".parquet"):
        read(str(tmp_path / name))


@pytest.mark.parametrize("beside", [[], ["__MACOSX/._t.csv", ".DS_Store"]])
def test_a_table_alone_in_an_archive_is_read(beside: list[str], tmp_path: Path) -> None:
    BASE.to_csv(tmp_path / "t.csv", index=False)
    with ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        for name in beside:
            archive.writestr(name, b"\x00\x05")
        archive.write(tmp_path / "t.csv", "data/t.csv")
    pd.testing.assert_frame_equal(
        read_frame(tmp_path / "t.csv.zip"), read_frame(tmp_path / "t.csv")
    )


def test_an_archive_of_two_tables_is_to_be_unpacked(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        for name in ("train.csv", "test.csv"):
            archive.writestr(name, "x,y\n1,2\n")
    with pytest.raises(ValueError, match="the archive holds 2 files, not one table; unpack it"):
        read_frame(tmp_path / "t.csv.zip")


def test_a_damaged_packed_table_is_to_be_packed_again(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"x,y\n1,2\n" * 99)[:20])
    with pytest.raises(ValueError, match="; write or download it again"):
        read_frame(tmp_path / "t.csv.gz")


def test_an_address_is_no_file() -> None:
    with pytest.raises(ValueError, match="is an address, not a file; download it first"):
        search("https://example.org/t.csv", target="y")


def test_a_table_without_names_or_below_a_title_is_told_what_its_first_line_lacks(
    tmp_path: Path,
) -> None:
    (tmp_path / "n.csv").write_text("0.5,1.5,yes\n" * 20)
    with refused("no-such-column", "the first line must hold the names"):
        of_file(tmp_path / "n.csv")
    (tmp_path / "t.csv").write_text("My table\n" + "0.5,1.5,yes\n" * 20)
    with refused("table-unreadable", "remove a title before the names"):
        of_file(tmp_path / "t.csv")


def test_a_file_of_another_format_is_no_study_file_with_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "t.dta").write_bytes(b"\xff\x00 a = b")
    with refused("file-of-no-kind", "t.dta", "Parquet"):
        search(tmp_path / "t.dta", target="y")


def test_an_index_with_a_name_is_said_to_be_left_out() -> None:
    frame = BASE.set_index([pd.Index(range(N), name="id"), pd.Index(range(N))])
    said = "the index of the rows ('id') is left out; reset_index() to use it"
    assert said in meaning(frame, target="y").said
    assert said not in meaning(BASE, target="y").said
