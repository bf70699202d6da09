"""Killed (SIGKILL) at every write-ahead arrow of a real study, it ends as if nothing had happened.

Real training, the real sampler and the inline executor, in processes forked from this one, which
has imported everything. `test_batch.py` does the same with stand-ins and three workers.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from commands import (
    SCRIPT,
    assert_same,
    environment,
    forked,
    found,
    hashes,
    run,
    study_text,
    write_study,
)
from fakes import Silent, asked_in, facts_in, results_in, study, told_in
from processes import in_a_process
from toy_worker import Toy

from nas_evidence.data import load
from nas_evidence.data.digest import data_digest
from nas_evidence.driver.driver import Driver
from nas_evidence.driver.status import study_status
from nas_evidence.proposing.proposer import ProposalResult
from nas_evidence.spec.toml import FORMAT, load_study
from nas_evidence.storage.conditions import note_conditions
from nas_evidence.storage.faults import CRASH_POINTS
from nas_evidence.storage.study_folder import locked, open_study
from nas_evidence.workers.inline import InlineExecutor
from nas_evidence.workers.local import LocalExecutor

pytestmark = pytest.mark.slow

N_TRIALS = 4
# The second batch depends on what was told of the first; of each one trial is pruned.
STUDY = f"# nas-evidence study folder, format {FORMAT}\n" + study_text(
    "crashed", 4, n_trials=N_TRIALS, scheduling="batch", batch=2,
    dataset={"name": "npz", "path": "{data}"},
    family={"mlp": {"width": {"low": 4, "high": 64, "log": True}, "depth": 1}},
    plan={"epochs": 4, "batch_size": 32, "online": {"every": 2, "curvature": "diag_ef"}},
    pruning={"rule": "halving", "first_epoch": 2, "reduction": 2, "startup_trials": 2},
    sampler={},
)  # fmt: skip


def search(folder: Path) -> None:
    """Run the study in `folder`, or what is left of it."""
    study = open_study(folder, load_study(folder.parent / "tiny.toml"))
    with locked(folder):
        arrays = load(study.dataset, seed=study.seed)
        note_conditions(folder, study, data_digest(arrays))
        Driver(study, folder, InlineExecutor(arrays, study.resources), Silent()).run()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the study file, and `calm`: the study as it ends undisturbed."""
    home = tmp_path_factory.mktemp("crashed")
    write_study(home, STUDY)
    assert in_a_process(lambda: search(home / "calm")) == 0
    assert set(found(home / "calm")["trials"]["status"]) == {"complete", "pruned"}
    return home


def results(folder: Path) -> dict[str, pd.DataFrame]:
    return found(folder, without=["attempt", "content_hash"])


def told(folder: Path) -> list[tuple[str, ProposalResult | None]]:
    """Return every proposal and its result as the log has them."""
    results = told_in(folder)
    return [(str(point), results.get(n)) for n, point in enumerate(asked_in(folder))]


def assert_ended_as_undisturbed(folder: Path, calm: Path) -> None:
    assert_same(results(calm), results(folder))
    assert told(folder) == told(calm)
    for word in ("ask", "tell"):
        assert [e.number for e in facts_in(folder, word)] == list(range(N_TRIALS))
    assert sorted(e.row.trial_id for e in facts_in(folder, "end")) == list(range(N_TRIALS))
    weights = {p.name: p.read_bytes() for p in (calm / "models").iterdir()}
    assert {p.name for p in (folder / "models").iterdir()} == weights.keys()
    assert not list((folder / "checkpoints").iterdir())
    assert study_status(folder).state == "finished"


@pytest.mark.parametrize("arrow", CRASH_POINTS)
def test_killed_at_an_arrow_it_ends_as_if_nothing_had_happened(home: Path, arrow: str) -> None:
    folder = home / arrow
    assert in_a_process(lambda: search(folder), crash_at=f"{arrow}:2") == -signal.SIGKILL
    stored = hashes(folder)
    assert in_a_process(lambda: search(folder)) == 0
    now = hashes(folder)
    committed = {name for name in stored if f"trials/{Path(name).name}" in stored}
    assert {name: now[name] for name in committed} == {name: stored[name] for name in committed}
    assert_ended_as_undisturbed(folder, home / "calm")


@pytest.mark.long
@pytest.mark.parametrize("arrow", ["written", "told"])
def test_killed_after_the_last_row_and_resumed_from_the_command_line(
    home: Path, arrow: str
) -> None:
    # All rows are there, but the last batch, or its second trial, is not told.
    folder = home / f"last-{arrow}"
    code, *said = forked(
        [str(SCRIPT), "search", "tiny.toml", "--out", folder.name, "--executor", "inline"],
        home,
        environment(NAS_EVIDENCE_CRASH_AT=f"{arrow}:{N_TRIALS - (arrow == 'told')}"),
    )
    assert code == -signal.SIGKILL, said
    before = hashes(folder)
    assert len(before) == 4 * N_TRIALS
    run("resume", folder.name, "--executor", "inline", folder=home)
    assert hashes(folder) == before
    assert_ended_as_undisturbed(folder, home / "calm")


# --- the machine is lost at any write of a study: the next one ends it, and finds the same


LOST = study(
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
    return InlineExecutor(None, LOST.resources, make_worker=Toy)


def local(folder: Path) -> Any:
    # The server starts with the paths of this process, where it finds the worker.
    nothing: Any = None
    return LocalExecutor(nothing, LOST.resources, folder / "logs", make_worker=Toy)


def search_at(folder: Path, executor: Callable[[Path], Any], lost_at: int = 0) -> None:
    """Run what is left of the study; kill this process at its n-th change of a file of it."""
    folder.mkdir(exist_ok=True)
    count = functools.partial(next, iter(range(1, 1 << 30)))

    def watch(event: str, facts: tuple[Any, ...]) -> None:
        changes = event in _CHANGES or (event == "open" and facts[2] & _WRITES)
        if changes and str(facts[0]).startswith(str(folder)) and count() == lost_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    with locked(folder):
        Driver(LOST, folder, executor(folder), Silent()).run()


def found_at(folder: Path) -> list[Any]:
    weights = {path.name: path.read_text() for path in (folder / "models").iterdir()}
    return [*results_in(folder), weights]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("calm") / "s"
    assert in_a_process(lambda: search_at(folder, inline)) == 0
    return found_at(folder)


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
    while code := in_a_process(functools.partial(search_at, folder, executor, lost_at)):
        assert code == -signal.SIGKILL
        losses, lost_at = losses + 1, lost_at + step
    assert losses > 1
    assert found_at(folder) == calm
    assert not list((folder / "checkpoints").glob("*"))
