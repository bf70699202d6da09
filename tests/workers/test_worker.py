"""A worker between two trials."""

import gc
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from nas_evidence.data import load
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, Assignment, DatasetSpec, ResourceSpec
from nas_evidence.workers.executor import Launch
from nas_evidence.workers.worker import Worker

pytestmark = pytest.mark.slow

ESTIMATORS = ("two_fold", "heldout_10", "kfac_ggn", "diag_ef", "conditional_evidence")


@pytest.fixture
def data(tmp_path: Path) -> DatasetSpec:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 1, 8, 8)).astype(np.float32), np.arange(40) % 3
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return DatasetSpec(name="npz", path=str(tmp_path / "d.npz"))


def tensors() -> int:
    return sum(issubclass(type(found), Tensor) for found in gc.get_objects())


@pytest.mark.long
@pytest.mark.parametrize("family", ["mlp", "cnn", "resnet"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_trial_that_has_ended_keeps_no_tensor(
    data: DatasetSpec, tmp_path: Path, family: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even in cycles, which a parked worker collects itself."""

    def broken(*_: object) -> None:
        raise RuntimeError("no")

    logging.disable()  # a log record of a failure keeps its traceback
    gc.unfreeze()  # as in a process of its own
    worker = Worker(load(data, seed=0), ResourceSpec())

    def run(name: str) -> TrialStatus:
        assignment = Assignment(
            trial_id=0, attempt=1, replicate=0, dataset=data, seed=0, estimators=ESTIMATORS,
            architecture=ArchitectureSpec(family=family, values={"depth": 8, "width": 4}
            if family == "resnet" else {"depth": 1, "width": 4}),
            plan={"epochs": 2, "batch_size": 20, "settle": 0.5},
        )  # fmt: skip
        report = worker.start(Launch(assignment, tmp_path / name, None))
        while report.status is TrialStatus.RUNNING:
            report = worker.advance(2)
        return worker.finish().status

    run("first")  # what is kept for the next trial, kept
    if fails:
        monkeypatch.setattr("nas_evidence.training.life.train_epochs", broken)
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        assert run("second") is (TrialStatus.FAILED if fails else TrialStatus.COMPLETE)
        assert tensors() == before
        assert gc.get_freeze_count() > 0
        worker.close()
        assert gc.get_freeze_count() == 0
    finally:
        worker.close()
        logging.disable(logging.NOTSET)
        gc.enable()


@pytest.mark.parametrize("answers", [True, False])
def test_a_process_whose_gpu_answers_no_more_gets_no_other_trial(
    data: DatasetSpec, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    def synchronize() -> None:
        if not answers:
            raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    worker = Worker(load(data, seed=0), ResourceSpec())
    worker._gpu_share = 0.5
    worker._trial = SimpleNamespace(finish=lambda: None)  # type: ignore[assignment]
    worker.finish()
    assert worker.must_go == ("" if answers else "a CUDA error")
    worker.close()
