"""Columns of the types that a study stores, from whatever type their source has.

    numbers   booleans, integers and floats of numpy or pandas, in the byte order of the machine
    dates     with or without a time zone
    text      `str`; lists and records as JSON, other objects as `str` writes them

Durations become seconds, and `Decimal` and numbers among Python objects become numbers.
Categories become their values; that they were categories is returned beside them, as are
durations.
"""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import pandas as pd

from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError

#: What a source says of a column besides its type.
Note = Literal["", "category", "duration"]


@contextmanager
def names_half_characters(where: str, texts: Iterable[object] = ()) -> Iterator[None]:
    r"""Name the text that no file can hold, because a character of it is half of a pair.

    Python makes such text of bytes that are not UTF-8, or of "\\ud83d" in JSON.

    Args:
        where: the place of the text, for messages.
        texts: to check first; others are passed over.

    Raises:
        UserError: in place of what an encoder raises.
    """
    try:
        for one in texts:
            if isinstance(one, str) and not one.isascii():
                one.encode()
        yield
    except UnicodeEncodeError as error:
        raise UserError(
            "half-of-a-character",
            f"{where} has the text '{shortened(ascii(error.object)[1:-1])}', and "
            f"{error.object[error.start]!a} is half of a character, which no file can hold; "
            "read the text with its encoding, or take it out",
        ) from None


def is_text(values: pd.Series) -> bool:
    """Tell whether a typed column [n] is of text."""
    kind = values.dtype
    if isinstance(kind, pd.ArrowDtype):
        return kind.type is str
    return isinstance(kind, pd.StringDtype) or kind == np.dtype(object)


def typed_column(values: pd.Series) -> tuple[pd.Series, Note]:
    """Return a column [n] as one of the types above, and what its source says of it besides.

    Ordered categories of text stay; as a target they are refused (`targets.py`).

    Raises:
        ValueError: for complex numbers; names the column.
    """
    kind = values.dtype
    if isinstance(kind, pd.ArrowDtype) and kind.type is str:
        return values, ""
    if isinstance(kind, pd.CategoricalDtype):
        if kind.ordered and pd.api.types.is_string_dtype(kind.categories.dtype):
            return values, ""
        found, note = typed_column(values.astype(object))
        is_plain = kind.ordered or pd.api.types.is_datetime64_any_dtype(found)
        return found, note if is_plain or note else "category"
    if isinstance(kind, pd.SparseDtype):
        return typed_column(values.sparse.to_dense())
    if isinstance(kind, pd.PeriodDtype):
        return values.dt.to_timestamp(), ""
    if isinstance(kind, pd.ArrowDtype):
        found, note = _of_objects(values.astype(object))
        return found, note or ("category" if str(kind).startswith("dictionary<") else "")
    if pd.api.types.is_timedelta64_dtype(kind):
        return values.dt.total_seconds(), "duration"
    if pd.api.types.is_complex_dtype(kind):
        raise UserError(
            "complex-column",
            f"column {str(values.name)!r} holds complex numbers; give their real and imaginary "
            "parts as two columns",
        )
    if isinstance(kind, np.dtype) and kind.kind in "biuf":
        size = min(max(kind.itemsize, 4), 8) if kind.kind == "f" else kind.itemsize
        return values.astype(f"{kind.kind}{size}"), ""
    is_typed = pd.api.types.is_numeric_dtype(kind) or pd.api.types.is_datetime64_any_dtype(kind)
    if is_typed or isinstance(kind, pd.StringDtype):
        return values, ""
    return _of_objects(values.astype(object))


def _of_objects(values: pd.Series) -> tuple[pd.Series, Note]:
    """Return a column of Python objects as what all of them are, else as text."""
    missing = values.isna()
    values = values.where(~missing, None)
    try:
        match pd.api.types.infer_dtype(values, skipna=True):
            case "string" | "empty":
                return values, ""
            case "integer":
                return _of_integers(values, values[~missing]), ""
            case "floating" | "mixed-integer-float" | "decimal":
                return values.astype("float64"), ""
            case "boolean":
                return values.astype("boolean" if missing.any() else "bool"), ""
            case "datetime" | "datetime64" | "date":
                return pd.to_datetime(values), ""
            case "timedelta" | "timedelta64":
                return typed_column(pd.to_timedelta(values))
    except (OverflowError, ValueError):  # dates of several zones, or that pandas 2 cannot hold
        pass
    return values.map(_text, na_action="ignore"), ""


def _of_integers(values: pd.Series, present: pd.Series) -> pd.Series:
    """Return integers as such; as text, so that no two become one, if 64 bits do not hold them."""
    low, high = min(map(int, present)), max(map(int, present))
    if low < -(2**63) or high >= 2**64 or (low < 0 and high >= 2**63):
        return values.map(str, na_action="ignore")
    signed = high < 2**63
    if len(present) < len(values):
        return values.astype("Int64" if signed else "UInt64")
    return values.astype("int64" if signed else "uint64")


def merged_objects(values: Iterable[Any]) -> str | None:
    """Return a text that is a cell and also what another one is written as: 1 and "1"; or None."""
    first: dict[str, bool] = {}
    if len({isinstance(one, str) for one in values if one is not None}) < 2:
        return None
    for one in values:
        if first.setdefault(_text(one), isinstance(one, str)) != isinstance(one, str):
            return _text(one)
    return None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, np.ndarray | set | frozenset | list | tuple | dict):
        return json.dumps(_of_json(value), ensure_ascii=False)
    return str(value)


def _of_json(value: Any) -> Any:
    """Return a value as JSON has it, whole numbers without a point: readers differ in these."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    match value:
        case dict():
            return {str(key): _of_json(one) for key, one in value.items()}
        case list() | tuple():
            return [_of_json(one) for one in value]
        case set() | frozenset():
            return sorted(map(_of_json, value), key=str)
        case float() if not math.isfinite(value):
            return None if math.isnan(value) else str(value)
        case float() if value.is_integer():
            return int(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
