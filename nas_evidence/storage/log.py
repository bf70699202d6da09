"""The log of a study: facts in order, in a row of files of which each process creates its own.

    logs/events/000000.jsonl   the first process
    logs/events/000001.jsonl   the next one

Each line is a JSON object with its number in the whole log:

    {"line": 17, "t": 1764000000.0, "event": "ask", "number": 3, ..., "blake2b": "9c2e..."}

`blake2b` is the checksum of the line. A line that does not match it is read by nobody. A missing
number is a lost line. What comes after the last end of a line was cut short by a crash.

A file is created only if it is absent, so that two processes never write the same one. The number
of its first line, `begin`, says how many lines count before it. Lines of earlier files from that
number on are those of a process that was superseded: they count for nobody. A process that finds
the next file there is superseded, and stops before it writes or removes anything more.

At a store each object is what one flush of a driver has added (`driver/mirror.py`), and one of a
name like `000000-000255.jsonl` joins those that it names, with a checksum at its end.
"""

import contextlib
import io
import itertools
import math
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nas_evidence.plumbing.collector import uncollected
from nas_evidence.plumbing.files import sync_folder, write_whole
from nas_evidence.plumbing.seals import (
    DamagedError,
    read_sealed_toml,
    seal_object,
    sealed_toml,
    unsealed_object,
)
from nas_evidence.storage.events import EVENT, Began, Event
from nas_evidence.storage.faults import StudyStoppedError
from nas_evidence.storage.holding import boot_id, holder_in
from nas_evidence.storage.set_aside import set_aside
from nas_evidence.storage.state import State

#: The log in a study folder.
LOG = "logs/events"
_PLACE = Path(LOG)
_HEAD = re.compile(rb'\{"line": (\d+), "t": ([\d.]+), ')
_TAIL = 1 << 16  # bytes that hold the last lines of a file
_NUMBER = "([0-9]{6}|[1-9][0-9]{6,})"  # as `piece` writes it: else a copy could hide a file
_NAME = re.compile(rf"(?:.*/)?{LOG}/{_NUMBER}(?:-{_NUMBER})?\.jsonl")


class Log:
    """The log of a study that this process holds, and the state that its lines amount to.

    state     changed by `write` alone
    problems  what is wrong with the files, as `read_log` returns it
    """

    def __init__(self, folder: Path, past: "ReadLog | None" = None) -> None:
        """Take up the log of a study folder; `past` is what it holds, if that was read already."""
        self._folder = folder
        self._past = past or read_log(folder)
        self.state, self.problems = self._past.state, self._past.problems
        self._line = self._past.n_lines
        self._file: io.FileIO | None = None
        self._next = folder / piece(self._past.last + 1)  # which nobody has created yet

    def write(self, event: Event, *, durable: bool = False) -> None:
        """Append an event and apply it; a `durable` one survives a power failure.

        Raises:
            StudyStoppedError: another process has taken the study over.
            OSError: the disk is full; then nothing of the line is there.
        """
        file = self.begin()
        self._append(file, event)
        if durable:
            os.fsync(file.fileno())

    def begin(self) -> io.FileIO:
        """Create the file of this process, if it has none: lines of an earlier one count no more.

        Whoever removes anything does so first: the earlier process may have gone on since its log
        was read.

        Raises:
            StudyStoppedError: it has, or another process has taken the study over.
        """
        self.check()
        self._file = self._file or self._begun()
        return self._file

    def check(self) -> None:
        """Check that no other process has taken the study over, and that its folder is in place.

        A network file system may answer with what it held a minute before; who is heard of is not
        taken over for as long (`holding.py`).

        Raises:
            StudyStoppedError: if not.
        """
        if os.path.lexists(self._next):
            raise self._taken_over(self._next)
        if self._file is not None and _size(self._file.name) < _size(self._file.fileno()):
            raise StudyStoppedError(
                "folder-moved",
                f"{self._file.name} is not the file that this process writes any more: "
                f"{self._folder} was moved, removed or replaced. This process has stopped; resume "
                "the study where its folder is now.",
            )

    def _taken_over(self, path: Path) -> StudyStoppedError:
        """Return the error that stops this process, as another one has created the next file."""
        if b"\n" in (content := path.read_bytes()):
            return taken_over(content, self._folder)
        lock = self._folder / "lock"  # it has written its name there, but no line yet
        holder = holder_in(lock.read_bytes() if lock.exists() else b"")
        known = holder is not None and not holder.is_me
        return StudyStoppedError(
            "about-to-be-taken-over",
            f"{holder if known else 'another process'} is about to take over {self._folder}; this "
            "one has stopped and written nothing since. Nothing is lost: resume the study if that "
            "process has stopped, too.",
        )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _begun(self) -> io.FileIO:
        path = self._next
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("xb", buffering=0)
        except FileExistsError:  # another process was faster
            raise self._taken_over(path) from None
        self._next = self._folder / piece(self._past.last + 2)  # to read on moves `last`
        try:
            sync_folder(path.parent)
            before = path.with_name(self._past.name or path.name)
            if events_since(self._folder, self._past)[0]:  # its process still writes
                raise StudyStoppedError(
                    "still-at-work",
                    f"{_who(before.read_bytes())} was still at work on {self._folder}; both have "
                    "stopped. Nothing is lost: resume the study.",
                )
            self._append(file, _begin())
        except BaseException:
            file.close()
            raise
        return file

    def _append(self, file: io.FileIO, event: Event) -> None:
        """Write all of a line, or nothing of it where the disk is full; apply it."""
        line = _line(self._line, time.time(), event)
        before, rest = file.seek(0, os.SEEK_END), memoryview(line)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(before)
            raise OSError(error.errno, error.strerror, file.name) from error
        self._line += 1
        self.state.apply(event)


@dataclass
class ReadLog:
    """What a log holds.

    state     that its lines amount to
    problems  what is wrong with it; a line that a crash cut short is not
    n_lines   how many lines count, and the number of the next one
    last      number of the last file, -1 if there is none
    name      of the last file, "" if there is none; `size` is where its last line ends, bytes
    """

    state: State = field(default_factory=State)
    problems: list[str] = field(default_factory=list)
    n_lines: int = 0
    last: int = -1
    name: str = ""
    size: int = 0


def piece(number: int) -> str:
    """Return the name of a file of the log, relative to the study folder."""
    return f"{LOG}/{number:06d}.jsonl"


def numbers_in(name: str) -> tuple[int, int] | None:
    """Return the first and last number of a file of the log; None for another name or path.

    >>> numbers_in("logs/events/000007.jsonl"), numbers_in("logs/events/000000-000255.jsonl")
    ((7, 7), (0, 255))
    """
    match = _NAME.fullmatch(name)
    return match and (int(match[1]), int(match[2] or match[1]))


def without_copies(names: Iterable[str]) -> list[str]:
    """Return the names of the files to read of a log, in order: none of those that were joined."""
    found, read, end = ((n, name) for name in names if (n := numbers_in(name))), list[str](), -1
    for (first, last), name in sorted(found, key=lambda one: (one[0][0], -one[0][1])):
        if first > end:
            read.append(name)
            end = last
    return read


def log_files(folder: Path) -> list[Path]:
    """Return the files to read of a log, in order; instead of a damaged joined one its pieces."""
    names = {f"{LOG}/{path.name}" for path in (folder / LOG).glob("[0-9]*.jsonl")}
    joined = [name for name in names if "-" in name]
    for name in joined:
        first, _ = numbers_in(name) or (0, 0)
        if piece(first) in names and not is_whole(folder / name):
            names.remove(name)
    return [folder / name for name in without_copies(names)]


def is_whole(path: Path) -> bool:
    """Return whether a file of joined pieces is as it was written."""
    try:
        return bool(read_sealed_toml(path.read_bytes(), path))
    except DamagedError:
        return False


def joined(pieces: bytes) -> bytes:
    """Return pieces of a log as one file; its checksum is no line of the log, as it has no end."""
    return sealed_toml(pieces.decode(errors="replace")).rstrip("\n").encode()


def taken_over(content: bytes, place: Path | str) -> StudyStoppedError:
    """Return the error that stops a process whose study has the next file; `content` is its."""
    return StudyStoppedError(
        "taken-over",
        f"{_who(content)} has taken over {place}; this one has stopped and written nothing since. "
        "Nothing is lost: leave the study to that process.",
    )


def _who(content: bytes) -> str:
    """Return which process has begun a file of the log."""
    _, _, begin = _read(content.partition(b"\n")[0]) or (0, 0.0, None)
    if isinstance(begin, Began):
        return f"process {begin.pid} of host {begin.host}"
    return "another process"


@uncollected()
def read_log(folder: Path) -> ReadLog:
    """Read the log of a study once."""
    past = ReadLog()
    for _ in _scan(folder, past):
        pass
    return past


def events(folder: Path) -> Iterator[tuple[float, Event]]:
    """Yield the events that count, in order, each after its time in seconds since 1970."""
    yield from _scan(folder, ReadLog())


def events_since(folder: Path, past: ReadLog) -> tuple[list[tuple[float, Event]], ReadLog]:
    """Return the events since `past` was read, with their times, and what is past then.

    That is another object if they are all events of the log: it was mended, or a process was
    superseded whose lines had been read.
    """
    paths = log_files(folder)
    names = [path.name for path in paths]
    known = names.index(past.name) + 1 if past.name in names else 0
    if not known or min(map(_start, paths[known:]), default=math.inf) < past.n_lines:
        past = ReadLog()
    return list(_scan(folder, past)), past


def first_written(folder: Path) -> float | None:
    """Return when the first line of a log was written, s since 1970; None without one.

    Reads the beginning of the first file alone, whose lines nothing checks.
    """
    for path in log_files(folder):
        with path.open("rb") as file:
            if found := _HEAD.search(file.read(_TAIL)):
                return float(found[2])
    return None


def last_written(folder: Path) -> float | None:
    """Return when the last line of a log was written, s since 1970; None without one.

    Reads the end of the last file alone, whose lines nothing checks.
    """
    for path in reversed(log_files(folder)):
        with path.open("rb") as file:
            file.seek(max(0, _size(file.fileno()) - _TAIL))
            times = [
                float(found[2]) for found in map(_HEAD.match, file.read().splitlines()) if found
            ]
        if times:
            return times[-1]
    return None


def mend_log(folder: Path, past: ReadLog) -> ReadLog:
    """Write the sound lines of a damaged log as one file and set the others aside; return it."""
    if not past.problems:
        return past
    Log(folder, past).check()
    kept = itertools.chain([(time.time(), _begin())], events(folder))
    lines = [_line(number, t, event) for number, (t, event) in enumerate(kept)]
    before = sorted((folder / LOG).glob("*.jsonl"))
    write_whole(folder / piece(past.last + 1), b"".join(lines))  # from here on the others are void
    for path in before:
        set_aside(folder, f"{LOG}/{path.name}")
    return read_log(folder)


def _scan(folder: Path, past: ReadLog) -> Iterator[tuple[float, Event]]:
    """Yield the events that count since `past`, each after its time; enter all in `past`."""
    paths = log_files(folder)
    paths = paths[next((i for i, path in enumerate(paths) if path.name == past.name), 0) :]
    ends = itertools.accumulate([math.inf, *map(_start, reversed(paths))], min)
    n_unread = 0
    for path, end in zip(paths, reversed([*ends][:-1]), strict=True):
        past.name, past.size = path.name, past.size if path.name == past.name else 0
        past.last = (numbers_in(path.as_posix()) or (0, 0))[1]
        suspects, late = list[int](), list[int]()
        with path.open("rb") as lines:
            lines.seek(past.size)
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):  # cut short by a crash
                    break
                past.size += len(line)
                read = _read(line)
                if read is not None and read[0] >= end:
                    late.append(number)
                elif read is None or read[0] < past.n_lines:
                    suspects.append(number)
                    n_unread += 1
                else:
                    at, t, event = read
                    if at > past.n_lines and not n_unread:
                        missing = f"lines are missing before line {number} of {path.name}"
                        past.problems.append(missing)
                    past.n_lines, n_unread = at + 1, 0
                    past.state.apply(event)
                    yield t, event
        if suspects:
            past.problems.append(f"{_of(suspects, path)} cannot be used: not as written")
        if late:
            past.problems.append(f"{_of(late, path)}: of a process that was superseded")


def _size(file: str | int) -> int:
    try:
        return os.stat(file).st_size
    except FileNotFoundError:
        return -1


def _begin() -> Began:
    return Began(pid=os.getpid(), host=socket.gethostname(), boot_id=boot_id())


def _of(numbers: list[int], path: Path) -> str:
    which = ", ".join(map(str, numbers[:5])) + (" ..." if len(numbers) > 5 else "")
    return f"{'lines' if len(numbers) > 1 else 'line'} {which} of {path.name}"


def _start(path: Path) -> float:
    """Return how many lines of the log count before a file: none of a later number does."""
    with path.open("rb") as lines:
        for index, line in enumerate(lines):
            if read := _read(line):
                return read[0] - index
    return math.inf


def _line(number: int, t: float, event: Event) -> bytes:
    head = f'{{"line": {number}, "t": {t:.3f}, '
    return seal_object(head + event.model_dump_json()[1:]).encode() + b"\n"


def _read(line: bytes) -> tuple[int, float, Event] | None:
    head = _HEAD.match(line)
    if head is None:
        return None
    try:
        event = EVENT.validate_json(b"{" + unsealed_object(line, _PLACE)[head.end() :])
    except (DamagedError, ValueError, RecursionError):
        return None
    return int(head[1]), float(head[2]), event
