"""The server of plain processes is started ahead where it is needed, and none is left over."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import refused
from processes import in_a_process, lives, wait_for

import nas_evidence
from nas_evidence.api import runs
from nas_evidence.workers import choice, fork_server
from nas_evidence.workers.fork_server import ForkServer, _Server

pytestmark = pytest.mark.usefixtures("no_shortcuts")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[_Server]]:
    """The servers that start."""
    found: list[_Server] = []
    start = fork_server._start

    def noted(logs: Path | None, threads: int) -> _Server:
        found.append(start(logs, threads))
        return found[-1]

    monkeypatch.setattr(fork_server, "_start", noted)
    yield found
    for server in found:
        wait_for(lambda own=server: own.process.poll() is not None)


@pytest.mark.parametrize(
    ("options", "n"),
    [
        ({"workers": 2}, 1),
        ({"executor": "local"}, 1),
        ({}, 0),
        ({"executor": "inline"}, 0),
        ({"executor": "ray"}, 0),
        ({"workers": 2, "address": "auto"}, 0),
    ],
)
def test_a_server_starts_ahead_for_plain_processes_alone_and_ends_with_an_error_of_input(
    monkeypatch: pytest.MonkeyPatch, started: list[_Server], options: dict[str, Any], n: int
) -> None:
    monkeypatch.setattr(choice, "_GPU_DEVICES", ())
    with pytest.raises(ValueError, match=r"gone\.csv"):
        nas_evidence.search("gone.csv", **options)
    assert [server.process.poll() for server in started] == [-signal.SIGKILL] * n
    with pytest.raises(ValueError, match="gone"):
        nas_evidence.resume("gone", **options)
    assert len(started) == 2 * n


def test_no_server_starts_ahead_beside_a_gpu_for_wrong_flags_or_a_dry_run(
    monkeypatch: pytest.MonkeyPatch,
    started: list[_Server],
    cli: Callable[..., tuple[str, str]],
    tmp_path: Path,
) -> None:
    cli("search", "gone.csv", "--nonsense", code=2)
    cli("search", "gone.csv", "--dry-run", code=2)
    monkeypatch.setattr(choice, "_GPU_DEVICES", (str(tmp_path),))
    cli("search", "gone.csv", code=2)
    assert not started


def test_a_server_that_was_started_ahead_of_a_killed_driver_ends(tmp_path: Path) -> None:
    def driver() -> None:
        with runs.forks_ahead(runs.Run(executor="local")) as run:
            assert run.forks is not None
            (tmp_path / "pid").write_text(str(run.forks.start().process.pid))
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_process(driver) == -signal.SIGKILL
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not lives(pid))


@pytest.mark.parametrize("changed", ["", "threads", "environment", "path"])
def test_a_server_ahead_serves_a_study_only_in_the_environment_that_this_needs(
    monkeypatch: pytest.MonkeyPatch, started: list[_Server], tmp_path: Path, changed: str
) -> None:
    forks = ForkServer(None)
    process = forks.start().process
    if changed == "environment":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    elif changed == "path":
        monkeypatch.syspath_prepend(tmp_path / "own")
    forks.settle(tmp_path / "logs", threads=2 if changed == "threads" else 1)
    assert forks.runs == (changed == "")
    assert process.poll() == (-signal.SIGKILL if changed else None)
    environment = forks.start().environment
    assert environment["OMP_NUM_THREADS"] == ("2" if changed == "threads" else "1")
    forks.close()
    assert len(started) == 1 + (changed != "")


@pytest.mark.long
@pytest.mark.slow
def test_the_server_that_was_started_ahead_forks_the_workers_and_prints_into_the_study(
    started: list[_Server], tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    nas_evidence.search(
        x, x[:, 0], n_trials=1, out=tmp_path / "s", executor="local", families="linear",
        settings={"plan.epochs": 1, "finalists": 0}, task="regression",
    )  # fmt: skip
    assert len(started) == 1
    assert started[0].n_forks >= 1
    assert (tmp_path / "s" / "logs" / "workers.log").exists()


@pytest.mark.slow
def test_what_a_server_ahead_prints_is_kept_once_the_study_is_known(tmp_path: Path) -> None:
    forks = ForkServer(None)
    forks.start()
    forks.settle(tmp_path / "logs", threads=1)
    forks.begin(print, "said by a fork").pipe.poll(60)
    forks.close()
    assert "said by a fork" in (tmp_path / "logs" / "workers.log").read_text()


@pytest.mark.parametrize("function", [nas_evidence.search, nas_evidence.resume])
def test_a_current_folder_that_was_removed_is_one_sentence(
    function: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with refused("current-folder-removed", "go to another one"):
        function("/data.csv")
