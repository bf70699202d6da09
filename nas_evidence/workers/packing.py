"""Packing of workers onto nodes and GPU shares: pure functions of the slots in use.

A trial gets 1, 1/2, 1/4 or 1/8 of one GPU, the smallest class that holds its estimated memory:

    memory + CONTEXT_BYTES  <=  share * MEMORY_FRACTION * memory of the GPU

Powers of two always fill a GPU without a gap. Neither Ray nor the GPU enforces the memory limit
of a share; the worker does (`torch.cuda.set_per_process_memory_fraction`). Among the slots with
room the fullest GPU is taken, then the fullest node: whole GPUs stay free for large trials.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Share classes, largest first.
SHARES = (1.0, 0.5, 0.25, 0.125)
#: Fraction of its share that a worker may allocate; the rest covers what allocators do not count.
MEMORY_FRACTION = 0.95
#: What a process takes on a GPU before its first tensor: CUDA context and libraries.
CONTEXT_BYTES = 600 * 1024**2
#: Tolerance for rounding: shares may be typed in by hand.
_SLACK = 1e-6


@dataclass(frozen=True)
class Node:
    """A machine and its total resources."""

    name: str
    cpus: float
    gpus: int


@dataclass(frozen=True)
class Slot:
    """A worker's place: `share` of GPU number `gpu` of a node, and a number of its CPUs."""

    node: str
    gpu: int | None  # None where share is 0
    cpus: float
    share: float


def share_for(memory_bytes: int, gpu_memory_bytes: int, *, min_share: float = 0.0) -> float:
    """Return the smallest class that holds `memory_bytes` and is not below `min_share`.

    A trial too large for a whole GPU gets a whole one: the estimate may be wrong; if it is
    right, the trial's record says that memory ran out.

    >>> share_for(2 * 1024**3, 16 * 1024**3)
    0.25
    """
    usable = MEMORY_FRACTION * gpu_memory_bytes
    fitting = [
        share
        for share in SHARES
        if share >= min_share and memory_bytes + CONTEXT_BYTES <= share * usable
    ]
    return min(fitting, default=SHARES[0])


def fit(share: float, cpus: float, *, nodes: Iterable[Node], held: Iterable[Slot]) -> Slot | None:
    """Return the fullest slot with room for a worker, or None."""
    on = _by_node(held)
    options: list[tuple[float, float, Slot]] = []  # room left on the GPU, on the node
    for node in nodes:
        here = on.get(node.name, ())
        cpus_left = node.cpus - sum(slot.cpus for slot in here) - cpus
        if cpus_left < -_SLACK:
            continue
        if share == 0:
            options.append((0.0, cpus_left, Slot(node.name, None, cpus, 0.0)))
        for gpu in range(node.gpus if share else 0):
            gpu_left = 1.0 - sum(slot.share for slot in here if slot.gpu == gpu) - share
            if gpu_left >= -_SLACK:
                options.append((gpu_left, cpus_left, Slot(node.name, gpu, cpus, share)))
    return min(options, key=lambda option: option[:2])[2] if options else None


def make_room(
    share: float,
    cpus: float,
    *,
    nodes: Sequence[Node],
    busy: Sequence[Slot],
    idle: Sequence[Slot],
    limit: int,
) -> tuple[Slot, list[int]] | None:
    """Return a slot for a worker and the fewest `idle` workers to retire for it, or None.

    Args:
        share: Share of one GPU that the worker needs.
        cpus: CPUs that it needs.
        nodes: Nodes of the cluster.
        busy: Workers that stay.
        idle: Workers that may be retired.
        limit: Largest number of workers, including the new one.
    """
    best: tuple[Slot, list[int]] | None = None
    for node in nodes:
        for gpu in range(node.gpus) if share else (None,):
            # Those on this GPU first, the largest first: then few have to go.
            order = sorted(
                (i for i, slot in enumerate(idle) if slot.node == node.name),
                key=lambda i: (idle[i].gpu != gpu, -idle[i].share),
            )
            order += [i for i in range(len(idle)) if i not in order]
            fewest = max(0, len(busy) + len(idle) + 1 - limit)
            for n_gone in range(fewest, len(idle) + 1):
                gone = order[:n_gone]
                held = [*busy, *(slot for i, slot in enumerate(idle) if i not in gone)]
                place = fit(share, cpus, nodes=[node], held=held)
                if place is not None:
                    if best is None or n_gone < len(best[1]):
                        best = place, gone
                    break
    return best


def how_many(
    share: float, cpus: float, *, nodes: Sequence[Node], held: Iterable[Slot], most: int
) -> int:
    """Return how many more workers of one kind fit beside those `held`, counted up to `most`.

    One after another they fill a node up to its CPUs or its GPUs, so nodes can be counted apart.
    """
    count, here = 0, _by_node(held)
    for node in nodes:
        if count >= most:
            break
        slots = here.get(node.name, ())
        room = most - count
        if cpus:
            room = min(room, _times(node.cpus - sum(slot.cpus for slot in slots), cpus))
        if share:
            left = [1.0] * node.gpus
            for slot in slots:
                if slot.gpu is not None:
                    left[slot.gpu] -= slot.share
            room = min(room, sum(_times(one, share) for one in left))
        count += room
    return count


def _times(left: float, each: float) -> int:
    """Return how often `each` fits into what is left."""
    return max(0, int((left + _SLACK) / each))


def _by_node(held: Iterable[Slot]) -> dict[str, list[Slot]]:
    found: dict[str, list[Slot]] = {}
    for slot in held:
        found.setdefault(slot.node, []).append(slot)
    return found


def shortage(share: float, cpus: float, *, nodes: Sequence[Node], workers: int) -> str:
    """Return why `workers` workers do not fit on empty `nodes`; "" if they fit."""
    if how_many(share, cpus, nodes=nodes, held=(), most=workers) >= workers:
        return ""
    wanted = f"{cpus:g} CPUs" + (f" and {share:g} GPU" if share else "")
    wanted = (
        f"1 worker with {wanted} is"
        if workers == 1
        else f"{workers} workers with {wanted} each are"
    )
    there = f"{sum(n.cpus for n in nodes):g} CPUs"
    there += f" and {sum(n.gpus for n in nodes)} GPUs" if share else ""
    names = "nodes" if len(nodes) != 1 else "node"
    return f"{wanted} wanted, but the cluster has {there} on {len(nodes)} {names}"
