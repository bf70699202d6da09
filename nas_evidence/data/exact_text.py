"""Numbers of text to the last bit: pandas before 3.1 reads a third of them one bit off.

Two machines would otherwise compute with other data, of another digest, from the same file.
"""

import re
from contextlib import suppress
from functools import partial

import numpy as np
import pandas as pd

from nas_evidence.data.mapped import Array

NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.ASCII | re.IGNORECASE)
FLAGS = {"true": 1.0, "false": 0.0}
_IS_EXACT = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)

#: `pd.read_csv`.
read_csv = pd.read_csv if _IS_EXACT else partial(pd.read_csv, float_precision="round_trip")


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


def as_numbers(values: pd.Series) -> Array:
    """Return cells as float64 [n], NaN where they are missing or no numbers; True is 1."""
    if pd.api.types.is_numeric_dtype(values.dtype):
        return np.asarray(values.to_numpy("float64", na_value=np.nan))
    codes, cells = pd.factorize(values.astype(object))
    found = [_number(str(cell).strip()) for cell in cells]
    return np.asarray(np.array([*found, np.nan])[codes])


def _number(cell: str) -> float:
    return float(cell) if NUMBER.fullmatch(cell) else FLAGS.get(cell.casefold(), np.nan)
