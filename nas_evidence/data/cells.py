"""Cells as people write them: numbers such as `1.234,5`, `$ 12`, `12 %`, `(3)`; and dates.

Every table comes here first, from whatever source: training rows, test rows and new data. A
column of text is taken for numbers if nearly all of its cells are; they may have one sign or unit,
as in `1.1 ct`. Whether a comma is decimal or groups digits is decided once for a table: by cells
that can only be the one or the other (`1,5` and `0,123`; `1,234,567` and `1,234.5`), else by what
separates its columns. Test rows and new data are read as the training rows were.

Dates: 2024-01-31, 2024-01-31T08:00, 31.1.2024, 31/01/24, 1/31/2024. Whether the day or the month
comes first is decided by the rows that allow only one of the two; where all allow both, points
mean day first and strokes month first. Features are the days since 1970, year, month, weekday and
hour; times with a zone are in UTC.
"""

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data.arrow_tables import holds, numbers_of, texts_of
from nas_evidence.data.exact_text import FLAGS, NUMBER
from nas_evidence.data.mapped import Array
from nas_evidence.data.said import Said
from nas_evidence.data.table_columns import TEXT, Order, Written
from nas_evidence.data.typed import is_text, names_half_characters, typed_column
from nas_evidence.plumbing.foreign_text import on_one_line, shell_word, shortened
from nas_evidence.plumbing.parsing import parsed_json

#: Keys of `DataFrame.attrs`: sentences about how a table was read; `Written` by column, as JSON;
#: the version of preparations for which it was read.
READ = "nas_evidence: how it was read"
_WRITTEN = "nas_evidence: how its numbers are written"
VERSION = "nas_evidence: version"
#: Minimum share of numbers, or of dates, in a column of text; maximum number of other words in it.
MOSTLY, MOST_WORDS = 0.9, 3
_SIGNS = "$€£¥%"
_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),\d+|[+-]?\d{1,3}(\.\d{3})+", re.ASCII)
_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", re.ASCII)
_ONLY_COMMA = re.compile(r"[+-]?(0?,\d+|\d+,(\d{1,2}|\d{4,})|\d{1,3}(\.\d{3})+,\d+)", re.ASCII)
_ONLY_GROUPS = re.compile(r"[+-]?\d{1,3}(,\d{3}){2,}|[+-]?\d{1,3}(,\d{3})+\.\d*", re.ASCII)
_UNIT = re.compile(r"\d[.,]?\s*((?:[^\W\d_]|°)[^\d\s,;:]{0,9})$")
#: Maximum number of units of a column that is said to have several.
_MOST_UNITS = 5
_ZEROS = r"^[+-]?0\d+$"


def with_numbers_read(
    frame: pd.DataFrame,
    *,
    comma: bool = False,
    written: Mapping[str, Written] | None = None,
    said: Iterable[Said] = (),
    kept: Container[str] = (),
    target: str | None = None,
    missing: Sequence[str] = (),
) -> pd.DataFrame:
    """Return a table of typed columns, numbers written as text as numbers; `how_read` says which.

    Blank cells are missing.

    Args:
        frame: a table; names of columns as text.
        comma: whether commas that may be decimal are.
        written: of columns of the training rows, if these are others: what is no number by it
            stays text.
        said: sentences about how the table was read until here.
        kept: columns of categories, groups or classes, whose codes (007, 1.10) stay text.
        target: the column whose codes with leading zeros do.
        missing: words that are missing cells.
    """
    known, decided, sentences = written or {}, dict[str, Written](), [*said]
    index, found, texts, plain = frame.index, dict[str, Any](), {}, {}
    frame = frame.reset_index(drop=True)  # a label may occur twice
    for name, given in frame.items():
        with names_half_characters(f"column {name!r}"):
            found[name], note = typed_column(given)
            text = texts_of(found[name]) if is_text(found[name]) else None
        if note:
            decided[name] = Written(note)
        if text is not None:
            # Most columns are plain numbers throughout, which is quick to see.
            if (numbers := numbers_of(text)) is None:
                text = texts_of(found[name], missing)
                numbers = numbers_of(text)
            texts[name], plain[name] = text, numbers
    others = (
        texts[name]
        for name, own in plain.items()
        if own is None and name not in {*known, *decided}
    )
    commas = _is_comma_decimal(map(_present, others), unclear=comma)
    for name, text in texts.items():
        how, numbers = known.get(name, decided.get(name)), plain[name]
        if how is None and (
            (name in kept and are_codes(_cells(text))) or (name == target and holds(text, _ZEROS))
        ):
            how = TEXT
        own = how or Written("comma" if commas else "point")
        if numbers is not None and (
            own.sign in ("point", "duration") or (own.sign == "comma" and not holds(text, r"\."))
        ):
            decided[name], found[name], told = own, numbers, []
            if how is None and numbers.dtype.kind in "iu" and holds(text, _ZEROS):
                told = _said_codes(name, text)
        else:
            found[name], decided[name], told = _read(name, text, how, commas)
        sentences += [one for one in told if one not in sentences]
    result = pd.DataFrame(found, columns=frame.columns).set_axis(index)
    result.attrs = {_WRITTEN: json.dumps(decided), VERSION: 2}
    if sentences:
        result.attrs[READ] = sentences
    return result


def _read(
    name: str, text: Any, known: Written | None, commas: bool
) -> tuple[pd.Series, Written, list[Said]]:
    """Return a column of text [n], not of plain numbers alone, how it is written, and why."""
    cells, present = text.to_pandas(), _present(text)
    if known is None and len(present) and {*map(str.casefold, present.unique())} <= {*FLAGS}:
        flags = cells.map(lambda cell: cell.casefold() == "true", na_action="ignore")
        return flags.astype("boolean" if text.null_count else "bool"), TEXT, []
    how = known or _written(present, comma=commas)
    if how.sign in ("text", "category"):
        return cells, how, []
    plain, said = present.map({cell: _plain(cell, how) for cell in present.unique()}), list[Said]()
    number = plain.notna()
    if known is None:
        if said := _said_units(name, present, number):
            return cells, TEXT, said
        if number.mean() < MOSTLY or present[~number].nunique() > MOST_WORDS:
            return cells, TEXT, _said_partly(name, present, number)
        said = _said(name, present, plain)
    joined = plain.where(number, present).reindex(cells.index)
    exact = numbers_of(texts_of(joined)) if number.all() else joined
    return (cells, known or TEXT, []) if exact is None else (pd.Series(exact), how, said)


def _present(text: Any) -> pd.Series:
    """Return the cells of text that are there, at their places."""
    found: pd.Series = text.to_pandas().dropna().astype(object)
    return found


def _cells(text: Any) -> list[str]:
    """Return the different cells of text that are there."""
    found: list[str] = text.unique().drop_null().to_pylist()
    return found


def are_codes(cells: Iterable[str]) -> bool:
    """Tell whether cells of text are codes that numbers would change: 007, or 1.10 and 1.1."""
    cells = [*cells]
    return any(re.match(_ZEROS, one) for one in cells) or _merged(cells) is not None


def _merged(cells: Iterable[str]) -> tuple[str, str] | None:
    """Return two cells of text that are one number, or None: such as 007 and 7, 1.10 and 1.1.

    >>> _merged(["7", "1.1", "007", "7"]), _merged(["7"])
    (('7', '007'), None)
    """
    first: dict[Decimal, str] = {}
    for cell in cells:
        if NUMBER.fullmatch(cell) and first.setdefault(number := Decimal(cell), cell) != cell:
            return first[number], cell
    return None


def _said_codes(name: str, text: Any) -> list[Said]:
    """Return in words which codes of a column of text become one number, and the option."""
    if (twice := _merged(_cells(text))) is None:
        return []
    one, other = map(repr, sorted(twice, key=len, reverse=True))
    words = f"column {name!r}: {one} and {other} are read as one number"
    option = f"categorical={on_one_line(shell_word(name))}"
    return [Said(words, remedy=f"{option} to keep them apart")]


def _said(name: str, present: pd.Series, plain: pd.Series) -> list[Said]:
    """Return in words how the first cell that was read as another text became a number."""
    for shown, read in zip(present, plain, strict=True):
        if isinstance(read, str) and shown != read:
            if shown.replace(",", ".") == read:
                return [Said("numbers are read with decimal commas: '1,5' is 1.5")]
            words = f"is read as numbers: {shown!r} is {float(read):.10g}"
            return [Said(words, name, "text as numbers")]
    return []


def _said_units(name: str, present: pd.Series, number: pd.Series) -> list[Said]:
    """Return in words that numbers have several units or signs, or that some have per cent."""
    are_numbers = number.mean() >= MOSTLY
    units = present.str.extract(rf"([{_SIGNS}])" if are_numbers else _UNIT, expand=False)
    found = [*units.dropna().unique()]
    found += ["none"] * bool("%" in found and units.isna().any())
    most = are_numbers or units.notna().mean() >= MOSTLY
    if not most or not 1 < len(found) <= _MOST_UNITS or order_of(present):
        return []
    words = f"is not read as numbers, as they have several units: {', '.join(found)}"
    return [Said(words, name, "not read")]


def _said_partly(name: str, present: pd.Series, number: pd.Series) -> list[Said]:
    """Return in words that half of the cells or more are dates, or numbers, and the others not."""
    if order_of(present):
        return []
    dates = (("dates", present.str.fullmatch(one)) for one in (_ISO, _SHORT))
    for what, are in (*dates, ("numbers", number)):
        if 0.5 <= are.mean() < 1:
            shown = [shortened(present[which].iloc[0]) for which in (are, ~are)]
            words = (
                f"is not read as {what}: {are.sum()} of {len(present)} cells are {what} "
                f"({shown[0]!r}), {(~are).sum()} are not ({shown[1]!r})"
            )
            return [Said(words, name, "not read", "write all in one notation")]
    return []


def how_read(frame: pd.DataFrame) -> tuple[tuple[Said, ...], dict[str, Written]]:
    """Return sentences about how a table was read, and how cells of its columns are written."""
    said, written = frame.attrs.get(READ, ()), parsed_json(frame.attrs.get(_WRITTEN, "{}"))
    sentences = tuple(Said(*one) for one in said)
    return sentences, {name: Written(*how) for name, how in written.items()}


# --- numbers


def _is_comma_decimal(columns: Iterable[pd.Series], *, unclear: bool) -> bool:
    commas = groups = either = 0
    for present in filter(_may_be_numbers, columns):
        bare = _bare_of(present)[1]
        bare = bare[bare.str.contains(",", regex=False)]
        numbers = bare.str.fullmatch(_COMMA) | bare.str.fullmatch(_GROUPS)
        if len(bare) and numbers.mean() >= MOSTLY:
            either += len(bare)
            commas += int(bare.str.fullmatch(_ONLY_COMMA).sum())
            groups += int(bare.str.fullmatch(_ONLY_GROUPS).sum())
    return commas > groups or (unclear and either > 0 and commas == groups)


def _may_be_numbers(present: pd.Series) -> bool:
    """Tell whether about half of the first cells begin like numbers, which is quick to see."""
    head = present.iloc[:1000]
    return len(head) > 0 and bool(head.str.contains(r"^\D{0,3}\d").mean() > 0.5)


def _written(present: pd.Series, *, comma: bool) -> Written:
    if not _may_be_numbers(present):
        return TEXT
    unit, bare = _bare_of(present)
    dotted = bare[bare.str.contains(".", regex=False)]
    points = (dotted.str.fullmatch(NUMBER) & ~dotted.str.fullmatch(_COMMA)).any()
    return Written("comma" if comma and not points else "point", unit)  # 1.5 has a decimal point


def _bare_of(present: pd.Series) -> tuple[str, pd.Series]:
    """Return the unit that nearly all cells have, or "", and the cells without it."""
    units = present.str.extract(_UNIT, expand=False)
    one = units.notna().mean() >= MOSTLY and units.nunique() == 1
    unit = str(units.dropna().iloc[0]) if one else ""
    return unit, present.map(lambda cell: _bare(cell, unit))


def _plain(cell: str, how: Written) -> str | None:
    """Return a cell as a plain number, None if it is none.

    >>> comma, point = Written("comma"), Written("point", "ct")
    >>> _plain("1.234,5", comma), _plain("$1,500", point), _plain("1.1 ct", point)
    ('1234.5', '1500', '1.1')
    >>> _plain("(3)", comma), _plain("b", comma)
    ('-3', None)
    """
    comma = how.sign == "comma"
    if NUMBER.fullmatch(cell) and not (comma and _COMMA.fullmatch(cell)):
        return cell
    bare = _bare(cell, how.unit)
    if comma and _COMMA.fullmatch(bare):
        return bare.replace(".", "").replace(",", ".")
    if not comma and _GROUPS.fullmatch(bare):
        return bare.replace(",", "")
    return bare if NUMBER.fullmatch(bare) else None


def _bare(cell: str, unit: str = "") -> str:
    """Return a cell without unit, signs of currency and per cent, and spaces between digits."""
    bare = cell.removesuffix(unit).rstrip().replace("\u2212", "-")
    if bare.startswith("(") and bare.endswith(")"):
        bare = f"-{bare[1:-1]}"
    bare = re.sub(rf"^([+-]?)\s*[{_SIGNS}]\s*|\s*[{_SIGNS}]$", r"\1", bare)
    return re.sub(r"(?<=\d)['\u2019\u00a0\u202f ](?=\d{3}(\D|$))", "", bare)


# --- dates

#: Features of a date, the days since 1970 with their fraction first.
PARTS = ("days", "year", "month", "weekday", "hour")
_ZONE = r"\s*(Z|[+-]\d\d(?::?\d\d)?)"
_SECONDS = r"(?::(\d\d)(?:[.,](\d{1,9}))?)?"
_CLOCK = rf"(?:[ T](\d{{1,2}}):(\d\d){_SECONDS}\s*(?:([AaPp])[Mm])?(?:{_ZONE})?)?"
_ISO = re.compile(rf"(\d{{4}})(-)(\d{{1,2}})-(\d{{1,2}}){_CLOCK}", re.ASCII)
_SHORT = re.compile(rf"(\d{{1,2}})([/.])(\d{{1,2}})[/.](\d{{4}}|\d{{2}}){_CLOCK}", re.ASCII)
#: Two digits of a year up to this one are of this century.
THIS_CENTURY = 68


def order_of(present: pd.Series) -> Order | None:
    """Return what dates begin with, None if fewer than `MOSTLY` of the values are dates."""
    if pd.api.types.is_datetime64_any_dtype(present):
        return "year"
    if present.empty or not is_text(present):
        return None
    texts = present.astype(str).str.strip()
    order: Order = "year"
    if texts.iloc[:1000].str.fullmatch(_ISO).mean() < MOSTLY:
        if texts.iloc[:1000].str.fullmatch(_SHORT).mean() < MOSTLY:
            return None
        parts = texts.str.extract(_SHORT).dropna(subset=[0])
        day, month = (int((parts[k].astype(int) > 12).sum()) for k in (0, 2))
        points = (parts[1] == ".").mean() > 0.5
        order = "day" if day > month or (day == month and points) else "month"
    return order if dates_of(texts, order).notna().mean() >= MOSTLY else None


def dates_of(values: pd.Series, order: Order, *, zones: bool = True) -> pd.Series:
    """Return values as dates without a time zone, in UTC; what is none is missing.

    Args:
        values: dates, or text.
        order: what text begins with.
        zones: whether zones count, so that the dates are in UTC; else they are as written.
    """
    if pd.api.types.is_datetime64_any_dtype(values):
        local = values.dt.tz is None or not zones
        return values.dt.tz_localize(None) if local else values.dt.tz_convert(None)
    codes, cells = pd.factorize(values.astype(object))
    found = [_date(str(cell).strip(), order, zones) for cell in cells]
    return pd.Series(np.array([*found, None], "datetime64[us]")[codes], values.index)


def said_far_dates(values: pd.Series, order: Order) -> str:
    """Return in words that some dates of a column are no real ones, such as 9999-12-31.

    Systems write such a date for "never". Those count that nanoseconds of 64 bits cannot hold.
    The text is empty if there are none.
    """
    dates = dates_of(values, order).dropna()
    far = (dates.dt.year < 1678) | (dates.dt.year > 2261)
    if not 0 < far.mean() < 0.5:
        return ""
    shown = str(values[far[far].index[0]]).removesuffix(" 00:00:00")
    return (
        f"column {str(values.name)!r}: {far.sum()} of {len(values)} dates are far from the others "
        f"({shown!r}); empty these cells if they mean no date"
    )


def _date(text: str, order: Order, zones: bool) -> datetime | None:
    """Return a text as a date in UTC, None if it is none.

    >>> _date("31.1.24 02:07 PM", "day", True), _date("2024-01-31 23:30-01:00", "year", True)
    (datetime.datetime(2024, 1, 31, 14, 7), datetime.datetime(2024, 2, 1, 0, 30))
    """
    found = _ISO.fullmatch(text) or (None if order == "year" else _SHORT.fullmatch(text))
    if found is None:
        return None
    first, mark, second, third, hour, minute, seconds, fraction, half, zone = found.groups()
    year, month, day = first, second, third
    if mark != "-":
        year, month, day = (third, second, first) if order == "day" else (third, first, second)
        if len(year) == 2:
            year = f"{20 if int(year) <= THIS_CENTURY else 19}{year}"
    hours = int(hour or 0)
    if half:
        hours = hours % 12 + 12 * (half in "Pp") if 1 <= hours <= 12 else 99
    with suppress(ValueError, OverflowError):
        clock = (hours, int(minute or 0), int(seconds or 0), int(f"{fraction or 0:0<6}"[:6]))
        date = datetime(int(year), int(month), int(day), *clock)
        if zone and zone != "Z" and zones:
            minutes = 60 * int(zone[1:3]) + int(zone[3:].strip(":") or 0)
            date -= timedelta(minutes=-minutes if zone[0] == "-" else minutes)
        return date
    return None


def has_zone(values: pd.Series) -> pd.Series:
    """Return which dates are written with a time zone, bool [n]."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return pd.Series(values.dt.tz is not None, values.index)
    return values.astype(str).map(lambda cell: re.search(rf":.*{_ZONE}\s*$", cell) is not None)


def parts_of(dates: pd.Series) -> Mapping[str, Array]:
    """Return the features of dates, float64 [n] each, NaN where a date is missing."""
    since = dates.to_numpy("datetime64[us]")
    days = np.where(np.isnat(since), np.nan, since.astype(np.int64) / 86_400e6)
    columns = (days, dates.dt.year, dates.dt.month, dates.dt.day_of_week, dates.dt.hour)
    found = (np.asarray(column, dtype=np.float64) for column in columns)
    return dict(zip(PARTS, found, strict=True))
