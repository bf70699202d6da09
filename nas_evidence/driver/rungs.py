"""The scores of trials at the rungs, and the trials that each is compared with.

The log holds the table: a line is written durably before a decision uses it. So are the decisions
of an asynchronous search, which depend on who had arrived: a trial that runs again after a loss is
judged as before.
"""

from collections.abc import Container, Mapping

from nas_evidence.driver.plan import trials_of_batch
from nas_evidence.driver.scheduler import decide, point_of
from nas_evidence.maths.pareto import Point
from nas_evidence.spec.record import SliceReport
from nas_evidence.spec.schedule import rungs
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.events import AtRung, Judged
from nas_evidence.storage.log import Log


class Rungs:
    """The rungs of a study; the scores there are in the state of its log."""

    def __init__(self, study: StudySpec, log: Log) -> None:
        self._study, self._log, self._rungs = study, log, rungs(study)
        self._passed: set[tuple[int, int]] = set()  # trial id and epoch, in this run

    def reached(self, trial_id: int, epoch: int) -> bool:
        """Return whether a trial waits at a rung with its score there recorded.

        False once it has passed, although later slices of it may end at that epoch.
        """
        return trial_id in self._at(epoch) and (trial_id, epoch) not in self._passed

    def decide(self, report: SliceReport, rivals: Mapping[int, Point | None]) -> str | None:
        """Return why a trial is pruned among its rivals, or None if it passes the rung."""
        trial_id, epoch = report.trial_id, report.epoch
        judged = self._log.state.judged
        if (trial_id, epoch) in judged:
            reason = judged[trial_id, epoch]
        else:
            reason = decide(trial_id, rivals, self._study)
            if self._study.scheduling == "async":
                fact = Judged(trial_id=trial_id, epoch=epoch, reason=reason)
                self._log.write(fact, durable=True)
        if reason is None:
            self._passed.add((trial_id, epoch))
        return reason

    def note(self, report: SliceReport) -> bool:
        """Record a trial's score at a rung; return whether it is new.

        A rung that the trial has passed without a line in the log stays unknown. At epoch 0 a
        trial is at the rung only once it has a score.
        """
        trial_id = report.trial_id
        new = [
            epoch
            for epoch in self._rungs
            if epoch <= report.epoch and trial_id not in self._at(epoch)
        ]
        for epoch in new:
            here = epoch == report.epoch
            point = point_of(self._study, report.scores, report.costs) if here else None
            if here and epoch == 0 and point is None:
                return False
            self._log.write(AtRung(trial_id=trial_id, epoch=epoch, point=point), durable=True)
        return bool(new)

    def rivals(
        self, trial_id: int, epoch: int, done: Container[int]
    ) -> Mapping[int, Point | None] | None:
        """Return the trials that a trial is compared with at a rung; None if not known yet.

        In a batch these are all of its trials that reach the rung, so that their order of arrival
        has no effect.
        """
        at_rung = self._at(epoch)
        if self._study.scheduling == "async":
            return at_rung
        ids = trials_of_batch(trial_id // self._study.replicates, self._study)
        if all(i in at_rung or i in done for i in ids):
            return {i: at_rung[i] for i in ids if i in at_rung}
        return None

    def _at(self, epoch: int) -> Mapping[int, Point | None]:
        return self._log.state.rungs.get(epoch, {}) if epoch in self._rungs else {}
