"""Ray dies under a driver: the study goes on, and nothing of Ray stays behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import TINY, environment, write_study

from nas_evidence.cli import restart as restarting
from nas_evidence.storage.journal import read_journal
from nas_evidence.storage.tables import finished
from nas_evidence.workers.own_cluster import clear_leftovers, watch

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
def test_a_killed_raylet_is_replaced_and_the_study_ends_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    path = write_study(tmp_path, TINY.replace("epochs = 4", "epochs = 40"))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nas_evidence", "search", str(path), "--out", "s"),
            *("--executor", "ray"),
        ],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not any(event["event"] == "report" for event in read_journal(tmp_path / "s")):
            assert process.poll() is None
            time.sleep(0.1)
        (raylet,) = children(process.pid, "/raylet/raylet")
        os.kill(raylet, signal.SIGKILL)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, out + err
    assert err.strip().startswith("Ray has died on this machine; finished trials are stored")
    assert "Starting it again (1 of 3)" in err
    assert len(finished(tmp_path / "s")) == 4
    assert not (tmp_path / "s" / "logs" / "ray-session.json").exists()


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
    assert "belongs to the cluster head:6379" in capsys.readouterr().err


def test_the_watch_calls_once_when_the_cluster_is_gone() -> None:
    import threading

    alive, called = [True], threading.Semaphore(0)
    stop = watch(lambda: alive[0], called.release, every=0.01)
    alive[0] = False
    assert called.acquire(timeout=600.0)
    stop()


_DRIVER = """
import subprocess, sys, time
from pathlib import Path
from nas_evidence.workers.own_cluster import note_session
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
left = subprocess.Popen(sleeper, stdout=subprocess.DEVNULL)
note_session(Path(sys.argv[1]), Path(sys.argv[2]))
print(left.pid, flush=True)
time.sleep(600)
"""


def test_what_a_killed_driver_left_is_ended_and_its_session_removed(tmp_path: Path) -> None:
    session = tmp_path / "ray" / "session_1"
    session.mkdir(parents=True)
    # A process of its own: whatever else this one has started is not the driver's.
    command = [sys.executable, "-c", _DRIVER, str(tmp_path), str(session)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        left = int(driver.stdout.readline())
        text = (tmp_path / "ray-session.json").read_text()
        driver.kill()
    try:
        assert f'"{left}"' in text
        assert clear_leftovers(tmp_path) == (
            "An earlier run had left a process running; it was ended."
        )
        assert _is_gone(left)
        assert not session.exists()
        # A process of another start time is never touched.
        (tmp_path / "ray-session.json").write_text(text.replace(str(left), str(os.getpid())))
        assert clear_leftovers(tmp_path) == ""
    finally:
        with contextlib.suppress(OSError):
            os.kill(left, signal.SIGKILL)


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


def test_a_record_never_removes_what_is_no_session_of_ray(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "ray-session.json").write_text(
        f'{{"session": "{tmp_path / "precious"}", "processes": {{}}}}'
    )
    assert "could not be removed" in clear_leftovers(tmp_path)
    assert (tmp_path / "precious").is_dir()
