"""The database of a study: which one, and retries while it does not answer.

A study uses SQLite in its folder, or any SQLAlchemy URL: NAS_EVIDENCE_DATABASE in the
environment, else `[database] url` in the study file. The password comes only from the
environment: NAS_EVIDENCE_DATABASE_PASSWORD, or what the server's client reads, such as PGPASSWORD
and ~/.pgpass. It is passed to the client separately from the URL and never written, logged or
printed.

`database.json` in the folder records the URL and the name of the study in the database: its own
name plus an id, since one database holds many studies. If a server stops answering during a study,
the driver waits for it.
"""

import contextlib
import itertools
import json
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import exc

from nas_evidence.domains import masked
from nas_evidence.files import write_whole
from nas_evidence.retrying import try_again
from nas_evidence.spec import StudySpec
from nas_evidence.storage.faults import StudyStoppedError

_LOG = logging.getLogger(__name__)
URL_VARIABLE, PASSWORD_VARIABLE = "NAS_EVIDENCE_DATABASE", "NAS_EVIDENCE_DATABASE_PASSWORD"
#: Seconds that a server may be silent during a study, and the longest pause between two tries.
PATIENCE, LONGEST_PAUSE = 300.0, 15.0
#: Timeout of one connection, seconds.
_CONNECT_TIMEOUT = 10
_RECORD = "database.json"
#: The driver that SQLAlchemy loads for a bare name -> the one that our extra installs.
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_SILENT = (exc.OperationalError, exc.InterfaceError, exc.DisconnectionError, exc.TimeoutError)


@dataclass(frozen=True)
class Database:
    """A study in a database.

    url          SQLAlchemy URL, without a password
    study_name   name of the study in the database
    must_exist   whether the URL differs from the recorded one: the study must then exist there
    """

    url: str
    study_name: str
    must_exist: bool = False
    password: str | None = field(default=None, repr=False)

    @property
    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of `sqlalchemy.create_engine`."""
        if self.url.startswith("sqlite"):
            return {"connect_args": {"timeout": 60}}
        secret = {} if self.password is None else {"password": self.password}
        if self.url.startswith("postgresql+psycopg"):
            secret["connect_timeout"] = str(_CONNECT_TIMEOUT)
        # One connection per transaction: no stale connection after the server was away.
        return {"poolclass": sqlalchemy.NullPool, "connect_args": secret}


def sqlite(file: Path | str, study_name: str) -> Database:
    """Return a study in an SQLite file, given by its path or URL."""
    return Database(file if isinstance(file, str) else f"sqlite:///{file}", study_name)


def database_of(folder: Path, study: StudySpec) -> Path | Database:
    """Return the SQLite file of a study folder, or the database that it names or records.

    Raises:
        ValueError: if the URL cannot be read, or the study began in another database.
    """
    given = os.environ.get(URL_VARIABLE) or study.database.url
    known = _remembered(folder)
    if given is None and known is None:
        return folder / "study.db"
    url, password = _without_password(given or known[0])  # type: ignore[index]
    password = os.environ.get(PASSWORD_VARIABLE) or password
    if known is None:
        if (folder / "study.db").exists():
            raise ValueError(
                f"{folder} has its database in study.db, but got {url}; a study cannot change "
                f"its database: unset {URL_VARIABLE} and `url` in [database]."
            )
        name = f"{study.name}-{uuid.uuid4().hex[:12]}"
        record = json.dumps({"url": url, "study_name": name})
        write_whole(folder / _RECORD, record, private=True)
        return Database(url, name, password=password)
    return Database(url, known[1], must_exist=url != known[0], password=password)


def sqlite_damage(file: Path) -> str:
    """Return why an SQLite file is not sound, or "" if it is; a new, empty file is sound.

    Raises:
        StudyStoppedError: another process holds it, or it cannot be opened.
    """
    if not file.is_file():
        return "it is not a file"
    if file.stat().st_size == 0:
        return "it is empty"
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=60.0)) as connection:
            said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            names = {n for (n,) in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.OperationalError as error:
        raise StudyStoppedError(
            f"the database {file} cannot be opened: {error}. Check that no other process uses it, "
            "and that this user may read and write it."
        ) from None
    except sqlite3.DatabaseError as error:
        return f"it is damaged ({error})"
    if said != "ok":
        return f"it is damaged ({str(said).splitlines()[-1]})"
    return "" if "studies" in names else "it has no table of studies"


def set_aside(folder: Path, study: StudySpec) -> str:
    """Put the database of a study out of use, without deleting it; return its new name.

    An SQLite file is renamed. On a server the study gets a new name, and the old one stays.
    """
    database = database_of(folder, study)
    if isinstance(database, Path):
        taken = (folder / f"study.db.damaged-{n}" for n in itertools.count(1))
        aside = next(path for path in taken if not path.exists())
        database.replace(aside)
        for left in folder.glob("study.db-*"):  # the write-ahead files of the old one
            left.unlink()
        return aside.name
    name = f"{study.name}-{uuid.uuid4().hex[:12]}"
    record = json.dumps({"url": database.url, "study_name": name})
    write_whole(folder / _RECORD, record, private=True)
    return f"the study {database.study_name!r}"


def check_database(database: Database) -> None:
    """Check that the database answers now.

    Raises:
        ValueError: if not; one line that says why, without a password.
    """
    try:
        engine = sqlalchemy.create_engine(database.url, **database.engine_options)
        with engine.connect():
            pass
        engine.dispose()
    except ImportError as error:
        raise ValueError(
            f"{database.url} cannot be used: {error}; install the driver, for PostgreSQL "
            "'nas-evidence[postgresql]'."
        ) from None
    except exc.SQLAlchemyError as error:
        raise ValueError(
            f"{error_line(database, error)} Check its address, the user, and {PASSWORD_VARIABLE}."
        ) from None


class RetryingStorage:
    """A storage that retries every call while the server is silent.

    A call may have taken effect although its answer was lost, so callers only write what may be
    written twice.
    """

    def __init__(self, storage: Any, database: Database) -> None:
        self._storage, self._database = storage, database

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)

        def call(*arguments: Any, **named: Any) -> Any:
            return with_retries(lambda: method(*arguments, **named), self._database)

        return call


def connected(connect: Callable[[], Any], database: Database) -> RetryingStorage:
    """Return the storage that `connect` returns, with retries while the server is silent."""
    try:
        storage = with_retries(connect, database)
    except (exc.IntegrityError, exc.ProgrammingError):  # another study made the tables just now
        time.sleep(1.0)
        storage = with_retries(connect, database)
    return RetryingStorage(storage, database)


def study_in(
    storage: Any, database: Database, directions: Sequence[Any], schema_version: int
) -> int:
    """Return the id of the study in the database, creating it if needed.

    Raises:
        ValueError: if it began in another database, or a newer version wrote it.
    """
    name = database.study_name
    try:
        study_id = int(storage.get_study_id_from_name(name))
    except KeyError:
        if database.must_exist:
            raise ValueError(
                f"the study {name!r} is not in {database.url}: it began in another database; give "
                "that one, or move its tables here."
            ) from None
        study_id = int(storage.create_new_study(directions, name))
    version = storage.get_study_user_attrs(study_id).get("schema_version", 1)
    if version > schema_version:
        raise ValueError(
            f"the database of study {name!r} must have schema_version <= {schema_version}, "
            f"but it has {version}: a newer nas-evidence wrote it. Continue it with that one."
        )
    storage.set_study_user_attr(study_id, "schema_version", schema_version)
    return study_id


def with_retries(action: Callable[[], Any], database: Database) -> Any:
    """Return what the action returns; retry while the server is silent.

    Raises:
        StudyStoppedError: if it is silent for too long.
    """

    def may_be_temporary(error: BaseException) -> bool:
        return not database.url.startswith("sqlite") and is_silent(error)

    try:
        return try_again(
            action,
            when=may_be_temporary,
            patience=PATIENCE,
            pause=0.5,
            longest_pause=LONGEST_PAUSE,
            before_pause=lambda e: _LOG.warning(
                "database_silent error=%s", error_line(database, e)
            ),
        )
    except Exception as error:
        if not may_be_temporary(error):
            raise
        raise StudyStoppedError(
            f"{error_line(database, error)} The study stopped after {PATIENCE:.0f} s and nothing "
            "is lost: resume it when the server is back."
        ) from None


def is_silent(error: BaseException) -> bool:
    """Return whether an error, or its cause, means that the server does not answer."""
    return isinstance(error, _SILENT) or isinstance(error.__cause__, _SILENT)


def error_line(database: Database, error: BaseException) -> str:
    """Return a database error as one line without a password."""
    cause = error.__cause__ if isinstance(error.__cause__, exc.SQLAlchemyError) else error
    words = str(getattr(cause, "orig", None) or cause).strip().splitlines()
    why = masked(words[0]).rstrip(".") if words else type(cause).__name__
    if database.password:
        why = why.replace(database.password, "***")
    return f"the database {database.url} does not answer: {why}."


def _remembered(folder: Path) -> tuple[str, str] | None:
    path = folder / _RECORD
    if not path.exists():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return str(facts["url"]), str(facts["study_name"])
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{path} is damaged: it must hold the `url` of the database and the `study_name` "
            "there, as JSON. Restore it, or look up the study's name in the database."
        ) from None


def _without_password(text: str) -> tuple[str, str | None]:
    """Return a URL with our driver, and the password that it contained."""
    try:
        url = sqlalchemy.make_url(text)
    except (exc.ArgumentError, ValueError):  # its message may contain the password
        raise ValueError(
            f"{URL_VARIABLE} or `url` in [database] is no database URL; expected "
            f"postgresql://USER@HOST:PORT/NAME, the password in {PASSWORD_VARIABLE}."
        ) from None
    query = dict(url.query)
    password = query.pop("password", None) or url.password
    bare = sqlalchemy.URL.create(
        _DRIVERS.get(url.drivername, url.drivername),
        username=url.username,
        host=url.host,
        port=url.port,
        database=url.database,
        query=query,
    )
    left = bare.render_as_string(hide_password=False)
    if ":" in (url.username or "") or masked(left) != left:
        raise ValueError(
            f"the database URL holds what looks like a password in another place than "
            f"USER:PASSWORD@; remove it, and give the password in {PASSWORD_VARIABLE}."
        )
    return left, None if password is None else str(password)
