"""Files of tables, as in public reports, are read as meant or refused in a sentence."""

import gzip
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from messages import refused
from table_sources import Y, Z, every, said, study, written

import nas_evidence
from nas_evidence import search
from nas_evidence.api.request import asked_for
from nas_evidence.data import exact_text, load
from nas_evidence.data.cells import READ, how_read, with_numbers_read
from nas_evidence.data.exact_text import read_csv, to_numeric
from nas_evidence.data.reading import as_written, read, read_frame
from nas_evidence.spec.dataset import DatasetSpec

CASES = tomllib.loads((Path(__file__).parent / "cases.toml").read_text("utf-8"))
N = 40
BASE = pd.DataFrame({"x": Z[:N], "y": Y[:N]})


def of(section: str) -> list[Any]:
    """Return the cases of files with their names, each under its claim."""
    return [
        pytest.param(name, text.encode(*encoding), gives, id=claim)
        for name, cases in CASES[section].items()
        for claim, (text, gives, *encoding) in cases.items()
    ]


@pytest.mark.parametrize(("name", "content", "gives"), of("read"))
def test_a_file_is_read_as_it_was_meant(
    name: str, content: bytes, gives: dict[str, list[Any]], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    for found in (read_frame(tmp_path / name), read(str(tmp_path / name))):  # as `predict`
        assert isinstance(found, pd.DataFrame)
        assert found.to_dict("list") == gives


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


def test_rows_that_end_early_lack_their_last_cells(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("p,c,d\n1,u,2\n3,v\n\n")
    missing = read_frame(tmp_path / "t.csv").isna().to_numpy().tolist()
    assert missing == [[False] * 3, [False, False, True]]


CUT, LONG = gzip.compress(b"x,y\n1,2\n" * 99)[:20], ",".join(f"g{i}" for i in range(1_000_000))
#: Files of bytes, or long ones.
BROKEN: list[tuple[str, str, bytes, tuple[object, ...]]] = [
    ("a cell after a separator too many", "t.csv",
     b"y,p\n" + b"1,2,\n".zfill(900) * 20 + b"1,2,far\n", ("line 22",)),
    ("commas in the first and other cells", "t.csv",
     b"y,x,c\n" + b"1,2,a,b\n1,2,a\n" * 900, ("line 2 has 4", "names has 3")),
    ("gzip without its ending", "t.csv", gzip.compress(b"a,b\n1,2\n"), ("NUL",)),
    ("packed twice", "t.csv.gz", gzip.compress(gzip.compress(b"a,b\n1,2\n")), ("NUL",)),
    ("packed and cut", "t.csv.gz", CUT, ("write or download",)),
    ("UTF-16 that is cut", "t.csv", "a,b\n1,2\n".encode("utf-16")[:-1], ("UTF-16",)),
    ("a million columns", "t.csv", LONG.encode(), ("100,000 columns",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [*of("no_table"), *(pytest.param(*case, id=claim) for claim, *case in BROKEN)],
)
def test_a_file_that_is_no_table_is_refused_with_its_place(
    name: str, content: bytes, says: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    # as_written is for the columns of --id, which may hold any text
    for read_it in (read_frame, as_written)[: 1 if b"\\ud83d" in content else 2]:
        with refused("table-unreadable", name, *says):
            read_it(tmp_path / name)


@pytest.mark.parametrize("claim", CASES["no_study"])
def test_tables_that_cannot_be_used_are_one_sentence(claim: str, tmp_path: Path) -> None:
    text, code, says, *keys = CASES["no_study"][claim]
    names, *lines = text.splitlines()
    (tmp_path / "t.csv").write_text("\n".join([names, *every(lines, N)]))
    with refused(code, *says):
        study(tmp_path / "t.csv", **dict(*keys))


def test_a_guess_of_the_encoding_names_the_byte(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a;b\n1;" + b"x" * 1_200_000 + b"\n1;\xe4\n")
    assert "byte 1200009" in str(how_read(read_frame(tmp_path / "t.csv"))[0][0])


@pytest.mark.parametrize("word", ["None", "NA", "null", "n/a"])
@pytest.mark.parametrize("part", ["path", "test_path"])
def test_a_class_named_as_a_missing_cell_is_not_to_be_removed(
    word: str, part: str, tmp_path: Path
) -> None:
    for name, value in (("path", "bad"), (part, word)):
        written(BASE.assign(y=every(["mild", value], N)), tmp_path / f"{name}.csv")
    more = {"test_path": str(tmp_path / "test_path.csv")} if part == "test_path" else {}
    with refused("class-named-as-missing", "'y'", word, N // 2, "row 1"):
        study(tmp_path / "path.csv", **more)


def test_the_index_that_pandas_wrote_is_left_out_in_any_order_of_the_rows(tmp_path: Path) -> None:
    BASE.sample(frac=0.6, random_state=0).to_csv(tmp_path / "t.csv")
    found = study(tmp_path / "t.csv").meaning
    assert found.preparation is not None
    assert found.preparation.feature_names == ("x",)
    assert "'Unnamed: 0' is left out" in " ".join(found.said)


# --- spreadsheets and archives


def test_a_spreadsheet_names_what_reads_it_and_the_sheet_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sheets(_: Path, keep_default_na: bool = True, **how: Any) -> Any:
        frame = BASE.assign(y=every(["mild", None if keep_default_na else "None"], N))
        return {"sheet": frame} if "sheet_name" in how else frame

    path = tmp_path / "t.xlsx"
    path.write_bytes(b"PK\x03\x04")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "openpyxl", None)
        with refused("table-needs-package", "openpyxl"):
            asked_for(str(path), (), {"target": "y"})
    monkeypatch.setattr(pd, "read_excel", lambda *_, **__: {"a": BASE})
    np.testing.assert_array_equal(study(path).x_train, study(BASE).x_train)
    cover = pd.DataFrame({"Sales": ["see data"], "Unnamed: 1": [None]})
    monkeypatch.setattr(pd, "read_excel", lambda *_, **__: {"cover": cover, "data": BASE})
    first = "sheet 'cover' of t.xlsx is read, the first of 2"
    with refused("no-such-column", "'y'", first):
        asked_for(str(path), (), {"target": "y"})
    monkeypatch.setattr(pd, "read_excel", sheets)
    with refused("class-named-as-missing", "'None'"):
        study(path)


def test_a_file_that_only_has_the_ending_of_a_spreadsheet_is_told_so(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    (tmp_path / "t.xlsx").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="not a zip file; write or download it again"):
        read_frame(tmp_path / "t.xlsx")


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.parquet.gz", "t.zip", "t.xls"])
def test_a_file_of_another_ending_is_refused_with_those_that_are_read(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"{}"))
    with refused("table-unreadable", name, ".csv", ".parquet"):
        read(str(tmp_path / name))


@pytest.mark.parametrize("beside", [[], ["__MACOSX/._t.csv", ".DS_Store"], ["test.csv"]])
def test_a_table_alone_in_an_archive_is_read(beside: list[str], tmp_path: Path) -> None:
    written(BASE, tmp_path / "t.csv")
    with ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        for name in beside:
            archive.writestr(name, b"\x00\x05")
        archive.write(tmp_path / "t.csv", "data/t.csv")
    if "test.csv" in beside:
        with pytest.raises(ValueError, match="archive holds 2 files, not one table; unpack it"):
            read_frame(tmp_path / "t.csv.zip")
        return
    pd.testing.assert_frame_equal(
        read_frame(tmp_path / "t.csv.zip"), read_frame(tmp_path / "t.csv")
    )


def test_what_is_no_file_of_a_table_is_told_so(tmp_path: Path) -> None:
    """It is no study file with a mistake either."""
    (tmp_path / "t.dta").write_bytes(b"\xff\x00 a = b")
    with refused("file-of-no-kind", "t.dta", "Parquet"):
        search(tmp_path / "t.dta", target="y")
    with pytest.raises(ValueError, match="is an address, not a file; download it first"):
        search("https://example.org/t.csv", target="y")
    spec = DatasetSpec(name="table", path="gone.csv", target="y")
    with pytest.raises(ValueError, match=r"needs the file gone\.csv .*--data-root"):
        load(spec, seed=0)


# --- what pandas notes in a file


@pytest.mark.parametrize("key", ["index_columns", "pandas_type"])
def test_parquet_whose_notes_of_pandas_have_a_flipped_bit_is_read(
    key: str, tmp_path: Path
) -> None:
    path, table = tmp_path / "t.parquet", pa.Table.from_pandas(BASE)
    notes = table.schema.metadata[b"pandas"].replace(key.encode(), b"q" + key[1:].encode())
    pq.write_table(table.replace_schema_metadata({"pandas": notes}), path)
    assert [*read_frame(path).columns] == [*BASE.columns]


@pytest.mark.parametrize("attributes", [b"5", b"[1]", b'"text"', b"null", b"{broken"])
def test_attributes_of_another_kind_are_passed_over(attributes: bytes, tmp_path: Path) -> None:
    found = pa.Table.from_pandas(BASE)
    metadata = {**found.schema.metadata, b"PANDAS_ATTRS": attributes}
    pq.write_table(found.replace_schema_metadata(metadata), tmp_path / "t.parquet")
    assert read_frame(tmp_path / "t.parquet").shape == BASE.shape


def test_the_attributes_of_a_table_are_not_taken_for_our_words(tmp_path: Path) -> None:
    frame = BASE.copy()
    frame.attrs = {READ: ["buy now"]}
    assert how_read(read_frame(written(frame, tmp_path / "t.parquet")))[0] == ()
    assert "buy now" not in said(frame)


def test_a_dictionary_of_numbers_that_arrow_wrote_stays_categories(tmp_path: Path) -> None:
    codes = pa.array(every([3, 1, None], N)).dictionary_encode()
    pq.write_table(pa.table({"c": codes, "x": BASE["x"], "y": Y[:N]}), tmp_path / "t.parquet")
    found = study(tmp_path / "t.parquet").meaning.preparation
    assert {"c = 1", "c = 3"} <= {*found.feature_names}


def test_an_index_is_a_column_of_a_parquet_file_as_in_csv_and_of_a_frame_is_left_out(
    tmp_path: Path,
) -> None:
    frame = BASE.set_index(pd.Index([f"row {i}" for i in range(N)], name="id"))
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv")
    for name in ("t.parquet", "t.csv"):
        assert [*read_frame(tmp_path / name)] == ["id", *frame]
    told = "the index of the rows ('id') is left out; reset_index() to use it"
    assert told in said(frame.set_index(pd.Index(range(N)), append=True))
    assert told not in said(BASE)


# --- numbers of text, to the last bit under every pandas

X = np.random.default_rng(0).normal(size=1000)
TEXTS = pd.Series([repr(float(x)) for x in X], range(5, 1005), name="x")


def test_numbers_of_a_file_and_of_cells_are_those_of_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TEXTS.to_csv(tmp_path / "t.csv", index=False)
    np.testing.assert_array_equal(read_csv(tmp_path / "t.csv")["x"], X)
    right = pd.to_numeric
    for name in ("read_csv", "to_numeric"):  # those of pandas 2 are a bit off
        monkeypatch.setattr(pd, name, lambda one, errors: right(one, errors=errors) * (1 + 2**-52))
    monkeypatch.setattr(exact_text, "_IS_EXACT", False)
    np.testing.assert_array_equal(read_frame(tmp_path / "t.csv")["x"], X)
    commas = pd.DataFrame({"x": TEXTS.str.replace(".", ",")})
    np.testing.assert_array_equal(with_numbers_read(commas)["x"], X)
    for kind in (object, "string"):
        np.testing.assert_array_equal(to_numeric(TEXTS.astype(kind)), X)
        cells = pd.Series(["0.1", None, "none", " 1e-3", "inf"], dtype=kind)
        found = to_numeric(cells, errors="coerce").to_numpy(float, na_value=np.nan)
        np.testing.assert_array_equal(found, [0.1, np.nan, np.nan, 1e-3, np.inf])
    with pytest.raises(ValueError, match="none"):
        to_numeric(cells)


def test_no_other_file_has_pandas_read_numbers_of_text() -> None:
    called = re.compile(r"\bpd\.(read_csv|read_table|read_json|to_numeric)\(")
    package = Path(nas_evidence.__file__).parent
    found = {file.name for file in package.rglob("*.py") if called.search(file.read_text())}
    assert found == {"exact_text.py"}


def test_integers_that_no_type_holds_stay_apart(tmp_path: Path) -> None:
    numbers = [None, 10**22, 10**22 + 1]
    pd.DataFrame({"a": pd.Series(numbers, dtype=object), "b": 1}).to_csv(tmp_path / "t.csv")
    assert read_frame(tmp_path / "t.csv")["a"].dropna().tolist() == [*map(str, numbers[1:])]
