"""The columns of a table as features: what is decided once, and applied to every table.

    number    one feature; a missing value is the median, with an indicator if training rows have
              one; scaled later like every input. True and False, also as text, are 1 and 0
    date      days since 1970, year, month, weekday and hour as numbers, those that vary
    category  one-hot: the categories of the training rows, most frequent first, and "other"

Numbers are float64 until `shift` and `unit` of their column are taken off: float32 would lose
what distinguishes values far from 0, such as 2459000.5 and 2459000.6.

Decisions are taken once, of the training rows, and applied cell by cell: the features of a row
do not depend on the rows beside it. A `Preparation` holds every number and name that it uses, so
it travels as JSON and gives the same features anywhere, with pandas and numpy alone. They are
those of scikit-learn's `ColumnTransformer` of a `MissingIndicator` and a `OneHotEncoder` with
these parameters (a test compares).
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from nas_evidence.data.cells import (
    MOST_WORDS,
    MOSTLY,
    PARTS,
    THIS_CENTURY,
    dates_of,
    has_zone,
    how_read,
    order_of,
    parts_of,
)
from nas_evidence.data.exact_text import FLAGS, as_numbers
from nas_evidence.data.mapped import Array
from nas_evidence.data.said import Said, listed
from nas_evidence.data.table_columns import (
    MISSING,
    OTHER,
    TEXT,
    Column,
    Order,
    Preparation,
    Written,
    in_one_form,
)
from nas_evidence.data.typed import is_text
from nas_evidence.plumbing.foreign_text import on_one_line, shell_word, shortened
from nas_evidence.plumbing.user_error import UserError

#: Maximum number of categories of a column with a feature of their own.
MOST_CATEGORIES = 50
#: A column whose median is further from 0, in standard deviations, is centred before float32.
_FAR = 4.0
#: A column whose largest distance from 0 is smaller gets a unit of its own: float32 ends at 1e-38.
_TINY = 1e-30
#: Largest whole number up to which float64 has all.
_WHOLE = 2**53
#: Ordered categories that a sentence names.
_GRADES = 4


def in_known_forms(frame: pd.DataFrame, preparation: Preparation) -> pd.DataFrame:
    """Return a table with names in the form of training: "é" is one or two characters."""
    known = {in_one_form(name): name for name in preparation.places}
    return frame.rename(columns=lambda name: known.get(in_one_form(name), name))


def inputs_of(preparation: Preparation, frame: pd.DataFrame, where: str) -> Array:
    """Return the features of a table, float32 [n, d].

    Raises:
        ValueError: if a column is absent, or holds text instead of numbers; names both.
    """
    frame = in_known_forms(frame, preparation)
    if absent := [name for name in preparation.places if name not in frame.columns]:
        known = {str(name).casefold().strip(): name for name in frame.columns}
        near = known.get(absent[0].casefold().strip())
        hint = f"did you mean {near!r}?" if near else "add them, empty where unknown"
        raise UserError(
            "columns-missing",
            f"{where} must have the columns of the training data, but lacks "
            f"{', '.join(map(repr, absent))}; {hint}",
        )
    _check_durations(frame, preparation, where)
    numbers, missing, categories = list[Array](), list[Array](), list[Array]()
    dates = dict[str, Mapping[str, Array]]()
    for column in preparation.columns:
        cells = frame[column.name]
        if column.kind == "category":
            found = _categories(cells, column)
            categories += [np.asarray(found == one) for one in (*column.categories, OTHER)]
            continue
        if column.part and column.name not in dates:
            dates[column.name] = parts_of(dates_of(cells, column.order))
        values = dates[column.name][column.part] if column.part else _numbers(cells, column, where)
        numbers.append(column.feature(values))
        missing += [np.isnan(values)] * column.indicator
    features = np.stack([*numbers, *missing, *categories], axis=1)
    return np.ascontiguousarray(features, dtype=np.float32)


def _check_durations(frame: pd.DataFrame, preparation: Preparation, where: str) -> None:
    """Refuse durations for a column that held none: nobody knows the unit of its numbers."""
    written = how_read(frame)[1]
    for name in preparation.places:
        known = preparation.written.get(name, TEXT)
        if written.get(name, TEXT).sign == "duration" != known.sign:
            raise UserError(
                "new-column-durations",
                f"column {name!r} of {where} holds durations, but that of the training data held "
                "numbers, or was read by an earlier version; give numbers in its unit, or search "
                "again",
            )


def doubts_of(preparation: Preparation, frame: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each column whose cells cannot be used as they are."""
    for column in {one.name: one for one in reversed(preparation.columns)}.values():
        name, values = column.name, frame[column.name]
        present = _without(values, column)
        if present.empty:
            yield f"column {name!r} is empty; the default from training is used"
            continue
        if column.kind == "category":
            bad = (_categories(present, column) == OTHER) & (_texts(present) != OTHER)
            yield from _told(name, present[bad], "not seen in training", "the category '(other)'")
        elif column.part:
            dated = dates_of(present, column.order).notna()
            yield from _told(name, present[~dated], "without a date", "missing")
            zoned, ours = has_zone(present[dated]), column.zone != ""
            what = "without a time zone" if ours else "with a time zone, which training had not"
            yield from _told(name, present[dated][zoned != ours], what, "times in UTC")
        else:
            yield from _told(name, unread(values, column), "with text", "missing")
            if len(far := _far_outside(present, column)):
                shown, is_are = _first(far), "is" if len(far) == 1 else "are"
                yield (
                    f"column {name!r}: {_cells(len(far))} ({shown}) {is_are} far outside all "
                    f"training values ({column.low:.4g} to {column.high:.4g}); used unchanged"
                )
        n_missing = len(values) - len(present)
        known = column.part or column.indicator or MISSING in column.categories
        if n_missing and not known:
            taken = "the median" if column.kind == "number" else "the category '(other)'"
            yield f"column {name!r}: {_cells(n_missing, 'missing ')}, replaced by {taken}"


def _far_outside(present: pd.Series, column: Column) -> pd.Series:
    """Return the numbers that are further outside the range of training than it is wide."""
    if column.low is None or column.high is None:
        return present.iloc[:0]
    numbers, width = pd.Series(as_numbers(present), present.index), column.high - column.low
    return numbers[(numbers < column.low - width) | (numbers > column.high + width)]


def unread(values: pd.Series, column: Column) -> pd.Series:
    """Return the cells of text [k] that are no numbers, and no words that training read so."""
    if not is_text(values):
        return values.iloc[:0]
    present = _without(values, column)
    return present[np.isnan(as_numbers(present))]


def _without(values: pd.Series, column: Column) -> pd.Series:
    """Return the cells that are there, without words that training read as missing."""
    present = values.dropna()
    if not column.words or not is_text(values):
        return present
    return present[~present.astype(str).str.strip().isin(column.words)]


def _told(name: str, cells: pd.Series, what: str, taken: str) -> Iterator[str]:
    if len(cells):
        yield f"column {name!r}: {_cells(len(cells))} {what} ({_first(cells)}), treated as {taken}"


def _first(cells: pd.Series) -> str:
    few = cells.unique()[:3].tolist()
    return ", ".join(repr(str(one) if isinstance(one, pd.Timestamp) else one) for one in few)


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
                known = f"columns: {listed(frame.columns)}"
                hint = f"did you mean {near[0]!r}?" if near else known
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
    text = is_text(values) or isinstance(values.dtype, pd.CategoricalDtype)
    many = present.nunique() > len(present) // 2
    if forced == "number" or (not text and (forced is None or many)):
        numbers = as_numbers(values)
        if forced != "number" and _numbers_the_rows(name, numbers):
            return [], Said("is left out: it looks like a row number", name, "row number")
        return [_number(name, values, where)], None
    if forced is None:
        words = present[np.isnan(as_numbers(present))]
        if len(words) <= (1 - MOSTLY) * len(present) and words.nunique() <= MOST_WORDS:
            column = [_number(name, values, where)]
            if not len(words):
                return column, None
            flags = present.astype(str).str.casefold().isin(FLAGS).any()
            what, about = ("True and False", "") if flags else ("numbers", "numbers and words")
            said = f"is read as {what} and {', '.join(map(repr, words.unique()))} as missing"
            return column, Said(said, name, about, f"categorical={option(name)} to change")
    if many:
        said = f"is left out: it has {present.nunique()} different texts in {len(present)} rows"
        keep = f"categorical={option(name)} to keep the most frequent"
        return [], Said(said, name, "free text", keep)
    told = None
    if isinstance(kind := values.dtype, pd.CategoricalDtype):
        grades = " < ".join(shortened(str(one)) for one in kind.categories[:_GRADES])
        grades += " < ..." * (len(kind.categories) > _GRADES)
        said = f"is read as categories without their order, {grades}"
        told = Said(said, name, "ordered", "give their numbers (.cat.codes) to keep it")
    elif forced and not text:
        change = f"numeric={option(name)} to change"
        told = Said("is a category of numbers, read as categories", name, remedy=change)
    return [_category(name, values)], told


def _number(name: str, values: pd.Series, where: str) -> Column:
    numbers = as_numbers(values)
    present = numbers[~np.isnan(numbers)]
    if not len(present):
        raise UserError(
            "numeric-without-number",
            f"column {name!r} of {where} has no number, so it cannot be `numeric`",
        )
    _check_finite(numbers, name, where)
    if pd.api.types.is_integer_dtype(values) and np.abs(present).max() > _WHOLE:
        for one in values.dropna():
            if int(float(one)) != one:
                raise UserError(
                    "whole-numbers-that-merge",
                    f"column {name!r} of {where} holds {one}, which float64 does not tell from "
                    f"the numbers beside it; drop={option(name)} to leave it out, "
                    f"categorical={option(name)} to read categories, or subtract a constant "
                    "(version 0.1.0 did)",
                )
    words = values[np.isnan(numbers)].dropna().astype(str).str.strip().unique()
    shift, unit = _scale(present)
    return Column(
        name,
        "number",
        fill=float(np.median(present)),
        indicator=len(present) < len(numbers),
        shift=shift,
        unit=unit,
        low=float(present.min()),
        high=float(present.max()),
        words=tuple(words[:MOST_CATEGORIES]),
    )


def _date(name: str, values: pd.Series, order: Order) -> tuple[list[Column], Said | None]:
    dates = dates_of(values, order)
    features = parts_of(dates)
    varying = [part for part in PARTS if np.nanmin(features[part]) < np.nanmax(features[part])]
    missing = bool(dates.isna().any())
    if not varying and not missing:
        return [], Said("is left out: it has one value only, to the microsecond", name, "constant")
    varying = varying or [PARTS[0]]
    zoned = has_zone(values.dropna()).mean() >= 0.5
    columns = []
    for part in varying:
        present = features[part][~np.isnan(features[part])]
        shift, unit = _scale(present)
        columns.append(
            Column(
                name,
                "number",
                fill=float(np.median(present)),
                indicator=missing and part == varying[0],
                part=part,
                order=order,
                zone="UTC" if zoned else "",
                shift=shift,
                unit=unit,
            )
        )
    how = "" if order == "year" else f", with the {order} first"
    short = r"\s*\d+[/.]\d+[/.]\d\d([ T].*)?\s*"
    if order != "year" and values.dropna().astype(str).str.fullmatch(short).any():
        how += f" and years of two digits in {1901 + THIS_CENTURY} to {2000 + THIS_CENTURY}"
    at = " in UTC" if zoned else ""
    if len(undated := values[dates.isna()].dropna()):
        at += f", and {_cells(len(undated))} without a date ({_first(undated)}) as missing"
    remedy = f"drop={option(name)} to leave it out, `categorical` to read categories"
    about = "" if len(undated) else "dates"  # such a sentence is shown among any number of others
    return columns, Said(f"is read as dates{how}{at}: {', '.join(varying)}", name, about, remedy)


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


def _numbers_the_rows(name: str, numbers: Array) -> bool:
    """Tell whether whole numbers [n] count the rows.

    They increase from row to row and are about as many as their range; or are the index that
    pandas wrote, in any order of the rows.
    """
    if len(numbers) < 3 or not np.isfinite(numbers).all() or (numbers % 1).any():
        return False
    if name == "Unnamed: 0" and numbers.min() >= 0:
        return len(np.unique(numbers)) == len(numbers)
    return bool((np.diff(numbers) > 0).all() and np.ptp(numbers) < 2 * len(numbers))


def _category(name: str, values: pd.Series) -> Column:
    counts = _texts(values).value_counts().drop(OTHER, errors="ignore")  # the last one is that
    # By frequency, ties by name, so that the order does not depend on the order of the rows.
    ordered = sorted(counts.index, key=lambda value: (-counts[value], value))
    return Column(name, "category", categories=tuple(ordered[:MOST_CATEGORIES]))


def _categories(values: pd.Series, column: Column) -> pd.Series:
    """Return cells as categories of the column, `OTHER` for those without a feature."""
    texts = _texts(values)
    if flags := {one.casefold(): one for one in column.categories if one.casefold() in FLAGS}:
        known = texts.isin(column.categories)  # else True is as the training rows write it
        texts = texts.where(known, texts.map(lambda one: flags.get(one.casefold(), one)))
    return texts.where(texts.isin(column.categories), OTHER)


def _numbers(values: pd.Series, column: Column, where: str) -> Array:
    """Return cells as finite numbers, NaN where missing; refuse text alone."""
    numbers = as_numbers(values)
    words = unread(values, column)
    if len(words) and np.isnan(numbers).all():
        raise UserError(
            "column-not-numbers",
            f"column {column.name!r} of {where} must hold numbers, as in the training data, "
            f"but has {words.iloc[0]!r}",
        )
    _check_finite(numbers, column.name, where)
    return numbers


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


def _texts(values: pd.Series) -> pd.Series:
    """Return each cell as text without blanks around it, a whole number without a point."""

    def text(one: Any) -> str:
        whole = isinstance(one, float) and one.is_integer()
        return in_one_form(str(int(one) if whole else one).strip())

    found: pd.Series = values.astype("object").where(values.notna(), MISSING).map(text)
    return found
