"""Which trials of a study are done, and which stored ones run again.

The log says what is done and names the files. A trial runs again if one of its files is not as the
log says, or on request. A stored attempt is never changed: the trial gets another attempt, and the
readers of `tables.py` take the last one; so the history stays. Sound files that the log does not
name are adopted: it has lost their lines, or the process was killed before it wrote them.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialStatus
from nas_evidence.storage.conditions import hashes_of_conditions
from nas_evidence.storage.events import Again, Ended, Merged
from nas_evidence.storage.log import Log, ReadLog, read_log
from nas_evidence.storage.set_aside import set_aside
from nas_evidence.storage.state import Attempt, State, attempt_of, is_part
from nas_evidence.storage.study_folder import locked
from nas_evidence.storage.tables import (
    TABLES,
    file_digest,
    read_stem,
    rows_in,
    stems_in,
    strays,
    wrong_files,
)
from nas_evidence.storage.trial_row import TrialRow

#: What may succeed when it runs again; the others are properties of the network.
_MAY_SUCCEED = (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY)


@dataclass(frozen=True)
class Found:
    """Sound files that the log does not name.

    stem   their name without the ending
    rows   of the attempts in them
    files  digest of each, by table
    """

    stem: str
    rows: tuple[TrialRow, ...]
    files: Mapping[str, str]


@dataclass(frozen=True)
class DoneTrials:
    """Which trials of a study are done, and what its log says.

    done   the rows of those that are
    redo   the last attempt of those that are stored and must run again
    wrong  files that are not as the log says, or that cannot be read, each with the reason
    found  files that the log does not name, or names otherwise
    past   of the log
    against  where sound files contradict what the log says of a trial
    torn   rows of attempts that the log does not name and of which a table is damaged, by the name
           of their files; none where `trials` is
    """

    done: dict[int, TrialRow]
    redo: dict[int, int]
    wrong: Mapping[Path, str]
    found: tuple[Found, ...]
    past: ReadLog
    against: tuple[str, ...] = ()
    torn: Mapping[str, tuple[TrialRow, ...]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """Return a line about the damaged files, if there are any."""
        if not self.wrong:
            return []
        names = sorted(f"{path.parent.name}/{path.name}" for path in self.wrong)
        shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        ids = ", ".join(map(str, sorted(self.redo)))
        again = f"; these trials run again: {ids}" if self.redo else ""
        what = "files are" if len(names) > 1 else "file is"
        return [f"{len(names)} {what} damaged, moved to damaged/, or missing ({shown}){again}."]


def find_done(folder: Path) -> DoneTrials:
    """Return which trials are done, and which must run again."""
    past = read_log(folder)
    state = past.state
    wrong, conditions = wrong_files(folder, state), hashes_of_conditions(folder)
    otherwise = tuple(_otherwise(folder, state, wrong, conditions))
    bad_stems = {path.stem for path in wrong}
    lost = {attempt for attempt, stem in state.stems.items() if stem in bad_stems}
    unnamed, unread = _unnamed(folder, state, lost, conditions)
    found = otherwise + unnamed
    rows, redo = dict(state.rows), dict[int, int]()
    for row in (row for one in found for row in one.rows):
        if row.trial_id not in rows or rows[row.trial_id].attempt <= row.attempt:
            rows[row.trial_id] = row
    adopted = {(row.trial_id, row.attempt) for one in found for row in one.rows}
    for trial_id, row in rows.items():
        attempt = (trial_id, row.attempt)
        if state.again.get(trial_id) == row.attempt or attempt in lost - adopted:
            redo[trial_id] = row.attempt
    for path in unread:
        with contextlib.suppress(ValueError):  # an attempt that is stored and not sound
            trial_id, number = attempt_of(path.stem)
            if trial_id not in rows:
                redo[trial_id] = max(number, redo.get(trial_id, 0))
    done = {i: row for i, row in rows.items() if i not in redo}
    differing = (row for one in otherwise for row in one.rows if _contradicts(row, state))
    against = tuple(f"trial {row.trial_id} is another in trials/" for row in differing)
    without = {path.stem for path in unread if path.parent.name == "trials"}
    stems = {path.stem for path in unread}
    torn = {stem: () if stem in without else rows_in(folder, stem) for stem in stems}
    unread |= strays(folder, state)
    return DoneTrials(done, redo, {**wrong, **unread}, found, past, against, torn)


def adopt(log: Log, found: Collection[Found]) -> None:
    """Write the lines that a log lacks of sound files."""
    for one in sorted(found, key=lambda one: not is_part(one.stem)):
        files = {} if is_part(one.stem) else one.files
        for row in one.rows:
            if files or log.state.rows.get(row.trial_id) != row:
                log.write(Ended(row=row, files=files, recovered=True))
        if is_part(one.stem):
            attempts = tuple((row.trial_id, row.attempt) for row in one.rows)
            log.write(Merged(part=one.stem, files=one.files, attempts=attempts))


def to_retry(finds: DoneTrials, which: Collection[int] | None) -> dict[int, TrialRow]:
    """Return failed trials that are to run again, all or some, with their rows.

    Raises:
        ValueError: a trial has not failed.
    """
    rows = finds.done
    failed = sorted(i for i, row in rows.items() if row.status in _MAY_SUCCEED)
    chosen = failed if which is None else sorted(set(which))
    if wrong := [i for i in chosen if i not in failed]:
        state = rows[wrong[0]].status if wrong[0] in rows else "not finished"
        raise UserError(
            "retry-not-failed",
            f"only failed trials can be retried, but trial {wrong[0]} is {state}; "
            f"failed: {', '.join(map(str, failed)) or 'none'}.",
        )
    return {i: rows[i] for i in chosen}


def ask_to_retry(folder: Path, which: Collection[int] | None) -> list[int]:
    """Ask for failed trials to run again, all or some; return their ids.

    Raises:
        ValueError: a trial has not failed.
    """
    rows = to_retry(find_done(folder), which)
    with locked(folder), contextlib.closing(Log(folder)) as log:
        for i, row in rows.items():
            log.write(Again(trial_id=i, attempt=row.attempt), durable=True)
    return [*rows]


def set_aside_wrong(folder: Path, finds: DoneTrials) -> None:
    """Move damaged Parquet files to `damaged/`."""
    for path in finds.wrong:
        if path.exists():
            set_aside(folder, path.relative_to(folder).as_posix())


def _found(folder: Path, stem: str, rows: Sequence[TrialRow]) -> Found:
    digests: dict[str, str] = {t: file_digest(folder / t / f"{stem}.parquet") for t in TABLES}
    return Found(stem, tuple(rows), digests)


def _contradicts(row: TrialRow, state: State) -> bool:
    """Return whether a row in tables is not what the log says of the same attempt."""
    known = state.rows.get(row.trial_id)
    return known is None or (known.attempt == row.attempt and known != row)


def _otherwise(
    folder: Path, state: State, wrong: dict[Path, str], conditions: Collection[str]
) -> Iterator[Found]:
    """Take out of `wrong`, and yield, sound files whose digest is not the one in the log.

    Files of other trials or another study are none of these. Where only some of the four files
    have another digest, those with the digest in the log are right: the others count only if they
    have the row that the log has.
    """
    attempts: dict[str, set[Attempt]] = {}
    for attempt, stem in state.stems.items():
        attempts.setdefault(stem, set()).add(attempt)
    for stem in sorted({path.stem for path in wrong}):
        rows = read_stem(folder, stem, conditions=conditions, attempts=attempts.get(stem, ()))
        if isinstance(rows, dict):
            wrong |= {path: reason for path, reason in rows.items() if path in wrong}
            continue
        differing = {path.parent.name for path in wrong if path.stem == stem}
        same = all(state.rows.get(row.trial_id) == row for row in rows)
        if differing == {*TABLES} or (same and differing <= {"trials", "evidence"}):
            for table in differing:
                del wrong[folder / table / f"{stem}.parquet"]
            yield _found(folder, stem, rows)


def _unnamed(
    folder: Path, state: State, lost: Collection[Attempt], conditions: Collection[str]
) -> tuple[tuple[Found, ...], dict[Path, str]]:
    """Return the sound files that the log does not name, and the damaged ones with the reason.

    Files of which the log names all attempts, in other files that are sound, are a copy that a
    killed process left; they are neither.
    """
    found, unread = [], dict[Path, str]()
    for stem in stems_in(folder):
        if stem in state.files:
            continue
        rows = read_stem(folder, stem, conditions=conditions)
        if isinstance(rows, dict):
            unread |= rows
            continue
        named = {(row.trial_id, row.attempt) for row in rows} & state.stems.keys()
        if len(named - set(lost)) < len(rows):
            found.append(_found(folder, stem, rows))
    return tuple(found), unread
