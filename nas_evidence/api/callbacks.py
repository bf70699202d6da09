"""The watchers of a running study: its display, callbacks, and trackers in threads of their own.

The driver calls one watcher, `Callbacks`, which calls the others. If one of them raises, the
exception becomes one warning, that watcher is called no more, and the study goes on.
"""

import logging
import math
import queue
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from threading import Thread
from typing import Any, Self

from nas_evidence.plumbing.foreign_text import cut, shortened
from nas_evidence.plumbing.masking import masked
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.domains import ParameterValue
from nas_evidence.spec.record import TrialRecord, ranks
from nas_evidence.spec.study import StudySpec
from nas_evidence.workers.executor import StudyStatus, Watcher

_LOG = logging.getLogger(__name__)
#: Seconds that the end of a search waits for a thread.
_PATIENCE = 60.0
#: Characters that the tables, the log or a database cannot hold.
_NOT_STORED = re.compile("[\x00\ud800-\udfff]")


class Called:
    """Makes a watcher when there is something to tell, and calls it in this thread.

    Args:
        make: returns the watcher.
        name: of the watcher, in a warning.
        columns: that it adds to the table `trials`, with their types.
    """

    def __init__(
        self, make: Callable[[], Watcher], name: str, columns: Mapping[str, type] | None = None
    ) -> None:
        self._make, self._name = make, name
        self.columns = dict(columns or {})
        self._watcher: Watcher | None = None
        self._failure: Exception | None = None
        self._is_said = False

    def tell(self, event: str, *given: Any) -> None:
        """Call a method of the watcher, or note what it raises."""
        self._asked(event, *given)

    def values(self, record: TrialRecord) -> dict[str, ParameterValue]:
        """Return what the watcher knows of a trial, by column; nothing if it has stopped."""
        if not self.columns:
            return {}
        found = self._asked("values", record)
        try:
            return {} if found is None else _checked(found, self.columns)
        except Exception as error:  # whatever it has returned; the warning says all of it
            self._failure = error
            return {}

    def _asked(self, event: str, *given: Any) -> Any:
        """Call a method of the watcher, and return what it returns; None if it has stopped."""
        if self._failure is not None:
            return None
        try:
            if self._watcher is None:
                self._watcher = self._make()
            return getattr(self._watcher, event)(*given)
        except Exception as error:  # whatever a server, a disk or the code of others may do
            _LOG.warning("watcher_stopped watcher=%s", self._name, exc_info=error)
            self._failure = error
            return None

    def warning(self) -> str:
        """Return why the watcher has stopped, once; "" otherwise."""
        if self._failure is None or self._is_said:
            return ""
        self._is_said = True
        kind = type(self._failure).__name__
        try:
            said = str(self._failure)
        except Exception:  # an error of others, whose text fails too
            said = ""
        why = masked(cut(said, 2_000)).strip().partition("\n")[0]
        return f"{self._name} has stopped, the search goes on: {kind}{': ' * bool(why)}{why}"

    def end(self) -> None:
        """Return: all is told."""


def _checked(found: Any, columns: Mapping[str, type]) -> dict[str, ParameterValue]:
    """Return values of columns as their types; without those that are missing or not finite.

    Raises:
        ValueError: for what is no mapping, and for a value of no column, of another type, or that
            no table holds.
    """
    import pandas as pd

    if not isinstance(found, Mapping | pd.Series):
        raise UserError(
            "own-columns-no-dict",
            "`values` must return a dict of the values by column, but returned "
            f"{shortened(repr(found))} of type {type(found).__name__}",
        )
    checked: dict[str, ParameterValue] = {}
    for name, given in found.items():
        if not isinstance(name, str) or name not in columns:
            raise UserError(
                "own-column-unknown",
                f"`values` has {shortened(repr(name))}, which is not in `columns`; "
                "add it there with its type",
            )
        kind = columns[name]
        value: Any = None if given is pd.NA or given is pd.NaT else given
        value = value.item() if hasattr(value, "item") else value  # a number of NumPy or torch
        value = str.__str__(value) if isinstance(value, str) else value  # also of a `StrEnum`
        if kind is float and type(value) is int:
            value = float(value)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue
        if not _is_of(value, kind):
            raise UserError(
                "own-column-value",
                f"the column {str(name)!r} must be {kind.__name__}, but got "
                f"{shortened(repr(value))} of type {type(value).__name__}",
            )
        if isinstance(value, str) and _NOT_STORED.search(value):
            raise UserError(
                "own-column-text",
                f"the column {str(name)!r} has the text {shortened(repr(value))}, and tables hold "
                "neither zero bytes nor half of a surrogate pair; leave them out",
            )
        checked[str.__str__(name)] = value
    return checked


def _is_of(value: Any, kind: type) -> bool:
    too_large = isinstance(value, int) and not -(2**63) <= value < 2**63
    return type(value) is kind and not too_large


class InThread(Called, Thread):
    """The same in a thread of its own, so that a slow watcher never holds up the search.

    A daemon, unlike the threads of a pool: one that hangs does not keep the process from ending.
    """

    def __init__(self, make: Callable[[], Watcher], name: str) -> None:
        Called.__init__(self, make, name)
        Thread.__init__(self, daemon=True, name=name)
        self._queue: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()  # () ends it
        self._is_late = False
        self._context = copy_context()  # with the code of the study in use

    def run(self) -> None:
        """Tell what is queued."""
        while said := self._queue.get():
            self._context.run(Called.tell, self, *said)

    def tell(self, event: str, *given: Any) -> None:
        """Queue a call; the first one starts the thread."""
        if self.ident is None:
            self.start()
        if self._failure is None:
            self._queue.put((event, *given))

    def warning(self) -> str:
        """Return that the watcher is late or why it has stopped, or what it left out; else ""."""
        if self._is_late:
            return f"{self.name} is not done after {_PATIENCE:.0f} s; left alone"
        left_out: list[str] = getattr(self._watcher, "not_tracked", [])
        said = [left_out.pop(0) for _ in range(len(left_out))]
        return super().warning() or (f"{self.name}: {'; '.join(said)}" if said else "")

    def end(self) -> None:
        """Wait until all is told, but not for ever."""
        self._queue.put(())
        self.join(_PATIENCE)
        self._is_late = self.is_alive()


class Callbacks(Watcher):
    """Passes everything on to what shows the study, and to listeners.

    A context: entering tells that the study starts, which is after the driver has mended what
    listeners may read; leaving tells how it ended. Set `status` before that.

    Args:
        shown: is shown everything; what it raises is raised.
        listeners: are told of the study and of its trials, not of the finalists' networks of all
            rows where trials train their folds alone.
        spec: the study.
        folder: of the study.
        warn: called with one line if a listener stops.
    """

    def __init__(
        self,
        shown: Watcher,
        listeners: Sequence[Called],
        spec: StudySpec,
        folder: Path,
        warn: Callable[[str], None],
    ) -> None:
        self._shown, self._listeners = shown, listeners
        self._spec, self._folder, self._warn = spec, folder, warn
        self.status: StudyStatus = "failed"

    def __enter__(self) -> Self:
        """Tell that the study starts."""
        self._tell("study_started", self._spec, self._folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Tell how it ended, and wait for the listeners."""
        cancelled = kind is not None and issubclass(kind, KeyboardInterrupt)
        self._tell("study_ended", "cancelled" if cancelled else self.status)
        for one in self._listeners:
            one.end()
        self._say_warnings()

    @property
    def columns(self) -> dict[str, type]:  # type: ignore[override]
        """The columns of all listeners, with their types."""
        return {name: kind for one in self._listeners for name, kind in one.columns.items()}

    def values(self, record: TrialRecord) -> dict[str, ParameterValue]:
        """Return what all listeners know of a trial, by column."""
        found: dict[str, ParameterValue] = {}
        for one in self._listeners if ranks(record.trial_id) else ():
            found |= one.values(record)
        self._say_warnings()
        return found

    def _tell(self, event: str, *given: Any) -> None:
        getattr(self._shown, event)(*given)
        for one in self._listeners:
            one.tell(event, *given)
        self._say_warnings()

    def _say_warnings(self) -> None:
        for one in self._listeners:
            if line := one.warning():
                self._warn(line)


def callbacks_of(given: Any) -> tuple[Watcher, ...]:
    """Return the callbacks that Python gives.

    Raises:
        ValueError: if they are no list of watchers.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UserError(
            "callbacks-no-list",
            "callbacks must be a list of watchers, such as [MyWatcher()], but got "
            f"{shortened(repr(given))}; leave it out for none",
        )
    found = tuple(given)
    for one in found:
        if isinstance(one, type) or not hasattr(one, "study_started"):
            raise UserError(
                "callback-no-watcher",
                "callbacks must hold objects of nas_evidence.Watcher, but holds "
                f"{shortened(repr(one))}; give an object of a class that is derived from it",
            )
    return found


def columns_added_by(callbacks: Sequence[Watcher]) -> dict[str, type]:
    """Return the columns that callbacks add, with their types.

    Raises:
        ValueError: if they are no dict of texts, cannot be read, or two have one name.
    """
    found: dict[str, type] = {}
    for one in callbacks:
        for name, kind in _columns_of(one).items():
            if name in found:
                raise UserError(
                    "own-column-twice",
                    f"two callbacks name a column {name!r}; give one of them another name",
                )
            found[name] = kind
    return found


def _columns_of(one: Watcher) -> dict[str, type]:
    who = type(one).__name__
    try:
        found = getattr(one, "columns", {})
    except Exception as error:  # a property may do anything
        raise UserError(
            "own-columns-fail",
            f"`columns` of the callback {who} cannot be read: {type(error).__name__}: {error}; "
            'give a dict, such as {"joules": float}',
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise UserError(
            "own-columns-type",
            f"`columns` of the callback {who} must be a dict of types by name, such as "
            f'{{"joules": float}}, but is {shortened(repr(found))}',
        )
    return {str.__str__(name): kind for name, kind in found.items()}


def _passed_on(event: str) -> Callable[..., None]:
    def told(self: Callbacks, given: Any) -> None:
        if ranks(given if isinstance(given, int) else given.trial_id):
            self._tell(event, given)
        else:
            getattr(self._shown, event)(given)

    return told


for _event in ("launched", "progressed", "parked", "lost", "ended"):
    setattr(Callbacks, _event, _passed_on(_event))
