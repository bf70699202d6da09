"""Numbers as people write them in tables: `1.234,5`, `1,500`, `$ 12`, `12 %`, `(3)`, as numbers.

A column of text is taken for numbers if nearly all of its cells are. Whether a comma is decimal or
groups digits is decided once for a table: by cells that can only be the one or the other (`1,5`
and `0,123`; `1,234,567` and `1,234.5`), else by what separates its columns.
"""

import re
from collections.abc import Iterable

import pandas as pd

#: Key of `DataFrame.attrs`: sentences about how a table was read.
READ = "nas_evidence: how it was read"
#: Share of the cells of a column of text that must be numbers, and most other words in it.
MOSTLY, MOST_WORDS = 0.9, 3
_SIGNS = "$€£¥%"
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),\d+|[+-]?\d{1,3}(\.\d{3})+")
_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_ONLY_COMMA = re.compile(r"[+-]?(0?,\d+|\d+,(\d{1,2}|\d{4,})|\d{1,3}(\.\d{3})+,\d+)")
_ONLY_GROUPS = re.compile(r"[+-]?\d{1,3}(,\d{3}){2,}|[+-]?\d{1,3}(,\d{3})+\.\d*")


def with_numbers_read(frame: pd.DataFrame, *, comma: bool | None = None) -> pd.DataFrame:
    """Return a table in which numbers written as text are numbers; `attrs[READ]` says which.

    Args:
        frame: a table; names of columns as text.
        comma: whether the comma is decimal; None to find out.
    """
    text = {name: _trimmed(frame[name]) for name in frame.columns if _is_text(frame[name])}
    text = {name: cells for name, cells in text.items() if _may_be_numbers(cells)}
    if comma is None:
        comma = _is_comma_decimal(text.values(), unclear=False)
    changed, said = {}, list(frame.attrs.get(READ, ()))
    for name, cells in text.items():
        present = cells.dropna()
        points = _has_decimal_points(present)
        plain = present.map(lambda cell: _plain(cell, comma and not points))  # noqa: B023
        known = plain.notna()
        if (plain[known] == present[known]).all():
            continue  # as pandas reads them
        if known.mean() < MOSTLY or present[~known].nunique() > MOST_WORDS:
            continue
        joined = plain.where(known, present).reindex(cells.index)
        changed[name] = pd.to_numeric(joined) if known.all() else joined
        one = int((plain[known] != present[known]).to_numpy().argmax())
        shown, read = present[known].iloc[one], float(plain[known].iloc[one])
        sentence = f"column {name!r} is read as numbers: {shown!r} is {read:.10g}"
        if shown.replace(",", ".") == plain[known].iloc[one]:
            sentence = "numbers are read with decimal commas: '1,5' is 1.5"
        said += [sentence] if sentence not in said else []
    found = frame.assign(**changed) if changed else frame.copy(deep=False)
    found.attrs = {READ: said} if said else {}
    return found


def decimal_comma(frame: pd.DataFrame, separator: str) -> bool:
    """Tell whether the numbers of a file, read as text, have decimal commas.

    What cannot be told apart, such as 1,234, has one where semicolons separate the columns.
    """
    columns = (_trimmed(frame[name]) for name in frame.columns if _is_text(frame[name]))
    return _is_comma_decimal(columns, unclear=separator == ";")


def _is_comma_decimal(columns: Iterable[pd.Series], *, unclear: bool) -> bool:
    commas = groups = either = 0
    for cells in columns:
        bare = cells.dropna().map(_bare)
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


def _plain(cell: str, comma: bool) -> str | None:
    """Return a cell as a plain number, None if it is none.

    >>> _plain("1.234,5", True), _plain("$1,500", False), _plain("(3)", False), _plain("b", False)
    ('1234.5', '1500', '-3', None)
    """
    if _PLAIN.fullmatch(cell) and not (comma and _COMMA.fullmatch(cell)):
        return cell
    bare = _bare(cell)
    if comma and _COMMA.fullmatch(bare):
        return bare.replace(".", "").replace(",", ".")
    if not comma and _GROUPS.fullmatch(bare):
        return bare.replace(",", "")
    return bare if _PLAIN.fullmatch(bare) else None


def _bare(cell: str) -> str:
    """Return a cell without signs of currency and per cent, and without spaces between digits."""
    bare = cell.replace("\u2212", "-")
    if bare.startswith("(") and bare.endswith(")"):
        bare = f"-{bare[1:-1]}"
    bare = re.sub(rf"^([+-]?)\s*[{_SIGNS}]\s*|\s*[{_SIGNS}]$", r"\1", bare)
    return re.sub(r"(?<=\d)['\u2019\u00a0\u202f ](?=\d{3}(\D|$))", "", bare)


def _trimmed(values: pd.Series) -> pd.Series:
    return values.astype("object").where(values.notna()).map(str.strip, na_action="ignore")


def _is_text(values: pd.Series) -> bool:
    if isinstance(values.dtype, pd.CategoricalDtype):
        return False
    if values.dtype != object and not pd.api.types.is_string_dtype(values):
        return False
    return all(isinstance(cell, str) for cell in values.dropna())
