"""The report of a running study: what is under way, and a page that is written anew."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting.contents import Report, report_on
from nas_evidence.reporting.page import Live, ReportPaths, write_report
from nas_evidence.reporting.study_tables import architecture_text, ranked_study
from nas_evidence.spec.record import n_searched
from nas_evidence.storage.assignments import stored_assignments
from nas_evidence.storage.journal import events_since, journal_path
from nas_evidence.storage.study_folder import is_locked, read_lease, read_study
from nas_evidence.storage.tables import TABLES, read_study_tables, read_table

#: The state of a folder: its result files with their times and sizes.
Stamp = frozenset[tuple[str, int, int]]


@dataclass
class Attempt:
    """An attempt at a trial under way: its last epoch, and when it began, s since 1970."""

    attempt: int
    since: float
    epoch: int = 0


class Journaled:
    """What the journal says of a running study; `update` reads only what was written since.

    ended    the trials that ended, in that order
    running  the attempts under way, by trial
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._read = folder, 0
        self.ended: list[int] = []
        self.running: dict[int, Attempt] = {}

    def update(self) -> None:
        """Read what is new; all of a journal that was mended, and so is shorter."""
        path = journal_path(self._folder)
        if path.exists() and path.stat().st_size < self._read:
            self._read, self.ended, self.running = 0, [], {}
        events, self._read = events_since(self._folder, self._read)
        for event in events:
            kind, trial_id = event["event"], event.get("trial_id", -1)
            if kind == "launch":
                self.running[trial_id] = Attempt(event["attempt"], event["t"])
            elif kind == "report" and trial_id in self.running:
                self.running[trial_id].epoch = event["epoch"]
            elif kind in ("end", "park", "lost"):
                self.running.pop(trial_id, None)
            elif kind == "stop":
                self.running.clear()
            if kind == "end":
                self.ended.append(trial_id)


class LiveReport:
    """The report of a folder; facts are computed again only when results have come."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._journal = folder, Journaled(folder)
        self._stamp: Stamp | None = None
        self._report: Report | None = None
        self._shown: object = None

    def write(self, reload_seconds: int | None) -> ReportPaths | None:
        """Write the report, and return None if nothing has changed since the last time.

        An open page loads itself again every `reload_seconds`; the last one, without, is always
        written.
        """
        self._journal.update()
        now = stamp(self._folder)
        if self._report is None or now != self._stamp or reload_seconds is None:
            tables = read_study_tables(self._folder, ended=self._journal.ended)
            compared = read_comparison(self._folder)
            self._report = report_on(ranked_study(tables), compared, place=self._folder)
        live = reload_seconds and _live(self._folder, self._journal, reload_seconds)
        shown = now, live and [(one["trial"], one["epoch"]) for one in live.trials]
        if live and shown == self._shown:
            return None
        self._stamp, self._shown = now, shown
        return write_report(self._report, self._folder / "report", live=live or None)


def running_now(folder: Path, reload_seconds: int = 30) -> Live | None:
    """Return what is under way in a study, None while no process works on it."""
    if not is_locked(folder):
        return None
    journal = Journaled(folder)
    journal.update()
    return _live(folder, journal, reload_seconds)


def _live(folder: Path, journal: Journaled, reload_seconds: int) -> Live:
    """Return what is under way: nothing of a driver that was killed."""
    now = time.time()
    holder = read_lease(folder) if is_locked(folder) else None
    if holder is None:
        return Live(reload_seconds, now)
    trials = []
    for _, one in stored_assignments(folder):
        found = journal.running.get(one.trial_id) if one is not None else None
        if one is None or found is None or found.attempt != one.attempt:
            continue
        if found.since >= holder.since - 0.001:  # times of the journal are rounded
            words = architecture_text(one.architecture.family, one.architecture.values)
            trials.append({
                "trial": one.trial_id, "architecture": words, "epoch": found.epoch,
                "epochs": one.plan.epochs, "seconds": max(0.0, now - found.since),
                "attempt": found.attempt,
            })  # fmt: skip
    return Live(reload_seconds, now, str(holder), trials)


def watch(
    folder: Path,
    *,
    is_over: Callable[[], bool] | None = None,
    every_seconds: float,
    write: Callable[[int | None], ReportPaths | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[ReportPaths]:
    """Write the report now, and again whenever something changes, until the study ends.

    Yields each time. While the study runs an open page loads itself again; the last page, of the
    finished study, does not. Waits if the folder has no results yet, and at least as long as the
    last report took, so that reports take at most half of a CPU.

    Args:
        folder: the study folder.
        is_over: returns whether no more results will come; by default, whether all trials of the
            study have finished.
        every_seconds: least time between the starts of two reports.
        write: writes the report, if it has changed; by default that of a `LiveReport`.
        clock: returns the time in seconds.
        sleep: waits for a number of seconds.

    Raises:
        ValueError: `every_seconds` is not positive, or the folder holds no study file.
    """
    if every_seconds <= 0:
        raise UserError(
            f"the report is rebuilt every N > 0 seconds, but got {every_seconds:g}."
        ).with_code("rebuild-interval")
    over = is_over or (lambda: all_finished(folder))
    write = write or LiveReport(folder).write
    while True:
        # Whether it is over is checked before reading, so that later results are read again.
        started, last = clock(), over()
        if paths := write(None if last else max(1, round(every_seconds))):
            yield paths
        if last:
            return
        took = clock() - started
        sleep(max(every_seconds - took, took))


def stamp(folder: Path) -> Stamp:
    """Return the state of a study's results, to detect changes."""
    found = set()
    for table in TABLES:
        for path in (folder / table).glob("*.parquet"):
            try:
                state = path.stat()
            except FileNotFoundError:  # just merged into a larger file
                continue
            found.add((f"{table}/{path.name}", state.st_mtime_ns, state.st_size))
    return frozenset(found)


def all_finished(folder: Path) -> bool:
    """Return whether all trials of the search have finished."""
    study, trials = read_study(folder), read_table(folder, "trials")
    return n_searched(trials["trial_id"]) >= study.n_trials
