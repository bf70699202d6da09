"""Which database coordinates a study, and what happens when it does not answer.

A study has SQLite in its folder, or any SQLAlchemy URL: `[database] url` in the study file, or
NAS_EVIDENCE_DATABASE in the environment, which comes first. The password comes from the
environment alone: NAS_EVIDENCE_DATABASE_PASSWORD, or what the client of the server reads, as
PGPASSWORD and ~/.pgpass. It goes to the client beside the URL and is never part of what is
written, logged or said.

`database.json` in the folder remembers the URL and the name of the study there: its own name and
an id, since one database holds many studies. A server that falls silent in the midst of a study is
waited for.
"""

import json
import logging
import os
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
#: Seconds that a server may be silent in the midst of a study, and between two tries at most.
PATIENCE, LONGEST_PAUSE = 300.0, 15.0
#: Seconds that one connection may take.
_CONNECT_TIMEOUT = 10
_RECORD = "database.json"
#: What SQLAlchemy loads for a bare name, and what is installed with our extra.
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_SILENT = (exc.OperationalError, exc.InterfaceError, exc.DisconnectionError, exc.TimeoutError)


@dataclass(frozen=True)
class Database:
    """A study in a database.

    url          SQLAlchemy's, without a password
    study_name   there
    must_exist   whether the study began elsewhere, so that an empty database is the wrong one
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
        # A connection for each transaction: none is dead when the server was away for a while.
        return {"poolclass": sqlalchemy.NullPool, "connect_args": secret}


def sqlite(file: Path | str, study_name: str) -> Database:
    """Return a study in an SQLite file, given by its path or URL."""
    return Database(file if isinstance(file, str) else f"sqlite:///{file}", study_name)


def database_of(folder: Path, study: StudySpec) -> Path | Database:
    """Return the SQLite file of a study folder, or the database that it names or remembers.

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
                f"{folder} has its database in study.db, but {url} is asked for; a study stays "
                f"where it began: unset {URL_VARIABLE} and `url` in [database]."
            )
        name = f"{study.name}-{uuid.uuid4().hex[:12]}"
        write_whole(folder / _RECORD, json.dumps({"url": url, "study_name": name}))
        return Database(url, name, password=password)
    return Database(url, known[1], must_exist=url != known[0], password=password)


def check_database(database: Database) -> None:
    """Make sure that the database answers, now.

    Raises:
        ValueError: if not; says why, in one line and without a password.
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
            f"{said(database, error)} Check its address, the user, and {PASSWORD_VARIABLE}."
        ) from None


class Patient:
    """A storage whose every call is tried again while the server is silent.

    A call may have been carried out although its answer was lost, so that callers write what may
    stand there twice.
    """

    def __init__(self, storage: Any, database: Database) -> None:
        self._storage, self._database = storage, database

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)

        def call(*arguments: Any, **named: Any) -> Any:
            return patiently(lambda: method(*arguments, **named), self._database)

        return call


def connected(connect: Callable[[], Any], database: Database) -> Patient:
    """Return the storage that `connect` returns, for calls that wait for a silent server."""
    try:
        storage = patiently(connect, database)
    except (exc.IntegrityError, exc.ProgrammingError):  # another study made the tables just now
        time.sleep(1.0)
        storage = patiently(connect, database)
    return Patient(storage, database)


def study_in(
    storage: Any, database: Database, directions: Sequence[Any], schema_version: int
) -> int:
    """Return the id of the study in the database, created there if need be.

    Raises:
        ValueError: if it began in another database, or a newer version wrote it.
    """
    name = database.study_name
    try:
        study_id = int(storage.get_study_id_from_name(name))
    except KeyError:
        if database.must_exist:
            raise ValueError(
                f"the study {name!r} began in another database than {database.url}, which does "
                "not hold it; give that one, or move its tables here."
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


def patiently(action: Callable[[], Any], database: Database) -> Any:
    """Return what the action returns; wait for a server that is silent.

    Raises:
        StudyStoppedError: it is silent for too long.
    """

    def may_pass(error: BaseException) -> bool:
        return not database.url.startswith("sqlite") and is_silent(error)

    try:
        return try_again(
            action,
            when=may_pass,
            patience=PATIENCE,
            pause=0.5,
            longest_pause=LONGEST_PAUSE,
            before_pause=lambda e: _LOG.warning("database_silent error=%s", said(database, e)),
        )
    except Exception as error:
        if not may_pass(error):
            raise
        raise StudyStoppedError(
            f"{said(database, error)} The study stopped after {PATIENCE:.0f} s and nothing is "
            "lost: resume it when the server is back."
        ) from None


def is_silent(error: BaseException) -> bool:
    """Tell whether an error, or what lies behind it, says that the server does not answer."""
    return isinstance(error, _SILENT) or isinstance(error.__cause__, _SILENT)


def said(database: Database, error: BaseException) -> str:
    """Return in one line, without a password, what a database said."""
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
    facts = json.loads(path.read_text(encoding="utf-8"))
    return facts["url"], facts["study_name"]


def _without_password(text: str) -> tuple[str, str | None]:
    """Return a URL with the driver that we use, and the password that was in it."""
    try:
        url = sqlalchemy.make_url(text)
    except (exc.ArgumentError, ValueError):  # whose words may hold the password
        raise ValueError(
            f"{masked(text)} is no database URL; expected postgresql://USER@HOST:PORT/NAME or "
            f"another of SQLAlchemy's, the password in {PASSWORD_VARIABLE}."
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
    return bare.render_as_string(), None if password is None else str(password)
