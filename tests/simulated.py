"""Trials on a virtual clock: hundreds of workers and thousands of trials in seconds, no torch.

The results of a trial are known in advance (`learning_curves.py`); this executor decides only
when its events occur in virtual time. Workers have different speeds, the length of slices varies,
and a fault plan makes slices crash, hang or slow down. Attempt folders hold files with the names
of real ones, so that driver, store and report work as with real trials.
"""

import heapq
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from learning_curves import SimulatedTrial

from nas_evidence.scores.sotl import SOTL_GAMMA
from nas_evidence.spec.record import (
    CurvePoint,
    Evaluation,
    EvidenceEstimate,
    LossKind,
    SliceReport,
    TrialRecord,
    TrialStatus,
)
from nas_evidence.spec.registry import CURVATURES, FREE_SCORES, declared
from nas_evidence.spec.schedule import stops
from nas_evidence.spec.study import COSTS, Assignment
from nas_evidence.workers.executor import Event, Launch, Lost, Verdict, loss_of

#: Until a lost worker is back.
RESTART_SECONDS = 5.0
_CHECKPOINT = re.compile(r"epoch-(\d{6})\.pt")


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one slice; a slow one takes `factor` times as long."""

    kind: Literal["lost", "hung", "slow"]
    factor: float = 10.0


#: Called with the assignment and the epoch at which a slice begins; returns its fault, if any.
FaultPlan = Callable[[Assignment, int], Fault | None]


def no_faults(assignment: Assignment, epoch: int) -> Fault | None:
    """Return None: nothing goes wrong."""
    return None


@dataclass
class _Running:
    launch: Launch
    trial: SimulatedTrial
    worker: int
    epoch: int
    share: float
    status: TrialStatus = TrialStatus.RUNNING
    cause: str = ""
    slice_seconds: float = 0.0
    slices_before: int = 0
    told: int = 0  # epochs that earlier reports had
    curve: list[CurvePoint] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)


class SimulatedExecutor:
    """A pool of simulated workers.

    Args:
        curves: Returns the results of a trial.
        workers: Number of workers.
        seed: Seed of the slice lengths; another seed gives another order of events.
        speeds: Speeds of the workers, in turn; 2 is twice as fast.
        spread: Standard deviation of the log of a slice's length.
        faults: The fault plan.
    """

    def __init__(
        self,
        curves: Callable[[Assignment], SimulatedTrial],
        *,
        workers: int,
        seed: int,
        speeds: Sequence[float] = (1.0,),
        spread: float = 0.1,
        faults: FaultPlan = no_faults,
    ) -> None:
        self._curves, self._faults = curves, faults
        self._spread = spread
        self._random = random.Random(seed)
        self._speeds = [speeds[i % len(speeds)] for i in range(workers)]
        self._idle_since = dict.fromkeys(range(workers), 0.0)  # workers without a trial
        self._running: dict[int, _Running] = {}
        self._events: list[
            tuple[float, int, int, Callable[[], Event]]
        ] = []  # time, order, trial, action
        self._n_scheduled = 0
        self._clock = 0.0
        self._busy_seconds = 0.0

    @property
    def free(self) -> int:
        """Return the number of idle workers."""
        return len(self._idle_since)

    def launch(self, launch: Launch) -> None:
        """Start a trial on the first idle worker, or on one that is coming back."""
        worker = min(self._idle_since, key=lambda w: (self._idle_since[w] > self._clock, w))
        begins = max(self._clock, self._idle_since.pop(worker))
        assignment = launch.assignment
        trial = self._curves(assignment)
        share = max(trial.share, launch.min_share) if trial.share else 0.0
        epoch = _checkpointed_epoch(launch.resume_from)
        running = _Running(launch, trial, worker, epoch, share)
        excess = _excess(assignment, trial)
        if excess:
            running.status, running.cause = TrialStatus.INFEASIBLE, excess
        self._end_if_due(running)
        self._running[assignment.trial_id] = running
        self._schedule(begins, assignment.trial_id, lambda: _report(running))

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Let a trial continue training; it is lost after `timeout` virtual seconds of silence."""
        running = self._running[trial_id]
        fault = self._faults(running.launch.assignment, running.epoch)
        last = running.trial.ends_at or running.launch.assignment.plan.epochs
        before = running.epoch == 0 and running.slices_before < running.trial.slices_before
        running.slices_before += before
        n_epochs = 0 if before else max(0, min(until_epoch, last) - running.epoch)
        seconds = n_epochs * running.trial.seconds_per_epoch
        seconds += before * running.trial.slice_seconds_before
        seconds /= self._speeds[running.worker]
        seconds *= math.exp(self._spread * self._random.gauss(0, 1))
        seconds *= fault.factor if fault and fault.kind == "slow" else 1.0
        if fault and fault.kind == "lost":
            died = seconds * self._random.random()
            self._lose_after(died, running, "the worker process crashed", timeout)
        elif fault and fault.kind == "hung":
            self._lose_after(math.inf, running, "", timeout)
        elif timeout is not None and seconds > timeout:
            self._lose_after(seconds, running, "", timeout)
        else:
            running.slice_seconds = seconds
            self._busy_seconds += seconds

            def report() -> Event:
                self._train(running, running.epoch + n_epochs)
                return _report(running)

            self._schedule(self._clock + seconds, trial_id, report)

    def park(self, trial_id: int) -> None:
        """Take a trial off its worker and free the worker."""
        self._idle_since[self._running.pop(trial_id).worker] = self._clock

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        """Ask for a trial's record, which takes no time."""
        running = self._running[trial_id]

        def record() -> Event:
            if verdict is not None and running.status is TrialStatus.RUNNING:
                running.status, running.cause = verdict.status, verdict.cause
            if running.status is TrialStatus.COMPLETE:
                (running.launch.folder / "model.safetensors").write_bytes(b"simulated")
            self.park(trial_id)
            return _record(running)

        self._schedule(self._clock, trial_id, record)

    def poll(self, timeout: float) -> list[Event]:
        """Advance to the next event and return it; without one, `timeout` passes.

        The clock may jump by more than `timeout`: nothing else can happen in between.
        """
        if not self._events:
            self._clock += timeout
            return []
        self._clock, _, trial_id, happen = heapq.heappop(self._events)
        try:
            return [happen()]
        except OSError as error:  # a full disk says nothing about the architecture
            attempt = self._running[trial_id].launch.assignment.attempt
            self.park(trial_id)
            return [Lost(trial_id, attempt, *loss_of(error))]

    def now(self) -> float:
        """Return virtual seconds since the start."""
        return self._clock

    def idle_share(self) -> float:
        """Return the share of virtual time, 0 to 1, that workers spent idle."""
        total = self._clock * len(self._speeds)
        return max(0.0, 1.0 - self._busy_seconds / total) if total else 0.0

    def close(self) -> None:
        """Forget all trials; their checkpoints stay."""
        for trial_id in list(self._running):
            self.park(trial_id)
        self._events.clear()

    def _schedule(self, time: float, trial_id: int, happen: Callable[[], Event]) -> None:
        self._n_scheduled += 1  # ties in time are broken by order of scheduling
        heapq.heappush(self._events, (time, self._n_scheduled, trial_id, happen))

    def _lose_after(
        self, seconds: float, running: _Running, cause: str, timeout: float | None
    ) -> None:
        """Lose a trial when its worker dies, or when its timeout expires."""
        kind = LossKind.CRASH
        if timeout is not None and seconds > timeout:
            seconds, cause, kind = timeout, f"no answer for {timeout:.0f} s", LossKind.HUNG
        if math.isinf(seconds):
            return  # hung, without a timeout
        assignment = running.launch.assignment
        self._busy_seconds += seconds

        def lost() -> Event:
            self.park(assignment.trial_id)
            self._idle_since[running.worker] = self._clock + RESTART_SECONDS
            return Lost(assignment.trial_id, assignment.attempt, cause, kind)

        self._schedule(self._clock + seconds, assignment.trial_id, lost)

    def _train(self, running: _Running, epoch: int) -> None:
        if running.share < running.trial.needs_share:
            running.status = TrialStatus.OUT_OF_MEMORY
            running.cause = f"OutOfMemoryError: {running.trial.needs_share:g} of a GPU is needed"
            return
        running.epoch = epoch
        self._end_if_due(running)
        _write_checkpoint(running.launch.folder, epoch)

    def _end_if_due(self, running: _Running) -> None:
        epochs = running.launch.assignment.plan.epochs
        last = epochs if running.trial.ends_at is None else running.trial.ends_at
        if running.status is TrialStatus.RUNNING and running.epoch >= min(last, epochs):
            running.status = running.trial.status
            if running.status is not TrialStatus.COMPLETE:
                running.cause = f"simulated: {running.status} after epoch {running.epoch}"


def _excess(assignment: Assignment, trial: SimulatedTrial) -> str:
    for name, limit in assignment.limits.model_dump(exclude_none=True).items():
        if name in trial.costs and trial.costs[name] > limit:
            return f"{name} {trial.costs[name]:.6g} > {limit:.6g} allowed"
    return ""


def _write_checkpoint(folder: Path, epoch: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"epoch-{epoch:06d}.pt"
    temporary = folder / f".{path.name}.tmp"
    temporary.write_text(path.name)
    temporary.replace(path)
    for old in _checkpoints(folder)[2:]:  # keep the last two, as real trials do
        old.unlink()


def _checkpointed_epoch(folder: Path | None) -> int:
    """Return the epoch of the newest complete checkpoint in `folder`, or 0."""
    whole = (p for p in _checkpoints(folder) if p.read_text(errors="replace") == p.name)
    newest = next(whole, None)
    return int(newest.name[6:12]) if newest else 0


def _checkpoints(folder: Path | None) -> list[Path]:
    if folder is None or not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _CHECKPOINT.fullmatch(p.name)), reverse=True)


def _report(running: _Running) -> SliceReport:
    assignment, trial = running.launch.assignment, running.trial
    evaluations = _evaluations(running)
    points = _curve(running)
    told, running.told = running.told, running.epoch
    return SliceReport(
        trial_id=assignment.trial_id,
        attempt=assignment.attempt,
        epoch=running.epoch,
        epochs=assignment.plan.epochs,
        done=running.status is not TrialStatus.RUNNING,
        status=running.status,
        scores={
            e.estimate.estimator: e.estimate.value
            if e.estimate.per_datum is None
            else e.estimate.per_datum
            for e in evaluations
        },
        costs={name: trial.costs[name] for name in COSTS if name in trial.costs},
        sotl=points[-1].sotl if points else None,
        seconds=running.slice_seconds,
        curve=tuple(points[told:]),
        evaluations=tuple(e for e in evaluations if e.epoch > told),
    )


def _record(running: _Running) -> TrialRecord:
    assignment, trial = running.launch.assignment, running.trial
    complete = running.status is TrialStatus.COMPLETE
    evaluations, costs = _evaluations(running), trial.costs
    best = max(
        (e for e in evaluations if e.estimate.estimator in CURVATURES),
        key=lambda e: e.estimate.value,
        default=None,
    )
    counts = ("n_parameters", "flops", "memory_bytes")
    seconds = trial.seconds_per_epoch * running.epoch
    return TrialRecord(
        trial_id=assignment.trial_id,
        attempt=assignment.attempt,
        replicate=assignment.replicate,
        architecture=assignment.architecture,
        status=running.status,
        cause=running.cause,
        seed=assignment.seed,
        n_data=trial.n_data,
        **{name: int(costs[name]) for name in counts if name in costs},
        latency_seconds=costs.get("latency_seconds"),
        gpu_share=running.share,
        epochs=running.epoch,
        best_epoch=best.epoch if best else None,
        best_evidence=best.estimate.value if best else None,
        evaluations=tuple(evaluations),
        curve=tuple(_curve(running)),
        test_accuracy=trial.test_accuracy if complete else None,
        test_nll_per_datum=trial.test_nll_per_datum if complete else None,
        train_seconds=seconds,
        total_seconds=seconds,
        versions='{"nas-evidence": "simulated"}',
    )


def _evaluations(running: _Running) -> list[Evaluation]:
    """Return every score at the evaluation epochs so far; losses change sign."""
    assignment, trial, found = running.launch.assignment, running.trial, running.evaluations
    n, curve = trial.n_data, _curve(running)
    done = found[-1].epoch if found else 0
    complete = trial.status is TrialStatus.COMPLETE
    last = (trial.ends_at or assignment.plan.epochs) if complete else None
    for epoch in (stop.epoch for stop in stops(assignment.plan) if stop.evaluate):
        if not done < epoch <= running.epoch:
            continue
        scores = [
            EvidenceEstimate(estimator=name, value=score * n, per_datum=score)
            for name, score in trial.scores(epoch).items()
            if name in assignment.estimators
            and declared(name).on_request
            and (epoch == last or name in assignment.followed or not declared(name).is_laplace)
        ]
        known = {name: -loss for name, loss in vars(curve[epoch - 1]).items() if loss is not None}
        known["n_parameters"] = trial.costs.get("n_parameters")
        for name in FREE_SCORES:
            if (value := known.get(name)) is not None:
                per_datum = value / n if declared(name).unit == "nats" else None
                scores.append(EvidenceEstimate(estimator=name, value=value, per_datum=per_datum))
        found += [Evaluation(epoch=epoch, estimate=estimate) for estimate in scores]
    return found


def _curve(running: _Running) -> list[CurvePoint]:
    plan, trial, points = running.launch.assignment.plan, running.trial, running.curve
    while len(points) < running.epoch:
        loss = trial.train_nll(len(points) + 1)
        points.append(
            CurvePoint(
                epoch=len(points) + 1,
                train_nll_per_datum=loss,
                learning_rate=plan.learning_rate,
                sotl=loss + (points[-1].sotl or 0.0 if points else 0.0),
                sotl_e=loss,
                sotl_ema=loss + (SOTL_GAMMA * (points[-1].sotl_ema or 0.0) if points else 0.0),
                prequential_epoch1=points[0].prequential_epoch1 if points else trial.n_data * loss,
                seconds=trial.seconds_per_epoch,
            )
        )
    return points
