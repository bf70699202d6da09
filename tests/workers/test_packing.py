"""A pool that packs, on a virtual cluster: which trial starts where, and which GPU is idle."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_cluster import Job, VirtualPool, launches_of, run

from nas_evidence.driver.driver import MOST_ASKED_AHEAD
from nas_evidence.spec.record import LossKind
from nas_evidence.workers import packing
from nas_evidence.workers import pool as pool_module
from nas_evidence.workers.packing import MOST_ASKED, MOST_PASSES
from nas_evidence.workers.process import Answer
from nas_evidence.workers.rooms import Node, Room, room_for, rooms_beside
from nas_evidence.workers.shares import CONTEXT_BYTES, SHARES, finest_share, share_for

GIB = 1024**3
ENDED = Answer(None, 0.0, 0, "")
MACHINE = [Node("n", cpus=256, gpus=8)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that a pool reads; a test moves it on."""
    now = [1000.0]
    monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0])
    return now


class Growing(VirtualPool):
    """A pool on a cluster whose nodes come when workers wait."""

    @property
    def grows(self) -> bool:
        return True


def grid(n: int, *, seed: int = 0) -> list[Job]:
    """Networks of many sizes; the larger take longer, up to a factor of four."""
    draws = random.Random(seed)
    shares = [draws.choice(SHARES) for _ in range(n)]
    return [Job(s, 60 * (0.2 + 4 * s) * draws.uniform(0.5, 2.0)) for s in shares]


def start(pool: VirtualPool, shares: Sequence[float], *, first: int = 0) -> None:
    """Launch trials and let all that find room start."""
    for trial_id, share in enumerate(shares, start=first):
        pool.launch(next(launches_of({trial_id: Job(share, 1.0)})))
        pool.settle()


def first_of(pool: VirtualPool, *shares: float) -> int | None:
    """Return the place of the first trial with room, of trials from 100 on."""
    line = {100 + i: Job(share, 1.0) for i, share in enumerate(shares)}
    return pool.first_with_room(launches_of(line))


def finish(pool: VirtualPool, trial_id: int) -> None:
    pool._note(pool.worker_of(trial_id), ENDED, is_over=True)


# --- no GPU is idle


@pytest.mark.parametrize("order", ["longest first", "random"])
def test_no_gpu_is_idle_while_trials_of_many_sizes_wait(order: str, clock: list[float]) -> None:
    jobs = grid(120)
    if order == "longest first":
        jobs.sort(key=lambda job: -job.seconds)
    # Proposals that depend on results: only those few are known that wait.
    ahead = 256 if order == "longest first" else MOST_ASKED_AHEAD
    packed = run(VirtualPool(MACHINE, workers="auto"), jobs, clock, look_ahead=ahead)
    two = run(VirtualPool(MACHINE, packs=False, workers=2), jobs, clock)
    assert packed.busy == pytest.approx(1.0)
    assert packed.filled > 0.9
    assert two.busy < 0.3  # what the default was
    # Only the GPU that is kept for the first in line has room that others may not take.
    assert len(packed.idle) <= (0 if order == "longest first" else MOST_PASSES * 3)


def test_without_the_bound_on_passes_no_gpu_has_room_for_any_trial_that_waits(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MOST_PASSES", 10**9)
    assert run(VirtualPool(MACHINE, workers="auto"), grid(120), clock).idle == []


def test_a_large_trial_lets_some_pass_and_then_the_emptiest_gpu_is_kept_for_it(
    clock: list[float],
) -> None:
    """Small trials without end, of which each GPU always runs some."""
    pool = VirtualPool([Node("n", 64, 2)], workers="auto")
    start(pool, [0.5, 0.25, 0.5, 0.25])
    n_passed, trial_id, running = 0, 4, [0, 1, 2, 3]
    while (place := first_of(pool, 1.0, 0.25)) != 0 and n_passed < 100:
        if place == 1:
            n_passed += 1
            start(pool, [0.25], first=trial_id)
            running.append(trial_id)
            trial_id += 1
        else:
            finish(pool, running.pop(0))
        assert max(pool.shares().values()) <= 1.0
    # Those that pass the bound are on the other GPU, which is never idle.
    assert MOST_PASSES <= n_passed < 40
    assert len(running) >= 2
    pool.launch(next(launches_of({100: Job(1.0, 1.0)})))
    pool.settle()
    assert pool.worker_of(100).started


def test_the_gpu_that_is_kept_is_the_one_with_the_largest_free_share(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = VirtualPool([Node("n", 64, 2)], workers="auto")
    start(pool, [0.5, 0.25, 0.5])  # 3/4 of one GPU, 1/2 of the other
    monkeypatch.setattr(packing, "MOST_PASSES", 0)
    assert first_of(pool, 1.0, 0.5, 0.25) == 2
    start(pool, [0.25], first=3)
    assert sorted(pool.shares().values()) == [0.5, 1.0]


def test_idle_workers_of_other_shares_make_room_at_once_and_no_more_of_them_than_need_be(
    clock: list[float],
) -> None:
    pool = VirtualPool([Node("n", 64, 2)], workers="auto")
    start(pool, [0.25] * 8)
    for trial_id in range(5):
        finish(pool, trial_id)
    assert first_of(pool, 0.5) == 0
    start(pool, [0.5], first=50)
    assert pool.worker_of(50).started
    assert len(pool.ended) == 2
    start(pool, [0.25], first=51)  # an idle one of its share
    assert len(pool.ended) == 2


def test_where_the_cores_are_used_up_no_trial_starts_on_a_free_gpu(clock: list[float]) -> None:
    pool = VirtualPool([Node("n", 3, 2)], workers="auto")
    start(pool, [0.125] * 3)
    assert pool.free == 0
    assert first_of(pool, 0.125) is None
    pool.settle()
    assert len(pool.workers) == 3, "no machine grows"


def test_a_node_without_room_on_one_gpu_is_no_room(clock: list[float]) -> None:
    pool = VirtualPool([Node("n", 8, 2)], workers="auto")
    start(pool, [0.5, 1.0])
    assert first_of(pool, 1.0, 0.5) == 1


def test_no_more_trials_run_than_are_left(clock: list[float]) -> None:
    pool = VirtualPool(MACHINE, workers="auto", most=3)
    start(pool, [0.125] * 3)
    assert pool.free == 0


def test_a_lost_worker_gives_its_room_back(clock: list[float]) -> None:
    pool = VirtualPool([Node("n", 8, 1)], workers="auto")
    start(pool, [1.0])
    assert first_of(pool, 0.125) is None
    assert pool.lose(pool.worker_of(0), "died", LossKind.CRASH) is not None
    assert first_of(pool, 1.0) == 0


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_whatever_happens_each_trial_runs_once_and_no_gpu_is_overfull(
    data: st.DataObject,
) -> None:
    """Trials in any order, ends, deaths, and nodes that come and go."""
    nodes = [Node("a", 4, 2), Node("b", 2, 1)]
    pool = Growing(nodes, workers="auto")
    line, ran, n_known = dict[int, Job](), list[int](), 0
    for _ in range(data.draw(st.integers(1, 40))):
        running = [w for w in pool.workers if w.launch and w.started]
        step = data.draw(st.sampled_from(["trial", "launch", "launch", "end", "die", "nodes"]))
        if step == "trial":
            line[n_known] = Job(data.draw(st.sampled_from(SHARES)), 1.0)
            n_known += 1
        elif step == "launch" and line and pool.free:
            place = pool.first_with_room(launches_of(line))
            if place is not None:
                chosen = list(line)[place]
                pool.launch(next(launches_of({chosen: line.pop(chosen)})))
        elif step == "end" and running:
            pool._note(data.draw(st.sampled_from(running)), ENDED, is_over=True)
        elif step == "die" and running:
            pool.lose(data.draw(st.sampled_from(running)), "died")
        elif step == "nodes" and not pool.workers:
            pool.nodes = data.draw(st.sampled_from([nodes, nodes[:1], nodes[1:]]))
        settles = step != "launch" or data.draw(st.booleans())
        if settles:  # else the next trial is launched before this one finds room
            pool.settle()
        pool._paused_until = 0.0
        assert max(pool.shares().values()) <= 1.0
        if settles and any(w.launch and not w.node for w in pool.workers):
            idle = [w for w in pool.workers if w.node and not w.launch]
            assert all(w.n_trials for w in idle), "more nodes were asked for, at a trial's cost"
        ran += [
            w.launch.assignment.trial_id
            for w in pool.workers
            if w.launch and w.started and w.launch.assignment.trial_id not in ran
        ]
    bound = [w.launch.assignment.trial_id for w in pool.workers if w.launch and not w.started]
    waiting = [launch.assignment.trial_id for launch, _ in pool._waiting]
    assert sorted([*ran, *bound, *waiting, *line]) == list(range(n_known))


# --- where the book is wrong


def test_on_a_cluster_that_others_fill_few_trials_wait_and_one_that_runs_lets_more_start(
    clock: list[float],
) -> None:
    pool = VirtualPool(MACHINE, workers="auto")
    pool._place_of = lambda worker: None  # type: ignore[method-assign]  # others are there
    launched = 0
    while pool.free and launched < 100:
        start(pool, [0.125], first=launched)
        launched += 1
    assert launched == MOST_ASKED
    del pool._place_of  # type: ignore[method-assign]
    pool.settle()
    assert pool.free == 1


def test_a_trial_that_waits_for_room_takes_an_idle_worker_of_its_share(
    clock: list[float],
) -> None:
    pool = VirtualPool([Node("n", 8, 1)], workers="auto")
    start(pool, [0.5])
    pool._place_of = lambda worker: None  # type: ignore[method-assign]
    start(pool, [0.5], first=1)
    assert not pool.worker_of(1).started
    clock[0] += packing.DOUBTED_AFTER + 0.1
    assert pool.free == 0, "the book is wrong"
    finish(pool, 0)
    assert pool.free == 1, "an idle worker is no matter of the book"
    pool.settle()
    assert pool.worker_of(1).started


# --- a cluster that grows


def test_trials_without_room_are_the_demand_for_more_nodes_as_many_as_there_are_workers(
    clock: list[float],
) -> None:
    pool = Growing([Node("a", 4, 1)], workers="auto")
    start(pool, [0.5, 0.5])
    assert pool.free == 1, "so that the driver says what it has"
    assert first_of(pool, 1.0, 0.5, 0.25, 0.25) is None
    pool.settle()
    assert sorted(w.share for w in pool.workers if not w.node) == [0.5, 1.0]
    pool.nodes.append(Node("b", 4, 1))
    pool.settle()
    assert first_of(pool, 1.0, 0.5) == 0


def test_a_worker_that_only_asks_for_more_nodes_takes_no_room_from_a_trial_that_waits(
    clock: list[float],
) -> None:
    pool = Growing([Node("a", 16, 1)], workers="auto")
    start(pool, [0.5, 0.5])
    assert first_of(pool, SHARES[-1]) is None
    pool._refill()  # asks for a node that holds the smallest share
    finish(pool, 1)
    for trial_id in (2, 3):
        pool.launch(next(launches_of({trial_id: Job(0.25, 1.0)})))
    pool.settle()  # the cluster gives the room to whom it will
    assert pool.worker_of(2).started
    assert pool.worker_of(3).started


def test_demand_that_nobody_has_any_more_is_withdrawn(clock: list[float]) -> None:
    pool = Growing([Node("a", 4, 1)], workers="auto")
    start(pool, [1.0])
    assert first_of(pool, 1.0) is None
    pool.settle()
    assert len(pool.workers) == 2
    clock[0] += packing.GROWS_FOR + 1
    pool.settle()
    assert len(pool.workers) == 1


# --- the book


def test_a_worker_goes_where_it_leaves_the_least_free_as_on_ray() -> None:
    rooms = [Room("a", 4.0, {"0": 1.0, "1": 0.5}), Room("b", 4.0, {"0": 0.75})]
    found = room_for(0.5, rooms, 1.0)
    assert found is not None
    assert (found[0].node, found[1], found[2]) == ("a", "1", [])
    assert room_for(0.5, rooms, 5.0) is None
    kept = room_for(1.0, rooms, 1.0, kept=("a", "0"))
    assert kept is None


def test_gpus_of_a_node_that_no_worker_has_named_are_free() -> None:
    pool = VirtualPool([Node("n", 8, 3)], workers="auto")
    start(pool, [0.5])
    (room,), _ = rooms_beside(pool.nodes, pool.workers, 1)
    assert sorted(room.gpus.values()) == [0.5, 1.0, 1.0]
    assert room.cpus == 7


@pytest.mark.parametrize("n", range(1, 64))
def test_a_gpu_is_split_as_far_as_its_cores_carry_and_no_further(n: int) -> None:
    share = finest_share(n)
    assert share == SHARES[-1] or share * n <= 1
    assert share == SHARES[0] or 2 * share * n > 1


def test_the_context_of_a_process_bounds_the_shares_of_a_small_gpu() -> None:
    assert share_for(0, 16 * GIB) == 1 / 16
    assert share_for(0, 24 * GIB) == 1 / 32
    assert 32 * CONTEXT_BYTES > 16 * GIB
