"""A function called in a process of its own, which may use a GPU and ends with its answer.

It is a fork of a fresh server, as the workers on one machine are (`fork_server.py`), so no process
is forked that has touched a GPU, and what the caller has done to torch does not count there.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from nas_evidence.spec.registry import import_outside
from nas_evidence.workers.fork_server import ForkServer

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
        outside: references `module:NAME` of families from outside the package, imported first.

    Raises:
        RuntimeError: if the process dies, for example for want of memory.
    """
    with closing(ForkServer(logs.resolve())) as forks:
        fork = forks.begin(_answer, function, arguments, tuple(outside))
        try:
            found, error = fork.pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError(
                f"the process of {function.__name__} ended early; {logs}/workers.log may say why"
            ) from None
    if error is not None:
        raise error
    return found  # type: ignore[no-any-return]


def _answer(
    pipe: Connection, function: Callable[..., Any], given: Sequence[Any], outside: Sequence[str]
) -> None:
    """Answer with what a function returns or raises, of which one is None."""
    try:
        import_outside(outside)
        found = function(*given)
    except Exception as error:
        _LOG.exception("call_failed")
        pipe.send((None, error))
    else:
        pipe.send((found, None))
