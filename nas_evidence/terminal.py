"""What a person sees of a running study: a live table, or one line an event.

Builds text and tables; `cli.py` prints them.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nas_evidence.record import SliceReport, TrialRecord, TrialStatus
from nas_evidence.service.executors import Lost
from nas_evidence.spec import ArchitectureSpec, Assignment, StudySpec

#: Lines of a study that goes well, where there is no live table.
MAX_LINES = 80


def duration(seconds: float) -> str:
    """Return a duration as a person writes it.

    >>> duration(42), duration(192), duration(7500)
    ('42 s', '3 min 12 s', '2 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def rough_duration(seconds: float) -> str:
    """Return a forecast as a person says it.

    >>> rough_duration(20), rough_duration(170), rough_duration(9000)
    ('less than a minute', 'about 3 min', 'about 2.5 h')
    """
    if seconds < 45:
        return "less than a minute"
    if seconds < 5400:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {seconds / 3600:.1f} h"


def score_text(value: float | None) -> str:
    """Return a score in four significant places, or a dash."""
    return "-" if value is None else f"{value:.4g}" if abs(value) >= 1000 else f"{value:.3f}"


def size_text(architecture: ArchitectureSpec) -> str:
    """Return width/depth, or what else the family is described by."""
    values = architecture.values
    if values.get("shape", "constant") != "constant":
        return str(values["shape"])
    width, depth = values.get("width"), values.get("depth")
    return f"{width}/{depth}" if width is not None else "-"


@dataclass
class _Row:
    assignment: Assignment
    started: float
    epoch: int = 0
    score: float | None = None
    sotl: float | None = None
    outcome: str = ""
    seconds: float = 0.0


@dataclass
class Progress:
    """The running study as the terminal shows it; a watcher of the driver.

    `say` receives one line an event; a live view renders this object instead.
    """

    study: StudySpec
    n_done: int
    say: Callable[[str], None] | None = None
    rows: dict[int, _Row] = field(default_factory=dict)
    finished: list[_Row] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def launched(self, assignment: Assignment) -> None:
        """Show a trial as running."""
        self.rows[assignment.trial_id] = _Row(assignment, time.monotonic())

    def progressed(self, report: SliceReport) -> None:
        """Show how far a trial is."""
        row = self.rows[report.trial_id]
        row.epoch, row.sotl = report.epoch, report.sotl
        row.score = report.scores.get(self.study.objective, row.score)

    def ended(self, record: TrialRecord) -> None:
        """Move a trial to those that are over, and say so."""
        row = self.rows.pop(record.trial_id)
        self.n_done += 1
        row.seconds = record.total_seconds
        row.outcome, row.epoch = str(record.status), record.epochs
        estimate = record.final_estimate(self.study.objective)
        if estimate is not None and estimate.valid:
            row.score = estimate.value if estimate.per_datum is None else estimate.per_datum
        self.finished.append(row)
        # Of a long study every k-th line is enough, but every failure has its own.
        stride = math.ceil(self.study.n_trials / MAX_LINES)
        worth_saying = self.n_done % stride == 0 or record.status is not TrialStatus.COMPLETE
        if self.say and worth_saying:
            self.say(self._line(row, record))

    def lost(self, loss: Lost) -> None:
        """Say that an attempt died and that the trial goes on."""
        self.rows.pop(loss.trial_id, None)
        if self.say:
            self.say(f"trial {loss.trial_id} attempt {loss.attempt} lost ({loss.cause}); again")

    def _line(self, row: _Row, record: TrialRecord) -> str:
        architecture = row.assignment.architecture
        if record.status is TrialStatus.COMPLETE:
            result = f"{self.study.objective}={score_text(row.score)}"
        else:
            result = record.cause
        left = self.expected_seconds()
        end = "" if left is None else f", {duration(left)} left"
        return (
            f"[{self.n_done}/{self.study.n_trials}] trial {record.trial_id} {architecture.family} "
            f"{size_text(architecture)} {record.status} {result} "
            f"({duration(record.total_seconds)}{end})"
        )

    def expected_seconds(self) -> float | None:
        """Return the seconds left, from the pace so far; None before the first trial is over."""
        if not self.finished:
            return None
        elapsed = time.monotonic() - self.started
        return elapsed / len(self.finished) * max(0, self.study.n_trials - self.n_done)

    def __rich__(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
        for name, justify in (
            ("trial", "right"),
            ("family", "left"),
            ("width/depth", "right"),
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
        left = self.expected_seconds()
        end = "estimating the end" if left is None else f"{duration(left)} left"
        elapsed = duration(time.monotonic() - self.started)
        head = Text(
            f"{self.study.name}: {self.n_done} of {self.study.n_trials} trials, "
            f"{elapsed} elapsed, {end}   (Ctrl-C stops; nothing is lost)"
        )
        return Group(head, table)

    def _cells(self, row: _Row, seconds: float) -> tuple[str, ...]:
        architecture = row.assignment.architecture
        return (
            str(row.assignment.trial_id),
            architecture.family,
            size_text(architecture),
            f"{row.epoch}/{self.study.plan.epochs}",
            score_text(row.score),
            score_text(row.sotl),
            duration(seconds),
            row.outcome or "running",
        )
