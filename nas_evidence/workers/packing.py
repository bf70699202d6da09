"""A pool that packs: as many workers as the GPUs and cores of a cluster carry.

With `workers = "auto"` and shares by memory each trial asks for its own worker, if by the book
(`rooms.py`) there is room for one. A trial without room lets later ones pass that have some, but
only `MOST_PASSES` of them. Then the emptiest GPU is kept for it: it gets no other trial until it
holds this one, so that a large network does not starve. An idle worker of another share is given
up for a trial if that makes room.
"""

import time
from abc import abstractmethod
from collections.abc import Iterable
from math import inf
from typing import Any

from nas_evidence.workers.executor import Launch
from nas_evidence.workers.pool import ROOM_AFTER, Place, Pool, Seat
from nas_evidence.workers.rooms import Node, Room, room_for, rooms_beside
from nas_evidence.workers.shares import SHARES

#: Trials that may start before one for which there is no room.
MOST_PASSES = 16
#: Maximum number of workers that wait for room beside as many as have found some: the book may be
#: wrong.
MOST_ASKED = 4
#: Seconds that a worker waits for room before the book counts as wrong.
DOUBTED_AFTER = 5.0
#: Seconds for which a cluster is asked to grow for the trials that found no room.
GROWS_FOR = 10.0


class PackingPool(Pool):
    """A pool that packs where `packs` is true, and else is a plain one."""

    def __init__(self, *given: Any, **how: Any) -> None:
        self._passes = dict[int, int]()  # trials that passed each one without room
        self._kept: tuple[int, tuple[str, str]] | None = None  # trial, and its node and GPU
        self._unmet: list[float] = []  # shares of the trials without room
        self._unmet_at = -inf
        super().__init__(*given, **how)

    @property
    @abstractmethod
    def packs(self) -> bool:
        """Whether each trial asks for its own worker."""

    @property
    @abstractmethod
    def grows(self) -> bool:
        """Whether nodes may join while workers wait for room."""

    @abstractmethod
    def _nodes_with_room(self) -> list[Node]:
        """Return the nodes where workers may be."""

    @property
    def free(self) -> int:
        """Return how many trials can start; 1 for some where it depends on which they are."""
        return self._free_room() if self.packs and not self._waiting else super().free

    def first_with_room(self, launches: Iterable[Launch]) -> int | None:
        """Return the place in line of the first trial that can start now, None if none can."""
        return self._first_with_room(launches) if self.packs else 0

    # --- the book

    def _rooms(self) -> tuple[list[Room], bool]:
        """Return what is free by the book, and whether each trial that waits finds room.

        Workers that only ask the cluster to grow take none.
        """
        held = [worker for worker in self.workers if worker.node or worker.launch]
        return rooms_beside(self._nodes_with_room(), held, self.resources.cpus)

    def _idle(self, kept: tuple[str, str] | None) -> list[Seat]:
        """Return the workers that a trial may use or replace."""
        there = [w for w in self.workers if w.launch is None and w.node]
        return [w for w in there if (w.node, w.gpu) != kept]

    def _found(
        self, share: float, kept: tuple[str, str] | None
    ) -> tuple[Seat | None, list[Seat]] | None:
        """Return an idle worker of this share, or those that go for a new one; None: no room."""
        idle = self._idle(kept)
        if alike := [w for w in idle if w.share == share]:
            return min(alike, key=lambda w: (w.call is not None, w.ready_at is None)), []
        found = room_for(share, self._rooms()[0], self.resources.cpus, idle=idle, kept=kept)
        return found and (None, found[2])

    def _kept_for(self, trial_id: int) -> tuple[str, str] | None:
        """Return the GPU that is kept for another trial than this one."""
        return self._kept[1] if self._kept and self._kept[0] != trial_id else None

    def _free_room(self) -> int:
        """Return 1 if some trial may have room, else 0."""
        busy = [worker for worker in self.workers if worker.launch]
        if not busy:
            return 1
        asked = [worker for worker in busy if not worker.node]
        if (
            len(busy) >= max(1, self.most - len(self._over))
            or time.monotonic() < self._paused_until
        ):
            return 0
        if self._idle(None):
            return 1
        doubted = any(time.monotonic() - w.asked_at > DOUBTED_AFTER for w in asked)
        if doubted or len(asked) >= max(MOST_ASKED, len(busy) - len(asked)):
            return 0
        return int(self.grows or self._found(SHARES[-1], None) is not None)

    def _first_with_room(self, launches: Iterable[Launch]) -> int | None:
        self._unmet, self._unmet_at = [], time.monotonic()
        n_there = sum(bool(worker.node) for worker in self.workers)
        known = dict[float, bool]()
        first: Launch | None = None
        for i, launch in enumerate(launches):
            trial_id, share = launch.assignment.trial_id, self.share_of(launch)
            if first is None:
                first = launch
                if not any(worker.launch for worker in self.workers):
                    return 0  # whatever there is, it waits for it
                self._keep_gpu(trial_id, share)
                if self._found(share, self._kept_for(trial_id)):
                    return 0
                known[share] = False
            if share not in known:
                known[share] = self._found(share, self._kept_for(trial_id)) is not None
            if known[share]:
                first_id = first.assignment.trial_id
                self._passes[first_id] = self._passes.get(first_id, 0) + 1
                return i
            if self.grows and len(self._unmet) < max(1, n_there):
                self._unmet.append(share)
            elif not self._found(SHARES[-1], None):
                break
        return None

    def _keep_gpu(self, trial_id: int, share: float) -> None:
        """Keep the emptiest GPU for the first trial in line, if enough others have passed it."""
        before, self._kept = self._kept, None
        if self._passes.get(trial_id, 0) < MOST_PASSES or not share:
            return
        free = {(r.node, gpu): left for r in self._rooms()[0] for gpu, left in r.gpus.items()}
        if before and before[0] == trial_id and before[1] in free:
            self._kept = before
        elif free:
            self._kept = trial_id, max(free, key=lambda place: free[place])

    # --- workers come and go

    def _place(self) -> None:
        """Bind each waiting trial to an idle worker, or to one that is asked for."""
        if not self.packs:
            super()._place()
            return
        while self._waiting and time.monotonic() >= self._paused_until:
            if self._is_parking(self._waiting[0][0]):
                return
            launch, share = self._waiting.pop(0)
            trial_id = launch.assignment.trial_id
            worker, going = self._found(share, self._kept_for(trial_id)) or (None, [])
            if self._kept and self._kept[0] == trial_id:
                self._kept = None
            self._passes.pop(trial_id, None)
            for one in going:
                self._remove(one)
            if worker is None:
                worker = self._begin(share, self._avoided)
                worker.asked_at = worker.since = time.monotonic()
                self.workers.append(worker)
                worker.launch = launch
            else:
                self._bind(worker, launch)

    def _placed(self, worker: Seat, place: Place) -> None:
        super()._placed(worker, place)
        if self.packs and worker.launch is None and not self._rooms()[1]:
            self._remove(worker)  # it asked for more nodes, and got the room of a trial

    def _bind(self, worker: Seat, launch: Launch) -> None:
        """Give a trial an idle worker."""
        worker.launch = launch
        if worker.call is None:
            (self._take_up if worker.ready_at is not None else self._start)(worker)

    def _ask_for_lacking(self) -> float | None:
        """Mend what the book got wrong, and ask for what a cluster may grow by."""
        if not self.packs:
            return super()._ask_for_lacking()
        now = time.monotonic()
        bound = [w for w in self.workers if w.launch and not w.node]
        for worker in [w for w in bound if now - max(w.asked_at, self._made_room_at) > ROOM_AFTER]:
            idle = self._idle(None)
            alike = [w for w in idle if w.share == worker.share]
            if alike and worker.launch:
                launch, worker.launch = worker.launch, None
                self._remove(worker)
                self._bind(alike[0], launch)
            elif idle:  # others hold what the book calls free
                self._remove(max(idle, key=lambda w: (w.node, w.share)))
                self._made_room_at = now
        asks = now - self._unmet_at < GROWS_FOR and self._rooms()[1]
        wanted = self._unmet[:] if asks else []
        for worker in [w for w in self.workers if not w.node and not w.launch]:
            if worker.share in wanted:
                wanted.remove(worker.share)
            else:
                self._remove(worker)
        for share in wanted if now >= self._paused_until else []:
            worker = self._begin(share, self._avoided)
            worker.asked_at = worker.since = now
            self.workers.append(worker)
        waits = [w for w in self.workers if w.launch and not w.node]
        self._wanted = sum(bool(w.launch or w.node) for w in self.workers) + len(self._waiting)
        if self._waiting:
            return self._waiting[0][1]
        return waits[0].share if waits else self._share

    def _lacking(self) -> list[Seat]:
        if not self.packs:
            return super()._lacking()
        return [worker for worker in self.workers if worker.launch and not worker.node]
