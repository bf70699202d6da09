"""Stand-ins for trials: instant, deterministic, and able to fail in every way."""

from collections import deque
from collections.abc import Callable

from nas_evidence.record import (
    Evaluation,
    EvidenceEstimate,
    SliceReport,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.service.executors import Event, Launch, Lost
from nas_evidence.spec import ArchitectureSpec, Assignment


def value_of(architecture: ArchitectureSpec) -> float:
    """An objective that depends on the architecture alone."""
    return -abs(float(architecture.values.get("width", 1)) - 20) * 7.5


def record_of(assignment: Assignment, status: TrialStatus = TrialStatus.COMPLETE) -> TrialRecord:
    estimate = EvidenceEstimate(
        estimator="kfac_ggn", value=value_of(assignment.architecture), per_datum=-0.5
    )
    epochs = assignment.plan.epochs
    complete = status is TrialStatus.COMPLETE
    return TrialRecord(
        trial_id=assignment.trial_id,
        attempt=assignment.attempt,
        replicate=assignment.replicate,
        architecture=assignment.architecture,
        status=status,
        seed=assignment.seed,
        n_parameters=10,
        n_data=100,
        epochs=epochs,
        evaluations=(Evaluation(epoch=epochs, estimate=estimate),) if complete else (),
        test_accuracy=0.9 if complete else None,
        test_nll_per_datum=0.3 if complete else None,
    )


class FakeExecutor:
    """Runs assignments at once; `misbehave` may turn any launch into a loss or another status."""

    def __init__(
        self,
        workers: int = 2,
        misbehave: Callable[[Assignment], str | TrialStatus | None] = lambda assignment: None,
    ) -> None:
        self.workers = workers
        self.misbehave = misbehave
        self.running: dict[int, Launch] = {}
        self.launches: list[Launch] = []
        self.events: deque[Event] = deque()
        self.closed = False

    @property
    def free(self) -> int:
        return self.workers - len(self.running)

    def launch(self, launch: Launch) -> None:
        assert self.free > 0
        self.running[launch.assignment.trial_id] = launch
        self.launches.append(launch)
        fate = self.misbehave(launch.assignment)
        if isinstance(fate, str) and not isinstance(fate, TrialStatus):
            self.events.append(Lost(launch.assignment.trial_id, launch.assignment.attempt, fate))
            return
        self.events.append(self._report(launch.assignment, 0))

    def advance(self, trial_id: int, until_epoch: int) -> None:
        launch = self.running[trial_id]
        (launch.folder / f"epoch-{until_epoch:06d}.pt").touch()
        self.events.append(self._report(launch.assignment, until_epoch))

    def finish(self, trial_id: int) -> None:
        launch = self.running[trial_id]
        fate = self.misbehave(launch.assignment)
        status = fate if isinstance(fate, TrialStatus) else TrialStatus.COMPLETE
        (launch.folder / "model.safetensors").write_bytes(b"weights")
        self.events.append(record_of(launch.assignment, status))

    def poll(self, timeout: float) -> list[Event]:
        if not self.events:
            return []
        event = self.events.popleft()
        if isinstance(event, Lost | TrialRecord):
            self.running.pop(event.trial_id, None)
        return [event]

    def close(self) -> None:
        self.closed = True

    def _report(self, assignment: Assignment, epoch: int) -> SliceReport:
        return SliceReport(
            trial_id=assignment.trial_id,
            attempt=assignment.attempt,
            epoch=epoch,
            epochs=assignment.plan.epochs,
            done=epoch >= assignment.plan.epochs,
        )


class Silent:
    """A watcher that only counts."""

    def __init__(self) -> None:
        self.launches: list[Assignment] = []
        self.ends: list[TrialRecord] = []
        self.losses: list[Lost] = []

    def launched(self, assignment: Assignment) -> None:
        self.launches.append(assignment)

    def progressed(self, report: SliceReport) -> None:
        pass

    def ended(self, record: TrialRecord) -> None:
        self.ends.append(record)

    def lost(self, loss: Lost) -> None:
        self.losses.append(loss)
