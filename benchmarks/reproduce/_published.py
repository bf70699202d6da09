"""The published figures and tables, each from one script, beside what the paper says.

A script is a file `<paper>_<figure>.py` in `benchmarks/reproduce/`, in a wheel in `reproduce/`.
Files that begin with an underscore are shared by scripts. A script has the constants

    PAPER       a key of `PAPERS`
    FIGURE      as in `PAPERS`: "Fig. 2", or several: "Fig. 2, Table 1"
    TITLE       what is shown
    CLAIM       what the paper claims, in one sentence
    RULE        when a cell agrees, in a few words
    NEEDS       folders of data that must exist, () for none
    FULL_HOURS  estimate for the size of the paper

and the functions

    run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction
    cells(numbers: Mapping[str, Any]) -> list[Cell]

A cell is one published number, or one comparison that the paper states, for one setting. `cells`
has all that ran, from the numbers of a `Reproduction` as JSON has them, so that a kept result can
be counted again. The status follows from the share that agrees (`status_of`).

Constants are read without importing the script, so a list of all of them needs no torch. What was
found is written as a figure, a table and JSON; short versions are kept in `results/`, and
`benchmarks/gallery.py` makes the gallery in the documentation from them.
"""

import ast
import importlib
import json
import os
import platform
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from nas_evidence.cli.reproduce import ROOM, make_importable
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.version import __version__

Status = Literal["reproduced", "in part", "differs"]

#: By authors and year: the whole name, and every numbered figure and table. "Eq. 28" of Baldock
#: and Marzari stands for their model selection, which has numbers but no table.
PAPERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Duvenaud et al. 2016": (
        "Duvenaud, Maclaurin and Adams 2016: Early stopping as nonparametric variational "
        "inference",
        ("Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4", "Fig. 5"),
    ),
    "Baldock and Marzari 2019": (
        "Baldock and Marzari 2019: Bayesian neural networks at finite temperature",
        ("Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4", "Table 1", "Eq. 28"),
    ),
    "Immer et al. 2021": (
        "Immer, Bauer, Fortuin, Rätsch and Khan 2021: Scalable marginal likelihood estimation "
        "for model selection in deep learning",
        (
            *(f"Fig. {n}" for n in range(1, 8)),
            *(f"Fig. C.{n}" for n in range(1, 5)),
            *("Table 1", "Table 2", "Table A1"),
            *(f"Table C{n}" for n in range(2, 12)),
        ),
    ),
    "Lyle et al. 2020": (
        "Lyle, Schut, Ru, Gal and van der Wilk 2020: A Bayesian perspective on training speed "
        "and model selection",
        tuple(f"Fig. {n}" for n in range(1, 10)),
    ),
    "Ru et al. 2021": (
        "Ru, Lyle, Schut, Fil, van der Wilk and Gal 2021: Speedy performance estimation for "
        "neural architecture search",
        ("rank correlation",),
    ),
}
_HERE = Path(__file__).resolve().parent
#: What has no script because even a short version needs a GPU, and its hours: five seeds of
#: Table C8 at half an hour to an hour and a half each, one run of each network of C9 and C10.
#: A row of Table C8 or C9 is a study; with augmentation it has the last two keys:
#:
#:     nas-evidence search cifar10 --set plan.epochs=250 --set plan.online.curvature=diag_ef
#:         --set 'estimators=["diag_ef"]' --set objective=diag_ef
#:         --set 'plan.augment=["RandomCrop", "RandomHorizontalFlip"]'
#:         --set plan.likelihood_power=5
_ON_GPU = {
    "immer_resnets": (
        "Immer et al. 2021", ("Fig. 7", "Table C8", "Table C9", "Table C10"),
        "Residual networks: depth and width",
        "Wider residual networks have more evidence and accuracy, deeper ones need not (rank "
        "correlation 0.97 of evidence and accuracy).",
        80.0,
    ),
}  # fmt: skip
_CONSTANTS: dict[str, type | tuple[type, ...]] = {
    "PAPER": str, "FIGURE": str, "TITLE": str, "CLAIM": str, "NEEDS": tuple,
    "RULE": str, "FULL_HOURS": (int, float),
}  # fmt: skip
_FUNCTIONS = {"run", "cells"}
_MEASURED = (
    "rows", "numbers", "seconds", "processor_seconds", "hardware", "versions", "date",
    "has_figure",
)  # fmt: skip
_DOTS = 100  # per inch, of the PNG files
#: What stands in place of a published number where a paper only draws.
PICTURE = "picture only"
_LONG = 28  # characters that are not printed in row after row


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


@dataclass(frozen=True)
class Reproduction:
    """What a script found: rows, a matplotlib figure, numbers for JSON, and a summary."""

    rows: tuple[Row, ...]
    figure: Any
    numbers: Mapping[str, Any]
    why: str


@dataclass(frozen=True)
class Script:
    """The constants of one script; `gpu_hours` where even the short version needs a GPU."""

    name: str
    path: Path
    paper: str
    figures: tuple[str, ...]
    title: str
    claim: str
    rule: str
    needs: tuple[str, ...]
    full_hours: float
    gpu_hours: float | None = None

    @property
    def runs(self) -> bool:
        """Return whether there is a version for a processor alone."""
        return self.gpu_hours is None


@dataclass(frozen=True)
class ListRow:
    """One figure or table of a paper, the script for it, what came out, and how much agrees."""

    paper: str
    figure: str
    name: str
    status: str
    agree: str = ""
    title: str = ""


def scripts(folder: Path | None = None) -> dict[str, Script]:
    """Return the scripts by name, in the order of papers and figures; nothing is imported.

    Raises:
        ValueError: for a script whose constants are missing, of a wrong type or unknown.
    """
    place = _HERE if folder is None else folder
    found = [_read(path) for path in sorted(place.glob("[!_]*.py"))]
    if place == _HERE:
        found += [_without_script(name) for name in _ON_GPU]
    return {one.name: one for one in sorted(found, key=_order)}


def listed(folder: Path | None = None) -> list[ListRow]:
    """Return one row for each figure and table of the papers; a status for each."""
    known, results = scripts(folder), stored_results(folder)
    rows = []
    for paper, (_, figures) in PAPERS.items():
        for figure in figures:
            serving = [s for s in known.values() if s.paper == paper and figure in s.figures]
            if not serving:
                rows.append(ListRow(paper, figure, "", "no script"))
            rows += [_listed(figure, one, results.get(one.name)) for one in serving]
    return rows


def stored_results(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the kept results of the short versions by name of the script."""
    place = (_HERE if folder is None else folder) / "results"
    return {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(place.glob("*.json"))
    }


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
    return [
        Cell(group, what, agrees, tuple(figures))
        for group, what, agrees, figures in result["cells"]
    ]


def judged(result: Mapping[str, Any], script: Script) -> dict[str, Any]:
    """Return a result with the constants of its script, and its cells counted from its numbers.

    Raises:
        ValueError: if a cell belongs to a figure that is not one of the script.
    """
    cells: list[Cell] = _imported(script).cells(result["numbers"])
    for cell in cells:
        if not set(cell.figures) <= set(script.figures):
            raise ValueError(f"{script.name} has no figure of {cell.figures} in '{cell.what}'.")
    return {
        "name": script.name,
        "paper": script.paper,
        "figure": ", ".join(script.figures),
        "title": script.title,
        "claim": script.claim,
        "rule": script.rule,
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
    folder: Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a script, write `to/<name>.png`, `.md` and `.json`, and return what the JSON holds.

    Args:
        name: of a script.
        quick: the short version, minutes on one core; else the size of the paper.
        data: the folder with the folders of data sets; None if there is none.
        to: made if it is missing.
        say: told about progress.
        folder: of the scripts, None for the shipped ones.
        options: further arguments of `run`; the size is then "shortened".

    Raises:
        ValueError: for an unknown name, missing data, or a script that needs a GPU.
    """
    script = chosen(name, scripts(folder))
    needed_data(script, data)
    to.mkdir(parents=True, exist_ok=True)
    module = _imported(script)
    started, used = time.perf_counter(), time.process_time()
    found: Reproduction = module.run(quick=quick, data=data, say=say, **(options or {}))
    result = {
        "size": "shortened" if options else "quick" if quick else "full",
        "why": found.why,
        "rows": [asdict(row) for row in found.rows],
        "numbers": json.loads(json.dumps(dict(found.numbers), allow_nan=False)),
        "seconds": round(time.perf_counter() - started, 1),
        "processor_seconds": round(time.process_time() - used, 1),
        "hardware": _hardware(),
        "versions": _versions(),
        "date": datetime.now(UTC).date().isoformat(),
        "has_figure": found.figure is not None,
    }
    result = judged(result, script)
    if found.figure is not None:
        found.figure.savefig(to / f"{name}.png", dpi=_DOTS, metadata={"Software": None})
    write_whole(to / f"{name}.md", table_page(result))
    write_whole(to / f"{name}.json", result_text(result))
    return result


def chosen(name: str, known: Mapping[str, Script]) -> Script:
    """Return the script of a name.

    Raises:
        ValueError: for an unknown name, or a script that needs a GPU.
    """
    if name not in known:
        raise ValueError(
            f"there is no reproduction '{name}'; the names are {', '.join(known) or 'none'}."
        )
    script = known[name]
    if not script.runs:
        raise ValueError(
            f"{name} has no version for a processor alone: about {script.gpu_hours:g} hours of "
            f"one GPU; how is in {script.path.name}."
        )
    return script


def needed_data(script: Script, data: Path | None) -> None:
    """Raise unless the folders of data that a script needs are there.

    Raises:
        ValueError: naming the missing folder.
    """
    for folder in script.needs:
        if data is None:
            raise ValueError(
                f"{script.name} needs the data folder {folder}; say with --data DIR where it is."
            )
        if not (data / folder).is_dir():
            raise ValueError(
                f"{script.name} needs the data folder {folder}, but {data} has none of that name; "
                "say with --data DIR where it is."
            )


def table_page(result: Mapping[str, Any], image: str | None = None) -> str:
    """Return a result as Markdown: the claim, the figure, published / ours / why they differ.

    Args:
        result: as returned by `reproduced`.
        image: path of the figure; None for `<name>.png` beside the page.
    """
    lines = [
        f"# {result['paper']} {result['figure']}: {result['title']}",
        "",
        *body(result, image or f"{result['name']}.png"),
        "",
        f"{how_made(result)} {where_measured(result)}",
    ]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------------------------------


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
    keys = ("what", "published", "ours", "spread", "why")
    for row in result["rows"]:
        shown = {**row, **{key: notes.get(row[key], row[key]) for key in ("spread", "why")}}
        lines.append("| " + " | ".join(_cell(shown[key]) for key in keys) + " |")
    if notes:
        lines += ["", "; ".join(f"{mark} {text}" for text, mark in notes.items()) + "."]
    return lines


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


def how_made(result: Mapping[str, Any]) -> str:
    """Return a sentence: which version of which script, and its cost."""
    seconds = f"{result['processor_seconds']:g} seconds of processor time"
    return f"`{result['name']}`, {result['size']} version, {seconds}."


def where_measured(result: Mapping[str, Any]) -> str:
    """Return a sentence: hardware and versions."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return f"Measured on {result['hardware']}; {versions}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _read(path: Path) -> Script:
    tree = ast.parse(path.read_text("utf-8"))
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in _CONSTANTS:
                values[name] = ast.literal_eval(node.value)
    for name, kind in _CONSTANTS.items():
        if not isinstance(values.get(name), kind):
            raise ValueError(f"{path.name} must have {name}, but has {values.get(name)!r}.")
    figures = tuple(values["FIGURE"].split(", "))
    known = PAPERS.get(values["PAPER"], ("", ()))[1]
    for figure in figures:
        if figure not in known:
            raise ValueError(f"{path.name}: {values['PAPER']} has no figure or table '{figure}'.")
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if not defined >= _FUNCTIONS:
        raise ValueError(f"{path.name} must have the functions `run` and `cells`.")
    return Script(
        path.stem, path, values["PAPER"], figures, values["TITLE"], values["CLAIM"],
        values["RULE"], values["NEEDS"], float(values["FULL_HOURS"]),
    )  # fmt: skip


def _without_script(name: str) -> Script:
    paper, figures, title, claim, hours = _ON_GPU[name]
    return Script(name, Path(__file__), paper, figures, title, claim, "", (), hours, hours)


def _order(script: Script) -> tuple[int, int, str]:
    figures = PAPERS[script.paper][1]
    first = min(figures.index(figure) for figure in script.figures)
    return list(PAPERS).index(script.paper), first, script.name


def _listed(figure: str, script: Script, result: Mapping[str, Any] | None) -> ListRow:
    """Return the row of one figure: only the cells that belong to it count."""
    status = "not yet run" if script.runs else f"needs a GPU: {script.gpu_hours:g} hours"
    agree = ""
    if result is not None:
        cells = [one for one in kept_cells(result) if not one.figures or figure in one.figures]
        status, agree = status_of(cells), agreement(result, cells)
    return ListRow(script.paper, figure, script.name, status, agree, script.title)


def _imported(script: Script) -> types.ModuleType:
    """Import a script as a member of a package of all scripts of its folder."""
    make_importable(script.path.parent)
    return importlib.import_module(f"{ROOM}.{script.name}")


def _hardware() -> str:
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch and torch.cuda.is_available() else "no GPU"
    used = torch.get_num_threads() if torch else 1
    return f"{os.cpu_count()} {platform.machine()} cores, {used} thread(s) used, {gpu}"


def _versions() -> dict[str, str]:
    ours = {"nas-evidence": __version__, "python": platform.python_version()}
    return {**ours, **{name: version(name) for name in ("torch", "numpy")}}
