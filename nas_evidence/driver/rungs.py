"""The scores of trials at the rungs, and the trials that each is compared with.

The table survives in the journal: a line is written durably before a decision uses it. So do the
decisions of an asynchronous search, which depend on who had arrived: a trial that runs again after
a loss is judged as before.
"""

from collections.abc import Container, Mapping
from typing import Any

from nas_evidence.driver.plan import trials_of_batch
from nas_evidence.driver.scheduler import decide, point_of
from nas_evidence.maths.pareto import Point
from nas_evidence.spec.record import SliceReport
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.journal import Journal

AtRung = dict[int, Point | None]


class Rungs:
    """The table of a study: epoch -> trial id -> point, in order of arrival."""

    def __init__(self, study: StudySpec) -> None:
        self._study = study
        self._passed: set[tuple[int, int]] = set()  # trial id and epoch, in this run
        self._table: dict[int, AtRung] = {e: {} for e in study.rungs}
        # Trial id and epoch -> why it was pruned there, None if it passed.
        self._judged: dict[tuple[int, int], str | None] = {}

    def replay(self, event: Mapping[str, Any]) -> None:
        """Enter an event that the journal holds from an earlier run."""
        if event["event"] == "rung" and event["epoch"] in self._table:
            point = None if event["point"] is None else tuple(map(float, event["point"]))
            self._table[event["epoch"]].setdefault(event["trial_id"], point)
        elif event["event"] == "judged":
            self._judged[event["trial_id"], event["epoch"]] = event["reason"]

    def reached(self, trial_id: int, epoch: int) -> bool:
        """Return whether a trial waits at a rung with its score there recorded.

        False once it has passed, although later slices of it may end at that epoch.
        """
        return trial_id in self._table.get(epoch, ()) and (trial_id, epoch) not in self._passed

    def decide(
        self, report: SliceReport, rivals: Mapping[int, Point | None], journal: Journal
    ) -> str | None:
        """Return why a trial is pruned among its rivals, or None if it passes the rung."""
        trial_id, epoch = report.trial_id, report.epoch
        if (trial_id, epoch) in self._judged:
            reason = self._judged[trial_id, epoch]
        else:
            reason = decide(trial_id, rivals, self._study)
            if self._study.scheduling == "async":
                self._judged[trial_id, epoch] = reason
                facts = {"trial_id": trial_id, "epoch": epoch, "reason": reason}
                journal.write("judged", durable=True, **facts)
        if reason is None:
            self._passed.add((trial_id, epoch))
        return reason

    def note(self, report: SliceReport, journal: Journal) -> bool:
        """Record a trial's score at a rung; return whether it is new.

        A rung passed while no journal was kept stays unknown. At epoch 0 a trial is at the rung
        only once it has a score.
        """
        new = [
            epoch
            for epoch, at_rung in self._table.items()
            if epoch <= report.epoch and report.trial_id not in at_rung
        ]
        for epoch in new:
            here = epoch == report.epoch
            point = point_of(self._study, report.scores, report.costs) if here else None
            if here and epoch == 0 and point is None:
                return False
            journal.write("rung", durable=True, trial_id=report.trial_id, epoch=epoch, point=point)
            self._table[epoch][report.trial_id] = point
        return bool(new)

    def rivals(
        self, trial_id: int, epoch: int, done: Container[int]
    ) -> Mapping[int, Point | None] | None:
        """Return the trials that a trial is compared with at a rung; None if not known yet.

        In a batch these are all of its trials that reach the rung, so that their order of arrival
        has no effect.
        """
        at_rung = self._table[epoch]
        if self._study.scheduling == "async":
            return at_rung
        ids = trials_of_batch(trial_id // self._study.replicates, self._study)
        if all(i in at_rung or i in done for i in ids):
            return {i: at_rung[i] for i in ids if i in at_rung}
        return None
