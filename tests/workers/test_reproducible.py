"""What a worker sets on a GPU, seen without one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_gpu import FakeGpu
from lone_trials import mlp_assignment

from nas_evidence.data import load
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import DatasetSpec, ResourceSpec
from nas_evidence.workers import worker as worker_module
from nas_evidence.workers.executor import Launch
from nas_evidence.workers.shares import MEMORY_FRACTION
from nas_evidence.workers.worker import make_reproducible


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what a worker sets for its process."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    filled = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    cudnn.benchmark, cudnn.deterministic = before
    torch.utils.deterministic.fill_uninitialized_memory = filled
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def test_kernels_of_a_gpu_are_deterministic() -> None:
    make_reproducible(torch.device("cuda"))
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_users_workspace_is_kept_and_a_cpu_needs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_reproducible(torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    make_reproducible(torch.device("cuda"))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_a_worker_with_a_part_of_a_gpu_may_allocate_no_more_than_that(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(worker_module, "device_for", lambda _: torch.device("cuda"))
    monkeypatch.setattr(worker_module, "to_tensors", lambda arrays, device: None)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limits.append)
    arrays = load(DatasetSpec(name="digits", max_train=20, max_test=10), seed=0)
    worker_module.Worker(arrays, ResourceSpec(), gpu_share=share)
    assert limits == ([] if share == 1 else [share * MEMORY_FRACTION])
    assert torch.are_deterministic_algorithms_enabled()


def test_a_worker_with_a_part_of_a_gpu_runs_its_trial_there(tmp_path: Path) -> None:
    arrays = load(DatasetSpec(name="digits", max_train=40, max_test=10), seed=0)
    given = mlp_assignment("diag_ef", epochs=1)
    with FakeGpu() as gpu:
        worker = worker_module.Worker(arrays, ResourceSpec(), gpu_share=0.5)
        report = worker.start(Launch(given, tmp_path, None))
        while not report.done:
            report = worker.advance(given.plan.epochs)
        record = worker.finish()
        worker.close()
    assert record.status is TrialStatus.COMPLETE, record.error
    assert record.gpu_share == 0.5
    assert json.loads(record.versions)["device"] == "cuda a GPU that does not exist"
    assert gpu.launches.total() > 100
    assert not worker.must_go
