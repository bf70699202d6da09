"""Measures the cells of a case that its file lacks, and stores each when it has ended.

    python -m benchmarks.run                    the cases, and how many of their cells are measured
    python -m benchmarks.run CASE [--only KEY=VALUE[,VALUE...] ...] [--limit N] [--quick]
                                  [--data DIR] [--to DIR]

A cell is named by its keys, as data set, method and seed. A row of the CSV has the keys, the
measures, and where they were measured: commit, day, load, machine and versions. The same command
goes on where the last one stopped. A cell that fails is told and stays empty; the others run.
`--quick` measures the least of each cell, and stores it in a folder of its own.
"""

import argparse
import csv
import importlib
import itertools
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "ranking")]

from _common import RESULTS, commit, hardware, versions

#: What a cell or a row of results says, by the name of the column.
Row = Mapping[str, Any]
#: Module that has the case of a name, in its own `CASES`.
MODULES = {
    "tables": "tables",
    "worth": "worth",
    "claims_folds": "claims_folds",
    "claims": "claims_sentences",
    "cost_cells": "cost_of_training",
    "together": "cost_of_training",
    "passes": "cost_of_curvature",
    "posteriors": "cost_of_curvature",
    **dict.fromkeys(
        ("ray_slices", "first_report", "no_ops", "beside", "small_searches", "forecast", "grids",
         "grid_plans", "folder", "store", "sweep"), "cost_of_service",
    ),
}  # fmt: skip


@dataclass
class Given:
    """What a measurement is given beside its cell.

    data     the folder of the data
    quick    measure the least
    to       the folder of the results
    rows     stored so far, by cell; of this case alone
    """

    data: Path = Path()
    quick: bool = False
    to: Path = RESULTS
    rows: dict[tuple[str, ...], Row] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A question and its cells.

    keys      columns that name a cell
    cells     returns all cells, in the order in which they are measured
    measure   returns the measures of a cell; or rows with keys where one run gives several cells
    file      below the folder of the results, of a cell
    alone     measure each cell in a process of its own
    packages  whose versions are stored
    """

    keys: tuple[str, ...]
    cells: Callable[[], Iterable[Row]]
    measure: Callable[[Row, Given], Row | Sequence[Row]]
    file: Callable[[Row], str]
    alone: bool = False
    packages: tuple[str, ...] = ("torch", "numpy")

    def key(self, row: Row) -> tuple[str, ...]:
        """Return the cell of a row."""
        return tuple(_text(row[name]) for name in self.keys)


def cells_of(keys: Iterable[str], *values: Iterable[Any]) -> Callable[[], list[Row]]:
    """Return what returns the cells of all combinations; the last key changes fastest."""
    names, parts = tuple(keys), [tuple(part) for part in values]
    return lambda: [dict(zip(names, one, strict=True)) for one in itertools.product(*parts)]


def stored(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file of results, none if it is not there; texts as they are."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file, all at once; it is written anew if they have columns that it lacks.

    Floats have six digits; what is no text or number is JSON.
    """
    said = [{name: _text(value) for name, value in row.items()} for row in rows]
    before = stored(path)
    columns = list(dict.fromkeys(name for row in (*before[:1], *said) for name in row))
    wider = bool(before) and columns != list(before[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new") if wider else path
    with new.open("w" if wider else "a", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        if file.tell() == 0:
            out.writeheader()
        out.writerows([*before, *said] if wider else said)
    new.replace(path)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return str(float(f"{value:.6g}"))
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | Mapping | list | tuple) else str(value)


def measure(case: Case, cells: Iterable[Row], given: Given, limit: int | None = None) -> list[str]:
    """Measure the cells that are missing, store each, and return what failed.

    Args:
        case: whose cells they are.
        cells: in order.
        given: for the measurements; its rows are filled.
        limit: number of cells to measure.
    """
    failed: list[str] = []
    place = {"commit": commit(), "setting": "; ".join((hardware(), *_said(case.packages)))}
    for path, own in itertools.groupby(cells, lambda cell: given.to / case.file(cell)):
        given.rows = {case.key(row): row for row in stored(path)}
        for cell in own:
            if case.key(cell) in given.rows or limit == 0:
                continue
            load = f"{os.getloadavg()[0]:.1f}"
            try:
                found = (
                    alone(case.measure, cell, given) if case.alone else case.measure(cell, given)
                )
            except Exception as error:  # the cell stays empty, and the others run
                failed.append(f"{_name(case, cell)}: {type(error).__name__}: {error}")
                print(failed[-1], flush=True)
                continue
            limit = None if limit is None else limit - 1
            rows = [found] if isinstance(found, Mapping) else found
            around = {"day": time.strftime("%Y-%m-%d"), "load": load}
            rows = [{**cell, **row, **place, **around} for row in rows]
            append(path, rows)
            given.rows |= {case.key(row): {k: _text(v) for k, v in row.items()} for row in rows}
            for row in rows:
                print(_name(case, row), json.dumps(_measures(case, row)), flush=True)
    return failed


def alone(call: Callable[..., Any], *given: Any) -> Any:
    """Return what a call returns in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, *given).result()


def _here(call: Callable[..., Any], *given: Any) -> Any:
    return call(*given)


def _said(packages: Sequence[str]) -> list[str]:
    return [f"{name} {version}" for name, version in versions(*packages).items()]


def _name(case: Case, row: Row) -> str:
    return " ".join(case.key(row))


def _measures(case: Case, row: Row) -> dict[str, Any]:
    around = {*case.keys, "commit", "day", "load", "setting"}
    return {name: value for name, value in row.items() if name not in around}


def case_of(name: str) -> Case:
    """Return a case, for which its module alone is imported."""
    found: Case = importlib.import_module(MODULES[name]).CASES[name]
    return found


def _chosen(case: Case, only: Sequence[str]) -> list[Row]:
    """Return the cells whose keys have the values asked for, each `KEY=VALUE[,VALUE...]`."""
    wanted = {name: values.split(",") for name, _, values in (one.partition("=") for one in only)}
    if unknown := set(wanted) - set(case.keys):
        raise SystemExit(f"--only takes {', '.join(case.keys)}, not {', '.join(sorted(unknown))}")
    return [cell for cell in case.cells()
            if all(_text(cell[name]) in values for name, values in wanted.items())]  # fmt: skip


def main() -> None:
    """Measure a case, or list all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="?", choices=list(MODULES))
    parser.add_argument("--only", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--limit", type=int, help="number of cells")
    parser.add_argument("--quick", action="store_true", help="the least of each cell")
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    os.environ["PYTHONWARNINGS"] = "ignore"  # of processes of their own
    warnings.filterwarnings("ignore")
    if asked.case is None:
        for name in MODULES:
            case = case_of(name)
            cells = list(case.cells())
            files = dict.fromkeys(RESULTS / case.file(cell) for cell in cells)
            done = {case.key(row) for path in files for row in stored(path)}
            print(f"{name}: {sum(case.key(c) in done for c in cells)} of {len(cells)} cells, "
                  f"by {', '.join(case.keys)}")  # fmt: skip
        return
    case, to = case_of(asked.case), asked.to or (tempfile.mkdtemp() if asked.quick else RESULTS)
    given = Given(asked.data.resolve(), asked.quick, Path(to).resolve())
    failed = measure(case, _chosen(case, asked.only), given, asked.limit)
    print(f"stored in {given.to}; {len(failed)} cells failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
