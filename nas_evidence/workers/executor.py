"""The protocol of executors, which run trials, its messages, and who watches a run.

The driver launches a trial on a free worker, polls for what happened, and answers each slice with
`advance`, `park` or `finish`. An executor knows nothing of scores, results or the log.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from nas_evidence.plumbing.foreign_text import cut
from nas_evidence.plumbing.masking import masked
from nas_evidence.plumbing.no_memory import is_memory_full
from nas_evidence.spec.domains import ParameterValue
from nas_evidence.spec.record import LossKind, SliceReport, TrialRecord, TrialStatus
from nas_evidence.spec.study import Assignment, ResourceSpec, StudySpec
from nas_evidence.storage.faults import StudyStoppedError, is_disk_full

if TYPE_CHECKING:  # it imports numpy
    from nas_evidence.data import ArrayData


@dataclass(frozen=True)
class Launch:
    """A trial to start: what to run, where to write, and what to continue from.

    min_share   smallest share of one GPU, after the trial ran out of memory with less
    """

    assignment: Assignment
    folder: Path
    resume_from: Path | None
    min_share: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """A final status that the driver gives to a running trial, and why."""

    status: TrialStatus
    cause: str


def told(text: str) -> str:
    """Return what an error of others says as it is stored: without secrets, and not endless."""
    return masked(cut(text, 2_000))


def loss_of(error: BaseException) -> tuple[str, LossKind]:
    """Return what a worker's call raised, as one text, and the kind of loss that it is."""
    plain = isinstance(error, OSError | StudyStoppedError)
    text = told(str(error) if plain else f"{type(error).__name__}: {error}")
    if isinstance(error, StudyStoppedError):
        return text, LossKind.STORE
    if is_disk_full(error):
        return text, LossKind.DISK
    return text, LossKind.MEMORY if is_memory_full(error) else LossKind.CRASH


@dataclass(frozen=True)
class Lost:
    """An attempt whose worker crashed or stopped answering; not the architecture's fault."""

    trial_id: int
    attempt: int
    cause: str
    kind: LossKind = LossKind.CRASH


Event = SliceReport | TrialRecord | Lost


def checked(event: object, assignment: Assignment) -> Event:
    """Return what a worker answered, or the loss of its attempt if it is no answer of its trial.

    An executor checks each answer: the driver waits for the trial that it has launched, and takes
    an answer of another one for a late message.
    """
    why = _misfit(event, assignment)
    if not why and isinstance(event, TrialRecord):
        clean = {"cause": told(event.cause), "error": masked(cut(event.error))}
        same = clean == {"cause": event.cause, "error": event.error}
        return event if same else event.model_copy(update=clean)
    if not why and isinstance(event, Lost):
        cause = told(event.cause)
        return event if cause == event.cause else replace(event, cause=cause)
    if not why and isinstance(event, SliceReport):
        return event
    cause = f"the answer of the worker is not of the trial under way: {why}"
    return Lost(assignment.trial_id, assignment.attempt, cause)


def _misfit(event: object, assignment: Assignment) -> str:
    """Return in what an answer is not of an attempt, or ""."""
    if not isinstance(event, SliceReport | TrialRecord | Lost):
        return f"it is of the type {type(event).__name__}"
    names = ["trial_id", "attempt"]
    if isinstance(event, TrialRecord):
        names += ["replicate", "architecture", "seed"]
        if not event.status.is_final:
            return f"its status is {event.status}"
    differ = [name for name in names if getattr(event, name) != getattr(assignment, name)]
    return f"it has another {differ[0]}" if differ else ""


#: Where trials run: "auto" is "local" or "ray".
Where = Literal["auto", "local", "ray", "inline"]
#: How a run of a study ended: nothing is left; a budget or time is spent; Ctrl-C, or on request;
#: an error.
StudyStatus = Literal["complete", "incomplete", "cancelled", "failed"]


class Executor(Protocol):
    """A pool of workers. Every launch ends in one TrialRecord or one Lost, or is parked."""

    @property
    def free(self) -> int:
        """Return how many trials may be launched now."""

    def launch(self, launch: Launch) -> None:
        """Start a trial on a free worker."""

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Let a trial continue after its report; it is lost after `timeout` seconds of silence."""

    def park(self, trial_id: int) -> None:
        """Take a trial off its worker after its report; the worker writes its checkpoint.

        A launch of the same trial starts when that is written, and `close` waits for it.
        """

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        """Ask for a trial's record after a report; a `verdict` ends the trial early."""

    def poll(self, timeout: float) -> list[Event]:
        """Return what happened; wait up to `timeout` seconds for an event."""

    def now(self) -> float:
        """Return the time in seconds on the clock of the trials; virtual in a simulation."""

    def idle_share(self) -> float:
        """Return the share of worker time spent waiting so far, 0 to 1."""

    def close(self) -> None:
        """Stop all workers; running trials keep their checkpoints."""


def first_with_room(executor: Executor, launches: Iterable[Launch]) -> int | None:
    """Return the place in line of the first trial that a free executor can start; None: no one.

    An executor whose trials need different room has a method of this name. Others take the first.
    """
    found: Callable[[Iterable[Launch]], int | None] | None
    found = getattr(executor, "first_with_room", None)
    return 0 if found is None else found(launches)


class MakeExecutor(Protocol):
    """Makes an executor when the data have been read: a class or a function.

    Each of its workers is what `make_worker(arrays, resources, gpu_share=...)` returns, by default
    a `nas_evidence.workers.worker.Worker`.
    """

    def __call__(
        self,
        arrays: "ArrayData",
        resources: ResourceSpec,
        logs: Path,
        *,
        make_worker: Callable[..., Any] | None = None,
    ) -> Executor:
        """Return an executor.

        Args:
            arrays: the data set.
            resources: the study's `[resources]`; `workers` is at most the number of trials left.
            logs: folder for what workers log.
            make_worker: makes workers; may be pickled.
        """


class Watcher:
    """Told what happens in a study; override what you need, the rest does nothing.

    A search calls the methods one at a time, in its own thread, which waits for them: return soon.
    What a method raises is one warning and ends this watcher; no trial is lost, and the study goes
    on. Nothing a watcher does changes a result.

    columns   that it adds to the table `trials`: name -> bool, int, float or str; see `values`

    Example:
        >>> from nas_evidence.spec.record import CurvePoint, SliceReport
        >>> class Losses(Watcher):
        ...     def progressed(self, report):
        ...         for point in report.curve:
        ...             print(f"epoch {point.epoch}: {point.train_nll_per_datum} nats per datum")
        >>> point = CurvePoint(epoch=3, train_nll_per_datum=0.7, learning_rate=0.1, seconds=1.0)
        >>> about = dict(trial_id=0, attempt=1, epoch=3, epochs=40, done=False)
        >>> Losses().progressed(SliceReport(curve=(point,), **about))
        epoch 3: 0.7 nats per datum

        In a search: `nas_evidence.search(X, y, callbacks=[Losses()])`.
    """

    columns: Mapping[str, type] = {}

    def study_started(self, study: StudySpec, folder: Path) -> None:
        """A study starts or is resumed; `folder` holds what earlier runs found."""

    def launched(self, assignment: Assignment) -> None:
        """A trial starts or restarts."""

    def progressed(self, report: SliceReport) -> None:
        """A trial has trained or evaluated: `scores` so far, `curve` and `evaluations` are new.

        The epochs of a trial come once each attempt. Those before a checkpoint come again.
        """

    def parked(self, trial_id: int) -> None:
        """A trial is off its worker; it continues later, or in the next run."""

    def values(self, record: TrialRecord) -> Mapping[str, ParameterValue | None]:
        """Return what `columns` hold for a trial that has ended and is about to be stored.

        Those that are left out, None or not finite are missing.
        """
        return {}

    def ended(self, record: TrialRecord) -> None:
        """A trial has ended and is stored."""

    def lost(self, loss: Lost) -> None:
        """An attempt was lost; the trial is retried."""

    def study_ended(self, status: StudyStatus) -> None:
        """The run is over; all but a complete study can be resumed."""
