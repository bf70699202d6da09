"""Repair trains no trial of a GPU again where there is none, and says so; the GPU is a fake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import FakeGpu
from fakes import Silent
from records import plain_study

from nas_evidence.data import load
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.restoration import repair
from nas_evidence.exporting import winner
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.workers.inline import InlineExecutor

pytestmark = [pytest.mark.slow, pytest.mark.long]
STUDY = plain_study(
    name="small", n_trials=2, dataset={"name": "digits", "max_train": 100, "max_test": 20},
    family={"mlp": {"width": {"options": [4, 5]}}}, plan={"epochs": 2}, estimators=["diag_ef"],
    objective="diag_ef", sampler={"name": "random"},
)  # fmt: skip


def data(study: StudySpec) -> Any:
    return load(study.dataset, seed=study.seed)


def repaired(folder: Path) -> list[str]:
    with locked(folder):
        return repair(folder, data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "s"
    open_study(folder, STUDY)
    with FakeGpu(), locked(folder):
        Driver(STUDY, folder, InlineExecutor(data(STUDY), STUDY.resources), Silent()).run()
    return folder


def test_damaged_weights_are_left_until_there_is_a_gpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = folder / "models" / "0.safetensors"
    before, _ = read_tensors(weights)
    weights.write_bytes(weights.read_bytes()[:-9] + b"different")
    (line,) = repaired(folder)
    assert line.startswith("models/0.safetensors: left as it is; trial 0 was trained on cuda")
    assert weights.read_bytes().endswith(b"different")

    def here(function: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(winner, "called_apart", here)
    with FakeGpu():
        assert "models/0.safetensors: trained again from its seed" in repaired(folder)
    assert all((tensor == read_tensors(weights)[0][name]).all() for name, tensor in before.items())


def test_a_torn_trial_is_left_until_there_is_a_gpu(folder: Path) -> None:
    row = next((folder / "trials").glob("*.parquet"))
    row.write_bytes(row.read_bytes()[:-20])
    assert any("not trained again; it was trained on a GPU" in one for one in repaired(folder))
    with FakeGpu() as gpu:
        assert any("trained again as attempt 2" in line for line in repaired(folder))
        assert gpu.launches["addmm"]
