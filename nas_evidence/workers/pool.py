"""The pool: which worker runs which trial, which trials wait, and which workers to add or retire.

A worker holds one share class of a GPU and runs one trial after another. A trial whose class has
no worker waits, first in first out, until there is room; idle workers of other classes are retired
to make room. Lost workers are replaced while the nodes have room: fewer nodes, a smaller pool.
Where workers run is the backend's concern (`begin`, `end`, `send`).
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.executor import Launch, Lost
from nas_evidence.workers.packing import SHARES, Node, Slot, fit, how_many, make_room, shortage
from nas_evidence.workers.process import Answer

_LOG = logging.getLogger(__name__)
#: Failed starts in a row before giving up; about half a minute with the pauses in between.
MAX_FAILED_STARTS = 5
#: Longest pause after a failed start before the next try, seconds.
LONGEST_PAUSE = 60.0
#: Different trials that a node may lose in a row.
MOST_LOSSES = 3


@dataclass(frozen=True)
class Limits:
    """When a worker is replaced, and how long a cluster may have no room for one.

    trials      that a worker runs before it is replaced, if it has served long enough
    growth      of a worker's resident memory after which it is replaced, bytes
    least_life  seconds that a worker serves, whatever it has run: a new one imports torch
    patience    seconds without room for any worker, at the start or later
    """

    trials: int = 50
    growth: int = 2 * 1024**3
    least_life: float = 600.0
    patience: float = 30.0


@dataclass(eq=False)
class Seat:
    """One worker process and the call that it answers; idle with neither a call nor a launch."""

    actor: Any
    slot: Slot
    call: Any = None  # reference of the current call
    since: float = 0.0  # when the call began
    silence: float = 0.0  # seconds that the call may take
    launch: Launch | None = None  # its trial, or its next one
    started: bool = False  # whether it has started that trial
    ready_at: float | None = None
    baseline_bytes: int = 0
    n_trials: int = 0

    @property
    def deadline(self) -> float:
        """The time at which the current call is overdue."""
        return self.since + self.silence if self.call is not None else inf


class Backend(Protocol):
    """Starts workers, stops them and calls their methods."""

    def begin(self, slot: Slot) -> Seat:
        """Start a worker in a slot; its first answer means that it is ready."""

    def end(self, worker: Seat) -> None:
        """Stop a worker for good."""

    def send(self, worker: Seat, method: str | None, *arguments: Any) -> None:
        """Call a method, or none, of a worker without a current call; it will answer."""


@dataclass
class Suspects:
    """What each node has lost since it last finished a trial.

    A node is suspect once it has lost `MOST_LOSSES` different trials and finished none in between:
    it gets no new ones while there are others. One trial that fails wherever it runs makes no node
    suspect, and if all nodes are, all are used: too little memory everywhere is no reason to stop.
    """

    _lost: dict[str, set[int]] = field(default_factory=dict)

    def note_loss(self, node: str, trial_id: int) -> bool:
        """Note that a node has lost a trial; return whether that makes it suspect."""
        lost = self._lost.setdefault(node, set())
        before = len(lost)
        lost.add(trial_id)
        return before < MOST_LOSSES <= len(lost)

    def note_end(self, node: str) -> None:
        """Note that a trial has ended on a node as it should."""
        self._lost.pop(node, None)

    def trusted(self, nodes: Sequence[Node], share: float, cpus: float) -> Sequence[Node]:
        """Return the nodes to use: those that are not suspect if a worker fits on one of them.

        Args:
            nodes: all nodes.
            share: of one GPU that the worker needs.
            cpus: that it needs.
        """
        good = [node for node in nodes if len(self._lost.get(node.name, ())) < MOST_LOSSES]
        return good if fit(share, cpus, nodes=good, held=()) is not None else nodes


@dataclass
class Pool:
    """The workers of a study.

    share_of  the share of one GPU that a trial needs
    share     the share of workers started before the first trial; None to start none
    called    what a person calls a node
    limits    of its workers
    """

    backend: Backend
    resources: ResourceSpec
    share_of: Callable[[Launch], float]
    share: float | None
    nodes: Sequence[Node]
    called: Callable[[str], str] = str
    limits: Limits = Limits()
    workers: list[Seat] = field(default_factory=list)
    _suspects: Suspects = field(default_factory=Suspects)
    _waiting: list[Launch] = field(default_factory=list)
    _gpu_numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    _failed_starts: list[str] = field(default_factory=list)
    _failed_at: float = -inf
    _paused_until: float = 0.0
    _short_since: float | None = None
    _busy_seconds: float = 0.0
    _alive_seconds: float = 0.0  # of former workers

    @property
    def free(self) -> int:
        """Return how many trials can start: idle workers and those that could be added.

        At least one while no trial runs: the pool then waits for room, or says what is missing.
        """
        if self._waiting:
            return 0
        taken = [worker.slot for worker in self.workers if worker.launch is not None]
        if self.share is not None:
            room = len(self.workers) - len(taken)
        else:
            nodes = self._trusted(SHARES[-1])
            most = self.resources.workers - len(taken)
            room = how_many(SHARES[-1], self.resources.cpus, nodes=nodes, held=taken, most=most)
        return room if taken else max(1, room)

    @property
    def is_waiting(self) -> bool:
        """Return whether a trial is waiting for room."""
        return bool(self._waiting)

    def launch(self, launch: Launch) -> None:
        """Give a trial a worker of its class, as soon as one is available."""
        self._waiting.append(launch)
        self._place()

    def worker_of(self, trial_id: int) -> Seat:
        """Return the worker that runs a trial."""
        return next(
            w for w in self.workers if w.launch and w.launch.assignment.trial_id == trial_id
        )

    def answered(self, worker: Seat, answer: Answer, *, is_over: bool) -> None:
        """Process an answer; after its trial the worker is free or is retired."""
        worker.call = None
        self._busy_seconds += answer.seconds
        if worker.ready_at is None:
            self._welcome(worker, answer)
        elif is_over:
            if worker.started:
                self._suspects.note_end(worker.slot.node)
                worker.launch, worker.started = None, False
            if reason := self._why_retire(worker, answer):
                _LOG.info("worker_replaced reason=%s", reason)
                self._remove(worker)
                return
        if worker.launch is not None and not worker.started:
            self._take_up(worker)

    def lose(self, worker: Seat, why: str, *, machine: bool = False) -> Lost | None:
        """Give up a worker; return the loss of its trial, if it had started one."""
        _LOG.warning("worker_lost node=%s reason=%s", worker.slot.node, why)
        # A lost node takes all its starting workers along: count them once.
        if worker.ready_at is None and worker.since > self._failed_at:
            self._failed_starts.append(why)
            # Its node may be down without the cluster having noticed.
            pause = min(LONGEST_PAUSE, 2.0 ** len(self._failed_starts))
            self._failed_at = time.monotonic()
            self._paused_until = self._failed_at + pause
        self._remove(worker)
        if worker.launch is not None and worker.started:
            why += self._suspected(worker)
        # If its node is down, do not lose one trial on each worker that was idle there.
        for other in self.workers:
            if other.slot.node == worker.slot.node and other.call is other.launch is None:
                self.backend.send(other, None)
        if worker.launch is None or not worker.started:
            return None
        assignment = worker.launch.assignment
        return Lost(assignment.trial_id, assignment.attempt, why, machine)

    def refill(self) -> None:
        """Replace lost workers while there is room.

        Raises:
            ValueError: no node has had room for any worker for 30 s, or workers fail to start.
        """
        self._place()
        if self.share is not None:
            while len(self.workers) < self.resources.workers and self._make(self.share):
                pass
        if self.workers or not (self._waiting or self.share is not None):
            self._short_since = None
        elif self._short_since is None:
            self._short_since = time.monotonic()
        elif time.monotonic() - self._short_since > self.limits.patience:
            raise UserError(f"no worker is left: {self.missing(workers=1)}.").with_code(
                "no-worker-left"
            )
        none_there = all(worker.ready_at is None for worker in self.workers)
        if none_there and len(self._failed_starts) >= MAX_FAILED_STARTS:
            raise UserError(f"workers do not start: {self._failed_starts[-1]}").with_code(
                "workers-do-not-start"
            )

    def drop_idle_of_lost_nodes(self) -> None:
        """Forget workers on lost nodes that have not started a trial."""
        alive = {node.name for node in self.nodes}
        for worker in [w for w in self.workers if w.slot.node not in alive and not w.started]:
            self._remove(worker)

    def missing(self, workers: int) -> str:
        """Return why so many workers do not fit on empty nodes, and the remedy; "" if they do."""
        share = SHARES[-1] if self.share is None else self.share
        lacking = shortage(share, self.resources.cpus, nodes=self.nodes, workers=workers)
        return lacking and f"{lacking}; lower resources.workers, .cpus or .gpus with --set"

    def idle_share(self) -> float:
        """Return the share of time, 0 to 1, that started workers spent idle."""
        now, busy, alive = time.monotonic(), self._busy_seconds, self._alive_seconds
        for worker in self.workers:
            if worker.ready_at is not None:
                alive += now - worker.ready_at
                busy += now - worker.since if worker.call is not None else 0.0
        return max(0.0, 1.0 - busy / alive) if alive > 0 else 0.0

    def close(self) -> None:
        """Stop all workers."""
        for worker in list(self.workers):
            self.backend.end(worker)
        self.workers.clear()
        self._waiting.clear()

    def _suspected(self, worker: Seat) -> str:
        """Note the loss of a trial; return what else to say if its node gets no more."""
        assert worker.launch is not None
        node = worker.slot.node
        if not self._suspects.note_loss(node, worker.launch.assignment.trial_id):
            return ""
        if any(one.name == node for one in self._trusted(worker.slot.share)):
            return ""
        for other in [w for w in self.workers if w.slot.node == node and not w.started]:
            self._remove(other)
        _LOG.warning("node_avoided node=%s losses=%d", node, MOST_LOSSES)
        return (
            f"; {self.called(node)} has lost {MOST_LOSSES} trials and finished none in between, "
            "and gets no more while there are other nodes"
        )

    def _trusted(self, share: float) -> Sequence[Node]:
        return self._suspects.trusted(self.nodes, share, self.resources.cpus)

    def _place(self) -> None:
        """Give waiting trials their workers, strictly in order."""
        while self._waiting:
            share = self.share_of(self._waiting[0])
            fitting = [w for w in self.workers if w.launch is None and w.slot.share == share]
            if not fitting and not self._make(share):
                return
            worker = min(fitting, key=lambda w: w.call is not None, default=self.workers[-1])
            worker.launch = self._waiting.pop(0)
            if worker.call is None:
                self._take_up(worker)

    def _take_up(self, worker: Seat) -> None:
        worker.started = True
        worker.n_trials += 1
        self.backend.send(worker, "start", worker.launch)

    def _make(self, share: float) -> bool:
        """Start a worker of a share class if there is room, retiring idle ones if need be."""
        if time.monotonic() < self._paused_until:
            return False
        idle = [w for w in self.workers if w.launch is None and w.slot.share != share]
        placed = make_room(
            share,
            self.resources.cpus,
            nodes=self._trusted(share),
            busy=[w.slot for w in self.workers if w not in idle],
            idle=[w.slot for w in idle],
            limit=self.resources.workers,
        )
        if placed is None:
            return False
        for index in placed[1]:
            self._remove(idle[index])
        self.workers.append(self.backend.begin(placed[0]))
        return True

    def _remove(self, worker: Seat) -> None:
        self.backend.end(worker)
        self.workers.remove(worker)
        if worker.ready_at is not None:
            self._alive_seconds += time.monotonic() - worker.ready_at
        if worker.launch is not None and not worker.started:  # it had not started the trial yet
            self._waiting.insert(0, worker.launch)

    def _welcome(self, worker: Seat, answer: Answer) -> None:
        worker.ready_at = time.monotonic()
        worker.baseline_bytes = answer.resident_bytes
        self._failed_starts.clear()
        if answer.gpu is not None:  # the cluster chose the GPU of the node
            slot = worker.slot
            number = self._gpu_number(slot.node, answer.gpu)
            worker.slot = Slot(slot.node, number, slot.cpus, slot.share)

    def _gpu_number(self, node: str, gpu: str) -> int:
        """Return our number of the cluster's `gpu`: the same if possible, else a free one."""
        numbers = self._gpu_numbers.setdefault(node, {})
        n_gpus = next((n.gpus for n in self.nodes if n.name == node), 0)
        free = [number for number in range(n_gpus) if number not in numbers.values()]
        own = int(gpu) if gpu.isdigit() and int(gpu) in free else next(iter(free), 0)
        return numbers.setdefault(gpu, own)

    def _why_retire(self, worker: Seat, answer: Answer) -> str:
        growth = answer.resident_bytes - worker.baseline_bytes
        if answer.must_go:
            return answer.must_go
        if all(node.name != worker.slot.node for node in self._trusted(worker.slot.share)):
            return "its node loses trials, or is gone"
        lived = time.monotonic() - (worker.ready_at or 0.0)
        if worker.n_trials >= self.limits.trials and lived >= self.limits.least_life:
            return f"{worker.n_trials} trials"
        return f"grew by {growth} bytes" if growth > self.limits.growth else ""
