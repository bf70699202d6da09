"""Stored trials that run again: their tables are torn, or the user asks for it.

A stored attempt is never changed. The trial gets another attempt, and the readers of `tables.py`
take the last one; so the history stays. `logs/retry.json`, sealed, holds the requests, each with
the attempt that is to be superseded; it survives a crash, and is void once a later attempt is
stored.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import DamagedError, read_sealed_json, sealed_json
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.set_aside import set_aside
from nas_evidence.storage.tables import TrialRow, finished, take_stock

#: The requests in a study folder.
RETRY = "logs/retry.json"
#: What may succeed when it runs again; the others are properties of the network.
_MAY_SUCCEED = (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY)


@dataclass(frozen=True)
class DoneTrials:
    """Which trials of a study are done.

    done  the rows of those that are
    redo  the last attempt of those that are stored and must run again
    torn  the damaged files
    """

    done: dict[int, TrialRow]
    redo: dict[int, int]
    torn: tuple[Path, ...]

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
    stock = take_stock(folder)
    asked = _asked(folder)
    rows = stock.rows
    redo = dict(stock.short)
    redo |= {i: rows[i].attempt for i in asked if i in rows and rows[i].attempt == asked[i]}
    torn = tuple(file.path for file in stock.unreadable if file.reason.startswith("damaged"))
    return DoneTrials({i: row for i, row in rows.items() if i not in redo}, redo, torn)


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
    asked = {**_asked(folder), **{i: rows[i].attempt for i in chosen}}
    (folder / "logs").mkdir(exist_ok=True)
    requests = {"attempts": {str(i): a for i, a in sorted(asked.items())}}
    write_whole(folder / RETRY, sealed_json(requests))
    return chosen


def set_aside_torn(folder: Path, finds: DoneTrials) -> None:
    """Move damaged Parquet files to `damaged/`."""
    for path in finds.torn:
        set_aside(folder, path.relative_to(folder).as_posix())


def _asked(folder: Path) -> dict[int, int]:
    path = folder / RETRY
    try:
        facts = read_sealed_json(path.read_bytes(), path)["attempts"]
        return {int(i): int(attempt) for i, attempt in facts.items()}
    except (OSError, DamagedError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # the driver sets a damaged one aside, and says so
