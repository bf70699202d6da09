"""What is known of a study: the fold of its log. `State.apply` alone changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nas_evidence.maths.pareto import Point
from nas_evidence.spec.record import LossKind
from nas_evidence.spec.study import ArchitectureSpec, BudgetSpec, RetrySpec
from nas_evidence.storage import events as log
from nas_evidence.storage.trial_row import TrialRow

#: Trial id and number of the attempt.
Attempt = tuple[int, int]
#: Attempts in a row that may be lost together with their machine, without progress.
MACHINE_LOSSES = 10


def is_part(stem: str) -> bool:
    """Return whether a name is that of the files of many attempts."""
    return stem.startswith("part-")


def attempt_of(stem: str) -> Attempt:
    """Return trial id and attempt of the files of one attempt; the inverse of `stem_of`."""
    trial_id, _, attempt = stem.partition("-a")
    return int(trial_id), int(attempt)


def stem_of(trial_id: int, attempt: int) -> str:
    """Return the name, without its ending, of the files of one attempt."""
    return f"{trial_id:06d}-a{attempt}"


@dataclass(frozen=True)
class LossCounts:
    """Lost attempts of a trial: all, and by cause those since its last progress.

    A lost attempt is no failure of the network. So the limits of `[retries]` only end what would
    go on for ever: attempts lost one after another without a new checkpoint. Those lost with
    their machine are counted apart from those whose worker crashed or hung, which the network may
    cause. Any new checkpoint is progress, also of the same epoch: a fold, or a round of settling.
    """

    n: int = 0
    n_crashes: int = 0
    n_with_machine: int = 0

    def plus(self, *, progress: bool, machine: bool = False) -> "LossCounts":
        """Return the losses with one more.

        Args:
            progress: whether the attempt had written a checkpoint.
            machine: whether it was lost with its machine.
        """
        if progress:
            return LossCounts(self.n + 1)
        if machine:
            return replace(self, n=self.n + 1, n_with_machine=self.n_with_machine + 1)
        return replace(self, n=self.n + 1, n_crashes=self.n_crashes + 1)

    def too_many(self, limits: RetrySpec) -> bool:
        """Return whether to give up the trial."""
        limit = limits.crashes
        if not isinstance(limit, int):
            return False
        return self.n_crashes >= limit or self.n_with_machine >= MACHINE_LOSSES

    def __str__(self) -> str:
        stalled = self.n_crashes + self.n_with_machine
        stuck = f" ({stalled} without progress)" if stalled < self.n else ""
        return f"{self.n} attempts lost{stuck}"


@dataclass(frozen=True)
class Spent:
    """Seconds used so far, over all runs of a study.

    wall_seconds     while a driver was running
    device_seconds   summed over workers with a trial, including lost and parked attempts

    Both are of the executor's clock, which is virtual in a simulation.
    """

    wall_seconds: float = 0.0
    device_seconds: float = 0.0

    def exceeds(self, budget: BudgetSpec) -> bool:
        """Return whether the limit has been reached."""
        limit = budget.wall_seconds
        return limit is not None and self.wall_seconds >= limit


@dataclass
class State:
    """What the events of a study amount to.

    proposals  architectures, by number
    under_way  the last attempt of each trial that was launched and has not ended
    rows       what is known of each finished trial, of its last attempt
    stems      (trial id, attempt) -> name, without its ending, of the file with its rows
    files      digests of the file of each name, by table
    results    what the sampler was last told, by number of the proposal
    rungs      epoch -> trial id -> scores there, in order of arrival
    judged     (trial id, epoch) -> why it was pruned there, None if it passed
    losses     of each trial
    shares     of a GPU that a trial needs in its next attempt
    again      the attempt of a stored trial that the next one supersedes
    race       architectures of the trials after the search, by trial id
    spent      seconds used
    in_order   whether the last session came to its end
    """

    proposals: dict[int, ArchitectureSpec] = field(default_factory=dict)
    under_way: dict[int, int] = field(default_factory=dict)
    rows: dict[int, TrialRow] = field(default_factory=dict)
    stems: dict[Attempt, str] = field(default_factory=dict)
    files: dict[str, Mapping[str, str]] = field(default_factory=dict)
    results: dict[int, log.Told] = field(default_factory=dict)
    rungs: dict[int, dict[int, Point | None]] = field(default_factory=dict)
    judged: dict[tuple[int, int], str | None] = field(default_factory=dict)
    losses: dict[int, LossCounts] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    again: dict[int, int] = field(default_factory=dict)
    race: dict[int, ArchitectureSpec] = field(default_factory=dict)
    spent: Spent = Spent()
    in_order: bool = True

    def apply(self, event: log.Event) -> None:
        """Enter one event."""
        match event:  # the most frequent ones first
            case log.Asked():
                self.proposals[event.number] = event.architecture
            case log.Launched():
                self.under_way[event.trial_id] = event.attempt
            case log.Ended():
                self._ended(event)
            case log.Told():
                self.results[event.number] = event
            case log.Began():
                self.in_order = False
            case log.AtRung():
                self.rungs.setdefault(event.epoch, {}).setdefault(event.trial_id, event.point)
            case log.Judged():
                self.judged[event.trial_id, event.epoch] = event.reason
            case log.AttemptLost():
                self._lost(event)
            case log.Again():  # the earlier losses count no more
                self.again[event.trial_id] = event.attempt
                self.losses.pop(event.trial_id, None)
                self.shares.pop(event.trial_id, None)
            case log.Merged():
                for attempt in event.attempts:
                    self.files.pop(self.stems.get(attempt, ""), None)
                    self.stems[attempt] = event.part
                self.files[event.part] = event.files
            case log.RaceRound():
                self.race |= zip(event.trial_ids, event.architectures, strict=True)
            case log.Used():
                self._spend(event.wall_seconds, event.device_seconds)
            case log.Stopped():
                self.in_order = True
                self._spend(event.wall_seconds, event.device_seconds)

    def architecture(self, trial_id: int, replicates: int) -> ArchitectureSpec:
        """Return the architecture of a trial that was launched."""
        if trial_id in self.race:
            return self.race[trial_id]
        return self.proposals[trial_id // replicates]

    def current(self) -> set[str]:
        """Return the names of the files that hold the last attempt of a trial."""
        attempts = ((i, row.attempt) for i, row in self.rows.items())
        return {self.stems[attempt] for attempt in attempts if attempt in self.stems}

    def _ended(self, event: log.Ended) -> None:
        row = event.row
        self.under_way.pop(row.trial_id, None)
        if row.trial_id not in self.rows or self.rows[row.trial_id].attempt <= row.attempt:
            self.rows[row.trial_id] = row
        if event.files:  # else a line `merge` names them
            stem = stem_of(row.trial_id, row.attempt)
            self.stems[row.trial_id, row.attempt], self.files[stem] = stem, event.files
        self._spend(event.wall_seconds, event.device_seconds)

    def _lost(self, event: log.AttemptLost) -> None:
        if event.share is not None:
            self.shares[event.trial_id] = event.share
        if event.progress is not None:
            before = self.losses.get(event.trial_id, LossCounts())
            self.losses[event.trial_id] = before.plus(
                progress=event.progress, machine=event.kind is LossKind.MACHINE
            )

    def _spend(self, wall_seconds: float, device_seconds: float) -> None:
        self.spent = Spent(
            max(self.spent.wall_seconds, wall_seconds),
            max(self.spent.device_seconds, device_seconds),
        )
