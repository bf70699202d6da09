"""The decisions about data as sentences: like ones in one, and what no other file says.

Several decisions of one kind become one sentence, with the names of the columns:

    9 constant columns are left out: x0, x8, x16, ...; categorical=COL to keep one
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from nas_evidence.data.arrays import ArrayData, row_hashes
from nas_evidence.data.mapped import Array
from nas_evidence.data.preparation import MOST_CATEGORIES, option
from nas_evidence.data.said import Said, listed
from nas_evidence.data.table_columns import Preparation, in_one_form
from nas_evidence.data.targets import ClassName
from nas_evidence.spec.how_read import HowRead

#: Columns that a sentence names.
_NAMED = 8


#: By what was decided, see `Said.about`: the sentence of several columns, the option that changes
#: it and to what, and the number of columns from which on they are one sentence.
KINDS = {
    "constant": ("constant columns are left out", "categorical", "keep", 2),
    "empty": ("empty columns are left out", "", "", 2),
    "row number": ("columns that look like row numbers are left out", "numeric", "keep", 2),
    "free text": (
        "columns of free text are left out", "categorical", "keep the most frequent of", 4
    ),
    "ordered": ("columns of ordered categories are read without their order", "", "", 2),
    "dates": ("columns are read as dates", "drop", "leave out", 4),
    "text as numbers": (
        "columns of text are read as numbers", "categorical", "read as categories", 4
    ),
    "numbers and words": (
        "columns are read as numbers and some words in them as missing",
        "categorical",
        "read as categories",
        4,
    ),
}  # fmt: skip


def grouped(decisions: Iterable[Said], features: Container[str]) -> list[str]:
    """Return decisions as sentences, those of a kind in one, where the first stood.

    Args:
        decisions: about the data.
        features: names of the columns that could be features: those that options name.

    >>> one = Said("is left out: it has one value only", "a", "constant")
    >>> grouped([one, Said("rows: 8"), one._replace(column="b")], "ab")
    ['2 constant columns are left out: a, b; categorical=COL to keep one', 'rows: 8']
    >>> grouped([one], "a")
    ["column 'a' is left out: it has one value only; categorical=a to keep"]
    """
    found, alike = [*decisions], defaultdict[str, list[str]](list)
    for said in found:
        if said.about in KINDS and said.column in features:
            alike[said.about].append(str(said.column))
    sentences = dict[str, None]()
    for said in found:
        sentence = said
        if said.about in KINDS and said.column in features:
            names = alike[said.about]
            several, key, to, least = KINDS[said.about]
            if len(names) >= least:
                remedy = f"{key}=COL to {to} one" if key else ""
                sentence = Said(f"{len(names)} {several}: {listed(names)}", remedy=remedy)
            elif key and not said.remedy:
                sentence = said._replace(remedy=f"{key}={option(str(said.column))} to {to}")
        sentences[str(sentence)] = None
    return [*sentences]


def said_of_numbers(decisions: Iterable[Said], preparation: Preparation) -> Iterator[Said]:
    """Yield how a table was read, without columns that are read as numbers and become none."""
    numbers = {column.name for column in preparation.columns if column.kind == "number"}
    none = {*preparation.names} - numbers
    for said in decisions:
        if said.about != "text as numbers" or said.column not in none:
            yield said


def said_categories(preparation: Preparation, frame: pd.DataFrame) -> Iterator[Said]:
    """Say which columns have more categories than features, and which are alike but for case."""
    for column in preparation.columns:
        if column.kind != "category":
            continue
        drop = f"drop={option(column.name)} to leave it out"
        if len(column.categories) == MOST_CATEGORIES:
            n = frame[column.name].dropna().astype(str).str.strip().nunique()
            if n > MOST_CATEGORIES:
                words = (
                    f"has {n} categories: the {MOST_CATEGORIES} most frequent have features of "
                    "their own, all others are '(other)'"
                )
                yield Said(words, column.name, remedy=drop)
        if alike := _alike(column.categories):
            words = f"has categories that differ in case or accents alone: {alike}"
            yield Said(words, column.name, remedy=f"write them alike to join them, or {drop}")


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
        found[in_one_form(name).casefold()].append(name)
    alike = [sorted(own) for own in found.values() if len(own) > 1]
    more = ", ..." * (len(alike) > _NAMED)
    return ", ".join(" and ".join(map(repr, own)) for own in alike[:_NAMED]) + more


def said_copies(x: Array, y: Array, x_test: Array, y_test: Array) -> Iterator[str]:
    """Say how many rows are copies of an earlier one, in all features and the target.

    Rows that may be alike by chance are none: some feature, or the target, must have more values
    than half of the rows.

    Args:
        x: features of the training rows [n, d].
        y: their targets [n] or [n, C], as all others.
        x_test: of the test rows.
        y_test: of the test rows.
    """
    rows = list(zip(row_hashes(x), _of_targets(y), strict=True))
    known = set(rows)
    n_copies = len(rows) - len(known)
    n_seen = sum(row in known for row in zip(row_hashes(x_test), _of_targets(y_test), strict=True))
    if not (n_copies or n_seen) or not any(
        len(np.unique(values)) > len(x) // 2 for values in (*np.atleast_2d(y.T), *x.T)
    ):
        return
    if n_copies:
        yield (
            f"{n_copies} of {len(x)} training rows are copies of an earlier row, so networks are "
            "scored on rows that they were trained on; remove the copies"
        )
    if n_seen:
        yield (
            f"{n_seen} of {len(x_test)} test rows are copies of a training row, so the test looks "
            "too good; remove the copies"
        )


def _of_targets(y: Array) -> Iterator[bytes]:
    return (one.tobytes() for one in y)


def how_read_of(arrays: ArrayData, given: str = "") -> HowRead:
    """Return how data were read, to be shown and kept, with the name under which they came."""
    prepared = arrays.meaning.preparation
    columns = dict[str, tuple[str, ...]]()
    if prepared is not None:
        kinds = prepared.kinds
        for kind in ("numbers", "categories", "dates", "left out"):
            columns[kind] = tuple(n for n in prepared.names if kinds.get(n, "left out") == kind)
    return HowRead(
        arrays.meaning.said,
        {kind: names for kind, names in columns.items() if names},
        tuple(arrays.input_shape),
        arrays.n_train,
        len(arrays.x_test),
        given,
    )
