"""What is free on the nodes of a cluster, and which workers would have to go for another one.

A worker takes CPUs of its node and a share of one of its GPUs. Ray places it; as Ray does, this
book puts it on the GPU that is left with the smallest free share. What other jobs hold is not in
it: a worker for which there is no room after all waits.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol, TypeVar


class Held(Protocol):
    """A worker that holds a share of a GPU; `node` and `gpu` are "" until it has found room."""

    node: str
    gpu: str
    share: float


_Worker = TypeVar("_Worker", bound=Held)


@dataclass(frozen=True)
class Node:
    """A node of the cluster, with all its CPUs and its number of GPUs."""

    name: str
    cpus: float
    gpus: int


@dataclass
class Room:
    """What is free on one node.

    node  its name
    cpus  CPUs
    gpus  share of each GPU, by its id there
    """

    node: str
    cpus: float
    gpus: dict[str, float]


def by_node(workers: Iterable[_Worker]) -> defaultdict[str, list[_Worker]]:
    """Return workers by the name of their node; "" has those that wait for room."""
    found = defaultdict[str, list[_Worker]](list)
    for worker in workers:
        found[worker.node].append(worker)
    return found


def rooms_beside(
    nodes: Iterable[Node], workers: Sequence[Held], cpus: float
) -> tuple[list[Room], bool]:
    """Return what is free beside these workers, and whether each that waits finds room there.

    Those that wait take the room that they find.

    Args:
        nodes: of the cluster.
        workers: that hold `cpus` CPUs each.
        cpus: of a worker.
    """
    rooms, on_node, all_find_room = [], by_node(workers), True
    for node in nodes:
        here = on_node[node.name]
        ids = sorted({worker.gpu for worker in here if worker.gpu})
        ids += [f"unused {k}" for k in range(node.gpus - len(ids))]
        on = {gpu: sum(w.share for w in here if w.gpu == gpu) for gpu in ids}
        free = {gpu: 1.0 - share for gpu, share in on.items()}
        rooms.append(Room(node.name, node.cpus - cpus * len(here), free))
    for worker in on_node[""]:
        found: tuple[Room, str, list[Held]] | None = room_for(worker.share, rooms, cpus)
        if not found:
            all_find_room = False
            continue
        room, gpu, _ = found
        room.cpus -= cpus
        if gpu:
            room.gpus[gpu] -= worker.share
    return rooms, all_find_room


def room_for(
    share: float,
    rooms: Iterable[Room],
    cpus: float,
    *,
    idle: Collection[_Worker] = (),
    kept: tuple[str, str] | None = None,
) -> tuple[Room, str, list[_Worker]] | None:
    """Return where a worker finds room, and which idle ones must go: as few as possible.

    Args:
        share: of a GPU that it needs; 0 for none.
        rooms: what is free.
        cpus: that it needs.
        idle: workers that may be given up.
        kept: node and GPU where it may not be.
    """
    on_node = by_node(idle)
    best: tuple[tuple[int, float], tuple[Room, str, list[_Worker]]] | None = None
    for room in rooms:
        here = on_node[room.node]
        for gpu, free in room.gpus.items() if share else [("", 0.0)]:
            if kept == (room.node, gpu):
                continue
            going: list[_Worker] = []
            for worker in sorted(here, key=lambda one: -one.share):
                if free < share and worker.gpu == gpu:
                    going.append(worker)
                    free += worker.share
            lacking = max(0, ceil((cpus - room.cpus) / cpus) - len(going))
            others = [worker for worker in here if worker not in going]
            if free < share or lacking > len(others):
                continue
            going += others[:lacking]
            if best is None or (len(going), free) < best[0]:
                best = (len(going), free), (room, gpu, going)
    return best and best[1]
