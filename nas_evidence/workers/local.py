"""Trials in plain processes of this machine: small studies need no cluster, which takes seconds.

A worker is a fork of one process that has imported torch, with one end of a pipe. It ends when the
pipe is closed, when this process dies, or when it is killed; a call that raises ends it too, and
the pool replaces it.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from nas_evidence.data import ArrayData
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.fork_server import ForkServer
from nas_evidence.workers.packing import Node, Slot
from nas_evidence.workers.pool import Pool, Seat
from nas_evidence.workers.pooled import PooledExecutor, WorkerLostError
from nas_evidence.workers.process import Answer, MakeWorker, WorkerProcess

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Raised:
    """What a call of a worker raised, in one line."""

    why: str


class LocalExecutor(PooledExecutor):
    """A pool of processes on the CPUs of this machine.

    Args:
        arrays: The data set; each worker gets a copy.
        resources: The study's `[resources]`; no GPU is used.
        logs: Folder for the logs of the workers.
        make_worker: Has the signature of `Worker`, the default; must be importable.
        forks: What forks the workers, and is the caller's to close; by default one of its own.
    """

    def __init__(
        self,
        arrays: ArrayData,
        resources: ResourceSpec,
        logs: Path,
        *,
        make_worker: MakeWorker | None = None,
        forks: ForkServer | None = None,
    ) -> None:
        super().__init__()
        self._forks = ForkServer(logs, resources.cpus) if forks is None else forks
        self._owns_forks = forks is None
        resources = resources.model_copy(update={"gpus": 0})
        how = {"share": 0.0, "logs": logs, "make_worker": make_worker}
        self._given = (arrays, resources, how)
        here = Node("this machine", cpus=resources.workers * resources.cpus, gpus=0)
        self._pool = Pool(self, resources, lambda launch: 0.0, 0.0, nodes=[here])
        self._refill()

    def begin(self, slot: Slot) -> Seat:
        """Fork a worker; its first answer means that torch is imported and the data are there."""
        fork = self._forks.begin(_serve, *self._given)
        return self._started(Seat(fork, slot))

    def end(self, worker: Seat) -> None:
        """Kill a process and wait for its end."""
        worker.actor.end()

    def close(self) -> None:
        """Stop the workers; running trials keep their checkpoints."""
        if self._owns_forks:
            self._forks.close()
        self._pool.close()

    def _ask(self, worker: Seat, method: str | None, *arguments: Any) -> Any:
        with suppress(OSError):
            worker.actor.pipe.send((method, arguments))
        return worker.actor.pipe

    def _answered(self, workers: Sequence[Seat], timeout: float) -> list[Seat]:
        ready = wait([worker.call for worker in workers], timeout)
        return [worker for worker in workers if worker.call in ready]

    def _answer(self, worker: Seat) -> Answer:
        try:
            answer: Answer | _Raised = worker.call.recv()
        except (EOFError, OSError):
            raise WorkerLostError("the worker process crashed") from None
        if isinstance(answer, _Raised):
            raise WorkerLostError(answer.why)
        return answer


def _serve(
    pipe: Connection, arrays: ArrayData, resources: ResourceSpec, how: Mapping[str, Any]
) -> None:
    """Be a worker: answer the calls of a pipe until it is closed."""
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
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
