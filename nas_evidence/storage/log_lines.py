"""What a study has logged as lines in order of time: facts, driver and workers merged.

    2026-11-21 09:00:00 launch trial_id=3 attempt=1

A line that does not begin with a time, as in a traceback, belongs to the line above it.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

from nas_evidence.storage.log import events

_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(,\d+)? ")


def log_lines(folder: Path, trial_id: int | None = None) -> list[str]:
    """Return the lines of a study, or of one of its trials."""
    entries = sorted([*_facts(folder), *_files(folder)], key=lambda entry: entry[0])
    if trial_id is None:
        return [line for _, line in entries]
    mine = re.compile(rf"\btrial_id={trial_id}\b")
    return [line for _, line in entries if mine.search(line)]


def fact_lines(folder: Path) -> list[str]:
    """Return the lines of the facts alone; new lines only ever appear at the end."""
    return [line for _, line in _facts(folder)]


def _facts(folder: Path) -> Iterator[tuple[str, str]]:
    for seconds, event in events(folder):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        facts = " ".join(f"{key}={value}" for key, value in event.facts().items())
        yield f"{when},{round(seconds % 1 * 1000):03d}", f"{when} {event.event} {facts}".rstrip()


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the entries of the log files: the time, and all lines up to the next entry."""
    paths = [folder / "logs" / "driver.log", *(folder / "logs").glob("worker-*.log")]
    for path in paths:
        if not path.is_file():
            continue
        when, lines = "", list[str]()
        for line in path.read_text(errors="replace").splitlines():
            if start := _TIME.match(line):
                if lines:
                    yield when, "\n".join(lines)
                when, lines = start[1] + (start[2] or ""), [line]
            else:
                lines.append(line)
        if lines:
            yield when, "\n".join(lines)
