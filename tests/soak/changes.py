"""The changes of files in a folder, counted; a process is ended at one of them."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
#: Folder, number of the change and signal; empty where nothing is to end.
_ENDING: list[tuple[str, int, int]] = []
_COUNT = [0]


@contextlib.contextmanager
def ending_at(folder: Path, at: int, signal_number: int) -> Iterator[None]:
    """End this process just before its n-th change of a file below a folder in the block."""
    _watched()
    _ENDING[:] = [(str(folder), at, signal_number)]
    _COUNT[:] = [0]
    try:
        yield
    finally:
        _ENDING.clear()


@functools.cache
def _watched() -> None:
    sys.addaudithook(_watch)  # which cannot be removed


def _watch(event: str, facts: tuple[Any, ...]) -> None:
    if not _ENDING or not (event in _CHANGES or (event == "open" and facts[2] & _WRITES)):
        return
    folder, at, number = _ENDING[0]
    if str(facts[0]).startswith(folder):
        _COUNT[0] += 1
        if _COUNT[0] == at:
            os.kill(os.getpid(), number)
