"""The journal of a study: what was asked, launched, reported and told, in order.

One JSON object per line in `logs/events.jsonl`, appended only by the driver:

    {"t": 1764000000.0, "event": "ask", "number": 3, "architecture": "mlp(width=8)"}

It records an asynchronous search and the scores of trials at the rungs. A line cut short by a
crash is terminated and skipped.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

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


class Journal:
    """Appends events; each is in the file when `write` returns."""

    def __init__(self, folder: Path) -> None:
        path = journal_path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+", buffering=0)
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def write(self, event: str, *, durable: bool = False, **facts: object) -> None:
        """Append one event; a `durable` one survives a power failure."""
        line = json.dumps({"t": round(time.time(), 3), "event": event, **facts})
        self._file.write(line.encode() + b"\n")
        if durable:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def journal_path(folder: Path) -> Path:
    """Return the path of a study's journal."""
    return folder / "logs" / "events.jsonl"


def broken_lines(folder: Path) -> int:
    """Return how many lines of the journal cannot be used; one cut short at the end is none."""
    path = journal_path(folder)
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1].splitlines()
    return sum(bool(line.strip()) for line in whole) - len(usable_lines(folder))


def usable_lines(folder: Path) -> list[bytes]:
    """Return the lines of the journal that can be used."""
    path = journal_path(folder)
    content = path.read_bytes() if path.exists() else b""
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    return [line for line in lines if any(True for _ in _events([line]))]


def read_journal(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in order; skip lines that are not JSON objects or lack a key they need."""
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
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and _is_whole(event):
            yield event


def _is_whole(event: dict[str, Any]) -> bool:
    """Return whether an event has the keys that its readers use, of their types."""
    needed = _NEEDED.get(event["event"], {}) if isinstance(event.get("event"), str) else None
    return needed is not None and all(
        key in event and isinstance(event[key], kinds) and not isinstance(event[key], bool)
        for key, kinds in {"t": (int, float), **needed}.items()
    )
