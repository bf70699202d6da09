"""What runs beside the data: one trial at a time, slice by slice, the same in any executor."""

import gc
import logging
import os
from pathlib import Path

import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.record import SliceReport, TrialRecord
from nas_evidence.spec import Assignment, ResourceSpec
from nas_evidence.trial import Trial, device_for


class Worker:
    """Holds the data on its device and at most one trial.

    It writes into attempt folders only; what counts as a result is decided and stored elsewhere.
    """

    def __init__(self, arrays: ArrayData, resources: ResourceSpec) -> None:
        torch.set_num_threads(resources.cpus)
        torch.backends.cudnn.benchmark = False
        self._data: TensorData = to_tensors(arrays, device_for(resources.gpus))
        self._trial: Trial | None = None

    def start(
        self, assignment: Assignment, folder: Path, resume_from: Path | None = None
    ) -> SliceReport:
        """Take up a trial, from the checkpoints of an earlier attempt if there are any."""
        self._trial = Trial.start(assignment, self._data, folder, resume_from=resume_from)
        return self._trial.report()

    def advance(self, until_epoch: int) -> SliceReport:
        """Train the current trial up to `until_epoch`."""
        assert self._trial is not None
        return self._trial.advance(until_epoch)

    def finish(self) -> TrialRecord:
        """End the current trial and forget it."""
        assert self._trial is not None
        record = self._trial.finish()
        self._trial = None
        gc.collect()  # a failed trial's traceback holds its tensors in a cycle
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return record


def log_to(folder: Path) -> None:
    """Send this process's log to a file of its own in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / f"worker-{os.getpid()}.log", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("nas_evidence")
    logger.addHandler(handler)
    logger.propagate = False
