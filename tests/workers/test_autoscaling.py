"""A cluster that starts without a worker node gets them for a study, and loses them after it.

Ray's own autoscaler runs, with its provider for tests: its nodes are processes of this machine.
"""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from messages import refused
from processes import processes, wait_for
from ray_head import Head
from ray_pools import advance_until_lost, drive, launch, next_event, pool, send_tests_along, where

from nas_evidence.spec.record import LossKind, TrialRecord
from nas_evidence.workers.pool import Limits
from nas_evidence.workers.reachable import check_reachable

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.ray]

#: Seconds of idleness after which a worker is released.
IDLE = Limits(idle=1.0)
NODE = {"object_store_memory": 80 * 1024**2}
CONFIG: dict[str, Any] = {
    "cluster_name": "growing",
    "max_workers": 3,
    "idle_timeout_minutes": 0.05,
    "upscaling_speed": 1.0,
    "provider": {
        "type": "fake_multinode",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "cpu": {
            "resources": {"CPU": 1, **NODE},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 2,
        },
        "gpu": {
            "resources": {"CPU": 1, "GPU": 1, **NODE},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 1,
        },
    },
    "head_node_type": "ray.head.default",
    "setup_commands": [],
    "initialization_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "rsync_exclude": [],
    "rsync_filter": [],
    "auth": {},
}


class GrowingHead(Head):
    """A head without CPUs whose autoscaler looks every second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        config = folder / "cluster.yaml"
        provider = {**CONFIG["provider"], "gcs_address": self.gcs}
        config.write_text(json.dumps({**CONFIG, "provider": provider}))
        quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
        self.environment |= {
            "RAY_AUTH_MODE": "disabled",
            "RAY_FAKE_CLUSTER": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }
        other = ("--num-cpus", "--include-dashboard", "--dashboard-", "--ray-client")
        self._command = [
            *(part for part in self._command if not part.startswith(other)),
            *("--num-cpus=0", "--include-dashboard=false", f"--autoscaling-config={config}"),
            f"--system-config={json.dumps(quick)}",
        ]

    def _answers(self) -> bool:
        try:
            check_reachable(self.gcs)
        except ValueError:
            return False
        return True


@pytest.fixture(scope="module")
def head() -> Iterator[GrowingHead]:
    import ray

    send_tests_along()
    with tempfile.TemporaryDirectory() as folder:
        head = GrowingHead(Path(folder))
        try:
            head.start()
            yield head
        finally:
            ray.shutdown()
            head.close()


def nodes() -> list[dict[str, Any]]:
    """Return the worker nodes."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in alive if node["Resources"].get("CPU")]


def poll_until(executor: Any, condition: Any) -> None:
    def holds() -> bool:
        executor.poll(timeout=0.5)
        return bool(condition())

    wait_for(holds, seconds=240)


def test_where_the_share_is_found_out_a_node_with_a_gpu_is_asked_for(
    head: GrowingHead, tmp_path: Path
) -> None:
    with refused("gpus-without-cuda", "the cluster counts 1 GPUs, but torch finds none there"):
        pool(head.gcs, tmp_path, resources={"workers": 2, "gpus": "auto"})


def test_nodes_come_for_a_study_go_when_it_is_idle_and_one_that_is_withdrawn_costs_an_attempt(
    head: GrowingHead, tmp_path: Path
) -> None:
    executor = pool(head.gcs, tmp_path, resources={"workers": 2, "gpus": 0}, limits=IDLE)
    with closing(executor):
        ends = drive(executor, [launch(i) for i in range(4)], together=2)
        assert [type(end) for end in ends] == [TrialRecord] * 4
        assert len({where(end)["node"] for end in ends}) == 2
        poll_until(executor, lambda: not nodes())

        executor.launch(launch(7))
        next_event(executor)
        doomed = executor.worker_of(7).node
        [socket] = [n["RayletSocketName"] for n in nodes() if n["NodeID"] == doomed]
        [raylet] = [p for p, (*_, said) in processes().items() if f"={socket} " in f"{said} "
                    and "raylet/raylet" in said]  # fmt: skip
        os.kill(raylet, signal.SIGKILL)
        assert advance_until_lost(executor, 7).kind is LossKind.MACHINE
        [again] = drive(executor, [launch(7, attempt=2)])
        assert isinstance(again, TrialRecord)
        assert where(again)["node"] != doomed


def test_with_auto_a_cluster_without_nodes_gets_as_many_as_it_may_have(
    head: GrowingHead, tmp_path: Path
) -> None:
    resources = {"workers": "auto", "gpus": 0}
    executor = pool(head.gcs, tmp_path, resources=resources, most=3, limits=IDLE)
    with closing(executor):
        ends = drive(executor, [launch(i) for i in range(3)], together=3)
        assert len({where(end)["node"] for end in ends}) == 3  # of one CPU each
        poll_until(executor, lambda: not nodes())


def test_with_auto_a_trial_that_needs_a_gpu_brings_a_node_that_has_one(
    head: GrowingHead, tmp_path: Path
) -> None:
    memory = {"gpu_memory_bytes": 1024**3, "memory_of": lambda assignment: 10**9}
    resources = {"workers": "auto", "gpus": "auto"}
    executor = pool(head.gcs, tmp_path, resources=resources, most=2, limits=IDLE, **memory)
    with closing(executor):
        ends = drive(executor, [launch(i) for i in range(2)])
        assert [end.gpu_share for end in ends] == [1.0, 1.0]
        assert [len(where(end)["gpus"]) for end in ends] == [1, 1]
