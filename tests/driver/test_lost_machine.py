"""The machine is lost at any write of a study: the next one ends it, and finds the same."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import Silent, results_in, study
from processes import in_a_process
from toy_worker import Toy

from nas_evidence.driver.driver import Driver
from nas_evidence.storage.study_folder import locked
from nas_evidence.workers.inline import InlineExecutor
from nas_evidence.workers.local import LocalExecutor

pytestmark = pytest.mark.slow

STUDY = study(
    scheduling="batch",
    batch=3,
    sampler={},
    plan={"epochs": 4, "online": {"every": 2}},
    pruning={"rule": "halving", "first_epoch": 2, "reduction": 2, "startup_trials": 2},
    resources={"workers": 2},
)
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def inline(folder: Path) -> Any:
    return InlineExecutor(None, STUDY.resources, make_worker=Toy)


def local(folder: Path) -> Any:
    # The server starts with the paths of this process, where it finds the worker.
    nothing: Any = None
    return LocalExecutor(nothing, STUDY.resources, folder / "logs", make_worker=Toy)


def search(folder: Path, executor: Callable[[Path], Any], lost_at: int = 0) -> None:
    """Run what is left of the study; kill this process at its n-th change of a file of it."""
    folder.mkdir(exist_ok=True)
    count = functools.partial(next, iter(range(1, 1 << 30)))

    def watch(event: str, facts: tuple[Any, ...]) -> None:
        changes = event in _CHANGES or (event == "open" and facts[2] & _WRITES)
        if changes and str(facts[0]).startswith(str(folder)) and count() == lost_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    with locked(folder):
        Driver(STUDY, folder, executor(folder), Silent()).run()


def found(folder: Path) -> list[Any]:
    weights = {path.name: path.read_text() for path in (folder / "models").iterdir()}
    return [*results_in(folder), weights]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("calm") / "s"
    assert in_a_process(lambda: search(folder, inline)) == 0
    return found(folder)


@pytest.mark.parametrize(
    ("executor", "first", "step"),
    [
        *((inline, first, 23) for first in range(1, 23, 6)),
        pytest.param(local, 20, 60, marks=pytest.mark.long),
    ],
)
def test_a_machine_lost_at_any_write_costs_nothing(
    executor: Callable[[Path], Any], first: int, step: int, calm: list[Any], tmp_path: Path
) -> None:
    # Lost again and again, each time some writes later, until a machine lives long enough.
    losses, lost_at, folder = 0, first, tmp_path / "s"
    while code := in_a_process(functools.partial(search, folder, executor, lost_at)):
        assert code == -signal.SIGKILL
        losses, lost_at = losses + 1, lost_at + step
    assert losses > 1
    assert found(folder) == calm
    assert not list((folder / "checkpoints").glob("*"))
