"""What a search shows while it runs: a line per trial, or one updated block in a notebook.

A script whose output goes to a file prints little: how the data were read, at most one line a
minute, and the answer.
"""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from html import escape
from typing import Any

from nas_evidence.api.runs import Audience, Run, left_out
from nas_evidence.plumbing.durations import duration, rough_duration
from nas_evidence.spec.domains import architecture_text, value_text
from nas_evidence.spec.record import (
    RACE_IDS,
    SliceReport,
    TrialRecord,
    TrialStatus,
    is_race,
    is_searched,
    ranks,
    stage_of,
    trial_of,
)
from nas_evidence.spec.study import (
    FAMILY_PARAMETERS,
    ArchitectureSpec,
    Assignment,
    StudySpec,
    is_plain,
)
from nas_evidence.workers.executor import Lost, Watcher

#: Maximum number of lines printed for successful trials where there is no live table.
MAX_LINES = 80
#: Seconds between two lines of a script.
_EVERY = 60.0


def audience_for(progress: bool | Audience | None) -> Audience:
    """Return who is told what happens.

    Args:
        progress: whether to show it; None for all of it on a terminal and in a notebook, and for
            a few lines elsewhere.
    """
    if isinstance(progress, Audience):
        return progress
    if progress is None and not is_watched():
        return _Script()
    return Audience() if progress is False else _Python(_in_notebook())


def is_watched() -> bool:
    """Tell whether somebody sees what is printed: on a terminal, or in a notebook."""
    return _on_terminal() or _in_notebook()


@dataclass
class _Python(Audience):
    notebook: bool

    def say(self, line: str) -> None:
        write(line)

    def watching(self, spec: StudySpec, n_done: int) -> AbstractContextManager[Watcher]:
        shown = NotebookProgress(spec, n_done, show=_display()) if self.notebook else None
        return nullcontext(shown or Progress(spec, n_done, say=write))


class _Script(Audience):
    """Nobody is there while the search runs."""

    def leads(self, line: str) -> None:
        write(line)

    def read(self, sentences: Sequence[str]) -> None:
        """Print how the data were read in one line."""
        write(f"data: {'. '.join(one[:1].upper() + one[1:] for one in sentences)}.")

    def watching(self, spec: StudySpec, n_done: int) -> AbstractContextManager[Watcher]:
        return nullcontext(ScriptProgress(spec, n_done))

    def ends(self, study: Any, run: Run, ran: bool) -> None:
        """Print the best architecture, and what the time has left out."""
        ranked = study._ranked()
        if (best := ranked.winner) is None:
            return  # an exception says why
        n, unit = len(ranked.ranking), ranked.objective_unit
        among = f"the best of {n} architectures" if n > 1 else "the only architecture"
        cut = left_out(study.spec, study.folder, run.limit)
        write(
            f"{study.place}: {best.architecture} (trial {best.trial_id}) is {among} by "
            f"{ranked.ranks_by}, {score_text(ranked.value(best))} {unit}".rstrip()
            + f"; time: {cut}" * bool(cut)
            + "; study.report() writes the page"
        )


def _on_terminal() -> bool:
    with suppress(ValueError, AttributeError):  # closed, or never there
        return sys.stdout.isatty()
    return False


def _in_notebook() -> bool:
    """Tell whether a kernel runs this code; to have imported one is not enough."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def write(line: str) -> None:
    """Print a line at once, if there is still somebody to read it."""
    with suppress(OSError, ValueError, AttributeError):  # broken, closed, or never there
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def score_text(value: float | None) -> str:
    """Return a score as text, or a dash; a number of four to seven digits is whole.

    >>> score_text(0.12345), score_text(86270.4), score_text(1.5e8), score_text(None)
    ('0.123', '86270', '1.5e+08', '-')
    """
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 1000 else number_text(value)


def number_text(value: float) -> str:
    """Return four leading digits, of a number of up to seven digits all before its point.

    >>> number_text(0.123456), number_text(-88642.7), number_text(1.5e8)
    ('0.1235', '-88643', '1.5e+08')
    """
    return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def size_text(architecture: ArchitectureSpec) -> str:
    """Return width/depth and all else that describes an architecture, or a dash.

    >>> size_text(ArchitectureSpec(family="own:Net", values={"width": 8, "rate": 0.25}))
    '8, rate 0.25'
    """
    family = architecture.family
    values = {k: v for k, v in architecture.values.items() if not is_plain(family, k, v)}
    if family in FAMILY_PARAMETERS:
        shape = str(values.pop("shape", "constant"))
        if shape != "constant":  # whatever depth and width
            return shape
    size = [values.pop(name) for name in ("width", "depth") if name in values]
    first = "/".join(map(value_text, size))
    others = (f"{name} {value_text(value)}" for name, value in values.items())
    return ", ".join(filter(None, (first, *others))) or "-"


@dataclass
class _Row:
    trial_id: int
    architecture: ArchitectureSpec
    started: float = field(default_factory=time.monotonic)
    epoch: int = 0
    score: float | None = None
    sotl: float | None = None
    outcome: str = ""
    seconds: float = 0.0


@dataclass
class Progress(Watcher):
    """The running study as it is shown; a watcher of the driver.

    `say` receives one line per event. `limit` returns the seconds that are left by a time limit.
    """

    study: StudySpec
    n_done: int
    say: Callable[[str], None] | None = None
    limit: Callable[[], float] = lambda: math.inf
    rows: dict[int, _Row] = field(default_factory=dict)
    finished: list[_Row] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def launched(self, assignment: Assignment) -> None:
        """Show a trial as running."""
        self.rows[assignment.trial_id] = _Row(assignment.trial_id, assignment.architecture)

    def progressed(self, report: SliceReport) -> None:
        """Show a trial's progress."""
        row = self.rows[report.trial_id]
        row.epoch, row.sotl = report.epoch, report.sotl
        row.score = report.scores.get(self.study.objective, row.score)

    def ended(self, record: TrialRecord) -> None:
        """Move a trial to the finished ones, and print a line."""
        row = self.rows.pop(record.trial_id, _Row(record.trial_id, record.architecture))
        self.n_done += is_searched(record.trial_id)
        row.seconds = record.total_seconds
        row.outcome, row.epoch = str(record.status), record.epochs
        estimate = record.final_estimate(self.study.objective)
        if estimate is not None and estimate.valid:
            row.score = estimate.value if estimate.per_datum is None else estimate.per_datum
        self.finished.append(row)
        # In a long study print every k-th line, but every failure.
        stride = math.ceil(self.study.n_trials / MAX_LINES)
        worth_saying = self.n_done % stride == 0 or record.status is not TrialStatus.COMPLETE
        if self.say and worth_saying:
            self.say(self._line(row, record))

    def parked(self, trial_id: int) -> None:
        """Show a trial as off its worker; it continues later."""
        self.rows.pop(trial_id, None)

    def lost(self, loss: Lost) -> None:
        """Print that an attempt was lost and that the trial is retried."""
        self.rows.pop(loss.trial_id, None)
        if self.say:
            self.say(f"trial {loss.trial_id} attempt {loss.attempt} lost ({loss.cause}); retrying")

    def _line(self, row: _Row, record: TrialRecord) -> str:
        if record.status is TrialStatus.COMPLETE:
            scored = f"{self.study.objective}={score_text(row.score)}"
            result = scored if ranks(record.trial_id) else "trained on all rows"
        else:
            result = record.cause
        left = self.left()
        end = f", {left}" if left else ""
        place = self.place(record.trial_id) or f"{self.n_done}/{self.study.n_trials}"
        name = architecture_text(row.architecture.family, row.architecture.values)
        return (
            f"[{place}] trial {trial_of(row.trial_id)} ({name}) {record.status}, {result} "
            f"({duration(record.total_seconds)}{end})"
        )

    def parts(self) -> list[str]:
        """Return what is done, the time left, and the best of this run, in words."""
        raced = sum(is_race(row.trial_id) for row in self.finished)
        race = f" and {raced} in the race" if raced else ""
        parts = [f"{self.study.name}: {self.n_done} of {self.study.n_trials} trials{race}"]
        if (seconds := self.expected_seconds()) and self.n_done < self.study.n_trials:
            parts.append(f"{rough_duration(seconds)} left")
        ranked = [
            r for r in self.finished if r.outcome == TrialStatus.COMPLETE and r.score is not None
        ]
        if best := max(ranked, key=lambda row: row.score or 0, default=None):
            parts.append(f"best {best.architecture}, {self.study.objective} {best.score:.4g}")
        return parts

    def place(self, trial_id: int) -> str:
        """Return what a trial after the search is for, "" for one of the search."""
        from nas_evidence.driver.race import budget_of

        if not is_race(trial_id):
            return "" if ranks(trial_id) else "a finalist on all rows"
        return f"retraining the best, {trial_id - RACE_IDS + 1} of at most {budget_of(self.study)}"

    def left(self) -> str:
        """Return the time left in words, "" before the first trial has ended.

        The race of the finalists ends when its best is sure, so its end is known only at most.
        """
        seconds = self.expected_seconds()
        if seconds is None:
            return ""
        return f"{'at most ' * bool(self.study.n_finalists and seconds)}{duration(seconds)} left"

    def expected_seconds(self) -> float | None:
        """Return the seconds left at the current pace, those of the race included.

        None before the first trial has ended.
        """
        if not self.finished:
            return None
        from nas_evidence.driver.race import after_search

        ended = Counter(stage_of(row.trial_id) for row in self.finished)
        left = max(0, self.study.n_trials - self.n_done)
        left += sum(max(0, n - ended[stage]) for stage, n in after_search(self.study).items())
        elapsed = time.monotonic() - self.started
        return max(0.0, min(self.limit(), elapsed / len(self.finished) * left))


@dataclass
class ScriptProgress(Progress):
    """Prints at most one line a minute.

    `tell` prints a line; `clock` returns seconds.
    """

    tell: Callable[[str], None] = write
    clock: Callable[[], float] = time.monotonic
    told: float = field(init=False)

    def __post_init__(self) -> None:
        self.told = self.clock()

    def progressed(self, report: SliceReport) -> None:
        """Print a line if it is time."""
        super().progressed(report)
        self._tell_in_time()

    def ended(self, record: TrialRecord) -> None:
        """Print a line if it is time."""
        super().ended(record)
        self._tell_in_time()

    def _tell_in_time(self) -> None:
        if (now := self.clock()) - self.told >= _EVERY:
            self.told = now
            self.tell(", ".join(self.parts()))


@dataclass
class NotebookProgress(Progress):
    """Keeps one block of a notebook up to date: progress, time left, the best of this run.

    `show` shows HTML in place of what it showed before.
    """

    show: Callable[[str], None] = field(kw_only=True)

    def __post_init__(self) -> None:
        self.show(self.html())

    def ended(self, record: TrialRecord) -> None:
        """Show the trial that ended."""
        super().ended(record)
        self.show(self.html())

    def html(self) -> str:
        """Return the block as HTML."""
        n, total = self.n_done, self.study.n_trials
        parts = self.parts()
        if self.finished:
            last = self.finished[-1]
            parts.append(f"last {last.architecture} {last.outcome}")
        said = " · ".join(map(escape, parts))
        bar = f'<progress max="{total}" value="{min(n, total)}" style="width: 20em"></progress>'
        return f"<div>{bar}<br>{said}</div>"


def _display() -> Callable[[str], None]:
    """Return a function that shows HTML in the cell that runs, each time in the same place."""
    from IPython.display import HTML, display

    handle: list[Any] = []

    def show(html: str) -> None:
        if handle:
            handle[0].update(HTML(html))
        else:
            handle.append(display(HTML(html), display_id=True))

    return show
