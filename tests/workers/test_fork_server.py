"""Forks of one process that has imported torch: they answer, they end, and none is left over."""

import ast
import gc
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from messages import refused
from processes import lives, wait_for
from records import asked
from torch import Tensor

import nas_evidence
from nas_evidence.data import load
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.record import TrialStatus
from nas_evidence.spec.study import ArchitectureSpec, DatasetSpec, ResourceSpec
from nas_evidence.workers.apart import ForkedObject, LostForkError, called_apart
from nas_evidence.workers.executor import Launch
from nas_evidence.workers.fork_server import ForkServer
from nas_evidence.workers.worker import Worker

pytestmark = pytest.mark.slow  # the server imports torch


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with closing(ForkServer(tmp_path_factory.mktemp("logs"))) as server:
        server.start()
        yield server


def doubled(pipe: Connection) -> None:
    while True:
        pipe.send(2 * pipe.recv())


@pytest.mark.long
def test_forks_answer_each_for_itself(forks: ForkServer) -> None:
    one, other = forks.begin(doubled), forks.begin(doubled)
    other.pipe.send(5)
    one.pipe.send(4)
    assert (one.pipe.recv(), other.pipe.recv()) == (8, 10)
    assert len({one.pid, other.pid, os.getpid()}) == 3
    one.end()
    other.pipe.send(6)
    assert other.pipe.recv() == 12
    other.end()
    assert not lives(one.pid)
    assert not lives(other.pid)


def test_a_fork_that_was_killed_closes_its_pipe_and_no_other(forks: ForkServer) -> None:
    one, other = forks.begin(doubled), forks.begin(doubled)
    os.kill(one.pid, signal.SIGKILL)
    with pytest.raises((EOFError, ConnectionResetError)):
        one.pipe.recv()
    other.pipe.send(1)
    assert other.pipe.recv() == 2
    one.end()
    other.end()


@pytest.mark.long
def test_a_killed_server_takes_its_forks_along_and_another_one_starts(tmp_path: Path) -> None:
    with closing(ForkServer(tmp_path)) as server:
        before = server.begin(doubled)
        orphan, first = before.pid, server.start().process
        first.kill()
        first.wait()
        after = server.begin(doubled)
        after.pipe.send(3)
        assert after.pipe.recv() == 6
        before.end()
        wait_for(lambda: not lives(orphan))
        last = after.pid
    wait_for(lambda: not lives(last))


def test_a_server_that_still_imports_is_closed_at_once(tmp_path: Path) -> None:
    server = ForkServer(tmp_path)
    fork = server.begin(doubled)
    process = server.start().process
    fork.end()
    server.close()
    assert process.poll() == -signal.SIGKILL


def test_a_server_that_still_imports_ends_with_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    slow = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n"
    (tmp_path / "torch.py").write_text(f"{slow}while True:\n    time.sleep(0.1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with closing(ForkServer(None)) as server:
        started = server.start()
        wait_for(begun.exists)
        started.control.close()  # as the kernel does when the driver is killed
        assert started.process.wait(60) == -signal.SIGKILL


def test_a_fork_of_a_closed_server_can_be_ended(tmp_path: Path) -> None:
    server = ForkServer(tmp_path)
    fork = server.begin(doubled)
    server.close()
    fork.end()
    assert fork.pipe.closed


class Counter:
    """Counts its calls, in whichever process it is."""

    def __init__(self, first: int) -> None:
        self.n = first

    def next(self, *, by: int = 1) -> tuple[int, int]:
        self.n += by
        return self.n, os.getpid()

    def warn(self) -> None:
        warnings.warn("it is late", UserWarning, stacklevel=2)

    def fail(self) -> None:
        raise UserError("blue", "it is blue; paint it red")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_an_object_in_a_fork_keeps_its_state_and_its_errors_and_warnings_come_here(
    forks: ForkServer,
) -> None:
    with closing(ForkedObject(forks, Counter, 3)) as there:
        (one, pid), (other, same) = there.call("next"), there.call("next", by=4)
        assert (one, other) == (4, 8)
        assert pid == same != os.getpid()
        with pytest.warns(UserWarning, match="it is late"):
            there.call("warn")
        with refused("blue", "paint it red"):
            there.call("fail")
        assert there.call("next")[0] == 9
    wait_for(lambda: not lives(pid))


def test_an_object_whose_fork_died_is_lost(forks: ForkServer) -> None:
    with closing(ForkedObject(forks, Counter, 0)) as there, pytest.raises(LostForkError):
        there.call("die")


# --- A function called in a process of its own, and that no process with a GPU is forked


PACKAGE = Path(nas_evidence.__file__).parent
#: What forks a Python process; `subprocess` starts another program, which has no GPU yet.
FORKING = (
    "fork",
    "forkpty",
    "Process",
    "Pool",
    "ProcessPoolExecutor",
    "get_context",
    "preexec_fn",
)


def whereabouts(given: int) -> tuple[int, int, bool]:
    import torch

    return given, os.getpid(), torch.cuda.is_initialized()


def failing(kind: str) -> None:
    if kind == "user":
        raise UserError("blue", "it is blue; paint it red")
    if kind == "library":
        raise ArithmeticError("too large")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.long
def test_a_function_answers_from_a_process_of_its_own_that_has_no_gpu_yet(tmp_path: Path) -> None:
    answer, pid, has_gpu = called_apart(whereabouts, 7, logs=tmp_path)
    assert (answer, has_gpu) == (7, False)
    assert pid != os.getpid()


@pytest.mark.slow
@pytest.mark.long
def test_its_errors_are_raised_here_and_its_death_is_an_error(tmp_path: Path) -> None:
    with refused("blue", "paint it red"):
        called_apart(failing, "user", logs=tmp_path)
    with pytest.raises(ArithmeticError, match="too large"):
        called_apart(failing, "library", logs=tmp_path)
    with pytest.raises(RuntimeError, match=r"ended early; .*workers\.log"):
        called_apart(failing, "killed", logs=tmp_path)


def child_pids(path: Path) -> set[str]:
    """What a file calls, or gives by name, that forks a Python process."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            found.add(ast.unparse(node.func).rpartition(".")[2])
            found.update(keyword.arg for keyword in node.keywords if keyword.arg)
    return found & {*FORKING}


@pytest.mark.slow
def test_only_the_server_of_forks_forks() -> None:
    found = {str(p.relative_to(PACKAGE)): f for p in PACKAGE.rglob("*.py") if (f := child_pids(p))}
    assert found == {"workers/fork_server.py": {"fork"}}


@pytest.mark.slow
@pytest.mark.long
def test_the_server_of_forks_has_no_gpu() -> None:
    code = (
        "import torch\n"
        "torch.cuda.is_available = torch.cuda.init = lambda *_: exit('a GPU is touched')\n"
        "from nas_evidence.workers import worker\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- A worker between two trials


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
        values = {"depth": 8 if family == "resnet" else 1, "width": 4}
        assignment = asked(
            ArchitectureSpec(family=family, values=values), ESTIMATORS, dataset=data, epochs=2,
            batch_size=20, settle=0.5,
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
