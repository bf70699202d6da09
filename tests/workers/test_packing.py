"""Shares, places and the pool's book, on fake nodes: no process is started here."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import refused
from records import asked

from nas_evidence.data import load
from nas_evidence.spec.study import DatasetSpec, ResourceSpec
from nas_evidence.workers import pool as pool_module
from nas_evidence.workers.executor import Launch, Lost
from nas_evidence.workers.packing import (
    CONTEXT_BYTES,
    MEMORY_FRACTION,
    SHARES,
    Node,
    Slot,
    fit,
    how_many,
    make_room,
    share_for,
    shortage,
)
from nas_evidence.workers.pool import Limits, Pool, Seat
from nas_evidence.workers.process import Answer

GIB = 1024**3
shares = st.sampled_from((0.0, *SHARES))
nodes_of = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=3).map(
    lambda sizes: [Node(f"n{i}", float(c), g) for i, (c, g) in enumerate(sizes)]
)


# --- shares


@pytest.mark.parametrize("share", SHARES)
def test_a_share_holds_what_just_fits_and_no_more(share: float) -> None:
    just = int(share * MEMORY_FRACTION * 16 * GIB) - CONTEXT_BYTES
    assert share_for(just, 16 * GIB) == share
    assert share_for(just + 1, 16 * GIB) == min(1.0, 2 * share)


def test_a_retried_trial_gets_no_less_than_it_asks_for() -> None:
    assert share_for(0, 80 * GIB) == 0.125
    assert share_for(0, 80 * GIB, min_share=0.5) == 0.5
    assert share_for(0, 80 * GIB, min_share=0.3) == 0.5
    assert share_for(500 * GIB, 80 * GIB, min_share=0.5) == 1.0


# --- places


def is_legal(held: list[Slot], nodes: list[Node]) -> bool:
    for node in nodes:
        here = [slot for slot in held if slot.node == node.name]
        if sum(slot.cpus for slot in here) > node.cpus:
            return False
        if any(sum(s.share for s in here if s.gpu == g) > 1 for g in range(node.gpus)):
            return False
    return all(slot.gpu is not None or slot.share == 0 for slot in held)


@given(nodes=nodes_of, asked=st.lists(shares, max_size=20))
def test_places_are_never_above_capacity_and_refused_only_when_full(
    nodes: list[Node], asked: list[float]
) -> None:
    held: list[Slot] = []
    for share in asked:
        slot = fit(share, 1.0, nodes=nodes, held=held)
        everywhere = [
            Slot(node.name, gpu, 1.0, share)
            for node in nodes
            for gpu in (range(node.gpus) if share else (None,))
        ]
        assert (slot is not None) == any(is_legal([*held, s], nodes) for s in everywhere)
        if slot is not None:
            held.append(slot)
            assert is_legal(held, nodes)


def test_small_trials_share_a_gpu_and_leave_the_other_whole() -> None:
    nodes, held = [Node("n", 16.0, 2)], []
    for share in (0.5, 0.125, 0.25, 0.125):
        slot = fit(share, 1.0, nodes=nodes, held=held)
        held.append(slot)
    assert {slot.gpu for slot in held} == {0}
    assert fit(1.0, 1.0, nodes=nodes, held=held) == Slot("n", 1, 1.0, 1.0)
    assert how_many(0.125, 1.0, nodes=nodes, held=held, most=99) == 8


@given(nodes=nodes_of, asked=st.lists(shares, max_size=6), share=shares, most=st.integers(0, 30))
def test_as_many_workers_are_counted_as_fit_one_after_another(
    nodes: list[Node], asked: list[float], share: float, most: int
) -> None:
    held: list[Slot] = []
    for one in asked:
        held += filter(None, [fit(one, 1.0, nodes=nodes, held=held)])
    counted, more = how_many(share, 1.0, nodes=nodes, held=held, most=most), list(held)
    while len(more) - len(held) < most and (slot := fit(share, 1.0, nodes=nodes, held=more)):
        more.append(slot)
    assert counted == len(more) - len(held)


@settings(max_examples=60)
@given(
    nodes=nodes_of,
    asked=st.lists(shares, max_size=6),
    idle_flags=st.lists(st.booleans(), min_size=6, max_size=6),
    share=shares,
    limit=st.integers(1, 7),
)
def test_room_is_made_by_as_few_retirements_as_can_be(
    nodes: list[Node], asked: list[float], idle_flags: list[bool], share: float, limit: int
) -> None:
    held: list[Slot] = []
    for wanted in asked:
        slot = fit(wanted, 1.0, nodes=nodes, held=held)
        held += [slot] if slot else []
    idle = [slot for slot, flag in zip(held, idle_flags, strict=False) if flag]
    busy = [slot for slot, flag in zip(held, idle_flags, strict=False) if not flag]
    found = make_room(share, 1.0, nodes=nodes, busy=busy, idle=idle, limit=limit)
    fewest = next(
        (
            n
            for n in range(len(idle) + 1)
            for gone in itertools.combinations(range(len(idle)), n)
            if len(held) - n + 1 <= limit
            and fit(
                share,
                1.0,
                nodes=nodes,
                held=[*busy, *(s for i, s in enumerate(idle) if i not in gone)],
            )
        ),
        None,
    )
    assert (found is None) == (fewest is None)
    if found is not None:
        slot, gone = found
        assert len(set(gone)) == len(gone) == fewest
        left = [*busy, *(s for i, s in enumerate(idle) if i not in gone)]
        assert is_legal([*left, slot], nodes)
        assert len(left) + 1 <= limit


def test_what_is_missing_is_said_in_numbers() -> None:
    nodes = [Node("a", 2.0, 0), Node("b", 4.0, 1)]
    assert shortage(0.5, 1.0, nodes=nodes, workers=2) == ""
    assert shortage(0.5, 1.0, nodes=nodes, workers=3) == (
        "3 workers with 1 CPUs and 0.5 GPU each are wanted, "
        "but the cluster has 6 CPUs and 1 GPUs on 2 nodes"
    )
    # Six CPUs in all, but no node has room for a worker with five.
    assert "5 CPUs" in shortage(0.0, 5.0, nodes=nodes, workers=1)


# --- the pool


class FakeBackend:
    """Workers that answer when they are told to."""

    def __init__(self) -> None:
        self.begun: list[Seat] = []
        self.ended: list[Seat] = []
        self.sent: list[tuple[Seat, str | None, tuple[object, ...]]] = []

    def begin(self, slot: Slot) -> Seat:
        since = pool_module.time.monotonic()
        worker = Seat(actor=len(self.begun), slot=slot, call="start-up", since=since)
        self.begun.append(worker)
        return worker

    def end(self, worker: Seat) -> None:
        self.ended.append(worker)

    def send(self, worker: Seat, method: str | None, *arguments: object) -> None:
        assert worker.call is None
        assert worker not in self.ended
        worker.call = method or "ping"
        self.sent.append((worker, method, arguments))


def answer(*, resident: int = 0, must_go: str = "", gpu: str | None = None) -> Answer:
    return Answer(None, 0.0, resident, must_go, gpu)


def launch_of(trial_id: int, *, min_share: float = 0.0) -> Launch:
    assignment = asked(trial_id=trial_id)
    return Launch(assignment, Path("nowhere"), None, min_share)


def pool_of(
    nodes: list[Node],
    *,
    share: float | None = 0.0,
    limits: Limits | None = None,
    **resources: int,
) -> tuple[Pool, FakeBackend]:
    backend = FakeBackend()
    spec = ResourceSpec(**{"workers": 2, **resources})
    limits = limits or Limits()
    pool = Pool(backend, spec, lambda launch: launch.min_share, share, nodes, limits=limits)
    return pool, backend


def ready(pool: Pool) -> None:
    for worker in [w for w in pool.workers if w.ready_at is None]:
        pool.answered(worker, answer(), is_over=True)


def finish(pool: Pool, trial_id: int, **how: object) -> None:
    pool.answered(pool.worker_of(trial_id), answer(**how), is_over=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the pool reads; a test moves it on."""
    now = [1000.0]
    monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0])
    return now


def test_a_trial_waits_for_its_worker_and_is_sent_once() -> None:
    pool, backend = pool_of([Node("n", 2.0, 0)])
    pool.refill()
    pool.launch(launch_of(0))
    assert (backend.sent, pool.free) == ([], 1)
    ready(pool)
    assert [(method, args[0].assignment.trial_id) for _, method, args in backend.sent] == [
        ("start", 0)
    ]
    pool.launch(launch_of(1))
    assert pool.free == 0
    assert len(backend.sent) == 2
    finish(pool, 0)
    assert pool.free == 1


@pytest.mark.parametrize(
    ("limit", "how"),
    [
        ({"trials": 1}, {}),
        ({"growth": 100}, {"resident": 101}),
        ({}, {"must_go": "a CUDA error"}),
    ],
)
def test_a_worn_out_worker_is_replaced(limit: dict[str, int], how: dict[str, object]) -> None:
    pool, backend = pool_of([Node("n", 2.0, 0)], limits=Limits(**limit, least_life=0.0))
    pool.refill()
    ready(pool)
    pool.launch(launch_of(0))
    first = pool.worker_of(0)
    finish(pool, 0, **how)
    pool.refill()
    assert backend.ended == [first]
    assert len(backend.begun) == 3
    assert pool.free == 2


def test_a_fresh_enough_worker_is_kept() -> None:
    pool, backend = pool_of([Node("n", 2.0, 0)], limits=Limits(trials=2, growth=100))
    pool.refill()
    ready(pool)
    pool.launch(launch_of(0))
    finish(pool, 0, resident=100)
    assert backend.ended == []
    pool.launch(launch_of(1))
    finish(pool, 1, resident=100)  # the second of at most two, but after a short life
    assert backend.ended == []


def test_with_a_node_gone_the_pool_goes_on_smaller_and_grows_again_with_a_new_one() -> None:
    pool, backend = pool_of([Node("a", 1.0, 0), Node("b", 1.0, 0)])
    pool.refill()
    ready(pool)
    pool.launch(launch_of(0))
    pool.launch(launch_of(1))
    dying = pool.worker_of(0)
    pool.nodes = [n for n in pool.nodes if n.name != dying.slot.node]
    assert pool.lose(dying, "gone") == Lost(0, 1, "gone")
    pool.refill()
    assert (len(pool.workers), pool.free) == (1, 0)
    pool.launch(launch_of(0))  # waits, nothing blocks
    assert pool.is_waiting
    finish(pool, 1)
    pool.refill()
    assert backend.sent[-1][0] is pool.worker_of(0)
    pool.nodes = [*pool.nodes, Node("c", 1.0, 0)]
    pool.refill()
    assert pool.free == 1


def test_an_idle_worker_of_a_lost_node_costs_no_trial() -> None:
    pool, _ = pool_of([Node("a", 1.0, 0), Node("b", 1.0, 0)])
    pool.refill()
    pool.launch(launch_of(0))  # given to a worker that is still starting
    pool.nodes = [n for n in pool.nodes if n.name != pool.worker_of(0).slot.node]
    pool.drop_idle_of_lost_nodes()
    pool.refill()
    ready(pool)
    assert pool.worker_of(0).started


def test_a_dead_node_costs_a_trial_one_attempt_however_many_workers_were_idle_there() -> None:
    pool, backend = pool_of([Node("a", 4.0, 0), Node("b", 1.0, 0)], workers=5)
    pool.refill()
    ready(pool)
    pool.launch(launch_of(0))
    on_a = [worker for worker in pool.workers if worker.slot.node == "a"]
    first = pool.worker_of(0)
    if first not in on_a:  # the fullest node comes first
        pool.launch(launch_of(1))
        first = pool.worker_of(1)
    trial_id = first.launch.assignment.trial_id
    lost = pool.lose(first, "the worker died")
    assert lost.trial_id == trial_id
    # Nobody has noticed yet that the node is gone: the trial is given to one that was idle there,
    # and waits for its word.
    pool.launch(launch_of(trial_id))
    for worker in [worker for worker in on_a if worker is not first]:
        assert worker.call == "ping"
        assert pool.lose(worker, "the worker could not be reached") is None
    taken_up = [a[0].assignment.trial_id for _, method, a in backend.sent if method == "start"]
    assert taken_up.count(trial_id) <= 2


def lose(pool: Pool, trial_id: int) -> str:
    """Lose a trial; return what is said about it."""
    lost = pool.lose(pool.worker_of(trial_id), "died")
    return lost.cause


def test_a_node_that_loses_trial_after_trial_gets_no_more_while_there_are_others(
    clock: list[float],
) -> None:
    pool, _ = pool_of([Node("bad", 1.0, 0)], workers=2)
    pool.called = "the node {}".format
    said = []
    for trial_id in range(3):
        pool.refill()
        ready(pool)
        pool.launch(launch_of(trial_id))
        if trial_id == 2:  # the others have joined in the meantime
            pool.nodes = [*pool.nodes, Node("good", 1.0, 0)]
        said.append(lose(pool, trial_id))
    assert said[:2] == ["died", "died"]
    assert said[2] == (
        "died; the node bad has lost 3 trials and finished none in between, and gets no more "
        "while there are other nodes"
    )
    pool.refill()
    ready(pool)
    assert [worker.slot.node for worker in pool.workers] == ["good"]
    pool.launch(launch_of(3))
    assert pool.free == 0  # the next trial waits for the good node
    pool.nodes = pool.nodes[:1]  # it is gone: the bad one is better than none
    assert lose(pool, 3) == "died"
    pool.refill()
    assert [worker.slot.node for worker in pool.workers] == ["bad"]


@pytest.mark.parametrize("what", ["one trial", "ends in between", "all nodes"])
def test_no_node_is_avoided_for_one_bad_trial_or_now_and_then_or_if_all_are_alike(
    what: str, clock: list[float]
) -> None:
    nodes = [Node("a", 1.0, 0), Node("b", 1.0, 0)]
    pool, _ = pool_of(nodes, workers=2)
    for k in range(12):
        pool.refill()
        ready(pool)
        for trial_id in (2 * k, 2 * k + 1):
            pool.launch(launch_of(0 if what == "one trial" and trial_id % 2 == 0 else trial_id))
        if what == "one trial":
            finish(pool, 2 * k + 1)
            assert lose(pool, 0) == "died"
        elif what == "ends in between" and k % 2:
            finish(pool, 2 * k)
            finish(pool, 2 * k + 1)
        else:
            lose(pool, 2 * k)
            lose(pool, 2 * k + 1)
    pool.refill()
    assert {worker.slot.node for worker in pool.workers} == {"a", "b"}


def test_idle_and_busy_workers_of_an_avoided_node_go_and_the_trial_under_way_ends(
    clock: list[float],
) -> None:
    pool, backend = pool_of([Node("bad", 4.0, 0)], workers=4)
    pool.refill()
    ready(pool)
    for trial_id in range(4):
        pool.launch(launch_of(trial_id))
    pool.nodes = [*pool.nodes, Node("good", 1.0, 0)]
    for trial_id in range(3):
        lose(pool, trial_id)
    pool.refill()
    assert pool.worker_of(3).slot.node == "bad"
    assert sorted(worker.slot.node for worker in pool.workers) == ["bad", "good"]
    survivor = pool.worker_of(3)
    finish(pool, 3)  # which clears its node
    assert survivor not in backend.ended
    pool.refill()
    assert len(pool.workers) == 4


def test_no_room_for_any_worker_is_said_after_a_while(clock: list[float]) -> None:
    pool, _ = pool_of([Node("a", 2.0, 0)])
    pool.refill()
    ready(pool)
    assert pool.free == 2
    pool.nodes = []
    pool.drop_idle_of_lost_nodes()
    assert pool.free == 1  # the pool takes a trial and waits, or says what is missing
    pool.launch(launch_of(0))
    pool.refill()
    clock[0] += pool.limits.patience + 1
    with refused("no-worker-left", "1 worker with 1 CPUs is wanted"):
        pool.refill()


def test_workers_that_never_start_are_said(clock: list[float]) -> None:
    pool, backend = pool_of([Node("a", 2.0, 0)], workers=1)
    for pause in (2.0, 4.0, 8.0, 16.0):
        pool.refill()
        pool.lose(pool.workers[0], "no torch there")
        pool.refill()
        assert pool.workers == []  # not tried again at once
        clock[0] += pause
    pool.refill()
    pool.lose(pool.workers[0], "no torch there")
    assert len(backend.begun) == 5
    with refused("workers-do-not-start", "no torch there"):
        pool.refill()


def test_a_node_that_dies_with_many_starting_workers_stops_nobody(clock: list[float]) -> None:
    pool, backend = pool_of([Node("a", 8.0, 0), Node("b", 8.0, 0)], workers=8)
    pool.refill()
    for worker in list(pool.workers):
        pool.lose(worker, "the worker process crashed")
        clock[0] += 0.1
    pool.refill()
    assert pool.workers == []
    clock[0] += 2.0
    pool.refill()
    ready(pool)
    assert (len(backend.begun), pool.free) == (16, 8)


def test_workers_that_do_not_start_beside_one_that_works_stop_nobody(clock: list[float]) -> None:
    pool, backend = pool_of([Node("a", 1.0, 0), Node("b", 1.0, 0)])
    pool.refill()
    pool.answered(pool.workers[0], answer(), is_over=True)
    for _ in range(8):
        pool.lose(pool.workers[1], "the node is cut off")
        clock[0] += pool_module.LONGEST_PAUSE
        pool.refill()
    assert (len(backend.begun), len(pool.workers)) == (10, 2)


def test_idle_workers_of_other_classes_make_room_for_the_trial_that_waits() -> None:
    pool, backend = pool_of([Node("n", 8.0, 1)], share=None, workers=4)
    pool.refill()
    assert (pool.workers, pool.free) == ([], 4)
    for trial_id in range(4):
        pool.launch(launch_of(trial_id, min_share=0.25))
    ready(pool)
    assert pool.free == 0
    for trial_id in range(3):
        finish(pool, trial_id)
    pool.launch(launch_of(9, min_share=1.0))
    assert pool.is_waiting  # a quarter is still at work
    assert pool.free == 0  # nobody passes it
    finish(pool, 3)
    pool.refill()
    assert len(backend.ended) == 4
    assert [w.slot.share for w in pool.workers] == [1.0]
    ready(pool)
    assert pool.worker_of(9).started


def test_two_gpus_are_told_apart_by_what_the_cluster_calls_them() -> None:
    pool, _ = pool_of([Node("n", 8.0, 2)], share=None, workers=4)
    for trial_id in range(2):
        pool.launch(launch_of(trial_id, min_share=1.0))
    first, second = pool.workers
    pool.answered(second, answer(gpu="0"), is_over=True)  # not as planned
    pool.answered(first, answer(gpu="1"), is_over=True)
    assert (first.slot.gpu, second.slot.gpu) == (1, 0)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_whatever_happens_each_trial_is_taken_up_once_and_no_gpu_is_overfull(
    data: st.DataObject,
) -> None:
    """Launches, answers, deaths and lost nodes in any order."""
    nodes = [Node("a", 3.0, 1), Node("b", 2.0, 2)]
    worn = Limits(trials=3, least_life=0.0)
    pool, backend = pool_of(list(nodes), share=None, workers=4, limits=worn)
    n_launched, ends = 0, []
    for _ in range(data.draw(st.integers(1, 40))):
        options = ["launch"] * (pool.free > 0) + ["answer", "die"] * bool(pool.workers)
        step = data.draw(st.sampled_from([*options, "nodes"]))
        if step == "launch":
            pool.launch(launch_of(n_launched, min_share=data.draw(st.sampled_from(SHARES))))
            n_launched += 1
        elif step == "nodes":
            pool.nodes = [n for n in nodes if data.draw(st.booleans())] or [nodes[0]]
            pool.drop_idle_of_lost_nodes()
        else:
            worker = data.draw(st.sampled_from(pool.workers))
            launch = worker.launch if worker.started else None
            if step == "die":
                assert (pool.lose(worker, "died") is None) == (launch is None)
            elif worker.call is not None:
                pool.answered(worker, answer(), is_over=True)
            else:
                launch = None
            ends += [launch.assignment.trial_id] if launch else []
        pool.refill()
        pool._failed_starts.clear()
        pool._paused_until = 0.0
        assert is_legal([w.slot for w in pool.workers], nodes)
        assert len(pool.workers) <= 4
    taken_up = [a[0].assignment.trial_id for _, method, a in backend.sent if method == "start"]
    assert len(set(taken_up)) == len(taken_up)
    assert len(set(ends)) == len(ends)
    bound = [w.launch.assignment.trial_id for w in pool.workers if w.launch]
    waiting = [launch.assignment.trial_id for launch in pool._waiting]
    assert sorted([*ends, *bound, *waiting]) == list(range(n_launched))


# --- data


def test_data_in_mapped_files_travels_as_a_path(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part, n in (("train", 4000), ("test", 100)):
        np.save(tmp_path / f"x_{part}.npy", generator.normal(size=(n, 64)).astype(np.float32))
        np.save(tmp_path / f"y_{part}.npy", np.arange(n) % 3)
    arrays = load(DatasetSpec(name="npz", path=str(tmp_path)), seed=0)
    text = pickle.dumps(arrays, protocol=5)
    assert len(text) < 100_000  # x_train alone has 1,024,000 bytes
    again = pickle.loads(text)
    np.testing.assert_array_equal(again.x_train[5:7], arrays.x_train[5:7])
