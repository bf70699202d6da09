"""`workers` is a wish."""

import pytest

from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.on_ray import RayExecutor
from nas_evidence.workers.packing import Node
from nas_evidence.workers.pool import Pool


def executor(cpus: int) -> RayExecutor:
    """An executor of four workers on a node of two CPUs."""
    made = RayExecutor.__new__(RayExecutor)
    resources = ResourceSpec(workers=4, cpus=cpus, gpus=0.0)
    made._resources, made._gpu_memory, made.notices = resources, None, []
    made._pool = Pool(None, resources, lambda launch: 0.0, 0.0, [Node("a", 2.0, 0)])  # type: ignore[arg-type]
    made._look = lambda: None  # type: ignore[method-assign]
    return made


def test_a_smaller_cluster_is_used_and_said() -> None:
    made = executor(cpus=1)
    made._check_capacity(patience=0.0)
    (notice,) = made.notices
    assert "more workers start when nodes join" in notice


def test_a_cluster_without_room_for_one_worker_is_refused() -> None:
    with pytest.raises(ValueError, match="wanted"):
        executor(cpus=3)._check_capacity(patience=0.0)
