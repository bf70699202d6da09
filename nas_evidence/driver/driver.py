"""The main loop of a study: ask the proposer, run trials, write results, tell the proposer.

One process, the only writer of the study's log and results. What it knows is the fold of the log
(`storage/state.py`). The order of writes is ask -> checkpoint -> model -> Parquet -> end -> tell,
so that killing the process at any point loses nothing: the next driver reads from disk what is
left to do. `faults.py` names the crash points.
"""

import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from nas_evidence.driver.deadline import Deadline
from nas_evidence.driver.outcomes import KeptModels, found_by_folds, result_of
from nas_evidence.driver.plan import (
    asked_of,
    plan_race,
    plan_trials,
    to_ask,
    to_tell,
    trials_of,
)
from nas_evidence.driver.race import chosen_so_far, is_finished, next_round, next_whole
from nas_evidence.driver.reconcile import complete, restored
from nas_evidence.driver.rungs import Rungs
from nas_evidence.maths.pareto import Point
from nas_evidence.plumbing.collector import uncollected
from nas_evidence.proposing.proposer import ProposalResult, Proposer
from nas_evidence.proposing.warm_start import Found
from nas_evidence.spec.divisions import whole
from nas_evidence.spec.record import (
    WHOLE_IDS,
    LossKind,
    SliceReport,
    TrialRecord,
    TrialStatus,
    is_searched,
    n_searched,
    stage_of,
    trial_of,
)
from nas_evidence.spec.schedule import next_stop
from nas_evidence.spec.study import ArchitectureSpec, Assignment, StudySpec
from nas_evidence.storage.budget import Ledger
from nas_evidence.storage.conditions import current_hash
from nas_evidence.storage.events import (
    Again,
    Asked,
    AttemptLost,
    Ended,
    Launched,
    Parked,
    RaceRound,
    Stopped,
    Told,
)
from nas_evidence.storage.faults import (
    StudyStoppedError,
    crash_point,
    disk_stop,
    is_disk_full,
    seconds_between_checkpoints,
)
from nas_evidence.storage.log import LOG, Log, mend_log
from nas_evidence.storage.redo import DoneTrials, adopt, find_done, set_aside_wrong
from nas_evidence.storage.requests import Requests
from nas_evidence.storage.state import LossCounts
from nas_evidence.storage.study_names import remove_attempts
from nas_evidence.storage.tables import (
    COMPACT_AT,
    compact,
    remove_torn,
    remove_unnamed,
    write_record,
)
from nas_evidence.storage.trial_row import TrialRow
from nas_evidence.workers.executor import (
    Event,
    Executor,
    Launch,
    Lost,
    Verdict,
    Watcher,
    checked,
    first_with_room,
)

_LOG = logging.getLogger(__name__)
#: A slice counts as hung when it takes this many times as long as the longest one so far, over
#: all trials.
HUNG_FACTOR = 5.0
#: Proposals that wait because no GPU has room for them, while one more is asked for: it may be of
#: a smaller network. Each is made without the results that come while it waits.
MOST_ASKED_AHEAD = 4
_ATTEMPT = re.compile(r"attempt-\d+")
_CANCELLED = Verdict(TrialStatus.CANCELLED, "on request")


class Driver:
    """Runs a study in its folder until every trial has a final status or the budget is spent."""

    @uncollected()
    def __init__(
        self,
        study: StudySpec,
        folder: Path,
        executor: Executor,
        watcher: Watcher,
        *,
        finds: DoneTrials | None = None,
        content_hash: str | None = None,
        time_left: Callable[[], float] | None = None,
        flops: Callable[[ArchitectureSpec], float] | None = None,
        proposer: Callable[[StudySpec, Sequence[Found]], Proposer] = Proposer,
        leader_alone: bool = False,
    ) -> None:
        """Take up a study.

        Args:
            study: as its folder has it.
            folder: of the study.
            executor: runs trials.
            watcher: is told what happens.
            finds: which trials are done, if the folder was read already.
            content_hash: of the conditions of the trials, if it was noted already.
            time_left: returns the seconds left for trials; None without a limit.
            flops: of an architecture, before it is trained. Of trials known together those with
                the most run first; if None, in order of number.
            proposer: makes what proposes architectures, from the study and its warm start.
            leader_alone: run nothing but the training on all rows of the network that leads.

        Raises:
            ValueError: if the environment has a wrong time between checkpoints.
        """
        self._study, self._folder = study, folder
        self._executor, self._watcher = executor, watcher
        seconds_between_checkpoints()  # a wrong number would fail every trial
        folder.mkdir(parents=True, exist_ok=True)
        self._content_hash = content_hash or current_hash(folder, study)
        self.requests = Requests(folder)  # from other terminals
        finds = finds or find_done(folder)
        # What was mended at the start, to be shown to the user.
        self.notices = [f"{LOG}: {one}; the other lines count" for one in finds.past.problems]
        self._log = Log(folder, mend_log(folder, finds.past))
        self._state, self._found = self._log.state, finds.found
        self._finds, self._done, self._redo = finds, finds.done, finds.redo
        self._proposer, self._told, again = restored(
            study, folder, self._state.proposals, self._done, proposer, finds.against,
            self._state.stems,
        )  # fmt: skip
        self.notices += again + finds.notes
        self._n_asked = 0
        self._seen: dict[str, int] = {}  # replicates of each architecture
        self._models = KeptModels(folder, study, self._done)
        self._rungs = Rungs(study, self._log)
        self._chosen: dict[int, ArchitectureSpec] = {}  # all race trials
        self._queue: deque[Assignment] = deque()  # attempts are counted at launch
        self._running: dict[int, Assignment] = {}
        self._waiting: dict[int, tuple[int, Assignment]] = {}  # parked at a rung
        self._longest_slice = 0.0
        self._deadline = Deadline(time_left)
        self._leader_alone = leader_alone
        if leader_alone:
            self._deadline.cut("race")
        self._flops_of, self._flops = flops, dict[str, float]()  # by key of architecture

    def run(self) -> None:
        """Run the loop until nothing is left to do or the budget is spent.

        Raises:
            StudyStoppedError: if a disk is full or another process has taken over the study.
        """
        self._ledger = Ledger(self._log, now=self._executor.now())
        try:
            self._recover()
            self._deadline.begin()
            self._loop()
        except StudyStoppedError:
            raise
        except Exception as error:
            if is_disk_full(error):
                raise disk_stop(self._folder, error) from error
            raise
        finally:
            self._stop()

    @property
    def done(self) -> Mapping[int, TrialRow]:
        """The finished trials, by trial id."""
        return self._done

    def is_finished(self) -> bool:
        """Return whether no trial of the search and of the race is left."""
        return is_finished(self._study, self._state.race, self._done)

    def _loop(self) -> None:
        while True:
            self._log.check()
            self._handle_requests()
            self._launch_all()
            over, deadline = self._over, self._deadline
            if deadline.over:
                return
            if not self._running and (over or not (self._queue or self._to_ask())):
                if not over and not deadline.full and self._race():
                    continue
                if not over and not deadline.ended_whole and self._train_whole():
                    continue
                assert over or deadline.searched or not self._waiting
                return
            for event in self._executor.poll(timeout=1.0):
                self._log.check()
                self._handle(event)
            self._ledger.account(self._executor.now(), len(self._running))

    def _race(self) -> bool:
        """Queue the rest of the race's round, or its next round; tell if there is one."""
        if not plan_race(self._chosen, self._done, self._study):
            study = self._so_far() if self._deadline.searched else self._study
            found = next_round(study, self._done, self._chosen)
            if not found:
                return False
            architectures = tuple(found.values())
            fact = RaceRound(trial_ids=tuple(found), architectures=architectures)
            self._log.write(fact, durable=True)
            self._chosen |= found
        rows = self._done.values()  # they know, so that nothing is computed
        self._flops |= {row.architecture_key: row.costs.get("flops", 0.0) for row in rows}
        self._enqueue(plan_race(self._chosen, self._done, self._study))
        return True

    def _train_whole(self) -> bool:
        """Queue the next networks of all rows of the finalists; tell if there are any."""
        study = self._so_far() if self._deadline.searched else self._study
        found = next_whole(study, self._done, n=1 if self._leader_alone else None)
        if new := {i: found[i] for i in found if i not in self._state.race}:
            fact = RaceRound(trial_ids=tuple(new), architectures=tuple(new.values()))
            self._log.write(fact, durable=True)
        for row in (self._done[trial_of(trial_id)] for trial_id in found):
            known = found_by_folds(self._folder, self._state, row, study)
            self._queue.append(whole(asked_of(row, study), *known))
        return bool(found)

    def _so_far(self) -> StudySpec:
        """Return the study as if its search ended now."""
        return self._study.model_copy(update={"n_trials": max(1, n_searched(self._done))})

    def _handle_requests(self) -> None:
        """Queue parked trials that are to be cancelled: a worker must write their records."""
        self.requests.look()
        for trial_id in sorted(self.requests.trials & self._waiting.keys()):
            self._queue.appendleft(self._waiting.pop(trial_id)[1])

    def _stop(self) -> None:
        # What is suppressed here has already been reported.
        with contextlib.closing(self._log), contextlib.suppress(OSError, StudyStoppedError):
            self._ledger.account(self._executor.now(), len(self._running))
            idle = self._executor.idle_share()
            self._log.write(Stopped(idle_share=idle, **asdict(self._ledger.spent)))
            self.requests.done()

    @uncollected()
    def _recover(self) -> None:
        """Finish what a killed process left half done; plan the remaining trials."""
        self._log.begin()  # what an earlier process has stored since is not to be removed
        set_aside_wrong(self._folder, self._finds)
        self._models.limit(len(self._done))
        for home in (self._folder / "checkpoints").glob("[0-9]*"):
            if not home.name.isdecimal():
                continue
            number = int(home.name)
            if number in self._done or number >= 2 * WHOLE_IDS:  # that of a fold, once
                remove_attempts(self._folder, f"checkpoints/{home.name}")
        remove_torn(self._folder)
        self._complete_log()
        compact(self._log, self._folder)
        proposals = self._proposer.proposals()
        self._n_asked = len(proposals)
        if not self._leader_alone:
            self._enqueue(plan_trials(proposals, self._done, self._study, self._seen))
        self._chosen = dict(chosen_so_far(self._study, self._state.race, self._done))

    def _complete_log(self) -> None:
        """Write the lines that the log lacks."""
        for trial_id, attempt in self._redo.items():
            if self._state.again.get(trial_id) != attempt:
                self._log.write(Again(trial_id=trial_id, attempt=attempt))
        adopt(self._log, self._found)
        remove_unnamed(self._folder, self._state)
        complete(self._log, dict(enumerate(self._proposer.proposals())))
        for number, told in sorted(self._told.items()):
            self._log_tell(number, told, recovered=True)

    def _log_tell(self, number: int, told: ProposalResult, *, recovered: bool = False) -> None:
        """Log a result, unless it is the one that the log has."""
        known = self._state.results.get(number)
        if known is None or (known.values, known.pruned, known.constraints) != (
            told.values,
            told.pruned,
            told.constraints,
        ):
            fact = Told(
                number=number,
                values=told.values,
                pruned=told.pruned,
                constraints=told.constraints,
                recovered=recovered,
            )
            self._log.write(fact)

    # --- ask and launch

    @property
    def _over(self) -> bool:
        """Return whether to start nothing more and to park what runs."""
        spent = self._ledger.spent.exceeds(self._study.budget)
        return self.requests.study or spent or self._deadline.left() <= 0

    def _to_ask(self) -> int:
        if self._deadline.searched:
            return 0
        return to_ask(self._n_asked, len(self._told), self._study)

    def _launch_all(self) -> None:
        """Give free workers trials."""
        while self._executor.free and not self._over:
            if not self._queue:
                self._ask()
            if not self._queue:
                return
            if not self._fits(self._queue[0]):
                self._queue.clear()  # the next run plans them again
                return
            place = first_with_room(self._executor, self._launches())
            if place is not None:
                planned = self._queue[place]
                del self._queue[place]
                self._launch(planned)
            elif len(self._queue) < MOST_ASKED_AHEAD and self._to_ask():
                self._ask()  # a smaller one may have room
            else:
                return

    def _launches(self) -> Iterator[Launch]:
        """Return the trials in line, as far as they tell what room they need."""
        for one in self._queue:
            share = self._state.shares.get(one.trial_id, 0.0)
            yield Launch(one, self._home(one.trial_id), None, share)

    def _fits(self, planned: Assignment) -> bool:
        races = self._deadline.limited and self._so_far().n_finalists > 0
        follows = self._deadline.limited and not self._study.trains_whole
        return self._deadline.fits(stage_of(planned.trial_id), races=races, follows=follows)

    def _enqueue(self, trials: Sequence[Assignment]) -> None:
        """Queue trials known together, the longest first if some of them have to wait."""
        found = {one.architecture.key: one.architecture for one in trials}
        if self._flops_of and len(found) > 1 and len(trials) > self._executor.free:
            for key in found.keys() - self._flops.keys():
                self._flops[key] = self._flops_of(found[key])
            trials = sorted(trials, key=lambda one: -self._flops[one.architecture.key])
        self._queue.extend(trials)

    def _ask(self) -> None:
        asked: list[Assignment] = []
        for _ in range(self._to_ask()):
            number, architecture = self._n_asked, self._proposer.ask()
            self._n_asked += 1
            self._log.write(Asked(number=number, architecture=architecture), durable=True)
            crash_point("asked")
            asked += plan_trials(
                [architecture], self._done, self._study, self._seen, first_number=number
            )
        self._enqueue(asked)

    def _launch(self, planned: Assignment) -> None:
        trial_id = planned.trial_id
        home = self._home(trial_id)
        attempts = (p for p in home.glob("attempt-*") if _ATTEMPT.fullmatch(p.name))
        earlier = sorted(attempts, key=_number)
        launched = self._state.under_way.get(trial_id, 0)
        attempt = 1 + max([self._redo.get(trial_id, 0), launched, *map(_number, earlier)])
        assignment = planned.model_copy(update={"attempt": attempt})
        folder = home / f"attempt-{attempt}"
        self._log.check()
        folder.mkdir(parents=True)
        with_checkpoint = [f for f in earlier if any(f.glob("epoch-*.pt"))]
        # That of a parked trial may be under way: its executor waits for it.
        known = with_checkpoint or earlier
        resume_from = known[-1] if known else None
        self._running[trial_id] = assignment
        share = self._state.shares.get(trial_id, 0.0)
        self._deadline.launched(trial_id, self._executor.now())
        self._log.write(Launched(trial_id=trial_id, attempt=attempt))
        self._executor.launch(Launch(assignment, folder, resume_from, share))
        self._watcher.launched(assignment)
        crash_point("launched")

    # --- events of trials

    def _handle(self, event: Event) -> None:
        assignment = self._running.get(event.trial_id)
        if assignment is None or assignment.attempt != event.attempt:
            _LOG.warning("late_message trial_id=%d attempt=%d", event.trial_id, event.attempt)
            return
        event = checked(event, assignment)  # executors may be of others
        if isinstance(event, Lost):
            self._lost(event, assignment)
        elif isinstance(event, TrialRecord):
            self._ended(event)
        else:
            self._reported(event, assignment)

    def _reported(self, report: SliceReport, assignment: Assignment) -> None:
        crash_point("reported")
        trial_id = report.trial_id
        self._longest_slice = max(self._longest_slice, report.seconds)
        _LOG.info("report trial_id=%d attempt=%d epoch=%d", trial_id, report.attempt, report.epoch)
        self._watcher.progressed(report)
        if report.done:
            self._executor.finish(trial_id)
            return
        if is_searched(trial_id) and self._rungs.note(report):
            self._release()
        if trial_id in self.requests.trials:
            self._executor.finish(trial_id, _CANCELLED)
            return
        rivals: Mapping[int, Point | None] | None = {}
        if is_searched(trial_id) and self._rungs.reached(trial_id, report.epoch):
            rivals = self._rungs.rivals(trial_id, report.epoch, self._done)
        if rivals is None:  # the rest of its batch has not arrived yet
            self._park(assignment)
            self._waiting[trial_id] = (report.epoch, assignment)
        elif rivals and (reason := self._rungs.decide(report, rivals)):
            verdict = Verdict(TrialStatus.PRUNED, f"rung {report.epoch}: {reason}")
            self._executor.finish(trial_id, verdict)
        elif self._over:
            self._park(assignment)
            self._queue.appendleft(assignment)
        elif not self._deadline.has_room(report.seconds):  # its next slice would not end in time
            self._park(assignment)
            self._deadline.cut(stage_of(trial_id))
        else:
            self._advance(report, assignment)

    def _advance(self, report: SliceReport, assignment: Assignment) -> None:
        stop = next_stop(assignment.plan, report.epoch)
        least = self._study.resources.slice_timeout_seconds
        timeout = max(least, HUNG_FACTOR * self._longest_slice)
        self._executor.advance(report.trial_id, stop.epoch, timeout=timeout)

    def _release(self) -> None:
        """Queue parked trials whose whole batch has reached their rung."""
        released = []
        for trial_id, (epoch, assignment) in sorted(self._waiting.items()):
            if self._rungs.rivals(trial_id, epoch, self._done) is not None:
                del self._waiting[trial_id]
                released.append(assignment)
        self._enqueue(released)

    def _park(self, assignment: Assignment) -> None:
        self._executor.park(assignment.trial_id)
        del self._running[assignment.trial_id]
        self._log.write(Parked(trial_id=assignment.trial_id, attempt=assignment.attempt))
        self._watcher.parked(assignment.trial_id)
        crash_point("parked")

    def _lost(self, loss: Lost, assignment: Assignment) -> None:
        if loss.kind is LossKind.DISK:
            raise disk_stop(self._folder, loss.cause)
        epochs = map(_number, self._home(loss.trial_id).glob("attempt-*/epoch-[0-9]*.pt"))
        epoch = max(epochs, default=0)
        attempt = self._home(loss.trial_id) / f"attempt-{loss.attempt}"
        progress = any(attempt.glob("epoch-*.pt"))
        self._log.write(
            AttemptLost(
                trial_id=loss.trial_id,
                attempt=loss.attempt,
                cause=loss.cause,
                epoch=epoch,
                progress=progress,
                kind=loss.kind,
            )
        )
        losses = self._state.losses.get(loss.trial_id, LossCounts())
        if not losses.too_many(self._study.retries):
            self._again(loss, assignment)
            return
        self._store(
            TrialRecord(
                trial_id=loss.trial_id,
                attempt=loss.attempt,
                replicate=assignment.replicate,
                architecture=assignment.architecture,
                status=TrialStatus.FAILED,
                cause=f"{losses}: {loss.cause}",
                seed=assignment.seed,
            )
        )

    def _again(self, loss: Lost, assignment: Assignment) -> None:
        del self._running[loss.trial_id]
        self._queue.appendleft(assignment)
        self._watcher.lost(loss)

    # --- write and tell

    def _ended(self, record: TrialRecord) -> None:
        trial_id, share = record.trial_id, record.gpu_share or 0.0
        no_memory = record.status is TrialStatus.OUT_OF_MEMORY and 0 < share < 1
        if no_memory and trial_id not in self._state.shares:
            more = min(1.0, 2 * share)
            cause = f"out of memory on {share:g} of a GPU, {more:g} next"
            loss = Lost(trial_id, record.attempt, cause, LossKind.MEMORY)
            fact = AttemptLost(
                trial_id=trial_id,
                attempt=record.attempt,
                cause=cause,
                kind=loss.kind,
                share=more,
            )
            self._log.write(fact)
            self._again(loss, self._running[trial_id])
            return
        self._store(record)

    def _store(self, record: TrialRecord) -> None:
        crash_point("ended")
        trial_id, home = record.trial_id, self._home(record.trial_id)
        weights = home / f"attempt-{record.attempt}" / "model.safetensors"
        self._models.take(weights, trial_id)
        crash_point("model")
        about = {"content_hash": self._content_hash, "stage": stage_of(trial_id)}
        record = record.model_copy(update=about)
        known = self._watcher.values(record)
        record = record.model_copy(
            update={"own": {name: value for name, value in known.items() if value is not None}}
        )
        files = write_record(self._folder, record, self._study, self._watcher.columns)
        crash_point("written")
        row = TrialRow.of(record)
        fact = Ended(row=row, files=files, **asdict(self._ledger.spent))
        self._log.write(fact, durable=True)
        del self._running[trial_id]
        self._deadline.ended(trial_id, self._executor.now())
        self._done[trial_id] = row
        if is_searched(trial_id):
            self._tell_after(trial_id // self._study.replicates)
        remove_attempts(self._folder, home.relative_to(self._folder).as_posix())
        crash_point("removed")
        self.requests.done(trial_id)
        self._models.add(row, len(self._done))
        self._release()
        if len(self._done) % COMPACT_AT == 0:
            compact(self._log, self._folder)
        self._watcher.ended(record)

    def _tell_after(self, number: int) -> None:
        """Tell what can be told once a trial of a proposal has ended."""
        for n in to_tell(number, self._told, self._done, self._study):
            trials = [self._done[i] for i in trials_of(n, self._study)]
            self._told[n] = told = result_of(trials, self._study)
            self._proposer.tell(n, told)
            self._log_tell(n, told)
            crash_point("told")

    def _home(self, trial_id: int) -> Path:
        return self._folder / "checkpoints" / f"{trial_id:06d}"


def _number(path: Path) -> int:
    """Return the number in the name of an attempt folder or a checkpoint."""
    return int(re.sub(r"\D", "", path.stem))
