"""Do skrub, pandas or charset-normalizer read tables of other people better than `data/` does?

Each case is a column as somebody had it, with the cells that come later, and what is right of each
cell: a number, a date in days since 1970, a category, or None for a missing one. Each reader gets
the column as training rows, and then the later cells alone.

ours         `source_in_memory` and `features_of`, as `search` and `predict`
cleaner      skrub.Cleaner(parse_numbers=True)
told         skrub.ToFloat or skrub.ToDatetime, told how this column is written; where there is
             nothing to tell, the Cleaner
vectorizer   skrub.TableVectorizer: whether the column is of the right kind, and later cells are
             transformed; its features are others than ours
pandas       to_numeric, else to_datetime, else text; category and Decimal as they are

An encoding is right if the cells are those that were written. The text files have 3 and 200 rows.

    python benchmarks/table_readers.py run [--to FILE]
    python benchmarks/table_readers.py page    # the table of the decision, from the results

skrub wants an environment of its own: `pip install skrub charset-normalizer pydantic tomli_w`.
"""

import argparse
import io
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _common import RESULTS, conditions, filled, read_json, write_json

PAGE = Path(__file__).resolve().parents[1] / "docs" / "decisions" / "0029-our-own-table-reader.md"
READERS = ("ours", "cleaner", "told", "vectorizer", "pandas")
N = 60
DAYS = pd.date_range("2021-01-01", periods=N, freq="5D")
SINCE = [float(day.toordinal() - 719163) for day in DAYS]
JULIAN = [2459000.5 + k / 997 for k in range(N)]


@dataclass(frozen=True)
class Case:
    """A column, the cells that come later, and what is right of both.

    unread  whether it is right to leave the column out, or as text
    told    options of ToFloat, or the format of ToDatetime
    """

    name: str
    cells: Any
    right: list[Any]
    later: Any = field(default_factory=list)
    later_right: list[Any] = field(default_factory=list)
    unread: bool = False
    told: dict[str, Any] = field(default_factory=dict)


def each(cells: list[Any]) -> list[Any]:
    """Return some cells, repeated to N."""
    return [cells[k % len(cells)] for k in range(N)]


def every(cells: list[Any], other: Any, n: int = 20) -> list[Any]:
    """Return cells with every n-th one replaced."""
    return [other if k % n == 0 else cell for k, cell in enumerate(cells)]


def cases() -> Iterator[Case]:
    """Yield the cases about the type and the value of cells."""
    mixed = [7 * k % 59 for k in range(N)]
    half, whole = [k + 0.5 for k in mixed], [*map(float, mixed)]
    commas = [f"{k},5" for k in mixed]
    yield Case("decimal commas", commas, half, ["7,25"], [7.25], told={"decimal": ","})
    thousands = [1000.0 + 7 * k for k in mixed]
    with_groups = [f"{v:,.0f}" for v in thousands]
    grouped = {"thousand": ","}
    yield Case("1,234", with_groups, thousands, ["12,345"], [12345.0], told=grouped)
    dollars = [f"${v}" for v in with_groups]
    yield Case("$1,234", dollars, thousands, ["$12,345"], [12345.0], told=grouped)
    yield Case("12 %", [f"{k} %" for k in mixed], whole, ["7%"], [7.0], told={"decimal": "."})
    yield Case(
        "(3) for -3",
        every([*map(str, mixed)], "(3)", 5),
        every(whole, -3.0, 5),
        ["(4)"],
        [-4.0],
        told={"parentheses": True},
    )
    cents = [f"{v} ct" for v in half]
    yield Case("1.1 ct", cents, half, ["2.25 ct"], [2.25], told={"decimal": "."})
    wide = [f"１{k % 10}.５" for k in mixed]
    right = [10.5 + k % 10 for k in mixed]
    yield Case("digits of another script", wide, right, ["７"], [7.0], told={"decimal": "."})
    gaps = every([*map(str, half)], "?")
    yield Case("numbers and '?'", gaps, every(half, None), ["?", "2"], [None, 2.0])
    yield Case("prices of two notations", every(dollars, "1000 USD", 5), [], unread=True)
    flags = each([True, False])
    truths = [*map(float, flags)]
    later = ["True", "unknown"]
    yield Case("True and False, later a word", [*map(str, flags)], truths, later, [1.0, None])
    yield Case("booleans, later text", flags, truths, ["True", "False"], [1.0, 0.0])
    iso = [f"{day:%Y-%m-%d}" for day in DAYS]
    yield Case("dates", iso, SINCE, ["2024-02-29"], [19782.0])
    yield Case("9999-12-31 among dates", every(iso, "9999-12-31"), every(SINCE, 2932896.0),
               ["0001-01-01"], [-719162.0])  # fmt: skip
    yield Case("9999-12-31 later", iso, SINCE, ["9999-12-31", iso[0]], [2932896.0, SINCE[0]])
    yield Case("0000-00-00 among dates", every(iso, "0000-00-00"), every(SINCE, None),
               ["0000-00-00", iso[1]], [None, SINCE[1]])  # fmt: skip
    points = [f"{day:%d.%m.%Y}" for day in DAYS]
    told = {"format": "%d.%m.%Y"}
    yield Case("31.12.2021", points, SINCE, ["01.02.2021"], [18659.0], told=told)
    strokes, told = [f"{day:%m/%d/%Y}" for day in DAYS], {"format": "%m/%d/%Y"}
    yield Case("12/31/2021", strokes, SINCE, ["02/01/2021"], [18659.0], told=told)
    yield Case("dates of two notations",
               every(iso, "23/11/2020", 5), [], unread=True)  # fmt: skip
    articles = each(["1001-23-45", "1002-77-12", "1003-24-99", "1004-41-50"])
    yield Case("article numbers as 1001-23-45", articles, articles, ["1001-23-45"], ["1001-23-45"])
    local = pd.Series(pd.date_range("2024-07-01", periods=N, freq="24h", tz="Europe/Berlin"))
    yield Case("midnights of a time zone", local, [19905.0 + k for k in range(N)])
    spans = pd.Series(pd.to_timedelta(every([f"{k}s" for k in range(N)], None)))
    yield Case("durations with gaps", spans, every([*map(float, range(N))], None))
    codes = each([1, 2, 3, 7])
    yield Case("a category of integers", pd.Categorical(codes), [*map(str, codes)],
               pd.Categorical([7]), ["7"])  # fmt: skip
    gaps = every(codes, None)
    yield Case("the same with gaps", pd.Categorical(gaps),
               ["(missing)" if c is None else str(c) for c in gaps])  # fmt: skip
    prices = each([Decimal("9.99"), Decimal("19.99"), Decimal("4.50")])
    yield Case("Decimal", prices, [*map(float, prices)], [Decimal("1.25")], [1.25])
    yield Case("Python integers and floats", pd.Series(each([1, 2.5, 3]), dtype=object),
               each([1.0, 2.5, 3.0]))  # fmt: skip
    yield Case("Int64 with gaps", pd.array(every(codes, None), "Int64"),
               [None if c is None else float(c) for c in gaps])  # fmt: skip
    tags = each([["a"], ["b"], []])
    texts = each(['["a"]', '["b"]', "[]"])
    yield Case("lists in cells", tags, texts, [["b"], ["c"]], ['["b"]', None])
    yield Case("days far from 0", JULIAN, JULIAN, [JULIAN[3]], [JULIAN[3]])
    towns = each(["Köln", "Gießen"])
    yield Case("another Unicode form later", towns, towns, [unicodedata.normalize("NFD", "Köln")],
               ["Köln"])  # fmt: skip
    other = each(["(other)", "a", "b"])
    yield Case("a category '(other)'", other, other, ["(other)", "new"], ["(other)", "(other)"])
    yield Case("'yes ' beside 'yes'", each(["yes ", "yes", "no"]), each(["yes", "yes", "no"]))
    yield Case("a category None", each(["None", "mild"]), each(["None", "mild"]), ["None"],
               ["None"])  # fmt: skip


#: Groups of cases, by the first of each.
GROUPS = {
    "decimal commas": "numbers as people write them",
    "True and False, later a word": "True and False",
    "dates": "dates and times",
    "a category of integers": "types of pandas and Python",
    "another Unicode form later": "categories",
}


# --- readers: cells and later cells -> what they are read as


def _frame(cells: Any) -> pd.DataFrame:
    found = pd.DataFrame({"x": np.sin(np.arange(len(cells)))})
    return found.assign(c=cells if not isinstance(cells, list) else pd.Series(cells))


def ours(case: Case) -> tuple[list[Any], list[Any]]:
    """Read a column as `search`, and later cells as `predict`."""
    from nas_evidence.data.given import features_of
    from nas_evidence.data.source import source_in_memory

    frame = _frame(case.cells)
    source = source_in_memory(frame.assign(y=np.cos(np.arange(N))), None, {"target": "y"})
    preparation = source.arrays(seed=0).meaning.preparation
    assert preparation is not None
    names = preparation.feature_names

    def read(cells: Any) -> list[Any]:
        if not len(cells):
            return []
        table = _frame(cells)
        x = np.asarray(features_of(table, preparation).inputs, np.float64)
        columns = [c for c in preparation.columns if c.name == "c"]
        if not columns:
            return ["left out"] * len(cells)
        if columns[0].kind == "category":
            at = [(k, name[4:]) for k, name in enumerate(names) if name.startswith("c = ")]
            return [next(category for k, category in at if row[k]) for row in x]
        one = columns[0]
        values = x[:, names.index(one.label)] * getattr(one, "unit", 1.0)
        values = values + getattr(one, "shift", 0.0)
        missing = np.zeros(len(x), bool)
        if f"{one.label} is missing" in names:
            missing = x[:, names.index(f"{one.label} is missing")] == 1
        elif len(cells) != N:
            missing = values == one.fill
        return [None if gone else value for value, gone in zip(values, missing, strict=True)]

    return read(case.cells), read(case.later)


def cleaner(case: Case) -> tuple[list[Any], list[Any]]:
    """Read a column with the Cleaner of skrub."""
    from skrub import Cleaner

    fitted = Cleaner(parse_numbers=True)
    first = fitted.fit_transform(_frame(case.cells))
    later = fitted.transform(_frame(case.later)) if len(case.later) else None
    return _values(first, N), _values(later, len(case.later))


def told(case: Case) -> tuple[list[Any], list[Any]]:
    """Read a column with ToFloat or ToDatetime of skrub, told how it is written."""
    from skrub import ToDatetime, ToFloat

    if not case.told:
        return cleaner(case)
    fitted = (ToDatetime if "format" in case.told else ToFloat)(**case.told)
    frames = [_frame(case.cells), _frame(case.later)]
    first, later = fitted.fit_transform(frames[0]["c"]), fitted.transform(frames[1]["c"])
    return (
        _values(frames[0].assign(c=first), N),
        _values(frames[1].assign(c=later), len(case.later)),
    )


def vectorizer(case: Case) -> str:
    """Say of which kind a column is to the TableVectorizer of skrub."""
    from skrub import TableVectorizer

    fitted = TableVectorizer()
    fitted.fit_transform(_frame(case.cells))
    if len(case.later):
        fitted.transform(_frame(case.later))
    return str(fitted.column_to_kind_["c"])


def pandas(case: Case) -> tuple[list[Any], list[Any]]:
    """Read a column with the converters of pandas, and later cells with the same one."""
    frames = [_frame(case.cells), _frame(case.later)]
    for convert in (pd.to_numeric, pd.to_datetime):
        if isinstance(frames[0]["c"].dtype, pd.CategoricalDtype) or frames[0]["c"].dtype == bool:
            break
        try:
            frames = [frame.assign(c=convert(frame["c"])) for frame in frames]
            break
        except (ValueError, TypeError):
            continue
    return _values(frames[0], N), _values(frames[1], len(case.later))


def _values(frame: pd.DataFrame | None, n: int) -> list[Any]:
    if frame is None or not n:
        return []
    if "c" not in frame.columns:
        return ["left out"] * n
    values = frame["c"]
    if isinstance(values.dtype, pd.CategoricalDtype):
        return ["(missing)" if pd.isna(v) else str(v) for v in values]
    if pd.api.types.is_datetime64_any_dtype(values):
        local = values.dt.tz_localize(None) if values.dt.tz is not None else values
        since = local.to_numpy("datetime64[us]")
        days = since.astype("int64") / 86_400e6
        return [None if gone else day for day, gone in zip(days, np.isnat(since), strict=True)]
    if pd.api.types.is_timedelta64_dtype(values):
        values = values.dt.total_seconds()
    if pd.api.types.is_numeric_dtype(values) or values.dtype == bool:
        return [None if pd.isna(v) else float(v) for v in values]
    return [None if v is None or (np.ndim(v) == 0 and pd.isna(v)) else v for v in values]


# --- what is right


def verdict(case: Case, reader: str) -> str:
    """Say what became of a case: "right", what was wrong, or the exception."""
    kind = "text" if case.unread or isinstance(case.right[0], str) else "numeric"
    if any(word in case.name for word in ("date", "2021", "9999", "midnight")):
        kind = kind.replace("numeric", "datetime")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if reader == "vectorizer":
                found = vectorizer(case).replace("low_cardinality", "text")
                found = found.replace("high_cardinality", "text")
                return "right" if found == kind else f"as {found}"
            first, later = globals()[reader](case)
    except Exception as error:  # whatever a library raises is its answer
        return f"{type(error).__name__}: {str(error).splitlines()[0][:70]}"
    if case.unread:
        texts = first[0] == "left out" or all(isinstance(v, str) for v in first)
        return "right" if texts else f"as {_shown(first)}"
    if reader != "ours":  # it has no features, so a cell that is new stays as it is
        later = [r if r in (None, "(other)") and f == c else f
                 for f, r, c in zip(later, case.later_right, case.later, strict=True)]  # fmt: skip
    for part, right in ((first, case.right), (later, case.later_right)):
        if not all(map(_same, part, right)) or len(part) != len(right):
            wrong = next((k for k, v in enumerate(right) if not _same(part[k], v)), 0)
            where = "later, " if part is later else ""
            return (
                f"{where}{_shown(part[wrong : wrong + 1])} for {_shown(right[wrong : wrong + 1])}"
            )
    return "right"


def _same(found: Any, right: Any) -> bool:
    if isinstance(right, float):
        # float32 after centring: a part in 10^4 of the column's spread of about 1
        far = 1e-4 if 2_459_000 <= right < 2_460_000 else 1e-7 * abs(right)
        return isinstance(found, float | int | np.number) and abs(found - right) <= 1e-4 + far
    if right is None:
        return found is None or found in ("(other)", "(missing)")
    return str(found).strip().replace("'", '"') == str(right)


def _shown(values: list[Any]) -> str:
    return ", ".join("nothing" if v is None else str(v)[:24] for v in values[:1])


# --- encodings

WORDS = {
    "Western": ["Größe", "1.000,50 €", "O’Neil", "Çelik", "naïve", "Köln"],
    "Latin": ["Größe", "Çelik", "naïve", "Köln", "São", "Ångström"],
    "Polish": ["Łódź", "żółw", "Kraków", "źdźbło", "ćma", "ęś"],
    "Russian": ["Москва", "Казань", "Омск", "Тула", "Пермь", "Уфа"],
    "Japanese": ["東京", "大阪", "京都", "名古屋", "札幌", "福岡"],
}
WESTERN = ("Western", "Latin")
ENCODINGS = [
    ("Western", "utf-8"), ("Western", "cp1252"), ("Latin", "latin-1"), ("Western", "utf-16"),
    ("Western", "utf-16-le"), ("Western", "utf-32"), ("Western", "mac_roman"),
    ("Polish", "cp1250"), ("Russian", "cp1251"), ("Japanese", "cp932"), ("Russian", "utf-8"),
]  # fmt: skip


def encoded(kind: str, encoding: str, n: int) -> tuple[pd.DataFrame, bytes]:
    """Return a table, and the file of it in an encoding."""
    words = WORDS[kind]
    rows = [[words[k % len(words)], words[(k + 1) % len(words)]] for k in range(n)]
    frame = pd.DataFrame(rows, columns=["a", "b"])
    return frame, frame.to_csv(index=False, sep=";").encode(encoding)


def read_by_ours(content: bytes) -> pd.DataFrame:
    """Read a text file as `search`."""
    from nas_evidence.data.reading import as_written

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(content)
        return as_written(path)


def read_by_charset(content: bytes) -> pd.DataFrame:
    """Read a text file in the encoding that charset-normalizer finds most likely."""
    from charset_normalizer import from_bytes

    return pd.read_csv(io.StringIO(str(from_bytes(content).best())), sep=";", dtype=str)


def judged(read: Callable[[bytes], pd.DataFrame], frame: pd.DataFrame, content: bytes) -> str:
    """Say whether a text file is read as it was written, or what its first wrong cell is."""
    try:
        found = read(content)
    except Exception as error:  # whatever a library raises is its answer
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    if found.shape != frame.shape:
        return f"{found.shape[1]} columns"
    pairs = zip(found.to_numpy().ravel(), frame.to_numpy().ravel(), strict=True)
    return next((f"{a} for {b}" for a, b in pairs if a != b), "right")


def run(to: Path) -> None:
    """Read every case with every reader, and store the verdicts."""
    what = "tables of other people, read by the package and by libraries"
    packages = ("skrub", "pandas", "numpy", "charset-normalizer", "pyarrow")
    found: dict[str, Any] = {"conditions": conditions(what, *packages), "cells": {}}
    for case in cases():
        found["cells"][case.name] = {reader: verdict(case, reader) for reader in READERS}
    found["encodings"] = {}
    for kind, encoding in ENCODINGS:
        for n in (3, 200):
            frame, content = encoded(kind, encoding, n)
            found["encodings"][f"{kind}, {encoding}, {n} rows"] = {
                "ours": judged(read_by_ours, frame, content),
                "charset-normalizer": judged(read_by_charset, frame, content),
            }
    write_json(to, found)


def written() -> str:
    """Return the page of the decision with its table made from the results."""
    found = read_json(RESULTS / "table_readers.json")
    return filled(PAGE.read_text(encoding="utf-8"), {"verdicts": _table(found)})


def _table(found: dict[str, Any]) -> str:
    lines = [
        "| cases | n | ours | Cleaner | told | TableVectorizer | pandas | charset-normalizer |",
        "|---|" + "--:|" * 7,
    ]
    names = [case.name for case in cases()]
    assert names == [*found["cells"]]
    starts = [*(names.index(first) for first in GROUPS), len(names)]
    for group, start, end in zip(GROUPS.values(), starts[:-1], starts[1:], strict=True):
        part = [found["cells"][name] for name in names[start:end]]
        counts = " | ".join(str(_n_right(part, reader)) for reader in READERS)
        lines.append(f"| {group} | {len(part)} | {counts} | |")
    for group, western in {"encodings of Western text": True, "of other text": False}.items():
        part = [
            verdicts
            for name, verdicts in found["encodings"].items()
            if name.startswith(WESTERN) == western
        ]
        ours, theirs = (_n_right(part, reader) for reader in ("ours", "charset-normalizer"))
        lines.append(f"| {group} | {len(part)} | {ours} | | | | | {theirs} |")
    return "\n".join(lines)


def _n_right(verdicts: Sequence[dict[str, str]], reader: str) -> int:
    return sum(verdict[reader] == "right" for verdict in verdicts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--to", type=Path, default=RESULTS / "table_readers.json")
    asked = parser.parse_args()
    if asked.what == "run":
        run(asked.to)
    else:
        PAGE.write_text(written(), encoding="utf-8")
