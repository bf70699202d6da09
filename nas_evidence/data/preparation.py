"""The columns of a table as features: what is decided once, and applied to every table.

    number    one feature; a missing value is the median, with an indicator if training rows have
              one; scaled later like every input. True and False, also as text, are 1 and 0
    date      days since 1970, year, month, weekday and hour as numbers, those that vary
    category  one-hot: the categories of the training rows, most frequent first, and "other"

Numbers are float64 until `shift` and `unit` of their column are taken off: float32 would lose
what distinguishes values far from 0, such as 2459000.5 and 2459000.6. Of whole numbers that
float64 rounds, such as 2^60 + 1, `base` is taken off before, as integers.

Decisions are taken once, of the training rows, and applied cell by cell: the features of a row
do not depend on the rows beside it. A `Preparation` holds every number and name that it uses, so
it travels as JSON and gives the same features anywhere, with pandas and numpy alone. They are
those of scikit-learn's `ColumnTransformer` of a `MissingIndicator` and a `OneHotEncoder` with
these parameters (a test compares).
"""

import difflib
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

import numpy as np
import pandas as pd

from nas_evidence.data.cells import (
    EACH,
    MOST_WORDS,
    PARTS,
    THIS_CENTURY,
    dates_of,
    has_zone,
    order_of,
    parts_of,
    zone_of,
)
from nas_evidence.data.exact_text import to_numeric
from nas_evidence.data.mapped import Array
from nas_evidence.data.said import Said
from nas_evidence.data.table_columns import (
    MISSING,
    OTHER,
    TEXT,
    Column,
    Order,
    Preparation,
    Written,
)
from nas_evidence.plumbing.foreign_text import on_one_line, shell_word, shortened
from nas_evidence.plumbing.user_error import UserError

#: Maximum number of categories of a column with a feature of their own.
MOST_CATEGORIES = 50
#: Share of values that must be numbers, or dates, for the column to be taken as that.
_MOSTLY = 0.9
#: A column whose median is further from 0, in standard deviations, is centred before float32.
_FAR = 4.0
#: A column whose largest distance from 0 is smaller gets a unit of its own: float32 ends at 1e-38.
_TINY = 1e-30
#: Largest whole number up to which float64 has all.
_WHOLE = 2**53
#: Ordered categories that a sentence names.
_GRADES = 4
_FLAGS = {"true": 1.0, "false": 0.0}


def inputs_of(preparation: Preparation, frame: pd.DataFrame, where: str) -> Array:
    """Return the features of a table, float32 [n, d].

    Raises:
        ValueError: if a column is absent, or holds text instead of numbers; names both.
    """
    names = dict.fromkeys(column.name for column in preparation.columns)
    absent = [name for name in names if name not in frame.columns]
    if absent:
        known = {str(name).casefold().strip(): name for name in frame.columns}
        near = {name: known.get(name.casefold().strip()) for name in absent}
        hints = [f"did you mean {other!r}?" for other in near.values() if other]
        raise UserError(
            "columns-missing",
            f"{where} must have the columns of the training data, but lacks "
            f"{', '.join(repr(name) for name in absent)}; "
            + (" ".join(hints) or "add them, empty where unknown"),
        )
    dates: dict[str, Mapping[str, Array]] = {}
    of_numbers, of_categories = map(preparation.of_kind, ("number", "category"))
    numbers = [(c, _numbers(frame[c.name], c, where, dates)) for c in of_numbers]
    parts = [
        *(c.feature(values) for c, values in numbers),
        *(np.isnan(values) for c, values in numbers if c.indicator),
        *(
            np.asarray(values == one)
            for c, values in ((c, _categories(frame[c.name], c)) for c in of_categories)
            for one in (*c.categories, OTHER)
        ),
    ]
    features = np.stack(parts, axis=1)
    return np.ascontiguousarray(features, dtype=np.float32)


def doubts_of(preparation: Preparation, frame: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each column whose cells cannot be used as they are."""
    done = set[str]()
    for column in preparation.columns:
        if column.name in done:
            continue  # another part of a date
        done.add(column.name)
        values = frame[column.name]
        present = values.dropna()
        if column.kind == "number" and not column.part:
            present = _without(present, column.words).dropna()
        if present.empty:
            yield f"column {column.name!r} is empty; the default from training is used"
        elif column.kind == "category":
            unseen = _categories(present, column) == OTHER
            seen = "not seen in training"
            unseen &= _texts(present) != OTHER  # which the data may call so themselves
            yield from _told(column, present[unseen], seen, "as the category '(other)'")
        elif column.part:
            undated = dates_of(present, column.order, column.zone).isna()
            yield from _told(column, present[undated], "without a date", "as missing")
            yield from _told_zones(column, present[~undated])
        else:
            yield from _told(column, unread(values, column), "with text", "as missing")
        if column.low is not None:
            numbers = pd.Series(_as_numbers(present, column.base), present.index)
            far = _far_outside(numbers, column)
            far = present[far.index] if column.base else far
            if len(far):
                is_are = "is" if len(far) == 1 else "are"
                yield (
                    f"column {column.name!r}: {_cells(len(far))} ({_first(far)}) {is_are} far "
                    f"outside all training values ({column.range}); used unchanged"
                )
        n_missing = len(values) - len(present)
        if n_missing and len(present) and not column.part and not column.may_miss:
            taken = "the median" if column.kind == "number" else "the category '(other)'"
            cells = _cells(n_missing, "missing ")
            yield f"column {column.name!r}: {cells}, replaced by {taken}"


def _far_outside(numbers: pd.Series, column: Column) -> pd.Series:
    """Return the numbers that are further outside the range of training than it is wide."""
    if column.low is None or column.high is None:
        return numbers.iloc[:0]
    width = column.high - column.low
    return numbers[(numbers < column.low - width) | (numbers > column.high + width)]


def unread(values: pd.Series, column: Column) -> pd.Series:
    """Return the cells of text [k] of a column [n] of numbers that are no numbers.

    Words that training has read as missing are none of them.
    """
    if not _is_text(values):
        return values.iloc[:0]
    present = _without(values.dropna(), column.words).dropna()
    return present[np.isnan(_as_numbers(present))]


def _told(column: Column, cells: pd.Series, what: str, taken: str) -> Iterator[str]:
    if len(cells):
        shown = _first(cells)
        yield f"column {column.name!r}: {_cells(len(cells))} {what} ({shown}), treated {taken}"


def _first(cells: pd.Series) -> str:
    """Return the first different cells, at most three."""
    few = cells.unique()[:3].tolist()
    return ", ".join(repr(str(one) if isinstance(one, pd.Timestamp) else one) for one in few)


def _told_zones(column: Column, present: pd.Series) -> Iterator[str]:
    """Yield a sentence if dates have a time zone and those of training none, or the reverse."""
    zoned = has_zone(present)
    if column.zone == "":
        what = "with a time zone, which training had not"
        yield from _told(column, present[zoned], what, "as local time")
    elif column.zone is not None:
        where = "" if column.zone == EACH else f" of {column.zone}"
        yield from _told(column, present[~zoned], "without a time zone", f"as local time{where}")


def _cells(n: int, kind: str = "") -> str:
    return f"{n} {kind}cell{'s' * (n != 1)}"


def prepare(
    frame: pd.DataFrame,
    *,
    drop: Collection[str],
    categorical: Collection[str],
    numeric: Collection[str],
    where: str,
    written: Mapping[str, Written] | None = None,
    unnamed: bool = False,
) -> tuple[Preparation, list[Said]]:
    """Decide how the columns of the training rows become features.

    Args:
        frame: the training rows without the target.
        drop: columns to leave out.
        categorical: columns to read as categories.
        numeric: columns to read as numbers.
        where: the place of the table, for messages.
        written: how its cells were written.
        unnamed: whether it was an array.

    Returns:
        The preparation, and one sentence per decision that is not plain.

    Raises:
        ValueError: for an unknown name, or if no column is left.
    """
    for option, names in (("drop", drop), ("categorical", categorical), ("numeric", numeric)):
        for name in names:
            if name not in frame.columns:
                near = difflib.get_close_matches(name, [*map(str, frame.columns)], n=1)
                known = ", ".join(map(shortened, frame.columns[:8]))
                known += ", ..." * (len(frame.columns) > 8)
                hint = f"did you mean {near[0]!r}?" if near else f"columns: {known}"
                raise UserError(
                    "option-names-no-feature",
                    f"`{option}` names the column {name!r}, which {where} does not have as a "
                    f"feature; {hint}",
                )
    if both := set(categorical) & set(numeric):
        raise UserError(
            "categorical-and-numeric",
            f"column {min(both)!r} cannot be both `categorical` and `numeric`",
        )
    columns, said = [], []
    for name in frame.columns:
        if name in drop:
            continue
        values = frame[name]
        forced = "category" if name in categorical else "number" if name in numeric else None
        if forced is None and (written or {}).get(str(name), TEXT).sign == "category":
            forced = "given category"
        found, sentence = _decided(str(name), values, forced, where)
        said += [sentence] if sentence else []
        columns += found
    if not columns:
        raise UserError(
            "no-column-varies",
            f"{where} must have at least one column besides the target that varies",
        )
    names = tuple(map(str, frame.columns))
    preparation = Preparation(tuple(columns), written or {}, names, unnamed)
    return preparation, [Said(preparation.sentence), *said]


def option(name: str) -> str:
    """Return the name of a column as an option on the command line takes it, on one line."""
    return on_one_line(shell_word(name))


def _decided(
    name: str, values: pd.Series, forced: str | None, where: str
) -> tuple[list[Column], Said | None]:
    """Return a column, several for a date, none to leave it out, and a sentence if needed."""
    present = values.dropna()
    if present.nunique() <= 1 and forced in (None, "given category") and not values.isna().any():
        return [], Said("is left out: it has one value only", name, "constant")
    if present.empty:
        return [], Said("is left out: it is empty", name, "empty")
    if forced is None and (order := order_of(present)):
        return _date(name, values, order)
    if forced == "category":
        return [_category(name, values)], None
    if forced == "number" or (forced is None and not _is_text(values)):
        return _number(name, values, forced, where)
    if forced is None:
        unread = present[np.isnan(_as_numbers(present))]
        if len(unread) <= (1 - _MOSTLY) * len(present) and unread.nunique() <= MOST_WORDS:
            column, _ = _number(name, values, "number", where)
            flags = not np.isnan(_flags(present)).all()
            what = "True and False" if flags else "numbers"
            if not len(unread):
                return column, None
            words = ", ".join(map(repr, unread.unique()))
            about = "" if flags else "numbers and words"
            change = f"categorical={option(name)} to change"
            return column, Said(f"is read as {what} and {words} as missing", name, about, change)
    many = present.nunique() > len(present) // 2
    if many and not _is_text(values):
        return _number(name, values, None, where)
    if many:
        words = f"is left out: it has {present.nunique()} different texts in {len(present)} rows"
        keep = f"categorical={option(name)} to keep the most frequent"
        return [], Said(words, name, "free text", keep)
    said = None
    if isinstance(kind := values.dtype, pd.CategoricalDtype) and kind.ordered:
        grades = " < ".join(shortened(str(one)) for one in kind.categories[:_GRADES])
        grades += " < ..." * (len(kind.categories) > _GRADES)
        words = f"is read as categories without their order, {grades}"
        said = Said(words, name, "ordered", "give their numbers (.cat.codes) to keep it")
    elif forced and not _is_text(values):
        change = f"numeric={option(name)} to change"
        said = Said("is a category of numbers, read as categories", name, remedy=change)
    return [_category(name, values)], said


def _number(
    name: str, values: pd.Series, forced: str | None, where: str
) -> tuple[list[Column], Said | None]:
    numbers = _as_numbers(values)
    base = _base(values, numbers)
    numbers = _as_numbers(values, base) if base else numbers
    present = numbers[~np.isnan(numbers)]
    if len(present) == 0:
        raise UserError(
            "numeric-without-number",
            f"column {name!r} of {where} has no number, so it cannot be `numeric`",
        )
    _check_finite(numbers, name, where)
    if forced is None and (_numbers_the_rows(numbers) or _is_index(name, numbers)):
        keep = f"numeric={option(name)} to keep"
        return [], Said("is left out: it looks like a row number", name, "row number", keep)
    indicator = bool(np.isnan(numbers).any())
    words = (
        values[np.isnan(numbers)].dropna().astype(str).str.strip().unique() if indicator else ()
    )
    shift, unit = _scale(present)
    column = Column(
        name,
        "number",
        fill=float(np.median(present)),
        indicator=indicator,
        shift=shift,
        unit=unit,
        low=float(present.min()),
        high=float(present.max()),
        words=tuple(words[:MOST_CATEGORIES]),
        base=base,
    )
    return [column], None


def _date(name: str, values: pd.Series, order: Order) -> tuple[list[Column], Said | None]:
    zone = zone_of(values.dropna())
    dates = dates_of(values, order, zone)
    features = parts_of(dates)
    varying = [part for part in PARTS if np.nanmin(features[part]) < np.nanmax(features[part])]
    missing = bool(np.isnan(features[PARTS[0]]).any())
    if not varying and not missing:
        if dates.nunique() > 1:
            return [], Said("is left out: its dates differ by less than a microsecond", name)
        return [], Said("is left out: it has one value only", name, "constant")
    varying = varying or [PARTS[0]]
    columns = []
    for part in varying:
        shift, unit = _scale(features[part][~np.isnan(features[part])])
        columns.append(
            Column(
                name,
                "number",
                fill=float(np.nanmedian(features[part])),
                indicator=missing and part == varying[0],
                part=part,
                order=order,
                zone=zone,
                shift=shift,
                unit=unit,
            )
        )
    how = "" if order == "year" else f", with the {order} first"
    if order != "year" and _has_short_years(values):
        how += f" and years of two digits in {1901 + THIS_CENTURY} to {2000 + THIS_CENTURY}"
    at = "" if zone in ("", EACH) else f" in the time of {zone}"
    if len(undated := values[dates.isna()].dropna()):
        at += f", and {_cells(len(undated))} without a date ({_first(undated)}) as missing"
    also = ", `categorical` to read categories" if order == "day" and _is_short(values) else ""
    words, remedy = f"is read as dates{how}{at}: {', '.join(varying)}", f"drop={option(name)}"
    about = "" if len(undated) else "dates"  # such a sentence is shown among any number of others
    return columns, Said(words, name, about, f"{remedy} to leave it out{also}")


def _scale(present: Array) -> tuple[float, float]:
    """Return `shift` and `unit` of numbers [n]; 0 and 1 where float32 keeps them as they are.

    The unit is a power of two, so that nothing rounds.
    """
    centre = float(np.median(present))
    reach = float(np.abs(present - centre).max())
    spread = reach * float(np.std((present - centre) / reach)) if reach > 0 else np.inf
    shift = centre if abs(centre) > _FAR * spread else 0.0
    size = reach if shift else float(np.abs(present).max())
    return shift, float(2.0 ** np.floor(np.log2(size))) if 0 < size < _TINY else 1.0


def _numbers_the_rows(numbers: Array) -> bool:
    """Tell whether values increase from row to row and are about as many as their range."""
    whole = len(numbers) > 2 and not np.isnan(numbers).any() and (numbers % 1 == 0).all()
    return bool(
        whole and (np.diff(numbers) > 0).all() and numbers[-1] - numbers[0] < 2 * len(numbers)
    )


def _is_index(name: str, numbers: Array) -> bool:
    """Tell whether a column is the index that pandas wrote, in any order of the rows."""
    whole = (numbers >= 0) & (numbers % 1 == 0)
    return name == "Unnamed: 0" and bool(whole.all()) and len(np.unique(numbers)) == len(numbers)


def _category(name: str, values: pd.Series) -> Column:
    counts = _texts(values).value_counts().drop(OTHER, errors="ignore")  # the last one is that
    # By frequency, ties by name, so that the order does not depend on the order of the rows.
    ordered = sorted(counts.index, key=lambda value: (-counts[value], value))
    kept = tuple(ordered[:MOST_CATEGORIES])
    return Column(name, "category", categories=kept)


def _categories(values: pd.Series, column: Column) -> pd.Series:
    """Return cells as categories of the column, `OTHER` for those without a feature."""
    texts = _texts(values)
    flags = {one.casefold(): one for one in column.categories if one.casefold() in _FLAGS}
    if flags:  # True is as the training rows write it
        known = texts.isin(column.categories)
        texts = texts.where(known, texts.map(lambda one: flags.get(one.casefold(), one)))
    return texts.where(texts.isin(column.categories), OTHER)


def _numbers(
    values: pd.Series, column: Column, where: str, dates: dict[str, Mapping[str, Array]]
) -> Array:
    """Return cells as numbers, NaN where missing; `dates` keeps the parts of each column once."""
    if column.part:
        if column.name not in dates:
            dates[column.name] = parts_of(dates_of(values, column.order, column.zone))
        return dates[column.name][column.part]
    numbers = _as_numbers(_without(values, column.words), column.base)
    if _is_text(values) and len(values) and np.isnan(numbers).all():
        others = _without(values, column.words).dropna()
        if len(others):
            raise UserError(
                "column-not-numbers",
                f"column {column.name!r} of {where} must hold numbers, as in the training data, "
                f"but has {others.iloc[0]!r}",
            )
    _check_finite(numbers, column.name, where)
    return numbers


def _without(values: pd.Series, words: Collection[str]) -> pd.Series:
    if not words or not _is_text(values):
        return values
    return values.mask(values.astype(str).str.strip().isin(words))


def _check_finite(numbers: Array, name: str, where: str) -> None:
    with np.errstate(over="ignore"):
        infinite = np.isinf(numbers.astype(np.float32))
    if infinite.any():
        row = int(np.flatnonzero(infinite)[0])
        raise UserError(
            "column-not-finite",
            f"column {name!r} of {where} must be finite in float32, but row {row} has "
            f"{numbers[row]:g}; remove that row, or empty the cell",
        )


def _as_numbers(values: pd.Series, base: int = 0) -> Array:
    """Return cells less a base as float64 [n], NaN where they are missing or no numbers."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf" and not base:
        return np.asarray(values, dtype=np.float64)  # quick: often wide
    found = np.asarray(to_numeric(values, errors="coerce").to_numpy("float64", na_value=np.nan))
    if _is_text(values) and len(words := values[np.isnan(found)].dropna()):
        found = found.copy()
        found[np.isnan(found) & values.notna().to_numpy()] = _flags(words)
    if base:
        cells = values.astype("object")
        read = zip(cells, found.tolist(), strict=True)
        found = np.array([_exact(cell, number) - base for cell, number in read], np.float64)
    return found


def _exact(cell: object, number: float) -> int | float:
    """Return a cell as an integer if it is one, else the number that it is in float64."""
    if not math.isfinite(number):
        return number
    if isinstance(cell, str | int | np.integer):
        with suppress(ValueError):
            return int(cell)
    return int(number) if number.is_integer() else number


def _base(values: pd.Series, numbers: Array) -> int:
    """Return the median of whole numbers that float64 rounds, 0 of others.

    Also 0 if they lie so far apart that float64 rounds their differences.

    Args:
        values: the cells [n].
        numbers: the same as float64 [n], NaN where missing or no numbers.
    """
    there = ~np.isnan(numbers)
    present = numbers[there]
    if pd.api.types.is_float_dtype(values) or not len(present):
        return 0
    if np.abs(present).max() < _WHOLE or np.ptp(present) > _WHOLE:
        return 0
    cells = values[there].astype("object")
    exact = sorted(map(_exact, cells, present.tolist()))
    if all(isinstance(one, float) or int(float(one)) == one for one in exact):
        return 0
    return int(exact[len(exact) // 2])


def _flags(words: pd.Series) -> Array:
    """Return 1 and 0 for words, or Python's booleans, that are True or False, else NaN."""
    codes, different = pd.factorize(words)
    found = [_FLAGS.get(str(one).casefold().strip(), np.nan) for one in different]
    return np.asarray(np.array(found, dtype=np.float64)[codes])


def _texts(values: pd.Series) -> pd.Series:
    """Return each cell as text without blanks around it, a whole number without a point.

    A column of integers has floats where cells are missing.
    """
    texts = values.astype("object").where(values.notna(), MISSING).astype(str).str.strip()
    if pd.api.types.is_float_dtype(values):
        whole = (values % 1 == 0).fillna(False).astype(bool)
        texts[whole] = values[whole].map(lambda one: str(int(one)))
    return texts


def _is_text(values: pd.Series) -> bool:
    return not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values))


def _has_short_years(values: pd.Series) -> bool:
    texts = values.dropna().astype(str)
    return bool(texts.str.fullmatch(r"\s*\d+[/.]\d+[/.]\d\d([ T].*)?\s*").any())


def _is_short(values: pd.Series) -> bool:
    """Tell whether dates are text of the form 3.11.12, as versions of programs are too."""
    return bool(values.dropna().astype(str).str.fullmatch(r"\s*\d+\.\d+\.\d\d\s*").all())
