"""Small studies and stand-ins for trials: instant, deterministic, able to fail in every way."""

import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nas_evidence.api.runs import Audience
from nas_evidence.driver.driver import Driver
from nas_evidence.plumbing.seals import sealed_json
from nas_evidence.proposing.proposer import ProposalResult
from nas_evidence.spec.record import (
    Evaluation,
    EvidenceEstimate,
    LossKind,
    SliceReport,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec, derive_seed
from nas_evidence.spec.toml import dump_study
from nas_evidence.storage.holding import Holder
from nas_evidence.storage.log import Log, events, log_files, read_log
from nas_evidence.storage.redo import adopt, find_done
from nas_evidence.storage.tables import compact, read_table, read_tables, rows_of, write_record
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.executor import Event, Launch, Lost, Verdict, Watcher, loss_of

N_DATA = 100


def value_of(architecture: ArchitectureSpec) -> float:
    """An objective that depends on the architecture alone."""
    return -abs(float(architecture.values.get("width", 1)) - 20) * 7.5


def score_at(architecture: ArchitectureSpec, epoch: int) -> float:
    """The objective per datum along training: better with every epoch, equal for no two sizes."""
    return (value_of(architecture) - float(architecture.values.get("width", 1)) / 100) / (
        N_DATA * epoch
    )


def record_of(
    assignment: Assignment,
    status: TrialStatus = TrialStatus.COMPLETE,
    *,
    epoch: int | None = None,
    cause: str = "",
    gpu_share: float | None = None,
) -> TrialRecord:
    epochs = assignment.plan.epochs if epoch is None else epoch
    trained = status in (TrialStatus.COMPLETE, TrialStatus.PRUNED)
    complete = status is TrialStatus.COMPLETE
    estimate = EvidenceEstimate(
        estimator="kfac_ggn", value=value_of(assignment.architecture), per_datum=-0.5
    )
    return TrialRecord(
        trial_id=assignment.trial_id,
        attempt=assignment.attempt,
        replicate=assignment.replicate,
        architecture=assignment.architecture,
        status=status,
        cause=cause,
        seed=assignment.seed,
        n_parameters=10 * int(assignment.architecture.values.get("width", 1)),
        n_data=N_DATA,
        gpu_share=gpu_share,
        epochs=epochs,
        evaluations=(Evaluation(epoch=epochs, estimate=estimate),) if trained else (),
        test_accuracy=0.9 if complete else None,
        test_nll_per_datum=0.3 if complete else None,
    )


def report_of(assignment: Assignment, epoch: int, **facts: Any) -> SliceReport:
    """What a trial says at an epoch, with its score along training."""
    epochs = assignment.plan.epochs
    given: dict[str, Any] = {
        "trial_id": assignment.trial_id,
        "attempt": assignment.attempt,
        "epoch": epoch,
        "epochs": epochs,
        "done": epoch >= epochs,
        "scores": {"kfac_ggn": score_at(assignment.architecture, epoch)} if epoch else {},
    }
    return SliceReport(**(given | facts))


class FakeExecutor:
    """Runs assignments at once; every slice takes a second of its own clock.

    misbehave  may turn any launch into a loss (text) or into another final status
    lose_at    may turn the slice up to an epoch into a loss (text)
    seed       if given, events come in a random order
    share      of a GPU that a trial gets, if it does not ask for more
    """

    def __init__(
        self,
        workers: int = 2,
        misbehave: Callable[
            [Assignment], OSError | str | TrialStatus | None
        ] = lambda assignment: None,
        *,
        lose_at: Callable[[Assignment, int], str | None] = lambda assignment, epoch: None,
        seed: int | None = None,
        share: float | None = None,
        slice_seconds: Callable[[Assignment], float] = lambda assignment: 1.0,
    ) -> None:
        self.workers = workers
        self.misbehave, self.lose_at = misbehave, lose_at
        self.order = None if seed is None else random.Random(seed)
        self.share, self.slice_seconds = share, slice_seconds
        self.running: dict[int, Launch] = {}
        self.epochs: dict[int, int] = {}
        self.launches: list[Launch] = []
        self.timeouts: list[float | None] = []
        self.parked: list[tuple[int, int]] = []  # trial id, epoch
        self.events: deque[Event] = deque()
        self.clock = 0.0
        self.closed = False

    @property
    def free(self) -> int:
        return self.workers - len(self.running)

    def launch(self, launch: Launch) -> None:
        assert self.free > 0
        assignment = launch.assignment
        self.running[assignment.trial_id] = launch
        self.launches.append(launch)
        checkpoints = launch.resume_from.glob("epoch-*.pt") if launch.resume_from else ()
        self.epochs[assignment.trial_id] = max((int(p.stem[6:]) for p in checkpoints), default=0)
        fate = self.misbehave(assignment)
        if isinstance(fate, OSError):
            self.events.append(Lost(assignment.trial_id, assignment.attempt, *loss_of(fate)))
            return
        if isinstance(fate, str) and not isinstance(fate, TrialStatus):
            kind = fate if isinstance(fate, LossKind) else LossKind.CRASH
            self.events.append(Lost(assignment.trial_id, assignment.attempt, fate, kind))
            return
        self._report(assignment, 0.0)

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        launch = self._idle(trial_id)
        self.timeouts.append(timeout)
        if cause := self.lose_at(launch.assignment, until_epoch):
            self.events.append(Lost(trial_id, launch.assignment.attempt, cause))
            return
        self.epochs[trial_id] = until_epoch
        (launch.folder / f"epoch-{until_epoch:06d}.pt").touch()
        self._report(launch.assignment, self.slice_seconds(launch.assignment))

    def park(self, trial_id: int) -> None:
        self._idle(trial_id)
        del self.running[trial_id]
        self.parked.append((trial_id, self.epochs[trial_id]))

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        launch = self._idle(trial_id)
        epoch = self.epochs[trial_id]
        share = max(self.share, launch.min_share) if self.share is not None else None
        if verdict is not None:
            end = record_of(launch.assignment, verdict.status, epoch=epoch, cause=verdict.cause)
        else:
            fate = self.misbehave(launch.assignment)
            status = fate if isinstance(fate, TrialStatus) else TrialStatus.COMPLETE
            end = record_of(launch.assignment, status, epoch=epoch, gpu_share=share)
            (launch.folder / "model.safetensors").write_bytes(b"weights")
        self.events.append(end)

    def poll(self, timeout: float) -> list[Event]:
        if not self.events:
            return []
        if self.order is not None:
            self.events.rotate(-self.order.randrange(len(self.events)))
        event = self.events.popleft()
        if isinstance(event, SliceReport):
            self.clock += event.seconds
        else:
            self.running.pop(event.trial_id, None)
        return [event]

    def now(self) -> float:
        return self.clock

    def idle_share(self) -> float:
        return 0.0

    def close(self) -> None:
        self.closed = True

    def _idle(self, trial_id: int) -> Launch:
        """A call may follow a report only: nothing else of this trial is under way."""
        assert all(event.trial_id != trial_id for event in self.events)
        return self.running[trial_id]

    def _report(self, assignment: Assignment, seconds: float) -> None:
        epoch = self.epochs[assignment.trial_id]
        failed = isinstance(self.misbehave(assignment), TrialStatus)
        costs = {"n_parameters": 10.0 * int(assignment.architecture.values.get("width", 1))}
        done = {"done": True} if failed else {}
        self.events.append(report_of(assignment, epoch, costs=costs, seconds=seconds, **done))


class Noisy(FakeExecutor):
    """The objective is the width, up to noise of the trial's seed."""

    def __init__(self, noise: float, **options: Any) -> None:
        super().__init__(**options)
        self.noise = noise

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        super().finish(trial_id, verdict)
        record = self.events.pop()
        rng = np.random.default_rng(record.seed % 2**32)
        value = float(record.architecture.values["width"]) + self.noise * rng.normal()
        if record.evaluations:
            [last] = record.evaluations
            estimate = last.estimate.model_copy(update={"value": value})
            evaluations = (last.model_copy(update={"estimate": estimate}),)
            record = record.model_copy(update={"evaluations": evaluations})
        self.events.append(record)


class Silent(Watcher):
    """A watcher that only counts."""

    def __init__(self) -> None:
        self.launches: list[Assignment] = []
        self.ends: list[TrialRecord] = []
        self.losses: list[Lost] = []
        self.parks: list[int] = []

    def launched(self, assignment: Assignment) -> None:
        self.launches.append(assignment)

    def parked(self, trial_id: int) -> None:
        self.parks.append(trial_id)

    def ended(self, record: TrialRecord) -> None:
        self.ends.append(record)

    def lost(self, loss: Lost) -> None:
        self.losses.append(loss)


class FakeProposer:
    """Proposals that depend on all that was told.

    Another order of tells, or an ask that comes before a tell, gives another architecture.
    """

    def __init__(self, study: StudySpec, warm: Sequence[object] = ()) -> None:
        self.study = study
        self.widths: list[int] = []
        self.results: list[list[Any]] = []

    def ask(self) -> ArchitectureSpec:
        number = len(self.widths)
        seed = derive_seed(self.study.seed, number, json.dumps(self.results))
        self.widths.append(4 + seed % 60)
        return self.proposals()[-1]

    def adopt(self, architecture: ArchitectureSpec) -> None:
        self.widths.append(int(architecture.values["width"]))

    def tell(self, number: int, result: ProposalResult) -> None:
        assert number not in [earlier for earlier, *_ in self.results], "told twice"
        self.results.append(
            [number, result.values, sorted(result.constraints.items()), result.pruned]
        )

    def proposals(self) -> list[ArchitectureSpec]:
        return [ArchitectureSpec(family="mlp", values={"width": width}) for width in self.widths]


def study(**changes: object) -> StudySpec:
    """A study of small perceptrons, for trials that never look at their data."""
    given: dict[str, object] = {
        "name": "s",
        "objective": "kfac_ggn",
        "n_trials": 6,
        "dataset": {"name": "digits"},
        "family": {"mlp": {"width": {"low": 4, "high": 64, "log": True}}},
        "sampler": {"name": "random"},
        "plan": {"epochs": 6, "online": {"every": 2}},
    }
    return StudySpec.model_validate(given | changes)


def drive(
    spec: StudySpec, folder: Path, executor: Any = None, watcher: Any = None, **options: Any
) -> Driver:
    """Run a study to its end with stand-ins, or with `proposer=Proposer`; return its driver."""
    driver = Driver(
        spec, folder, executor or FakeExecutor(), watcher or Silent(),
        **{"proposer": FakeProposer, **options},
    )  # fmt: skip
    driver.run()
    return driver


def finished(folder: Path) -> dict[int, TrialRow]:
    """The row of every trial in the tables of a study, by trial id."""
    tables, _ = read_tables(folder, ["trials", "evidence"])
    return {row.trial_id: row for row in rows_of(tables["trials"], tables["evidence"])}


def logged(folder: Path) -> None:
    """Write the log of a study whose tables a test has written."""
    with closing(Log(folder)) as log:
        adopt(log, find_done(folder).found)


def stored(spec: StudySpec, folder: Path, records: Iterable[TrialRecord]) -> Path:
    """Write the folder of a study with these trials, and its log."""
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(dump_study(spec), encoding="utf-8")
    for record in records:
        write_record(folder, record, spec)
    logged(folder)
    return folder


def compacted(folder: Path, at_least: int = 1) -> None:
    """Compact the tables of a study that no driver holds."""
    with closing(Log(folder)) as log:
        adopt(log, find_done(folder).found)
        compact(log, folder, at_least)


def asked_in(folder: Path) -> list[ArchitectureSpec]:
    """The proposals in the log of a study, by number."""
    found = read_log(folder).state.proposals
    assert sorted(found) == list(range(len(found)))
    return [found[number] for number in range(len(found))]


def results_in(folder: Path) -> list[tuple[object, ...]]:
    """Results in order of trial id, then proposals and what was told, but for attempts."""
    trials = read_table(folder, "trials").sort_values("trial_id")
    columns = ["trial_id", "replicate", "architecture_key", "status", "cause", "epochs", "seed"]
    told = tuple(sorted(told_in(folder).items()))
    proposals = tuple(map(str, asked_in(folder)))
    return [*trials[columns].itertuples(index=False, name=None), (proposals, told)]


def leave_holder(folder: Path, *, seconds_ago: float, host: str = "elsewhere") -> Holder:
    """Leave the file `lock` of a process of another host, or of another boot of this one."""
    heard_of = time.time() - seconds_ago
    holder = Holder(4321, host, "another", heard_of, heard_of)
    (folder / "lock").write_text(sealed_json(asdict(holder)))
    return holder


def last_log(folder: Path) -> Path:
    """The last file of the log of a study, of which most have one."""
    return log_files(folder)[-1]


def facts_in(folder: Path, *words: str) -> list[Any]:
    """The events in the log of a study, all or those of some words."""
    return [e for _, e in events(folder) if not words or e.event in words]


def told_in(folder: Path) -> dict[int, ProposalResult]:
    """The results in the log of a study, by number; the last of each, in order of telling."""
    return {
        e.number: ProposalResult(e.values, e.constraints, e.pruned)
        for e in facts_in(folder, "tell")
    }


class Heard(Audience):
    """Hands every line to a function."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say  # type: ignore[method-assign]
