"""What a table's columns are as features: values that travel with a model, without pandas.

`preparation.py` decides them, of the training rows, and makes the features of a table.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from nas_evidence.data.mapped import Array
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError

#: The version of what `Preparation.to_json` writes.
VERSION = 2
OTHER, MISSING = "(other)", "(missing)"
#: What dates written as text begin with.
Order = Literal["year", "month", "day"]


def in_one_form(text: object) -> str:
    """Return a text with letters and their accents as one character (NFC)."""
    return unicodedata.normalize("NFC", str(text))


class Written(NamedTuple):
    """How the cells of a column are written.

    sign  the decimal one, or "text" if they are no numbers; "category" if the source says that
          they are categories, "duration" of durations, read in seconds
    unit  that follows the numbers, or ""
    """

    sign: Literal["text", "point", "comma", "category", "duration"]
    unit: str = ""


TEXT = Written("text")


@dataclass(frozen=True)
class Column:
    """How one column becomes features.

    fill        value in place of a missing number
    indicator   whether a feature says that the number is missing
    categories  with a feature of their own; `OTHER` comes after them
    part        of a date, see `cells.PARTS`; several columns then have one name
    order       what its dates begin with
    zone        "UTC" if its dates have a time zone, "" if not; None in exports of before: UTC
    shift, unit the feature is (value - shift) / unit
    low, high   least and largest number in training, None for dates and categories
    words       among the numbers of training, read as missing
    """

    name: str
    kind: Literal["number", "category"]
    fill: float = 0.0
    indicator: bool = False
    categories: tuple[str, ...] = ()
    part: str = ""
    order: Order = "year"
    zone: str | None = None
    shift: float = 0.0
    unit: float = 1.0
    low: float | None = None
    high: float | None = None
    words: tuple[str, ...] = ()

    def feature(self, numbers: Array) -> Array:
        """Return numbers [n], NaN where missing, as a feature, float64 [n]."""
        filled = np.where(np.isnan(numbers), self.fill, numbers)
        return filled if (self.shift, self.unit) == (0, 1) else (filled - self.shift) / self.unit


@dataclass(frozen=True)
class Preparation:
    """How a table becomes features, in the order of `feature_names`.

    columns  used columns; those of dates several times
    written  how cells of the training table are written, those of the target among them; new
             tables are read by it
    names    of all columns that could be features, in the order of the training table
    unnamed  whether that table was an array, so that its names are x0, x1, ...
    """

    columns: tuple[Column, ...]
    written: Mapping[str, Written] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    unnamed: bool = False

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, all different: numbers, then indicators, then categories."""
        found: dict[str, None] = {}
        for _, feature in self._features():
            name, n = feature, 2
            while name in found:
                name, n = f"{feature} ({n})", n + 1
            found[name] = None
        return tuple(found)

    @property
    def places(self) -> dict[str, list[int]]:
        """Positions of the features of each column of the table, in the order of the columns."""
        found: dict[str, list[int]] = {column.name: [] for column in self.columns}
        for at, (name, _) in enumerate(self._features()):
            found[name].append(at)
        return found

    @property
    def kinds(self) -> dict[str, str]:
        """What each column is read as: "numbers", "categories" or "dates"."""
        named = {"number": "numbers", "category": "categories"}
        return {c.name: "dates" if c.part else named[c.kind] for c in self.columns}

    @property
    def scaled(self) -> Array:
        """Which features are scaled: numbers, and not those of 0 and 1; bool [d]."""
        n_numbers = len(self.of_kind("number"))
        return np.arange(len(self.feature_names)) < n_numbers

    @property
    def sentence(self) -> str:
        """How many columns there are of each kind."""
        kinds = [*self.kinds.values()]
        n, n_missing = (
            kinds.count("numbers"),
            sum(c.indicator and not c.part for c in self.columns),
        )
        parts = [f"{n} numeric column{'s' * (n > 1)}"] if n else []
        for kind in ("categories", "dates"):
            parts += [f"{kinds.count(kind)} of {kind}"] if kind in kinds else []
        missing = f", missing values in {n_missing} filled with the median" if n_missing else ""
        return f"features: {' and '.join(parts)}{missing}"

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Preparation":
        """Return what `to_json` wrote, or version 0.1.0 before it wrote a version.

        Raises:
            UserError: if columns were read as they are no longer.
        """
        stored = parsed_json(text)
        if (version := stored.get("version", 1)) > VERSION:
            raise UserError(
                "preparation-of-later",
                f"the columns are prepared by version {version} of preparations, and this program "
                f"reads versions up to {VERSION}; install a later nas-evidence",
            )
        columns = []
        for one in stored["columns"]:
            if one.pop("base", 0):
                raise read_otherwise(one["name"], "has whole numbers above 2^53")
            if one.get("zone") not in (None, "", "UTC"):
                raise read_otherwise(one["name"], f"has dates in the time of {one['zone']}")
            one["categories"] = tuple(map(in_one_form, one["categories"]))
            columns.append(Column(**one | {"words": tuple(one["words"])}))
        return cls(
            tuple(columns),
            {name: Written(*how) for name, how in stored["written"].items()},
            tuple(stored["names"]),
            stored["unnamed"],
        )

    def _features(self) -> Iterator[tuple[str, str]]:
        numbers = self.of_kind("number")
        labelled = [(c, f"{c.part} of {c.name}" if c.part else c.name) for c in numbers]
        yield from ((c.name, label) for c, label in labelled)
        yield from ((c.name, f"{label} is missing") for c, label in labelled if c.indicator)
        for c in self.of_kind("category"):
            yield from ((c.name, f"{c.name} = {value}") for value in (*c.categories, OTHER))

    def of_kind(self, kind: str) -> list[Column]:
        """Return the columns that are numbers, or categories."""
        return [column for column in self.columns if column.kind == kind]


def read_otherwise(name: str, what: str) -> UserError:
    """Return the error of a column that version 0.1.0 read otherwise; `what` it has."""
    return UserError(
        "read-otherwise",
        f"column {name!r} {what}, which version 0.1.0 read otherwise until its preparations had "
        "a number (commit 52e6435a); use that for its networks, or search again",
    )
