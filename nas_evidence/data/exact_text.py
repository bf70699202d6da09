"""Numbers of text to the last bit: pandas before 3.1 reads a third of them one bit off.

Two machines would otherwise compute with other data, of another digest, from the same file.
"""

import re
from contextlib import suppress
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd

_IS_EXACT = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)

_INTEGER = re.compile(r"[+-]?\d{1,4000}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
_ZEROS = re.compile(r"[+-]?0\d+", re.ASCII)

#: `pd.read_csv`.
read_csv = pd.read_csv if _IS_EXACT else partial(pd.read_csv, float_precision="round_trip")


def beyond_floats(values: pd.Series) -> bool:
    """Tell whether float64 of a column [n] may stand for several integers: from 2^53 on."""
    return values.dtype == np.float64 and bool((values.abs() >= 2**53).any())


def integers(texts: pd.Series) -> pd.Series | None:
    """Return cells of text [n] as Python integers, None where missing; None if one is none."""
    cells = texts.map(str.strip, na_action="ignore")
    if not cells.dropna().map(lambda cell: _INTEGER.fullmatch(cell) is not None).all():
        return None
    found = [int(cell) if isinstance(cell, str) else None for cell in cells]
    return pd.Series(found, texts.index, dtype=object)


def merged_codes(texts: pd.Series) -> tuple[str, str] | None:
    """Return two cells of text [n] that are one number, or None: such as 007 and 7, 1.10 and 1.1.

    >>> merged_codes(pd.Series(["7", "1.1", "007", "7", None])), merged_codes(pd.Series(["7"]))
    (('7', '007'), None)
    """
    first: dict[Decimal, str] = {}
    for cell in texts.dropna().str.strip().unique():
        if _NUMBER.fullmatch(cell) and first.setdefault(number := Decimal(cell), cell) != cell:
            return first[number], cell
    return None


def has_leading_zeros(texts: pd.Series) -> bool:
    """Tell whether a cell of text [n] is a number with a zero before its digits, such as 007."""
    return bool(texts.dropna().str.strip().str.fullmatch(_ZEROS).any())


def to_numeric(values: pd.Series, errors: str = "raise") -> pd.Series:
    """Return `pd.to_numeric(values, errors)` [n], text as `float` reads it.

    Raises:
        ValueError: `errors` is "raise", and a cell is no number.
    """
    found = pd.to_numeric(values, errors=errors)
    if _IS_EXACT or found.dtype.kind != "f" or values.dtype.kind in "biuf":
        return found
    numbers = found.to_numpy("float64", na_value=np.nan).copy()
    for row, cell in enumerate(values):
        if isinstance(cell, str) and np.isfinite(numbers[row]):
            with suppress(ValueError):  # forms that pandas alone reads
                numbers[row] = float(cell)
    return pd.Series(numbers, found.index, found.dtype, found.name)
