"""Memory: what a trial on a GPU is estimated at, and a worker that the kernel ended for it."""

from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
from fakes import Heard
from lone_trials import mlp_assignment
from messages import refused

from nas_evidence.api.runs import Run, UnfinishedStudy, begun
from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.driver.mirror import working_copy
from nas_evidence.scores.folds import Folds
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.divisions import parts_trained_on
from nas_evidence.spec.record import LossKind
from nas_evidence.spec.study import (
    UPDATE_ROWS,
    ArchitectureSpec,
    Assignment,
    DatasetSpec,
    ResourceSpec,
)
from nas_evidence.storage.redo import find_done
from nas_evidence.training.cost import cost_of
from nas_evidence.training.parts import new_network, part_of
from nas_evidence.workers import choice, local, out_of_memory
from nas_evidence.workers import on_ray as on_ray_module
from nas_evidence.workers.choice import torch_is_for_cpus, unused_gpu
from nas_evidence.workers.local import LocalExecutor
from nas_evidence.workers.on_ray import RayExecutor
from nas_evidence.workers.out_of_memory import n_killed
from nas_evidence.workers.pool import Failed, Place, Seat
from nas_evidence.workers.process import WorkerProcess
from nas_evidence.workers.worker import estimated_bytes


class Dead:
    """A pipe whose other end is gone."""

    def recv(self) -> object:
        raise EOFError


def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, **counts: str) -> None:
    """Let the kernel tell this of groups, and of processes ended in them and on the machine."""
    places = {"group": tmp_path / "cgroup", "machine": tmp_path / "vmstat"}
    places["group"].write_text(groups)
    places["machine"].write_text(counts.pop("machine", ""))
    monkeypatch.setattr(out_of_memory, "_GROUP", places["group"])
    monkeypatch.setattr(out_of_memory, "_MACHINE", places["machine"])
    found = tuple(
        (pattern, str(tmp_path / f"version{n}"), name)
        for n, (pattern, _, name) in zip((2, 1), out_of_memory._COUNTS, strict=True)
    )
    monkeypatch.setattr(out_of_memory, "_COUNTS", found)
    for place, text in counts.items():
        path = tmp_path / place.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "counts", "n"),
    [
        ("0::/job\n", {"version2__job__memory_dot_events": "oom 9\noom_kill 2\n"}, 2),
        ("0::/job\n", {"version2__memory_dot_events": "oom_kill 3\n"}, 3),  # of a container
        ("4:memory:/job\n0::/\n", {"version1__job__memory_dot_oom_control": "oom_kill 4\n"}, 4),
        ("0::/\n", {"machine": "oom_kill_other 7\noom_kill 5\n"}, 5),
        ("", {}, 0),
    ],
)
def test_ended_processes_are_those_of_the_own_group_or_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, counts: dict[str, str], n: int
) -> None:
    placed(tmp_path, monkeypatch, groups, **counts)
    assert n_killed() == n


def test_each_ended_process_explains_one_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = LocalExecutor.__new__(LocalExecutor)
    executor._n_killed = 1
    monkeypatch.setattr(local, "n_killed", lambda: 2)
    first, second = (executor._received(Dead()) for _ in range(2))  # type: ignore[arg-type]
    assert isinstance(first, Failed)
    assert first.kind is LossKind.MEMORY
    assert "for want of memory" in first.why
    assert "fewer workers" in first.why
    assert second == Failed("the worker process crashed")


# --- the memory of a trial on a GPU, estimated without one: the rows of the data that it holds


SCORES = [("two_fold",), ("five_fold",), ("heldout_10",), ("two_fold", "five_fold", "heldout_10")]


@pytest.fixture(scope="module")
def arrays() -> ArrayData:
    return load(DatasetSpec(name="digits", max_train=200, max_test=50), seed=0)


def of_data(given: Assignment, arrays: ArrayData) -> int:
    """The estimated bytes beside those of the network."""
    cost = cost_of(
        given.architecture, arrays.input_shape, 10, given.plan, given.estimators,
        len(arrays.x_train), device="cuda",
    )  # fmt: skip
    return estimated_bytes(given, arrays) - cost.memory_bytes


@pytest.mark.parametrize("scores", SCORES, ids="+".join)
def test_the_rows_that_a_group_of_folds_holds_are_in_the_estimate(
    scores: tuple[str, ...], arrays: ArrayData
) -> None:
    given, data = mlp_assignment(*scores, epochs=1), to_tensors(arrays, "cpu")
    whole = new_network(*part_of(None, data, given, "whole"))
    folds = Folds(scores, Context(whole, given))
    held = [len(folds._new_run(task).data.x_train) for task in folds._left().values()]
    sizes = [200 * part for part in parts_trained_on(given.plan, scores, 200)]
    assert sorted(held, reverse=True) == pytest.approx(sizes)
    predicted = max(len(task.predicted) for task in folds._left().values())
    rows = 200 + 50 + sum(sorted(held)[-8:]) + predicted
    assert of_data(given, arrays) / (4 * 64) == pytest.approx(rows, abs=1 + 0.2 * predicted)


def test_cifar_with_its_two_halves_is_as_large_as_its_copies(arrays: ArrayData) -> None:
    cnn = ArchitectureSpec(family="cnn", values={"depth": 2, "width": 16})
    given = mlp_assignment("conditional_evidence", "diag_ef")
    shape, given = (3, 32, 32), given.model_copy(update={"architecture": cnn})
    blank = np.zeros((), dtype=np.uint8)  # of stride 0
    cifar = replace(
        arrays,
        x_train=np.broadcast_to(blank, (50_000, *shape)),
        x_test=np.broadcast_to(blank, (10_000, *shape)),
        y_train=np.zeros(50_000, dtype=np.int64),
        input_shape=shape,
    )
    halves, predicted, samples = 50_000, 25_000, 3 * UPDATE_ROWS
    rows = 60_000 + halves + predicted + samples
    assert of_data(given, cifar) == 4 * 3072 * rows


# --- A GPU that trials do not use: one sentence, with its remedy, to whoever asked for the study


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
