"""Report, export and training again of trials that were trained on a GPU; the GPU is a fake."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import FakeGpu
from fakes import Silent
from messages import refused

from nas_evidence.baselines.on_test_rows import judge
from nas_evidence.data import ArrayData, load
from nas_evidence.driver.driver import Driver
from nas_evidence.exporting import device, winner
from nas_evidence.exporting.folder import export_winner
from nas_evidence.exporting.predictor import Predictor
from nas_evidence.exporting.winner import load_winner, train_again
from nas_evidence.plumbing.tensor_seals import read_tensors
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import StudySpec
from nas_evidence.storage.study_folder import open_study
from nas_evidence.storage.tables import read_study_tables
from nas_evidence.workers.apart import called_apart
from nas_evidence.workers.inline import InlineExecutor

pytestmark = pytest.mark.slow

STUDIES: dict[str, dict[str, Any]] = {
    "images": {
        "dataset": {"name": "digits", "max_train": 150, "max_test": 40},
        "family": {"cnn": {"depth": {"options": [2]}, "width": {"options": [3, 4]}}},
        "estimators": ["diag_ef", "kfac_ggn_mc"],
        "objective": "kfac_ggn_mc",
    },
    "numbers": {
        "dataset": {"name": "diabetes", "test_size": 60},
        "family": {"mlp": {"depth": {"options": [2]}, "width": {"options": [5, 30]}}},
        "estimators": ["conditional_evidence", "kfac_ggn"],
    },
}


def searched(which: str, folder: Path) -> tuple[Path, ArrayData]:
    common = {"name": which, "n_trials": 2, "sampler": {"name": "random"}}
    likelihood = "gaussian" if which == "numbers" else "categorical"
    plan = {"epochs": 2, "likelihood": likelihood, "online": {"every": 2}}
    study = StudySpec.model_validate({**common, "plan": plan, **STUDIES[which]})
    arrays = load(study.dataset, seed=study.seed)
    open_study(folder, study)
    Driver(study, folder, InlineExecutor(arrays, study.resources), Silent()).run()
    return folder, arrays


@pytest.fixture(scope="module", params=STUDIES)
def of_gpu(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ArrayData]:
    with FakeGpu():
        return searched(request.param, tmp_path_factory.mktemp("gpu") / "s")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ArrayData]:
    with FakeGpu():
        return searched("images", tmp_path_factory.mktemp("gpu") / "s")


def results(folder: Path, arrays: ArrayData, to: Path) -> dict[str, Any]:
    """What report and export compute of the winner, with the tables read anew."""
    tables = read_study_tables(folder)
    judged = next(judge(tables, arrays))
    done = export_winner(tables, to, arrays)
    posterior = load_winner(tables, arrays, done["trial_id"]).posterior
    kept = {name: tensor.clone() for name, tensor in posterior.tensors.items()}
    return {"metrics": dict(judged.metrics), "rescored": done["rescored_sum"], "posterior": kept}


def test_report_and_export_of_a_gpu_trial_are_computed_there_with_the_values_of_a_cpu(
    of_gpu: tuple[Path, ArrayData], tmp_path: Path
) -> None:
    folder, arrays = of_gpu
    expected = results(folder, arrays, tmp_path / "cpu")
    with FakeGpu() as gpu:
        found = results(folder, arrays, tmp_path / "cuda")
        assert {one.device.type for one in found["posterior"].values()} == {"cpu"}
    assert gpu.launches["_linalg_eigh"]  # of the posterior
    assert gpu.launches["addmm"]  # of predictions
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-9)
    assert found["rescored"] == pytest.approx(expected["rescored"], rel=1e-9)
    x = arrays.x_test[:9]
    for method in ("map", "probit"):
        one, other = (
            Predictor.load(tmp_path / place).predict(x, method=method).to_frame()
            for place in ("cpu", "cuda")
        )
        numbers = one.select_dtypes("number")
        assert other[numbers.columns].to_numpy() == pytest.approx(numbers.to_numpy(), rel=1e-6)


def test_a_trial_of_a_cpu_stays_on_the_cpu_where_a_gpu_is(tmp_path: Path) -> None:
    folder, arrays = searched("images", tmp_path / "s")
    with FakeGpu() as gpu:
        results(folder, arrays, tmp_path / "e")
        (folder / "models" / "0.safetensors").unlink()
        tables = read_study_tables(folder)
    train_again(tables, arrays, winner.assignment_of_row(tables, 0))
    assert not gpu.launches


def full(*_: Any) -> tuple[int, int]:
    return 1 << 20, 80 << 30


def failing(function: Callable[..., Any]) -> Callable[..., Any]:
    def fail(of: Any, place: torch.device, *rest: Any) -> Any:
        if place.type == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return function(of, place, *rest)

    return fail


def busy(*_: Any) -> tuple[int, int]:
    raise torch.AcceleratorError("CUDA-capable device(s) is/are busy or unavailable")


@pytest.mark.parametrize("memory", [full, busy])
def test_a_gpu_that_others_have_filled_or_hold_is_not_used(
    memory: Callable[..., Any],
    images: tuple[Path, ArrayData],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, arrays = images
    monkeypatch.setattr(device, "_PATIENCE", 0.0)
    with FakeGpu() as gpu:
        monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
        results(folder, arrays, tmp_path / "e")
    assert not gpu.launches


def test_memory_that_workers_give_back_late_is_waited_for(
    images: tuple[Path, ArrayData], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arrays = images
    looks = iter([full(), full(), (8 << 30, 80 << 30)])
    monkeypatch.setattr(device, "_BETWEEN", 0.01)
    with FakeGpu():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: next(looks))
        assert load_winner(read_study_tables(folder), arrays, 0).device.type == "cuda"
    assert not [*looks]


def test_what_fails_on_the_gpu_is_computed_on_the_cpu(
    images: tuple[Path, ArrayData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arrays = images
    expected = results(folder, arrays, tmp_path / "cpu")
    monkeypatch.setattr(winner.Winner, "_posterior_on", failing(winner.Winner._posterior_on))
    with FakeGpu():
        found = results(folder, arrays, tmp_path / "cuda")
    torch.testing.assert_close(found["posterior"], expected["posterior"], rtol=0, atol=0)


def test_lost_weights_are_trained_again_on_a_gpu_in_a_process_of_its_own(
    images: tuple[Path, ArrayData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arrays = shutil.copytree(images[0], tmp_path / "s"), images[1]
    before, _ = read_tensors(folder / "models" / "1.safetensors")
    (folder / "models" / "1.safetensors").unlink()
    called = []

    def here(function: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        called.append(arguments[0])
        return function(*arguments)

    monkeypatch.setattr(winner, "called_apart", here)
    with FakeGpu() as gpu:
        tables = read_study_tables(folder)
        made = train_again(tables, arrays, winner.assignment_of_row(tables, 1))
        assert gpu.launches["convolution_backward"]
    assert called == [torch.device("cuda")]
    torch.testing.assert_close(read_tensors(made)[0], before, rtol=0, atol=0)


def test_without_a_gpu_the_weights_of_a_gpu_are_not_trained_again(
    images: tuple[Path, ArrayData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arrays = shutil.copytree(images[0], tmp_path / "s"), images[1]
    monkeypatch.setattr(winner.Trial, "start", lambda *_, **__: pytest.fail("it was trained"))
    tables = read_study_tables(folder)
    for left, lost in ((1, 0), (None, 1)):
        (folder / "models" / f"{lost}.safetensors").unlink()
        with refused("retraining-device", "trial 0", "cuda a GPU that does not exist") as error:
            train_again(tables, arrays, winner.assignment_of_row(tables, 0))
        assert ("trial_id=1 (--trial)" in str(error.value)) == (left == 1)
        assert str(error.value).endswith("(--trial)." if left else "such a GPU.")
    with FakeGpu(), refused("retraining-device", "resources.gpus is 0"):
        device.device_again(
            tables.row(0), tables.spec.resources.model_copy(update={"gpus": 0}), kept=None
        )


def test_the_check_has_the_rows_at_once_of_the_trial_on_any_device(
    images: tuple[Path, ArrayData], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arrays = images
    stored = load_winner(read_study_tables(folder), arrays, 0)
    given = replace(stored, header={**stored.header, "curvature_batch": "37"})
    rows = []

    def counted(*arguments: Any, batch_size: int, **how: Any) -> Any:
        rows.append(batch_size)
        return passed(*arguments, batch_size=batch_size, **how)

    passed = winner.curvature_pass
    monkeypatch.setattr(winner, "curvature_pass", counted)
    empty = read_study_tables(folder).evidence.head(0)
    expected = winner.rescore("diag_ef", given, empty)
    with FakeGpu():
        found = winner.rescore("diag_ef", replace(given, device=torch.device("cuda")), empty)
    assert set(rows) == {37}
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.long
def test_a_process_of_its_own_trains_the_same_weights(tmp_path: Path) -> None:
    folder, arrays = searched("images", tmp_path / "s")
    tables, cpu = read_study_tables(folder), torch.device("cpu")
    given = (tmp_path / "again", winner.assignment_of_row(tables, 1), arrays, cpu, 1)
    called = (winner._reproducibly, cpu, winner._trained_in, *given)
    status, cause = called_apart(*called, logs=folder / "logs")
    assert (status, cause) == (TrialStatus.COMPLETE, "")
    before, _ = read_tensors(folder / "models" / "1.safetensors")
    found, _ = read_tensors(tmp_path / "again" / "model.safetensors")
    torch.testing.assert_close(found, before, rtol=0, atol=0)
