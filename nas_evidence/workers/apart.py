"""A function called in a process of its own, which may use a GPU and ends with its answer.

It is a program of its own and no fork, so a GPU that the caller uses is none of its business, and
what the caller has done to torch does not count there.
"""

import logging
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from nas_evidence.plumbing.own_modules import Code, code_in_use
from nas_evidence.spec.registry import import_outside
from nas_evidence.workers.fork_server import die_with, interpreter

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
