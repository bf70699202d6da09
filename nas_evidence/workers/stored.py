"""A worker that stores its checkpoints behind a URI, so that any other can continue the trial.

It trains in a temporary folder. A checkpoint is stored before its slice is reported. A trial
resumes from the latest stored checkpoint of any attempt, since all attempts at a trial agree bit
by bit.
"""

import logging
import re
import shutil
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas_evidence.plumbing.removal import forget_removals, is_below, noted_removals
from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.storage.faults import StoreError
from nas_evidence.storage.store import Store
from nas_evidence.workers.executor import Launch, Verdict
from nas_evidence.workers.process import MakeWorker, made_worker

if TYPE_CHECKING:  # it imports numpy, and looking at a study this file
    from nas_evidence.data import ArrayData

_LOG = logging.getLogger(__name__)
_EPOCH = re.compile(r"epoch-(\d+)\.pt$")
#: Number of checkpoints to fetch: the second is used if the first cannot be read.
_N_FETCHED = 2


class StoredWorker:
    """Has the signature of `Worker`, preceded by the URI of the study.

    Args:
        uri: URI of the study.
        arrays: The data set.
        resources: The study's `[resources]`.
        gpu_share: Share of one GPU.
        make_worker: Makes the worker inside; `Worker` by default.
    """

    def __init__(
        self,
        uri: str,
        arrays: "ArrayData",
        resources: ResourceSpec,
        *,
        gpu_share: float = 1.0,
        make_worker: MakeWorker | None = None,
    ) -> None:
        self._store = Store(uri, in_use=True)
        self._worker = made_worker(make_worker, arrays, resources, gpu_share)
        self._attempt, self._stored = "", set[str]()
        self._removed: set[str] = set()  # by this process
        self._folder: Path | None = None  # while there is a trial

    def start(self, launch: Launch) -> SliceReport:
        """Start a trial from the latest stored checkpoint, if there is one."""
        self._forget()
        self._attempt, self._stored = attempt_name(launch.folder), set()
        here = self._folder = Path(tempfile.mkdtemp(prefix="nas-evidence-worker-"))
        self._removed = noted_removals(here)
        folder = here / self._attempt
        folder.mkdir(parents=True)
        home = self._attempt.rpartition("/")[0]
        earlier = self._store.list(home) if launch.assignment.attempt > 1 else {}
        names = [name for name in earlier if _EPOCH.search(name)]
        names = sorted(names, key=_epoch, reverse=True)[:_N_FETCHED]
        if not self._store.download({name: here / name for name in names}):
            raise StoreError(
                "checkpoint-vanished", f"a checkpoint below {home} vanished while it was fetched."
            )
        resume_from = (here / names[0]).parent if names else None
        report: SliceReport = self._worker.start(
            replace(launch, folder=folder, resume_from=resume_from)
        )
        return report

    def advance(self, until_epoch: int) -> SliceReport:
        """Train the current trial up to `until_epoch`; store a checkpoint that it wrote."""
        report: SliceReport = self._worker.advance(until_epoch)
        self._keep()
        return report

    def finish(self, verdict: Verdict | None = None) -> TrialRecord:
        """End the current trial, and store its weights."""
        record: TrialRecord = self._worker.finish(verdict)
        self._keep()
        self._keep_log()
        self._forget()
        return record

    def park(self) -> None:
        """Store a checkpoint of the current trial, and forget the trial."""
        try:
            self._worker.park()
            if self._folder is not None:
                self._keep()
        finally:
            self._forget()

    def close(self) -> None:
        """Forget the trial here, and close the worker inside."""
        self._forget()
        self._worker.close()

    @property
    def device(self) -> str:
        """Return what kind of device trains; "" if the worker inside does not say."""
        return str(getattr(self._worker, "device", ""))

    @property
    def must_go(self) -> str:
        """Return why this process must not run another trial, or ""."""
        return str(self._worker.must_go)

    def _keep(self) -> None:
        """Store the new files of the attempt, then remove those that training has removed here.

        A file that vanished, as by a cleaner of temporary files, stays stored.
        """
        began = time.monotonic()
        assert self._folder is not None
        folder, removed = self._folder / self._attempt, {*self._removed}
        files = {
            f"{self._attempt}/{path.name}": path
            for path in folder.iterdir()
            if not path.name.startswith(".")
        }
        new = {name: path for name, path in files.items() if name not in self._stored}
        self._store.upload(new)
        gone = {name for name in self._stored - files.keys() if is_below(name, removed)}
        self._store.delete(gone)
        self._stored -= gone
        self._removed -= removed
        self._stored |= files.keys()
        n_bytes = sum(path.stat().st_size for path in new.values())
        seconds = time.monotonic() - began
        _LOG.info("stored attempt=%s bytes=%d seconds=%.3f", self._attempt, n_bytes, seconds)

    def _keep_log(self) -> None:
        """Store the log of this process, if it has one: its machine may not last."""
        for handler in logging.getLogger("nas_evidence").handlers:
            path = Path(getattr(handler, "baseFilename", ""))
            if path.name.startswith("worker-") and path.exists():
                self._store.upload({f"logs/{path.stem}-{socket.gethostname()}.log": path})

    def _forget(self) -> None:
        if self._folder is not None:
            forget_removals(self._folder)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def attempt_name(folder: Path) -> str:
    """Return the name of an attempt's folder in the study: `checkpoints/000007/attempt-2`.

    >>> attempt_name(Path("/scratch/digits/checkpoints/000007/attempt-2"))
    'checkpoints/000007/attempt-2'
    """
    return "/".join(folder.parts[-3:])


def _epoch(name: str) -> int:
    found: Any = _EPOCH.search(name)
    return int(found.group(1))
