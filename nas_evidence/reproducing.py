"""The published figures and tables, each from one script, beside what the paper says.

A script is a file `<paper>_<figure>.py` in `benchmarks/reproduce/`, in a wheel in `reproduce/`.
Files that begin with an underscore are shared by scripts. A script has the constants

    PAPER       a key of `PAPERS`
    FIGURE      as in `PAPERS`: "Fig. 2", or several: "Fig. 2, Table 1"
    TITLE       what is shown
    CLAIM       what the paper claims, in one sentence
    NEEDS       folders of data that must exist, () for none
    FULL_HOURS  estimate for the size of the paper
    GPU_HOURS   instead of a `run`, where even a short version needs a GPU: estimate of its hours

and the function

    run(*, quick: bool, data: Path | None, say: Callable[[str], None]) -> Reproduction

Constants are read without importing the script, so a list of all of them needs no torch. What was
found is written as a figure, a table and JSON; short versions are kept in `results/`, and the
gallery in the documentation is made from them.
"""

import ast
import importlib
import json
import os
import platform
import sys
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from nas_evidence import __version__
from nas_evidence.files import write_whole

Verdict = Literal["reproduced", "differs"]

#: Authors and year, and every numbered figure and table. P001 is the talk on P000 and has none of
#: its own. "Eq. 28" of P002 stands for the model selection, which has numbers but no table.
PAPERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "P000": (
        "Duvenaud, Maclaurin and Adams 2016: Early stopping as nonparametric variational "
        "inference",
        ("Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4", "Fig. 5"),
    ),
    "P002": (
        "Baldock and Marzari 2019: Bayesian neural networks at finite temperature",
        ("Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4", "Table 1", "Eq. 28"),
    ),
    "P003": (
        "Immer, Bauer, Fortuin, Rätsch and Khan 2021: Scalable marginal likelihood estimation "
        "for model selection in deep learning",
        (
            *(f"Fig. {n}" for n in range(1, 8)),
            *(f"Fig. C.{n}" for n in range(1, 5)),
            *("Table 1", "Table 2", "Table A1"),
            *(f"Table C{n}" for n in range(2, 12)),
        ),
    ),
    "P004": (
        "Lyle, Schut, Ru, Gal and van der Wilk 2020: A Bayesian perspective on training speed "
        "and model selection",
        tuple(f"Fig. {n}" for n in range(1, 10)),
    ),
}
_ROOM = "nas_evidence_reproduce"  # the name under which scripts import each other
_CONSTANTS: dict[str, type | tuple[type, ...]] = {
    "PAPER": str, "FIGURE": str, "TITLE": str, "CLAIM": str, "NEEDS": tuple,
    "FULL_HOURS": (int, float),
}  # fmt: skip
_DOTS = 100  # per inch, of the PNG files


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
class Reproduction:
    """What a script found: rows, a matplotlib figure, numbers for JSON, and whether it agrees."""

    rows: tuple[Row, ...]
    figure: Any
    numbers: Mapping[str, Any]
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Script:
    """The constants of one script; `runs` is false where even the short version needs a GPU."""

    name: str
    path: Path
    paper: str
    figures: tuple[str, ...]
    title: str
    claim: str
    needs: tuple[str, ...]
    full_hours: float
    gpu_hours: float | None
    runs: bool


@dataclass(frozen=True)
class ListRow:
    """One figure or table of a paper, the scripts for it, and what came out."""

    paper: str
    figure: str
    name: str
    status: str
    title: str = field(default="")


def scripts_folder() -> Path:
    """Return the folder of the scripts: in a wheel, or next to the package in a checkout."""
    here = Path(__file__).resolve().parent
    inside = here / "reproduce"
    return inside if inside.is_dir() else here.parent / "benchmarks" / "reproduce"


def scripts(folder: Path | None = None) -> dict[str, Script]:
    """Return the scripts by name, in the order of papers and figures; nothing is imported.

    Raises:
        ValueError: for a script whose constants are missing, of a wrong type or unknown.
    """
    place = scripts_folder() if folder is None else folder
    found = [_read(path) for path in sorted(place.glob("[!_]*.py"))]
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
            rows += [
                ListRow(paper, figure, s.name, _status(s, results.get(s.name)), s.title)
                for s in serving
            ]
    return rows


def stored_results(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the kept results of the short versions by name of the script."""
    place = (scripts_folder() if folder is None else folder) / "results"
    return {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(place.glob("*.json"))
    }


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
        "name": name,
        "paper": script.paper,
        "figure": ", ".join(script.figures),
        "title": script.title,
        "claim": script.claim,
        "size": "shortened" if options else "quick" if quick else "full",
        "verdict": found.verdict,
        "why": found.why,
        "rows": [asdict(row) for row in found.rows],
        "numbers": dict(found.numbers),
        "seconds": round(time.perf_counter() - started, 1),
        "processor_seconds": round(time.process_time() - used, 1),
        "hardware": _hardware(),
        "versions": _versions(),
        "date": datetime.now(UTC).date().isoformat(),
        "has_figure": found.figure is not None,
    }
    if found.figure is not None:
        found.figure.savefig(to / f"{name}.png", dpi=_DOTS, metadata={"Software": None})
    write_whole(to / f"{name}.md", table_page(result))
    write_whole(to / f"{name}.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
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
        *_body(result, image or f"{result['name']}.png"),
    ]
    return "\n".join(lines) + "\n"


def gallery_page(results: Iterable[Mapping[str, Any]], rows: Sequence[ListRow]) -> str:
    """Return the gallery as Markdown: an overview of all rows, then each result with its figure.

    Args:
        results: as kept in `results/`.
        rows: of `listed`.
    """
    by_name = {result["name"]: result for result in results}
    lines = [
        "# Gallery: the published figures beside ours",
        "",
        "Every figure and table of the papers whose methods this package implements, made by",
        "`nas-evidence reproduce NAME` in the short version. The numbers are in",
        "[benchmarks/reproduce/results](../../benchmarks/reproduce/results);",
        "`python benchmarks/gallery.py` makes this page from them.",
        "",
        "| paper | figure | script | status |",
        "|---|---|---|---|",
    ]
    for row in rows:
        name = f"`{row.name}`" if row.name else ""
        lines.append(f"| {row.paper} | {row.figure} | {name} | {_cell(row.status)} |")
    for paper, (title, _) in PAPERS.items():
        names = dict.fromkeys(r.name for r in rows if r.paper == paper and r.name in by_name)
        if not names:
            continue
        lines += ["", f"## {paper}: {title}"]
        for name in names:
            one = by_name[name]
            lines += ["", f"### {one['figure']}: {one['title']}", ""]
            lines += _body(one, f"../images/reproduce/{name}.png")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------------------------------


def _body(result: Mapping[str, Any], image: str) -> list[str]:
    lines = [f"Claim: {result['claim']}", ""]
    if result["has_figure"]:
        lines += [f"![{result['title']}]({image})", ""]
    lines += [
        f"**{result['verdict']}**: {result['why']}",
        "",
        "| what | published | ours | spread | why they differ |",
        "|---|---|---|---|---|",
    ]
    keys = ("what", "published", "ours", "spread", "why")
    lines += ["| " + " | ".join(_cell(row[k]) for k in keys) + " |" for row in result["rows"]]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    how = f"`{result['name']}`, {result['size']} version, {result['processor_seconds']:g} seconds"
    return [*lines, "", f"{how} of processor time; {result['hardware']}; {versions}."]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _read(path: Path) -> Script:
    tree = ast.parse(path.read_text("utf-8"))
    values: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in (*_CONSTANTS, "GPU_HOURS"):
                values[name] = ast.literal_eval(node.value)
    for name, kind in _CONSTANTS.items():
        if not isinstance(values.get(name), kind):
            raise ValueError(f"{path.name} must have {name}, but has {values.get(name)!r}.")
    figures = tuple(values["FIGURE"].split(", "))
    known = PAPERS.get(values["PAPER"], ("", ()))[1]
    for figure in figures:
        if figure not in known:
            raise ValueError(f"{path.name}: {values['PAPER']} has no figure or table '{figure}'.")
    runs = any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body)
    if not runs and not isinstance(values.get("GPU_HOURS"), int | float):
        raise ValueError(f"{path.name} must have a function `run`, or GPU_HOURS.")
    return Script(
        path.stem, path, values["PAPER"], figures, values["TITLE"], values["CLAIM"],
        values["NEEDS"], float(values["FULL_HOURS"]), values.get("GPU_HOURS"), runs,
    )  # fmt: skip


def _order(script: Script) -> tuple[str, int, str]:
    figures = PAPERS[script.paper][1]
    return script.paper, min(figures.index(figure) for figure in script.figures), script.name


def _status(script: Script, result: Mapping[str, Any] | None) -> str:
    if result is not None:
        verdict = str(result["verdict"])
        return verdict if verdict == "reproduced" else f"{verdict}: {result['why']}"
    if script.runs:
        return "not yet run"
    return f"needs a GPU: {script.gpu_hours:g} hours"


def _imported(script: Script) -> types.ModuleType:
    """Import a script as a member of a package of all scripts of its folder."""
    make_importable(script.path.parent)
    return importlib.import_module(f"{_ROOM}.{script.name}")


def make_importable(folder: Path) -> None:
    """Make the scripts of a folder a package, the only one of its name."""
    room = sys.modules.get(_ROOM)
    if room is None or list(room.__path__) != [str(folder)]:
        for name in [n for n in sys.modules if n.partition(".")[0] == _ROOM]:
            del sys.modules[name]
        room = types.ModuleType(_ROOM)
        room.__path__ = [str(folder)]
        sys.modules[_ROOM] = room


def _hardware() -> str:
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch and torch.cuda.is_available() else "no GPU"
    used = torch.get_num_threads() if torch else 1
    return f"{os.cpu_count()} {platform.machine()} cores, {used} thread(s) used, {gpu}"


def _versions() -> dict[str, str]:
    ours = {"nas-evidence": __version__, "python": platform.python_version()}
    return {**ours, **{name: version(name) for name in ("torch", "numpy")}}
