"""Tables of other systems, as in public reports, are read as meant or refused in a sentence.

Each row of a list is a case: what somebody had, and what must come of it.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from messages import refused

from nas_evidence.data.arrays import Meaning
from nas_evidence.data.cells import how_read
from nas_evidence.data.given import features_of
from nas_evidence.data.preparation import Preparation
from nas_evidence.data.reading import as_written, read, read_frame
from nas_evidence.data.source import source_in_memory, source_of
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
    assert "too many" in how_read(frame)[0][0]


READ: list[tuple[str, str, bytes, dict[str, list[Any]]]] = [
    ("row names of R", "t.csv", b'p,y\n"1",2,3\n"2",4,5\n', {"p": [2, 4], "y": [3, 5]}),
    ("a name of two lines", "t.csv", b'p,"a\nb"\n1,2\n3,4\n', {"p": [1, 3], "a\nb": [2, 4]}),
    ("sep= of spreadsheets", "t.csv", b"sep=;\na;b\n1;2;\n3;4;\n", {"a": [1, 3], "b": [2, 4]}),
    ("Windows-1252", "t.csv", EURO.encode("cp1252"), EUROS),
    ("UTF-16 without a mark", "t.csv", EURO.encode("utf-16-le"), EUROS),
    ("big-endian UTF-16", "t.csv", EURO.encode("utf-16-be"), EUROS),
    ("UTF-32", "t.csv", EURO.encode("utf-32"), EUROS),
    ("no code of Windows-1252", "t.csv", b"a;b\n1;\x81\n2;x\n", {"a": [1, 2], "b": ["\x81", "x"]}),
    ("names that differ by ö", "t.csv", "ö;ü\n1;2\n".encode("latin-1"), {"ö": [1], "ü": [2]}),
    ("U+2028 and U+0085", "t.jsonl", '{"t":"a\u2028b\u0085"}\r\n\r\n{"t":"c"}'.encode(),
     {"t": ["a\u2028b\u0085", "c"]}),
    ("lines with a mark", "t.jsonl", '\ufeff{"x":1}\n{"x":2}'.encode(), {"x": [1, 2]}),
    ("lines of UTF-16", "t.jsonl", '{"x":"ö"}\n'.encode("utf-16"), {"x": ["ö"]}),
    ("lines that end in .json", "t.json", b'{"x":1}\n{"x":2}\n', {"x": [1, 2]}),
    ("one row", "t.json", b'{"x":1,"c":"u"}', {"x": [1], "c": ["u"]}),
    *(
        (orient, "t.json", FRAME.to_json(orient=orient).encode(), XC)
        for orient in ("records", "columns", "index", "split", "table")
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


REFUSED: list[tuple[str, str, bytes, tuple[object, ...]]] = [
    ("two cells more than names", "t.csv", b"y,p\n1,2,3,4\n", (0, 4, 2)),
    ("a cell after a separator too many", "t.csv",
     b"y,p\n" + b"1,2,\n".zfill(900) * 20 + b"1,2,far\n", ("'far'",)),
    ("half a character", "t.csv", "a,b\n1,2\n".encode("utf-16")[:-1], ("UTF-16",)),
    ("a line that is cut", "t.jsonl", b'{"x":1}\n\n{"x":2\n', ("line 3",)),
    ("a line that is no row", "t.jsonl", b'{"x":1}\n[2]\n', ("line 2", "[2]")),
    ("lines of Latin-1", "t.jsonl", '{"x":"ö"}'.encode("latin-1"), ("byte 6", "UTF-8")),
    ("values", "t.json", FRAME.to_json(orient="values").encode(), ("row 0", "records")),
    ("a number", "t.json", b"3", ("a number (3)",)),
    ("nothing", "t.json", b"", ("no JSON",)),
    ("uneven columns", "t.json", b'{"x":[1,2],"c":[1]}', ("x has 2", "c has 1")),
    ("an uneven split", "t.json", b'{"columns":["x"],"data":[[1,2]]}', ("row 0",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "says"), [pytest.param(*case[1:], id=case[0]) for case in REFUSED]
)
def test_a_file_that_is_no_table_is_refused_with_its_place(
    name: str, content: bytes, says: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with refused("table-unreadable", name, *says):
        read_frame(tmp_path / name)


def test_a_guess_of_the_encoding_names_the_byte(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a;b\n1;" + b"x" * 1_200_000 + b"\n1;\xe4\n")
    assert "byte 1200009" in how_read(read_frame(tmp_path / "t.csv"))[0][0]


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
