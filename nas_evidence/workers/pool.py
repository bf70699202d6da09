"""Executors with worker processes: which worker runs which trial, and when workers come and go.

A worker holds one share of a GPU and runs one trial after another. It is asked for here; where it
runs is decided by what starts it, and said by its first answer. Lost workers are asked for again.
Workers without a trial for a minute are released, so that a cluster may shrink.

A trial whose share no worker has waits, first in first out; idle workers of other shares are given
up for it. A pool that packs is in `packing.py`.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from nas_evidence.plumbing.durations import duration
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import LossKind, TrialRecord
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.choice import FEW_WORKERS
from nas_evidence.workers.executor import Event, Launch, Lost, Verdict, checked
from nas_evidence.workers.process import Answer

_LOG = logging.getLogger(__name__)
#: A worker that has a place and has not started after this many seconds is given up.
START_TIMEOUT = 120.0
#: Failed starts in a row before giving up; about half a minute with the pauses in between.
MAX_FAILED_STARTS = 5
#: Longest pause after a failed start before the next try, seconds.
LONGEST_PAUSE = 60.0
#: Different trials that a node may lose in a row.
MOST_LOSSES = 3
#: Seconds that a trial waits for a worker before an idle one of another share is given up for it.
ROOM_AFTER = 2.0
#: Seconds that workers wait for room before this is said.
SAID_AFTER = 20.0
#: Seconds that a pool which closes waits for the checkpoints of parked trials.
LONGEST_PARK = 60.0
#: Seconds between two looks at what is free while workers wait for room.
LOOK_AGAIN = 10.0
#: Seconds without room for any worker after which a study on one machine stops.
PATIENCE = 900.0


@dataclass(frozen=True)
class Limits:
    """When a worker is replaced or released, and how long to wait for room.

    trials      that a worker runs before it is replaced, if it has served long enough
    growth      of a worker's resident memory after which it is replaced, bytes
    least_life  seconds that a worker serves, whatever it has run: a new one imports torch
    idle        seconds without a trial after which a worker is released
    patience    seconds at most without room for any worker, whatever the study allows
    """

    trials: int = 50
    growth: int = 2 * 1024**3
    least_life: float = 600.0
    idle: float = 60.0
    patience: float = inf


@dataclass(frozen=True)
class Place:
    """Where a worker is, the address of that node, and why it cannot work there, or "".

    gpu     the GPU of which it has a share, as the node calls it
    device  device file of a GPU of the node, of which a worker without a share tells
    """

    node: str
    address: str
    unusable: str = ""
    gpu: str = ""
    device: str = ""


@dataclass(frozen=True)
class Failed:
    """An answer that says that a worker crashed, or what its call raised."""

    why: str
    kind: LossKind = LossKind.CRASH


@dataclass(eq=False)
class Seat:
    """One worker process and the call that it answers; idle with neither a call nor a launch.

    node    where it is; "" while it waits for room
    gpu     of which it has a share
    avoids  nodes where it was not to start
    """

    actor: Any
    share: float
    node: str = ""
    gpu: str = ""
    avoids: frozenset[str] = frozenset()
    asked_at: float = 0.0
    call: Any = None  # reference of the current call
    since: float = 0.0  # when the call began, or the last one ended
    silence: float = 0.0  # seconds that the call may take
    launch: Launch | None = None  # its trial, or its next one
    started: bool = False  # whether it has started that trial
    parks: bool = False  # whether it writes the last checkpoint of that trial
    ready_at: float | None = None
    baseline_bytes: int = 0
    n_trials: int = 0

    @property
    def deadline(self) -> float:
        """The time at which the current call is overdue."""
        return self.since + self.silence if self.call is not None else inf


class Pool(ABC):
    """An executor whose workers are processes.

    Args:
        resources: the study's `[resources]`; `workers` is how many are asked for.
        share: of one GPU that each trial gets; None where the trials decide it.
        most: workers at most, if `workers` is "auto".
        limits: of the workers; None for the usual ones.
        say: told, in one line, what workers wait for.
        waits: told again and again what the study waits for while no worker has room, then "".
    """

    def __init__(
        self,
        resources: ResourceSpec,
        *,
        share: float | None,
        most: int = FEW_WORKERS,
        limits: Limits | None = None,
        say: Callable[[str], None] = lambda line: None,
        waits: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.resources, self.limits, self.say = resources, limits or Limits(), say
        self.workers: list[Seat] = []
        self.fixed_share = share
        self._share = share  # of the next worker; None until a trial has said it
        self.most = most if resources.workers == "auto" else resources.workers
        self._wanted = self.most
        self._waiting: list[tuple[Launch, float]] = []  # with the share of each
        self._losses = defaultdict[str, set[int]](set)  # trials, by node, since it finished one
        self._avoided: frozenset[str] = frozenset()
        self._failed_starts: list[str] = []
        self._failed_at = -inf
        self._paused_until = 0.0
        self._made_room_at = -inf
        self._short_since: float | None = None
        self._said = {"none": False, "few": False}
        self._waits, self._told_at, self._waits_now = waits, -inf, False
        self._over = set[int]()  # trials that have ended and were not launched again
        self._busy_seconds = 0.0
        self._alive_seconds = 0.0  # of former workers

    # --- what the driver calls

    @property
    def free(self) -> int:
        """Return how many trials can start: workers without one, and those that were released.

        At least one while no trial runs: the study then waits for room, or says what is missing.
        """
        if self._waiting:
            return 0
        idle = sum(worker.launch is None and bool(worker.node) for worker in self.workers)
        room = idle + self.most - self._wanted
        return room if any(worker.launch for worker in self.workers) else max(1, room)

    def launch(self, launch: Launch) -> None:
        """Give a trial a worker of its share, as soon as one is available."""
        share = self.share_of(launch)
        self._over.discard(launch.assignment.trial_id)
        if self.fixed_share is None:
            self._share = share
        self._waiting.append((launch, share))
        self._place()
        if self._waiting:  # those that were released are needed again
            self._wanted = self.most

    def advance(self, trial_id: int, until_epoch: int, *, timeout: float | None = None) -> None:
        """Let a trial continue training; it is lost after `timeout` seconds of silence."""
        self._call(self.worker_of(trial_id), "advance", until_epoch, timeout=timeout)

    def park(self, trial_id: int) -> None:
        """Take a trial off its worker, which is free once it has written the checkpoint."""
        worker = self.worker_of(trial_id)
        worker.parks = True
        self._call(worker, "park")

    def finish(self, trial_id: int, verdict: Verdict | None = None) -> None:
        """Ask for a trial's record."""
        self._call(self.worker_of(trial_id), "finish", verdict)

    def poll(self, timeout: float) -> list[Event]:
        """Return the reports, records and losses that have arrived.

        Raises:
            ValueError: there was no room for any worker for long, or workers fail to start.
        """
        self._refill()
        called = [worker for worker in self.workers if worker.call is not None]
        if not called:
            if self._waiting or not self.workers:
                time.sleep(min(timeout, 0.1))
            return []
        left = min(worker.deadline for worker in called) - time.monotonic()
        answers = self._wait(called, max(0.0, min(timeout, left)))
        # Losing one may remove others of its node.
        events = [self._collect(*one) for one in answers if one[0] in self.workers]
        now = time.monotonic()
        for worker in [w for w in called if w.call is not None and now > w.deadline]:
            if worker in self.workers:
                silent = f"no answer for {worker.silence:.0f} s"
                events.append(self.lose(worker, silent, LossKind.HUNG))
        self._refill()
        return [event for event in events if event is not None]

    def now(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    def idle_share(self) -> float:
        """Return the share of time, 0 to 1, that started workers spent idle."""
        now, busy, alive = time.monotonic(), self._busy_seconds, self._alive_seconds
        for worker in self.workers:
            if worker.ready_at is not None:
                alive += now - worker.ready_at
                busy += now - worker.since if worker.call is not None else 0.0
        return max(0.0, 1.0 - busy / alive) if alive > 0 else 0.0

    def close(self) -> None:
        """Stop all workers; running trials keep their checkpoints."""
        self.let_park()
        for worker in self.workers:
            self._end(worker)
        self.workers.clear()
        self._waiting.clear()

    def let_park(self) -> None:
        """Wait for the checkpoints of parked trials, but not for ever."""
        until = time.monotonic() + LONGEST_PARK
        while (left := until - time.monotonic()) > 0:
            parking = [worker for worker in self.workers if worker.parks]
            if not parking:
                return
            for worker, answer in self._wait(parking, left):
                self._collect(worker, answer)

    def worker_of(self, trial_id: int) -> Seat:
        """Return the worker that runs a trial."""
        return next(
            w for w in self.workers if w.launch and w.launch.assignment.trial_id == trial_id
        )

    def share_of(self, launch: Launch) -> float:
        """Return the share of one GPU that a trial needs."""
        fixed = self.fixed_share
        if fixed is None:
            return self._estimated_share(launch)
        return max(fixed, launch.min_share) if fixed else 0.0

    @property
    def patience(self) -> float:
        """Seconds to wait for room for any worker."""
        asked = self.resources.wait_seconds
        return min(self._usual_patience if asked == "auto" else asked, self.limits.patience)

    # --- what starts workers and carries calls

    @abstractmethod
    def _begin(self, share: float, avoids: frozenset[str]) -> Seat:
        """Ask for a worker with a call under way; its answer is a `Place` unless it has one."""

    @abstractmethod
    def _end(self, worker: Seat) -> None: ...

    @abstractmethod
    def _ask(self, worker: Seat, method: str | None, *arguments: Any) -> Any:
        """Send a call; return what stands for its answer."""

    @abstractmethod
    def _wait(
        self, workers: Sequence[Seat], timeout: float
    ) -> list[tuple[Seat, Answer | Place | Failed]]:
        """Return the answers that are there, after at most `timeout` seconds."""

    def _estimated_share(self, launch: Launch) -> float:
        """Return the share that a trial needs by its memory."""
        return 0.0

    def _has_its_device(self, worker: Seat, device: str) -> bool:
        """Return whether a worker trains where its share is, on this kind of device."""
        return True

    def _to_avoid(self, suspects: frozenset[str]) -> frozenset[str]:
        """Return the nodes that get no new worker; suspects may if there are no others."""
        return frozenset()

    def _node_label(self, node: str) -> str:
        return node

    @property
    def _usual_patience(self) -> float:
        """Seconds to wait for room, if the study leaves it open."""
        return PATIENCE

    def _shortage(self, share: float, n: int) -> str:
        """Return what `n` workers ask for and what there is, as one clause."""
        return f"{n} workers wait for room"

    def _waits_for(self, share: float, n: int) -> str:
        """Return the same in few words, after "waits for"."""
        return f"{n} worker{'s' * (n != 1)}"

    # --- answers and losses

    def _call(
        self, worker: Seat, method: str | None, *arguments: Any, timeout: float | None = None
    ) -> None:
        if method == "start":  # a new trial: the length of its slices is not known
            worker.silence = 0.0
        worker.silence = timeout or max(worker.silence, self.resources.slice_timeout_seconds)
        worker.since = time.monotonic()
        worker.call = self._ask(worker, method, *arguments)

    def _collect(self, worker: Seat, answer: Answer | Place | Failed) -> Event | None:
        if isinstance(answer, Failed):
            return self.lose(worker, answer.why, answer.kind)
        if isinstance(answer, Place):
            self._placed(worker, answer)
            return None
        event: Event | None = answer.event
        if worker.launch is not None and worker.started and not worker.parks:
            event = checked(event, worker.launch.assignment)
            if isinstance(event, Lost):
                return self.lose(worker, event.cause, event.kind)
        if isinstance(event, TrialRecord):
            self._over.add(event.trial_id)
        self._note(worker, answer, is_over=event is None or isinstance(event, TrialRecord))
        return event

    def _placed(self, worker: Seat, place: Place) -> None:
        """Let a worker that has found room start; one whose share may be wrong, with a trial."""
        worker.node, worker.gpu = place.node, place.gpu
        worker.call, worker.since = None, time.monotonic()
        if self.fixed_share is not None or worker.launch is not None:
            self._start(worker)

    def _start(self, worker: Seat) -> None:
        self._call(worker, None, timeout=START_TIMEOUT)  # it imports torch and gets the data

    def _note(self, worker: Seat, answer: Answer, *, is_over: bool) -> None:
        """Process an answer; after its trial the worker is free or is retired."""
        worker.call, worker.since, worker.parks = None, time.monotonic(), False
        self._busy_seconds += answer.seconds
        if worker.ready_at is None:
            worker.ready_at, worker.baseline_bytes = worker.since, answer.resident_bytes
            self._failed_starts.clear()
            if not self._has_its_device(worker, answer.device):
                self._remove(worker)
                return
        elif is_over:
            if worker.started:
                self._losses.pop(worker.node, None)
                worker.launch, worker.started = None, False
            if reason := self._why_retire(worker, answer):
                _LOG.info("worker_replaced reason=%s", reason)
                self._remove(worker)
                return
        if worker.launch is not None and not worker.started:
            self._take_up(worker)

    def lose(self, worker: Seat, why: str, kind: LossKind = LossKind.CRASH) -> Lost | None:
        """Give up a worker; return the loss of its trial, if it had started one."""
        _LOG.warning("worker_lost node=%s kind=%s reason=%s", worker.node, kind, why)
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
            idle = other.ready_at is not None and other.call is other.launch is None
            if idle and other.node == worker.node:
                self._call(other, None)
        if worker.launch is None or not worker.started or worker.parks:
            return None  # a parked trial goes on from an earlier checkpoint
        assignment = worker.launch.assignment
        return Lost(assignment.trial_id, assignment.attempt, why, kind)

    def _suspected(self, worker: Seat) -> str:
        """Note the loss of a trial; return what else to say if its node gets no more.

        A node is suspect once it has lost `MOST_LOSSES` different trials and finished none in
        between. One trial that fails wherever it runs makes no node suspect.
        """
        assert worker.launch is not None
        node, trial_id = worker.node, worker.launch.assignment.trial_id
        known = trial_id in self._losses[node]
        self._losses[node].add(trial_id)
        if known or len(self._losses[node]) != MOST_LOSSES:
            return ""
        self._avoid()
        if node not in self._avoided:
            return ""
        _LOG.warning("node_avoided node=%s losses=%d", node, MOST_LOSSES)
        return (
            f"; {self._node_label(node)} has lost {MOST_LOSSES} trials and finished none in "
            "between, and gets no more while there are other nodes"
        )

    def _bad_nodes(self) -> frozenset[str]:
        lost = self._losses.items()
        return self._to_avoid(frozenset(n for n, trials in lost if len(trials) >= MOST_LOSSES))

    def _avoid(self) -> None:
        """Give up workers that wait for, or idle on, nodes that get no new trials."""
        self._avoided = self._bad_nodes()
        for worker in [w for w in self.workers if not w.started]:
            must_go = (
                worker.node in self._avoided if worker.node else worker.avoids != self._avoided
            )
            if must_go:
                self._remove(worker)

    # --- workers come and go

    def _refill(self) -> None:
        """Place trials, and ask for the workers that are lacking.

        Raises:
            ValueError: there was no room for any worker for long, or workers fail to start.
        """
        self._avoid()
        self._place()
        share = self._ask_for_lacking()
        self._place()
        self._release()
        self._check_room(share)
        none_there = all(worker.ready_at is None for worker in self.workers)
        if none_there and len(self._failed_starts) >= MAX_FAILED_STARTS:
            raise UserError(
                "workers-do-not-start", f"workers do not start: {self._failed_starts[-1]}"
            )

    def _ask_for_lacking(self) -> float | None:
        """Ask for the workers that are lacking; return their share, None if it is not known."""
        self._make_room()
        share = self._waiting[0][1] if self._waiting else self._share
        if share is not None:
            while len(self.workers) < self._wanted and self._ask_for(share):
                pass
        return share

    def _place(self) -> None:
        """Give waiting trials their workers, strictly in order."""
        while self._waiting:
            launch, share = self._waiting[0]
            if self._is_parking(launch):
                return
            alike = [w for w in self.workers if w.launch is None and w.share == share]
            idle = [w for w in alike if w.node]
            if idle:
                worker = min(idle, key=lambda w: w.call is not None)
                worker.launch = launch
                del self._waiting[0]
                if worker.call is None:
                    (self._take_up if worker.ready_at is not None else self._start)(worker)
            elif alike or not self._ask_for(share):
                return

    def _is_parking(self, launch: Launch) -> bool:
        """Return whether the checkpoint from which a trial goes on is being written."""
        trial_id, parking = launch.assignment.trial_id, [w for w in self.workers if w.parks]
        return any(w.launch and w.launch.assignment.trial_id == trial_id for w in parking)

    def _take_up(self, worker: Seat) -> None:
        worker.started = True
        worker.n_trials += 1
        self._call(worker, "start", worker.launch)

    def _ask_for(self, share: float) -> bool:
        """Ask for a worker, in place of an idle one of another share if there are enough."""
        if time.monotonic() < self._paused_until:
            return False
        if len(self.workers) >= self.most:
            others = [w for w in self.workers if w.launch is None and w.share != share]
            if not others:
                return False
            self._remove(min(others, key=lambda w: bool(w.node)))
        worker = self._begin(share, self._avoided)
        worker.asked_at = worker.since = time.monotonic()
        self.workers.append(worker)
        return True

    def _make_room(self) -> None:
        """For a trial that waits, give up idle workers of other shares, one after another."""
        if not self._waiting:
            return
        _, share = self._waiting[0]
        others = [w for w in self.workers if w.launch is None and w.share != share]
        for worker in [w for w in others if not w.node]:  # it would take the room
            self._remove(worker)
        now = time.monotonic()
        asked = [w.asked_at for w in self.workers if not w.node]
        idle = [w for w in others if w.node]
        if idle and asked and now - max(min(asked), self._made_room_at) >= ROOM_AFTER:
            self._remove(max(idle, key=lambda w: (w.node, w.share)))
            self._made_room_at = now

    def _release(self) -> None:
        """Release workers that have had no trial for long, and those that still wait for room."""
        if self._waiting:
            return
        now = time.monotonic()
        unused = [w for w in self.workers if w.launch is None and w.call is None]
        if old := [w for w in unused if now - w.since >= self.limits.idle]:
            for worker in [*old, *(w for w in self.workers if not w.node and not w.launch)]:
                self._remove(worker)
            _LOG.info("workers_released n=%d", len(old))
            self._wanted = len(self.workers)

    def _check_room(self, share: float | None) -> None:
        """Say what workers wait for; give up if none has found room for long."""
        now = time.monotonic()
        there = sum(bool(worker.node) for worker in self.workers)
        lacking = self._wanted - there if share is not None else 0
        if there or lacking <= 0 or now < self._paused_until:
            self._short_since, self._said["none"] = None, False
        elif self._short_since is None:
            self._short_since = now
        if self._short_since is not None:
            waited = now - self._short_since
            if waited > self.patience:
                raise self._no_room(share or 0.0, lacking)
            self._say_shortage("none", share or 0.0, lacking, waited)
            self._tell_waiting(share or 0.0, lacking, waited)
        elif self._waits_now:
            self._waits_now, self._told_at = False, -inf
            self._waits("")
        if self._short_since is None and there:
            asked = [worker.asked_at for worker in self._lacking()]
            self._say_shortage("few", share or 0.0, lacking, now - min(asked, default=now))

    def _lacking(self) -> list[Seat]:
        """Return the workers that wait for room and are missed."""
        # With "auto" more are asked for than there is room for, so that a cluster may grow.
        missed = self.resources.workers != "auto"
        return [worker for worker in self.workers if missed and not worker.node]

    def _no_room(self, share: float, n: int) -> UserError:
        return UserError(
            "no-room",
            f"no room for a worker in {duration(self.patience)}: "
            f"{self._shortage(share, n)}. Run the same command again later, raise "
            "resources.wait_seconds, or lower resources.workers, .cpus or .gpus.",
        )

    def _tell_waiting(self, share: float, n: int, waited: float) -> None:
        """Tell what the study waits for; what is free may change meanwhile."""
        now = time.monotonic()
        if waited >= SAID_AFTER and now - self._told_at >= LOOK_AGAIN:
            self._waits_now, self._told_at = True, now
            self._waits(self._waits_for(share, n))

    def _say_shortage(self, which: str, share: float, n: int, waited: float) -> None:
        if waited < SAID_AFTER or self._said[which]:
            return
        self._said[which] = True
        then = "more start as there is room" if which == "few" else self._for_how_long()
        self.say(f"note: {self._shortage(share, n)}; {then}")

    def _for_how_long(self) -> str:
        if self.patience < inf:
            return f"waiting for up to {duration(self.patience)}"
        return "waiting until there is room (set resources.wait_seconds=SECONDS limits that)"

    def _remove(self, worker: Seat) -> None:
        self._end(worker)
        self.workers.remove(worker)
        if worker.ready_at is not None:
            self._alive_seconds += time.monotonic() - worker.ready_at
        if worker.launch is not None and not worker.started:  # it had not started the trial yet
            self._waiting.insert(0, (worker.launch, worker.share))

    def _why_retire(self, worker: Seat, answer: Answer) -> str:
        growth = answer.resident_bytes - worker.baseline_bytes
        if answer.must_go:
            return answer.must_go
        if worker.node in self._bad_nodes():
            return "its node is avoided"
        lived = time.monotonic() - (worker.ready_at or 0.0)
        if worker.n_trials >= self.limits.trials and lived >= self.limits.least_life:
            return f"{worker.n_trials} trials"
        return f"grew by {growth} bytes" if growth > self.limits.growth else ""
