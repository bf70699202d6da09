"""The decisions about data as sentences: like ones in one, and what no other file says.

A decision about a column is the sentence `column 'NAME' VERDICT; OPTION NAME to REMEDY`. Several
with one verdict become one sentence, with the names of the columns:

    9 constant columns are left out: x0, x8, x16, ...; --categorical COL to keep one
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence

import pandas as pd

from nas_evidence.data.arrays import ArrayData
from nas_evidence.data.preparation import MOST_CATEGORIES, Preparation, option
from nas_evidence.data.targets import ClassName
from nas_evidence.plumbing.foreign_text import shortened
from nas_evidence.spec.how_read import HowRead

#: Columns that a sentence names.
_NAMED = 8
_ABOUT = re.compile(r"column (?P<name>'.*?'|\".*?\") (?P<verdict>is (?:left out|read as).*)")
#: Verdicts that are alike: how they begin, the same of several columns, which option changes it,
#: and from how many columns on they are one sentence.
_ALIKE = (
    ("is left out: it has one value only", "constant columns are left out", "--categorical",
     "keep", 2),
    ("is left out: it is empty", "empty columns are left out", "", "", 2),
    ("is left out: it looks like a row number", "columns that look like row numbers are left out",
     "--numeric", "keep", 2),
    ("is left out: it has ", "columns of free text are left out", "--categorical",
     "keep the most frequent of", 4),
    ("is read as categories without their order",
     "columns of ordered categories are read without their order", "", "", 2),
    ("is read as dates", "columns are read as dates", "--drop", "leave out", 4),
    ("is read as numbers: ", "columns of text are read as numbers", "--categorical",
     "read as categories", 4),
    ("is read as numbers and ", "columns are read as numbers and some words in them as missing",
     "--categorical", "read as categories", 4),
)  # fmt: skip


def grouped(sentences: Iterable[str], features: Container[str]) -> list[str]:
    """Return sentences with like decisions about several columns as one, where the first stood.

    Args:
        sentences: about the data.
        features: names of the columns that could be features: those that options name.

    >>> one = "column {!r} is left out: it has one value only"
    >>> grouped([one.format("a"), "rows: 8", one.format("b")], "ab")
    ['2 constant columns are left out: a, b; --categorical COL to keep one', 'rows: 8']
    """
    found = list(sentences)
    alike = defaultdict[int, list[tuple[int, str]]](list)
    for at, sentence in enumerate(found):
        about = _ABOUT.fullmatch(sentence)
        for kind, (begin, *_) in enumerate(_ALIKE):
            name = about["name"][1:-1] if about else ""
            if about and name in features and about["verdict"].startswith(begin):
                alike[kind].append((at, name))
                break
    gone = set[int]()
    for kind, cases in alike.items():
        _, several, change, remedy, least = _ALIKE[kind]
        if len(cases) < least:
            for at, name in cases:  # each says which option changes it
                if change and change not in found[at]:
                    found[at] += f"; {change} {option(name)} to {remedy}"
            continue
        names = ", ".join(shortened(name) for _, name in cases[:_NAMED])
        more = ", ..." * (len(cases) > _NAMED)
        how = f"; {change} COL to {remedy} one" if change else ""
        found[cases[0][0]] = f"{len(cases)} {several}: {names}{more}{how}"
        gone |= {at for at, _ in cases[1:]}
    return [sentence for at, sentence in enumerate(found) if at not in gone]


def said_of_numbers(sentences: Iterable[str], preparation: Preparation) -> Iterator[str]:
    """Yield sentences about how a table was read, but for those of columns that are no numbers."""
    numbers = {column.name for column in preparation.columns if column.kind == "number"}
    for sentence in sentences:
        about = _ABOUT.fullmatch(sentence)
        name = about["name"][1:-1] if about else ""
        as_numbers = about and about["verdict"].startswith("is read as numbers: ")
        if not as_numbers or name in numbers or name not in preparation.names:
            yield sentence


def said_categories(preparation: Preparation, frame: pd.DataFrame) -> Iterator[str]:
    """Say which columns have more categories than features, and which are alike but for case.

    Args:
        preparation: of the columns.
        frame: the training rows.
    """
    for column in preparation.columns:
        if column.kind != "category":
            continue
        drop = f"--drop {option(column.name)} to leave it out"
        if len(column.categories) == MOST_CATEGORIES:
            n = frame[column.name].dropna().astype(str).str.strip().nunique()
            if n > MOST_CATEGORIES:
                yield (
                    f"column {column.name!r} has {n} categories: the {MOST_CATEGORIES} most "
                    f"frequent have features of their own, all others are '(other)'; {drop}"
                )
        if alike := _alike(column.categories):
            yield (
                f"column {column.name!r} has categories that differ in case or accents alone: "
                f"{alike}; write them alike to join them, or {drop}"
            )


def said_alike(classes: Sequence[ClassName]) -> Iterator[str]:
    """Say which classes differ in case or in the form of their accents alone."""
    if alike := _alike([name for name in classes if isinstance(name, str)]):
        yield (
            f"classes that differ in case or accents alone: {alike}; write them alike to join them"
        )


def _alike(names: Sequence[str]) -> str:
    """Return the names that differ in case or in the form of their accents alone.

    >>> _alike(["good", "bad", "Good"])
    "'Good' and 'good'"
    """
    found = defaultdict[str, list[str]](list)
    for name in names:
        found[unicodedata.normalize("NFC", name).casefold()].append(name)
    alike = [sorted(own) for own in found.values() if len(own) > 1]
    more = ", ..." * (len(alike) > _NAMED)
    return ", ".join(" and ".join(map(repr, own)) for own in alike[:_NAMED]) + more


def how_read_of(arrays: ArrayData) -> HowRead:
    """Return how data were read, to be shown and kept."""
    prepared = arrays.meaning.preparation
    columns: dict[str, tuple[str, ...]] = {}
    if prepared is not None:
        kinds = {
            one.name: "dates" if one.part else {"number": "numbers"}.get(one.kind, "categories")
            for one in prepared.columns
        }
        columns = {
            kind: tuple(name for name, own in kinds.items() if own == kind)
            for kind in ("numbers", "categories", "dates")
        }
        columns["left out"] = tuple(name for name in prepared.names if name not in kinds)
    return HowRead(
        arrays.meaning.said,
        {kind: names for kind, names in columns.items() if names},
        tuple(arrays.input_shape),
        arrays.n_train,
        len(arrays.x_test),
    )
