"""Text and tables on the two consoles defined here; the running study as a live table."""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from nas_evidence.api.progress import Progress, score_text, size_text
from nas_evidence.api.shared_options import flag_of
from nas_evidence.plumbing.durations import duration
from nas_evidence.plumbing.foreign_text import on_lines, on_one_line, shell_word
from nas_evidence.plumbing.masking import masked
from nas_evidence.reporting.words import words_of
from nas_evidence.spec.domains import ParameterValue, value_text
from nas_evidence.spec.likelihoods import TARGET_KINDS
from nas_evidence.spec.parameters import columns_of, searched_in
from nas_evidence.spec.record import is_race
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # these import pandas, which slows the start
    from nas_evidence.api.results import Study
    from nas_evidence.reporting.contents import Report
    from nas_evidence.reporting.study_tables import RankedArchitecture


#: An option of Python in what is said of data, its value as a word of a shell, and a key.
_OPTION = re.compile(
    r"(?:(?<=; )|(?<=, or )|(?<=If not, ))(categorical|numeric|drop|task|image_size)="
    r"""((?:'[^']*'|"[^"]*"|[^\s'";])+)(?= to |; |$)"""
)
_BOTH_DOORS = re.compile(r"\b[a-z_]+=(\S+) \((--[a-z-]+)\)")
_SETTING = re.compile(r"(; |\band )(?:set (?=\S+=\S+ to )|(?=plan\.\S+=))")


class _Literal(Console):
    """Prints names, paths and causes literally: no markup, no emoji, no control characters."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print what rich prints."""
        clean = masked if self.stderr else str  # what errors and notes quote may be of others
        shown = (on_lines(clean(o)) if isinstance(o, str) else o for o in objects)
        super().print(*shown, **how)


out, err = _Literal(), _Literal(stderr=True)


def as_typed(sentence: str) -> str:
    """Return how data were read with the options as the command line takes them.

    >>> as_typed("column 'a b' is left out: it is empty; categorical='a b' to keep")
    "column 'a b' is left out: it is empty; --categorical 'a b' to keep"
    >>> as_typed("ranked by: the score; set rank_by=score to change it")
    'ranked by: the score; --set rank_by=score to change it'
    >>> as_typed("rows: 9; test_fraction=0.2 (--test-fraction) splits off a test")
    'rows: 9; --test-fraction 0.2 splits off a test'
    """
    shown = _OPTION.sub(lambda found: f"{flag_of(found[1])} {found[2]}", sentence)
    shown = _BOTH_DOORS.sub(r"\2 \1", shown)
    return _SETTING.sub(r"\1--set ", shown)


def print_reading(sentences: Iterable[str]) -> None:
    """Print how data were read."""
    for sentence in sentences:
        out.print(as_typed(sentence))


def say_flaws(study: "Study") -> None:
    """Say what is missing of a study's results, and what was changed by hand in its file."""
    for line in study.missing:
        err.print(f"{line}; `{program()} verify` says more, `resume` runs it again")
    say_edits(study.folder)


def say_edits(folder: Path) -> None:
    """Say what was changed by hand in the study file of a folder, and may change."""
    from nas_evidence.storage.conditions import edits_of

    for edit in edits_of(folder):
        err.print(f"study.toml was edited, which `resume` takes: {edit}")


def program() -> str:
    """Return the command that runs this program: its name if on the path, else its location."""
    if shutil.which("nas-evidence") or not Path(sys.argv[0]).is_file():
        return "nas-evidence"
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m nas_evidence"
    path = Path(sys.argv[0]).absolute()
    return shell_word(
        str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    )


def typed(*words: object) -> str:
    """Return a command of this program as it can be typed, its words quoted for a shell."""
    return f"{program()} {' '.join(map(shell_word, words))}"


def print_foreign(text: str) -> None:
    """Print what a log or a job says: without its colours, and nothing that moves the cursor."""
    typer.echo(on_lines(masked(re.sub(r"\x1b\[[0-9;]*m", "", text))), nl=False)


def ranking_rows(
    ranking: "Sequence[RankedArchitecture]", study: StudySpec
) -> tuple[list[str], list[list[str]]]:
    """Return header and cells of the ranking, without columns that would be empty."""
    seeds = any(r.spread is not None for r in ranking)
    first: dict[str, Callable[[RankedArchitecture], object]] = {
        "rank": lambda r: r.rank,
        "trial": lambda r: r.trial_id,
        "family": lambda r: r.family,
    }
    columns: dict[str, Callable[[RankedArchitecture], object]] = {
        "parameters": lambda r: r.n_parameters,
        "estimate": lambda r: score_text(r.estimate),
        "error": lambda r: score_text(r.estimate_error),
        study.objective: lambda r: score_text(r.objective),
    }
    if seeds:
        columns["spread"] = lambda r: score_text(r.spread)
        columns["seeds"] = lambda r: len(r.trial_ids)
    for cost in study.minimise:
        columns[cost] = lambda r, cost=cost: _number_text(r.costs.get(cost))  # type: ignore[misc]
    if study.minimise:
        columns["front"] = lambda r: "yes" if r.on_front else "no"
    kind = study.plan.declared.kind
    for one in kind.tests[1:]:
        columns[words_of(one)] = lambda r, one=one: score_text(getattr(r, one))  # type: ignore[misc]
    columns[f"test {kind.metrics['log_loss']}"] = lambda r: score_text(r.test_nll_per_datum)
    columns["SOTL"] = lambda r: score_text(r.sotl)
    for name, column in _parameter_columns(study, {*first, *columns}).items():
        first[column] = lambda r, name=name: _value_text(r.values.get(name))  # type: ignore[misc]
    columns = first | columns
    cells = {name: [_text(cell(r)) for r in ranking] for name, cell in columns.items()}
    shown = [name for name in cells if name == study.objective or {*cells[name]} != {"-"}]
    return shown, [list(row) for row in zip(*map(cells.get, shown), strict=True)]


def _parameter_columns(study: StudySpec, others: Collection[str]) -> dict[str, str]:
    """Return the heading of each parameter that a table shows, by its name: `width` first."""
    names = sorted(searched_in(study), key=lambda name: ("width", "depth", name).index(name))
    return columns_of(names, others)


def trust_line(report: "Report") -> str:
    """Return one line on how far the ranking can be trusted; the report has the details."""
    said = f"trust:  {report.verdict}"
    free = report.free_scores_ahead(report.study.targets[0])
    if free and not report.verdict[0].isdigit():  # of too few architectures no order is told
        better = ", ".join(f"{score} {rho:.2f}" for score, rho in free.items())
        said += f" Scores that need no extra training order as well or better (rho): {better}."
    return said


def _value_text(value: ParameterValue | None) -> str | None:
    return None if value is None else value_text(value)


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1 else f"{value:.0f}"


class LiveTable(Progress):
    """The running study as a table, rendered anew twice a second."""

    def __rich__(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
        for name, justify in (
            ("trial", "right"),
            ("family", "left"),
            (self._size_heading(), "right"),
            ("epoch", "right"),
            (f"{self.study.objective} per datum", "right"),
            ("SOTL", "right"),
            ("elapsed", "right"),
            ("status", "left"),
        ):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for row in self.finished[-8:]:
            table.add_row(*self._cells(row, row.seconds), style="dim")
        for row in self.rows.values():
            table.add_row(*self._cells(row, time.monotonic() - row.started))
        end = self.left() or "estimating the end"
        elapsed = duration(time.monotonic() - self.started)
        raced = [row.trial_id for row in self.rows.values() if is_race(row.trial_id)]
        race = f"{self.retraining(max(raced))}, " if raced else ""
        head = Text(
            f"{self.study.name}: {self.n_done} of {self.study.n_trials} trials, {race}"
            f"{elapsed} elapsed, {end}   (Ctrl-C stops; nothing is lost)"
        )
        return Group(head, table)

    def _size_heading(self) -> str:
        usual = {*searched_in(self.study)} <= {"width", "depth", "shape"}
        return "width/depth" if usual else "architecture"

    def _cells(self, row: Any, seconds: float) -> tuple[str, ...]:
        return (
            str(row.trial_id),
            row.architecture.family,
            size_text(row.architecture),
            f"{row.epoch}/{self.study.plan.epochs}",
            score_text(row.score),
            score_text(row.sotl),
            duration(seconds),
            row.outcome or "running",
        )


#: Columns that a narrow terminal leaves out, first to go first; a pipe has all.
_DISPENSABLE = (
    "SOTL",
    "error",
    "standard error",
    "valid",
    "parameters",
    "seeds",
    "spread",
    *(f"test {kind.metrics['log_loss']}" for kind in TARGET_KINDS.values()),
)


def print_rows(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    dispensable: Sequence[str] = (),
) -> None:
    """Print a table on a terminal, or tab-separated text to a pipe.

    On a narrow terminal some columns are left out, so that no cell is cut; after all others those
    that are `dispensable`, the last of them first.
    """
    rows = [[on_one_line(cell) for cell in row] for row in rows]
    header = [on_one_line(name) for name in header]
    if not rows:
        return
    if not out.is_terminal:
        for row in (header, *rows):
            print("\t".join(row))  # noqa: T201
        return
    shown = columns_that_fit(header, rows, out.width, dispensable)
    full = (max(len(header[i]), *(len(row[i]) for row in rows)) + 2 for i in shown)
    wide = sum(full) <= out.width
    table = Table(title=on_one_line(title), title_justify="left", box=None, header_style="bold")
    for i in shown:
        left = header[i] in ("family", "note", "score")
        title = header[i] if wide else header[i].replace(" ", "\n")  # else a word is broken
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    out.print(table)
    if missing := [name for i, name in enumerate(header) if i not in shown]:
        out.print(f"({', '.join(missing)}: in a wider terminal, or through a pipe)")


def columns_that_fit(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    dispensable: Sequence[str] = (),
) -> list[int]:
    """Return which columns to show in `width` characters; two of space lie between columns.

    A heading may break at a blank.

    >>> columns_that_fit(["rank", "SOTL"], [["1", "0.123456789"]], 12)
    [0]
    """
    needed = [
        max(*(len(word) for word in name.split()), *(len(row[i]) for row in rows))
        for i, name in enumerate(header)
    ]
    shown = list(range(len(header)))
    for name in (*_DISPENSABLE, *reversed(dispensable)):
        if sum(needed[i] + 2 for i in shown) <= width:
            break
        shown = [i for i in shown if header[i] != name]
    return shown


def print_line(name: str, value: object) -> None:
    """Print a name and its value, for a terminal or a pipe."""
    if out.is_terminal:
        out.print(Text(f"{name:20}", "bold"), value)
    else:  # without rich, which turns tabs into spaces
        print(f"{name}\t{on_one_line(value)}")  # noqa: T201


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=1, default=str))  # noqa: T201


def counted(n: int, noun: str, of: str = "") -> str:
    """Return a number with its noun: "1 trial", "12 trials", "12 of 24 trials"."""
    return f"{n}{of} {noun}" if n == 1 and not of else f"{n}{of} {noun}s"


def statistic_text(cell: object) -> str:
    """Return a cell of a table of statistics."""
    if cell is None:
        return "undefined"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)
