"""The journal of a study: what was asked, launched, reported and told, in order.

One JSON object per line in `logs/events.jsonl`, appended only by the driver:

    {"t": 1764000000.0, "event": "ask", "number": 3, "architecture": "mlp(width=8)",
     "after": "61f0...", "blake2b": "9c2e..."}

`blake2b` is the checksum of the line, `after` that of the line before it. A line that does not
match its own is a suspect: nobody reads it. Where a line follows none that is there, lines are
missing. A line cut short by a crash is terminated by the next driver and followed by one that
names the line before it: that is a crash, not damage.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.seals import DamagedError, read_sealed_json, sealed_json
from nas_evidence.storage.set_aside import set_aside

#: The journal in a study folder.
JOURNAL = "logs/events.jsonl"
_NUMBER = (int,)
#: The keys that the readers of an event use, and their types.
_NEEDED: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "ask": {"number": _NUMBER},
    "tell": {"number": _NUMBER},
    "end": {"trial_id": _NUMBER},
    "lost": {"trial_id": _NUMBER},
    "retry": {"trial_id": _NUMBER},
    "race": {"trial_ids": (list,), "points": (list,)},
    "rung": {"trial_id": _NUMBER, "epoch": _NUMBER, "point": (list, type(None))},
    "judged": {"trial_id": _NUMBER, "epoch": _NUMBER, "reason": (str, type(None))},
}
#: The key that names the line before, and how much of its checksum that is; where it begins.
_AFTER, _DIGITS, _TAIL = "after", 16, 34


class Journal:
    """Appends events; each is in the file when `write` returns."""

    def __init__(self, folder: Path) -> None:
        path = journal_path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+", buffering=0)
        self._file.seek(0)
        content = self._file.read()
        if content and not content.endswith(b"\n"):
            self._file.write(b"\n")
        sound = (name for line in reversed(content.splitlines()) if (name := _name_of(line)))
        self._last = next(sound, "")

    def write(self, event: str, *, durable: bool = False, **facts: object) -> None:
        """Append one event; a `durable` one survives a power failure."""
        line = _line({"t": round(time.time(), 3), "event": event, **facts}, self._last)
        self._append(line)
        self._last = _name_of(line)
        if durable:
            os.fsync(self._file.fileno())

    def _append(self, line: bytes) -> None:
        """Write all of a line, or nothing of it where the disk is full."""
        before, rest = self._file.seek(0, os.SEEK_END), memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(before)
            raise OSError(error.errno, error.strerror, self._file.name) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class _Read:
    """A line as it was read.

    event    None if the line does not match its checksum or lacks a key that its readers use
    name     of the line, for the next one to refer to; "" if it has no event
    after    name of the line before it
    """

    event: dict[str, Any] | None
    name: str = ""
    after: str = ""


def journal_path(folder: Path) -> Path:
    """Return the path of a study's journal."""
    return folder / JOURNAL


def journal_problems(folder: Path) -> list[str]:
    """Return what is wrong with the journal; a line that a crash cut short is not."""
    path = journal_path(folder)
    content = path.read_bytes() if path.exists() else b""
    problems, last, suspects, whole = [], "", list[int](), list[int]()
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        read = _read(line)
        if read.event is None:
            suspects += [number] if line.strip() and line.endswith(b"\n") else []
            whole += [number] if line.endswith(b'"}\n') else []
            continue
        if read.after != last:
            lost = f"lines are missing before line {number}"
            problems.append(_not_as_written(suspects) if suspects else lost)
        elif whole:
            problems.append(_not_as_written(whole))
        suspects, whole, last = [], [], read.name
    if suspects and (len(suspects) > 1 or content.rstrip().endswith(b'"}')):
        problems.append(_not_as_written(suspects))
    return problems


def _not_as_written(numbers: list[int]) -> str:
    which = "lines" if len(numbers) > 1 else "line"
    return f"{which} {', '.join(map(str, numbers))} cannot be used: not as written"


def mend_journal(folder: Path) -> list[str]:
    """Set a damaged journal aside and write one of its sound lines; return what was wrong."""
    problems = journal_problems(folder)
    if problems:
        events = list(read_journal(folder))
        set_aside(folder, JOURNAL)
        lines, last = list[bytes](), ""
        for event in events:
            lines.append(_line(event, last))
            last = _name_of(lines[-1])
        write_whole(journal_path(folder), b"".join(lines))
    return problems


def read_journal(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of the lines that can be used, in order."""
    path = journal_path(folder)
    if path.exists():
        with path.open("rb") as file:
            yield from _events(file)


def events_since(folder: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """Return the events that were written from a byte of the journal on, and where they end."""
    path = journal_path(folder)
    if not path.exists():
        return [], start
    with path.open("rb") as file:
        file.seek(start)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    return list(_events(whole.splitlines())), start + len(whole)


def _events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    return (read.event for line in lines if (read := _read(line)).event is not None)


def _line(event: Mapping[str, Any], last: str) -> bytes:
    return sealed_json({**event, _AFTER: last}).encode() + b"\n"


def _name_of(line: bytes) -> str:
    return _read(line).name


def _read(line: bytes) -> _Read:
    try:
        event = read_sealed_json(line, Path(JOURNAL))
    except (DamagedError, ValueError, RecursionError):
        return _Read(None)
    name = line.rstrip()[-_TAIL:][:_DIGITS].decode()
    after = event.pop(_AFTER, None)
    return (
        _Read(event, name, after) if isinstance(after, str) and _is_whole(event) else _Read(None)
    )


def _is_whole(event: dict[str, Any]) -> bool:
    """Return whether an event has the keys that its readers use, of their types."""
    needed = _NEEDED.get(event["event"], {}) if isinstance(event.get("event"), str) else None
    return needed is not None and all(
        key in event and isinstance(event[key], kinds) and not isinstance(event[key], bool)
        for key, kinds in {"t": (int, float), **needed}.items()
    )
