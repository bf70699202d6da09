"""What is computed in another process: by a program of its own, or by a fork that has torch.

`called_apart` starts a program of its own, which may use a GPU and ends with its answer. It is no
fork, so a GPU that the caller uses is none of its business, and what the caller has done to torch
does not count there. `ForkedObject` is a fork of the server of plain processes: it starts in
milliseconds, and the caller need not import torch.
"""

import logging
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from nas_evidence.plumbing.own_modules import Code, code_in_use
from nas_evidence.spec.registry import import_outside
from nas_evidence.workers.fork_server import Fork, ForkServer, die_with, interpreter
from nas_evidence.workers.process import log_to

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


def called_apart(
    function: Callable[..., T], *arguments: Any, logs: Path, outside: Sequence[str] = ()
) -> T:
    """Return what a function returns in a process of its own, or raise what it raises there.

    Args:
        function: importable by its name; its arguments, result and errors can be pickled.
        arguments: of it.
        logs: folder for what the process prints.
        outside: references `module:NAME` of families from outside the package, imported first
            from the code in use.

    Raises:
        RuntimeError: if the process dies, for example for want of memory.
    """
    ours, theirs = Pipe()
    with theirs:
        process = interpreter(__name__, theirs.fileno(), logs)
    try:
        with ours:
            # The code comes first: what follows may hold objects of its classes.
            ours.send((code_in_use() or Code(), tuple(outside), function, arguments))
            found, error = ours.recv()
    except (EOFError, OSError):
        raise RuntimeError(
            f"the process of {function.__name__} ended early; {logs}/workers.log may say why"
        ) from None
    finally:
        process.kill()
        process.wait()
    if error is not None:
        raise error
    return found  # type: ignore[no-any-return]


def run(handle: int) -> None:
    """Be that process: answer with what the function returns or raises, of which one is None.

    Args:
        handle: of the pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=die_with, args=[os.getppid()], daemon=True).start()
    with Connection(handle) as pipe:
        code, outside, function, arguments = pipe.recv()
        try:
            code.use()
            import_outside(outside)
            found = function(*arguments)
        except Exception as error:
            _LOG.exception("call_failed")
            pipe.send((None, error))
        else:
            pipe.send((found, None))


class LostForkError(RuntimeError):
    """The process that should compute has ended, for example for want of memory."""


class ForkedObject:
    """An object in a fork of a server, whose methods are called from here.

    The fork begins with the first call and lives until `close`, so what the object keeps between
    calls stays.

    Args:
        forks: the server, which has imported torch.
        make: makes the object there; importable by its name.
        arguments: of `make`. They can be pickled, as all that goes to methods and comes back.
    """

    def __init__(self, forks: ForkServer, make: Callable[..., Any], *arguments: Any) -> None:
        self._forks, self._given = forks, (make, arguments)
        self._fork: Fork | None = None

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return what a method returns there, or raise what it raises; warn here of what it warns.

        Raises:
            LostForkError: if the process ends before it answers.
        """
        if self._fork is None:
            self._fork = self._forks.begin(_answer_calls, self._forks.logs, *self._given)
        try:
            self._fork.pipe.send((method, arguments, options))
            found, error, warned = self._fork.pipe.recv()
        except (EOFError, OSError):
            raise LostForkError(f"the process of {method} ended early") from None
        for text, category in warned:
            warnings.warn(text, category, stacklevel=3)
        if error is not None:
            raise error
        return found

    def close(self) -> None:
        """End the process, if it has begun."""
        if self._fork is not None:
            self._fork.end()
            self._fork = None


def _answer_calls(
    pipe: Connection, logs: Path | None, make: Callable[..., Any], given: Any
) -> None:
    """Make an object and answer calls of its methods until the pipe is closed."""
    if logs is not None:
        log_to(logs)
    made = make(*given)
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            method, arguments, options = pipe.recv()
            with warnings.catch_warnings(record=True) as warned:
                try:
                    found, error = getattr(made, method)(*arguments, **options), None
                except Exception as raised:
                    _LOG.exception("call_failed")
                    found, error = None, raised
            pipe.send((found, error, [(str(one.message), one.category) for one in warned]))
