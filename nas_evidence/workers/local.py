"""Trials in plain processes of this machine: small studies need no cluster, which takes seconds.

A worker is a Python process with one end of a pipe. It ends when the pipe is closed, when this
process dies, or when it is killed; a call that raises ends it too, and the pool replaces it.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from nas_evidence.data import ArrayData
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.packing import Node, Slot
from nas_evidence.workers.pool import Pool, Pooled
from nas_evidence.workers.pooled import PooledExecutor, WorkerLostError
from nas_evidence.workers.process import Answer, MakeWorker, WorkerProcess

_LOG = logging.getLogger(__name__)
#: Seconds between two looks of a worker whether its driver still lives.
_LOOK_EVERY = 1.0


@dataclass(frozen=True)
class _Raised:
    """What a call of a worker raised, in one line."""

    why: str


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]
    pipe: Connection


class LocalExecutor(PooledExecutor):
    """A pool of processes on the CPUs of this machine.

    Args:
        arrays: The data set; each worker gets a copy.
        resources: The study's `[resources]`; no GPU is used.
        logs: Folder for the logs of the workers.
        make_worker: Has the signature of `Worker`, the default; must be importable.
    """

    def __init__(
        self,
        arrays: ArrayData,
        resources: ResourceSpec,
        logs: Path,
        *,
        make_worker: MakeWorker | None = None,
    ) -> None:
        super().__init__()
        self._logs = logs
        resources = resources.model_copy(update={"gpus": 0})
        how = {"share": 0.0, "logs": logs, "make_worker": make_worker}
        self._given = (arrays, resources, how)
        here = Node("this machine", cpus=resources.workers * resources.cpus, gpus=0)
        self._pool = Pool(self, resources, lambda launch: 0.0, 0.0, nodes=[here])
        self._refill()

    def begin(self, slot: Slot) -> Pooled:
        """Start a process; its first answer means that it has imported torch."""
        ours, theirs = Pipe()
        arguments = [sys.executable, "-P", "-c", f"{_SERVE}({theirs.fileno()}, {os.getpid()})"]
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / "workers.log").open("ab") as log, theirs:
            process = subprocess.Popen(
                arguments,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the driver's to handle
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": str(slot.cpus),
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
        with suppress(OSError):  # it has died already: the answer says so
            ours.send(self._given)
        return self._started(Pooled(_Child(process, ours), slot))

    def end(self, worker: Pooled) -> None:
        """Kill a process and wait for its end."""
        child: _Child = worker.actor
        child.process.kill()
        child.process.wait()
        child.pipe.close()

    def close(self) -> None:
        """Stop the workers; running trials keep their checkpoints."""
        self._pool.close()

    def _ask(self, worker: Pooled, method: str | None, *arguments: Any) -> Any:
        with suppress(OSError):
            worker.actor.pipe.send((method, arguments))
        return worker.actor.pipe

    def _answered(self, workers: Sequence[Pooled], timeout: float) -> list[Pooled]:
        ready = wait([worker.call for worker in workers], timeout)
        return [worker for worker in workers if worker.call in ready]

    def _answer(self, worker: Pooled) -> Answer:
        try:
            answer: Answer | _Raised = worker.call.recv()
        except (EOFError, OSError):
            raise WorkerLostError("the worker process crashed") from None
        if isinstance(answer, _Raised):
            raise WorkerLostError(answer.why)
        return answer


_SERVE = f"from {__name__} import serve; serve"


def serve(handle: int, driver: int) -> None:
    """Be a worker process: answer the calls of a pipe until it is closed.

    Args:
        handle: of the pipe.
        driver: process at the other end.
    """
    threading.Thread(target=_die_with, args=[driver], daemon=True).start()
    with Connection(handle) as pipe, suppress(BrokenPipeError, ConnectionResetError):
        try:
            arrays, resources, how = pipe.recv()
            process = WorkerProcess(arrays, resources, gpu=None, **how)
            while True:
                method, arguments = pipe.recv()
                pipe.send(process.call(method, *arguments))
        except EOFError:
            return  # no more calls
        except Exception as error:
            _LOG.exception("call_failed")
            is_plain = isinstance(error, OSError)
            pipe.send(_Raised(str(error) if is_plain else f"{type(error).__name__}: {error}"))


def _die_with(driver: int) -> None:
    """End this process when its driver is gone, also in the middle of a slice."""
    while os.getppid() == driver:
        time.sleep(_LOOK_EVERY)
    os._exit(1)
