"""The results of a study as Parquet: four tables, one file per attempt at a trial.

    trials/    one row per attempt: what ran, how it ended, what it cost
    evidence/  one row per (epoch, estimator), long form: a new estimator needs no new column
    terms/     the named parts of each estimate
    curves/    one row per training epoch

`evidence`, `terms` and `curves` are written before `trials`, whose file is the commit marker:
without it the attempt does not exist. Writes are atomic (temporary name, fsync, rename). `compact`
merges files of finished attempts into `part-*.parquet`, so that long studies load fast;
`*.parquet` still finds every row. Missing values are null, never NaN. Columns are only ever added,
so files of all versions can be read together; unreadable files are skipped and reported, never
guessed.
"""

import errno
import logging
import math
import re
import uuid
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.table_checksum import is_sound, sealed
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import ParameterValue
from nas_evidence.spec.record import EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec.study import ALL_COSTS, ArchitectureSpec, StudySpec
from nas_evidence.spec.toml import load_study
from nas_evidence.storage.best import Standings
from nas_evidence.storage.conditions import check_conditions
from nas_evidence.storage.journal import read_journal

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1

TableName = Literal["trials", "evidence", "terms", "curves"]
Cell = ParameterValue | None
Row = dict[str, Cell]

_TYPES = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(), "bool": pa.bool_()}
COLUMNS: Mapping[TableName, str] = {
    "trials": """
        trial_id:int attempt:int replicate:int architecture_key:str status:str cause:str family:str
        arch_depth:int arch_width:int arch_shape:str seed:int stage:str n_parameters:int n_data:int
        flops:int memory_bytes:int latency_seconds:float gpu_share:float epochs:int
        best_epoch:int best_evidence:float noise_std:float temperature:float spread_factor:float
        test_accuracy:float test_nll_per_datum:float test_rmse:float
        converged:bool kept:str decrement_per_datum:float train_seconds:float
        settle_seconds:float evidence_seconds:float total_seconds:float
        content_hash:str n_rows:int versions:str error:str""",
    "evidence": """
        trial_id:int attempt:int epoch:int estimator:str value:float per_datum:float relation:str
        standard_error:float valid:bool note:str seconds:float""",
    "terms": "trial_id:int attempt:int epoch:int estimator:str term:str group:str value:float",
    "curves": """
        trial_id:int attempt:int epoch:int train_nll_per_datum:float learning_rate:float
        sotl:float sotl_e:float sotl_ema:float prequential_epoch1:float seconds:float
        noise_std:float temperature:float""",
}
_SCHEMAS: Mapping[TableName, pa.Schema] = {
    table: pa.schema(
        [(name, _TYPES[kind]) for name, _, kind in (c.partition(":") for c in columns.split())]
    )
    for table, columns in COLUMNS.items()
}
#: Each parameter of an architecture is a column of `trials` with this prefix.
ARCHITECTURE = "arch_"
#: Commit order, with the marker last.
TABLES: tuple[TableName, ...] = ("evidence", "terms", "curves", "trials")
_FILE_NAME = re.compile(r"(\d{6,})-a(\d+)\.parquet")
_PART_NAME = re.compile(r"part-[0-9a-f]{32}\.parquet")
#: Number of single-attempt files in a table from which `compact` merges them.
COMPACT_AT = 256
_ARROW_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
#: pandas types that hold missing integers and booleans without conversion to float.
_PANDAS_TYPES = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


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


@dataclass(frozen=True, slots=True)
class TrialRow:
    """What the driver needs from a finished trial.

    `values` maps each estimator to its last value (larger is better), if valid; `costs` has those
    of n_parameters, flops, memory_bytes and latency_seconds that are known.
    """

    trial_id: int
    attempt: int
    replicate: int
    status: TrialStatus
    architecture: ArchitectureSpec
    values: Mapping[str, float]
    costs: Mapping[str, float]
    cause: str = ""
    total_seconds: float = 0.0
    gpu_share: float | None = None
    content_hash: str | None = None

    @property
    def architecture_key(self) -> str:
        """Return the hash of family and values."""
        return self.architecture.key

    @property
    def family(self) -> str:
        """Return the name of the architecture's family."""
        return self.architecture.family

    @classmethod
    def of(cls, record: TrialRecord) -> "TrialRow":
        """Return the row that `finished` reads back once `record` is written."""
        last = {e.estimate.estimator: e.estimate for e in record.evaluations}
        costs = {name: getattr(record, name) for name in ALL_COSTS}
        return cls(
            trial_id=record.trial_id,
            attempt=record.attempt,
            replicate=record.replicate,
            status=record.status,
            architecture=record.architecture,
            values={k: e.value for k, e in last.items() if e.valid and math.isfinite(e.value)},
            costs={k: float(v) for k, v in costs.items() if v is not None and math.isfinite(v)},
            cause=record.cause,
            total_seconds=record.total_seconds,
            gpu_share=record.gpu_share,
            content_hash=record.content_hash,
        )


def write_record(folder: Path, record: TrialRecord, spec: StudySpec) -> None:
    """Write the four files of one finished attempt, the commit marker last.

    Writing the same record again changes nothing. Files of an attempt without a commit marker
    (the writer was killed between two files) are replaced.

    Raises:
        ValueError: if the status is not final, or this attempt is already committed with
            different content.
    """
    if not record.status.is_final:
        raise UserError(
            f"only finished trials are stored, but trial {record.trial_id} is "
            f'"{record.status}"; write it when it has ended.'
        ).with_code("record-not-final")
    rows = rows_of_record(record)
    tables = {table: _arrow_table(table, rows[table], spec) for table in TABLES}
    name = f"{record.trial_id:06d}-a{record.attempt}.parquet"
    committed = _stored(folder / "trials" / name) is not None
    for table in TABLES:
        path = folder / table / name
        stored = _stored(path) if committed else None
        if stored is None:
            _write_table(path, tables[table])
        elif not stored.equals(tables[table], check_metadata=False):
            raise UserError(
                f"a committed attempt is never changed, but {path} holds another {table} table "
                f"of trial {record.trial_id}, attempt {record.attempt}; "
                "store a new run under the next attempt number."
            ).with_code("attempt-already-stored")


def read_table(folder: Path, table: TableName) -> pd.DataFrame:
    """Return one table of a study, with the last finished attempt of each trial.

    Integer and boolean columns are nullable; a missing float is NaN in pandas and null in the
    file. Damaged and foreign files are skipped with a warning; `read_tables` lists them.
    """
    return read_tables(folder, [table])[0][table]


def read_tables(
    folder: Path, tables: Sequence[TableName] = TABLES
) -> tuple[dict[TableName, pd.DataFrame], tuple[UnreadableFile, ...]]:
    """Return several tables as `read_table` does, and the skipped files."""
    trials, unreadable = _read(folder, "trials")
    final = trials["status"].isin([status.value for status in TrialStatus if status.is_final])
    trials = trials[final].sort_values(["trial_id", "attempt"])
    frames = {"trials": trials.drop_duplicates("trial_id", keep="last", ignore_index=True)}
    last_attempts = frames["trials"][["trial_id", "attempt"]]
    for table in dict.fromkeys(tables):
        if table != "trials":
            frame, skipped = _read(folder, table)
            unreadable += skipped
            frame = frame.merge(last_attempts, on=["trial_id", "attempt"])
            frames[table] = frame.sort_values(
                ["trial_id", "epoch"], kind="stable", ignore_index=True
            )
    for file in unreadable:
        logger.warning("skipped file=%s reason=%s", file.path, file.reason)
    return {table: frames[table] for table in tables}, tuple(unreadable)


def finished(folder: Path) -> dict[int, TrialRow]:
    """Return the row of every finished trial, by trial id."""
    tables, _ = read_tables(folder, ["trials", "evidence"])
    return {row.trial_id: row for row in rows_of(tables["trials"], tables["evidence"])}


@dataclass(frozen=True)
class Stock:
    """What a study folder holds.

    rows        the row of every finished trial, by trial id
    short       those that lack rows in another table, with their last attempt: a file in
                `evidence`, `terms` or `curves` is torn or missing
    unreadable  the files that were skipped
    contradictory  rows that have the key of another architecture, one line each
    """

    rows: Mapping[int, TrialRow]
    short: Mapping[int, int]
    unreadable: tuple[UnreadableFile, ...]
    contradictory: tuple[str, ...]


def take_stock(folder: Path) -> Stock:
    """Read all tables once."""
    tables, unreadable = read_tables(folder)
    rows = rows_of(tables["trials"], tables["evidence"])
    found = {row.trial_id: row for row in rows}
    return Stock(found, _short(tables), unreadable, tuple(_contradictory(tables["trials"], rows)))


def _short(tables: Mapping[TableName, pd.DataFrame]) -> dict[int, int]:
    trials = tables["trials"].set_index("trial_id")
    wanted = trials["n_rows"].dropna().astype(int)
    others = (tables[name]["trial_id"] for name in TABLES if name != "trials")
    found = pd.concat(others).value_counts().reindex(wanted.index, fill_value=0)
    return {int(i): int(trials.loc[i, "attempt"]) for i in wanted.index[found < wanted]}


def lost_rows(folder: Path, known: Collection[int]) -> list[int]:
    """Return the trials that ended, as the journal says, and are not among those known."""
    return sorted(set(ended_trials(folder)).difference(known))


def ended_trials(folder: Path) -> list[int]:
    """Return the trials that ended, in that order, as the journal says."""
    return [event["trial_id"] for event in read_journal(folder) if event["event"] == "end"]


def _lacking(
    folder: Path,
    tables: Mapping[TableName, pd.DataFrame],
    unreadable: Iterable[UnreadableFile],
    ended: Iterable[int],
) -> Iterator[UnreadableFile]:
    """Yield what is not there of trials that have ended, unless an unreadable file says so."""
    said = {file.trial_id for file in unreadable}
    known = {int(i) for i in tables["trials"]["trial_id"]}
    for reason, trials in (
        ("missing rows of evidence, terms or curves", _short(tables)),
        ("missing, though the journal says that the trial ended", sorted({*ended} - known)),
    ):
        for trial_id in (i for i in trials if i not in said):
            yield UnreadableFile(folder / "trials" / f"{trial_id:06d}-a1.parquet", reason)


def rows_of(trials: pd.DataFrame, evidence: pd.DataFrame) -> list[TrialRow]:
    """Return the rows of the trials in two tables, in order of trial id."""
    last = evidence.drop_duplicates(["trial_id", "estimator"], keep="last")
    last = last[last["valid"].fillna(False) & last["value"].notna()]
    values: dict[int, dict[str, float]] = {}
    for trial_id, estimator, value in zip(
        last["trial_id"], last["estimator"], last["value"], strict=True
    ):
        values.setdefault(int(trial_id), {})[str(estimator)] = float(value)
    return [_row(cells, values) for cells in trials.to_dict("records")]


def architecture_values(row: Mapping[Any, Any]) -> dict[str, ParameterValue]:
    """Return the parameters of the architecture of a row of `trials`, by name.

    >>> architecture_values({"family": "mlp", "arch_depth": 2, "arch_shape": None})
    {'depth': 2}
    """
    return {
        str(name).removeprefix(ARCHITECTURE): value.item() if hasattr(value, "item") else value
        for name, value in row.items()
        if str(name).startswith(ARCHITECTURE) and not pd.isna(value)
    }


@dataclass(frozen=True, eq=False)
class StudyTables:
    """A study as it is stored, read once: report, baselines, export and Python share it.

    folder      of the study
    trials      one row per finished trial; `evidence`, `terms` and `curves` those of its last
                attempt
    unreadable  the files that were skipped
    ended       the trials that ended, in that order, as the journal says
    """

    folder: Path
    spec: StudySpec
    trials: pd.DataFrame
    evidence: pd.DataFrame
    terms: pd.DataFrame
    curves: pd.DataFrame
    unreadable: tuple[UnreadableFile, ...]
    ended: tuple[int, ...] = ()

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

    def row(self, trial_id: int) -> pd.Series:
        """Return the row of a finished trial in `trials`."""
        return self.trials[self.trials["trial_id"] == trial_id].iloc[0]

    @cached_property
    def standings(self) -> Standings:
        """The architectures in the order of their objective."""
        return Standings(self.spec, self.rows)


def read_study_tables(
    folder: Path, spec: StudySpec | None = None, ended: Iterable[int] | None = None
) -> StudyTables:
    """Read a study folder.

    Args:
        folder: of the study.
        spec: the study, if its file was read already.
        ended: as `StudyTables.ended`, if the journal was read already.

    Raises:
        ValueError: the folder holds no study file, or one with mistakes.
    """
    if spec is None:
        file = folder / "study.toml"
        if not file.is_file():
            raise UserError(
                f"a study folder holds study.toml, but {folder} does not; "
                "name the folder that `search` wrote (its --out, by default runs/<name>)."
            ).with_code("no-study-file")
        spec = load_study(file)
        check_conditions(folder, spec)
    tables, unreadable = read_tables(folder)
    ended = ended_trials(folder) if ended is None else list(ended)
    unreadable += tuple(_lacking(folder, tables, unreadable, ended))
    read = StudyTables(
        folder,
        spec,
        tables["trials"],
        tables["evidence"],
        tables["terms"],
        tables["curves"],
        unreadable,
        tuple(dict.fromkeys(ended)),
    )
    for problem in _contradictory(read.trials, read.rows):
        raise UserError(
            f"{folder}/trials contradicts itself: {problem}; restore what was copied there, or "
            f"remove the file of that trial, and `nas-evidence resume {folder}` runs it again."
        ).with_code("trials-contradict")
    return read


def _contradictory(trials: pd.DataFrame, rows: Sequence[TrialRow]) -> list[str]:
    """Return which rows of `trials`, as read, have the key of another architecture."""
    return [
        f"trial {row.trial_id} is {row.architecture}, but has the key of another"
        for row, key in zip(rows, trials["architecture_key"], strict=True)
        if row.architecture_key != key
    ]


def compact(folder: Path, at_least: int = COMPACT_AT) -> None:
    """Merge the files of finished attempts, table by table, once there are `at_least` of them.

    A part is written and read back before its source files are removed. After a crash in between,
    some rows are in two files; `read_tables` uses those of the part, and the next call cleans up.
    """
    markers = [p for p in (folder / "trials").glob("[0-9]*.parquet") if _key_of(p)]
    if len(markers) < at_least:
        return
    committed = sorted(path.name for path in markers if _stored(path) is not None)
    for table in TABLES:
        paths = [folder / table / name for name in committed if (folder / table / name).exists()]
        inside = _keys(_concat(table, _parts(folder / table))[0])
        joined, used, _ = _concat(table, [p for p in paths if _key_of(p) not in inside])
        if used:
            part = folder / table / f"part-{uuid.uuid4().hex}.parquet"
            metadata = pq.read_schema(pa.BufferReader(used[0].read_bytes())).metadata
            _write_table(part, joined.replace_schema_metadata(metadata))
            written = _stored(part)
            if written is None or not written.equals(joined, check_metadata=False):
                part.unlink()
                raise OSError(errno.EIO, "the written file cannot be read back", str(part))
        for path in paths:
            if path in used or _key_of(path) in inside:
                path.unlink()


def _row(cells: Mapping[Hashable, Any], values: Mapping[int, Mapping[str, float]]) -> TrialRow:
    known = {str(name): cell for name, cell in cells.items() if not pd.isna(cell)}
    return TrialRow(
        trial_id=int(known["trial_id"]),
        attempt=int(known["attempt"]),
        replicate=int(known["replicate"]),
        status=TrialStatus(known["status"]),
        architecture=ArchitectureSpec(family=known["family"], values=architecture_values(known)),
        values=values.get(known["trial_id"], {}),
        costs={name: float(known[name]) for name in ALL_COSTS if name in known},
        cause=known.get("cause", ""),
        total_seconds=float(known.get("total_seconds", 0.0)),
        gpu_share=known.get("gpu_share"),
        content_hash=known.get("content_hash"),
    )


def rows_of_record(record: TrialRecord) -> Mapping[TableName, list[Row]]:
    """Return the rows of each table that a record becomes."""
    key: Row = {"trial_id": record.trial_id, "attempt": record.attempt}
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
    }
    rows: Mapping[TableName, list[Row]] = {
        "trials": [trial],
        "evidence": [key | _evidence_row(e.epoch, e.estimate) for e in record.evaluations],
        "terms": [
            key | {"epoch": e.epoch, "estimator": e.estimate.estimator, **term.model_dump()}
            for e in record.evaluations
            for term in e.estimate.terms
        ],
        "curves": [key | point.model_dump() for point in record.curve],
    }
    trial["n_rows"] = sum(map(len, rows.values())) - 1  # in the other tables
    return rows


def _evidence_row(epoch: int, estimate: EvidenceEstimate) -> Row:
    row: Row = {"epoch": epoch, **estimate.model_dump(exclude={"terms"})}
    if not math.isfinite(estimate.value):
        row["valid"] = False
        row["note"] = "; ".join(filter(None, (estimate.note, f"value is {estimate.value}")))
    return row


def _arrow_table(table: TableName, rows: list[Row], spec: StudySpec) -> pa.Table:
    schema = _SCHEMAS[table]
    for name in sorted({name for row in rows for name in row} - set(schema.names)):
        types = {type(row[name]) for row in rows if row.get(name) is not None}
        schema = schema.append(pa.field(name, _ARROW_TYPES[types.pop()]))
    metadata = {
        "nas_evidence.schema_version": str(SCHEMA_VERSION),
        "nas_evidence.table": table,
        "nas_evidence.study": spec.name,
        "nas_evidence.study_seed": str(spec.seed),
    }
    finite = [{name: _finite_or_null(cell) for name, cell in row.items()} for row in rows]
    return pa.Table.from_pylist(finite, schema=schema.with_metadata(metadata))


def _finite_or_null(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _write_table(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = pa.BufferOutputStream()
    table = table.replace_schema_metadata(sealed(table))
    pq.write_table(
        table, content, compression="zstd", use_dictionary=False, write_page_checksum=True
    )
    write_whole(path, memoryview(content.getvalue()))


def _stored(path: Path) -> pa.Table | None:
    """Return the table at `path`, or None if there is none or it is unreadable."""
    loaded = _load(path) if path.exists() else None
    return loaded if isinstance(loaded, pa.Table) else None


def _load(path: Path) -> pa.Table | UnreadableFile:
    try:
        content = pa.BufferReader(path.read_bytes())  # Arrow opens no path that is not UTF-8
        with pq.ParquetFile(content, page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
        sound = is_sound(table)
    except (OSError, ValueError, pa.ArrowException) as error:  # or names that are not UTF-8
        return UnreadableFile(path, f"damaged or not Parquet: {str(error).splitlines()[0]}")
    if b"nas_evidence.schema_version" not in (table.schema.metadata or {}):
        return UnreadableFile(path, "foreign: no nas_evidence.schema_version in its metadata")
    if not sound:
        return UnreadableFile(path, "damaged: its content does not match its checksum")
    return table


def _read(folder: Path, table: TableName) -> tuple[pd.DataFrame, list[UnreadableFile]]:
    """Return all attempts in one table, with the files skipped."""
    parts = _parts(folder / table)
    others = [p for p in sorted((folder / table).glob("[!._]*.parquet")) if p not in parts]
    unreadable = [
        UnreadableFile(path, "foreign: not named <trial>-a<attempt>.parquet")
        for path in others
        if not _key_of(path)
    ]
    joined, _, torn = _concat(table, parts)
    inside = _keys(joined)
    single, _, torn_too = _concat(table, [p for p in others if _key_of(p) not in {None, *inside}])
    both = pa.concat_tables([joined, single], promote_options="permissive")
    frame = both.to_pandas(types_mapper=_PANDAS_TYPES.get)
    return frame, unreadable + torn + torn_too


def _concat(
    table: TableName, paths: Sequence[Path]
) -> tuple[pa.Table, list[Path], list[UnreadableFile]]:
    """Return the rows of several files, the files they are from, and the skipped files.

    Arrow's dataset discovery is not used: it applies the schema of the first file to all files and
    fails at the first damaged one. Threads are not used either: they are slower for small files.
    """
    schema, tables, used = _SCHEMAS[table], [], []
    unreadable: list[UnreadableFile] = []
    for path in paths:
        one = _load(path)
        if isinstance(one, UnreadableFile):
            unreadable.append(one)
            continue
        try:
            schema = pa.unify_schemas([schema, one.schema], promote_options="permissive")
        except pa.ArrowException as error:
            unreadable.append(UnreadableFile(path, f"columns of other types: {error}"))
            continue
        tables.append(one.replace_schema_metadata(None))
        used.append(path)
    empty = schema.remove_metadata().empty_table()
    return pa.concat_tables([empty, *tables], promote_options="permissive"), used, unreadable


def _parts(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.glob("part-*.parquet")) if _PART_NAME.fullmatch(p.name)]


def _key_of(path: Path) -> tuple[int, int] | None:
    match = _FILE_NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else None


def _keys(table: pa.Table) -> set[tuple[int, int]]:
    """Return the attempts (trial_id, attempt) that have rows in a table."""
    keys = table.group_by(["trial_id", "attempt"]).aggregate([])
    return set(zip(keys["trial_id"].to_pylist(), keys["attempt"].to_pylist(), strict=True))
