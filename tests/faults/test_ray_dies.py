"""Ray dies under a driver: the study goes on, and nothing of Ray stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import TINY, environment, write_study

from nas_evidence.cli import restarting
from nas_evidence.storage.journal import read_journal
from nas_evidence.store import finished
from nas_evidence.workers.own_cluster import clear_leftovers, note_session, watch

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


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_raylet_is_replaced_and_the_study_ends_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    path = write_study(tmp_path, TINY.replace("epochs = 4", "epochs = 40"))
    process = subprocess.Popen(
        [sys.executable, "-m", "nas_evidence", "search", str(path), "--out", "s"],
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
    assert called.acquire(timeout=60.0)
    stop()


def test_what_a_killed_driver_left_is_ended_and_its_session_removed(tmp_path: Path) -> None:
    session = tmp_path / "ray" / "session_1"
    session.mkdir(parents=True)
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        note_session(tmp_path, session)
        text = (tmp_path / "ray-session.json").read_text()
        assert f'"{mine.pid}"' in text
        assert clear_leftovers(tmp_path) == "1 processes that an earlier run had left were ended."
        assert mine.wait(timeout=60.0) == -signal.SIGKILL
        assert not session.exists()
        # A process of another start time is never touched.
        (tmp_path / "ray-session.json").write_text(text.replace(str(mine.pid), str(os.getpid())))
        assert clear_leftovers(tmp_path) == ""
    finally:
        mine.kill()
        mine.wait()


def test_a_record_never_removes_what_is_no_session_of_ray(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "ray-session.json").write_text(
        f'{{"session": "{tmp_path / "precious"}", "processes": {{}}}}'
    )
    assert "could not be removed" in clear_leftovers(tmp_path)
    assert (tmp_path / "precious").is_dir()
