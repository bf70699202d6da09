"""What data are: `kind_of` says it of a path, `plain` of a value, and `read` reads either.

    table   .csv, .tsv, .txt (or .gz, .bz2, .xz, .zip), .parquet, .feather, .jsonl, .json, .xlsx
    npz     an .npz file, or a folder of .npy files
    images  a folder of folders of images

Tables of other libraries become DataFrames, and sparse matrices arrays; the libraries stay
unloaded. A table that converts itself (`to_pandas`: polars, pyarrow, Hugging Face, cuDF) is asked
to. Of others that speak Arrow (`__arrow_c_stream__`: DuckDB) pyarrow makes a table. What is not
computed yet is refused with the remedy.
"""

import bz2
import csv
import difflib
import gzip
import io
import json
import lzma
import math
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import pandas as pd

from nas_evidence.data.array_files import read_arrays
from nas_evidence.data.arrow_tables import (
    cells_of,
    frame_of,
    read_arrow,
    table_of_arrow,
)
from nas_evidence.data.assembly import FEWEST_ROWS, RowsRead
from nas_evidence.data.cells import VERSION, how_read, order_of, with_numbers_read
from nas_evidence.data.images import holds_images
from nas_evidence.data.mapped import Array
from nas_evidence.data.said import Said, listed
from nas_evidence.data.table_columns import Written
from nas_evidence.data.targets import column_values
from nas_evidence.data.typed import names_half_characters
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError, no_such_file
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.study import DatasetSpec

#: Endings of packed text files, and what opens them; an archive (.zip) may hold one file.
_PACKED = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zip": None}
TEXTS = tuple(f"{one}{more}" for one in (".csv", ".tsv", ".txt") for more in _PACKED)
_TABLES = (".parquet", ".pq", ".feather", ".jsonl", ".json", ".xlsx")
#: Maximum number of columns of a CSV file, and of characters of its first line.
MOST_COLUMNS, _LONGEST_HEAD = 100_000, 1 << 23
#: What may separate the cells of a line; how a spreadsheet says it in a line before the names.
_SEPARATORS = ",;\t|"
_SEPARATOR_LINE = re.compile(r'\s*"?sep=([,;\t|])"?\r?\n', re.IGNORECASE)
#: Characters of a text file that show what separates its cells.
_HEAD = 1 << 14
#: Words that are a missing cell of a text file or a spreadsheet, as pandas reads them.
_MISSING_WORDS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
    "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
#: Maximum number of cells of a sparse matrix, which is trained on as an array: 400 MB as float64.
MOST_CELLS = 50_000_000


def kind_of(path: Path) -> str | None:
    """Return the kind of data at a path, a name of [dataset]; None if it holds none.

    The ending of a file decides, whether or not it is there; of a folder, what is in it.

    Raises:
        ValueError: for a single array.
    """
    name = path.name.lower()
    if name.endswith((*TEXTS, *_TABLES)):
        return "table"
    if name.endswith(".npy"):
        raise UserError(
            "format-not-read",
            f"{path} is one array; put x_train.npy and y_train.npy into one folder and name that",
        )
    if name.endswith(".npz") or any(path.glob("x_t*.npy")):
        return "npz"
    return "images" if holds_images(path) else None


def read(
    data: Any, written: Mapping[str, Written] | None = None, also: Sequence[str] = ()
) -> pd.DataFrame | dict[str, Array]:
    """Return data as a table, or as arrays by name: x_train, y_train, x_test, y_test.

    Args:
        data: a path, a table of any library, an array, a tensor, or a sparse matrix.
        written: how the cells of the training rows are written, if these are others.
        also: further arrays to read from files.

    Raises:
        ValueError: if the data are missing, of another kind, or cannot be read.
    """
    if isinstance(data, str | Path):
        path = Path(data).expanduser()
        if not path.exists():
            raise no_such_file(path)
        if path.suffix == ".npy":
            return {"x_train": np.load(path, allow_pickle=False)}
        if (kind := kind_of(path)) == "npz":
            return read_arrays(path, also)
        if kind == "images":
            raise UserError(
                "images-for-a-table",
                f"{path} holds images, but the network was trained on a table; give a table with "
                "its columns",
            )
        return read_frame(path, written)
    data = plain(data)
    if isinstance(data, pd.Series):
        data = data.to_frame().T
    if not isinstance(data, pd.DataFrame):
        array = as_array(data)
        if not array.ndim:
            raise UserError(
                "data-of-no-kind",
                "data must be a path, a table, a dict of columns, a list of rows, an array or a "
                f"tensor, but got {type(data).__name__} ({shortened(data)})",
            )
        return {"x_train": array}
    return with_numbers_read(named(data, "the data"), written=written)


# --- values


def plain(data: Any) -> Any:
    """Return a DataFrame, Series or array for data of other libraries; other data as they are.

    Raises:
        ValueError: if they cannot be converted; one sentence with the remedy.
    """
    if hasattr(data, "toarray") and hasattr(data, "nnz"):
        _check_cells(data)
        return data.toarray()
    if isinstance(data, np.ndarray) and data.dtype.names:
        return pd.DataFrame(data)
    if isinstance(data, pd.DataFrame | pd.Series | pd.Index | np.ndarray):
        return data
    if isinstance(data, Mapping):
        indexes = [one for one in map(_index_of, data.values()) if one is not None]
        check_aligned(next(iter(indexes), None), data)
        return table_of({name: _column(str(name), one) for name, one in data.items()})
    if isinstance(data, list) and any(isinstance(row, Mapping) for row in data):
        return table_of(data)
    kind = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"
    try:
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "with_format"):
            return frame_of(table_of_arrow(data))
        if hasattr(data, "to_pandas"):
            return plain(data.to_pandas())
    except (ImportError, TypeError) as error:
        raise UserError(
            "table-not-converted",
            f"a {kind} is converted to pandas, which fails here ({error}); "
            "`pip install pyarrow`, or give a pandas DataFrame",
        ) from None
    if hasattr(data, "collect_schema"):
        raise UserError(
            "lazy-table",
            f"a {kind} cannot be read as it is; compute it and give a pandas DataFrame, a "
            "pyarrow.Table or a polars.DataFrame",
        )
    return data


def _column(name: str, values: Any) -> Any:
    """Return a column of a dict, which must not hold several tables, as a `DatasetDict` does."""
    if hasattr(values, "column_names") or getattr(values, "ndim", 0) > 1:
        raise UserError(
            "dict-of-tables",
            f"a dict must hold columns, but {name!r} is a {type(values).__name__} of several; "
            f"give one table, as with data[{name!r}], or arrays as X and y",
        )
    array = hasattr(values, "detach") or hasattr(values, "toarray")
    return as_array(plain(values)) if array else values


def table_of(value: Any) -> pd.DataFrame:
    """Return rows as a list, one row, or columns by name as a table, as JSON or Python has them.

    Raises:
        ValueError: they are none, or columns have different lengths.

    >>> table_of([{"x": 1}, {"x": 2}])["x"].tolist(), table_of({"x": [1, 2]})["x"].tolist()
    ([1, 2], [1, 2])
    >>> table_of({"x": 1}).shape, table_of({"x": {"0": 1, "1": 2}})["x"].tolist()
    ((1, 1), [1, 2])
    """
    if isinstance(value, Mapping):
        first = next(iter(value.values()), None)
        by_row = "0" in value and isinstance(first, Mapping) and "0" not in first
        if by_row or {"data"} < {*value} <= {"columns", "data", "index", "index_names", "schema"}:
            raise UserError(
                "json-orient",
                f"it begins with {next(iter(value))!r}, as rows by number or a split table do; "
                "write rows or columns, as pandas does with orient='records' or 'columns'",
            )
        if not any(
            hasattr(one, "__len__") and not isinstance(one, str | bytes) for one in value.values()
        ):
            value = [value]
    elif not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise UserError(
            "json-no-table",
            'a table is a list of rows that name their columns, as in [{"x": 1}], or an object of '
            f"columns, but it is {shortened(value)}",
        )
    try:
        return pd.DataFrame(value, dtype=object)
    except ValueError as error:
        raise UserError(
            "json-columns-differ", f"columns must have equal lengths: {error}"
        ) from None


def named(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """Return a table whose names are text, each with one column; several levels are one name.

    Args:
        frame: a table; the names of its columns may be numbers or tuples.
        where: its place, for messages.

    Raises:
        ValueError: a name occurs twice.
    """
    names = [str(name) for name in frame.columns]
    with names_half_characters(f"a column name of {where}", names):
        frame = frame.set_axis(pd.Index(names), axis=1)
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise UserError(
            "column-twice-given",
            f"{where} must name each column once, but {twice!r} occurs "
            f"{list(frame.columns).count(twice)} times; rename or remove the others",
        )
    return frame


def _of_tensor(values: Any) -> Array:
    """Return a tensor of any layout and type as an array; types that numpy lacks as float32."""
    values = values.detach().cpu()
    if str(values.layout) != "torch.strided":  # sparse
        _check_cells(values)
        values = values.to_dense()
    try:
        return np.asarray(values.resolve_conj().resolve_neg().numpy())
    except TypeError:  # bfloat16, float8
        return np.asarray(values.float().numpy())


def _check_cells(matrix: Any) -> None:
    cells = math.prod(matrix.shape)
    if cells > MOST_CELLS:
        raise UserError(
            "sparse-matrix-too-large",
            f"a sparse matrix {list(matrix.shape)} has {cells:,} cells, and at most "
            f"{MOST_CELLS:,} are trained on; reduce its columns, as with "
            "sklearn.decomposition.TruncatedSVD",
        )


def as_array(values: Any) -> Array:
    """Return what `plain` returned, or a tensor, as an array."""
    if hasattr(values, "detach"):
        values = _of_tensor(values)
    if isinstance(values, pd.Series | pd.DataFrame | pd.Index):
        values = values.to_numpy()
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "biuf":
        whole = values.mask is np.ma.nomask or not values.mask.any()
        return values.data if whole else np.ma.filled(values.astype(np.float64), np.nan)
    try:
        return np.asarray(values)
    except ValueError as error:
        raise UserError(
            "rows-of-several-lengths",
            f"rows must have equal lengths; fill those that are missing with NaN ({error})",
        ) from None


def _index_of(data: Any) -> pd.Index | None:
    """Return the index of a DataFrame or Series; None of what has only positions."""
    return data.index if isinstance(data, pd.DataFrame | pd.Series) else None


def check_aligned(data: Any, others: Mapping[str, Any]) -> None:
    """Check that what pandas objects say of rows has their index, in their order.

    Arrays, lists and tables of other libraries are taken by position.

    Args:
        data: the rows, or their index; None if they have none.
        others: values of each row by their name, such as y.

    Raises:
        ValueError: if an index is another one; names the first row, and the remedies.
    """
    rows = data if isinstance(data, pd.Index) else _index_of(data)
    for name, one in others.items():
        own = _index_of(one)
        if rows is None or own is None or len(own) != len(rows) or own.equals(rows):
            continue
        row = next((i for i, (a, b) in enumerate(zip(rows, own, strict=True)) if a != b), 0)
        raise UserError(
            "index-not-aligned",
            f"{name} must have the index of the data, but row {row} is {shortened(rows[row])} in "
            f"the data and {shortened(own[row])} in {name}; align them with {name}.loc[X.index], "
            f"or give {name}.to_numpy() to take it by position",
        )


def texts_as_frame(x: Array) -> pd.DataFrame:
    """Return an array with text as a table with the columns x0, x1, ..."""
    return pd.DataFrame(x).infer_objects().add_prefix("x")


# --- files


def read_frame(
    path: Path,
    written: Mapping[str, Written] | None = None,
    *,
    stored: bool = False,
    kept: Collection[str] = (),
    target: str | None = None,
) -> pd.DataFrame:
    """Return the table in a file, of a spreadsheet the first sheet.

    Args:
        path: of the file.
        written: how the columns of the training rows are written, if these are others.
        stored: whether a study wrote the file: its columns are typed.
        kept: columns of categories, groups or classes, whose codes (007, 1.10) stay text.
        target: the column whose codes do if they are classes, which is to be found out.

    Raises:
        ValueError: if it is missing, of another kind, or cannot be read.
    """
    path = path.expanduser()
    if not path.is_file():
        raise UserError(
            "table-missing",
            f"data set 'table' needs the file {path.name} in {path.parent}, but it is not there",
            remedy="correct the path, or name the folder with data_root (--data-root)",
        )
    with _naming(path):
        if stored and path.suffix == ".parquet":
            return pd.read_parquet(io.BytesIO(path.read_bytes()))
        frame, said, comma = _table(path)
        of_text = path.name.lower().endswith((*TEXTS, ".xlsx"))
        return with_numbers_read(
            named(frame, path.name),
            comma=comma,
            written=written,
            said=said,
            kept=kept if of_text else {*kept, target or ""},
            target=target,
            missing=_MISSING_WORDS if of_text else (),
        )


def _table(path: Path) -> tuple[pd.DataFrame, list[Said], bool]:
    """Return a table as its file has it, sentences about it, and whether commas are decimal."""
    if path.name.lower().endswith(TEXTS):
        return _of_text(path)
    match path.suffix.lower():
        case ".parquet" | ".pq" | ".feather":
            return read_arrow(path), [], False
        case ".json" | ".jsonl":
            text, said = _text_of(path)
            return table_of(_json_of(text, lines=path.suffix.lower() == ".jsonl")), said, False
        case ".xlsx":
            sheets = pd.read_excel(
                path, sheet_name=None, engine="openpyxl", keep_default_na=False, na_values=[""]
            )
            first, frame = next(iter(sheets.items()))
            words = f"sheet {first!r} of {path.name} is read, the first of {len(sheets)}"
            return frame, [Said(words, about="sheet")] * (len(sheets) > 1), False
    endings = (*TEXTS[:: len(_PACKED)], *_TABLES)
    raise UserError("table-ending", f"its name must end in {', '.join(endings)}")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file of whatever goes wrong when a table is read, and the remedy."""
    try:
        yield
    except ImportError as error:
        needed = "openpyxl" if "openpyxl" in str(error) else "pyarrow"
        raise UserError(
            "table-needs-package",
            f"{path} cannot be read without {needed} ({error}); `pip install {needed}`",
        ) from None
    except (
        OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, RuntimeError,
        lzma.LZMAError, zlib.error, BadZipFile, csv.Error,
    ) as error:  # fmt: skip
        why = (str(error) or type(error).__name__).splitlines()[0]
        known = isinstance(error, UserError | json.JSONDecodeError)
        raise UserError(
            "table-unreadable",
            f"{path} cannot be read as a table: {why}",
            remedy="" if known else "write or download it again",
        ) from None


def _json_of(text: str, *, lines: bool) -> Any:
    """Return the value of JSON, or the rows of JSON Lines; such a line ends with a line feed."""
    try:
        if not lines:
            return parsed_json(text, once=True)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            rows += [parsed_json(line, once=True)] if line.strip() else []
        except ValueError as error:
            raise UserError("json-line", f"line {number}: {error}; correct it") from None
    return rows


def _text_of(path: Path) -> tuple[str, list[Said]]:
    """Return the text in a file, packed or not, and a sentence if its encoding is a guess."""
    opened, said = _PACKED.get(path.suffix.lower(), open), list[Said]()
    if opened is None:
        with ZipFile(path) as archive:
            there = [one for one in archive.namelist() if not one.endswith(("/", ".DS_Store"))]
            names = [one for one in there if not one.startswith("__MACOSX/")]
            if len(names) != 1:
                raise UserError(
                    "archive-of-no-table",
                    f"the archive holds {len(names)} files, not one table; unpack it",
                )
            content = archive.read(names[0])
    else:
        with opened(path, "rb") as file:
            content = file.read()
    encoding = json.detect_encoding(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if not encoding.startswith("utf-8"):
            raise UserError(
                "text-not-decoded",
                f"byte {error.start} is not {encoding.upper()}; save it as UTF-8",
            ) from None
        text = content.decode("cp1252", "backslashreplace")
        words = f"{path.name} is read as Windows-1252, since byte {error.start} is not UTF-8"
        said = [Said(words, remedy="if letters are wrong, save it as UTF-8")]
    if "\0" in text:
        raise UserError(
            "text-of-another-format",
            "it holds NUL characters, as other formats than text do; save it as CSV in UTF-8",
        )
    if "\r" in text and text.count("\r") > text.count("\r\n"):
        line = re.split(r"\r(?!\n)", text, maxsplit=1)[0].count("\n") + 1
        raise UserError(
            "carriage-return",
            f"line {line} has a carriage return without a line feed; save it with line feeds "
            "(\\n) at the ends of lines, and without returns in cells",
        )
    return text, said


def _of_text(path: Path) -> tuple[pd.DataFrame, list[Said], bool]:
    """Return the cells of a text file as text, sentences, and whether commas are decimal."""
    text, said = _text_of(path)
    if asked := _SEPARATOR_LINE.match(text):
        text = text[asked.end() :]
    separator = asked[1] if asked else _separator(path, text[:_HEAD])
    lines = io.StringIO(text[:_LONGEST_HEAD], newline="")
    rows = (row for row in csv.reader(lines, delimiter=separator) if any(map(str.strip, row)))
    names, n_lines = [name.strip() for name in next(rows, [])], text[: lines.tell()].count("\n")
    if not names:
        raise UserError("table-empty", "it is empty; a table has a line of names, then rows")
    if len(names) > MOST_COLUMNS or lines.tell() >= _LONGEST_HEAD:
        raise UserError(
            "too-many-columns",
            f"it has more than {MOST_COLUMNS:,} columns; keep those that can matter",
        )
    names = [name or f"Unnamed: {k}" for k, name in enumerate(names)]
    text = text[lines.tell() :]  # of a large file no second copy
    frame = None if text.count('"') % 2 else cells_of(text, names, separator)
    if frame is None:
        rows_read, ends = _uneven(text, names, separator, n_lines)
        frame = pd.DataFrame(rows_read, columns=names, dtype=object)
        if ends:
            count = "a separator" if ends == 1 else f"{ends} separators"
            said.append(Said(f"rows of {path.name} end with {count} too many, which is left out"))
    return frame, said, separator == ";"


def _uneven(
    body: str, names: Sequence[str], separator: str, n_lines: int
) -> tuple[list[list[str]], int]:
    """Return rows with a cell for each name, blank where missing, and how many separators more.

    `n_lines` stand before the body.
    """
    found, ends, line = list[list[str]](), 0, n_lines + 1
    reader = csv.reader(io.StringIO(body, newline=""), delimiter=separator, strict=True)
    try:
        for row in reader:
            if any(map(str.strip, more := row[len(names) :])):
                title = "remove a title before the names, " if len(names) == 1 else ""
                raise UserError(
                    "names-fewer-than-cells",
                    f"line {line} has {len(row)} cells, but the line of names has {len(names)}; "
                    f"{title}name each column, that of row names too, or quote cells with a "
                    "separator in them",
                )
            ends, line = max(ends, len(more)), n_lines + reader.line_num + 1
            if len(row) > 1 or (row and row[0].strip()):
                found.append((row + [""] * len(names))[: len(names)])
    except csv.Error as error:
        raise UserError(
            "quote-open", f"line {line}: {error}; close each quote that begins a cell"
        ) from None
    return found, ends


def _separator(path: Path, head: str) -> str:
    """Return the separator that the head of a file uses; a comma if that is unclear."""
    try:
        return csv.Sniffer().sniff(head, delimiters=_SEPARATORS).delimiter
    except csv.Error:  # rows unlike the names, or a single column
        names = head.partition("\n")[0]
        most = max(_SEPARATORS, key=names.count)
        return most if most in names else "\t" if ".tsv" in path.suffixes else ","


def as_written(path: Path) -> pd.DataFrame:
    """Return a table to copy columns from: the cells of a text file as text.

    Raises:
        ValueError: as `read_frame`.
    """
    with _naming(path):
        return named(_table(path)[0], path.name)


def check_words(frame: pd.DataFrame, path: Path, target: str | None) -> None:
    """Check that no class of a file has a name that is read as a missing cell, such as None.

    Raises:
        ValueError: if the target is text with such a cell; names the word, its row and the remedy.
    """
    if target not in frame.columns or pd.api.types.is_numeric_dtype(frame[target]):
        return
    if not frame[target].isna().any() or not path.name.lower().endswith((*TEXTS, ".xlsx")):
        return
    cells = as_written(path)[target].astype(str).str.strip()
    if len(rows := np.flatnonzero(cells.isin(_MISSING_WORDS))):
        raise UserError(
            "class-named-as-missing",
            f"target {target!r} in {path.name}: {len(rows)} of {len(frame)} cells are read as "
            f"missing, the first is {cells.iloc[rows[0]]!r} in row {rows[0]}; write another word "
            "if it is a class, or remove those rows",
        )


def known_column(frame: pd.DataFrame, name: str | None, where: str) -> str:
    """Return the name of a column, which the table must have."""
    if name is None or name not in frame.columns:
        near = difflib.get_close_matches(str(name), list(frame.columns), n=1)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else (
                "the first line must hold the names, separated by commas, semicolons, tabs or bars"
            )
        )
        sheet = "".join(f"; {said}" for said in how_read(frame)[0] if said.about == "sheet")
        raise UserError(
            "no-such-column",
            f"{where} has no column {name!r}; {hint} (columns: {listed(frame.columns)}){sheet}",
        )
    return name


def rows_of_table(
    frame: pd.DataFrame, test: pd.DataFrame | None, spec: DatasetSpec, where: str
) -> RowsRead:
    """Return a table, and one of test rows, as rows whose target is `spec.target`.

    Raises:
        ValueError: if it has too few rows, or not the columns that `spec` names.
    """
    there = f"the test rows of {where}"
    targets = targets_in(frame, spec.target) or (known_column(frame, spec.target, where),)
    y = _targets(frame, targets, where)
    _check_notation(frame, targets, spec.task, where)
    if len(frame) < FEWEST_ROWS:
        raise UserError(
            "table-too-short",
            f"{where} has {len(frame)} rows, but a study needs at least {FEWEST_ROWS}; add rows, "
            "or transpose it if each column is an example",
        )

    def cells(name: str | None, table: pd.DataFrame | None, place: str) -> pd.Series | None:
        named = name is not None and table is not None
        return table[known_column(table, name, place)] if named else None  # type: ignore[index]

    return RowsRead(
        frame.drop(columns=[*targets, *spec.columns_of_rows], errors="ignore"),
        y,
        test,
        None if test is None else _targets(test, targets, there),
        where,
        f"target {spec.target!r} in {where}",
        targets=targets,
        units=cells(spec.units_column, frame, where),
        weights=(cells(spec.weights, frame, where), cells(spec.weights, test, there)),
        read=how_read(frame),
        before=VERSION not in frame.attrs,
    )


def targets_in(frame: pd.DataFrame, target: str | None) -> tuple[str, ...]:
    """Return the columns that a target names: one, or several separated by commas; () if not all.

    >>> targets_in(pd.DataFrame(columns=["a", "b", "c"]), "a, c")
    ('a', 'c')
    """
    if target is None or target in frame.columns:
        return () if target is None else (target,)
    names = tuple(name.strip() for name in target.split(","))
    return names if {*names} <= {*frame.columns} else ()


def _targets(frame: pd.DataFrame, targets: Sequence[str], where: str) -> Array:
    columns = [_target(frame, target, where) for target in targets]
    if len(columns) > 1 and (np.isin(columns, (0, 1)) | pd.isna(columns)).all():
        raise UserError(
            "several-targets-of-classes",
            f"the columns {', '.join(targets)} of {where} hold 0 and 1 alone, but several targets "
            "must be real numbers; give one column with the class, or search once for each",
        )
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _check_notation(
    frame: pd.DataFrame, targets: Sequence[str], task: str | None, where: str
) -> None:
    """Check that targets of text, too many for classes, are no numbers of two notations."""
    classes = task is None or TARGET_KINDS[task].classes
    for said in how_read(frame)[0]:
        if said.about == "not read" and said.column in targets:
            if classes and frame[said.column].nunique(dropna=False) <= max(2, len(frame) // 2):
                continue
            raise UserError(
                "target-of-two-notations",
                f"target {said.column!r} in {where} {said._replace(column=None)}",
            )


def _target(frame: pd.DataFrame, target: str, where: str) -> Array:
    values = frame[known_column(frame, target, where)]
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if order_of(values.dropna()):
        raise UserError(
            "target-of-dates",
            f"target {target!r} in {where} holds dates; replace them by numbers or by classes",
        )
    return column_values(values)
