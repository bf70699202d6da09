"""Folds of large networks as tasks of their own (decision 33).

A part is one fold of a trial. An executor runs it like a trial, in the folder of a trial of its
own number, and its last checkpoint is its result. No trial needs its parts: a fold that none has
predicted it trains itself. So the log does not know them; after a crash their checkpoints say
what is done.
"""

from collections.abc import Collection

from nas_evidence.spec.record import PART_IDS, LossKind, SliceReport, trial_of
from nas_evidence.spec.study import Assignment, RetrySpec
from nas_evidence.storage.state import LossCounts


class Parts:
    """The parts of the trials that this driver has launched.

    retries  limits of the lost attempts at a part
    """

    def __init__(self, retries: RetrySpec) -> None:
        self._retries = retries
        self._all: dict[int, dict[int, float]] = {}  # work of each part, by trial and number
        self._left: dict[int, set[int]] = {}  # numbers of those that are not over, by trial
        self._losses: dict[int, LossCounts] = {}
        self._ended: set[int] = set()  # trials
        self._earlier: dict[int, set[int]] = {}  # of which drivers before have left folders

    def planned(self, report: SliceReport, assignment: Assignment) -> list[Assignment]:
        """Return the parts of a trial that has told of some, the first time."""
        trial_id = report.trial_id
        if not report.parts or trial_id in self._all:
            return []
        flops = report.costs.get("flops", 0.0)
        shares = enumerate(report.parts, start=1)
        work = {PART_IDS * k + trial_id: share * flops for k, share in shares if share}
        self._all[trial_id], self._left[trial_id] = work, {*work}
        return [assignment.model_copy(update={"trial_id": number}) for number in work]

    def work(self, part_id: int) -> float:
        """Return the work of a part, in flops of a forward pass of all data."""
        return self._all[trial_of(part_id)][part_id]

    def found(self, part_id: int) -> None:
        """Note that a driver before has left the folder of a part."""
        self._earlier.setdefault(trial_of(part_id), set()).add(part_id)

    def of(self, trial_id: int) -> set[int]:
        """Return the numbers of all parts of a trial, also where this driver divides none."""
        return {*self._all.get(trial_id, ()), *self._earlier.get(trial_id, ())}

    def left(self, trial_id: int) -> Collection[int]:
        """Return those that are not over."""
        return self._left.get(trial_id, ())

    def is_wanted(self, part_id: int) -> bool:
        """Return whether the trial of a part has not ended."""
        return trial_of(part_id) not in self._ended

    def over(self, part_id: int) -> None:
        """Note that a part has ended, or is given up."""
        self._left[trial_of(part_id)].discard(part_id)

    def lost(self, part_id: int, kind: LossKind, *, progress: bool) -> bool:
        """Note a lost attempt; return whether the part is to be given up."""
        before = self._losses.get(part_id, LossCounts())
        losses = before.plus(progress=progress, machine=kind is LossKind.MACHINE)
        self._losses[part_id] = losses
        return losses.too_many(self._retries)

    def end(self, trial_id: int) -> None:
        """Note that a trial has ended: its parts are not wanted any more."""
        self._ended.add(trial_id)
