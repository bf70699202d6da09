"""The results of a study as Parquet: four tables, one file for each attempt at a trial.

    trials/    one row an attempt: what ran, how it ended, what it cost
    evidence/  one row an (epoch, estimator), long form: a new estimator needs no new column
    terms/     the named parts of each estimate
    curves/    one row an epoch of training

`evidence`, `terms` and `curves` are written before `trials`, whose file is the commit marker:
without it the attempt does not exist. A file appears whole or not at all (temporary name, fsync,
rename). Missing is null, never NaN. Columns are only ever added, so that files of every version
read together; what cannot be read is skipped and reported, never guessed.
"""

import logging
import math
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from nas_evidence.record import EvidenceEstimate, TrialRecord, TrialStatus
from nas_evidence.spec import ParameterValue, StudySpec

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1

TableName = Literal["trials", "evidence", "terms", "curves"]
Cell = ParameterValue | None
Row = dict[str, Cell]

_KEY = {"trial_id": pa.int64(), "attempt": pa.int64()}
_SCHEMAS: Mapping[TableName, pa.Schema] = {
    "trials": pa.schema(
        _KEY
        | {
            "replicate": pa.int64(),
            "architecture_key": pa.string(),
            "status": pa.string(),
            "cause": pa.string(),
            "family": pa.string(),
            "arch_depth": pa.int64(),
            "arch_width": pa.int64(),
            "arch_shape": pa.string(),
            "seed": pa.int64(),
            "n_parameters": pa.int64(),
            "n_data": pa.int64(),
            "epochs": pa.int64(),
            "test_accuracy": pa.float64(),
            "test_nll_per_datum": pa.float64(),
            "train_seconds": pa.float64(),
            "evidence_seconds": pa.float64(),
            "total_seconds": pa.float64(),
            "versions": pa.string(),
            "error": pa.string(),
        }
    ),
    "evidence": pa.schema(
        _KEY
        | {
            "epoch": pa.int64(),
            "estimator": pa.string(),
            "value": pa.float64(),
            "per_datum": pa.float64(),
            "relation": pa.string(),
            "standard_error": pa.float64(),
            "valid": pa.bool_(),
            "note": pa.string(),
            "seconds": pa.float64(),
        }
    ),
    "terms": pa.schema(
        _KEY
        | {
            "epoch": pa.int64(),
            "estimator": pa.string(),
            "term": pa.string(),
            "group": pa.string(),
            "value": pa.float64(),
        }
    ),
    "curves": pa.schema(
        _KEY
        | {
            "epoch": pa.int64(),
            "train_nll_per_datum": pa.float64(),
            "learning_rate": pa.float64(),
            "sotl": pa.float64(),
            "sotl_e": pa.float64(),
            "sotl_ema": pa.float64(),
            "prequential_epoch1": pa.float64(),
            "seconds": pa.float64(),
        }
    ),
}
#: Commit order: the marker last.
TABLES: tuple[TableName, ...] = ("evidence", "terms", "curves", "trials")
_FILE_NAME = re.compile(r"\d{6,}-a\d+\.parquet")
_ARROW_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
#: pandas columns that can hold a missing integer or truth value without turning into floats.
_PANDAS_TYPES = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}


@dataclass(frozen=True)
class UnreadableFile:
    """A file that was skipped, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class TrialRow:
    """What the driver must know of a finished trial.

    `values` maps each estimator to its last value (larger is better) where that one is valid.
    """

    trial_id: int
    attempt: int
    replicate: int
    status: TrialStatus
    architecture_key: str
    values: Mapping[str, float]

    @classmethod
    def of(cls, record: TrialRecord) -> "TrialRow":
        """Return the row that `finished` would read back after `record` is written."""
        last = {e.estimate.estimator: e.estimate for e in record.evaluations}
        return cls(
            trial_id=record.trial_id,
            attempt=record.attempt,
            replicate=record.replicate,
            status=record.status,
            architecture_key=record.architecture.key,
            values={k: e.value for k, e in last.items() if e.valid and math.isfinite(e.value)},
        )


def write_record(folder: Path, record: TrialRecord, spec: StudySpec) -> None:
    """Write the four files of one finished attempt, the commit marker last.

    Writing the same record again changes no file. Files of an attempt that has no commit marker
    (the writer was killed between two files) are replaced.

    Raises:
        ValueError: the status is not final, or this attempt is already committed with other
            content.
    """
    if not record.status.is_final:
        raise ValueError(
            f"only finished trials are stored, but trial {record.trial_id} is "
            f'"{record.status}"; write it when it is over.'
        )
    tables = _tables(record, spec)
    name = f"{record.trial_id:06d}-a{record.attempt}.parquet"
    committed = _stored(folder / "trials" / name) is not None
    for table in TABLES:
        path = folder / table / name
        stored = _stored(path) if committed else None
        if stored is None:
            _write_atomically(path, tables[table])
        elif not stored.equals(tables[table], check_metadata=False):
            raise ValueError(
                f"a committed attempt is never changed, but {path} holds another {table} table "
                f"of trial {record.trial_id}, attempt {record.attempt}; "
                "count up the attempt to store a new run."
            )


def read_table(folder: Path, table: TableName) -> pd.DataFrame:
    """Return one table of a study, holding the first finished attempt of each trial.

    Integers and truth values are nullable columns; a missing float is NaN in pandas and null in
    the file. Torn and foreign files are skipped with a warning; `read_tables` names them.
    """
    return read_tables(folder, [table])[0][table]


def read_tables(
    folder: Path, tables: Sequence[TableName] = TABLES
) -> tuple[dict[TableName, pd.DataFrame], tuple[UnreadableFile, ...]]:
    """Return several tables as `read_table` does, and the files that were skipped."""
    trials, unreadable = _read(folder, "trials")
    final = trials["status"].isin([status.value for status in TrialStatus if status.is_final])
    trials = trials[final].sort_values(["trial_id", "attempt"])
    frames = {"trials": trials.drop_duplicates("trial_id", ignore_index=True)}
    first_attempts = frames["trials"][["trial_id", "attempt"]]
    for table in dict.fromkeys(tables):
        if table != "trials":
            frame, skipped = _read(folder, table)
            unreadable += skipped
            frame = frame.merge(first_attempts, on=["trial_id", "attempt"])
            frames[table] = frame.sort_values(
                ["trial_id", "epoch"], kind="stable", ignore_index=True
            )
    for file in unreadable:
        logger.warning("skipped file=%s reason=%s", file.path, file.reason)
    return {table: frames[table] for table in tables}, tuple(unreadable)


def finished(folder: Path) -> dict[int, TrialRow]:
    """Return what the driver must know of every finished trial, by trial id."""
    tables, _ = read_tables(folder, ["trials", "evidence"])
    trials, evidence = tables["trials"], tables["evidence"]
    last = evidence.drop_duplicates(["trial_id", "estimator"], keep="last")
    last = last[last["valid"].fillna(False) & last["value"].notna()]
    values: dict[int, dict[str, float]] = {}
    for trial_id, estimator, value in zip(
        last["trial_id"], last["estimator"], last["value"], strict=True
    ):
        values.setdefault(int(trial_id), {})[str(estimator)] = float(value)
    return {
        int(row.trial_id): TrialRow(
            trial_id=int(row.trial_id),
            attempt=int(row.attempt),
            replicate=int(row.replicate),
            status=TrialStatus(row.status),
            architecture_key=row.architecture_key,
            values=values.get(row.trial_id, {}),
        )
        for row in trials.itertuples()
    }


def _tables(record: TrialRecord, spec: StudySpec) -> dict[TableName, pa.Table]:
    key: Row = {"trial_id": record.trial_id, "attempt": record.attempt}
    arch = {f"arch_{name}": value for name, value in record.architecture.values.items()}
    trial: Row = {
        "architecture_key": record.architecture.key,
        "family": record.architecture.family,
        **{
            name: getattr(record, name)
            for name in _SCHEMAS["trials"].names
            if name in TrialRecord.model_fields
        },
        "status": record.status.value,
        **arch,
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
    return {table: _arrow_table(table, rows[table], spec) for table in TABLES}


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


def _write_atomically(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    try:
        with temporary.open("wb") as file:
            pq.write_table(table, file, compression="zstd", use_dictionary=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # makes the rename itself durable
    finally:
        os.close(directory)


def _stored(path: Path) -> pa.Table | None:
    """Return the table at `path`, or None if there is no readable one."""
    loaded = _load(path) if path.exists() else None
    return loaded if isinstance(loaded, pa.Table) else None


def _load(path: Path) -> pa.Table | UnreadableFile:
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        return UnreadableFile(path, f"torn or not Parquet: {str(error).splitlines()[0]}")
    if b"nas_evidence.schema_version" not in (table.schema.metadata or {}):
        return UnreadableFile(path, "foreign: no nas_evidence.schema_version in its metadata")
    return table


def _read(folder: Path, table: TableName) -> tuple[pd.DataFrame, list[UnreadableFile]]:
    """Return all attempts in one table, with the files skipped.

    Arrow's own discovery is not used: it takes the schema of the first file for all, and gives
    up on the first torn one.
    """
    paths = sorted((folder / table).glob("[!._]*.parquet"))
    named = [path for path in paths if _FILE_NAME.fullmatch(path.name)]
    unreadable = [
        UnreadableFile(path, "foreign: not named <trial>-a<attempt>.parquet")
        for path in paths
        if not _FILE_NAME.fullmatch(path.name)
    ]
    with ThreadPoolExecutor(max_workers=4) as pool:
        loaded = list(pool.map(_load, named))
    schema, tables = _SCHEMAS[table], []
    for path, one in zip(named, loaded, strict=True):
        if isinstance(one, UnreadableFile):
            unreadable.append(one)
            continue
        try:
            schema = pa.unify_schemas([schema, one.schema], promote_options="permissive")
        except pa.ArrowException as error:
            unreadable.append(UnreadableFile(path, f"columns of other types: {error}"))
            continue
        tables.append(one.replace_schema_metadata(None))
    joined = pa.concat_tables(
        [schema.with_metadata(None).empty_table(), *tables], promote_options="permissive"
    )
    return joined.to_pandas(types_mapper=_PANDAS_TYPES.get), unreadable
