"""Columns of the types that a study stores, from whatever type their source has.

    numbers   booleans, integers and floats of numpy or pandas, in the byte order of the machine
    dates     with or without a time zone
    text      `str`; lists and records as JSON, other objects as `str` writes them

Durations become seconds, and `Decimal` and numbers among Python objects become numbers.
Categories become their values; that they were categories is returned beside them, as are
durations. So training rows and new data are the same columns, whatever their source, and the
stored copy of a table gives back what was stored.
"""

import datetime
import json
import math
import numbers
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pandas as pd

from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.plumbing.user_error import UserError

#: What a source says of a column besides its type.
Note = Literal["", "category", "duration"]
#: Extension types of pandas that Parquet keeps as they are.
_KEPT = (pd.BooleanDtype, pd.StringDtype, pd.DatetimeTZDtype)


@contextmanager
def names_half_characters(where: str, texts: Iterable[object] = ()) -> Iterator[None]:
    r"""Name the text that no file can hold, because a character of it is half of a pair.

    Python makes such text of bytes that are not UTF-8, or of "\\ud83d" in JSON.

    Args:
        where: the place of the text, for messages.
        texts: to check first, as pandas 2 makes columns of any text; others are passed over.

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


def is_typed(kind: Any) -> bool:
    """Tell whether a type is one of the above, so that a column of it stays as it is."""
    if isinstance(kind, np.dtype):
        wide = kind.kind == "f" and kind.itemsize not in (4, 8)
        return kind.kind in "biufM" and bool(kind.isnative) and not wide
    if isinstance(kind, pd.ArrowDtype):
        return False
    return isinstance(kind, _KEPT) or (
        pd.api.types.is_numeric_dtype(kind) and not isinstance(kind, pd.SparseDtype)
    )


def typed_column(values: pd.Series) -> tuple[pd.Series, Note]:
    """Return a column [n] as one of the types above, and what its source says of it besides.

    Ordered categories of text stay; as a target they are refused (`targets.py`).

    Raises:
        ValueError: for complex numbers; names the column.
    """
    kind = values.dtype
    if is_typed(kind):
        return values, ""
    if isinstance(kind, pd.CategoricalDtype):
        return _of_categories(values, kind)
    if isinstance(kind, pd.SparseDtype):
        return typed_column(values.sparse.to_dense())
    if isinstance(kind, pd.PeriodDtype):
        return values.dt.to_timestamp(), ""
    if isinstance(kind, pd.ArrowDtype):
        return _of_arrow(values, kind)
    if isinstance(kind, np.dtype) and kind.kind == "m":
        return values.dt.total_seconds(), "duration"
    if isinstance(kind, np.dtype) and kind.kind == "c":
        raise UserError(
            "complex-column",
            f"column {str(values.name)!r} holds complex numbers; give their real and imaginary "
            "parts as two columns",
        )
    if isinstance(kind, np.dtype) and kind.kind in "biufM":
        narrow = kind.kind == "f" and kind.itemsize < 4
        wide = kind.kind == "f" and kind.itemsize > 8
        plain = np.dtype(f"f{4 if narrow else 8}") if narrow or wide else kind.newbyteorder("=")
        return pd.Series(values.to_numpy().astype(plain), values.index, name=values.name), ""
    return _of_objects(values.astype(object))


def _of_categories(values: pd.Series, kind: pd.CategoricalDtype) -> tuple[pd.Series, Note]:
    of_text = pd.api.types.is_string_dtype(kind.categories.dtype)
    if kind.ordered and of_text:
        return values, ""
    found, note = typed_column(pd.Series(values.astype(object), values.index, name=values.name))
    if note == "duration" or pd.api.types.is_datetime64_any_dtype(found) or kind.ordered:
        return found, note
    return found, "category"


def _of_arrow(values: pd.Series, kind: pd.ArrowDtype) -> tuple[pd.Series, Note]:
    if pd.api.types.is_float_dtype(kind):
        numbers = values.to_numpy("float64", na_value=np.nan)
        return pd.Series(numbers, values.index, name=values.name), ""
    found, note = _of_objects(values.astype(object))
    of_categories = str(kind).startswith("dictionary<") and not note
    return found, "category" if of_categories else note


def _of_objects(values: pd.Series) -> tuple[pd.Series, Note]:
    """Return a column of Python objects as what all of them are, else as text."""
    missing = values.isna()
    present, values = values[~missing], values.where(~missing, None)
    kinds = set(map(type, present))
    if kinds <= {str}:
        return values, ""
    if kinds <= {bool, np.bool_}:
        return values.where(missing, values.map(bool, na_action="ignore")), ""
    if all(issubclass(one, numbers.Number | Decimal) for one in kinds) and not (
        kinds & {bool, np.bool_, complex}
    ):
        return _of_numbers(values, present), ""
    if all(issubclass(one, datetime.timedelta | np.timedelta64) for one in kinds):
        return typed_column(pd.to_timedelta(values))
    found = values.infer_objects()
    if pd.api.types.is_datetime64_any_dtype(found):
        return found, ""
    return values.where(missing, values.map(_text, na_action="ignore")), ""


def _of_numbers(values: pd.Series, present: pd.Series) -> pd.Series:
    """Return numbers among Python objects as integers if all are, else as float64.

    Integers that no type of 64 bits holds are text, so that no two of them become one.
    """
    if not all(isinstance(one, int | np.integer) for one in present):
        return values.map(float, na_action="ignore").astype("float64")
    low, high = min(map(int, present)), max(map(int, present))
    if low < -(2**63) or high >= 2**64 or (low < 0 and high >= 2**63):
        return values.map(str, na_action="ignore")
    name = "int64" if high < 2**63 else "uint64"
    if len(present) < len(values):
        name = name.replace("i", "I").replace("u", "U")
    return values.where(values.notna(), None).astype(name)


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
