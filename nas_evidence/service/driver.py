"""The loop that joins proposer, executor and store: ask, run, write, tell.

One process, the only writer of the study's database and of its results. The order of writes is
ask -> assignment -> checkpoint -> model -> Parquet -> tell, so that killing the process at any
point loses nothing: what is on disk says what is left to do.
"""

import logging
import math
import shutil
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nas_evidence.record import SliceReport, TrialRecord, TrialStatus
from nas_evidence.service.executors import Event, Executor, Launch, Lost
from nas_evidence.service.proposer import Proposal, Proposer
from nas_evidence.spec import ArchitectureSpec, Assignment, StudySpec, derive_seed
from nas_evidence.store import TrialRow, finished, write_record

_LOG = logging.getLogger(__name__)
#: Attempts of one trial that may be lost before it is given up.
MAX_LOSSES = 3
#: Up to so many trials all weights are kept, then those of the best few.
KEEP_ALL_MODELS, KEEP_BEST_MODELS = 200, 20


class Watcher(Protocol):
    """Someone who looks on: a live table, a log, or nobody."""

    def launched(self, assignment: Assignment) -> None:
        """Take note that a trial starts or starts again."""

    def progressed(self, report: SliceReport) -> None:
        """Take note of a slice."""

    def ended(self, record: TrialRecord) -> None:
        """Take note that a trial is over and stored."""

    def lost(self, loss: Lost) -> None:
        """Take note that an attempt died; the trial goes on in another."""


@dataclass(frozen=True)
class Planned:
    """A trial that is to run: one replicate of one proposal."""

    trial_id: int
    replicate: int
    architecture: ArchitectureSpec


def plan_trials(
    proposals: Iterable[Proposal], done: Mapping[int, TrialRow], study: StudySpec
) -> list[Planned]:
    """Return what is left to run: a pure function of what is on disk, in order of trial id.

    A proposal of an architecture that was proposed before becomes its next replicate.
    """
    seen: dict[str, int] = {}
    planned = []
    for proposal in proposals:
        key = proposal.architecture.key
        for r in range(study.replicates):
            trial_id = proposal.number * study.replicates + r
            if trial_id < study.n_trials and trial_id not in done:
                planned.append(Planned(trial_id, seen.get(key, 0) + r, proposal.architecture))
        seen[key] = seen.get(key, 0) + study.replicates
    return planned


def objective_of(trials: Iterable[TrialRow], objective: str) -> float | None:
    """Return the mean objective over the replicates that have a valid one, or None."""
    values = [
        t.values[objective]
        for t in trials
        if t.status is TrialStatus.COMPLETE and objective in t.values
    ]
    return math.fsum(values) / len(values) if values else None


class Driver:
    """Run a study in its folder until every trial has a final status."""

    def __init__(
        self, study: StudySpec, folder: Path, executor: Executor, watcher: Watcher
    ) -> None:
        self._study, self._folder = study, folder
        self._executor, self._watcher = executor, watcher
        folder.mkdir(parents=True, exist_ok=True)
        self._proposer = Proposer(study, folder / "study.db")
        self._done = finished(folder)
        self._running: dict[int, Assignment] = {}
        self._losses: dict[int, int] = {}
        self._queue: deque[Planned] = deque()

    def run(self) -> None:
        """Ask, run, write and tell until nothing is left to do."""
        for trial_id in self._done:  # killed between storing it and tidying up
            shutil.rmtree(self._home(trial_id), ignore_errors=True)
        self._queue.extend(plan_trials(self._proposer.proposals(), self._done, self._study))
        self._tell_finished()
        while self._launch_all() or self._running:
            for event in self._executor.poll(timeout=1.0):
                self._handle(event)
        self._tell_finished(partly=True)

    def _launch_all(self) -> bool:
        """Fill the free workers; tell whether anything was launched."""
        launched = False
        while self._executor.free:
            if not self._queue:
                self._ask()
            if not self._queue:
                break
            self._launch(self._queue.popleft())
            launched = True
        return launched

    def _ask(self) -> None:
        proposals = self._proposer.proposals()
        if len(proposals) * self._study.replicates >= self._study.n_trials:
            return
        new = self._proposer.ask()
        self._queue.extend(
            planned
            for planned in plan_trials([*proposals, new], self._done, self._study)
            if planned.trial_id >= new.number * self._study.replicates
        )

    def _launch(self, planned: Planned) -> None:
        home = self._home(planned.trial_id)
        earlier = sorted(home.glob("attempt-*"), key=_attempt_number)
        attempt = _attempt_number(earlier[-1]) + 1 if earlier else 1
        assignment = Assignment(
            trial_id=planned.trial_id,
            attempt=attempt,
            replicate=planned.replicate,
            architecture=planned.architecture,
            dataset=self._study.dataset,
            plan=self._study.plan,
            estimators=self._study.estimators,
            seed=derive_seed(self._study.seed, planned.trial_id, planned.replicate),
        )
        folder = home / f"attempt-{attempt}"
        folder.mkdir(parents=True)
        (folder / "assignment.json").write_text(assignment.model_dump_json(indent=1))
        with_checkpoint = [f for f in earlier if any(f.glob("epoch-*.pt"))]
        resume_from = with_checkpoint[-1] if with_checkpoint else None
        self._running[planned.trial_id] = assignment
        self._executor.launch(Launch(assignment, folder, resume_from))
        self._watcher.launched(assignment)

    def _handle(self, event: Event) -> None:
        assignment = self._running.get(event.trial_id)
        if assignment is None or assignment.attempt != event.attempt:
            _LOG.warning("late_word trial_id=%d attempt=%d", event.trial_id, event.attempt)
        elif isinstance(event, Lost):
            self._lost(event, assignment)
        elif isinstance(event, TrialRecord):
            self._store(event)
        else:
            self._watcher.progressed(event)
            if event.done:
                self._executor.finish(event.trial_id)
            else:
                due = (e for e in assignment.plan.evaluation_epochs() if e > event.epoch)
                self._executor.advance(event.trial_id, next(due))

    def _lost(self, loss: Lost, assignment: Assignment) -> None:
        self._losses[loss.trial_id] = self._losses.get(loss.trial_id, 0) + 1
        if self._losses[loss.trial_id] >= MAX_LOSSES:
            self._store(
                TrialRecord(
                    trial_id=loss.trial_id,
                    attempt=loss.attempt,
                    replicate=assignment.replicate,
                    architecture=assignment.architecture,
                    status=TrialStatus.FAILED,
                    cause=f"{MAX_LOSSES} attempts lost: {loss.cause}",
                    seed=assignment.seed,
                )
            )
            return
        del self._running[loss.trial_id]
        self._queue.appendleft(
            Planned(loss.trial_id, assignment.replicate, assignment.architecture)
        )
        self._watcher.lost(loss)

    def _store(self, record: TrialRecord) -> None:
        home = self._home(record.trial_id)
        weights = home / f"attempt-{record.attempt}" / "model.safetensors"
        if weights.exists():
            kept = self._folder / "models" / f"{record.trial_id}.safetensors"
            kept.parent.mkdir(exist_ok=True)
            weights.replace(kept)
        write_record(self._folder, record, self._study)
        del self._running[record.trial_id]
        self._done[record.trial_id] = TrialRow.of(record)
        self._tell_finished(only=record.trial_id // self._study.replicates)
        shutil.rmtree(home, ignore_errors=True)
        self._drop_models()
        self._watcher.ended(record)

    def _tell_finished(self, *, only: int | None = None, partly: bool = False) -> None:
        """Tell every proposal whose trials are all over; with `partly`, those cut short too."""
        if only is None:
            told = self._proposer.told()
            numbers = [p.number for p in self._proposer.proposals() if p.number not in told]
        else:
            numbers = [only]
        size = self._study.replicates
        for number in numbers:
            ids = range(number * size, (number + 1) * size)
            trials = [self._done[i] for i in ids if i in self._done]
            if len(trials) == size or (partly and trials):
                self._proposer.tell(number, objective_of(trials, self._study.objective))

    def _drop_models(self) -> None:
        if len(self._done) <= KEEP_ALL_MODELS:
            return
        scored = [t for t in self._done.values() if self._study.objective in t.values]
        scored.sort(key=lambda t: t.values[self._study.objective], reverse=True)
        keep = {f"{t.trial_id}.safetensors" for t in scored[:KEEP_BEST_MODELS]}
        for path in (self._folder / "models").glob("*.safetensors"):
            if path.name not in keep:
                path.unlink()

    def _home(self, trial_id: int) -> Path:
        return self._folder / "checkpoints" / f"{trial_id:06d}"


def _attempt_number(folder: Path) -> int:
    return int(folder.name.removeprefix("attempt-"))
