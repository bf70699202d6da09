"""The log of a study: facts in order, appended only by the process that holds the study.

One JSON object per line in `logs/events.jsonl`:

    {"session": 2, "line": 17, "t": 1764000000.0, "event": "ask", "number": 3, ...,
     "blake2b": "9c2e..."}

`blake2b` is the checksum of the line. A line that does not match it is a suspect: nobody reads it.
Each process that writes begins a session with a line `begin`. Lines of an earlier session that
come after it are those of a process that was superseded: they count for nobody. Within a session
lines are numbered, and `begin` says how many lines count before it, so that lost lines are found
out. A line cut short by a crash is terminated by the next process: that is no damage.
"""

import contextlib
import io
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nas_evidence.plumbing.collector import uncollected
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import DamagedError, seal_object, unsealed_object
from nas_evidence.storage.events import EVENT, Began, Event
from nas_evidence.storage.set_aside import set_aside
from nas_evidence.storage.state import State

#: The log in a study folder.
LOG = "logs/events.jsonl"
_PLACE = Path(LOG)
_HEAD = re.compile(rb'\{"session": (\d+), "line": (\d+), "t": ([\d.]+), ')


class Log:
    """The log of a study that this process holds, and the state that its lines amount to.

    state     changed by `write` alone
    problems  what is wrong with the file, as `read_log` returns it
    """

    def __init__(self, folder: Path, past: "Past | None" = None) -> None:
        """Take up the log of a study folder; `past` is what it holds, if that was read already."""
        self._path = log_path(folder)
        self._past = past or read_log(folder)
        self.state, self.problems = self._past.state, self._past.problems
        self._session, self._line = self._past.session + 1, 0
        self._file: io.FileIO | None = None

    def write(self, event: Event, *, durable: bool = False) -> None:
        """Append an event and apply it; a `durable` one survives a power failure.

        Raises:
            OSError: the disk is full; then nothing of the line is there.
        """
        if self._file is None:
            self._begin()
        assert self._file is not None
        self._append(event)
        if durable:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab+", buffering=0)
        if size := self._file.seek(0, os.SEEK_END):
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")
        self._append(Began(pid=os.getpid(), host=socket.gethostname(), after=self._past.n_lines))

    def _append(self, event: Event) -> None:
        """Write all of a line, or nothing of it where the disk is full; apply it."""
        assert self._file is not None
        line = _line(self._session, self._line, time.time(), event)
        before, rest = self._file.seek(0, os.SEEK_END), memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(before)
            raise OSError(error.errno, error.strerror, self._file.name) from error
        self._line += 1
        self.state.apply(event)


@dataclass
class Past:
    """What a log holds.

    state     that its lines amount to
    problems  what is wrong with it; a line that a crash cut short is not
    session   the last one, 0 if there is none
    n_lines   how many lines count
    """

    state: State = field(default_factory=State)
    problems: list[str] = field(default_factory=list)
    session: int = 0
    n_lines: int = 0


def log_path(folder: Path) -> Path:
    """Return the path of a study's log."""
    return folder / LOG


@uncollected()
def read_log(folder: Path) -> Past:
    """Read the log of a study once."""
    past = Past()
    for _ in _scan(folder, past):
        pass
    return past


def events(folder: Path) -> Iterator[tuple[float, Event]]:
    """Yield the events that count, in order, each after its time in seconds since 1970."""
    yield from _scan(folder, Past())


def events_since(folder: Path, start: int) -> tuple[list[tuple[float, Event]], int]:
    """Return the events, with their times, from a byte of the log on, and where they end."""
    path = log_path(folder)
    if not path.exists():
        return [], start
    with path.open("rb") as file:
        file.seek(start)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    read = (found for line in whole.splitlines() if (found := _read(line)))
    return [(t, event) for _, _, t, event in read], start + len(whole)


def mend_log(folder: Path, past: Past) -> Past:
    """Set a damaged log aside and write one of its sound lines; return what is there then."""
    if not past.problems:
        return past
    kept: list[tuple[float, Event]] = list(events(folder))
    set_aside(folder, LOG)
    begin = Began(pid=os.getpid(), host=socket.gethostname(), after=0)
    kept = [(time.time(), begin), *kept]
    session = past.session + 1  # lines of a process that still writes count no more
    lines = [_line(session, n, t, event) for n, (t, event) in enumerate(kept)]
    write_whole(log_path(folder), b"".join(lines))
    return read_log(folder)


def _scan(folder: Path, past: Past) -> Iterator[tuple[float, Event]]:
    """Yield the events that count, each after its time; enter them, and problems, in `past`."""
    path = log_path(folder)
    suspects, whole, late = list[int](), list[int](), list[int]()
    expected = 0
    with path.open("rb") if path.exists() else io.BytesIO() as lines:
        for number, line in enumerate(lines, start=1):
            read = _read(line)
            if read is None:
                suspects += [number] if line.strip() and line.endswith(b"\n") else []
                whole += [number] if line.endswith(b'"}\n') else []
                continue
            session, at, t, event = read
            if session < past.session:
                late.append(number)
                continue
            if isinstance(event, Began) and session > past.session:
                past.session, lost = session, event.after > past.n_lines
            else:
                lost = at != expected or session > past.session
                past.session = session
            if lost:
                missing = f"lines are missing before line {number}"
                past.problems.append(_not_as_written(suspects) if suspects else missing)
            elif whole:
                past.problems.append(_not_as_written(whole))
            suspects, whole, expected = [], [], at + 1
            past.n_lines += 1
            past.state.apply(event)
            yield t, event
    if whole or len(suspects) > 1:
        past.problems.append(_not_as_written(suspects))
    if late:
        noun, verb = ("lines", "are") if len(late) > 1 else ("line", "is")
        which = ", ".join(map(str, late[:5])) + (" ..." if len(late) > 5 else "")
        past.problems.append(f"{noun} {which} {verb} of a process that was superseded")


def _not_as_written(numbers: list[int]) -> str:
    which = "lines" if len(numbers) > 1 else "line"
    return f"{which} {', '.join(map(str, numbers))} cannot be used: not as written"


def _line(session: int, number: int, t: float, event: Event) -> bytes:
    head = f'{{"session": {session}, "line": {number}, "t": {t:.3f}, '
    return seal_object(head + event.model_dump_json()[1:]).encode() + b"\n"


def _read(line: bytes) -> tuple[int, int, float, Event] | None:
    head = _HEAD.match(line)
    if head is None:
        return None
    try:
        text = unsealed_object(line, _PLACE)
        event = EVENT.validate_json("{" + text[head.end() :])
    except (DamagedError, ValueError, RecursionError):
        return None
    return int(head[1]), int(head[2]), float(head[3]), event
