"""A GPU that trials do not use: one sentence, with its remedy, to whoever asked for the study."""

from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import Heard
from messages import refused

from nas_evidence.api.runs import Run, UnfinishedStudy, begun
from nas_evidence.driver.mirror import working_copy
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.storage.redo import find_done
from nas_evidence.workers import choice
from nas_evidence.workers import on_ray as on_ray_module
from nas_evidence.workers.choice import torch_is_for_cpus, unused_gpu
from nas_evidence.workers.on_ray import RayExecutor
from nas_evidence.workers.pool import Place, Seat
from nas_evidence.workers.process import WorkerProcess

DEVICE = "/dev/nvidiactl"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that has a GPU, and a torch that may use it."""
    monkeypatch.setattr(choice, "gpu_device", lambda: DEVICE)
    monkeypatch.setattr(choice, "torch_is_for_cpus", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


def code_of(executor: str | object, gpus: float | str = "auto") -> str:
    error = unused_gpu(ResourceSpec(gpus=gpus), executor)
    return error.code if error else ""


def test_plain_processes_beside_a_gpu_are_told_and_an_answer_is_taken(
    gpu: pytest.MonkeyPatch,
) -> None:
    assert code_of("local") == code_of("local", 0.5) == "gpu-not-for-processes"
    assert code_of("local", 0) == code_of("inline") == code_of("ray") == code_of(object()) == ""
    for hidden in ("", "-1"):
        gpu.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert code_of("local") == ""


def test_a_torch_for_cpus_beside_a_gpu_is_told_whatever_the_share(
    gpu: pytest.MonkeyPatch,
) -> None:
    gpu.setattr(choice, "torch_is_for_cpus", lambda: True)
    for executor in ("local", "inline"):
        assert code_of(executor) == code_of(executor, 0.25) == "torch-for-cpus"
        assert code_of(executor, 0) == ""


def test_a_share_of_a_gpu_that_is_not_there_is_refused_in_every_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "gpu_device", lambda: "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for executor in ("local", "inline"):
        assert code_of(executor) == ""
        with refused("no-gpu-here", "0.5", "resources.gpus=0"):
            code_of(executor, 0.5)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", True),
        ("cuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0'\n", False),
        ("", False),
    ],
)
def test_what_torch_is_built_for_is_read_without_importing_it(
    lines: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.15.0'\n{lines}")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(choice, "find_spec", lambda name: spec)
    assert torch_is_for_cpus() is expected


class Stopped(Exception):
    """Ends a search at its first warning."""


class Warned(Heard):
    """Stops at the first warning."""

    def warn(self, line: str) -> None:
        raise Stopped(line)


def test_a_search_warns_its_audience_before_any_trial(
    gpu: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = fakes.study(n_trials=2)
    store = working_copy(str(tmp_path / "s"))
    spec, data = begun(store.folder, spec, None)
    left = UnfinishedStudy(
        spec, store, Run("local"), Warned(lambda line: None), data, find_done(store.folder)
    )
    with pytest.raises(Stopped, match=f"has a GPU .{DEVICE}., but .* executor=ray"):
        left.run_trials()


# --- on Ray


def on_ray(**facts: Any) -> tuple[RayExecutor, list[str]]:
    """Return an executor that has joined nothing, and what it warns of."""
    said: list[str] = []
    executor = object.__new__(RayExecutor)
    given = {"fixed_share": 0.0, "_warn": said.append, "_joined": True, "_blind": set()}
    vars(executor).update(given | facts)
    return executor, said


def test_a_gpu_that_ray_does_not_count_is_said_once_however_many_workers_see_it(
    gpu: pytest.MonkeyPatch,
) -> None:
    for joined, remedy in (
        (True, "`ray start --num-gpus=N`, or"),
        (False, "`ray start --head --num-gpus=N` and add address=auto, or"),
    ):
        executor, said = on_ray(_joined=joined)
        executor._tell_of(Place("n", "10.0.0.7"))
        for _ in range(3):
            executor._tell_of(Place("n", "10.0.0.7", device=DEVICE))
        (line,) = said
        assert "10.0.0.7" in line
        assert remedy in line


def test_workers_that_start_slowly_are_not_said_to_wait_for_the_room_that_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Ray a worker holds its CPUs while it imports; only its first answer tells where it is."""
    monkeypatch.setattr(on_ray_module.ray, "available_resources", lambda: {"GPU": 1.0})
    node = {"NodeID": "n", "Resources": {"CPU": 8.0, "GPU": 1.0}}
    executor, _ = on_ray(resources=ResourceSpec(), _nodes=[node])
    assert executor._shortage(0.0, 8) == (
        "8 workers with 1 CPU each have not started; the cluster has 8 CPUs (0 free) on 1 node"
    )
    assert executor._shortage(0.5, 1) == (
        "1 worker with 1 CPU and 0.5 GPU has not started; "
        "the cluster has 8 CPUs (0 free) and 1 GPU (1 free) on 1 node"
    )


@pytest.mark.parametrize("facts", [{"fixed_share": None}, {"fixed_share": 0.5}, {"_warn": None}])
def test_nothing_is_said_where_trials_have_gpus_or_were_to_have_none(
    facts: dict[str, Any], gpu: pytest.MonkeyPatch
) -> None:
    executor, said = on_ray(**facts)
    executor._tell_of(Place("n", "10.0.0.7", device=DEVICE))
    assert said == []


def test_a_worker_with_a_share_whose_torch_finds_no_gpu_ends_the_study_or_its_node_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = Seat(None, 0.5, node="old", ready_at=1.0)
    nodes = [{"Resources": {"GPU": 2.0}}]
    executor, _ = on_ray(_first={"old"}, _nodes=nodes, workers=[good])
    monkeypatch.setattr(executor, "_look", lambda: None)
    assert executor._has_its_device(Seat(None, 0.5, node="old"), "cuda")
    assert executor._has_its_device(Seat(None, 0.0, node="old"), "cpu")
    assert not executor._has_its_device(Seat(None, 0.5, node="later"), "cpu")
    assert executor._blind == {"later"}
    with refused("gpus-without-cuda", "2 GPUs"):
        executor._has_its_device(Seat(None, 0.5, node="old"), "cpu")
    executor.workers.clear()
    with refused("gpus-without-cuda", "2 GPUs"):
        executor._has_its_device(Seat(None, 0.5, node="the first of all"), "cpu")


def test_workers_say_what_kind_of_device_they_train_on(tmp_path: Path) -> None:
    class OnCpu:
        device, must_go = "cpu", ""

    class Silent:
        must_go = ""

    for made, expected in ((OnCpu, "cpu"), (Silent, "")):
        process = WorkerProcess(
            lambda: None,  # type: ignore[arg-type, return-value]
            ResourceSpec(),
            0.5,
            tmp_path,
            lambda *given, made=made, **more: made(),
        )
        process._worker = made()
        assert process.call(None).device == expected
