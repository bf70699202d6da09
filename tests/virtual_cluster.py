"""A pool on a virtual cluster with GPUs: trials take known seconds, and nothing takes real ones.

Workers find room as on Ray: of the GPUs of the first node with enough CPUs, the one that is left
with the smallest free share. Another one that waits may be placed before.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from records import asked, mlp

from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers import pool as pool_module
from nas_evidence.workers.executor import Launch
from nas_evidence.workers.packing import PackingPool
from nas_evidence.workers.pool import Place, Seat
from nas_evidence.workers.process import Answer
from nas_evidence.workers.rooms import Node


@dataclass(frozen=True)
class Job:
    """A trial: its share of a GPU, and how long it runs, s."""

    share: float
    seconds: float


@dataclass
class Used:
    """What a run on the cluster came to.

    busy     share of the GPU seconds, until the last trial began, in which a GPU had a trial
    filled   share of them that trials held
    seconds  until the last trial had ended
    idle     moments at which a GPU had room for a trial in line: seconds and shares
    """

    busy: float
    filled: float
    seconds: float
    idle: list[tuple[float, float]] = field(default_factory=list)


class VirtualPool(PackingPool):
    """A pool whose workers are entries of a book.

    Args:
        nodes: of the cluster.
        packs: whether it packs.
        how: keys of [resources].
    """

    def __init__(self, nodes: Sequence[Node], *, packs: bool = True, **how: Any) -> None:
        self.nodes, self._packs, self.ended = list(nodes), packs, list[Seat]()
        most = how.pop("most", 10_000)
        super().__init__(ResourceSpec(**how), share=None, most=most)

    @property
    def packs(self) -> bool:
        return self._packs

    @property
    def grows(self) -> bool:
        return False

    def _nodes_with_room(self) -> list[Node]:
        return self.nodes

    def _estimated_share(self, launch: Launch) -> float:
        return launch.min_share

    def _begin(self, share: float, avoids: frozenset[str]) -> Seat:
        return Seat("worker", share, avoids=avoids, call="place", silence=1e9)

    def _end(self, worker: Seat) -> None:
        self.ended.append(worker)

    def _ask(self, worker: Seat, method: str | None, *arguments: object) -> str:
        return method or "ping"

    def _wait(self, workers: Sequence[Seat], timeout: float) -> list[Any]:
        return []

    def shares(self) -> dict[tuple[str, str], float]:
        """Return what workers hold of each GPU."""
        gpus = {(n.name, str(k)): 0.0 for n in self.nodes for k in range(n.gpus)}
        for worker in self.workers:
            if worker.node:
                gpus[worker.node, worker.gpu] += worker.share
        return gpus

    def settle(self) -> None:
        """Let workers find room, until nothing changes, and start."""
        before = -1
        while before != (before := sum(bool(w.launch and w.started) for w in self.workers)):
            self._refill()
            for worker in [w for w in self.workers if not w.node]:
                if worker in self.workers and (place := self._place_of(worker)):
                    self._placed(worker, Place(place[0], place[0], gpu=place[1]))
            for worker in [w for w in self.workers if w.node and w.call is not None]:
                if worker.ready_at is None:
                    self._note(worker, Answer(None, 0.0, 0, ""), is_over=True)

    def _place_of(self, worker: Seat) -> tuple[str, str] | None:
        held = self.shares()
        fits = []
        for node in self.nodes:
            here = [w for w in self.workers if w.node == node.name]
            if (len(here) + 1) * self.resources.cpus > node.cpus:
                continue
            gpus = [str(k) for k in range(node.gpus)]
            fits += [
                (1 - held[node.name, k], node.name, k)
                for k in gpus
                if held[node.name, k] + worker.share <= 1
            ]
        return min(fits)[1:] if fits else None


def launches_of(jobs: dict[int, Job]) -> Iterator[Launch]:
    """Return the trials in line."""
    for i, job in jobs.items():
        yield Launch(asked(mlp(), trial_id=i), Path("nowhere"), None, job.share)


def run(
    pool: VirtualPool, jobs: Sequence[Job], now: list[float], *, look_ahead: int = 256
) -> Used:
    """Run trials, in their order where there is room, as the driver does.

    Args:
        pool: where they run.
        jobs: the trials.
        now: the time that the pool reads; is moved on.
        look_ahead: trials in line that the pool may choose from; the others are not known yet.
    """
    line, ends = dict(enumerate(jobs)), list[tuple[float, int]]()
    used, start, began = Used(0.0, 0.0, 0.0), now[0], set[int]()
    busy = filled = 0.0
    n_gpus = sum(node.gpus for node in pool.nodes)
    while line or ends:
        for _ in range(len(jobs)):
            known = dict(list(line.items())[:look_ahead])
            if not known or not pool.free:
                break
            place = pool.first_with_room(launches_of(known))
            if place is None:
                break
            trial_id = list(known)[place]
            pool.launch(next(launches_of({trial_id: line.pop(trial_id)})))
            pool.settle()
        pool.settle()
        for worker in pool.workers:
            if worker.launch and worker.started:
                trial_id = worker.launch.assignment.trial_id
                if trial_id not in began:
                    began.add(trial_id)
                    heapq.heappush(ends, (now[0] + jobs[trial_id].seconds, trial_id))
        waits = [w.launch for w in pool.workers if w.launch and not w.started]
        running = {(w.node, w.gpu): 0.0 for w in pool.workers if w.started}
        for worker in pool.workers:
            if worker.started:
                running[worker.node, worker.gpu] += worker.share
        if line or waits or pool._waiting:
            smallest = min((jobs[i].share for i in list(line)[:look_ahead]), default=2.0)
            free = {gpu: 1 - running.get(gpu, 0.0) for gpu in pool.shares()}
            cpus = sum(n.cpus for n in pool.nodes) > pool.resources.cpus * len(
                [w for w in pool.workers if w.started]
            )
            used.idle += [
                (now[0] - start, left) for left in free.values() if cpus and left >= smallest
            ]
        if not ends:
            now[0] += pool_module.ROOM_AFTER
            continue
        then, trial_id = heapq.heappop(ends)
        if line:
            busy += len(running) * (then - now[0])
            filled += sum(running.values()) * (then - now[0])
            used.seconds = then - start
        now[0] = then
        pool._note(pool.worker_of(trial_id), Answer(None, 0.0, 0, ""), is_over=True)
    total = n_gpus * used.seconds
    used.busy, used.filled = busy / total, filled / total
    used.seconds = now[0] - start
    return used
