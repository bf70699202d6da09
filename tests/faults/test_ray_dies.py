"""Ray dies under a driver: the study goes on, and nothing of Ray stays behind."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import TINY, environment, run, write_study
from ray.exceptions import GetTimeoutError, RayError

from nas_evidence.cli import restart as restarting
from nas_evidence.data import load
from nas_evidence.spec.study import DatasetSpec, ResourceSpec
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.journal import read_journal
from nas_evidence.storage.tables import finished
from nas_evidence.workers import on_ray
from nas_evidence.workers.own_cluster import clear_leftovers, watch
from nas_evidence.workers.packing import Node

ROOT = Path(__file__).parents[2]


def children(pid: int, word: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_text()
        except OSError:  # it ended meanwhile
            continue
        if parent == pid and word in command:
            found.append(int(entry.name))
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("vital", ["raylet/raylet", "gcs/gcs_server"])
def test_a_killed_raylet_or_gcs_is_replaced_and_the_study_ends_as_if_nothing_had_happened(
    tmp_path: Path, vital: str
) -> None:
    ray = Path(tempfile.mkdtemp(prefix="r"))  # a socket's path may have 107 characters
    path = write_study(tmp_path, TINY.replace("epochs = 4", "epochs = 40"))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nas_evidence", "search", str(path), "--out", "s"),
            *("--executor", "ray"),
        ],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT), RAY_TMPDIR=str(ray)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not any(event["event"] == "report" for event in read_journal(tmp_path / "s")):
            assert process.poll() is None
            time.sleep(0.1)
        (doomed,) = children(process.pid, f"/{vital}")
        os.kill(doomed, signal.SIGKILL)
        out, err = process.communicate(timeout=300)
        sessions = list((ray / "ray").glob("session_*_*"))
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(ray, ignore_errors=True)
    assert process.returncode == 0, out + err
    assert err.strip().startswith("Ray has died on this machine; finished trials are stored")
    assert "Starting it again (1 of 3)" in err
    assert len(finished(tmp_path / "s")) == 4
    assert not sessions


def test_after_a_few_restarts_it_ends_with_the_command_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []
    starts: list[list[str]] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(os, "execve", lambda path, command, env: starts.append(command))
    monkeypatch.setenv("NAS_EVIDENCE_RESTARTS", str(restarting.MOST))
    restarting.go_on_without_cluster("runs/x", ["--data-root", "d"], None)
    said = capsys.readouterr().err
    assert ends == [1]
    assert not starts
    assert "resume runs/x --data-root d" in said
    restarting.go_on_without_cluster("runs/x", [], "head:6379")
    assert "the cluster head:6379 is lost: its head or Ray" in capsys.readouterr().err


def test_what_starts_again_prints_commands_as_the_first_process_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts: list[list[str]] = []
    monkeypatch.setattr(os, "_exit", lambda code: None)
    monkeypatch.setattr(os, "execve", lambda path, command, env: starts.append(command[1:-2]))
    monkeypatch.setattr(sys, "argv", ["/venv/bin/nas-evidence", "search"])
    restarting.go_on_without_cluster("runs/x", [], None)
    monkeypatch.setattr(sys, "argv", ["/venv/lib/nas_evidence/__main__.py", "search"])
    restarting.go_on_without_cluster("runs/x", [], None)
    assert starts == [["/venv/bin/nas-evidence"], ["-m", "nas_evidence"]]


def test_the_watch_calls_once_when_the_cluster_is_gone() -> None:
    import threading

    alive, called = [True], threading.Semaphore(0)
    stop = watch(lambda: alive[0], called.release, every=0.01)
    alive[0] = False
    assert called.acquire(timeout=600.0)
    stop()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            Exception("The current node timed out\nduring startup."),
            "Ray did not start .* timed out",
        ),
        (TimeoutError("no port"), r"did not start on this machine \(no port\)"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),  # said elsewhere
    ],
)
def test_a_ray_that_does_not_start_is_one_sentence_and_leaves_nothing(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    session = session.rename(session.with_name(f"session_now_{os.getpid()}"))

    def half(**_: object) -> None:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        raise error

    monkeypatch.setattr(on_ray.ray, "init", half)
    arrays = load(DatasetSpec(name="digits", max_train=20, test_size=10), seed=0)
    expected = OSError if error.args[0] == errno.ENOSPC else StudyStoppedError
    with pytest.raises(expected, match=said):
        on_ray.RayExecutor(arrays, ResourceSpec(workers=1, gpus=0), tmp_path)
    assert started[0].wait(timeout=600) == -signal.SIGKILL
    assert not session.exists()


@pytest.mark.parametrize(
    ("error", "why"), [(GetTimeoutError("late"), "for 120 s"), (RayError("torch"), "torch")]
)
def test_gpus_that_nobody_can_look_at_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: RayError, why: str
) -> None:
    def failed(*_: object, **__: object) -> None:
        raise error

    task = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: None))
    monkeypatch.setattr(on_ray.ray, "remote", lambda function: task)
    monkeypatch.setattr(on_ray.ray, "get", failed)
    with pytest.raises(StudyStoppedError, match=f"memory of the cluster's GPUs .*{why}"):
        on_ray._smallest_gpu([Node("a" * 56, 2.0, 1)])


_DRIVER = """
import subprocess, sys, time
from pathlib import Path
from nas_evidence.workers.own_cluster import note_session
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
left = subprocess.Popen(sleeper, stdout=subprocess.DEVNULL)
note_session(Path(sys.argv[1]), "runs/a/logs")
print(left.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty session folder of Ray's."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    session = tmp_path / "ray" / "session_1"
    session.mkdir(parents=True)
    return session


@pytest.fixture
def driver(session: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A driver of the study runs/a/logs, and what it started in the session."""
    # A process of its own: whatever else this one has started is not the driver's.
    command = [sys.executable, "-c", _DRIVER, str(session)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        left = int(driver.stdout.readline())
        try:
            yield driver, left
        finally:
            driver.kill()
            with contextlib.suppress(OSError):
                os.kill(left, signal.SIGKILL)


def test_what_a_killed_driver_left_is_ended_and_its_session_removed(
    session: Path, driver: tuple[subprocess.Popen[str], int]
) -> None:
    process, left = driver
    process.kill()
    process.wait()
    assert clear_leftovers("runs/a/logs") == (
        "An earlier run had left a process running; it was ended."
    )
    assert _is_gone(left)
    assert not session.exists()


def test_a_copy_of_a_study_leaves_the_processes_of_the_original_alone(
    session: Path, driver: tuple[subprocess.Popen[str], int]
) -> None:
    process, left = driver
    assert clear_leftovers("runs/b/logs") == ""
    process.kill()
    process.wait()
    assert clear_leftovers("runs/b/logs") == ""
    assert session.exists()
    os.kill(left, 0)


def test_what_a_driver_that_lives_has_started_is_left_alone(
    session: Path, driver: tuple[subprocess.Popen[str], int]
) -> None:
    assert clear_leftovers("runs/a/logs") == ""
    assert session.exists()
    os.kill(driver[1], 0)


def test_a_process_that_started_later_under_the_same_number_is_left_alone(
    session: Path, driver: tuple[subprocess.Popen[str], int]
) -> None:
    process, left = driver
    process.kill()
    process.wait()
    path = session / "nas-evidence.json"
    record = json.loads(path.read_text())
    record["processes"][str(left)] += "0"
    path.write_text(json.dumps(record))
    assert clear_leftovers("runs/a/logs") == ""
    os.kill(left, 0)


def _is_gone(pid: int) -> bool:
    """Wait until a process that is no child of this one has ended (or waits to be reaped)."""
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("how", ["of another folder", "a link", "of another user", "[" * 100_000])
def test_a_record_that_no_driver_of_this_user_wrote_there_removes_nothing(
    session: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = session / "nas-evidence.json"
    facts = {"session": str(session), "study": "runs/a/logs", "driver": {}, "processes": {}}
    if how == "of another folder":
        facts["session"] += "2"
    path.write_text(how if how.startswith("[") else json.dumps(facts))
    if how == "a link":
        path.symlink_to(path.rename(session.parent / "elsewhere"))
    if how == "of another user":
        monkeypatch.setattr(os, "getuid", lambda: -1)
    assert clear_leftovers("runs/a/logs") == ""
    assert session.exists()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "local"])
def test_a_study_folder_cannot_end_processes_or_remove_folders(
    session: Path,
    driver: tuple[subprocess.Popen[str], int],
    tmp_path: Path,
    executor: str,
) -> None:
    process, left = driver
    path = write_study(tmp_path, TINY)
    arguments = ("search", str(path), "--out", "s", "--executor", executor)
    run(*arguments, "--trials", "1", folder=tmp_path)
    process.kill()
    process.wait()
    text = (session / "nas-evidence.json").read_text()
    for name in ("ray-session.json", "nas-evidence.json"):  # the first: of earlier versions
        (tmp_path / "s" / "logs" / name).write_text(text)
    run(*arguments, "--trials", "2", folder=tmp_path)
    assert session.exists()
    os.kill(left, 0)
