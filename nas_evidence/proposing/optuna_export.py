"""The finished proposals of a study in a database of Optuna, for its dashboard and library.

A copy of the log (`storage/log.py`), written with `--track optuna` and never read here. It
is written through Optuna's public interface alone, and begun anew wherever it differs from the
log. One trial there is one proposal that has been told, in the order of telling, after those
of the warm start. Its parameters are named `<family>.<parameter>`; its attributes hold `number`
and `architecture`, which is what is built.
"""

import hashlib
import sqlite3
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from nas_evidence.proposing.proposer import (
    ProposalResult,
    directions_of,
    distribution_of,
    facts_of,
    family_point,
    trial_of,
)
from nas_evidence.proposing.startup import searched
from nas_evidence.proposing.warm_start import read_warm_start
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.events import Asked, Told
from nas_evidence.storage.log import events_since, log_path

#: The file in a study folder.
STUDY_DB = "study.db"
#: Seconds that a writer waits for another process that holds an SQLite file.
_LOCKED = 60.0
#: Seconds that a server may take to answer.
_CONNECT = 10
#: A driver that SQLAlchemy would load for a bare name -> the one that our extra installs.
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}


class Export:
    """A study in a database, brought up to date by `update`.

    Args:
        study: the study.
        folder: its folder.
        url: of a database; `study.db` in the folder by default. There the study has its own name;
            elsewhere an id of its log is added, since one database may hold many studies.
    """

    def __init__(self, study: StudySpec, folder: Path, url: str = "") -> None:
        self._study, self._folder = study, folder
        self._file = None if url else folder / STUDY_DB
        scheme, rest = (url or f"sqlite:///{STUDY_DB}").split("://", 1)
        self._url = f"{_DRIVERS.get(scheme, scheme)}://{rest}"
        self._read = 0  # bytes of the log
        self._asked: dict[int, tuple[ArchitectureSpec, float]] = {}  # and when
        self._told: dict[int, FrozenTrial] = {}  # by number, in the order of telling
        self._storage: optuna.storages.RDBStorage | None = None
        self._there: optuna.Study | None = None

    def update(self) -> None:
        """Write the finished proposals that the log has and the database has not.

        Raises:
            Exception: whatever the database raises.
        """
        n_there, again = len(self._told), self._follow()
        if self._there is None:
            if self._told:
                self._open()
        elif again:
            self._begin_anew()
        else:
            self._there.add_trials(list(self._told.values())[n_there:])

    def close(self) -> None:
        """Close the connections."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
            self._storage = self._there = None

    def _follow(self) -> bool:
        """Read new lines of the log; return whether they change a result."""
        events, self._read = events_since(self._folder, self._read)
        again = False
        for t, event in events:
            if isinstance(event, Asked):
                number, point = event.number, event.architecture
                if number not in self._asked or self._asked[number][0] != point:
                    self._asked[number] = (point, t)
                    again |= self._told.pop(number, None) is not None
            elif isinstance(event, Told) and event.number in self._asked:
                again |= self._told.pop(event.number, None) is not None
                self._told[event.number] = self._proposal(event, t)
        return again

    def _proposal(self, event: Told, t: float) -> FrozenTrial:
        """Return a proposal with the result that a line of the log tells."""
        number = event.number
        point, asked = self._asked[number]
        told = ProposalResult(event.values, event.constraints, event.pruned)
        about = {"architecture": point.model_dump(mode="json"), "number": number}
        trial = self._trial(point, told, about)
        trial.datetime_start = datetime.fromtimestamp(asked)
        trial.datetime_complete = datetime.fromtimestamp(t)
        return trial

    def _trial(
        self, architecture: ArchitectureSpec, told: ProposalResult, about: Mapping[str, Any]
    ) -> FrozenTrial:
        family = architecture.family
        point = family_point(family, searched(self._study))
        for key, domain in self._study.family[family].items():
            point[f"{family}.{key}"] = (architecture.values[key], distribution_of(domain))
        return trial_of(point, user_attrs=dict(about), **facts_of(told))

    def _wanted(self) -> list[FrozenTrial]:
        """Return all trials of the copy: those of the warm start, then those told."""
        warm = [
            self._trial(
                point, ProposalResult(values), {"warm_start": point.model_dump(mode="json")}
            )
            for point, values in read_warm_start(self._folder)
        ]
        return [*warm, *self._told.values()]

    def _open(self) -> None:
        """Go on with what is there, if it agrees with the log; else begin anew."""
        wanted = self._wanted()
        try:
            self._connect()
            assert self._there is not None
            found = self._there.get_trials(deepcopy=False)
            agrees = self._there.directions == directions_of(self._study)
            if agrees and list(map(_said, found)) == list(map(_said, wanted[: len(found)])):
                self._there.add_trials(wanted[len(found) :])
                return
        except Exception as error:
            if self._file is None or _is_held(error):
                raise
        self._begin_anew()

    def _connect(self) -> None:
        how: dict[str, Any] = {}
        if self._file is not None:  # any path, also one that has another meaning in a URL
            options = {"timeout": _LOCKED, "check_same_thread": False}
            how = {"creator": partial(sqlite3.connect, self._file.resolve(), **options)}
        elif self._url.startswith("sqlite"):
            how = {"connect_args": {"timeout": _LOCKED}}
        elif self._url.startswith("postgresql"):
            how = {"connect_args": {"connect_timeout": _CONNECT}}
        self._storage = optuna.storages.RDBStorage(self._url, engine_kwargs=how)
        self._there = optuna.create_study(
            study_name=self._name(),
            storage=self._storage,
            sampler=optuna.samplers.RandomSampler(),  # every parameter is given
            directions=directions_of(self._study),
            load_if_exists=True,
        )

    def _name(self) -> str:
        if self._file is not None:
            return self._study.name
        with log_path(self._folder).open("rb") as file:
            first = hashlib.blake2b(file.readline(), digest_size=4).hexdigest()
        return f"{self._study.name}-{first}"

    def _begin_anew(self) -> None:
        """Remove what is there and write all again."""
        if self._file is not None:
            self.close()
            for path in self._folder.glob(f"{STUDY_DB}*"):
                path.unlink()
        elif self._storage is not None:
            optuna.delete_study(study_name=self._name(), storage=self._storage)
            self.close()
        self._connect()
        assert self._there is not None
        self._there.add_trials(self._wanted())


def _said(trial: FrozenTrial) -> tuple[object, ...]:
    """Return what the copy says of a proposal, but for times."""
    return (trial.state, trial.params, trial.values, trial.constraints, trial.user_attrs)


def _is_held(error: BaseException | None) -> bool:
    """Return whether an error says that another process holds a file, or that it is not ours."""
    while error is not None:
        if isinstance(error, sqlite3.OperationalError):
            return True
        error = error.__cause__ or getattr(error, "orig", None) or error.__context__
    return False
