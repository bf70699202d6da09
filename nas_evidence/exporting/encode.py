"""Encode a table for model.onnx or model.pt2, and say what its outputs mean.

This file stands beside the model and needs Python 3.11 and numpy; meaning.json says how each
column becomes features.

    python encode.py new.csv > predictions.csv     # with onnxruntime

    from encode import encode, predictions
    session = onnxruntime.InferenceSession("model.onnx")
    names, values = predictions(session.run(None, {"inputs": encode("new.csv")})[0])

The values are those of `predict` of nas-evidence with --method map: class probabilities, or the
prediction of real targets. A cell that this file cannot read as nas-evidence does is refused.
"""

import csv
import json
import math
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

#: Cells that are missing, besides blank ones.
MISSING_WORDS = frozenset(
    (
        "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
        "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
    )
)  # fmt: skip
_FLAGS = {"true": 1.0, "false": 0.0}
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),\d+|[+-]?\d{1,3}(\.\d{3})+", re.ASCII)
_GROUPS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", re.ASCII)
_SHORT = re.compile(r"(\d{1,2})[/.](\d{1,2})[/.](\d{4})([ T]\d{1,2}:.*)?")


def encode(path: str | Path, *, separator: str = ",") -> np.ndarray:
    """Return the features of a table, a file of separated values: float32 [n, d].

    Raises:
        ValueError: if a column is absent, or a cell cannot be read.
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, delimiter=separator))
    names = [name.strip() for name in rows[0]]
    cells = {name: [row[k] for row in rows[1:] if row] for k, name in enumerate(names)}
    prepared = _meaning()["preparation"]
    how = json.loads(prepared) if isinstance(prepared, str) else prepared
    absent = sorted({c["name"] for c in how["columns"]} - set(names))
    if absent:
        raise ValueError(f"{path} lacks the columns {', '.join(absent)}")
    numbers, missing, categories = [], [], []
    for column in how["columns"]:
        own = [None if _is_missing(cell) else cell.strip() for cell in cells[column["name"]]]
        if column["kind"] == "category":
            found = [_category(cell, column["categories"]) for cell in own]
            named = [*column["categories"], "(other)"]
            categories += [[float(one == name) for one in found] for name in named]
            continue
        written = how["written"].get(column["name"], ["text", ""])
        values = np.array([_number(cell, column, written) for cell in own], dtype=np.float64)
        if (np.abs(values) > np.finfo(np.float32).max).any():
            raise ValueError(f"column {column['name']!r} must be finite in float32")
        filled = np.where(np.isnan(values), column["fill"], values)
        if (column["shift"], column["unit"]) != (0, 1):
            filled = (filled - column["shift"]) / column["unit"]
        numbers.append(filled)
        if column["indicator"]:
            missing.append(np.isnan(values))
    return np.array([*numbers, *missing, *categories], dtype=np.float32).T.copy()


def predictions(outputs: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return names [C] and values [n, C] of outputs [n, C] of the model.

    Class probabilities, or predictions of real targets in their own unit.
    """
    meaning = _meaning()
    outputs = outputs.astype(np.float64)
    if not meaning["classes"]:
        least = [-math.inf if one is None else one for one in meaning["target_least"]]
        return list(meaning["targets"]), np.maximum(outputs, least)
    odds = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return list(map(str, meaning["classes"])), odds / odds.sum(axis=1, keepdims=True)


def _meaning() -> dict[str, Any]:
    """Return what inputs and outputs stand for; the members of an ensemble have the same."""
    here = Path(__file__).resolve().parent
    own = here / "meaning.json"
    place = own if own.is_file() else min((here / "members").glob("*/meaning.json"))
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return found


def _is_missing(cell: str) -> bool:
    return cell in MISSING_WORDS or not cell.strip()


def _category(cell: str | None, categories: Sequence[str]) -> str:
    text = "(missing)" if cell is None else cell
    if text in categories:
        return text
    flags = {one.casefold(): one for one in categories if one.casefold() in _FLAGS}
    text = flags.get(text.casefold(), text)
    if cell is not None and _PLAIN.fullmatch(cell):  # 1.0 is the category 1
        value = float(cell)
        text = str(int(value)) if value.is_integer() else str(value)
    return text if text in categories else "(other)"


def _number(cell: str | None, column: dict[str, Any], written: Sequence[str]) -> float:
    """Return a cell as a number, NaN if it is missing or a word."""
    if column["part"]:
        return math.nan if cell is None else _part(cell, column)
    if cell is None or cell in column["words"]:
        return math.nan
    if written[0] == "duration":
        raise ValueError(f"column {column['name']!r} holds durations; encode it with nas-evidence")
    plain = _plain(cell, *written)
    if plain is None:
        return _FLAGS.get(cell.casefold(), math.nan)
    return float(plain)


def _plain(cell: str, sign: str, unit: str) -> str | None:
    """Return a cell as a plain number: without unit, signs of money, and marks of thousands."""
    if _PLAIN.fullmatch(cell) and not (sign == "comma" and _COMMA.fullmatch(cell)):
        return cell
    if sign in ("text", "category"):
        return None
    bare = cell.removesuffix(unit).rstrip().replace("\u2212", "-")
    if bare.startswith("(") and bare.endswith(")"):
        bare = f"-{bare[1:-1]}"
    bare = re.sub(r"^([+-]?)\s*[$€£¥%]\s*|\s*[$€£¥%]$", r"\1", bare)
    bare = re.sub(r"(?<=\d)['\u2019\u00a0\u202f ](?=\d{3}(\D|$))", "", bare)
    if sign == "comma" and _COMMA.fullmatch(bare):
        return bare.replace(".", "").replace(",", ".")
    if sign == "point" and _GROUPS.fullmatch(bare):
        return bare.replace(",", "")
    return bare if _PLAIN.fullmatch(bare) else None


def _part(cell: str, column: dict[str, Any]) -> float:
    """Return a part of a date: days since 1970, or year, month, weekday or hour."""
    text, short = cell, _SHORT.fullmatch(cell)
    if short and column["order"] != "year":
        first, second, year, clock = short.groups()
        day, month = (first, second) if column["order"] == "day" else (second, first)
        text = f"{year}-{int(month):02}-{int(day):02}{clock or ''}"
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"column {column['name']!r}: {cell!r} is no date that this file reads; write it as "
            "2024-01-31, or 2024-01-31 08:00"
        ) from None
    if date.tzinfo is not None:
        date = date.astimezone(UTC).replace(tzinfo=None)
    since = (date - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    found = (since / 86_400e6, date.year, date.month, date.weekday(), date.hour)
    return float(found[("days", "year", "month", "weekday", "hour").index(column["part"])])


def main(path: str) -> None:
    """Print the predictions for a table as CSV."""
    import onnxruntime

    here = Path(__file__).resolve().parent
    session = onnxruntime.InferenceSession(str(here / "model.onnx"))
    names, values = predictions(session.run(None, {"inputs": encode(path)})[0])
    table = csv.writer(sys.stdout)
    table.writerows([names, *values.tolist()])


if __name__ == "__main__":
    main(sys.argv[1])
