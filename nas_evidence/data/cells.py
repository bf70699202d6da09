"""Cells as people write them: numbers such as `1.234,5`, `$ 12`, `12 %`, `(3)`; and dates.

Numbers: a column of text is taken for numbers if nearly all of its cells are; they may have one
unit, as in `1.1 ct`. Whether a comma is decimal or groups digits is decided once for a table: by
cells that can only be the one or the other (`1,5` and `0,123`; `1,234,567` and `1,234.5`), else by
what separates its columns. Test rows and new data are read as the training rows were.

Durations, such as `1 days 02:30:00` or `PT90S`, are numbers too: seconds.

Dates: 2024-01-31, 2024-01-31T08:00, 31.1.2024, 31/01/24, 1/31/2024. Whether the day or the month
comes first is decided by the rows that allow only one of the two; where all allow both, points
mean day first and strokes month first. Features are the days since 1970, year, month, weekday and
hour, of the local time of the training rows' zone.
"""

import json
import re
from collections.abc import Container, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data.exact_text import has_leading_zeros, merged_codes, to_numeric
from nas_evidence.data.mapped import Array
from nas_evidence.data.said import Said, said_of
from nas_evidence.data.table_columns import TEXT, Order, Written
from nas_evidence.data.typed import (
    is_typed,
    merged_objects,
    names_half_characters,
    typed_column,
)
from nas_evidence.plumbing.foreign_text import on_one_line, shell_word, shortened
from nas_evidence.plumbing.parsing import parsed_json

#: Keys of `DataFrame.attrs`: sentences about how a table was read; `Written` by column, as JSON.
READ = "nas_evidence: how it was read"
_WRITTEN = "nas_evidence: how its numbers are written"
#: Minimum share of numbers, or of dates, in a column of text; maximum number of other words in it.
MOSTLY, MOST_WORDS = 0.9, 3
_SIGNS = "$€£¥%"
# Digits of other scripts become those of ASCII in `_bare`.
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),\d+|[+-]?\d{1,3}(\.\d{3})+", re.ASCII)
_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", re.ASCII)
_ONLY_COMMA = re.compile(r"[+-]?(0?,\d+|\d+,(\d{1,2}|\d{4,})|\d{1,3}(\.\d{3})+,\d+)")
_UNIT = re.compile(r"\d[.,]?\s*((?:[^\W\d_]|°)[^\d\s,;:]{0,9})$")
#: Maximum number of units of a column that is said to have several.
_MOST_UNITS = 5
_DURATION = re.compile(
    r"-?\d+ days?,? [+-]?\d\d?:\d\d:\d\d(\.\d+)?|[+-]?P(?=T?\d)(\d+D)?(T[\dHMS.]+)?"
)
_ONLY_GROUPS = re.compile(r"[+-]?\d{1,3}(,\d{3}){2,}|[+-]?\d{1,3}(,\d{3})+\.\d*")


def with_numbers_read(
    frame: pd.DataFrame,
    *,
    comma: bool | None = None,
    written: Mapping[str, Written] | None = None,
    said: Iterable[Said] = (),
    kept: Container[str] = (),
) -> pd.DataFrame:
    """Return a table of typed columns, numbers written as text as numbers; `how_read` says which.

    Cells of blanks alone are missing, as they are in files of text.

    Every table comes here first: training rows, test rows and new data, from whatever source.

    Args:
        frame: a table; names of columns as text.
        comma: whether the comma is decimal; None to find out.
        written: of columns of the training rows, if these are others: what is no number by it
            stays text.
        said: sentences about how the table was read until here.
        kept: columns of categories, groups or classes, whose codes (007, 1.10) stay text.
    """
    index = frame.index  # where a label may occur twice
    frame, decided, merged = _typed(frame.reset_index(drop=True))
    known = written or {}
    text = {name: _trimmed(frame[name]) for name in frame.columns if _is_text(frame[name])}
    for name, cells in text.items():
        if (blank := cells == "").any():
            text[name] = cells.mask(blank)
            frame = frame.assign(**{name: frame[name].mask(blank)})
    if comma is None:
        undecided = (cells for name, cells in text.items() if name not in known)
        comma = _is_comma_decimal(filter(_may_be_numbers, undecided), unclear=False)
    changed, sentences = {}, [*said, *merged]
    for name, cells in text.items():
        present = cells.dropna()
        if name in kept and name not in known and are_codes(present):
            decided[name] = TEXT
        how = known.get(name) or decided.get(name) or _written(present, comma=comma)
        decided[name] = how
        if how.sign in ("text", "category"):
            continue
        plain = present.map(lambda cell: _plain(cell, how))  # noqa: B023
        number = plain.notna()
        if name not in known:
            if number.mean() < MOSTLY or present[~number].nunique() > MOST_WORDS:
                decided[name] = TEXT
                sentences += _said_units(name, present) or _said_partly(name, present, number)
                continue
            if (plain[number] == present[number]).all():  # as pandas reads them
                if not frame[name].dropna().map(str.isascii).all():
                    changed[name] = cells  # without blanks that pandas does not know
                sentences += said_codes(name, present)
                continue
            said_now = [*_said(name, present, plain), *_said_signs(name, present)]
            sentences += [one for one in said_now if one not in sentences]
        joined = plain.where(number, present).reindex(cells.index)
        changed[name] = to_numeric(joined) if number.all() else joined
    found = frame.assign(**changed).set_axis(index)
    found.attrs = {_WRITTEN: json.dumps(decided)}
    if sentences:
        found.attrs[READ] = sentences
    return found


def are_codes(texts: pd.Series) -> bool:
    """Tell whether cells of text [n] are codes that numbers would change: 007, or 1.10 and 1.1."""
    return has_leading_zeros(texts) or merged_codes(texts) is not None


def said_codes(name: str, texts: pd.Series, option: str = "") -> list[Said]:
    """Return in words which codes of a column of text [n] become one number.

    Args:
        name: of the column.
        texts: its cells.
        option: that keeps them apart; as for a category if empty.
    """
    twice = merged_codes(texts) if has_leading_zeros(texts) else None
    if twice is None:
        return []
    one, other = map(repr, sorted(twice, key=len, reverse=True))
    option = option or f"categorical={on_one_line(shell_word(name))}"
    words = f"column {name!r}: {one} and {other} are read as one number"
    return [Said(words, remedy=f"{option} to keep them apart")]


def _said(name: str, present: pd.Series, plain: pd.Series) -> list[Said]:
    """Return in words how the first cell that was read as another text became a number."""
    shown, read = next(
        (a, b) for a, b in zip(present, plain, strict=True) if isinstance(b, str) and a != b
    )
    if shown.replace(",", ".") == read:
        return [Said("numbers are read with decimal commas: '1,5' is 1.5")]
    return [Said(f"is read as numbers: {shown!r} is {float(read):.10g}", name, "text as numbers")]


def _said_partly(name: str, present: pd.Series, number: pd.Series) -> list[Said]:
    """Return in words that half of the cells or more are dates, or numbers, and the others not."""
    if order_of(present):
        return []
    texts = present.map(str)
    dates = texts.str.fullmatch(_ISO) | texts.str.fullmatch(_SHORT)
    year = texts.str.fullmatch(_ISO)
    for what, are in (("dates", year if 2 * year.sum() >= dates.sum() else dates & ~year),
                      ("numbers", number)):  # fmt: skip
        if 0.5 <= are.mean() < 1:
            shown = [shortened(texts[which].iloc[0]) for which in (are, ~are)]
            words = (
                f"is not read as {what}: {are.sum()} of {len(present)} cells are {what} "
                f"({shown[0]!r}), {(~are).sum()} are not ({shown[1]!r})"
            )
            return [Said(words, name, "not read", "write all in one notation")]
    return []


def _said_units(name: str, present: pd.Series) -> list[Said]:
    units = present.str.extract(_UNIT, expand=False)
    if units.notna().mean() < MOSTLY or not 1 < units.nunique() <= _MOST_UNITS:
        return []
    listed = ", ".join(map(repr, units.dropna().unique()))
    words = f"is not read as numbers, as they have several units: {listed}"
    return [Said(words, name, "not read")]


def _said_signs(name: str, present: pd.Series) -> list[Said]:
    """Return in words that numbers have several signs, or that some have one of per cent."""
    signs = present.str.extract(f"([{_SIGNS}])", expand=False).fillna("")
    found = [one for one in signs.unique() if one]
    if len(found) < 2 and not ("%" in found and (signs == "").any()):
        return []
    shown = ", ".join(
        repr(present[signs == one].iloc[0]) for one in ([*found, ""])[:3] if (signs == one).any()
    )
    words = f"has numbers with several signs or without, read as they stand: {shown}"
    return [Said(words, name)]


def _typed(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Written], list[Said]]:
    """Return a table of typed columns, how those are written of which the source says it.

    Also return sentences about columns in which cells of two types become one text.
    """
    changed, decided, said = {}, dict[str, Written](), list[Said]()
    for at, kind in enumerate(frame.dtypes):
        if not is_typed(kind):
            name, values = frame.columns[at], frame.iloc[:, at]
            changed[name], note = typed_column(values)
            if note:
                decided[str(name)] = Written(note)
            if kind is np.dtype(object) and (twice := merged_objects(values.dropna())) is not None:
                said.append(Said(f"holds {twice} as text and otherwise, read as one", str(name)))
    return (frame.assign(**changed) if changed else frame), decided, said


def how_read(frame: pd.DataFrame) -> tuple[tuple[Said, ...], dict[str, Written]]:
    """Return sentences about how a table was read, and how cells of its columns are written."""
    said, written = frame.attrs.get(READ), frame.attrs.get(_WRITTEN)
    sentences = tuple(map(said_of, said)) if isinstance(said, list) else ()
    decided = parsed_json(written) if isinstance(written, str) else {}
    return sentences, {name: Written(*how) for name, how in decided.items()}


def note_written(frame: pd.DataFrame, written: Mapping[str, Written]) -> None:
    """Note how further columns of a table are written."""
    frame.attrs[_WRITTEN] = json.dumps({**written, **how_read(frame)[1]})


def decimal_comma(frame: pd.DataFrame, separator: str) -> bool:
    """Tell whether the numbers of a file, read as text, have decimal commas.

    What cannot be told apart, such as 1,234, has one where semicolons separate the columns.
    """
    columns = (_trimmed(frame[name]) for name in frame.columns if _is_text(frame[name]))
    return _is_comma_decimal(columns, unclear=separator == ";")


def _is_comma_decimal(columns: Iterable[pd.Series], *, unclear: bool) -> bool:
    commas = groups = either = 0
    for cells in columns:
        present = cells.dropna()
        unit = _unit(present)
        bare = present.map(lambda cell: _bare(cell, unit))  # noqa: B023
        bare = bare[bare.str.contains(",", regex=False)]
        numbers = bare.str.fullmatch(_COMMA) | bare.str.fullmatch(_GROUPS)
        if len(bare) and numbers.mean() >= MOSTLY:
            either += len(bare)
            commas += int(bare.str.fullmatch(_ONLY_COMMA).sum())
            groups += int(bare.str.fullmatch(_ONLY_GROUPS).sum())
    return commas > groups or (unclear and either > 0 and commas == groups)


def _may_be_numbers(cells: pd.Series) -> bool:
    """Tell whether about half of the first cells begin like numbers, which is quick to see."""
    head = cells.dropna().iloc[:1000]
    return len(head) > 0 and bool(head.str.contains(r"^\D{0,3}\d").mean() > 0.5)


def has_groups(cells: pd.Series) -> bool:
    """Tell whether there are points between digits, and each may stand between thousands."""
    dotted = cells.dropna()[cells.dropna().str.contains(".", regex=False)]
    return len(dotted) > 0 and not _has_decimal_points(dotted)


def _has_decimal_points(present: pd.Series) -> bool:
    """Tell whether points are decimal in a column whatever the table's commas are."""
    dotted = present[present.str.contains(".", regex=False)]
    return bool((dotted.str.fullmatch(_PLAIN) & ~dotted.str.fullmatch(_COMMA)).any())


def _written(present: pd.Series, *, comma: bool) -> Written:
    if not len(present) or not _may_be_numbers(present):
        return TEXT
    for some in (present.iloc[:100], present):  # quick: few columns are of durations
        if some.str.fullmatch(_DURATION).mean() < MOSTLY:
            break
    else:
        return Written("duration")
    unit = _unit(present)
    points = _has_decimal_points(present.map(lambda cell: _bare(cell, unit)) if unit else present)
    return Written("comma" if comma and not points else "point", unit)


def _unit(present: pd.Series) -> str:
    if not len(present) or not _may_be_numbers(present):
        return ""
    units = present.str.extract(_UNIT, expand=False)
    one = units.notna().mean() >= MOSTLY and units.nunique() == 1
    return str(units.dropna().iloc[0]) if one else ""


def _plain(cell: str, how: Written) -> str | None:
    """Return a cell as a plain number, None if it is none.

    >>> comma, point = Written("comma"), Written("point", "ct")
    >>> _plain("1.234,5", comma), _plain("$1,500", point), _plain("1.1 ct", point)
    ('1234.5', '1500', '1.1')
    >>> _plain("(3)", comma), _plain("b", comma), _plain("3", Written("text"))
    ('-3', None, None)
    """
    if how.sign in ("text", "category"):
        return None
    if _DURATION.fullmatch(cell):
        return repr(pd.Timedelta(cell).total_seconds()) if how.sign == "duration" else None
    comma = how.sign == "comma"
    if _PLAIN.fullmatch(cell) and not (comma and _COMMA.fullmatch(cell)):
        return cell
    bare = _bare(cell, how.unit)
    if comma and _COMMA.fullmatch(bare):
        return bare.replace(".", "").replace(",", ".")
    if not comma and _GROUPS.fullmatch(bare):
        return bare.replace(",", "")
    return bare if _PLAIN.fullmatch(bare) else None


def _bare(cell: str, unit: str = "") -> str:
    """Return a cell without unit, signs of currency and per cent, and spaces between digits."""
    bare = cell.removesuffix(unit).rstrip().replace("\u2212", "-")
    if not bare.isascii():
        bare = re.sub(r"\d", lambda digit: str(int(digit[0])), bare)
    if bare.startswith("(") and bare.endswith(")"):
        bare = f"-{bare[1:-1]}"
    bare = re.sub(rf"^([+-]?)\s*[{_SIGNS}]\s*|\s*[{_SIGNS}]$", r"\1", bare)
    return re.sub(r"(?<=\d)['\u2019\u00a0\u202f ](?=\d{3}(\D|$))", "", bare)


def _trimmed(values: pd.Series) -> pd.Series:
    with names_half_characters(f"column {str(values.name)!r}", values):
        return values.astype("object").where(values.notna()).map(str.strip, na_action="ignore")


def _is_text(values: pd.Series) -> bool:
    if isinstance(values.dtype, pd.CategoricalDtype):
        return False
    if values.dtype != object and not pd.api.types.is_string_dtype(values):
        return False
    return all(isinstance(cell, str) for cell in values.dropna())


# --- dates

#: Features of a date, the days since 1970 with their fraction first.
PARTS = ("days", "year", "month", "weekday", "hour")
_ISO = re.compile(r"\s*\d{4}-\d{1,2}-\d{1,2}([ T]\d{1,2}:.*)?\s*")
_SHORT = re.compile(r"\s*(\d{1,2})([/.])(\d{1,2})[/.](\d{4}|\d{2})([ T]\d{1,2}:.*)?\s*")
_HALF = re.compile(r"(.*[ T])(\d{1,2})(:[\d:.]+)\s*([AaPp])[Mm]")
_ZONE = re.compile(r"\s*(Z|[+-]\d\d(?::?\d\d)?)\s*$")
#: Two digits of a year up to this one are of this century.
THIS_CENTURY = 68
#: Whether dates that pandas reads are in nanoseconds, so end in the years 1677 and 2262.
_NANOSECONDS = pd.__version__.startswith("2.")
#: The zone of dates each of which is written with its own.
EACH = "each its own"


def order_of(present: pd.Series) -> Order | None:
    """Return what dates begin with, None if fewer than `MOSTLY` of the values are dates."""
    if _is_dates(present):
        return "year"
    if (
        present.empty
        or pd.api.types.is_numeric_dtype(present)
        or pd.api.types.is_bool_dtype(present)
    ):
        return None
    texts = present.astype(str)
    sample = texts.iloc[:1000]
    order: Order = "year"
    if sample.map(lambda text: _ISO.fullmatch(text) is not None).mean() < MOSTLY:
        if sample.map(lambda text: _SHORT.fullmatch(text) is not None).mean() < MOSTLY:
            return None
        short = [found for text in texts if (found := _SHORT.fullmatch(text))]
        day = sum(int(found[1]) > 12 for found in short)
        month = sum(int(found[3]) > 12 for found in short)
        points = 2 * sum(found[2] == "." for found in short) > len(short)
        order = "day" if day > month or (day == month and points) else "month"
    return order if dates_of(texts, order).notna().mean() >= MOSTLY else None


def dates_of(values: pd.Series, order: Order, zone: str | None = None) -> pd.Series:
    """Return values as dates without a time zone; what is none is missing.

    Args:
        values: dates, or text.
        order: what text begins with.
        zone: of the local time to return; "" and `EACH` leave each as it is written, None is UTC.
            What has no zone is taken as it is.
    """
    if isinstance(values.dtype, pd.PeriodDtype):
        values = values.dt.to_timestamp()
    if _is_dates(values):
        if values.dt.tz is None:
            return values
        local = values if zone in ("", EACH) else values.dt.tz_convert(zone or "UTC")
        return local.dt.tz_localize(None)
    text = values.astype("object").where(values.notna()).map(str, na_action="ignore")
    if order != "year":
        text = text.map(lambda one: _year_first(one, order), na_action="ignore")
    if zone in ("", EACH) and (zoned := has_zone(text)).any():
        text = text.where(~zoned, text[zoned].map(lambda one: _ZONE.sub("", one)))
    text = text.map(_of_24_hours, na_action="ignore")
    dates = _in_utc(text)
    if zone in (None, "", EACH):
        return dates.dt.tz_localize(None)
    local = dates.dt.tz_convert(zone).dt.tz_localize(None)
    return local.where(has_zone(text), dates.dt.tz_localize(None))


def _in_utc(text: pd.Series) -> pd.Series:
    """Return ISO dates as such; pandas 2 knows no date that nanoseconds of 64 bits cannot hold."""
    dates = pd.to_datetime(text, format="ISO8601", errors="coerce", utc=True)
    if not _NANOSECONDS or not (lost := text.notna() & dates.isna()).any():
        return dates
    far = np.array([*map(_far_date, text[lost])], dtype="datetime64[us]")
    dates = dates.astype("datetime64[us, UTC]")
    return dates.mask(lost, pd.Series(far, text.index[lost]).dt.tz_localize("UTC"))


def _far_date(text: str) -> datetime | None:
    """Return what Python reads of an ISO date, in UTC and without a zone; None if it is none."""
    try:
        found = datetime.fromisoformat(text.strip()) if _ISO.fullmatch(text) else None
        return found and (found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found)
    except (ValueError, OverflowError):
        return None


def zone_of(present: pd.Series) -> str:
    """Return the time zone of dates: a name, "" without one, `EACH` if they have several."""
    if _is_dates(present):
        zone = present.dt.tz
        return "" if zone is None else _name_of(zone, present)
    zoned = has_zone(present)
    if zoned.mean() < 0.5:
        return ""
    found = present[zoned].astype(str).str.extract(_ZONE, expand=False)
    zones = {"UTC" if one == "Z" else one for one in found.unique()}
    zones = {"UTC" if one.strip("+-").replace(":", "").strip("0") == "" else one for one in zones}
    if len(zones) > 1:
        return EACH
    zone = zones.pop()
    return zone if zone == "UTC" else f"UTC{zone[:3]}:{zone[3:].strip(':') or '00'}"


def has_zone(values: pd.Series) -> pd.Series:
    """Return which dates are written with a time zone, bool [n]."""
    if _is_dates(values):
        return pd.Series(values.dt.tz is not None, values.index)
    found = [isinstance(one, str) and _is_zoned(one) for one in values.astype("object")]
    return pd.Series(found, values.index, dtype=bool)


def parts_of(dates: pd.Series) -> Mapping[str, Array]:
    """Return the features of dates, float64 [n] each, NaN where a date is missing."""
    since = dates.to_numpy("datetime64[us]")
    days = np.where(np.isnat(since), np.nan, since.astype(np.int64) / 86_400e6)
    columns = (days, dates.dt.year, dates.dt.month, dates.dt.day_of_week, dates.dt.hour)
    found = (np.asarray(column, dtype=np.float64) for column in columns)
    return dict(zip(PARTS, found, strict=True))


def _is_dates(values: pd.Series) -> bool:
    kind = values.dtype
    return pd.api.types.is_datetime64_any_dtype(kind) or isinstance(kind, pd.PeriodDtype)


def _is_zoned(text: str) -> bool:
    tail = text[-9:]  # quick: most dates have no zone
    clock = ":" in text and ("+" in tail or "-" in tail or "Z" in tail)
    return clock and _ZONE.search(text, text.index(":")) is not None


def _name_of(zone: Any, present: pd.Series) -> str:
    """Return a name by which pandas finds a zone again, `EACH` for one without."""
    offset = present.iloc[0].utcoffset()
    for name in (str(zone), f"UTC{_clock(offset)}"):
        try:
            same = present.iloc[:1].dt.tz_convert(name).dt.tz_localize(None)
        except (KeyError, ValueError, TypeError, AttributeError, OSError):
            continue
        if same.eq(present.iloc[:1].dt.tz_localize(None)).all():
            return name
    return EACH


def _clock(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def _of_24_hours(text: str) -> str:
    """Return a date whose clock has AM or PM with the hour of the day.

    >>> _of_24_hours("2024-01-05 02:07 PM"), _of_24_hours("2024-01-05 12:07:01am")
    ('2024-01-05 14:07', '2024-01-05 00:07:01')
    """
    found = _HALF.fullmatch(text) if text[-1:] in "Mm" else None
    if found is None or not 1 <= int(found[2]) <= 12:
        return text
    return f"{found[1]}{int(found[2]) % 12 + 12 * (found[4] in 'Pp'):02}{found[3]}"


def _year_first(text: str, order: Order) -> str:
    found = _SHORT.fullmatch(text)
    if found is None:
        return text
    first, _, second, year, clock = found.groups()
    day, month = (first, second) if order == "day" else (second, first)
    if len(year) == 2:
        year = f"{20 if int(year) <= THIS_CENTURY else 19}{year}"
    return f"{year}-{int(month):02}-{int(day):02}{clock or ''}"


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
