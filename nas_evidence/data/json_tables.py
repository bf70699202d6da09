"""Tables in JSON, as programs write them.

    records  [{"x": 1, "y": 2}, ...]             a list of rows; one row alone is a table, too
    lines    {"x": 1, "y": 2} and a line feed    JSON Lines, whatever the ending of the file
    columns  {"x": [1, ...]} or {"x": {"0": 1, ...}}
    index    {"0": {"x": 1, "y": 2}, ...}        rows by number
    split    {"columns": ["x", "y"], "data": [[1, 2], ...]}
    table    {"schema": ..., "data": [{"x": 1, "y": 2}, ...]}

The names are those of `orient` in `pandas.DataFrame.to_json`. A list of lists has no names of
columns and is refused. The text is UTF-8, -16 or -32, with a byte order mark or without.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from nas_evidence.data.exact_text import beyond_floats
from nas_evidence.data.typed import names_half_characters
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError


def read_json(path: Path) -> pd.DataFrame:
    """Return the table in a file that ends in .json.

    Raises:
        ValueError: it is no JSON, or no table of a form above.
    """
    text = _text(path)
    try:
        value = parsed_json(text, once=True)
    except UserError:
        raise
    except ValueError as error:
        if str(error).startswith("Extra data"):
            return _framed([*_of_lines(text)])
        at = f" at line {error.lineno}, column {error.colno}" if _has_place(error) else ""
        raise UserError("json-damaged", f"it is no JSON: {_what(error)}{at}") from None
    return table_of(value)


def read_json_lines(path: Path) -> pd.DataFrame:
    """Return the table in a file that ends in .jsonl: a row on each line.

    Raises:
        ValueError: a line is no JSON object; names the line.
    """
    return _framed([*_of_lines(_text(path))])


def table_of(value: Any) -> pd.DataFrame:
    """Return rows or columns as a table.

    Raises:
        ValueError: they are none, or columns have different lengths.

    >>> table_of([{"x": 1}, {"x": 2}])["x"].tolist(), table_of({"x": [1, 2]})["x"].tolist()
    ([1, 2], [1, 2])
    >>> table_of({"x": 1}).shape, table_of({"0": {"x": 1}, "1": {"x": 2}})["x"].tolist()
    ((1, 1), [1, 2])
    """
    if isinstance(value, Mapping):
        if {"columns", "data"} <= {*value} <= {"columns", "data", "index", "index_names"}:
            return _of_split(value["columns"], value["data"])
        if {*value} == {"schema", "data"} and isinstance(value["schema"], Mapping):
            key = value["schema"].get("primaryKey", []) == ["index"]
            return _framed(value["data"]).drop(columns=["index"] if key else [])
        return _of_columns(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(
            "json-no-table",
            f"a table is a list of rows or an object of columns, but it is {_shown(value)}",
        )
    for row, one in enumerate(value):
        if not isinstance(one, Mapping):
            raise UserError(
                "json-row-without-names",
                f'each row must name its columns, as in {{"x": 1}}, but row {row} is '
                f"{_shown(one)}; write the rows as objects, as with orient='records'",
            )
    return _framed(value)


def _framed(value: Any, **how: Any) -> pd.DataFrame:
    """Return `pd.DataFrame(value)`, in which integers beside gaps stay integers beyond 2^53."""
    with names_half_characters("the table"):
        frame = pd.DataFrame(value, **how)
    wide = [at for at in range(frame.shape[1]) if beyond_floats(frame.iloc[:, at])]
    if not wide:
        return frame
    objects = pd.DataFrame(value, **how, dtype=object)
    exact = {at: objects.iloc[:, at] for at in wide}
    whole = {
        frame.columns[at]: cells
        for at, cells in exact.items()
        if all(isinstance(one, int | np.integer) for one in cells.dropna())
    }
    return frame.assign(**whole)


def _of_split(names: Any, data: Any) -> pd.DataFrame:
    are_lists = isinstance(names, list) and isinstance(data, list)
    for row, cells in enumerate(data if are_lists else [None]):
        if not isinstance(cells, list) or len(cells) != len(names):
            found = f"row {row} is {_shown(cells)}" if are_lists else "one of them is no list"
            raise UserError(
                "json-split",
                f"the rows in `data` must hold a cell for each name in `columns`, but {found}",
            )
    return _framed(data, columns=names)


def _of_columns(value: Mapping[str, Any]) -> pd.DataFrame:
    nested = [isinstance(one, Mapping) for one in value.values()]
    if value and all(nested):
        rows = all(str(key).isdigit() for key in value)
        names = {str(name) for one in value.values() for name in one}
        if rows and not all(name.isdigit() for name in names):
            return _framed([*value.values()])
        return _framed(value)
    lengths = {
        name: len(one)
        for name, one in value.items()
        if hasattr(one, "__len__") and not isinstance(one, str | bytes | Mapping)
    }
    if not lengths:
        return _framed([value])
    (first, n), *others = lengths.items()
    for name, other in others:
        if other != n:
            raise UserError(
                "json-lengths-differ",
                f"columns must have equal lengths, but {shortened(first)} has {n} values and "
                f"{shortened(name)} has {other}",
            )
    return _framed(value)


def _of_lines(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of JSON Lines; a line ends with a line feed, not U+2028."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parsed_json(line, once=True)
        except UserError as error:
            raise UserError(error.code, f"line {number}: {error}") from None
        except ValueError as error:
            at = f" at column {error.colno}" if _has_place(error) else ""
            raise UserError(
                "json-line", f"line {number} is no JSON: {_what(error)}{at}; correct or remove it"
            ) from None
        if not isinstance(row, Mapping):
            raise UserError(
                "json-line-no-row",
                f'line {number} is {_shown(row)}, but each line must be a row, as in {{"x": 1}}; '
                "correct it",
            )
        yield row


def _has_place(error: ValueError) -> TypeGuard[json.JSONDecodeError]:
    return isinstance(error, json.JSONDecodeError)


def _what(error: ValueError) -> str:
    """Return what is wrong with JSON, in the words of Python without its place."""
    what = error.msg.removesuffix(" at") if isinstance(error, json.JSONDecodeError) else str(error)
    return what[:1].lower() + what[1:]


def _text(path: Path) -> str:
    content = path.read_bytes()
    encoding = json.detect_encoding(content)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            "json-encoding",
            f"byte {error.start} is not {encoding.upper().replace('-SIG', '')}; save it as UTF-8",
        ) from None


def _shown(value: Any) -> str:
    kinds = {list: "a list", tuple: "a list", dict: "an object", str: "a text", bool: "a truth"}
    kind = kinds.get(type(value), "null" if value is None else "a number")
    return kind if value is None else f"{kind} ({shortened(json.dumps(value, default=str))})"
