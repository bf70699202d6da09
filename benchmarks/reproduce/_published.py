"""The published figures and tables, each from one script, beside what the paper says.

A script is a file `<paper>_<figure>.py` in `benchmarks/reproduce/`; the first part of its name is
a key of `PAPERS`. Files that begin with an underscore are shared by scripts. A script has the
constants

    FIGURE      as in `PAPERS`: "Fig. 2", or several: "Fig. 2, Table 1"
    TITLE       what is shown
    CLAIM       what the paper claims, in one sentence
    RULE        when a cell agrees, in a few words
    NEEDS       folders of data that must exist, () for none
    GPU_HOURS   only where even a short version needs a GPU; then it has no functions

and the functions

    run(at: Run) -> Reproduction
    cells(numbers: Numbers) -> Cells

A cell is one published number, or one comparison that the paper states, for one setting. `cells`
has all that ran, from the numbers of a `Reproduction` as JSON has them, so that a kept result can
be counted again. The status follows from the share that agrees (`status_of`).

What was found is written as a figure, a table and JSON; short versions are kept in `results/`. A
list of all of them is read there, so it needs no torch. `benchmarks/gallery.py` makes the gallery
in the documentation from them.
"""

import importlib
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from nas_evidence.cli.reproduce import ROOM, make_importable
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.version import __version__

Status = Literal["reproduced", "in part", "differs"]

#: By the first part of the names of its scripts: authors and year, the whole name, and every
#: numbered figure and table. "Eq. 28" of Baldock and Marzari stands for their model selection,
#: which has numbers but no table.
PAPERS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "duvenaud": (
        "Duvenaud et al. 2016",
        "Duvenaud, Maclaurin and Adams 2016: Early stopping as nonparametric variational "
        "inference",
        ("Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4", "Fig. 5"),
    ),
    "baldock": (
        "Baldock and Marzari 2019",
        "Baldock and Marzari 2019: Bayesian neural networks at finite temperature",
        ("Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4", "Table 1", "Eq. 28"),
    ),
    "immer": (
        "Immer et al. 2021",
        "Immer, Bauer, Fortuin, Rätsch and Khan 2021: Scalable marginal likelihood estimation "
        "for model selection in deep learning",
        (
            *(f"Fig. {n}" for n in range(1, 8)),
            *(f"Fig. C.{n}" for n in range(1, 5)),
            *("Table 1", "Table 2", "Table A1"),
            *(f"Table C{n}" for n in range(2, 12)),
        ),
    ),
    "lyle": (
        "Lyle et al. 2020",
        "Lyle, Schut, Ru, Gal and van der Wilk 2020: A Bayesian perspective on training speed "
        "and model selection",
        tuple(f"Fig. {n}" for n in range(1, 10)),
    ),
    "speedy": (
        "Ru et al. 2021",
        "Ru, Lyle, Schut, Fil, van der Wilk and Gal 2021: Speedy performance estimation for "
        "neural architecture search",
        ("rank correlation",),
    ),
}
Numbers = Mapping[str, Any]  #: What a script found, for JSON.
_HERE = Path(__file__).resolve().parent
_CONSTANTS = ("FIGURE", "TITLE", "CLAIM", "RULE")
_MEASURED = (
    "rows", "numbers", "seconds", "processor_seconds", "hardware", "versions", "date",
    "has_figure",
)  # fmt: skip
_DOTS = 100  # per inch, of the PNG files
#: What stands in place of a published number where a paper only draws.
PICTURE = "picture only"
_LONG = 28  # characters that are not printed in row after row


@dataclass(frozen=True)
class Run:
    """What a script is given: its size, the folder of data, and whom to tell about progress."""

    quick: bool
    data: Path
    say: Callable[[str], None]

    def sized(self, short: Any, full: Any) -> Any:
        """Return the value for the size that is asked for."""
        return short if self.quick else full


@dataclass(frozen=True)
class Row:
    """One published number or statement beside ours.

    what       is compared           published  as printed, "" where the paper has no number
    ours       what we find          spread     standard error or range of ours, with n
    why        the reason for a difference, "" if there is none
    """

    what: str
    published: str
    ours: str
    spread: str = ""
    why: str = ""


@dataclass(frozen=True)
class Cell:
    """One published number or stated comparison in one setting, and whether ours agrees.

    group      is counted together          what       the setting or number within it
    agrees     by the rule of the script    figures    that it belongs to, () for all of the script
    """

    group: str
    what: str
    agrees: bool
    figures: tuple[str, ...] = ()


Cells = Iterator[Cell]


@dataclass(frozen=True)
class Reproduction:
    """What a script found: rows, a matplotlib figure, numbers for JSON, and a summary.

    The numbers may hold tensors, arrays and dataclasses.
    """

    rows: Sequence[Row]
    figure: Any
    numbers: Mapping[str, Any]
    why: str


@dataclass(frozen=True)
class ListRow:
    """One figure or table of a paper, the script for it, what came out, and how much agrees."""

    paper: str
    figure: str
    name: str
    status: str
    agree: str = ""
    title: str = ""


def names(folder: Path = _HERE) -> list[str]:
    """Return the names of the scripts in a folder."""
    return sorted(path.stem for path in folder.glob("[!_]*.py"))


def script(name: str, folder: Path = _HERE) -> ModuleType:
    """Import a script, as a member of a package of all scripts of its folder.

    Raises:
        ValueError: for an unknown name, something missing, or a figure that its paper lacks.
    """
    if name not in names(folder):
        known = ", ".join(names(folder)) or "none"
        raise ValueError(f"there is no reproduction '{name}'; the names are {known}.")
    make_importable(folder)
    module = importlib.import_module(f"{ROOM}.{name}")
    functions = () if hasattr(module, "GPU_HOURS") else ("run", "cells")
    for needed in (*_CONSTANTS, "NEEDS", *functions):
        if not hasattr(module, needed):
            raise ValueError(f"{name}.py must have {needed}.")
    paper, _, figures = _paper(name)
    for figure in module.FIGURE.split(", "):
        if figure not in figures:
            raise ValueError(f"{name}: {paper} has no figure or table '{figure}'.")
    return module


def listed(folder: Path = _HERE) -> list[ListRow]:
    """Return one row for each figure and table of the papers; a status for each."""
    known = stored_results(folder)
    for name in names(folder):
        if name not in known:
            known[name] = _not_run(script(name, folder))
    rows = []
    for paper, _, figures in PAPERS.values():
        for figure in figures:
            serving = [
                _listed(figure, name, one)
                for name, one in known.items()
                if one["paper"] == paper and figure in one["figure"].split(", ")
            ]
            rows += serving or [ListRow(paper, figure, "", "no script")]
    return rows


def stored_results(folder: Path = _HERE) -> dict[str, dict[str, Any]]:
    """Return the kept results of the short versions by name of the script."""
    paths = sorted((folder / "results").glob("*.json"))
    return {path.stem: json.loads(path.read_text("utf-8")) for path in paths}


def status_of(cells: Iterable[Cell]) -> Status:
    """Return "reproduced" if all cells agree, "differs" if none does, else "in part".

    >>> status_of([Cell("order", "first", True), Cell("order", "second", False)])
    'in part'

    Raises:
        ValueError: without cells.
    """
    found = {cell.agrees for cell in cells}
    if not found:
        raise ValueError("a status needs at least one cell that ran, but there is none.")
    if found == {True}:
        return "reproduced"
    return "in part" if True in found else "differs"


def share_of(cells: Sequence[Cell]) -> str:
    """Return how many cells agree.

    >>> share_of([Cell("order", "first", True), Cell("order", "second", False)])
    '1 of 2'
    """
    return f"{sum(cell.agrees for cell in cells)} of {len(cells)}"


def is_picture(result: Mapping[str, Any]) -> bool:
    """Tell whether a paper prints neither a number nor a word for any row: only a picture.

    >>> is_picture({"rows": [{"published": "picture only"}, {"published": ""}]})
    True
    """
    return {row["published"] for row in result["rows"]} <= {"", PICTURE}


def agreement(result: Mapping[str, Any], cells: Sequence[Cell]) -> str:
    """Return how many cells agree, and of what if that is no published number or statement.

    >>> cells = [Cell("order", "first", True)]
    >>> agreement({"rows": [{"published": "picture only"}]}, cells)
    '1 of 1 checks of a picture'
    """
    return share_of(cells) + " checks of a picture" * is_picture(result)


def kept_cells(result: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a result, as they are kept in it."""
    return [Cell(*one, tuple(figures)) for *one, figures in result["cells"]]


def joined(values: Iterable[float], form: str) -> str:
    """Return numbers beside each other, in one format.

    >>> joined([1, 2.5], "+.1f")
    '+1.0, +2.5'
    """
    return ", ".join(format(float(value), form) for value in values)


def judged(result: Mapping[str, Any], module: ModuleType) -> dict[str, Any]:
    """Return a result with the constants of its script, and its cells counted from its numbers.

    Raises:
        ValueError: if a cell belongs to a figure that is not one of the script.
    """
    known = _constants(module)
    cells: list[Cell] = list(module.cells(result["numbers"]))
    for cell in cells:
        if not {*cell.figures} <= {*known["figure"].split(", ")}:
            raise ValueError(f"{known['name']} has no figure of {cell.figures} in '{cell.what}'.")
    return {
        **known,
        "size": result["size"],
        "status": status_of(cells),
        "why": result["why"],
        "cells": [[cell.group, cell.what, cell.agrees, list(cell.figures)] for cell in cells],
        **{key: result[key] for key in _MEASURED},
    }


def result_text(result: Mapping[str, Any]) -> str:
    """Return a result as JSON, a line for each cell."""
    whole = {**result, "cells": "CELLS"}
    lines = [json.dumps(cell, ensure_ascii=False) for cell in result["cells"]]
    text = json.dumps(whole, indent=1, allow_nan=False)
    return text.replace('"CELLS"', "[\n  " + ",\n  ".join(lines) + "\n ]", 1) + "\n"


def reproduced(
    name: str,
    *,
    quick: bool,
    data: Path | None,
    to: Path,
    say: Callable[[str], None],
    folder: Path = _HERE,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a script, write `to/<name>.png`, `.md` and `.json`, and return what the JSON holds.

    Args:
        name: of a script.
        quick: the short version, minutes on one core; else the size of the paper.
        data: the folder with the folders of data sets; None if there is none.
        to: made if it is missing.
        say: told about progress.
        folder: of the scripts.
        options: further arguments of `run`; the size is then "shortened".

    Raises:
        ValueError: for an unknown name, missing data, or a script that needs a GPU.
    """
    module = script(name, folder)
    _must_run(module, data)
    to.mkdir(parents=True, exist_ok=True)
    started, used = time.perf_counter(), time.process_time()
    found: Reproduction = module.run(Run(quick, data or Path(), say), **(options or {}))
    result = judged(
        {
            "size": "shortened" if options else "quick" if quick else "full",
            "why": found.why,
            "rows": [asdict(row) for row in found.rows],
            "numbers": json.loads(json.dumps(found.numbers, allow_nan=False, default=_plain)),
            "seconds": round(time.perf_counter() - started, 1),
            "processor_seconds": round(time.process_time() - used, 1),
            "hardware": _hardware(),
            "versions": _versions(),
            "date": datetime.now(UTC).date().isoformat(),
            "has_figure": found.figure is not None,
        },
        module,
    )
    if found.figure is not None:
        found.figure.savefig(to / f"{name}.png", dpi=_DOTS, metadata={"Software": None})
    write_whole(to / f"{name}.md", table_page(result))
    write_whole(to / f"{name}.json", result_text(result))
    return result


def table_page(result: Mapping[str, Any]) -> str:
    """Return a result as Markdown: the claim, the figure, published / ours / why they differ."""
    lines = [
        f"# {result['paper']} {result['figure']}: {result['title']}",
        "",
        *body(result, f"{result['name']}.png"),
        "",
        f"{how_made(result)} {where_measured(result)}",
    ]
    return "\n".join(lines) + "\n"


def body(result: Mapping[str, Any], image: str) -> list[str]:
    """Return claim, figure, status and table of a result as lines of Markdown."""
    lines = [f"Claim: {result['claim']}", "", f"A cell agrees if {result['rule']}.", ""]
    if result["has_figure"]:
        lines += [f"![{result['title']}]({image})", ""]
    cells = kept_cells(result)
    agree = agreement(result, cells)
    lines += [f"**{result['status']}, {agree}**: {result['why']}.", "", *_counted(cells)]
    lines += [
        "",
        "| what | published | ours | spread | why they differ |",
        "|---|---|---|---|---|",
    ]
    notes = _repeated(row[key] for row in result["rows"] for key in ("spread", "why"))
    for row in result["rows"]:
        shown = {**row, **{key: notes.get(row[key], row[key]) for key in ("spread", "why")}}
        lines.append("| " + " | ".join(_cell(text) for text in shown.values()) + " |")
    if notes:
        lines += ["", "; ".join(f"{mark} {text}" for text, mark in notes.items()) + "."]
    return lines


def how_made(result: Mapping[str, Any]) -> str:
    """Return a sentence: which version of which script, and its cost."""
    seconds = f"{result['processor_seconds']:g} seconds of processor time"
    return f"`{result['name']}`, {result['size']} version, {seconds}."


def where_measured(result: Mapping[str, Any]) -> str:
    """Return a sentence: hardware and versions."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return f"Measured on {result['hardware']}; {versions}."


def _must_run(module: ModuleType, data: Path | None) -> None:
    """Raise unless a script runs on a processor alone and its folders of data are there."""
    name = module.__name__.rpartition(".")[2]
    if hasattr(module, "GPU_HOURS"):
        raise ValueError(
            f"{name} has no version for a processor alone: about {module.GPU_HOURS:g} hours of "
            f"one GPU; how is in {name}.py."
        )
    for folder in module.NEEDS:
        if data is None or not (data / folder).is_dir():
            there = "" if data is None else f", but {data} has none of that name"
            raise ValueError(
                f"{name} needs the data folder {folder}{there}; say with --data DIR where it is."
            )


def _paper(name: str) -> tuple[str, str, tuple[str, ...]]:
    key = name.partition("_")[0]
    if key not in PAPERS:
        raise ValueError(f"{name}.py must begin with one of {', '.join(PAPERS)}.")
    return PAPERS[key]


def _constants(module: ModuleType) -> dict[str, str]:
    """Return what a result has of its script."""
    name = module.__name__.rpartition(".")[2]
    own = {constant.lower(): getattr(module, constant) for constant in _CONSTANTS}
    return {"name": name, "paper": _paper(name)[0], **own}


def _not_run(module: ModuleType) -> dict[str, str]:
    hours = getattr(module, "GPU_HOURS", None)
    status = f"needs a GPU: {hours:g} hours" if hours else "not yet run"
    return {**_constants(module), "status": status}


def _listed(figure: str, name: str, one: Mapping[str, Any]) -> ListRow:
    """Return the row of one figure: only the cells that belong to it count."""
    status, agree = one["status"], ""
    if "cells" in one:
        cells = [cell for cell in kept_cells(one) if not cell.figures or figure in cell.figures]
        status, agree = status_of(cells), agreement(one, cells)
    return ListRow(one["paper"], figure, name, status, agree, one["title"])


def _counted(cells: Sequence[Cell]) -> list[str]:
    """Return a table of the groups: how many of their cells agree, and which do not."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    lines = ["| compared | agree | not |", "|---|---|---|"]
    for group, found in groups.items():
        apart = "; ".join(cell.what for cell in found if not cell.agrees)
        lines.append(f"| {_cell(group)} | {share_of(found)} | {_cell(apart)} |")
    return lines


def _repeated(texts: Iterable[str]) -> dict[str, str]:
    """Return a mark, (a) and so on, for each longer text that occurs more than twice."""
    often = [text for text, n in Counter(texts).items() if len(text) > _LONG and n > 2]
    return {text: f"({chr(ord('a') + i)})" for i, text in enumerate(often)}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _plain(value: Any) -> Any:
    """Return a tensor or array as numbers, and another object as its fields."""
    return value.tolist() if hasattr(value, "tolist") else vars(value)


def _hardware() -> str:
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch and torch.cuda.is_available() else "no GPU"
    used = torch.get_num_threads() if torch else 1
    return f"{os.cpu_count()} {platform.machine()} cores, {used} thread(s) used, {gpu}"


def _versions() -> dict[str, str]:
    ours = {"nas-evidence": __version__, "python": platform.python_version()}
    return {**ours, **{name: version(name) for name in ("torch", "numpy")}}
