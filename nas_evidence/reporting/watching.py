"""Keep the report of a running study fresh: rebuild it when its tables have changed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from time import sleep as wait

from nas_evidence.codec import load_study
from nas_evidence.reporting.study import ReportPaths, build_report
from nas_evidence.store import TABLES, read_table

#: What changed in a folder: its result files with their times and sizes.
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
    """Build the report at once, and again whenever a result has come, until the study is over.

    Yields after each build. While the study runs an open page loads itself again; the last one,
    of the finished study, does not. A folder without any result yet is waited for.

    Args:
        folder: of the study.
        is_over: tells that no more results will come; by default, that as many trials are
            finished as the study has.
        every_seconds: from the start of one build to that of the next, at least.
        build: writes the report; takes the folder and `reload_seconds`.
        clock: in seconds.
        sleep: waits so many seconds.

    Raises:
        ValueError: `every_seconds` is not positive, or the folder holds no study file.
    """
    if every_seconds <= 0:
        raise ValueError(f"the report is rebuilt every N > 0 seconds, but got {every_seconds:g}.")
    over = is_over or (lambda: all_finished(folder))
    built: Stamp | None = None
    while True:
        started, last = clock(), over()  # asked before reading: what comes later is read again
        found = stamp(folder)
        if last or found != built:
            reload_seconds = None if last else max(1, round(every_seconds))
            yield build(folder, reload_seconds=reload_seconds)
            built = found
        if last:
            return
        sleep(max(0.0, every_seconds - (clock() - started)))


def stamp(folder: Path) -> Stamp:
    """Return what tells one state of a study's results from another."""
    found = set()
    for table in TABLES:
        for path in (folder / table).glob("*.parquet"):
            try:
                state = path.stat()
            except FileNotFoundError:  # joined into a larger file this very moment
                continue
            found.add((f"{table}/{path.name}", state.st_mtime_ns, state.st_size))
    return frozenset(found)


def all_finished(folder: Path) -> bool:
    """Return whether as many trials are finished as the study has."""
    return len(read_table(folder, "trials")) >= load_study(folder / "study.toml").n_trials
