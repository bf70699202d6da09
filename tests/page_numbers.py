"""Which numbers a report shows that its report.json does not hold."""

import html
import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

from nas_evidence.reporting.contents import Report
from nas_evidence.reporting.figures import figures_of

#: What is of single trials and epochs, which stand in the Parquet tables; and what is said of one.
OF_TABLES = ("history", "training", "evidence", "under_way")
ALONE = "their correlation is"
_FOLDS = re.compile(r'<details id="(?:every-trial|problems|about)">.*?</details>', re.DOTALL)
_CELLS = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
_VALUES = re.compile(r'data-value="(-?[\d.]+(?:e[-+]?\d+)?)"')
_DRAWN = re.compile(r'<text class="value"[^>]*>([^<]*)<')
_SAID = re.compile(r'<div id="(\w+)" class="figure">.*?aria-label="([^"]*)"', re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.,])-?\d+\.\d+(?![\w.]|e-)")


def not_in_json(report: Report, folder: Path, *printed: str) -> list[str]:
    """Return each number that the written report shows and its report.json does not hold.

    Those of figures, of tables, and of what is said of figures; of text also tables that a
    terminal has `printed`, with tabs. Rounded ones may be any number's that rounds to them. Axes,
    and numbers that two decimals hold exactly, such as the ends of bins, are left out.
    """
    held = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    known = {*_numbers(held)}
    points = {100 * one for one in _numbers(held["trust"]) | _numbers(held["early"])}
    known |= points  # of accuracy
    known |= {a[key] - b[key] for a, b in combinations(held["compared"] or (), 2)
              for key in a if key != "trial" and None not in (a[key], b[key])}  # fmt: skip
    exact = {f"{one:.9g}" for one in known}
    wrong = [
        f"figure {name}: {key} {value}"
        for name, drawing in figures_of(report).items()
        if name not in OF_TABLES
        for row in drawing.rows
        for key, value in row.items()
        if isinstance(value, float) and f"{value:.9g}" not in exact and _is_long(value)
    ]
    page = (folder / "index.html").read_text(encoding="utf-8")
    said = {name: label for name, label in _SAID.findall(page)
            if name not in OF_TABLES and ALONE not in label}  # fmt: skip
    page = _FOLDS.sub("", page)
    wrong += [
        f"data-value {one}"
        for one in _VALUES.findall(page)
        if _is_long(float(one)) and f"{float(one):.9g}" not in exact
    ]
    lines = (folder / "report.md").read_text(encoding="utf-8").splitlines()
    texts = {f"said of {name}": label for name, label in said.items()}
    texts |= {
        f"cell {i}": re.sub("<[^>]*>", " ", one) for i, one in enumerate(_CELLS.findall(page))
    }
    texts |= {f"drawn {i}": one for i, one in enumerate(_DRAWN.findall(page))}
    texts |= {one: one for one in lines if one.startswith("|")}
    texts |= {one: one for text in printed for one in text.splitlines() if "\t" in one}
    rounded: dict[int, set[str]] = {}
    for place, text in texts.items():
        for shown in _NUMBER.findall(html.unescape(text)):
            digits = len(shown.partition(".")[2])
            if digits not in rounded:
                rounded[digits] = {f"{one:.{digits}f}" for one in known}
            if shown not in rounded[digits] and f"{-float(shown):.{digits}f}" != shown:
                wrong.append(f"{place}: {shown}")
    return wrong


def _is_long(value: float) -> bool:
    return math.isfinite(value) and round(value, 2) != value


def _numbers(value: object) -> set[float]:
    return {*_walk(value)}


def _walk(value: object) -> Iterator[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _walk(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
