"""The local cluster that a driver starts: watched while it runs, and cleared away afterwards.

Ray ends the driver's process without a word when its raylet dies, and a minute after its GCS. A
thread here notices first and says so. If the driver itself is killed, Ray's processes may live on
for a minute and their session folder for ever. A record in that folder says what was started, by
which driver and for which study; the next driver of the study ends what is left. A study folder,
which may be a copy or somebody else's, has no say in it.
"""

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nas_evidence.plumbing.files import write_whole

_LOG = logging.getLogger(__name__)
#: In a session folder: what was started there, and for whom.
_NAME = "nas-evidence.json"
#: Seconds between two looks; Ray leaves 0.3 s at the least.
WATCH_EVERY = 0.1


class ClusterLostError(RuntimeError):
    """The cluster of this machine is gone; everything that was stored is safe."""


_STARTING, _ENDING = threading.Event(), threading.Event()


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Mark the time in which this process starts a cluster, and no trial runs yet."""
    _STARTING.set()
    try:
        yield
    finally:
        _STARTING.clear()


def is_starting() -> bool:
    """Return whether this process is starting a cluster, and no trial runs yet."""
    return _STARTING.is_set()


def end_what_starts() -> None:
    """End all processes below this one, at once, and remove their session folder.

    Ray's own start and shutdown cannot be interrupted and take up to a quarter of a minute. Call
    it from another thread, and end this process next: Ray would, when it misses its raylet.
    """
    _ENDING.set()
    for _ in range(5):  # what was started while the first ones were ended
        if not (there := _descendants(os.getpid())):
            break
        for pid in map(int, there):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
    _remove_sessions()


@contextlib.contextmanager
def ended_on_error() -> Iterator[None]:
    """If the block fails, end what it has started below this process, and its session."""
    before = _descendants(os.getpid())
    try:
        yield
    except BaseException:
        there = _descendants(os.getpid())
        end_processes({pid: began for pid, began in there.items() if pid not in before})
        _remove_sessions()
        raise


def watch(
    is_alive: Callable[[], bool], on_lost: Callable[[], None], *, every: float = WATCH_EVERY
) -> Callable[[], None]:
    """Call `on_lost` once, from a thread, when `is_alive` turns false; return how to stop."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(every):
            if not is_alive():
                if not _ENDING.is_set():
                    on_lost()
                return

    threading.Thread(target=look, daemon=True, name="watch-cluster").start()
    return over.set


def answers(path: Path) -> bool:
    """Return whether a process listens at a socket of this machine."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except TimeoutError:  # busy, but there
            return True
        except OSError:
            return False
    return True


def note_session(session: Path, study: str) -> dict[str, str]:
    """Record in a session folder the study and the processes below this one; return these."""
    me, processes = os.getpid(), _descendants(os.getpid())
    record = {"session": str(session), "study": study, "driver": {me: _started(me)}}
    text = json.dumps(record | {"processes": processes})
    write_whole(session / _NAME, text, private=True)
    return processes


def named(processes: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return those of some processes that have one of the names."""
    return {pid: started for pid, started in processes.items() if _name(pid) in names}


def all_run(processes: Mapping[str, str]) -> bool:
    """Return whether none of some processes has ended, even if nobody has waited for it."""
    return all(_started(int(pid)) == began for pid, began in processes.items())


def end_processes(processes: Mapping[str, str]) -> int:
    """End those of some processes that still run; return how many."""
    ended = 0
    for pid, began in processes.items():
        if _started(int(pid)) == began:
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
                ended += 1
    return ended


def clear_leftovers(study: str) -> str:
    """End what a killed driver of this study has left here; return a line about it, or ""."""
    ended = 0
    for session in _sessions("*"):
        record = _record(session)
        if record.get("study") != study:
            continue
        others = {p: began for p, began in record["driver"].items() if p != str(os.getpid())}
        if others and all_run(others):  # it still lives
            continue
        ended += end_processes(record["processes"])
        remove_session(session)
        if session.exists():
            return f"Ray's files of an earlier run could not be removed; they are in {session}."
    if ended == 1:
        return "An earlier run had left a process running; it was ended."
    return f"An earlier run had left {ended} processes running; they were ended." if ended else ""


def remove_session(session: Path) -> None:
    """Remove the folder of a session that has ended."""
    shutil.rmtree(session, ignore_errors=True)
    latest = session.parent / "session_latest"
    with contextlib.suppress(OSError):
        if latest.is_symlink() and latest.readlink().name == session.name:
            latest.unlink()


def _remove_sessions() -> None:
    for session in _sessions(f"*_{os.getpid()}"):
        remove_session(session)


def _sessions(name: str) -> list[Path]:
    """Return the session folders of this user's Ray."""
    place = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    return [s for s in (Path(place) / "ray").glob(f"session_{name}") if not s.is_symlink()]


def _record(session: Path) -> dict[str, Any]:
    """Return what this user's driver has noted in its session folder; nothing if it has not.

    Ray lets everybody write there: the record counts if it is this user's and of this folder.
    """
    try:
        with open(session / _NAME, opener=lambda p, how: os.open(p, how | os.O_NOFOLLOW)) as file:
            ours = os.fstat(file.fileno()).st_uid == os.getuid()
            record = json.load(file) if ours else {}
    except (OSError, ValueError, RecursionError):
        return {}
    ours = isinstance(record, dict) and record.get("session") == str(session)
    return record if ours else {}


def _descendants(root: int) -> dict[str, str]:
    """Return the processes below one: pid -> when it started, in clock ticks since boot."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            parents[int(entry.name)] = int(_facts(int(entry.name))[1])
    below, new = set[int](), {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - below
        below |= new
    return {str(pid): started for pid in sorted(below) if (started := _started(pid))}


def _started(pid: int) -> str:
    """Return when a process started; "" if it has ended, even if nobody has waited for it."""
    try:
        facts = _facts(pid)
        return "" if facts[0] in ("Z", "X") else f"{_boot()} {facts[19]}"
    except (OSError, IndexError):
        return ""


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _facts(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
