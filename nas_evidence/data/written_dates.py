"""Dates as features: year, month, weekday, hour, and the days that have passed.

    2024-01-31, 2024-01-31T08:00, 31.1.2024, 31/01/24, 1/31/2024

Whether the day or the month comes first is decided by the rows that allow only one of the two;
where all allow both, points mean day first and strokes month first.
"""

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd

from nas_evidence.data.mapped import Array

Order = Literal["year", "month", "day"]
#: Features of a date, the days since 1970 with their fraction first.
PARTS = ("days", "year", "month", "weekday", "hour")
#: Share of values that must be dates for a column to be one.
_MOSTLY = 0.9
_ISO = re.compile(r"\s*\d{4}-\d{1,2}-\d{1,2}([ T]\d{1,2}:.*)?\s*")
_SHORT = re.compile(r"\s*(\d{1,2})([/.])(\d{1,2})[/.](\d{4}|\d{2})([ T]\d{1,2}:.*)?\s*")
#: Two digits of a year up to this one are of this century.
_THIS_CENTURY = 68


def order_of(present: pd.Series) -> Order | None:
    """Return what dates begin with, None if the values are no dates."""
    if pd.api.types.is_datetime64_any_dtype(present) or isinstance(present.dtype, pd.PeriodDtype):
        return "year"
    if (
        present.empty
        or pd.api.types.is_numeric_dtype(present)
        or pd.api.types.is_bool_dtype(present)
    ):
        return None
    sample = present.iloc[:1000].astype(str)
    if sample.map(lambda text: _ISO.fullmatch(text) is not None).mean() >= _MOSTLY:
        return "year"
    short = [found for text in sample if (found := _SHORT.fullmatch(text))]
    if len(short) < _MOSTLY * len(sample):
        return None
    day = sum(int(found[1]) > 12 for found in short)
    month = sum(int(found[3]) > 12 for found in short)
    if day == month:
        return "day" if short[0][2] == "." else "month"
    return "day" if day > month else "month"


def dates_of(values: pd.Series, order: Order) -> pd.Series:
    """Return values as dates without a time zone; what is none is missing."""
    if isinstance(values.dtype, pd.PeriodDtype):
        values = values.dt.to_timestamp()
    if not pd.api.types.is_datetime64_any_dtype(values):
        text = values.astype("object").where(values.notna()).map(str, na_action="ignore")
        if order != "year":
            text = text.map(lambda one: _year_first(one, order), na_action="ignore")
        values = pd.to_datetime(text, format="ISO8601", errors="coerce", utc=True)
    return values.dt.tz_convert(None) if values.dt.tz is not None else values


def parts_of(dates: pd.Series) -> Mapping[str, Array]:
    """Return the features of dates, float64 [n] each, NaN where a date is missing."""
    days = (dates - pd.Timestamp(0)) / pd.Timedelta(days=1)
    columns = (days, dates.dt.year, dates.dt.month, dates.dt.day_of_week, dates.dt.hour)
    found = (np.asarray(column, dtype=np.float64) for column in columns)
    return dict(zip(PARTS, found, strict=True))


def _year_first(text: str, order: Order) -> str:
    found = _SHORT.fullmatch(text)
    if found is None:
        return text
    first, _, second, year, clock = found.groups()
    day, month = (first, second) if order == "day" else (second, first)
    if len(year) == 2:
        year = f"{20 if int(year) <= _THIS_CENTURY else 19}{year}"
    return f"{year}-{int(month):02}-{int(day):02}{clock or ''}"
