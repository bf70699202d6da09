"""Stored trials that run again: their tables are torn, or the user asks for it.

A stored attempt is never changed. The trial gets another attempt, and the readers of `tables.py`
take the last one; so the history stays. The log holds each request with the attempt that is to be
superseded; it is void once a later attempt is stored.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.events import Again
from nas_evidence.storage.log import Log, Past, read_log
from nas_evidence.storage.set_aside import set_aside
from nas_evidence.storage.study_folder import locked
from nas_evidence.storage.tables import TrialRow, finished, take_stock

#: What may succeed when it runs again; the others are properties of the network.
_MAY_SUCCEED = (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY)


@dataclass(frozen=True)
class DoneTrials:
    """Which trials of a study are done, and what its log says.

    done  the rows of those that are
    redo  the last attempt of those that are stored and must run again
    torn  the damaged files
    past  of the log
    """

    done: dict[int, TrialRow]
    redo: dict[int, int]
    torn: tuple[Path, ...]
    past: Past

    @property
    def notes(self) -> list[str]:
        """Return a line about the torn files, if there are any."""
        if not self.torn:
            return []
        names = [f"{path.parent.name}/{path.name}" for path in self.torn]
        shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        ids = ", ".join(map(str, sorted(self.redo)))
        again = f"; these trials run again: {ids}" if self.redo else ""
        return [f"{len(names)} damaged files were moved to damaged/ ({shown}){again}."]


def find_done(folder: Path) -> DoneTrials:
    """Return which trials are done, and which must run again."""
    stock, past = take_stock(folder), read_log(folder)
    rows = stock.rows
    redo = {**stock.short, **past.state.redone({i: row.attempt for i, row in rows.items()})}
    torn = tuple(file.path for file in stock.unreadable if file.reason.startswith("damaged"))
    return DoneTrials({i: row for i, row in rows.items() if i not in redo}, redo, torn, past)


def ask_to_retry(folder: Path, which: Collection[int] | None) -> list[int]:
    """Ask for failed trials to run again, all or some; return their ids.

    Raises:
        ValueError: a trial has not failed.
    """
    rows = finished(folder)
    failed = sorted(i for i, row in rows.items() if row.status in _MAY_SUCCEED)
    chosen = failed if which is None else sorted(set(which))
    if wrong := [i for i in chosen if i not in failed]:
        state = rows[wrong[0]].status if wrong[0] in rows else "not finished"
        raise UserError(
            f"only failed trials can be retried, but trial {wrong[0]} is {state}; "
            f"failed: {', '.join(map(str, failed)) or 'none'}."
        ).with_code("retry-not-failed")
    with locked(folder), contextlib.closing(Log(folder)) as log:
        for i in chosen:
            log.write(Again(trial_id=i, attempt=rows[i].attempt), durable=True)
    return chosen


def set_aside_torn(folder: Path, finds: DoneTrials) -> None:
    """Move damaged Parquet files to `damaged/`."""
    for path in finds.torn:
        set_aside(folder, path.relative_to(folder).as_posix())
