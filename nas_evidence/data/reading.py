"""What data are: `kind_of` says it of a path, `plain` of a value, and `read` reads either.

    table   .csv, .tsv, .txt (plain, .gz, .bz2 or .xz), .parquet, .feather, .jsonl, .json, .xlsx
    npz     an .npz file, or a folder of .npy files
    images  a folder of folders of images

Tables of other libraries become DataFrames, and sparse matrices arrays; the libraries stay
unloaded. A table that converts itself (`to_pandas`: polars, pyarrow, Hugging Face, cuDF) is asked
to. Of others that speak Arrow (`__arrow_c_stream__`: DuckDB) pyarrow makes a table. What is not
computed yet is refused with the remedy.
"""

import bz2
import codecs
import csv
import difflib
import gzip
import lzma
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from nas_evidence.data.array_files import images_below, read_arrays, read_images
from nas_evidence.data.assembly import FEWEST_ROWS, Rows
from nas_evidence.data.cells import (
    Written,
    decimal_comma,
    has_groups,
    how_read,
    note_written,
    order_of,
    with_numbers_read,
)
from nas_evidence.data.exact_text import read_csv
from nas_evidence.data.mapped import Array
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError, no_such_file
from nas_evidence.spec.study import DatasetSpec

#: Endings of packed text files, and what opens them.
_PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
TEXTS = tuple(f"{one}{more}" for one in (".csv", ".tsv", ".txt") for more in ("", *_PACKED))


def _by_arrow(read: Callable[[Any], pd.DataFrame], path: Path) -> pd.DataFrame:
    """Read a file with Arrow; one whose path is not UTF-8 is opened here, as Arrow cannot."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with path.open("rb") as file:
            return read(file)
    return read(path)


#: Endings of other tables, and what reads them.
_TABLES: dict[str, Callable[[Path], Any]] = {
    ".parquet": lambda path: _of_parquet(_by_arrow(pd.read_parquet, path)),
    ".pq": lambda path: _of_parquet(_by_arrow(pd.read_parquet, path)),
    ".feather": lambda path: _by_arrow(pd.read_feather, path),
    ".jsonl": lambda path: pd.DataFrame(map(parsed_json, _lines(path))),
    ".json": lambda path: pd.DataFrame(parsed_json(path.read_text(encoding="utf-8"))),
    ".xlsx": lambda path: pd.read_excel(path, sheet_name=None, engine="openpyxl"),
}
#: What pandas needs to read these.
_NEEDED = dict.fromkeys((".parquet", ".pq", ".feather"), "pyarrow") | {".xlsx": "openpyxl"}
#: Endings of data in other formats, with the remedy.
_OTHERS = {
    ".xls": "save the sheet as CSV",
    ".arff": "write it as CSV",
    ".npy": "put x_train.npy and y_train.npy into one folder and name that",
    ".pkl": "write it with pandas.DataFrame.to_parquet, or numpy.savez",
    ".pt": "write it with numpy.savez",
}
#: Where the file has no row for a message, the largest number of columns listed.
_LISTED = 12
#: Most columns of a CSV file, and the length of its first line, characters.
MOST_COLUMNS, _LONGEST_HEAD = 100_000, 1 << 23
#: What pandas says of a line with more cells than names.
_TOO_LONG = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
#: From so many columns on, rows are counted before all is read.
_MANY = 1000
#: Most cells of a sparse matrix, which is trained on as an array: 400 MB as float64.
MOST_CELLS = 50_000_000


def kind_of(path: Path) -> str | None:
    """Return the kind of data at a path, a name of [dataset]; None if it holds none.

    The ending of a file decides, whether or not it is there; of a folder, what is in it.

    Raises:
        ValueError: for a format that is not read; names the remedy.
    """
    name = path.name.lower()
    for ending, remedy in _OTHERS.items():
        if name.endswith(ending):
            raise UserError(f"{path} is in a format that is not read; {remedy}.").with_code(
                "format-not-read"
            )
    if name.endswith((*TEXTS, *_TABLES)):
        return "table"
    if name.endswith(".npz") or any(path.glob("x_t*.npy")):
        return "npz"
    return "images" if next(images_below(path), None) is not None else None


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
        return read_images(path) if kind == "images" else read_frame(path, written)
    data = plain(data)
    if isinstance(data, pd.Series):
        data = data.to_frame().T
    if not isinstance(data, pd.DataFrame):
        return {"x_train": as_array(data)}
    return with_numbers_read(data.set_axis(data.columns.map(str), axis=1), written=written)


# --- values


def plain(data: Any) -> Any:
    """Return a DataFrame, Series or array for data of other libraries; other data as they are.

    Raises:
        ValueError: if they cannot be converted; one sentence with the remedy.
    """
    if isinstance(data, pd.DataFrame):
        return _dense(data)
    if hasattr(data, "toarray") and hasattr(data, "nnz"):
        cells = int(np.prod(data.shape))
        if cells > MOST_CELLS:
            raise UserError(
                f"a sparse matrix {list(data.shape)} has {cells:,} cells, and at most "
                f"{MOST_CELLS:,} are trained on; reduce its columns, as with "
                "sklearn.decomposition.TruncatedSVD"
            ).with_code("sparse-matrix-too-large")
        return data.toarray()
    if isinstance(data, pd.Series | pd.Index | np.ndarray):
        return data
    kind = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"
    try:
        if hasattr(data, "to_pandas"):
            return plain(data.to_pandas())
        if hasattr(data, "__arrow_c_stream__"):
            import pyarrow  # late: predictions of arrays do without

            return pyarrow.table(data).to_pandas()
    except ImportError as error:
        raise UserError(
            f"a {kind} is converted to pandas, which fails here ({error}); "
            "`pip install pyarrow`, or give a pandas DataFrame"
        ).with_code("table-not-converted") from None
    if hasattr(data, "collect_schema"):
        raise UserError(
            f"a {kind} cannot be read as it is; compute it and give a pandas DataFrame, a "
            "pyarrow.Table or a polars.DataFrame"
        ).with_code("lazy-table")
    return data


def _dense(frame: pd.DataFrame) -> pd.DataFrame:
    sparse = [isinstance(kind, pd.SparseDtype) for kind in frame.dtypes]
    if not any(sparse):
        return frame
    columns = [
        frame.iloc[:, i].sparse.to_dense() if sparse[i] else frame.iloc[:, i]
        for i in range(frame.shape[1])
    ]
    return pd.concat(columns, axis=1)


def as_array(values: Any) -> Array:
    """Return what `plain` returned, or a tensor, as an array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, pd.Series | pd.DataFrame | pd.Index):
        values = values.to_numpy()
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "biuf":
        whole = values.mask is np.ma.nomask or not values.mask.any()
        return values.data if whole else np.ma.filled(values.astype(np.float64), np.nan)
    return np.asarray(values)


def texts_as_frame(x: Array) -> pd.DataFrame:
    """Return an array with text as a table with the columns x0, x1, ..."""
    return pd.DataFrame(x).infer_objects().add_prefix("x")


# --- files


def read_frame(
    path: Path, written: Mapping[str, Written] | None = None, *, stored: bool = False
) -> pd.DataFrame:
    """Return the table in a file, of a spreadsheet the first sheet.

    Args:
        path: of the file.
        written: how the columns of the training rows are written, if these are others.
        stored: whether a study wrote the file: its numbers are numbers.

    Raises:
        ValueError: if it is missing, of another kind, or cannot be read.
    """
    path = path.expanduser()
    if not path.is_file():
        raise UserError(
            f"data set 'table' needs the file {path.name} in {path.parent}, but it is not there; "
            "correct the path, or name the folder with --data-root"
        ).with_code("table-missing")
    said = []
    ending = path.suffix.lower()
    try:
        if path.name.lower().endswith(TEXTS):
            return _read_text(path, written or {})
        if ending not in _TABLES:
            raise UserError(
                f"its name must end in {', '.join((*TEXTS[::4], *_TABLES))}"
            ).with_code("table-ending")
        frame = _TABLES[ending](path)
        if isinstance(frame, dict):
            sheets = frame
            first, frame = next(iter(sheets.items()))
            if len(sheets) > 1:
                said.append(f"sheet {first!r} of {path.name} is read, the first of {len(sheets)}")
    except ImportError:
        needed = _NEEDED[ending]
        kind = "a spreadsheet" if needed == "openpyxl" else ending[1:].capitalize()
        raise UserError(
            f"{path} cannot be read here, because {kind} needs {needed}: `pip install {needed}`, "
            "or save the table as .csv"
        ).with_code("table-needs-package") from None
    except pd.errors.EmptyDataError:
        raise UserError(f"{path} is empty; a table has a line of names, then rows").with_code(
            "table-empty"
        ) from None
    except (
        OSError, EOFError, UnicodeError, ValueError, TypeError, KeyError, AttributeError,
        RecursionError, lzma.LZMAError, BadZipFile, pd.errors.ParserError,
    ) as error:  # fmt: skip
        raise UserError(f"{path} cannot be read as a table: {_why(error, ending)}").with_code(
            "table-unreadable"
        ) from None
    frame.columns = frame.columns.map(str)
    return frame if stored else with_numbers_read(frame, written=written, said=said)


def _why(error: Exception, ending: str) -> str:
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, KeyError):  # of pyarrow
        why = f"what pandas notes in it lacks {why}"
    if _NEEDED.get(ending) == "pyarrow":
        why += "; write it again, as with pandas.DataFrame.to_parquet"
    if isinstance(error, BadZipFile):
        why = "it is no .xlsx spreadsheet; save it as one, or as .csv"
    if found := _TOO_LONG.search(why):
        named, line, n_cells = found.groups()
        why = (
            f"line {line} has {n_cells} cells, but the line of names has {named}; correct "
            "that line, or quote cells with a separator in them"
        )
    return why


def _of_parquet(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with named levels of its index as columns, as in one of CSV."""
    return frame.reset_index([name for name in frame.index.names if name is not None])


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def as_written(path: Path) -> pd.DataFrame:
    """Return a table to copy columns from: the cells of a text file as text.

    Raises:
        ValueError: as `read_frame`.
    """
    if not path.name.lower().endswith(TEXTS):
        return read_frame(path, stored=True)
    encoding = _encoding(path)
    read = partial(read_csv, path, sep=_separator(path, encoding), dtype=str, na_filter=False)
    try:
        frame = read(encoding=encoding)
    except UnicodeDecodeError:
        frame = read(encoding="latin-1")
    return frame.set_axis(frame.columns.str.strip(), axis=1)


def _read_text(path: Path, written: Mapping[str, Written]) -> pd.DataFrame:
    """Read a file of separated values; its encoding and its decimal commas are found out."""
    said = []
    encoding = _encoding(path)
    separator = _separator(path, encoding)
    _check_head(path, separator, encoding)
    read = partial(read_csv, path, sep=separator, low_memory=False)
    try:
        frame = read(encoding=encoding)
    except UnicodeDecodeError as error:
        encoding = "latin-1"
        frame = read(encoding=encoding)
        said.append(f"{path.name} is read as Latin-1, since byte {error.start} is not UTF-8")
    frame.columns = frame.columns.map(lambda name: str(name).strip())
    comma = decimal_comma(frame, separator)
    numbers = [n for n in frame.columns if pd.api.types.is_numeric_dtype(frame[n])]
    other = [n for n in numbers if n in written and written[n].sign != "point"]
    dotted: list[str] = []
    if comma or other:
        texts = read(encoding=encoding, dtype=str).set_axis(frame.columns, axis=1)
        points = [n for n in numbers if n not in written and texts[n].map(_has_point).any()]
        grouped = [n for n in points if comma and has_groups(texts[n])]
        other, dotted = [*other, *grouped], [n for n in points if n not in grouped]
        frame = frame.assign(**{name: texts[name] for name in other})
    found = with_numbers_read(frame, comma=comma, written=written, said=said)
    signs = {n: Written("comma" if comma and n not in dotted else "point") for n in numbers}
    note_written(found, signs)
    return found


def _has_point(cell: object) -> bool:
    return isinstance(cell, str) and "." in cell


def _opened(path: Path, mode: str, **how: Any) -> Any:
    return _PACKED.get(path.suffix.lower(), open)(path, mode, **how)


def _encoding(path: Path) -> str:
    """Return the encoding that the first bytes of a file name, else UTF-8."""
    with _opened(path, "rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"


def _separator(path: Path, encoding: str = "utf-8") -> str:
    """Return the separator that the head of a file uses; a comma if that is unclear."""
    with _opened(path, "rt", encoding=encoding, errors="replace") as file:
        head = file.read(1 << 14)
    try:
        return csv.Sniffer().sniff(head, delimiters=",;\t|").delimiter
    except csv.Error:
        return "\t" if ".tsv" in path.suffixes else ","


def _check_head(path: Path, separator: str, encoding: str) -> None:
    """Check the names and the first rows of a CSV file before all of it is read.

    Raises:
        ValueError: a name occurs twice, which pandas would change, or there are too many columns.
    """
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    with _opened(path, "rt", encoding=encoding, errors="replace", newline="") as file:
        head = file.readline(_LONGEST_HEAD)
        while head and not head.strip():  # as pandas
            head = file.readline(_LONGEST_HEAD)
        names = [name.strip() for name in next(csv.reader([head], delimiter=separator), [])]
        if len(names) > MOST_COLUMNS or len(head) >= _LONGEST_HEAD:
            raise UserError(
                f"it has more than {MOST_COLUMNS:,} columns; keep those that can matter"
            ).with_code("too-many-columns")
        if len(names) > _MANY and len(list(islice(file, FEWEST_ROWS))) < FEWEST_ROWS:
            raise UserError(
                f"it has {len(names):,} columns and fewer than the {FEWEST_ROWS} rows that a "
                "study needs; if each column is an example, transpose it"
            ).with_code("table-transposed")
    twice = next((name for name, n in Counter(names).items() if n > 1 and name), None)
    if twice is not None:
        raise UserError(
            f"each column must have a name of its own, but {twice!r} occurs {names.count(twice)} "
            "times; rename or remove the others"
        ).with_code("column-twice")


def known_column(frame: pd.DataFrame, name: str | None, where: str) -> str:
    """Return the name of a column, which the table must have."""
    if name is None or name not in frame.columns:
        near = difflib.get_close_matches(str(name), list(frame.columns), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(map(shortened, frame.columns[:_LISTED])) + ", ..." * (
            len(frame.columns) > _LISTED
        )
        more = [f"; {said}" for said in how_read(frame)[0] if said.startswith("sheet ")]
        if any(str(column).startswith("Unnamed: ") for column in frame.columns):
            more.append("; the names must be in the first line")
        raise UserError(
            f"{where} has no column {name!r}{hint} (columns: {known}){''.join(more)}"
        ).with_code("no-such-column")
    return name


def rows_of_table(
    frame: pd.DataFrame, test: pd.DataFrame | None, spec: DatasetSpec, where: str
) -> Rows:
    """Return a table, and one of test rows, as rows whose target is `spec.target`.

    Raises:
        ValueError: if it has too few rows, or not the columns that `spec` names.
    """
    there = f"the test rows of {where}"
    targets = targets_in(frame, spec.target) or (known_column(frame, spec.target, where),)
    y = _targets(frame, targets, where)
    if len(frame) < FEWEST_ROWS:
        raise UserError(
            f"{where} has {len(frame)} rows, but a study needs at least {FEWEST_ROWS}; add rows"
        ).with_code("table-too-short")

    def cells(name: str | None, table: pd.DataFrame | None, place: str) -> pd.Series | None:
        named = name is not None and table is not None
        return table[known_column(table, name, place)] if named else None  # type: ignore[index]

    return Rows(
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
    if len(columns) > 1 and np.isin(columns, (0, 1)).all():
        raise UserError(
            f"the columns {', '.join(targets)} of {where} hold 0 and 1 alone, but several targets "
            "must be real numbers; give one column with the class, or search once for each"
        ).with_code("several-targets-of-classes")
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _target(frame: pd.DataFrame, target: str, where: str) -> Array:
    values = frame[known_column(frame, target, where)]
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if order_of(values.dropna()):
        raise UserError(
            f"target {target!r} in {where} holds dates; replace them by numbers or by classes"
        ).with_code("target-of-dates")
    return np.asarray(values)
