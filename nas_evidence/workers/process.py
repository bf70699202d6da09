"""A worker in its own process, and that process's health. Needs neither ray nor torch."""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas_evidence.plumbing.masking import LogFormatter
from nas_evidence.plumbing.own_modules import Code
from nas_evidence.spec.registry import import_outside
from nas_evidence.spec.study import ResourceSpec

if TYPE_CHECKING:  # it imports numpy, and looking at a study this file
    from nas_evidence.data import ArrayData

#: Has the signature of `Worker`: arrays, resources, and by keyword the share of a GPU.
MakeWorker = Callable[..., Any]


def made_worker(
    make: MakeWorker | None, arrays: Any, resources: ResourceSpec, gpu_share: float
) -> Any:
    """Return what `make` makes, by default a `Worker`, which imports torch."""
    if make is None:
        from nas_evidence.workers.worker import Worker

        make = Worker
    return make(arrays, resources, gpu_share=gpu_share)


@dataclass(frozen=True)
class Answer:
    """The result of a call: the event, if any, and the state of the process.

    seconds         time that the call took
    resident_bytes  memory of the process
    must_go         why the process must not run another trial, or ""
    device          what kind of device trains; "" if the worker does not say
    """

    event: Any
    seconds: float
    resident_bytes: int
    must_go: str
    device: str = ""


@dataclass
class WorkerProcess:
    """Calls a worker, which is made for the first call; each answer has the state of the process.

    arrays       returns the data set
    resources    the study's `[resources]`
    share        of one GPU
    logs         folder for the log of this process
    make_worker  has the signature of `Worker`, the default
    """

    arrays: "Callable[[], ArrayData]"
    resources: ResourceSpec
    share: float
    logs: Path
    make_worker: MakeWorker | None
    _worker: Any = None

    def call(self, method: str | None, *arguments: Any) -> Answer:
        """Call a method of the worker, or none."""
        if self._worker is None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
            log_to(self.logs)
            arrays = self.arrays()
            self._worker = made_worker(self.make_worker, arrays, self.resources, self.share)
        began = time.monotonic()
        event = getattr(self._worker, method)(*arguments) if method else None
        seconds = time.monotonic() - began
        device = getattr(self._worker, "device", "")
        return Answer(event, seconds, _resident_bytes(), self._worker.must_go, device)


def worker_with_code(
    code: Code,
    names: Sequence[str],
    make_worker: MakeWorker | None,
    arrays: "ArrayData",
    resources: ResourceSpec,
    *,
    gpu_share: float,
) -> Any:
    """Return a worker in a process that can import code from outside the package.

    Args:
        code: of the study.
        names: references `module:NAME` to import from it.
        make_worker: has the signature of `Worker`, the default; gets the other arguments.
        arrays: the data set.
        resources: the study's `[resources]`.
        gpu_share: share of one GPU.
    """
    code.use()
    import_outside(names)
    return made_worker(make_worker, arrays, resources, gpu_share)


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 where it is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def log_to(folder: Path) -> None:
    """Send this process's log to its own file in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / f"worker-{os.getpid()}.log", delay=True)
    handler.setFormatter(LogFormatter())
    logger = logging.getLogger("nas_evidence")
    logger.addHandler(handler)
    logger.propagate = False
