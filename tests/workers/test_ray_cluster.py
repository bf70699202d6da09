"""Shares, wear and lost nodes on a real cluster of three nodes with GPUs that do not exist."""

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import fakes
import pytest
from fakes import finished
from ray_pools import (
    DATA,
    EPOCHS,
    STORE,
    Toy,
    advance_until_lost,
    drive,
    launch,
    next_event,
    pool,
    send_tests_along,
    where,
)
from records import plain_study

from nas_evidence.spec.record import LossKind, TrialRecord, TrialStatus
from nas_evidence.workers.executor import Lost, Verdict
from nas_evidence.workers.pool import Limits

pytestmark = [pytest.mark.slow, pytest.mark.ray]

GIB = 1024**3


class Tight(Toy):
    """Runs out of memory in trial 1 with less than half a GPU."""

    def finish(self, verdict: Verdict | None) -> TrialRecord:
        record = super().finish(verdict)
        if record.trial_id == 1 and self.share < 0.5:
            return record.model_copy(update={"status": TrialStatus.OUT_OF_MEMORY})
        return record


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A head without room and two nodes with GPUs."""
    import ray
    from ray.cluster_utils import Cluster

    send_tests_along(__name__)
    # A node that gives no answer is dead after 3 s; Ray's own patience is 15 s.
    health = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    cluster = Cluster()
    try:
        head = {"include_dashboard": False, "_system_config": health}
        cluster.add_node(num_cpus=0, num_gpus=0, **head, **STORE)
        for _ in range(2):
            cluster.add_node(num_cpus=4, num_gpus=2, **STORE)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def watch(executor, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        executor.poll(timeout=1.0)


@pytest.mark.long
def test_trials_share_gpus_by_their_memory_and_no_gpu_is_overfull(
    cluster: object, tmp_path: Path
) -> None:
    # 1/8, 1/4, 1/2 and 1 of 16 GiB; there are two cores for each GPU: not below 1/2.
    bytes_of = {8: 1 * GIB, 16: 3 * GIB, 32: 7 * GIB, 64: 14 * GIB}
    share_of = {8: 0.5, 16: 0.5, 32: 0.5, 64: 1.0}
    executor = pool(
        cluster.address,
        tmp_path,
        resources={"workers": 8},
        gpu_memory_bytes=16 * GIB,
        memory_of=lambda assignment: bytes_of[assignment.architecture.values["width"]],
    )
    with closing(executor):
        launches = [launch(width, width=width) for width in share_of]
        ends = drive(executor, launches, together=4)
        # It ran out of memory with less.
        (larger,) = drive(executor, [launch(99, width=8, min_share=1.0)])
        idle = executor.idle_share()
    assert {end.trial_id: end.gpu_share for end in ends} == share_of
    assert larger.gpu_share == 1.0
    shares: dict[tuple[str, str], float] = {}  # of each GPU, all at the same time
    for end in ends:
        (gpu,) = where(end)["gpus"]
        key = where(end)["node"], gpu
        shares[key] = shares.get(key, 0.0) + end.gpu_share
    assert max(shares.values()) <= 1.0
    assert 0 < idle < 1


@pytest.mark.long
def test_quarters_of_a_gpu_fill_it_and_a_node_without_gpus_gets_none(
    cluster: object, tmp_path: Path
) -> None:
    without = cluster.add_node(num_cpus=8, num_gpus=0, object_store_memory=80 * 1024**2)
    executor = pool(cluster.address, tmp_path, resources={"workers": 5, "gpus": 0.25})
    try:
        ends = drive(executor, [launch(trial_id) for trial_id in range(5)], together=5)
    finally:
        executor.close()
        cluster.remove_node(without)
    assert {end.gpu_share for end in ends} == {0.25}
    places = [(where(end)["node"], *where(end)["gpus"]) for end in ends]
    assert all(len(place) == 2 for place in places)  # each sees one GPU
    assert without.node_id not in {node for node, _ in places}
    assert max(places.count(place) for place in set(places)) <= 4


@pytest.mark.long
def test_with_auto_as_many_workers_run_as_gpus_and_cores_carry_but_no_more_than_trials(
    cluster: object, tmp_path: Path
) -> None:
    for most, expected in ((20, 8), (3, 3)):
        resources = {"workers": "auto", "gpus": 0.5}
        executor = pool(cluster.address, tmp_path, resources=resources, most=most)
        with closing(executor):
            launches = [launch(trial_id) for trial_id in range(most)]
            ends = drive(executor, launches, together=expected)
            pids = {where(end)["pid"] for end in ends}
        assert len(ends) == most
        assert len(pids) == expected


@pytest.mark.long
def test_a_study_tries_what_ran_out_of_memory_again_with_twice_the_share(
    cluster: object, tmp_path: Path
) -> None:
    spec = plain_study(
        name="tight", objective="sotl", estimators=["sotl"], n_trials=2, dataset=DATA,
        sampler={"name": "random"}, plan={"epochs": EPOCHS},
        resources={"workers": 2, "gpus": 0.25},
    )  # fmt: skip
    how = {"make_worker": Tight, "resources": {"workers": 2, "gpus": 0.25}}
    executor = pool(cluster.address, tmp_path / "logs", **how)
    with closing(executor):
        fakes.drive(spec, tmp_path, executor)
    found = {row.trial_id: (row.attempt, row.gpu_share) for row in finished(tmp_path).values()}
    assert found == {0: (1, 0.25), 1: (2, 0.5)}


@pytest.mark.long
def test_workers_that_grew_and_those_that_raise_are_replaced(
    cluster: object, tmp_path: Path
) -> None:
    small = Limits(growth=100 * 1024**2)
    executor = pool(cluster.address, tmp_path, resources={"workers": 1, "gpus": 0}, limits=small)
    with closing(executor):
        widths = [8, 14, 13, 8]
        ends = drive(executor, [launch(i, width=width) for i, width in enumerate(widths)])
    lost = ends.pop(2)
    full = "[Errno 28] No space left on device: 'somewhere'"
    assert lost == Lost(2, 1, full, LossKind.DISK)
    pids = [where(end)["pid"] for end in ends]
    assert pids[0] == pids[1] != pids[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("resources", "missing", "waits"),
    [
        (
            {"cpus": 5, "gpus": 0},
            r"2 workers with 5 CPUs each have not started; the cluster has 8 CPUs \(8 free\) "
            r"on 3 nodes",
            "2 workers with 5 CPUs each, 8 of 8 CPUs free",
        ),
        (
            {"workers": 1, "cpus": 5, "gpus": 0.5},
            r"1 worker with 5 CPUs and 0.5 GPU has not started; the cluster has 8 CPUs \(8 free\) "
            r"and 4 GPUs \(4 free\) on 3 nodes",
            "1 worker with 5 CPUs and 0.5 GPU, 8 of 8 CPUs and 4 of 4 GPUs free",
        ),
    ],
)
def test_what_the_cluster_cannot_give_is_said_at_once_and_is_an_error_later(
    cluster: object, tmp_path: Path, resources: dict[str, float], missing: str, waits: str
) -> None:
    said: list[str] = []
    told: list[str] = []
    limits = Limits(patience=40.0)
    with pytest.raises(ValueError, match=f"^no room for a worker in 40.0 s: {missing}"):
        pool(
            cluster.address, tmp_path, resources=resources, limits=limits, say=said.append,
            waits=told.append,
        ).close()  # fmt: skip
    [line] = said
    assert told[0] == waits
    assert re.fullmatch(f"note: {missing}; waiting for up to 40.0 s", line)


@pytest.mark.long
def test_gpus_that_torch_cannot_see_are_said(cluster: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the cluster counts 4 GPUs, but torch finds none"):
        pool(cluster.address, tmp_path, resources={"workers": 2, "gpus": "auto"}).close()


def test_trials_of_a_lost_node_go_on_elsewhere_until_no_node_has_room(
    cluster: object, tmp_path: Path
) -> None:
    """The last test here: it takes the nodes away."""
    given = {"resources": {"workers": 2, "cpus": 4, "gpus": 0}, "limits": Limits(patience=30.0)}
    executor = pool(cluster.address, tmp_path, **given)
    nodes = {node.node_id: node for node in cluster.worker_nodes}
    try:
        executor.launch(launch(0))
        executor.launch(launch(1))
        reports = set()
        while len(reports) < 2:
            reports |= {event.trial_id for event in executor.poll(timeout=1.0)}
        doomed = executor.worker_of(0).node
        other = executor.worker_of(1).node
        assert doomed != other
        cluster.remove_node(nodes[doomed], allow_graceful=False)
        lost = advance_until_lost(executor, 0)
        assert (lost.attempt, lost.kind) == (1, LossKind.MACHINE)
        while executor.free > 0:  # until the cluster has noticed: then the pool is smaller
            executor.poll(timeout=1.0)
        executor.finish(1)
        assert isinstance(next_event(executor), TrialRecord)
        ends = drive(executor, [launch(0, attempt=2), launch(2)])
        assert [(end.trial_id, end.attempt) for end in ends] == [(0, 2), (2, 1)]
        assert {where(end)["node"] for end in ends} == {other}
        executor.launch(launch(3))
        next_event(executor)
        cluster.remove_node(nodes[other], allow_graceful=False)
        advance_until_lost(executor, 3)
        with pytest.raises(ValueError, match=r"no room for a worker in 30\.0 s: 2 wo"):
            watch(executor, seconds=120)
    finally:
        executor.close()
