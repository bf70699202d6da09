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
import codecs
import csv
import difflib
import gzip
import io
import lzma
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import pandas as pd

from nas_evidence.data.array_files import read_arrays
from nas_evidence.data.arrow_tables import (
    frame_of,
    read_feather,
    read_parquet,
    table_of_arrow,
    with_exact_integers,
)
from nas_evidence.data.assembly import FEWEST_ROWS, RowsRead
from nas_evidence.data.cells import (
    are_codes,
    decimal_comma,
    has_groups,
    how_read,
    note_written,
    order_of,
    said_codes,
    with_numbers_read,
)
from nas_evidence.data.exact_text import beyond_floats, has_leading_zeros, integers, read_csv
from nas_evidence.data.images import holds_images
from nas_evidence.data.json_tables import read_json, read_json_lines, table_of
from nas_evidence.data.mapped import Array
from nas_evidence.data.said import Said
from nas_evidence.data.table_columns import Written
from nas_evidence.data.targets import column_values, inferred
from nas_evidence.data.typed import names_half_characters
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError, no_such_file
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.study import DatasetSpec


def _open_in_archive(path: Path, mode: str, **how: Any) -> Any:
    """Open the only file in a .zip archive, as `open` does."""
    archive = ZipFile(path)
    inside = [
        one for one in archive.infolist() if not (one.is_dir() or _OF_MACOS.match(one.filename))
    ]
    if len(inside) != 1 or inside[0].flag_bits & 1:
        archive.close()
        holds = "a file with a password" if len(inside) == 1 else f"{len(inside)} files"
        raise UserError(
            "archive-of-no-table", f"the archive holds {holds}, not one table; unpack it"
        )
    stream = archive.open(inside[0])
    archive.close()  # the stream keeps the file open
    return io.TextIOWrapper(stream, **how) if "t" in mode else stream


#: What macOS puts beside the files of an archive.
_OF_MACOS = re.compile(r"__MACOSX/|(.*/)?\.DS_Store$")
#: Endings of packed text files, and what opens them.
_PACKED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zip": _open_in_archive,
}  # fmt: skip
TEXTS = tuple(f"{one}{more}" for one in (".csv", ".tsv", ".txt") for more in ("", *_PACKED))

#: Endings of other tables, and what reads them.
_TABLES: dict[str, Callable[[Path], Any]] = {
    ".parquet": read_parquet,
    ".pq": read_parquet,
    ".feather": read_feather,
    ".jsonl": read_json_lines,
    ".json": read_json,
    ".xlsx": lambda path: pd.read_excel(path, sheet_name=None, engine="openpyxl"),
}
#: What pandas needs to read these.
_NEEDED = dict.fromkeys((".parquet", ".pq", ".feather"), "pyarrow") | {".xlsx": "openpyxl"}
#: Endings of data in other formats, by the remedy.
_REMEDIES = {
    "save the sheet as CSV": ".xls .xlsb .ods .numbers",
    "write it as CSV or Parquet": (
        ".arff .dat .libsvm .svm .html .xml .dta .sav .sas7bdat .xpt .rds .rdata .orc .arrow .h5 "
        ".hdf5 .mat .db .sqlite"
    ),
    "put x_train.npy and y_train.npy into one folder and name that": ".npy",
    "write it with pandas.DataFrame.to_parquet, or numpy.savez": ".pkl .pickle .joblib",
    "write it with numpy.savez": ".pt .pth",
    "unpack it": ".jsonl.gz .json.gz .parquet.gz .zip .zst .tar .tgz .tar.gz .7z .rar",
}
_OTHERS = {one: remedy for remedy, endings in _REMEDIES.items() for one in endings.split()}
#: Where the file has no row for a message, the largest number of columns listed.
_LISTED = 12
#: Maximum number of columns of a CSV file, and of characters of its first line.
MOST_COLUMNS, _LONGEST_HEAD = 100_000, 1 << 23
#: What may separate the cells of a line; how a spreadsheet says it in a line before the names.
_SEPARATORS = ",;\t|"
_SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?\r?\n?', re.IGNORECASE)
#: Characters of a text file that show how it holds its table.
_HEAD = 1 << 14
#: First bytes of encodings that name themselves; that of UTF-32 begins as that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: A carriage return without a line feed, and without another one, as in the ends of some lines.
_RETURN = re.compile(r"\r(?![\r\n])")
#: First bytes of files that are no text, what they hold, and how their names should end.
_FOREIGN = {
    b"\x1f\x8b": ("packed data (gzip)", ".csv.gz"),
    b"BZh": ("packed data (bzip2)", ".csv.bz2"),
    b"\xfd7zX": ("packed data (xz)", ".csv.xz"),
    b"PK\x03\x04": ("an archive (zip)", ".xlsx if it is a spreadsheet"),
    b"PAR1": ("Parquet", ".parquet"),
    b"ARRO": ("Feather", ".feather"),
}
#: What pandas says of a line with more cells than names.
_TOO_LONG = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
#: Words that pandas reads as a missing cell of a text file or a spreadsheet.
_MISSING_WORDS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
    "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
#: What pandas says of a quote without its end.
_OPEN = re.compile(r"EOF inside string starting at row (\d+)")
#: From so many columns on, rows are counted before all is read.
_MANY = 1000
#: Maximum number of cells of a sparse matrix, which is trained on as an array: 400 MB as float64.
MOST_CELLS = 50_000_000


def kind_of(path: Path) -> str | None:
    """Return the kind of data at a path, a name of [dataset]; None if it holds none.

    The ending of a file decides, whether or not it is there; of a folder, what is in it.

    Raises:
        ValueError: for a format that is not read; names the remedy.
    """
    name = path.name.lower()
    if name.endswith((*TEXTS, *_TABLES)):
        return "table"
    for ending, remedy in _OTHERS.items():
        if name.endswith(ending):
            raise UserError(
                "format-not-read", f"{path} is in a format that is not read; {remedy}."
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
    if isinstance(data, pd.DataFrame):
        return _dense(data)
    if hasattr(data, "toarray") and hasattr(data, "nnz"):
        _check_cells(data)
        return data.toarray()
    if isinstance(data, np.ndarray) and data.dtype.names:
        return pd.DataFrame(data)
    if isinstance(data, pd.Series | pd.Index | np.ndarray):
        return data
    if isinstance(data, Mapping):
        _check_one_table(data)
        indexes = [one for one in map(_index_of, data.values()) if one is not None]
        check_aligned(next(iter(indexes), None), data)
        return plain(table_of({name: _plain_values(one) for name, one in data.items()}))
    if isinstance(data, list) and any(isinstance(row, Mapping) for row in data):
        return table_of(data)
    kind = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"
    try:
        of_arrow = kind.startswith("pyarrow.") and hasattr(data, "schema")
        if hasattr(data, "to_pandas") and not of_arrow:
            found = plain(data.to_pandas())
            known = hasattr(data, "__arrow_c_stream__") or hasattr(data, "with_format")
            if not isinstance(found, pd.DataFrame) or not known:
                return found
            return with_exact_integers(found, lambda: table_of_arrow(data))
        if of_arrow or hasattr(data, "__arrow_c_stream__"):
            return frame_of(table_of_arrow(data))
    except ImportError as error:
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


def _plain_values(values: Any) -> Any:
    array = hasattr(values, "detach") or hasattr(values, "toarray")
    return as_array(plain(values)) if array else values


def _check_one_table(data: Mapping[Any, Any]) -> None:
    """Check that a dict holds columns, not several tables, as a `DatasetDict` does."""
    for name, one in data.items():
        kind = type(one).__name__
        if hasattr(one, "column_names") or getattr(one, "ndim", 0) > 1:
            raise UserError(
                "dict-of-tables",
                f"a dict must hold columns, but {str(name)!r} is a {kind} of several; give one "
                f"table, as with data[{str(name)!r}], or arrays as X and y",
            )


def _dense(frame: pd.DataFrame) -> pd.DataFrame:
    sparse = [isinstance(kind, pd.SparseDtype) for kind in frame.dtypes]
    if not any(sparse):
        return frame
    columns = [
        frame.iloc[:, i].sparse.to_dense() if sparse[i] else frame.iloc[:, i]
        for i in range(frame.shape[1])
    ]
    return pd.concat(columns, axis=1)


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


def _check_lengths(rows: Sequence[Any]) -> None:
    """Check that rows in a list have equal lengths, without which they are no array."""
    lengths = [_length(one) for one in rows]
    for row, n in enumerate(lengths):
        if n != lengths[0]:
            raise UserError(
                "rows-of-several-lengths",
                f"rows must have equal lengths, but row 0 has {lengths[0]} values and row {row} "
                f"has {n}; fill those that are missing with NaN",
            )


def _length(row: Any) -> int:
    shape = getattr(row, "shape", None)  # an array without axes has no length
    return math.prod(shape) if shape is not None else len(row) if hasattr(row, "__len__") else 1


def as_array(values: Any) -> Array:
    """Return what `plain` returned, or a tensor, as an array."""
    if isinstance(values, list) and not any(isinstance(one, str) for one in values):
        _check_lengths(values)
    if hasattr(values, "detach"):
        values = _of_tensor(values)
    if isinstance(values, pd.Series | pd.DataFrame | pd.Index):
        values = values.to_numpy()
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "biuf":
        whole = values.mask is np.ma.nomask or not values.mask.any()
        return values.data if whole else np.ma.filled(values.astype(np.float64), np.nan)
    return np.asarray(values)


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
        stored: whether a study wrote the file: its numbers are numbers.
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
    said = []
    ending = path.suffix.lower()
    with _naming(path):
        if path.name.lower().endswith(TEXTS):
            return _read_text(path, written or {}, kept, target)
        if ending not in _TABLES:
            raise UserError(
                "table-ending",
                f"its name must end in {', '.join((*TEXTS[:: 1 + len(_PACKED)], *_TABLES))}",
            )
        frame = _TABLES[ending](path)
        if isinstance(frame, dict):
            sheets = frame
            first, frame = next(iter(sheets.items()))
            if len(sheets) > 1:
                words = f"sheet {first!r} of {path.name} is read, the first of {len(sheets)}"
                said = [Said(words, about="sheet")]
    frame = named(frame, path.name)
    if stored:
        return frame
    return with_numbers_read(frame, written=written, said=said, kept={*kept, target or ""})


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file of whatever goes wrong when a table is read, and the remedy."""
    ending = path.suffix.lower()
    try:
        yield
    except ImportError:
        needed = _NEEDED[ending]
        kind = "a spreadsheet" if needed == "openpyxl" else ending[1:].capitalize()
        raise UserError(
            "table-needs-package",
            f"{path} cannot be read here, because {kind} needs {needed}: `pip install {needed}`, "
            "or save the table as .csv",
        ) from None
    except pd.errors.EmptyDataError:
        raise UserError(
            "table-empty", f"{path} is empty; a table has a line of names, then rows"
        ) from None
    except (
        OSError, EOFError, UnicodeError, ValueError, TypeError, KeyError, AttributeError,
        RecursionError, lzma.LZMAError, BadZipFile, pd.errors.ParserError, csv.Error,
    ) as error:  # fmt: skip
        again = _NEEDED.get(ending) == "pyarrow"
        packed = ending in _PACKED and not isinstance(error, UserError)
        raise UserError(
            "table-unreadable",
            f"{path} cannot be read as a table: {_why(error)}",
            remedy="write it again, as with pandas.DataFrame.to_parquet"
            if again
            else "pack or download it again" * packed,
        ) from None


def _why(error: Exception) -> str:
    why = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, UnicodeDecodeError):
        why = f"it is not {error.encoding.upper()[:6]} throughout; save it as UTF-8"
    if isinstance(error, KeyError):  # of pyarrow
        why = f"what pandas notes in it lacks {why}"
    if isinstance(error, BadZipFile):
        why = "it is no .xlsx spreadsheet; save it as one, or as .csv"
    if found := _OPEN.search(why):
        why = f"a quote that begins in row {found[1]} does not end; close it"
    if found := _TOO_LONG.search(why):
        named, line, n_cells = found.groups()
        why = (
            f"line {line} has {n_cells} cells, but the line of names has {named}; correct "
            "that line, or quote cells with a separator in them"
        )
    return why


def as_written(path: Path) -> pd.DataFrame:
    """Return a table to copy columns from: the cells of a text file as text.

    Raises:
        ValueError: as `read_frame`.
    """
    if not path.name.lower().endswith(TEXTS):
        return read_frame(path, stored=True)
    with _naming(path):
        frame = _form_of(path).read(dtype=str, na_filter=False)
    return frame.set_axis(frame.columns.str.strip(), axis=1)


def check_words(frame: pd.DataFrame, path: Path, target: str | None) -> None:
    """Check that no class of a file has a name that is read as a missing cell, such as None.

    Raises:
        ValueError: if the target is text with such a cell; names the word, its row and the remedy.
    """
    if target not in frame.columns or pd.api.types.is_numeric_dtype(frame[target]):
        return
    if not frame[target].isna().any():
        return
    if path.suffix.lower() == ".xlsx":
        cells = pd.read_excel(path, dtype=str, keep_default_na=False).get(target)
    else:
        cells = as_written(path)[target] if path.name.lower().endswith(TEXTS) else None
    if cells is None:
        return
    if len(rows := np.flatnonzero(cells.str.strip().isin(_MISSING_WORDS))):
        word = str(cells.iloc[rows[0]]).strip()
        raise UserError(
            "class-named-as-missing",
            f"target {target!r} in {path.name}: {len(rows)} of {len(frame)} cells are read as "
            f"missing, the first is {word!r} in row {rows[0]}; write another word if it is a "
            "class, or remove those rows",
        )


def _read_text(
    path: Path, written: Mapping[str, Written], kept: Collection[str], target: str | None
) -> pd.DataFrame:
    """Read a file of separated values; its encoding and its decimal commas are found out."""
    form = _form_of(path)
    frame, said = form.read(low_memory=False), [*map(Said, form.said)]
    frame.columns = frame.columns.map(lambda name: str(name).strip())
    comma = decimal_comma(frame, form.separator)
    wide = [n for n in frame.columns if beyond_floats(frame[n])]
    zeros = form.has_codes()
    if wide or zeros or {*kept} & {*frame.columns}:
        texts = form.read(dtype=str, low_memory=False).set_axis(frame.columns, axis=1)
        whole = {n: integers(texts[n]) for n in wide}
        frame = frame.assign(**{n: cells for n, cells in whole.items() if cells is not None})
        for n in (n for n in frame.columns if n not in written and _is_number(frame[n])):
            few = n == target and zeros and TARGET_KINDS[inferred(frame[n].dropna())].classes
            if are_codes(texts[n]) if n in kept else few and has_leading_zeros(texts[n]):
                frame = frame.assign(**{n: texts[n]})
                kept = {*kept, n}
            elif zeros:
                said += said_codes(n, texts[n], "task=classification" if n == target else "")
    numbers = [n for n in frame.columns if _is_number(frame[n])]
    other = [n for n in numbers if n in written and written[n].sign != "point"]
    dotted: list[str] = []
    if comma or other:
        texts = form.read(dtype=str, low_memory=False).set_axis(frame.columns, axis=1)
        points = [n for n in numbers if n not in written and texts[n].map(_has_point).any()]
        grouped = [n for n in points if comma and has_groups(texts[n])]
        other, dotted = [*other, *grouped], [n for n in points if n not in grouped]
        frame = frame.assign(**{name: texts[name] for name in other})
    found = with_numbers_read(frame, comma=comma, written=written, said=said, kept=kept)
    signs = {n: Written("comma" if comma and n not in dotted else "point") for n in numbers}
    note_written(found, signs)
    return found


def _is_number(cells: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(cells))


def _has_point(cell: object) -> bool:
    return isinstance(cell, str) and "." in cell


@dataclass(frozen=True)
class _Form:
    """How a text file holds its table.

    skipped  lines before the names
    names    of its columns
    ends     how many separators too many the rows end with
    said     sentences about it for the user
    feeds    whether a line feed alone ends a line, since cells have carriage returns
    """

    path: Path
    encoding: str
    separator: str
    skipped: int = 0
    names: tuple[str, ...] = ()
    ends: int = 0
    said: tuple[str, ...] = ()
    feeds: bool = False

    def read(self, **how: Any) -> pd.DataFrame:
        """Return the table, read by pandas with these options.

        Raises:
            ValueError: a row has more cells than there are names; names the row.
        """
        how |= {"sep": self.separator, "encoding": self.encoding, "skiprows": self.skipped}
        how |= {"lineterminator": "\n"} if self.feeds else {}

        def read(**more: Any) -> pd.DataFrame:
            if self.path.suffix.lower() != ".zip":  # pandas looks at what macOS adds, too
                return read_csv(self.path, **how, **more)
            with _opened(self.path, "rb") as file:
                return read_csv(file, **how, **more)

        if not self.ends:
            return read()
        n, ends = len(self.names), self.ends
        frame = read(header=0, index_col=False, names=range(n + ends))
        for k in range(n, n + ends):
            filled = [row for row, cell in frame[k].dropna().items() if str(cell).strip()]
            if filled:
                raise UserError(
                    "cells-without-a-name",
                    f"row {filled[0]} has the cell {shortened(frame[k][filled[0]])!r} after the "
                    f"{n} columns that have names, where other rows end with a separator; remove "
                    "it, or name each column",
                )
        return frame.iloc[:, :n].set_axis([*self.names], axis=1)

    def has_codes(self) -> bool:
        """Tell whether a cell is digits with a zero before them, such as 007."""
        # One pattern for each character before a cell: a search for one character is quick.
        ends = rf'(?:$|[{re.escape(self.separator)}"\s])'
        before = dict.fromkeys((self.separator, "\n", '"', " ", "\t"))
        cells = [re.compile(rf"{re.escape(one)}[+-]?0\d+{ends}") for one in before]
        last = ""
        with _opened(self.path, "rt", encoding=self.encoding) as file:
            while part := file.read(1 << 20):
                if any(cell.search(last + part) for cell in cells):
                    return True
                last = part[-100:]
        return False


def _opened(path: Path, mode: str, **how: Any) -> Any:
    return _PACKED.get(path.suffix.lower(), open)(path, mode, **how)


def _form_of(path: Path) -> _Form:
    """Find out how a text file holds its table, before pandas reads all of it.

    Raises:
        ValueError: a name occurs twice, which pandas would change; there are too many columns; or
            rows have other numbers of cells than the line of names.
    """
    encoding, said = _encoding(path)
    feeds = _has_returns_in_cells(path, encoding)
    lines = _first_lines(path, "utf-8-sig" if encoding == "utf-8" else encoding, feeds=feeds)
    asked = _SEPARATOR_LINE.fullmatch(lines[0]) if lines else None
    lines = lines[1:] if asked else lines
    separator = asked[1] if asked else _separator(path, "".join(lines)[:_HEAD])
    form = _Form(
        path, encoding, separator, skipped=int(asked is not None), said=tuple(said), feeds=feeds
    )
    if not lines:
        return form
    try:
        rows = [row for row in csv.reader(lines, delimiter=separator) if not _is_blank(row)]
    except csv.Error:  # a cell too long for it
        return form
    names = [name.strip() for name in rows[0]]
    if len(names) > MOST_COLUMNS or len(lines[0]) >= _LONGEST_HEAD:
        raise UserError(
            "too-many-columns",
            f"it has more than {MOST_COLUMNS:,} columns; keep those that can matter",
        )
    if len(names) > _MANY and len(rows) <= FEWEST_ROWS:
        raise UserError(
            "table-transposed",
            f"it has {len(names):,} columns and fewer than the {FEWEST_ROWS} rows that a "
            "study needs; if each column is an example, transpose it",
        )
    twice = next((name for name, n in Counter(names).items() if n > 1 and name), None)
    if twice is not None:
        raise UserError(
            "column-twice",
            f"each column must have a name of its own, but {twice!r} occurs {names.count(twice)} "
            "times; rename or remove the others",
        )
    return _with_longer_rows(form, names, rows[1:])


def _with_longer_rows(form: _Form, names: list[str], rows: list[list[str]]) -> _Form:
    """Return the form of a file whose first rows may have more cells than there are names."""
    longer = [row for row in rows if len(row) > len(names)]
    if not longer:
        return form
    first, ends = rows[0], max(map(len, longer)) - len(names)
    if not any(cell.strip() for row in longer for cell in row[len(names) :]):
        count = "a separator" if ends == 1 else f"{ends} separators"
        sentence = f"rows of {form.path.name} end with {count} too many, which is left out"
        return replace(form, names=tuple(names), ends=ends, said=(*form.said, sentence))
    if len(first) > len(names) + 1:  # which pandas would take for several levels of row names
        title = "remove a title before the names, " if len(names) == 1 else ""
        raise UserError(
            "names-fewer-than-cells",
            f"row 0 has {len(first)} cells, but the line of names has {len(names)}; {title}name "
            "each column, or quote cells with a separator in them",
        )
    if len(first) == len(names) + 1:
        _check_row_names(form, names)
        sentence = (
            f"the first column of {form.path.name} has no name and is left out, as row names of R "
            f"({shortened(first[0])!r}, ...)"
        )
        return replace(form, said=(*form.said, sentence))
    return form


def _check_row_names(form: _Form, names: list[str]) -> None:
    """Check that every row has one cell more than there are names, as with row names of R.

    pandas looks at the first row alone, and would shift the cells of all others.

    Raises:
        ValueError: a row has another number of cells; names the first line of each kind.
    """
    first: dict[int, int] = {}  # numbers of cells -> the line where they occur first
    encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    with _opened(form.path, "rt", encoding=encoding, newline="\n" if form.feeds else "") as file:
        for _ in range(form.skipped):
            file.readline()
        plain = (line.replace("\r", " ") for line in file) if form.feeds else file
        rows, line, seen = csv.reader(plain, delimiter=form.separator), form.skipped, False
        for row in rows:
            if seen and not _is_blank(row):
                first.setdefault(len(row), line + 1)
            seen = seen or not _is_blank(row)  # the first one is the line of names
            line = form.skipped + rows.line_num
    longer = first.pop(len(names) + 1)
    for n_cells, line in first.items():
        raise UserError(
            "rows-of-several-cells",
            f"line {longer} has {len(names) + 1} cells and line {line} has {n_cells}, but the "
            f"line of names has {len(names)}; correct these lines, or quote cells with a "
            "separator in them",
        )


def _has_returns_in_cells(path: Path, encoding: str) -> bool:
    """Tell whether a file whose lines end with line feeds has carriage returns without one.

    Raises:
        ValueError: lines end with both, and a cell without quotes has the first alone; names the
            line.
    """
    with _opened(path, "rt", encoding=encoding, newline="") as file:
        if not any("\r" in part for part in iter(lambda: file.read(1 << 20), "")):
            return False
    with _opened(path, "rt", encoding=encoding, newline="") as file:
        text = file.read().rstrip()
    first = re.search(r"\r?\n|\r", text)
    if first is None or first[0] == "\r":  # of old Macs
        return False
    if "\r\n" not in text:
        return "\r" in text
    line = 1
    for at, part in enumerate(text.split('"')):
        if at % 2 == 0 and (found := _RETURN.search(part)):  # outside of quotes
            line += part[: found.start()].count("\n")
            raise UserError(
                "return-in-a-cell",
                f"line {line} has a carriage return within a cell; remove it, or quote the cell",
            )
        line += part.count("\n")
    return False


def _first_lines(path: Path, encoding: str, *, feeds: bool) -> list[str]:
    """Return the first lines of a text file: `_HEAD` characters, and as many as a study needs."""
    lines, n = list[str](), 0
    with _opened(path, "rt", encoding=encoding, newline="\n" if feeds else "") as file:
        while line := file.readline(_LONGEST_HEAD):
            line = line.replace("\r", " ") if feeds else line  # csv takes it for an end
            n += len(line)
            if line.strip() or lines:  # blank ones before the names are skipped, as by pandas
                lines.append(line)
            if n >= _HEAD and len(lines) > FEWEST_ROWS:
                break
    return lines


def _is_blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


def _encoding(path: Path) -> tuple[str, list[str]]:
    """Return the encoding of a text file, and a sentence if it is a guess.

    The first bytes decide, else what all bytes can be: UTF-8, else Windows-1252, which has the
    letters and signs of Latin-1 and uses 27 of its 32 further codes, as for the euro.
    """
    with _opened(path, "rb") as file:
        content = file.read(4)
        for mark, (what, ending) in _FOREIGN.items():
            if content.startswith(mark):
                raise UserError(
                    "text-of-another-format",
                    f"it holds {what} and no text; rename it to end in {ending}, or unpack it",
                )
        for mark, encoding in _MARKS.items():
            if content.startswith(mark):
                return encoding, []
        for first, encoding in enumerate(("utf-16-be", "utf-16-le")):
            if len(content) == 4 and not any(content[first::2]) and all(content[1 - first :: 2]):
                return encoding, []  # without its mark: each first or second byte is 0
        decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
        try:
            while content:
                decoder.decode(content)
                at += len(content)
                content = file.read(1 << 20)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            # `error.object` begins with what the decoder kept of the piece before.
            first = at + error.start - (len(error.object) - len(content))
        else:
            return "utf-8", []
    with _opened(path, "rb") as file:
        content = file.read()
    windows = any(code in content for code in map(bytes, zip(range(0x80, 0xA0), strict=True)))
    name, encoding = ("Windows-1252", "cp1252") if windows else ("Latin-1", "latin-1")
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        name, encoding = "Latin-1", "latin-1"
    said = f"{path.name} is read as {name}, since byte {first} is not UTF-8"
    return encoding, [f"{said}; if letters are wrong, save it as UTF-8"]


def _separator(path: Path, head: str) -> str:
    """Return the separator that the head of a file uses; a comma if that is unclear."""
    try:
        return csv.Sniffer().sniff(head, delimiters=_SEPARATORS).delimiter
    except csv.Error:  # rows unlike the names, or a single column
        names = head.partition("\n")[0]
        most = max(_SEPARATORS, key=names.count)
        return most if most in names else "\t" if ".tsv" in path.suffixes else ","


def known_column(frame: pd.DataFrame, name: str | None, where: str) -> str:
    """Return the name of a column, which the table must have."""
    if name is None or name not in frame.columns:
        near = difflib.get_close_matches(str(name), list(frame.columns), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(map(shortened, frame.columns[:_LISTED])) + ", ..." * (
            len(frame.columns) > _LISTED
        )
        more = [f"; {said}" for said in how_read(frame)[0] if said.about == "sheet"]
        if any(str(column).startswith("Unnamed: ") for column in frame.columns):
            more.append("; the names must be in the first line")
        elif len(frame.columns) == 1 and str(name) in str(frame.columns[0]).split():
            more.append("; separate the columns by commas, semicolons, tabs or bars")
        elif any("." in str(one) and _writes_number(str(one)) for one in frame.columns):
            more.append("; a line of names must come before the values")
        raise UserError(
            "no-such-column",
            f"{where} has no column {name!r}{hint} (columns: {known}){''.join(more)}",
        )
    return name


def _writes_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


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
            f"{where} has {len(frame)} rows, but a study needs at least {FEWEST_ROWS}; add rows",
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
    """Check that targets of text are no numbers or dates of two notations, such as prices.

    Raises:
        ValueError: if one is, and its texts are too many for classes; says how it is written.
    """
    classes = task is None or TARGET_KINDS[task].classes
    for target in targets:
        few = len(frame[target].unique()) <= max(2, len(frame) // 2)
        for said in () if few and classes else how_read(frame)[0]:
            if said.about == "not read" and said.column == target:
                raise UserError(
                    "target-of-two-notations",
                    f"target {target!r} in {where} {said._replace(column=None)}",
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
