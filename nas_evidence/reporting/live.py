"""The report of a running study: what is under way, and a page that is written anew."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nas_evidence.baselines.comparison import read_comparison
from nas_evidence.driver.status import study_status
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting.contents import Report, report_on
from nas_evidence.reporting.page import Live, ReportPaths, write_report
from nas_evidence.reporting.study_tables import ranked_study
from nas_evidence.spec.domains import architecture_text
from nas_evidence.storage.checkpoint_losses import last_checkpoint, losses_so_far
from nas_evidence.storage.events import AttemptLost, Began, Ended, Launched, Parked, Stopped
from nas_evidence.storage.kept_how_read import read_how_read
from nas_evidence.storage.kept_origin import read_origin
from nas_evidence.storage.log import ReadLog, events_since
from nas_evidence.storage.state import State
from nas_evidence.storage.study_folder import holder_of, is_locked, read_study
from nas_evidence.storage.tables import Stamp, read_study_tables, stamp

#: Returns epoch and training loss of a trial under way, by the path of its last checkpoint.
Losses = Callable[[Path], list[tuple[int, float]]]


class Followed:
    """The log of a running study; `update` reads only what was written since.

    began  when the last attempt of each trial on a worker began, s since 1970
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._past = folder, ReadLog()
        self.began: dict[int, float] = {}

    @property
    def state(self) -> State:
        """What its lines amount to."""
        return self._past.state

    def update(self) -> None:
        """Read what is new, or all of a log that was mended."""
        events, past = events_since(self._folder, self._past)
        if past is not self._past:
            self._past, self.began = past, {}
        for t, event in events:
            match event:
                case Launched():
                    self.began[event.trial_id] = t
                case Parked() | AttemptLost():
                    self.began.pop(event.trial_id, None)
                case Ended():
                    self.began.pop(event.row.trial_id, None)
                case Began() | Stopped():
                    self.began.clear()


class LiveReport:
    """The report of a folder; facts are computed again only when results have come."""

    def __init__(self, folder: Path, losses: Losses = losses_so_far) -> None:
        self._folder, self._log, self._losses = folder, Followed(folder), losses
        self._stamp: Stamp | None = None
        self._report: Report | None = None
        self._shown: object = None

    def write(self, reload_seconds: int | None) -> ReportPaths | None:
        """Write the report, and return None if nothing has changed since the last time.

        An open page loads itself again every `reload_seconds`; the last one, without, is always
        written.
        """
        self._log.update()
        now = stamp(self._folder)
        if self._report is None or now != self._stamp or reload_seconds is None:
            tables = read_study_tables(self._folder, state=self._log.state)
            compared = read_comparison(self._folder)
            self._report = report_on(
                ranked_study(tables), compared, place=self._folder,
                how_read=read_how_read(self._folder), refit_of=read_origin(self._folder),
            )  # fmt: skip
        live = reload_seconds and _live(self._folder, self._log, reload_seconds, self._losses)
        under_way = live and [(one["trial"], one["epoch"]) for one in live.trials]
        shown = now, under_way, live and live.waits_for
        if live and shown == self._shown:
            return None
        self._stamp, self._shown = now, shown
        return write_report(self._report, self._folder / "report", live=live or None)


def running_now(folder: Path, *, losses: Losses) -> Live | None:
    """Return what is under way in a study; None if no other process works on it."""
    holder = holder_of(folder)
    if not is_locked(folder) or (holder is not None and holder.is_me):
        return None
    log = Followed(folder)
    log.update()
    return _live(folder, log, 30, losses)


def _live(folder: Path, log: Followed, reload_seconds: int, losses: Losses) -> Live:
    now = time.time()
    holder = holder_of(folder) if is_locked(folder) else None
    if holder is None:
        return Live(reload_seconds, now)
    study = read_study(folder)
    trials = []
    for trial_id, since in sorted(log.began.items()):
        one = log.state.architecture(trial_id, study.replicates)
        trials.append({
            "trial": trial_id, "architecture": architecture_text(one.family, one.values),
            **_progress(folder, trial_id, losses), "epochs": study.plan.epochs,
            "family": one.family, "seconds": max(0.0, now - since),
            "attempt": log.state.under_way[trial_id],
        })  # fmt: skip
    return Live(reload_seconds, now, str(holder), trials, holder.waits_for)


def _progress(folder: Path, trial_id: int, losses: Losses) -> dict[str, object]:
    """Return the epoch of the last checkpoint of a trial and its losses until then."""
    found = last_checkpoint(folder / "checkpoints" / f"{trial_id:06d}")
    if found is None:
        return {"epoch": 0, "losses": []}
    epoch, path = found
    return {"epoch": epoch, "losses": losses(path)}


def watch(
    folder: Path,
    *,
    is_over: Callable[[], bool] | None = None,
    every_seconds: float,
    write: Callable[[int | None], ReportPaths | None] | None = None,
    losses: Losses = losses_so_far,
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
        losses: reads the curves of the trials under way for it.
        clock: returns the time in seconds.
        sleep: waits for a number of seconds.

    Raises:
        ValueError: `every_seconds` is not positive, or the folder holds no study file.
    """
    if every_seconds <= 0:
        raise UserError(
            "rebuild-interval",
            f"the report is rebuilt every N > 0 seconds, but got {every_seconds:g}.",
        )
    over = is_over or (lambda: study_status(folder).state == "finished")
    write = write or LiveReport(folder, losses).write
    while True:
        # Whether it is over is checked before reading, so that later results are read again.
        started, last = clock(), over()
        if paths := write(None if last else max(1, round(every_seconds))):
            yield paths
        if last:
            return
        took = clock() - started
        sleep(max(every_seconds - took, took))
