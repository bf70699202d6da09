"""Trials in plain processes of one machine without a GPU, which need no cluster.

A worker is a fork of one process that has imported torch, with one end of a pipe. It ends when the
pipe is closed, when this process dies, or when it is killed; a call that raises ends it too, and
the pool replaces it.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from nas_evidence.data import ArrayData
from nas_evidence.spec.record import LossKind
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.executor import loss_of
from nas_evidence.workers.fork_server import ForkServer
from nas_evidence.workers.out_of_memory import REMEDY, n_killed
from nas_evidence.workers.pool import START_TIMEOUT, Failed, Limits, Place, Pool, Seat
from nas_evidence.workers.process import Answer, MakeWorker, WorkerProcess

_LOG = logging.getLogger(__name__)


class LocalExecutor(Pool):
    """A pool of processes on the CPUs of this machine.

    Args:
        arrays: The data set; each worker gets a copy, unless it is in a memory-mapped file.
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
        resources = resources.model_copy(update={"gpus": 0})
        super().__init__(resources, share=0.0, limits=Limits(idle=inf))
        self._forks = ForkServer(logs, resources.cpus) if forks is None else forks
        self._owns_forks = forks is None
        how = {"share": 0.0, "logs": logs, "make_worker": make_worker}
        self._given = (arrays, resources, how)
        self._n_killed = n_killed()  # for want of memory
        self._refill()

    def close(self) -> None:
        """Stop the workers; running trials keep their checkpoints."""
        self.let_park()
        if self._owns_forks:
            self._forks.close()
        super().close()

    def _begin(self, share: float, avoids: frozenset[str]) -> Seat:
        worker = Seat(self._forks.begin(_serve, *self._given), share, node="this machine")
        # Its first answer means that torch is imported and the data are there.
        self._call(worker, None, timeout=START_TIMEOUT)
        return worker

    def _end(self, worker: Seat) -> None:
        worker.actor.end()

    def _ask(self, worker: Seat, method: str | None, *arguments: Any) -> Any:
        with suppress(OSError):
            worker.actor.pipe.send((method, arguments))
        return worker.actor.pipe

    def _wait(
        self, workers: Sequence[Seat], timeout: float
    ) -> list[tuple[Seat, Answer | Place | Failed]]:
        ready = wait([worker.call for worker in workers], timeout)
        return [
            (worker, self._received(worker.call)) for worker in workers if worker.call in ready
        ]

    def _received(self, pipe: Connection) -> Answer | Failed:
        try:
            answer: Answer | Failed = pipe.recv()
        except (EOFError, OSError):
            if n_killed() > self._n_killed:
                self._n_killed += 1  # it explains one crash
                return Failed(REMEDY, LossKind.MEMORY)
            return Failed("the worker process crashed")
        return answer


def _serve(
    pipe: Connection, arrays: ArrayData, resources: ResourceSpec, how: Mapping[str, Any]
) -> None:
    """Be a worker: answer the calls of a pipe until it is closed."""
    with suppress(BrokenPipeError, ConnectionResetError):
        try:
            process = WorkerProcess(lambda: arrays, resources, **how)
            while True:
                method, arguments = pipe.recv()
                pipe.send(process.call(method, *arguments))
        except EOFError:
            return  # no more calls
        except Exception as error:
            _LOG.exception("call_failed")
            pipe.send(Failed(*loss_of(error)))
