"""Memory: what a trial on a GPU is estimated at, and a worker that the kernel ended for it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lone_trials import mlp_assignment

from nas_evidence.data import ArrayData, load
from nas_evidence.data.tensors import to_tensors
from nas_evidence.scores.folds import Folds
from nas_evidence.scores.protocol import Context
from nas_evidence.spec.divisions import parts_trained_on
from nas_evidence.spec.record import LossKind
from nas_evidence.spec.study import UPDATE_ROWS, ArchitectureSpec, Assignment, DatasetSpec
from nas_evidence.training.cost import cost_of
from nas_evidence.training.parts import new_network, part_of
from nas_evidence.workers import local, out_of_memory
from nas_evidence.workers.local import LocalExecutor
from nas_evidence.workers.out_of_memory import n_killed
from nas_evidence.workers.pool import Failed
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
    held = [len(folds._new_run(task).data.x_train) for task in folds._left()]
    sizes = [200 * part for part in parts_trained_on(given.plan, scores, 200)]
    assert sorted(held, reverse=True) == pytest.approx(sizes)
    predicted = max(len(task.predicted) for task in folds._left())
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
