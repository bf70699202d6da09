"""Processes that are forks of one that has imported torch: each starts in milliseconds.

The driver sends the server numbers: -1, with an end of a pipe, forks; 2n asks for the process id
of the n-th fork, and 2n + 1 ends it first. The server ends with all its forks when the driver is
gone.
"""

import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Any

_NUMBER = struct.Struct("!q")
_FORK = -1
#: Seconds between two looks of a fork whether its server still lives.
_LOOK_EVERY = 1.0


@dataclass
class ForkServer:
    """The driver's side; the server starts when it is first needed, and again if it has died.

    logs     folder for what the server and its forks print
    threads  of each fork
    """

    logs: Path
    threads: int = 1
    _server: "_Server | None" = field(default=None, init=False)

    def start(self) -> "_Server":
        """Start the server unless it runs; it then imports torch."""
        if self._server is None or self._server.process.poll() is not None:
            self.close()
            self._server = _start(self.logs, self.threads)
        return self._server

    def begin(self, function: Callable[..., None], *arguments: Any) -> "Fork":
        """Fork a process that calls a function with its end of a pipe and the arguments."""
        server = self.start()
        ours, theirs = Pipe()
        with suppress(OSError), theirs:  # it has just died: the pipe says so
            socket.send_fds(server.control, [_NUMBER.pack(_FORK)], [theirs.fileno()])
        with suppress(OSError):
            ours.send((function, arguments))
        server.n_forks += 1
        return Fork(server, server.n_forks - 1, ours)

    def close(self) -> None:
        """Kill the server and its forks, and wait for their end."""
        if self._server is not None:
            with suppress(OSError):
                if not self._server.is_ready(0):
                    self._server.process.kill()
            self._server.control.close()
            self._server.process.wait()
            self._server = None


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    control: socket.socket
    n_forks: int = 0
    ready: bool = False

    def is_ready(self, timeout: float | None) -> bool:
        """Return whether it has imported torch, after so many seconds at most."""
        if not self.ready and select.select([self.control], [], [], timeout)[0]:
            _received(self.control)
            self.ready = True
        return self.ready

    def asked(self, number: int) -> int:
        self.is_ready(None)
        self.control.sendall(_NUMBER.pack(number))
        return _received(self.control)[0]


@dataclass(frozen=True)
class Fork:
    """A process of the server; `pipe` leads to it."""

    server: _Server
    number: int
    pipe: Connection

    @property
    def pid(self) -> int:
        """The process id, once it has been forked."""
        return self.server.asked(2 * self.number)

    def end(self) -> None:
        """Kill it and wait for its end; if the server has died, its forks follow it."""
        with suppress(OSError, ValueError):  # the second if the server has been closed
            if self.server.is_ready(0):
                self.server.asked(2 * self.number + 1)
            else:
                self.server.process.kill()
                self.server.process.wait()
        self.pipe.close()


def _start(logs: Path, threads: int) -> _Server:
    control, theirs = socket.socketpair()
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "workers.log").open("ab") as stream, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import run; run({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,  # Ctrl-C is the driver's to handle
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )
    return _Server(process, control)


def run(handle: int) -> None:
    """Be the server, until the other end of the socket is closed.

    Args:
        handle: of the socket.
    """
    from nas_evidence.workers import worker  # noqa: F401  imports torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # so that a collection in a fork copies no page of what was imported
    pids, alive = list[int](), set[int]()
    with socket.socket(fileno=handle) as control, suppress(OSError):
        control.sendall(_NUMBER.pack(0))
        while True:
            asked, handles = _received(control)
            if asked == _FORK:
                pids.append(_forked(handles[0], control))
                alive.add(pids[-1])
                continue
            pid = pids[asked // 2]
            if asked % 2 and pid in alive:
                alive.remove(pid)
                _end(pid)
            control.sendall(_NUMBER.pack(pid))
    for pid in alive:
        _end(pid)
    os._exit(0)  # collecting what torch has made would take a second


def _received(control: socket.socket) -> tuple[int, list[int]]:
    message, handles, _, _ = socket.recv_fds(control, _NUMBER.size, 1)
    if len(message) < _NUMBER.size:
        raise ConnectionResetError("the other end is closed")
    return _NUMBER.unpack(message)[0], handles


def _forked(handle: int, control: socket.socket) -> int:
    server = os.getpid()
    if pid := os.fork():
        os.close(handle)
        return pid
    try:
        control.close()
        Thread(target=_die_with, args=[server], daemon=True).start()
        with Connection(handle) as pipe:
            function, arguments = pipe.recv()
            function(pipe, *arguments)
    except EOFError:
        pass  # the driver needs it no more
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # what the server would do at its end is not this process's to do


def _end(pid: int) -> None:
    with suppress(OSError):  # it has ended
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _die_with(server: int) -> None:
    """End this process when its server is gone, also in the middle of a computation."""
    while os.getppid() == server:
        time.sleep(_LOOK_EVERY)
    os._exit(1)
