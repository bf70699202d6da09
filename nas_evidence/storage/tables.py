"""The results of a study as Parquet: four tables, one file per attempt at a trial.

    trials/    one row per attempt: what ran, how it ended, what it cost
    evidence/  one row per (epoch, estimator), long form: a new estimator needs no new column
    terms/     the named parts of each estimate
    curves/    one row per training epoch

The log of the study names each file with its digest once all four are written: an attempt exists
from that line on. Writes are atomic (temporary name, fsync, rename). `compact` merges files of
finished attempts into `part-*.parquet`, so that long studies load fast; `*.parquet` still finds
every row. Missing values are null, never NaN; an infinite score stays, and is not valid. Columns
are only ever added, so files of all versions can be read together; unreadable files are skipped
and reported, never guessed.
"""

import errno
import hashlib
import logging
import math
import re
import uuid
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.table_checksum import is_sound, sealed
from nas_evidence.plumbing.user_error import UserError, meant
from nas_evidence.spec.columns import TableColumn, columns_declared, columns_with
from nas_evidence.spec.domains import ParameterValue
from nas_evidence.spec.parameters import ARCHITECTURE, types_of
from nas_evidence.spec.record import (
    WHOLE_IDS,
    ArchitectureColumns,
    CurvePoint,
    Evaluation,
    EvidenceEstimate,
    Term,
    TrialRecord,
    TrialStatus,
    ranks,
    trial_of,
)
from nas_evidence.spec.registry import SCORES
from nas_evidence.spec.study import ALL_COSTS, ArchitectureSpec, StudySpec
from nas_evidence.spec.toml import load_study
from nas_evidence.storage.best import Standings
from nas_evidence.storage.conditions import check_conditions
from nas_evidence.storage.events import EVENT, Ended, Merged
from nas_evidence.storage.log import Log, read_log
from nas_evidence.storage.state import Attempt, State, attempt_of, is_part, stem_of
from nas_evidence.storage.store import Store, is_uri
from nas_evidence.storage.study_names import TableName, remove, remove_half_written
from nas_evidence.storage.trial_row import COPIED, TrialRow

if TYPE_CHECKING:  # imported where a table is read whole: `status` reads none
    import pandas as pd

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1

#: The column in which an infinite number is stored; elsewhere it is null, as NaN is.
_INFINITE = ("evidence", "value")
Cell = ParameterValue | None
Row = dict[str, Cell]

_KEY = columns_declared(TrialRecord, ("trial_id", "attempt"))
_EPOCH = columns_declared(Evaluation)
#: The columns of each table, in order, as the records declare them (spec/columns.py).
COLUMNS: Mapping[TableName, Mapping[str, TableColumn]] = {
    "trials": columns_with(TrialRecord, ArchitectureColumns),
    "evidence": _KEY | _EPOCH | columns_declared(EvidenceEstimate),
    "terms": _KEY | _EPOCH | columns_declared(EvidenceEstimate, ("estimator",))
    | columns_declared(Term),
    "curves": _KEY | columns_declared(TrialRecord, ("of",)) | columns_declared(CurvePoint),
}  # fmt: skip
_ARROW_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_SCHEMAS: Mapping[TableName, pa.Schema] = {
    table: pa.schema(
        [(name, _ARROW_TYPES.get(column.kind, pa.string())) for name, column in columns.items()]
    )
    for table, columns in COLUMNS.items()
}
#: Commit order, with the marker last.
TABLES: tuple[TableName, ...] = ("evidence", "terms", "curves", "trials")
_FILE_NAME = re.compile(r"(\d{6,})-a(\d+)\.parquet")
_PART_NAME = re.compile(r"part-[0-9a-f]{32}\.parquet")
FOREIGN = "foreign: not named <trial>-a<attempt>.parquet"
#: The state of a folder: its result files with their times and sizes.
Stamp = frozenset[tuple[str, int, int]]
#: Number of single-attempt files in a table from which `compact` merges them.
COMPACT_AT = 256
#: Characters of the name of a column of a callback.
_LONGEST_NAME = 60
#: The tables of attempts that this process stored last, by digest of their files: `compact` need
#: not parse those again.
_WRITTEN: dict[str, pa.Table] = {}


@dataclass(frozen=True)
class UnreadableFile:
    """A file that was skipped, and why."""

    path: Path
    reason: str

    @property
    def trial_id(self) -> int | None:
        """Return the trial whose rows it held; None for a part of many, and for a foreign file."""
        key = _key_of(self.path)
        return None if key is None else key[0]


def write_record(
    folder: Path, record: TrialRecord, spec: StudySpec, own: Mapping[str, type] | None = None
) -> dict[str, str]:
    """Write the four files of one finished attempt; return their digests by table.

    Writing the same record again changes nothing. Without a file in `trials`, written last, the
    others are of a writer that was killed, and are replaced.

    Args:
        folder: of the study.
        record: of the attempt.
        spec: the study.
        own: columns of callbacks with their types; that of a value that is there follows from it.

    Raises:
        ValueError: if the status is not final, or this attempt is already committed with
            different content.
    """
    if not record.status.is_final:
        raise UserError(
            "record-not-final",
            f"only finished trials are stored, but trial {record.trial_id} is "
            f'"{record.status}"; write it when it has ended.',
        )
    rows = rows_of_record(record)
    conditions = record.content_hash or ""
    tables = {
        table: _arrow_table(table, rows[table], spec, conditions, own if table == "trials" else {})
        for table in TABLES
    }
    name = f"{stem_of(record.trial_id, record.attempt)}.parquet"
    committed = _stored(folder / "trials" / name) is not None
    digests: dict[str, str] = {}
    for table in TABLES:
        path = folder / table / name
        stored = _stored(path) if committed else None
        if stored is None:
            # Uncompressed: so few rows become no smaller, and take twice as long.
            digest = _write_table(path, tables[table], compression="none")
            digests[table], _WRITTEN[digest] = digest, tables[table]
            if len(_WRITTEN) > len(TABLES) * COMPACT_AT:
                del _WRITTEN[next(iter(_WRITTEN))]
        elif not stored.equals(_of_its_name(path, tables[table]), check_metadata=False):
            raise UserError(
                "attempt-already-stored",
                f"a committed attempt is never changed, but {path} holds another {table} table "
                f"of trial {record.trial_id}, attempt {record.attempt}; "
                "store a new run under the next attempt number.",
            )
        else:
            digests[table] = file_digest(path)
    return digests


def file_digest(path: Path) -> str:
    """Return the digest of a file, "" if there is none."""
    try:
        return _digest(path.read_bytes())
    except FileNotFoundError:
        return ""


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def foreign_files(folder: Path) -> list[Path]:
    """Return the Parquet files in the tables of a study that are not of this program."""
    there = (path for table in TABLES for path in (folder / table).glob("[!._]*.parquet"))
    return sorted(p for p in there if not _key_of(p) and not _PART_NAME.fullmatch(p.name))


def stems_in(folder: Path) -> list[str]:
    """Return the names, without their ending, of the files of this program in `trials`."""
    names = sorted(path.name for path in (folder / "trials").glob("*.parquet"))
    ours = (name for name in names if _FILE_NAME.fullmatch(name) or _PART_NAME.fullmatch(name))
    return [name.removesuffix(".parquet") for name in ours]


def read_stem(
    folder: Path,
    stem: str,
    *,
    conditions: Collection[str] = (),
    attempts: Collection[Attempt] = (),
) -> list[TrialRow] | dict[Path, str]:
    """Return the rows of all attempts in the files of one name, or which of them are unsound.

    Args:
        folder: of the study.
        stem: name of the files, without their ending.
        conditions: hashes of those under which trials of this study ran, if they are known. Files
            with the hash of others are of another study, and unsound.
        attempts: those that the files hold, if that is known; others are unsound.
    """
    frames, torn = dict[TableName, "pd.DataFrame"](), dict[Path, str]()
    for table in TABLES:
        one = _load(folder / table / f"{stem}.parquet")
        if isinstance(one, UnreadableFile):
            torn[one.path] = one.reason
        elif conditions and not _hashes_in(one) <= {*conditions}:
            torn[folder / table / f"{stem}.parquet"] = "damaged: of another study"
        else:
            frames[table] = _frame(one)
    if torn:
        return torn
    there = {table: _attempts_in(frame) for table, frame in frames.items()}
    for table, found in there.items():
        if not found <= there["trials"] or (attempts and not found <= {*attempts}):
            torn[folder / table / f"{stem}.parquet"] = "damaged: it holds rows of other trials"
    if attempts and there["trials"] != {*attempts}:
        torn[folder / "trials" / f"{stem}.parquet"] = "damaged: it holds rows of other trials"
    if torn:
        return torn
    try:
        rows = rows_of(frames["trials"], frames["evidence"])
        for row in rows:
            EVENT.validate_json(Ended(row=row, files={}).model_dump_json())
    except (ValueError, LookupError, TypeError):
        return {folder / "trials" / f"{stem}.parquet": "damaged: its rows are none of trials"}
    for row, key in zip(rows, frames["trials"]["architecture_key"], strict=True):
        if row.architecture_key != key:
            problem = f"damaged: trial {row.trial_id} has the key of another architecture"
            return {folder / "trials" / f"{stem}.parquet": problem}
    return rows


def rows_in(folder: Path, stem: str) -> tuple[TrialRow, ...]:
    """Return the rows of a sound file of `trials`, without what only `evidence` has."""
    one = _load(folder / "trials" / f"{stem}.parquet")
    if isinstance(one, UnreadableFile):
        return ()
    frame = _frame(one)
    return tuple(rows_of(frame, _SCHEMAS["evidence"].empty_table().to_pandas()))


def strays(folder: Path, state: State) -> dict[Path, str]:
    """Return the files of other trials than their name says that have no row in `trials`.

    The log does not name them either. Those that are as their name says are of a writer that was
    killed; the next driver removes them.
    """
    known, found = {*state.files, *stems_in(folder)}, dict[Path, str]()
    for table in TABLES:
        for path in (folder / table).glob("*.parquet"):
            if _FILE_NAME.fullmatch(path.name) and path.stem not in known:
                one = _load(path)
                if isinstance(one, UnreadableFile):
                    found[path] = one.reason
    return found


def per_datum_of(folder: Path, state: State, row: TrialRow, estimator: str) -> float | None:
    """Return a trial's last value of an estimator per datum; None if it has none, or no file."""
    last = {one["estimator"]: one["per_datum"] for one in cells_of(folder, state, row, "evidence")}
    return last.get(estimator)


def cells_of(folder: Path, state: State, row: TrialRow, table: TableName) -> list[dict[str, Any]]:
    """Return the rows of a trial in a table; none if there is no file."""
    stem = state.stems.get((row.trial_id, row.attempt), "")
    stored = _stored(folder / table / f"{stem}.parquet")
    if stored is None:
        return []
    mine = {"trial_id": row.trial_id, "attempt": row.attempt}
    return [one for one in stored.to_pylist() if mine.items() <= one.items()]  # without pandas


def read_table(folder: str | Path, table: TableName) -> "pd.DataFrame":
    """Return one table of a study, with the last finished attempt of each trial.

    Integer and boolean columns are nullable; a missing float is NaN in pandas and null in the
    file. Damaged and foreign files are skipped with a warning; `read_tables` lists them.

    Args:
        folder: of the study, or the URI of its store.
        table: "trials", "evidence", "terms" or "curves".

    Raises:
        ValueError: for another table, or a folder that is not there.
    """
    if table not in TABLES:
        raise UserError(
            "unknown-table",
            f"a study has the tables {', '.join(sorted(TABLES))}, but got {table!r}"
            f"{meant(table, TABLES)}",
        )
    with _at_hand(str(folder), table) as home:
        found = read_tables(home, [table])[0][table]
    if table != "trials":  # that of a finalist on all rows is a trial of its own there
        found["trial_id"] %= WHOLE_IDS
        found = found.sort_values(["trial_id", "epoch"], kind="stable", ignore_index=True)
    return found


@contextmanager
def _at_hand(place: str, table: TableName) -> Iterator[Path]:
    """Give a folder with a table of a study and `trials`; of a store, a copy of both."""
    home, there = Path(place).expanduser(), False
    if not is_uri(place):
        if there := home.is_dir():
            yield home
    else:
        store = Store(place)
        with TemporaryDirectory(prefix="nas-evidence-") as scratch:
            home = Path(scratch)
            while names := [name for part in {"trials", table} for name in store.list(part)]:
                # What is not there any more has been joined with others since.
                if there := store.download({name: home / name for name in names}):
                    break
            if there := there or store.get("study.toml") is not None:
                yield home
    if not there:
        raise UserError(
            "no-study-folder",
            f"{place} is no folder of a study; name the one that `search` wrote (its `out`, by "
            "default runs/<name>), or the URI of its store",
        )


def read_tables(
    folder: Path, tables: Sequence[TableName] = TABLES, wrong: Collection[Path] = ()
) -> "tuple[dict[TableName, pd.DataFrame], tuple[UnreadableFile, ...]]":
    """Return several tables as `read_table` does, and the skipped files; `wrong` are not read."""
    trials, unreadable = _read(folder, "trials", wrong)
    final = trials["status"].isin([status.value for status in TrialStatus if status.is_final])
    trials = trials[final].sort_values(["trial_id", "attempt"])
    frames = {"trials": trials.drop_duplicates("trial_id", keep="last", ignore_index=True)}
    last_attempts = frames["trials"][["trial_id", "attempt"]]
    for table in dict.fromkeys(tables):
        if table != "trials":
            frame, skipped = _read(folder, table, wrong)
            unreadable += skipped
            frame = frame.merge(last_attempts, on=["trial_id", "attempt"])
            frames[table] = frame.sort_values(
                ["trial_id", "epoch"], kind="stable", ignore_index=True
            )
    for file in unreadable:
        logger.warning("skipped file=%s reason=%s", file.path, file.reason)
    return {table: frames[table] for table in tables}, tuple(unreadable)


def rows_of(trials: "pd.DataFrame", evidence: "pd.DataFrame") -> list[TrialRow]:
    """Return the rows of the attempts in two tables, in the order of `trials`."""
    last = evidence.drop_duplicates(["trial_id", "attempt", "estimator"], keep="last")
    last = last[last["valid"].fillna(False) & last["value"].notna()]
    values: dict[Attempt, dict[str, float]] = {}
    columns = (last[name] for name in ("trial_id", "attempt", "estimator", "value"))
    for trial_id, attempt, estimator, value in zip(*columns, strict=True):
        values.setdefault((trial_id, attempt), {})[str(estimator)] = float(value)
    return [_row(cells, values) for cells in trials.to_dict("records")]


def own_columns(names: Iterable[Any]) -> list[str]:
    """Return which columns of `trials` are those of callbacks.

    >>> own_columns(["trial_id", "arch_width", "watts"])
    ['watts']
    """
    known = {*_SCHEMAS["trials"].names}
    return [str(n) for n in names if str(n) not in known and not str(n).startswith(ARCHITECTURE)]


def own_values(row: Mapping[Any, Any]) -> dict[str, ParameterValue]:
    """Return what callbacks know of a trial, by column; what is missing is left out."""
    return {
        name: row[name].item() if hasattr(row[name], "item") else row[name]
        for name in own_columns(row)
        if not _is_missing(row[name])
    }


def check_own_columns(
    columns: Mapping[str, type], spec: StudySpec, taken: Iterable[str], folder: Path
) -> None:
    """Check the columns that callbacks add, before anything runs.

    Args:
        columns: with their types.
        spec: the study.
        taken: further names that mean something else.
        folder: of the study; what it holds already keeps its type.

    Raises:
        ValueError: for a name that is none or is taken, and for a type that no column has.
    """
    parameters = {name for domains in spec.family.values() for name in domains}
    known = {*_SCHEMAS["trials"].names, *taken, *parameters, *SCORES, *spec.estimators}
    for name, kind in columns.items():
        if not (name.isidentifier() and len(name) <= _LONGEST_NAME):
            raise UserError(
                "own-column-name",
                f"a callback names a column {name!r}, which must be an identifier of at most "
                f"{_LONGEST_NAME} characters",
            )
        if name in known or name.startswith(ARCHITECTURE):
            raise UserError(
                "own-column-taken",
                f"a callback names a column {name!r}, which means something else in this study; "
                "give it another name",
            )
        if not isinstance(kind, type) or kind not in _ARROW_TYPES:
            raise UserError(
                "own-column-type",
                f"the column {name!r} of a callback must be bool, int, float or str, but is "
                f"{getattr(kind, '__name__', repr(kind))}",
            )
    stored = _stored_types(folder) if columns else {}
    for name, kind in columns.items():
        if (old := stored.get(name)) is not None and old != _ARROW_TYPES[kind]:
            raise UserError(
                "own-column-other-type",
                f"the column {name!r} of a callback is {kind.__name__}, but {old} in {folder}; "
                "keep its type, or give it another name",
            )


def _stored_types(folder: Path) -> dict[str, pa.DataType]:
    """Return the types of columns that callbacks have added to a study."""
    found: dict[str, pa.DataType] = {}
    for path in sorted((folder / "trials").glob("[!._]*.parquet")):
        try:
            schema = pq.read_schema(path)
        except (OSError, pa.ArrowException):  # `verify` names it
            continue
        found |= {name: schema.field(name).type for name in own_columns(schema.names)}
    return found


def architecture_values(row: Mapping[Any, Any]) -> dict[str, ParameterValue]:
    """Return the parameters of the architecture of a row of `trials`, by name.

    >>> architecture_values({"family": "mlp", "arch_depth": 2, "arch_shape": None})
    {'depth': 2}
    """
    return {
        str(name).removeprefix(ARCHITECTURE): value.item() if hasattr(value, "item") else value
        for name, value in row.items()
        if str(name).startswith(ARCHITECTURE) and not _is_missing(value)
    }


@dataclass(frozen=True, eq=False)
class StudyTables:
    """A study as it is stored, read once: report, baselines, export and Python share it.

    folder      of the study
    trials      one row per finished trial; `evidence`, `terms` and `curves` those of its last
                attempt
    unreadable  the files that were skipped
    ended       the trials that ended, in that order, as the log says
    whole       the networks of all rows of finalists, where trials train their folds alone, in
                tables of the same names: nothing ranks or compares them with trials
    """

    folder: Path
    spec: StudySpec
    trials: "pd.DataFrame"
    evidence: "pd.DataFrame"
    terms: "pd.DataFrame"
    curves: "pd.DataFrame"
    unreadable: tuple[UnreadableFile, ...]
    ended: tuple[int, ...] = ()
    whole: "Mapping[TableName, pd.DataFrame]" = field(kw_only=True)

    @property
    def missing(self) -> list[str]:
        """What is missing or not as it was written, one line each."""
        return [
            f"{file.path.relative_to(self.folder).as_posix()}: {file.reason}"
            for file in self.unreadable
        ]

    @cached_property
    def rows(self) -> list[TrialRow]:
        """The finished trials, in order of trial id."""
        return rows_of(self.trials, self.evidence)

    @cached_property
    def whole_rows(self) -> list[TrialRow]:
        """The networks of all rows of finalists, in order of trial id."""
        return rows_of(self.whole["trials"], self.whole["evidence"])

    @property
    def all_rows(self) -> list[TrialRow]:
        """Both."""
        return [*self.rows, *self.whole_rows]

    def row(self, trial_id: int) -> "pd.Series":
        """Return the row of a finished trial in `trials`.

        Raises:
            UserError: there is none.
        """
        rows = self.trials[self.trials["trial_id"] == trial_id]
        if rows.empty:
            raise UserError(
                "trial-not-finished",
                f"study '{self.spec.name}' has no finished trial {trial_id}; "
                "see `nas-evidence status`.",
            )
        return rows.iloc[0]

    @property
    def n_rows(self) -> int:
        """The most rows that a network was trained on: all training rows, once there is one."""
        known = [*self.trials["n_data"].dropna(), *self.whole["trials"]["n_data"].dropna()]
        return max(map(int, known), default=0)

    def network_of(self, trial_id: int) -> int:
        """Return the trial that has the network of all rows of a finished one: itself, or not."""
        return trial_id if self.spec.trains_whole else WHOLE_IDS + trial_id

    def has_network(self, trial_id: int) -> bool:
        """Return whether the weights of the network of all rows of a trial are kept."""
        return (self.folder / f"models/{self.network_of(trial_id)}.safetensors").is_file()

    def row_of_network(self, trial_id: int) -> "pd.Series":
        """Return the row of the network of all rows of a trial; its own where there is none yet.

        Raises:
            UserError: the trial is not finished.
        """
        rows = self._of_network(trial_id, "trials")
        return rows.iloc[0] if len(rows) else self.row(trial_id)

    def evidence_of_network(self, trial_id: int) -> "pd.DataFrame":
        """Return the last scores of the network of all rows of a trial, and of its folds."""
        found = self.evidence[self.evidence["trial_id"] == trial_id]
        if not self.spec.trains_whole:
            import pandas as pd

            folds = [name for name, score in SCORES.items() if score.division]
            of_folds = found[found["estimator"].isin(folds)]
            found = pd.concat([of_folds, self._of_network(trial_id, "evidence")])
        return found[found["epoch"] == self.row(trial_id)["epochs"]]

    def _of_network(self, trial_id: int, table: TableName) -> "pd.DataFrame":
        return self.whole[table][self.whole[table]["trial_id"] == self.network_of(trial_id)]

    def conditions(self, trial_id: int) -> str:
        """Return the hash of the conditions under which a finished trial ran, "" if not known."""
        return self.row(trial_id)["content_hash"] or ""

    @cached_property
    def standings(self) -> Standings:
        """The architectures in the order of their objective."""
        return Standings(self.spec, self.all_rows)


def read_study_tables(
    folder: Path, spec: StudySpec | None = None, state: State | None = None
) -> StudyTables:
    """Read a study folder.

    Args:
        folder: of the study.
        spec: the study, if its file was read already.
        state: of its log, if that was read already.

    Raises:
        ValueError: the folder holds no study file, or one with mistakes.
    """
    if spec is None:
        file = folder / "study.toml"
        if not file.is_file():
            raise UserError(
                "no-study-file",
                f"a study folder holds study.toml, but {folder} does not; "
                "name the folder that `search` wrote (its `out`, by default runs/<name>).",
            )
        spec = load_study(file)
        check_conditions(folder, spec)
    state = state or read_log(folder).state
    wrong = wrong_files(folder, state)
    tables, unreadable = read_tables(folder, wrong=wrong)
    unreadable += tuple(UnreadableFile(path, reason) for path, reason in wrong.items())
    ranked, whole = (
        {
            table: frame[(frame["trial_id"] >= WHOLE_IDS) == of_whole].reset_index(drop=True)
            for table, frame in tables.items()
        }
        for of_whole in (False, True)
    )
    ended = tuple(filter(ranks, state.rows))
    return StudyTables(folder, spec, **ranked, unreadable=unreadable, ended=ended, whole=whole)


def wrong_files(folder: Path, state: State) -> dict[Path, str]:
    """Return the files that the log names and that are not as it says, each with what is wrong."""
    wrong, current = dict[Path, str](), state.current()
    for stem, digests in state.files.items():
        for table, digest in digests.items():
            path = folder / table / f"{stem}.parquet"
            found = file_digest(path)
            if found != digest and (found or stem in current):
                wrong[path] = "damaged: not as it was written" if found else "missing"
    return wrong


def remove_unnamed(folder: Path, state: State) -> None:
    """Remove the files of this program that the log does not name: a killed process left them."""
    for table in TABLES:
        for path in (folder / table).glob("[!._]*.parquet"):
            ours = _FILE_NAME.fullmatch(path.name) or _PART_NAME.fullmatch(path.name)
            if ours and path.stem not in state.files:
                remove(folder, f"{table}/{path.name}")


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


def remove_torn(folder: Path) -> None:
    """Remove what a killed process has not finished writing in the tables."""
    for table in TABLES:
        for path in (folder / table).glob(".*"):
            remove_half_written(path)


def compact(log: Log, folder: Path, at_least: int = COMPACT_AT) -> None:
    """Merge the files of single attempts, table by table, once the log names `at_least` of them.

    A part is written, read back and named by the log before its source files are removed. Earlier
    parts are not read.
    """
    stems = sorted(
        stem
        for stem in log.state.files
        if not is_part(stem)
        and ranks(attempt_of(stem)[0])
        and all((folder / t / f"{stem}.parquet").exists() for t in TABLES)
    )
    if len(stems) < at_least:
        return
    part, digests = f"part-{uuid.uuid4().hex}", dict[str, str]()
    for table in TABLES:
        paths = [folder / table / f"{stem}.parquet" for stem in stems]
        joined, used, _ = _concat(table, paths)
        if len(used) < len(paths):  # damaged since the start: `verify` names it
            return
        metadata = pq.read_schema(pa.BufferReader(used[0].read_bytes())).metadata
        path = folder / table / f"{part}.parquet"
        digests[table] = _write_table(path, joined.replace_schema_metadata(metadata))
        written = _stored(path)
        if written is None or not written.equals(joined, check_metadata=False):
            remove(folder, f"{table}/{part}.parquet")
            raise OSError(errno.EIO, "the written file cannot be read back", str(path))
    attempts = tuple(attempt_of(stem) for stem in stems)
    log.write(Merged(part=part, files=digests, attempts=attempts), durable=True)
    for table in TABLES:
        for stem in stems:
            remove(folder, f"{table}/{stem}.parquet")


def _row(cells: Mapping[Hashable, Any], values: Mapping[Attempt, dict[str, float]]) -> TrialRow:
    known = {str(name): cell for name, cell in cells.items() if not _is_missing(cell)}
    return TrialRow(
        **{name: COLUMNS["trials"][name].kind(known[name]) for name in COPIED if name in known},
        architecture=ArchitectureSpec(family=known["family"], values=architecture_values(known)),
        values=values.get((known["trial_id"], known["attempt"]), {}),
        costs={name: float(known[name]) for name in ALL_COSTS if name in known},
        own=own_values(known),
    )


def rows_of_record(record: TrialRecord) -> Mapping[TableName, list[Row]]:
    """Return the rows of each table that a record becomes."""
    key: Row = {"trial_id": trial_of(record.trial_id), "attempt": record.attempt}
    values = record.architecture.values
    trial: Row = {
        "architecture_key": record.architecture.key,
        "family": record.architecture.family,
        **{
            name: getattr(record, name)
            for name in _SCHEMAS["trials"].names
            if name in TrialRecord.model_fields
        },
        "status": record.status.value,
        **{ARCHITECTURE + name: value for name, value in values.items()},
        **record.own,
    }
    return {
        "trials": [trial],
        "evidence": [key | _evidence_row(e) for e in record.evaluations],
        "terms": [
            key
            | {
                "epoch": e.epoch,
                "of": e.of,
                "estimator": e.estimate.estimator,
                **term.model_dump(),
            }
            for e in record.evaluations
            for term in e.estimate.terms
        ],
        "curves": [key | {"of": record.of} | point.model_dump() for point in record.curve],
    }


def _evidence_row(evaluation: Evaluation) -> Row:
    estimate = evaluation.estimate
    row: Row = {"epoch": evaluation.epoch, "of": evaluation.of}
    row |= estimate.model_dump(exclude={"terms"})
    if not math.isfinite(estimate.value):
        if not estimate.valid:  # else an infinite value still has a place in an order
            row["value"] = math.nan
        row["valid"] = False
        row["note"] = "; ".join(filter(None, (estimate.note, f"value is {estimate.value}")))
    return row


def _arrow_table(
    table: TableName,
    rows: list[Row],
    spec: StudySpec,
    conditions: str,
    own: Mapping[str, type] | None = None,
) -> pa.Table:
    schema = _schema_of(table, rows, spec, own or {})
    metadata = {
        "nas_evidence.schema_version": str(SCHEMA_VERSION),
        "nas_evidence.table": table,
        "nas_evidence.study": spec.name,
        "nas_evidence.study_seed": str(spec.seed),
        "nas_evidence.content_hash": conditions,
    }
    columns = {
        name: [_finite_or_null(row.get(name), infinite=(table, name) == _INFINITE) for row in rows]
        for name in schema.names
    }
    return pa.Table.from_pydict(columns, schema=schema.with_metadata(metadata))


def _schema_of(
    table: TableName, rows: list[Row], spec: StudySpec, own: Mapping[str, type]
) -> pa.Schema:
    """Return the columns of a table, whatever a row has.

    `trials` has the parameters of all families; last are the `own` columns of callbacks.
    """
    space = types_of(spec) if table == "trials" else {}
    of_space = {ARCHITECTURE + name: _ARROW_TYPES[kind] for name, kind in space.items() if kind}
    further = {name for row in rows for name in row} - {*_SCHEMAS[table].names}
    given = {
        name: type(row[name]) for row in rows for name in further if row.get(name) is not None
    }
    fixed = [pa.field(one.name, of_space.get(one.name, one.type)) for one in _SCHEMAS[table]]
    types = {name: _ARROW_TYPES[kind] for name, kind in given.items()} | of_space
    others = sorted(types.keys() - {*_SCHEMAS[table].names, *own})
    last = [pa.field(name, _ARROW_TYPES[kind]) for name, kind in own.items()]
    return pa.schema([*fixed, *(pa.field(name, types[name]) for name in others), *last])


def _finite_or_null(cell: Cell, *, infinite: bool) -> Cell:
    wrong = math.isnan if infinite else lambda value: not math.isfinite(value)
    return None if isinstance(cell, float) and wrong(cell) else cell


def _write_table(path: Path, table: pa.Table, compression: str = "zstd") -> str:
    """Write a table; return the digest of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = pa.BufferOutputStream()
    table = table.replace_schema_metadata(sealed(table))
    pq.write_table(table, content, compression=compression, use_dictionary=False)
    whole = memoryview(content.getvalue())
    write_whole(path, whole)
    return _digest(whole)


def _stored(path: Path) -> pa.Table | None:
    """Return the table at `path`, or None if there is none or it is unreadable."""
    loaded = _load(path) if path.exists() else None
    return loaded if isinstance(loaded, pa.Table) else None


def _load(path: Path) -> pa.Table | UnreadableFile:
    try:
        content = path.read_bytes()  # Arrow opens no path that is not UTF-8
        if (written := _WRITTEN.get(_digest(content))) is not None:
            return _of_its_name(path, written)
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            table = file.read(use_threads=False)
        sound = is_sound(table)
    except FileNotFoundError:
        return UnreadableFile(path, "missing")
    except (OSError, ValueError, pa.ArrowException) as error:  # or names that are not UTF-8
        return UnreadableFile(path, f"damaged or not Parquet: {str(error).splitlines()[0]}")
    if b"nas_evidence.schema_version" not in (table.schema.metadata or {}):
        return UnreadableFile(path, "foreign: no nas_evidence.schema_version in its metadata")
    if not sound:
        return UnreadableFile(path, "damaged: its content does not match its checksum")
    return _of_its_name(path, table)


def _of_its_name(path: Path, table: pa.Table) -> pa.Table | UnreadableFile:
    """Return a sound table if it is the one that its place and name say."""
    of = (table.schema.metadata or {}).get(b"nas_evidence.table", b"").decode(errors="replace")
    if of != path.parent.name:
        return UnreadableFile(path, f"damaged: it holds {of or 'another table'}")
    key = _key_of(path)
    if key is not None and table.num_rows:
        trials, attempts = (table[name].unique().to_pylist() for name in ("trial_id", "attempt"))
        trial_id = key[0] if of == "trials" else trial_of(key[0])
        if (trials, attempts) != ([trial_id], [key[1]]):
            other = f"trial {trials[0]}, attempt {attempts[0]}"
            return UnreadableFile(path, f"damaged: it holds {other}")
        if trial_id != key[0]:
            ids = pa.array([key[0]] * table.num_rows, pa.int64())
            table = table.set_column(table.column_names.index("trial_id"), "trial_id", ids)
    return table


def _hashes_in(table: pa.Table) -> set[str]:
    """Return the hashes of the conditions of a table, by its metadata and its rows."""
    of = (table.schema.metadata or {}).get(b"nas_evidence.content_hash", b"").decode()
    rows = table["content_hash"].to_pylist() if "content_hash" in table.column_names else []
    return {one for one in (of, *rows) if one}


def _frame(table: pa.Table) -> "pd.DataFrame":
    """Return a table in which missing integers and booleans are not converted to float."""
    import pandas as pd  # late, as everywhere here

    types = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=types.get)


def _is_missing(cell: object) -> bool:
    """Return whether a cell of a table is missing: None, NaN or NA."""
    import pandas as pd

    return bool(pd.isna(cell))


def _attempts_in(frame: "pd.DataFrame") -> set[Attempt]:
    return {(int(i), int(a)) for i, a in zip(frame["trial_id"], frame["attempt"], strict=True)}


def _read(
    folder: Path, table: TableName, wrong: Collection[Path]
) -> "tuple[pd.DataFrame, list[UnreadableFile]]":
    """Return all attempts in one table, with the files skipped."""
    parts = _parts(folder / table)
    there = sorted((folder / table).glob("[!._]*.parquet"))
    others = [p for p in there if p not in parts and p not in wrong]
    parts = [p for p in parts if p not in wrong]
    unreadable = [UnreadableFile(path, FOREIGN) for path in others if not _key_of(path)]
    joined, _, torn = _concat(table, parts)
    inside = _keys(joined)
    single, _, torn_too = _concat(table, [p for p in others if _key_of(p) not in {None, *inside}])
    # Without rows a table knows no types of the parameters.
    there = [one for one in (joined, single) if one.num_rows] or [joined]
    both = pa.concat_tables(there, promote_options="permissive")
    return _frame(both), unreadable + torn + torn_too


def _concat(
    table: TableName, paths: Sequence[Path]
) -> tuple[pa.Table, list[Path], list[UnreadableFile]]:
    """Return the rows of several files, the files they are from, and the skipped files.

    Arrow's dataset discovery is not used: it applies the schema of the first file to all files and
    fails at the first damaged one. Threads are not used either: they are slower for small files.
    """
    schema, tables, used = _SCHEMAS[table], list[pa.Table](), list[Path]()
    unreadable, seen = list[UnreadableFile](), set[Attempt]()
    for path in paths:
        one = _load(path)
        if isinstance(one, UnreadableFile):
            unreadable.append(one)
            continue
        try:
            if not used:  # `width` may be a text in another's space
                schema = _with_types_of(one.schema, schema)
            schema = pa.unify_schemas([schema, one.schema], promote_options="permissive")
        except pa.ArrowException as error:
            unreadable.append(UnreadableFile(path, f"columns of other types: {error}"))
            continue
        if is_part(path.stem):  # a copy, or left by a killed process
            keys = _keys(one)
            one = _without(one, keys & seen) if keys & seen else one
            seen |= keys
        tables.append(one.replace_schema_metadata(None))
        used.append(path)
    empty = schema.remove_metadata().empty_table()
    return pa.concat_tables([empty, *tables], promote_options="permissive"), used, unreadable


def _with_types_of(found: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Return a schema whose parameters of architectures have the types that a file has."""
    own = {one.name: one.type for one in found if one.name.startswith(ARCHITECTURE)}
    return pa.schema([pa.field(one.name, own.get(one.name, one.type)) for one in schema])


def _parts(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.glob("part-*.parquet")) if _PART_NAME.fullmatch(p.name)]


def _key_of(path: Path) -> tuple[int, int] | None:
    match = _FILE_NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else None


def _without(table: pa.Table, attempts: Collection[Attempt]) -> pa.Table:
    """Return a table without the rows of some attempts."""
    keys = zip(table["trial_id"].to_pylist(), table["attempt"].to_pylist(), strict=True)
    return table.filter([key not in attempts for key in keys])


def _keys(table: pa.Table) -> set[tuple[int, int]]:
    """Return the attempts (trial_id, attempt) that have rows in a table."""
    keys = table.group_by(["trial_id", "attempt"]).aggregate([])
    return set(zip(keys["trial_id"].to_pylist(), keys["attempt"].to_pylist(), strict=True))
