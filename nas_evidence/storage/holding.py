"""Who works on a study: the file `lock` names its holder and the time of the last heartbeat.

It is a hint: `status`, `watch` and `cancel` use it, and a process reads it before it takes a study
over. Which lines of the log count, and who may still write, the log alone decides (`log.py`). No
clock does.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path

from nas_evidence.plumbing.seals import DamagedError, read_sealed_json, sealed_json
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.storage.faults import StudyStoppedError

#: Seconds between two heartbeats, and seconds of silence after which a holder may be dead.
BEAT_EVERY, SILENT_AFTER = 10.0, 60.0
#: The studies that are held by whoever calls, who must not wait for them.
_MINE: ContextVar[frozenset[str]] = ContextVar("_MINE", default=frozenset())
#: What the studies of this process wait for, by place; the next heartbeat of each says it.
_WAITING = dict[str, str]()
#: Characters of it: a file `lock` has a fixed size.
_LONGEST = 120


@dataclass(frozen=True)
class Holder:
    """Which process works on a study: when it was last heard of, and since when it has worked.

    Times are in seconds since 1970. A number of a process means something in one namespace of
    processes only: containers of one host may share its name and its boot. `waits_for` says for
    what a study waits in which no trial can run; "" otherwise.
    """

    pid: int
    host: str
    boot_id: str
    heard_of: float
    since: float
    namespace: str = ""
    waits_for: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} of host {self.host}, since {_when(self.since)}"

    @property
    def is_me(self) -> bool:
        """Whether it is this process."""
        return self.pid == os.getpid() and self._is_of_here

    @property
    def may_be_alive(self) -> bool:
        """Whether it was heard of lately, and is not a dead process of this host."""
        return abs(time.time() - self.heard_of) < SILENT_AFTER and not self.is_dead_here()

    def is_dead_here(self) -> bool:
        """Return whether it was a process that could be seen from here, and is none any more."""
        here = self.host == socket.gethostname() and self._is_of_here
        return here and not _is_alive(self.pid)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it may live unseen: on another host, or in another container of this one."""
        if self.host != socket.gethostname():
            return True
        return self.boot_id == boot_id() and not self._is_of_here  # else this host has rebooted

    @property
    def _is_of_here(self) -> bool:
        mine, unknown = namespace(), ""
        return self.boot_id == boot_id() and (self.namespace in (mine, unknown) or not mine)


@contextlib.contextmanager
def announced(
    place: Path | str,
    get: Callable[[], bytes | None],
    put: Callable[..., object],
    is_left: Callable[[Holder], bool],
    *,
    steal: bool,
) -> Iterator[None]:
    """Be the holder of a study, and say so every ten seconds, during the block.

    Args:
        place: of the study.
        get: returns the content of its file `lock`, None without one.
        put: writes it, with `if_absent` only if it is; nothing, where nobody works.
        is_left: returns whether a holder is known to be dead.
        steal: take the study over from another host that has fallen silent.

    Raises:
        UserError: another process works on the study, or may.
    """
    since, key = time.time(), _key(place)
    mine, there = _text(since), get()
    if there is None:  # a new study: of two processes one comes first
        put(mine, if_absent=True)
        there = get()
    if there != mine:
        refuse_if_held(there or b"", place, is_left, steal=steal)
    put(mine)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_EVERY):
            with contextlib.suppress(OSError, StudyStoppedError):  # the driver notices it
                put(_text(since, _WAITING.get(str(place), "")))

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    _MINE.set(_MINE.get() | {key})
    try:
        yield
    finally:
        _MINE.set(_MINE.get() - {key})
        over.set()
        beating.join()
        _WAITING.pop(str(place), None)
        with contextlib.suppress(OSError, StudyStoppedError):  # it falls silent
            last = holder_in(get() or b"")
            if last is not None and last.is_me:
                put(b"")


def say_waiting(places: Iterable[Path | str], what: str) -> None:
    """Let the heartbeats of a study that is held at these places say what it waits for."""
    for place in places:
        _WAITING[str(place)] = what[:_LONGEST]


def holder_in(content: bytes) -> Holder | None:
    """Return the holder that the file `lock` names; None if it names none."""
    try:
        facts = read_sealed_json(content, Path("lock"))
        times = float(facts["heard_of"]), float(facts["since"])
        names = str(facts["host"]), str(facts["boot_id"])
        more = (str(facts.get(name, "")) for name in ("namespace", "waits_for"))
        return Holder(int(facts["pid"]), *names, *times, *more)
    except (DamagedError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def is_damaged(content: bytes) -> bool:
    """Return whether the file `lock` holds something that names no holder."""
    return bool(content.strip(b"\0 \n")) and holder_in(content) is None


def refuse_if_held(
    content: bytes, place: Path | str, is_left: Callable[[Holder], bool], *, steal: bool
) -> None:
    """Refuse a study whose file `lock` holds this, if another process works on it, or may.

    Arguments as in `announced`.
    """
    holder = holder_in(content)
    if is_damaged(content) and not steal:
        raise UserError(
            "lock-damaged",
            f"the file {place}/lock is damaged, so it cannot be told who works on the study; "
            "make sure that nobody does, then take it over with the option `steal`.",
        )
    if holder is None or is_left(holder):
        return
    who, heard_of = f"process {holder.pid} of host {holder.host}", _when(holder.heard_of)
    if holder.may_be_alive and is_mine(place):
        raise held_here(place)
    if holder.may_be_alive:
        raise UserError(
            "study-held",
            f"another process works on {place} ({who}, heard of at {heard_of}); wait for it, or "
            "stop it first.",
        )
    if holder.is_elsewhere and not steal:
        raise UserError(
            "holder-silent",
            f"{who} held {place} and was last heard of at {heard_of}; make sure that it is dead, "
            "then take the study over with the option `steal`.",
        )


def is_mine(place: Path | str) -> bool:
    """Return whether the code that runs now is called while it holds this study, as a callback is.

    Another thread of this process is not, unless it runs in a copy of the context.
    """
    return _key(place) in _MINE.get()


def _key(place: Path | str) -> str:
    return str(place) if "://" in str(place) else os.path.realpath(place)


def held_here(place: Path | str) -> UserError:
    """Return the error of whoever would wait for a study of which it is a callback."""
    return UserError(
        "study-held-here",
        f"this is called while {place} runs and waits for it, as in a callback; do it when the "
        "search has returned.",
    )


def boot_id() -> str:
    """Return an id of the current boot of this host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()


def namespace() -> str:
    """Return an id of the namespace in which this process has its number; "" if not known."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux, or a /proc of another namespace
        return ""


def _text(since: float, waits_for: str = "") -> bytes:
    host = socket.gethostname()
    holder = Holder(os.getpid(), host, boot_id(), time.time(), since, namespace(), waits_for)
    return sealed_json(asdict(holder)).encode()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's process, or no id at all
        return True
    return True


def _when(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # no time at all
        return f"second {seconds:g}"
