"""What a table's columns are as features: values that travel with a model, without pandas.

`preparation.py` decides them, of the training rows, and makes the features of a table.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from nas_evidence.data.mapped import Array
from nas_evidence.plumbing.parsing import parsed_json

OTHER, MISSING = "(other)", "(missing)"
#: What dates written as text begin with.
Order = Literal["year", "month", "day"]


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

    base        taken off whole numbers before they are float64; `fill`, `shift`, `low` and `high`
                are of what is left
    fill        value in place of a missing number
    indicator   whether a feature says that the number is missing
    categories  with a feature of their own; `OTHER` comes after them
    part        of a date, see `cells.PARTS`; several columns then have one name
    order       what its dates begin with
    zone        of its dates, see `cells.dates_of`; None in exports of before: UTC
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
    base: int = 0

    @property
    def range(self) -> str:
        """Return the range of the numbers of training in words."""
        if self.low is None or self.high is None:
            return ""
        if self.base:
            return f"{self.base + round(self.low)} to {self.base + round(self.high)}"
        return f"{self.low:.4g} to {self.high:.4g}"

    @property
    def label(self) -> str:
        """Return the name of its feature."""
        return f"{self.part} of {self.name}" if self.part else self.name

    @property
    def may_miss(self) -> bool:
        """Return whether training had missing cells, so that they have a feature."""
        return self.indicator or MISSING in self.categories

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
    def scaled(self) -> Array:
        """Which features are scaled: numbers, and not those of 0 and 1; bool [d]."""
        n_numbers = len(self.of_kind("number"))
        return np.arange(len(self.feature_names)) < n_numbers

    @property
    def sentence(self) -> str:
        """How many columns there are of each kind."""
        numbers = [c for c in self.columns if c.kind == "number" and not c.part]
        n_dates = len({c.name for c in self.columns if c.part})
        n_categories = sum(c.kind == "category" for c in self.columns)
        n_missing = sum(c.indicator for c in numbers)
        parts = [f"{len(numbers)} numeric column{'s' * (len(numbers) > 1)}"] if numbers else []
        parts += [f"{n_categories} of categories"] if n_categories else []
        parts += [f"{n_dates} of dates"] if n_dates else []
        missing = f", missing values in {n_missing} filled with the median" if n_missing else ""
        return f"features: {' and '.join(parts)}{missing}"

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Preparation":
        """Return what `to_json` wrote."""
        stored = parsed_json(text)
        lists = ("categories", "words")
        return cls(
            tuple(Column(**c | {key: tuple(c[key]) for key in lists}) for c in stored["columns"]),
            {name: Written(*how) for name, how in stored["written"].items()},
            tuple(stored["names"]),
            stored["unnamed"],
        )

    def _features(self) -> Iterator[tuple[str, str]]:
        numbers = self.of_kind("number")
        yield from ((c.name, c.label) for c in numbers)
        yield from ((c.name, f"{c.label} is missing") for c in numbers if c.indicator)
        for c in self.of_kind("category"):
            yield from ((c.name, f"{c.name} = {value}") for value in (*c.categories, OTHER))

    def of_kind(self, kind: str) -> list[Column]:
        """Return the columns that are numbers, or categories."""
        return [column for column in self.columns if column.kind == kind]
