"""A study in a database of Optuna, for its dashboard and library: a copy of the journal.

Nothing is decided from it. It is written through Optuna's public interface alone, follows the
journal (`storage/journal.py`), and is begun anew wherever it differs: it may be deleted at any
time. One trial there is one proposal, after those of the warm start. Its parameters are named
`<family>.<parameter>`; `architecture` among its attributes is what is built.
"""

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from nas_evidence.proposing.proposer import (
    Point,
    Told,
    directions_of,
    distribution_of,
    facts_of,
    family_point,
    trial_of,
)
from nas_evidence.proposing.startup import searched
from nas_evidence.proposing.warm_start import read_warm_start
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.journal import events_since, journal_path

#: The file in a study folder.
STUDY_DB = "study.db"
#: Seconds that a writer waits for another process that holds an SQLite file.
_LOCKED = 60.0
#: Seconds that a server may take to answer.
_CONNECT = 10
#: A driver that SQLAlchemy would load for a bare name -> the one that our extra installs.
_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}


class _Differs(Exception):
    """The database holds something else than the journal."""


@dataclass(frozen=True)
class _Proposal:
    """A proposal as it shall be there; times in seconds since 1970."""

    number: int | None  # None in the warm start
    architecture: ArchitectureSpec
    asked: float = 0.0
    result: Told | None = None
    told: float = 0.0


class Export:
    """A study in a database, brought up to date by `update`.

    Args:
        study: the study.
        folder: its folder.
        url: of a database; `study.db` in the folder by default. There the study has its own name;
            elsewhere an id of its journal is added, since one database may hold many studies.
    """

    def __init__(self, study: StudySpec, folder: Path, url: str = "") -> None:
        self._study, self._folder = study, folder
        self._file = None if url else folder / STUDY_DB
        scheme, rest = (url or f"sqlite:///{STUDY_DB}").split("://", 1)
        self._url = f"{_DRIVERS.get(scheme, scheme)}://{rest}"
        self._read = 0  # bytes of the journal
        self._proposals: dict[int, _Proposal] = {}
        self._warm: list[_Proposal] = []
        self._storage: optuna.storages.RDBStorage | None = None
        self._there: optuna.Study | None = None
        self._n = 0  # proposals that are there
        self._trials: dict[int, Trial] = {}  # that this process has asked and not told

    def update(self) -> None:
        """Write what the journal has and the database has not.

        Raises:
            Exception: whatever the database raises.
        """
        changed = self._follow()
        if self._there is None and self._proposals:
            self._open()
        elif changed:
            try:
                self._write(sorted(number for number in changed if number < self._n))
            except _Differs:
                self._begin_anew()

    def close(self) -> None:
        """Close the connections."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
            self._storage = self._there = None

    # --- the journal

    def _follow(self) -> set[int]:
        """Read new lines of the journal; return which proposals they change."""
        events, self._read = events_since(self._folder, self._read)
        changed = set()
        for event in events:
            before = self._proposals.get(event.get("number", -1))
            if event["event"] == "ask" and isinstance(event.get("point"), Mapping):
                point = ArchitectureSpec.model_validate(event["point"])
                if before is None or before.architecture != point:
                    new = _Proposal(event["number"], point, event["t"])
                    self._proposals[event["number"]] = new
                    changed.add(event["number"])
            elif event["event"] == "tell" and before is not None:
                values, pruned = event.get("values"), bool(event.get("pruned"))
                constraints = event.get("constraints") or {}
                result = Told(None if values is None else tuple(values), constraints, pruned)
                if before.result != result:
                    new = replace(before, result=result, told=event["t"])
                    self._proposals[event["number"]] = new
                    changed.add(event["number"])
        return changed

    # --- the database

    def _open(self) -> None:
        """Go on with what is there, if it agrees with the journal; else begin anew."""
        self._warm = [
            _Proposal(None, architecture, result=Told(values))
            for architecture, values in read_warm_start(self._folder)
        ]
        try:
            self._connect()
            self._take_up()
        except Exception as error:
            if not isinstance(error, _Differs) and (self._file is None or _is_held(error)):
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
        with journal_path(self._folder).open("rb") as file:
            first = hashlib.blake2b(file.readline(), digest_size=4).hexdigest()
        return f"{self._study.name}-{first}"

    def _take_up(self) -> None:
        """Compare what is there with the journal, and write the rest.

        Raises:
            _Differs: if it is not what an export of this journal would have written.
        """
        assert self._there is not None
        found = self._there.get_trials(deepcopy=False)
        if not found:
            self._there.add_trials(self._finished(one) for one in self._warm)
        elif len(found) < len(self._warm) or self._there.directions != directions_of(self._study):
            raise _Differs
        unfinished = []
        for trial in found:
            number = trial.number - len(self._warm)
            wanted = self._warm[trial.number] if number < 0 else self._proposals.get(number)
            if wanted is None or not self._is_of(trial, wanted):
                raise _Differs
            if trial.state == TrialState.RUNNING:
                unfinished.append(number)
            elif not _has_result(trial, wanted.result):
                raise _Differs
        self._n = max(0, len(found) - len(self._warm))
        self._write(unfinished)

    def _is_of(self, found: FrozenTrial, wanted: _Proposal) -> bool:
        point = _readable(self._study, wanted.architecture)
        values = {name: value for name, (value, _) in point.items()}
        wrong = found.state == TrialState.WAITING or found.params != values
        return not wrong and bool(found.user_attrs == _attributes(wanted))

    def _begin_anew(self) -> None:
        """Remove what is there and write all again."""
        name = self._name()
        if self._file is not None:
            self.close()
            for path in self._folder.glob(f"{STUDY_DB}*"):
                path.unlink()
        elif self._storage is not None:
            optuna.delete_study(study_name=name, storage=self._storage)
            self.close()
        self._n, self._trials = 0, {}
        self._connect()
        self._take_up()

    def _write(self, unfinished: Sequence[int]) -> None:
        """Write the results of proposals that are running there, then new proposals.

        Raises:
            _Differs: if a result cannot be written to the trial that is there.
        """
        assert self._there is not None
        for number in unfinished:
            if self._proposals[number].result is not None:
                self._finish(number)
        while (new := self._proposals.get(self._n)) is not None:
            if new.result is not None:
                self._there.add_trial(self._finished(new))
            else:
                self._ask(new)
            self._n += 1

    def _ask(self, proposal: _Proposal) -> None:
        assert self._there is not None
        point = _readable(self._study, proposal.architecture)
        values = {name: value for name, (value, _) in point.items()}
        self._there.enqueue_trial(values, user_attrs=_attributes(proposal))
        self._trials[self._n] = self._there.ask(
            {name: space for name, (_, space) in point.items()}
        )

    def _finish(self, number: int) -> None:
        assert self._there is not None
        facts = facts_of(self._proposals[number].result)
        trial, constraints = self._trials.pop(number, None), facts.get("constraints", {})
        if trial is None and constraints:
            raise _Differs  # only the process that asked it can add them
        for name, excess in constraints.items():
            trial.set_constraint(name, excess)
        try:
            told = len(self._warm) + number if trial is None else trial
            self._there.tell(told, facts.get("values"), state=facts["state"])
        except ValueError:  # it is finished there, otherwise
            raise _Differs from None

    def _finished(self, proposal: _Proposal) -> FrozenTrial:
        facts = facts_of(proposal.result)
        point, attributes = _readable(self._study, proposal.architecture), _attributes(proposal)
        trial = trial_of(point, user_attrs=attributes, **facts)
        if proposal.asked:
            trial.datetime_start = datetime.fromtimestamp(proposal.asked)
            trial.datetime_complete = datetime.fromtimestamp(proposal.told)
        return trial


def _attributes(proposal: _Proposal) -> dict[str, Any]:
    architecture = proposal.architecture.model_dump(mode="json")
    if proposal.number is None:
        return {"warm_start": architecture}
    return {"architecture": architecture, "number": proposal.number}


def _has_result(found: FrozenTrial, wanted: Told | None) -> bool:
    facts = facts_of(wanted)
    return (found.state, found.values, found.constraints) == (
        facts["state"],
        facts.get("values"),
        facts.get("constraints", {}),
    )


def _is_held(error: BaseException | None) -> bool:
    """Return whether an error says that another process holds a file, or that it is not ours."""
    while error is not None:
        if isinstance(error, sqlite3.OperationalError):
            return True
        error = error.__cause__ or getattr(error, "orig", None) or error.__context__
    return False


def _readable(study: StudySpec, architecture: ArchitectureSpec) -> Point:
    """Return the searched parameters by name there: `<family>.<parameter>`."""
    family = architecture.family
    point = family_point(family, searched(study))
    for key, domain in study.family[family].items():
        point[f"{family}.{key}"] = (architecture.values[key], distribution_of(domain))
    return point
