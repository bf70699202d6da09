"""Keep the report of a running study up to date: rebuild it when its tables change."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from time import sleep as wait

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.reporting.page import ReportPaths, build_report
from nas_evidence.spec.record import n_searched
from nas_evidence.storage.study_folder import read_study
from nas_evidence.storage.tables import TABLES, read_table

#: The state of a folder: its result files with their times and sizes.
Stamp = frozenset[tuple[str, int, int]]


def watch(
    folder: Path,
    *,
    is_over: Callable[[], bool] | None = None,
    every_seconds: float,
    build: Callable[..., ReportPaths] = build_report,
    clock: Callable[[], float] = monotonic,
    sleep: Callable[[float], None] = wait,
) -> Iterator[ReportPaths]:
    """Build the report now, and again whenever a result arrives, until the study ends.

    Yields after each build. While the study runs an open page reloads itself; the last page, of
    the finished study, does not. Waits if the folder has no results yet.

    Args:
        folder: the study folder.
        is_over: returns whether no more results will come; by default, whether all trials of the
            study have finished.
        every_seconds: least time between the starts of two builds.
        build: writes the report; takes the folder and `reload_seconds`.
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
    built: Stamp | None = None
    while True:
        started, last = (
            clock(),
            over(),
        )  # checked before reading, so that later results are read again
        found = stamp(folder)
        if last or found != built:
            reload_seconds = None if last else max(1, round(every_seconds))
            yield build(folder, reload_seconds=reload_seconds)
            built = found
        if last:
            return
        sleep(max(0.0, every_seconds - (clock() - started)))


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
