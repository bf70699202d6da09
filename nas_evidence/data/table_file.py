"""Your table: a CSV or Parquet file with the column to predict.

The rows of `test_path`, or a seeded share `test_fraction`, are the test rows; without either there
are none, and the study ranks without a test.
"""

import codecs
import csv
import difflib
import gzip
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import Meaning, RawArrays, random_rows, stratified_rows
from nas_evidence.data.content import check_content, content_of
from nas_evidence.data.leaks import leaks
from nas_evidence.data.mapped import Array
from nas_evidence.data.preparation import Preparation, option, prepare
from nas_evidence.data.targets import targets_of
from nas_evidence.data.units import Units, said_units, units_of
from nas_evidence.data.weights import repeated, said_weights, weights_of
from nas_evidence.data.written_dates import order_of
from nas_evidence.data.written_numbers import (
    Written,
    decimal_comma,
    has_groups,
    how_read,
    note_written,
    with_numbers_read,
)
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import DatasetSpec, derive_seed

#: Endings of files that are tables.
CSV, PARQUET = (".csv", ".tsv", ".txt", ".csv.gz"), (".parquet", ".pq")
EXCEL = ".xlsx"
#: Fewest training rows of a study.
FEWEST_ROWS = 10
#: Where the file has no row for a message, the largest number of columns listed.
_LISTED = 12
#: Most columns of a CSV file, and the length of its first line, characters.
MOST_COLUMNS, _LONGEST_HEAD = 100_000, 1 << 23
#: What pandas says of a line with more cells than names.
_TOO_LONG = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
#: From so many columns on, rows are counted before all is read.
_MANY = 1000


def read(
    spec: DatasetSpec, *, seed: int, data_root: str | None = None, download: bool = False
) -> RawArrays:
    """Return features and targets of the table.

    Raises:
        ValueError: if a file or column is missing or cannot be used; one sentence with a remedy.
    """
    assert spec.path is not None  # DatasetSpec checks it
    root = Path(data_root or ".").expanduser()
    path = root / spec.path
    stored = spec.content is not None
    frame = read_frame(path, stored=stored)
    test = None
    if spec.test_path is not None:
        test = read_frame(root / spec.test_path, how_read(frame)[1], stored=stored)
    if spec.content is not None:
        found = content_of([frame] if test is None else [frame, test])
        check_content(found, spec.content, str(path))
    return arrays_of(frame, test, spec, seed=seed, where=path.name)


def arrays_of(
    frame: pd.DataFrame, test: pd.DataFrame | None, spec: DatasetSpec, *, seed: int, where: str
) -> RawArrays:
    """Return features and targets of a table whose target is `spec.target`.

    Raises:
        ValueError: as `read`.
    """
    read, written = how_read(frame)
    y = _target(frame, spec.target, where)
    if len(frame) < FEWEST_ROWS:
        raise UserError(
            f"{where} has {len(frame)} rows, but a study needs at least {FEWEST_ROWS}; add rows"
        ).with_code("table-too-short")
    y_test = None if test is None else _target(test, spec.target, f"the test rows of {where}")
    place = f"target {spec.target!r} in {where}"
    found = targets_of(y, y_test, task=spec.task, where=place, scale=spec.scale)
    units, weights, test_weights = None, None, None
    if (column := spec.units_column) is not None:
        units = units_of(spec, frame[known_column(frame, column, where)], where)
    if (column := spec.weights) is not None:
        weights = weights_of(frame[known_column(frame, column, where)], column, where)
        if test is not None:
            there = f"the test rows of {where}"
            test_weights = weights_of(test[known_column(test, column, there)], column, there)
    if spec.test_fraction is not None:
        in_test = test_rows(found.train, spec.test_fraction, seed, units)
        found = replace(found, train=found.train[~in_test], test=found.train[in_test])
        frame, test = frame[~in_test], frame[in_test]
        units = None if units is None else units.at(~in_test)
        if weights is not None:
            weights, test_weights = weights[~in_test], weights[in_test]
    features = frame.drop(columns=[spec.target, *spec.columns_of_rows])
    x, x_test, preparation, said = prepared(
        features, test, found.train, spec, where=where, written=written
    )
    meaning = Meaning(
        classes=found.classes,
        targets=(str(spec.target),),
        preparation=preparation,
        said=(
            found.sentence,
            *read,
            *said,
            *said_units(spec, units),
            *said_weights(spec.weights, weights),
            test_sentence(len(x), len(x_test)),
        ),
        change=found.change,
    )
    raw = RawArrays(x, found.train, x_test, found.test, meaning, units)
    return raw if weights is None else repeated(raw, weights, test_weights)


def prepared(
    frame: pd.DataFrame,
    test: pd.DataFrame | None,
    y: Array,
    spec: DatasetSpec,
    *,
    where: str,
    written: Mapping[str, Written] | None = None,
    unnamed: bool = False,
) -> tuple[Array, Array, Preparation, list[str]]:
    """Return the features of training rows and test rows, how they are made, and sentences.

    Args:
        frame: the training rows without the target.
        test: the test rows.
        y: labels or targets of the training rows, which a column may give away.
        spec: its columns to drop, and those of categories and numbers.
        where: the place of the table, for messages.
        written: how its cells are written.
        unnamed: whether it was an array.

    Raises:
        ValueError: as `prepare`, and for cells that cannot be used.
    """
    preparation, said = prepare(
        frame,
        drop=spec.drop or (),
        categorical=spec.categorical or (),
        numeric=spec.numeric or (),
        where=where,
        written=written,
        unnamed=unnamed,
    )
    said += [
        f"column {name!r} {how}: is it known when a prediction is made? If not, "
        f"--drop {option(name)}"
        for name, how in leaks(frame[list(preparation.places)], y)
    ]
    x = preparation.apply(frame, where)
    x_test = x[:0] if test is None else preparation.apply(test, f"the test rows of {where}")
    return x, x_test, preparation, said


def test_sentence(n_train: int, n_test: int) -> str:
    """Return what the rows are used for."""
    if n_test:
        return f"rows: {n_train} for training, {n_test} for the report's test"
    more = "--test-fraction 0.2 splits off a test for the report"
    return f"rows: {n_train}, all for training; {more}"


def test_rows(y: Array, fraction: float, seed: int, units: Units | None) -> Array:
    """Return which rows are split off for testing, bool [n]: seeded, stratified by class.

    A class with a single row stays in training. Of groups some whole ones are split off, of times
    the latest.

    Raises:
        ValueError: if a part would have too few rows.
    """
    n_test = round(fraction * len(y))
    generator = np.random.default_rng(derive_seed(seed, "split"))
    in_test = np.zeros(len(y), dtype=bool)
    if units is not None:
        order = units.ordered(np.arange(len(y)), generator.permutation(units.count))
        in_test[order[units.cuts(order, [len(y) - n_test])[0] :]] = True
        n_test = int(in_test.sum())
    if n_test < 1 or len(y) - n_test < FEWEST_ROWS:
        raise UserError(
            f"test_fraction {fraction:g} of {len(y)} rows leaves {len(y) - n_test} for training "
            f"and {n_test} for testing; at least {FEWEST_ROWS} and 1 are needed"
        ).with_code("test-fraction-leaves-too-few")
    if units is not None:
        return in_test
    labels = y.dtype == np.int64
    rows = (stratified_rows if labels else _random)(y, n_test, generator)
    in_test[rows] = True
    if labels:
        for label in set(y[in_test].tolist()) - set(y[~in_test].tolist()):
            in_test[y == label] = False
    return in_test


def _random(y: Array, n_rows: int, generator: np.random.Generator) -> Array:
    return random_rows(len(y), n_rows, generator)


def read_frame(
    path: Path, written: Mapping[str, Written] | None = None, *, stored: bool = False
) -> pd.DataFrame:
    """Return a CSV, Parquet or Excel file, of which the first sheet, as a table.

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
    try:
        if path.name.lower().endswith(PARQUET):
            frame = pd.read_parquet(path)
            levels = [name for name in frame.index.names if name is not None]
            frame = frame.reset_index(levels)  # columns in the file, as in one of CSV
        elif path.name.lower().endswith(CSV):
            return _read_text(path, written or {})
        elif path.name.lower().endswith(EXCEL):
            sheets = pd.read_excel(path, sheet_name=None, engine="openpyxl")
            first, frame = next(iter(sheets.items()))
            if len(sheets) > 1:
                said.append(f"sheet {first!r} of {path.name} is read, the first of {len(sheets)}")
        else:
            raise UserError(
                "its name must end in .csv, .tsv, .txt, .csv.gz, .parquet or .xlsx"
            ).with_code("table-ending")
    except ImportError:
        kind = "a spreadsheet" if path.name.lower().endswith(EXCEL) else "Parquet"
        needed = "openpyxl" if kind == "a spreadsheet" else "pyarrow"
        raise UserError(
            f"{path} cannot be read here, because {kind} needs {needed}: `pip install {needed}`, "
            "or save the table as .csv"
        ).with_code("table-needs-package") from None
    except pd.errors.EmptyDataError:
        raise UserError(f"{path} is empty; a table has a line of names, then rows").with_code(
            "table-empty"
        ) from None
    except (
        OSError, UnicodeError, ValueError, TypeError, KeyError, BadZipFile, pd.errors.ParserError
    ) as error:  # fmt: skip
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, KeyError):  # of pyarrow
            why = f"what pandas notes in it lacks {why}"
        if path.name.lower().endswith(PARQUET):
            why += "; write it again, as with pandas.DataFrame.to_parquet"
        if isinstance(error, BadZipFile):
            why = "it is no .xlsx spreadsheet; save it as one, or as .csv"
        if found := _TOO_LONG.search(why):
            named, line, n_cells = found.groups()
            why = (
                f"line {line} has {n_cells} cells, but the line of names has {named}; correct "
                "that line, or quote cells with a separator in them"
            )
        raise UserError(f"{path} cannot be read as a table: {why}").with_code(
            "table-unreadable"
        ) from None
    frame.columns = frame.columns.map(str)
    return frame if stored else with_numbers_read(frame, written=written, said=said)


def as_written(path: Path) -> pd.DataFrame:
    """Return a table to copy columns from: the cells of a text file as text.

    Raises:
        ValueError: as `read_frame`.
    """
    if not path.name.lower().endswith(CSV):
        return read_frame(path, stored=True)
    encoding = _encoding(path)
    read = partial(pd.read_csv, path, sep=_separator(path, encoding), dtype=str, na_filter=False)
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
    read = partial(pd.read_csv, path, sep=separator, low_memory=False)
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


def _encoding(path: Path) -> str:
    """Return the encoding that the first bytes of a file name, else UTF-8."""
    if path.suffix == ".gz":
        return "utf-8"
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"


def _separator(path: Path, encoding: str = "utf-8") -> str:
    """Return the separator that the head of a file uses; a comma if that is unclear."""
    if path.suffix == ".gz":
        return ","
    with path.open(encoding=encoding, errors="replace") as file:
        head = file.read(1 << 14)
    try:
        return csv.Sniffer().sniff(head, delimiters=",;\t|").delimiter
    except csv.Error:
        return "\t" if path.suffix == ".tsv" else ","


def _check_head(path: Path, separator: str, encoding: str) -> None:
    """Check the names and the first rows of a CSV file before all of it is read.

    Raises:
        ValueError: a name occurs twice, which pandas would change, or there are too many columns.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    with opened(path, "rt", encoding=encoding, errors="replace", newline="") as file:
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


def _target(frame: pd.DataFrame, target: str | None, where: str) -> Array:
    values = frame[known_column(frame, target, where)]
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if order_of(values.dropna()):
        raise UserError(
            f"target {target!r} in {where} holds dates; replace them by numbers or by classes"
        ).with_code("target-of-dates")
    return np.asarray(values)
