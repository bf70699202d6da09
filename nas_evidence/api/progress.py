"""What a search in Python shows while it runs: lines, or one updated block in a notebook."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from html import escape
from typing import Any

from nas_evidence.api.python_words import in_python
from nas_evidence.api.runs import Audience
from nas_evidence.plumbing.durations import rough_duration
from nas_evidence.spec.record import TrialRecord, is_race
from nas_evidence.spec.study import StudySpec
from nas_evidence.workers.executor import Watcher


def audience_for(progress: bool | Audience | None) -> Audience:
    """Return who is told what happens.

    Args:
        progress: whether to show it; None for on a terminal and in a notebook.
    """
    if isinstance(progress, Audience):
        return progress
    notebook = _in_notebook()
    if not (sys.stdout.isatty() or notebook if progress is None else progress):
        return Audience()

    def watching(spec: StudySpec, n_done: int) -> "AbstractContextManager[Watcher]":
        if notebook:
            return nullcontext(Block(spec, n_done, _display()))
        return nullcontext(Lines(spec, n_done))

    return Audience(say=write, watching=watching)


def _in_notebook() -> bool:
    """Tell whether a kernel runs this code; to have imported one is not enough."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def write(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{in_python(line)}\n")
    sys.stdout.flush()


class Lines(Watcher):
    """A watcher that prints one line per finished trial."""

    def __init__(self, study: StudySpec, n_done: int) -> None:
        self.study, self.n_done = study, n_done

    def ended(self, record: TrialRecord) -> None:
        """Print how a trial ended."""
        self.n_done += 1
        value = _objective(self.study, record)
        score = "" if value is None else f" {self.study.objective}={value:.4g}"
        write(
            f"[{self.n_done}/{self.study.n_trials}] {record.architecture} {record.status}{score}"
        )


class Block(Watcher):
    """A watcher that keeps one block of a notebook up to date: progress, time left, the best.

    Args:
        study: what runs.
        n_done: trials that had finished before.
        show: shows HTML in place of what it showed before.
    """

    def __init__(self, study: StudySpec, n_done: int, show: Callable[[str], None]) -> None:
        self.study, self.n_done, self._before, self._show = study, n_done, n_done, show
        self._started = time.monotonic()
        self._best: tuple[float, str] | None = None
        self._last = ""
        show(self.html())

    def ended(self, record: TrialRecord) -> None:
        """Show the trial that ended, and the best of this run."""
        self.n_done += not is_race(record.trial_id)
        value = _objective(self.study, record)
        if value is not None and (self._best is None or value > self._best[0]):
            self._best = value, str(record.architecture)
        self._last = f"{record.architecture} {record.status.value}"
        self._show(self.html())

    def html(self) -> str:
        """Return the block as HTML."""
        n, total = self.n_done, self.study.n_trials
        parts = [f"{escape(self.study.name)}: {n} of {total} trials"]
        if self._before < n < total:
            seconds = (time.monotonic() - self._started) / (n - self._before) * (total - n)
            parts.append(f"{rough_duration(seconds)} left")
        if self._best is not None:
            value, architecture = self._best
            parts.append(f"best {escape(architecture)}, {self.study.objective} {value:.4g}")
        if self._last:
            parts.append(f"last {escape(self._last)}")
        bar = f'<progress max="{total}" value="{min(n, total)}" style="width: 20em"></progress>'
        return f"<div>{bar}<br>{' · '.join(parts)}</div>"


def _objective(study: StudySpec, record: TrialRecord) -> float | None:
    """Return the objective of a trial as it is shown, None if it has no valid one."""
    estimate = record.final_estimate(study.objective)
    if estimate is None or not estimate.valid:
        return None
    return estimate.value if estimate.per_datum is None else estimate.per_datum


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
