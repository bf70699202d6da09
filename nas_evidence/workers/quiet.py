"""Start and stop a cluster without its output on the screen, uninterrupted by Ctrl-C."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: One entry for each block of `stderr_to`; the first is a copy of the true standard error.
_DIVERTED: list[int] = []
_LOCK = threading.Lock()


@contextlib.contextmanager
def last_words(line: str) -> Iterator[None]:
    """Print a line if this process ends in the block without a word, as Ray's libraries end it.

    Another process waits for the end of a pipe, and prints on this one's standard error.
    """
    watch = ["sh", "-c", 'read -r over || printf "%s\\n" "$1" >&2', "sh", line]
    with subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True) as watcher:
        assert watcher.stdin is not None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                watcher.stdin.write(b"over\n")
                watcher.stdin.close()


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, lest half a cluster outlive this process.

    Also restores the handlers that Ray replaces; Ray's SIGTERM handler aborts with a stack trace.
    """
    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield
        return
    before: dict[int, Any] = {n: signal.getsignal(n) for n in _DEFERRED}
    held: list[tuple[int, Any]] = []
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, lambda *received: held.append(received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        number, frame = held[0]
        before[number](number, frame)


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send what Ray's processes print on standard error to a file during the block.

    Child processes started inside keep writing to that file, as intended. If blocks of several
    threads overlap, the file of the first one gets the lines of all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK:
        if not _DIVERTED:
            sys.stderr.flush()
            _DIVERTED.append(os.dup(2))
            with path.open("ab") as file:
                os.dup2(file.fileno(), 2)
        else:
            _DIVERTED.append(-1)
    try:
        yield
    finally:
        with _LOCK:
            first = _DIVERTED[0]
            _DIVERTED.pop()
            if not _DIVERTED:
                os.dup2(first, 2)
                os.close(first)
