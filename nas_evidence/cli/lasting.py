"""Standard output that may go away: a closed pipe, a full disk, a terminal that is gone.

What a verb computes, stores and writes does not depend on who reads what it prints. So output that
cannot be written is dropped, and its last lines go to standard error in the end.
"""

import io
import os
import sys
from collections import deque
from typing import Any

#: Verbs that go on without their output; the others only print.
LASTING = ("search", "resume", "refit", "report", "export", "predict", "repair")
#: As many lines as a search says in the end.
_KEPT = 12


class Lasting(io.FileIO):
    """A stream of this process that drops what cannot be written, and keeps the end of it."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self.gone: OSError | None = None
        self._lost = b""

    def write(self, data: Any, /) -> int:
        """Write; never fails."""
        if self.gone is None:
            try:
                return super().write(data) or 0
            except OSError as error:
                self.gone = error
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fileno())  # also for libraries and child processes
                os.close(nowhere)
        self._lost = (self._lost + bytes(data))[-10_000:]
        return len(data)

    def last_lines(self) -> list[str]:
        """Return the last lines that were dropped."""
        return [*deque(self._lost.decode(errors="replace").splitlines(), maxlen=_KEPT)]


def last(stream: object, number: int) -> Lasting | None:
    """Put a lasting stream in place of `sys.stdout` or `sys.stderr`; None if it is no file."""
    try:
        if not isinstance(stream, io.TextIOWrapper) or stream.fileno() != number:
            return None
        stream.flush()
    except (OSError, ValueError):  # it is one of a test, or closed
        return None
    lasting = Lasting(number)
    text = io.TextIOWrapper(
        io.BufferedWriter(lasting),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    setattr(sys, "stdout" if number == 1 else "stderr", text)
    return lasting
