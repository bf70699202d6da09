"""How a study is shown: how its data were read, its ranking, and the trials as they run."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nas_evidence.api.progress import Progress, score_text, size_text
from nas_evidence.api.runs import Audience
from nas_evidence.api.shared_options import flag_of
from nas_evidence.cli.terminal import out
from nas_evidence.plumbing.durations import duration
from nas_evidence.reporting.words import words_of
from nas_evidence.spec.domains import value_text
from nas_evidence.spec.parameters import columns_of, searched_in
from nas_evidence.spec.record import trial_of
from nas_evidence.spec.study import StudySpec

if TYPE_CHECKING:  # these import pandas, which slows the start
    from nas_evidence.reporting.contents import Report
    from nas_evidence.reporting.study_tables import RankedArchitecture


#: An option of Python in what is said of data, its value as a word of a shell, and a key.
_OPTION = re.compile(
    r"(?:(?<=; )|(?<=, or )|(?<=If not, ))(categorical|numeric|drop|task|image_size)="
    r"""((?:'[^']*'|"[^"]*"|[^\s'";])+)(?= to |; |$)"""
)
_BOTH_DOORS = re.compile(r"\b[a-z_]+=(\S+) \((--[a-z-]+)\)")
_SETTING = re.compile(r"(; |\band )(?:set (?=\S+=\S+ to )|(?=plan\.\S+=))")


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


class Printed(Audience):
    """Prints what happens on the terminal."""

    def say(self, line: str) -> None:
        """Print one line of text."""
        out.print(line)

    def read(self, sentences: Sequence[str]) -> None:
        """Print how the data were read."""
        print_reading(sentences)

    def warn(self, line: str) -> None:
        """Print a warning."""
        out.print(f"warning: {line}")


def print_reading(sentences: Iterable[str]) -> None:
    """Print how data were read."""
    for sentence in sentences:
        out.print(as_typed(sentence))


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
    kind, test = study.plan.declared.kind, "test" if study.trains_whole else "fold"
    for one in kind.tests[1:]:
        name = words_of(one).replace("test", test)
        columns[name] = lambda r, one=one: score_text(getattr(r, one))  # type: ignore[misc]
    columns[f"{test} {kind.metrics['log_loss']}"] = lambda r: score_text(r.test_nll_per_datum)
    columns["SOTL"] = lambda r: score_text(r.sotl)
    # `width` and `depth` are first.
    names = sorted(searched_in(study), key=lambda name: ("width", "depth", name).index(name))
    for name, column in columns_of(names, {*first, *columns}).items():
        first[column] = lambda r, name=name: (  # type: ignore[misc]
            value_text(r.values[name]) if name in r.values else None
        )
    columns = first | columns
    cells = {name: [_text(cell(r)) for r in ranking] for name, cell in columns.items()}
    shown = [name for name in cells if name == study.objective or {*cells[name]} != {"-"}]
    return shown, [list(row) for row in zip(*map(cells.get, shown), strict=True)]


def trust_line(report: "Report") -> str:
    """Return one line on how far the ranking can be trusted; the report has the details."""
    said = f"trust:  {report.verdict}"
    free = report.free_scores_ahead(report.study.targets[0])
    if free and not report.verdict[0].isdigit():  # of too few architectures no order is told
        better = ", ".join(f"{score} {rho:.2f}" for score, rho in free.items())
        said += f" Scores that need no extra training order as well or better (rho): {better}."
    return said


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
        place = self.place(max(self.rows, default=0))
        race = f"{place}, " if place else ""
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
            str(trial_of(row.trial_id)),
            row.architecture.family,
            size_text(row.architecture),
            f"{row.epoch}/{self.study.plan.epochs}",
            score_text(row.score),
            score_text(row.sotl),
            duration(seconds),
            row.outcome or "running",
        )
