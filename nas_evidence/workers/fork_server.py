"""Processes that are forks of one that has imported torch: each starts in milliseconds.

The driver sends the server numbers: -1, with an end of a pipe, forks; -2, with a file, says where
to print; 2n asks for the process id of the n-th fork, and 2n + 1 ends it. The server and its forks
are a session of their own, which ends when the driver is gone.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

_NUMBER = struct.Struct("!q")
_FORK, _PRINT = -1, -2
#: Seconds between two looks whether the driver or the server still lives.
_LOOK_EVERY = 1.0


@dataclass
class ForkServer:
    """The driver's side; the server starts when it is first needed, and again if it has died.

    logs     folder for what the server and its forks print; None until the study is known
    threads  of each fork
    """

    logs: Path | None
    threads: int = 1
    _server: "_Server | None" = field(default=None, init=False)

    @property
    def runs(self) -> bool:
        """Whether the server has started, and lives."""
        return self._server is not None and self._server.process.poll() is None

    def start(self) -> "_Server":
        """Start the server unless it runs; it then imports torch."""
        if self._server is None or not self.runs:
            self.close()
            self._server = _start(self.logs, self.threads)
        return self._server

    def settle(self, logs: Path, threads: int) -> None:
        """Give the logs and the threads to a server that was started ahead of them.

        A server that has another environment than one that would start now is ended.
        """
        self.logs, self.threads = logs, threads
        if self._server is None:
            return
        if self._server.environment != _environment(threads):
            self.close()
            return
        # An OSError: it has just died, and `begin` starts another.
        with _printed(logs) as stream, suppress(OSError):
            told = [_NUMBER.pack(_PRINT)], [stream.fileno()]
            socket.send_fds(self._server.control, *told)

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
        """Kill the server and its forks."""
        if self._server is not None:
            process = self._server.process
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            self._server.control.close()
            process.wait()
            self._server = None


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    control: socket.socket
    environment: Mapping[str, str]
    n_forks: int = 0


@dataclass(frozen=True)
class Fork:
    """A process of the server; `pipe` leads to it."""

    server: _Server
    number: int
    pipe: Connection

    @property
    def pid(self) -> int:
        """The process id, once it has been forked."""
        self.server.control.sendall(_NUMBER.pack(2 * self.number))
        return _received(self.server.control)[0]

    def end(self) -> None:
        """Kill it; if the server has died, its forks follow it."""
        with suppress(OSError):
            self.server.control.sendall(_NUMBER.pack(2 * self.number + 1))
        self.pipe.close()


def _start(logs: Path | None, threads: int) -> _Server:
    control, theirs = socket.socketpair()
    environment = _environment(threads)
    with theirs:
        process = interpreter(__name__, theirs.fileno(), logs, environment)
    return _Server(process, control, environment)


def _environment(threads: int | None = None) -> dict[str, str]:
    """Return the environment of an interpreter that starts now: that of this process.

    It imports from where this process does, also from what was added to its path.
    """
    own = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **own}


def _printed(logs: Path | None) -> BinaryIO:
    """Open the file for what is printed; nothing is kept without a folder."""
    if logs is None:
        return open(os.devnull, "ab")
    logs.mkdir(parents=True, exist_ok=True)
    return (logs / "workers.log").open("ab")


def interpreter(
    module: str, handle: int, logs: Path | None, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a fresh interpreter that calls `run` of a module.

    Args:
        module: by its name.
        handle: of the end of a pipe or a socket that `run` gets.
        logs: folder for what the process prints; None for nothing.
        environment: by default that of this process.
    """
    with _printed(logs) as stream:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import run; run({handle})"],
            pass_fds=[handle],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,  # Ctrl-C is the caller's to handle
            env=_environment() if environment is None else environment,
        )


def run(handle: int) -> None:
    """Be the server, until the other end of the socket is closed.

    Args:
        handle: of the socket.
    """
    with _ended_with_driver(handle):
        # Torch, and what the data of a table bring: each fork would import it again.
        from nas_evidence.data import table_columns  # noqa: F401
        from nas_evidence.workers import worker  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # so that a collection in a fork copies no page of what was imported
    pids, alive = list[int](), set[int]()
    with socket.socket(fileno=handle) as control, suppress(OSError):
        while True:
            asked, handles = _received(control)
            if asked == _FORK:
                pids.append(_forked(handles[0], control))
                alive.add(pids[-1])
            elif asked == _PRINT:
                for stream in (1, 2):
                    os.dup2(handles[0], stream)
                os.close(handles[0])
            elif asked % 2 == 0:
                control.sendall(_NUMBER.pack(pids[asked // 2]))
            elif (pid := pids[asked // 2]) in alive:
                alive.remove(pid)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    os.killpg(0, signal.SIGKILL)


@contextmanager
def _ended_with_driver(handle: int) -> Iterator[None]:
    """End this process when the driver goes in the block, which takes long on a busy machine.

    By a timer: a thread must not be there when the server forks.
    """
    driver = select.poll()
    driver.register(handle, 0)  # a closed end is told without being asked for

    def look(signum: int, frame: object) -> None:
        if driver.poll(0):
            os.killpg(0, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_EVERY, _LOOK_EVERY)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


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
        Thread(target=die_with, args=[server], daemon=True).start()
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


def die_with(parent: int) -> None:
    """End this process when its parent is gone, also in the middle of a computation."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY)
    os._exit(1)
