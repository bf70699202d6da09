"""The finished proposals of a study in a database of Optuna, for its dashboard and library.

A copy of the log (`storage/log.py`), written with `--track optuna` and never read here:
new results are appended, and where there are more than the log knows, or one changes, all is
written again. One trial there is one proposal that has been told, in the order of telling, after
those of the warm start. Its parameters are named `<family>.<parameter>`; its attributes hold
`number` and `architecture`, which is what is built.
"""

import hashlib
import re
import sqlite3
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from nas_evidence.plumbing.names import translated
from nas_evidence.plumbing.removal import remove
from nas_evidence.proposing.optuna_samplers import directions_of
from nas_evidence.proposing.past import ProposalResult
from nas_evidence.proposing.startup import searched
from nas_evidence.proposing.warm_start import read_warm_start
from nas_evidence.spec.domains import Choice, Domain, FloatRange
from nas_evidence.spec.study import ArchitectureSpec, StudySpec
from nas_evidence.storage.events import Asked, Told
from nas_evidence.storage.log import ReadLog, events_since, log_files

#: The file in a study folder.
STUDY_DB = "study.db"
#: What a column of a database holds.
_NAME = re.compile(".{1,512}")
#: Seconds that a writer waits for another process that holds an SQLite file, and for a server.
_LOCKED, _CONNECT = 60.0, 10
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
        self._past = ReadLog()  # of the log
        self._asked: dict[int, tuple[ArchitectureSpec, float]] = {}  # and when
        self._told: dict[int, FrozenTrial] = {}  # by number, in the order of telling
        self._storage: optuna.storages.RDBStorage | None = None

    def update(self) -> None:
        """Write the finished proposals that the log has and the database has not.

        Raises:
            Exception: whatever the database raises.
        """
        changed = self._follow()
        if not self._told:
            return
        warm = (
            self._trial(point, ProposalResult(values), warm_start=point.model_dump(mode="json"))
            for point, values in read_warm_start(self._folder)
        )
        wanted = [*warm, *self._told.values()]
        try:
            there = self._connected()
            n_there = len(there.get_trials(deepcopy=False))
            if not changed and n_there <= len(wanted):
                there.add_trials(wanted[n_there:])
                return
        except Exception as error:
            if self._file is None or _is_held(error):
                raise
        self._remove()
        self._connected().add_trials(wanted)

    def close(self) -> None:
        """Close the connections."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
            self._storage = None

    def _follow(self) -> bool:
        """Read new lines of the log; return whether they change a result."""
        events, past = events_since(self._folder, self._past)
        changed = past is not self._past and bool(self._told)
        if past is not self._past:
            self._past, self._asked, self._told = past, {}, {}
        for t, event in events:
            if isinstance(event, Asked):
                number, point = event.number, event.architecture
                if number not in self._asked or self._asked[number][0] != point:
                    self._asked[number] = (point, t)
                    changed |= self._told.pop(number, None) is not None
            elif isinstance(event, Told) and event.number in self._asked:
                changed |= self._told.pop(event.number, None) is not None
                point, asked = self._asked[event.number]
                told = ProposalResult(event.values, event.constraints, event.pruned)
                about = {"architecture": point.model_dump(mode="json"), "number": event.number}
                trial = self._told[event.number] = self._trial(point, told, **about)
                trial.datetime_start = datetime.fromtimestamp(asked)
                trial.datetime_complete = datetime.fromtimestamp(t)
        return changed

    def _trial(self, one: ArchitectureSpec, told: ProposalResult, **about: object) -> FrozenTrial:
        domains = self._study.family[one.family]
        named = {name: translated(f"{one.family}.{name}", _NAME) for name in domains}
        params: dict[str, Any] = {named[name]: one.values[name] for name in domains}
        distributions = {named[name]: _distribution(domain) for name, domain in domains.items()}
        families = searched(self._study)
        if len(families) > 1 and one.family in families:
            params = {"family": one.family, **params}
            distributions["family"] = CategoricalDistribution(families)
        return create_trial(
            state=TrialState[told.state],
            values=told.values if told.state == "COMPLETE" else None,
            constraints=told.constraints,
            params=params,
            distributions=distributions,
            user_attrs=about,
        )

    def _connected(self) -> optuna.Study:
        if self._storage is None:
            how: dict[str, Any] = {}
            if self._file is not None:  # any path, also one that has another meaning in a URL
                options = {"timeout": _LOCKED, "check_same_thread": False}
                how = {"creator": partial(sqlite3.connect, self._file.resolve(), **options)}
            elif self._url.startswith("sqlite"):
                how = {"connect_args": {"timeout": _LOCKED}}
            elif self._url.startswith("postgresql"):
                how = {"connect_args": {"connect_timeout": _CONNECT}}
            self._storage = optuna.storages.RDBStorage(self._url, engine_kwargs=how)
        return optuna.create_study(
            study_name=self._name(),
            storage=self._storage,
            sampler=optuna.samplers.RandomSampler(),  # every parameter is given
            directions=directions_of(self._study),
            load_if_exists=True,
        )

    def _name(self) -> str:
        if self._file is not None:
            return self._study.name
        with log_files(self._folder)[0].open("rb") as file:
            first = hashlib.blake2b(file.readline(), digest_size=4).hexdigest()
        return f"{self._study.name}-{first}"

    def _remove(self) -> None:
        if self._file is None:
            optuna.delete_study(study_name=self._name(), storage=self._storage)
            return
        self.close()
        for path in self._folder.glob(f"{STUDY_DB}*"):
            remove(path)


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    """Return a domain as Optuna's dashboard shows it."""
    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.options)
    if isinstance(domain, FloatRange):
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    # Optuna warns if the upper end is not a member.
    last = domain.low + domain.step * int(domain.size - 1)
    return IntDistribution(domain.low, last, log=domain.log, step=domain.step)


def _is_held(error: BaseException | None) -> bool:
    """Return whether an error says that another process holds a file, or that it is not ours."""
    while error is not None:
        if isinstance(error, sqlite3.OperationalError):
            return True
        error = error.__cause__ or getattr(error, "orig", None) or error.__context__
    return False
