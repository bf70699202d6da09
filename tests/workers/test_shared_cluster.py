"""A cluster that is not ours alone: other jobs, another study, a node that ruins trials."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_pools import STORE, Other, Toy, drive, launch, other_job, pool, send_tests_along, where

from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.workers.executor import Lost
from nas_evidence.workers.pool import MOST_LOSSES, Limits

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.ray]

#: Of a node, so that a toy there crashes.
SICK = "NAS_TEST_SICK"


class Sick(Toy):
    """Crashes on a sick node."""

    def advance(self, until_epoch: int) -> SliceReport:
        if os.environ.get(SICK):
            os._exit(1)
        return super().advance(until_epoch)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without room, and two nodes of two CPUs and a GPU; the second one is sick."""
    import ray
    from ray.cluster_utils import Cluster

    send_tests_along(__name__)
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, **STORE)
        cluster.a = cluster.add_node(num_cpus=2, num_gpus=1, **STORE)
        cluster.b = cluster.add_node(num_cpus=2, num_gpus=1, env_vars={SICK: "1"}, **STORE)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_beside_a_node_full_of_another_job_a_study_runs_on_the_free_one(
    cluster: Any, tmp_path: Path
) -> None:
    with other_job(cluster.address, cluster.a.node_id, cpus=2):
        executor = pool(cluster.address, tmp_path, resources={"workers": 2, "gpus": 0.5})
        try:
            ends = drive(executor, [launch(i) for i in range(4)], together=2)
        finally:
            executor.close()
    assert {where(end)["node"] for end in ends} == {cluster.b.node_id}


def test_two_studies_and_another_job_share_a_cluster(cluster: Any, tmp_path: Path) -> None:
    """Each wants four workers; there is room for three, which the one leaves that has no trial."""
    how = {"resources": {"workers": 4, "gpus": 0}, "limits": Limits(idle=1.0)}
    with (
        other_job(cluster.address, cluster.a.node_id, cpus=1),
        Other("study", cluster.address, tmp_path / "1", 4) as first,
    ):
        assert 1 <= int(first.hear()) <= 3
        second = pool(cluster.address, tmp_path / "2", **how)
        try:
            ends = drive(second, [launch(i) for i in range(3)])
            assert [type(end) for end in ends] == [TrialRecord] * 3
            first.tell()
            with ThreadPoolExecutor(1) as listening:
                heard = listening.submit(first.hear)
                while not heard.done():
                    second.poll(timeout=0.2)
            assert 1 <= int(heard.result()) <= 3
        finally:
            second.close()


def test_a_node_that_ruins_trials_gets_no_more_and_the_study_ends_on_the_other(
    cluster: Any, tmp_path: Path
) -> None:
    resources = {"workers": 4, "gpus": 0}
    executor = pool(cluster.address, tmp_path, resources=resources, make_worker=Sick)
    try:
        ends = drive(executor, [launch(i) for i in range(4)], together=4)
        ends += drive(executor, [launch(4 + i) for i in range(4)], together=4)
        fresh = drive(executor, [launch(10 + i) for i in range(6)])
    finally:
        executor.close()
    lost = [end for end in ends if isinstance(end, Lost)]
    assert len(lost) in (MOST_LOSSES, MOST_LOSSES + 1)
    [said] = [end.cause for end in lost if "and finished none in between" in end.cause]
    assert f"the node {cluster.b.node_id[:8]} at " in said
    assert [type(end) for end in fresh] == [TrialRecord] * 6
    assert {where(end)["node"] for end in fresh} == {cluster.a.node_id}
