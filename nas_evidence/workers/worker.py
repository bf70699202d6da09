"""The worker: trains one trial at a time, slice by slice, the same in any executor."""

import gc
import math
import os

import numpy as np
import torch

from nas_evidence.data import ArrayData
from nas_evidence.data.tensors import TensorData, to_tensors
from nas_evidence.spec.divisions import parts_trained_on
from nas_evidence.spec.record import SliceReport, TrialRecord
from nas_evidence.spec.study import Assignment, ResourceSpec
from nas_evidence.training.cost import cost_of
from nas_evidence.training.together import MOST_TOGETHER
from nas_evidence.workers.executor import Launch, Verdict
from nas_evidence.workers.shares import MEMORY_FRACTION
from nas_evidence.workers.trial import Trial, device_for


class Worker:
    """Holds the data on its device and at most one trial.

    It writes into attempt folders only; what counts as a result is decided and stored elsewhere.

    Args:
        arrays: The data set.
        resources: The study's `[resources]`; decides the threads and whether to use a GPU.
        gpu_share: Share of one GPU; allocations beyond it fail, as if the GPU had no more memory.
    """

    def __init__(
        self, arrays: ArrayData, resources: ResourceSpec, *, gpu_share: float = 1.0
    ) -> None:
        torch.set_num_threads(resources.cpus)
        device = device_for(resources.gpus)
        make_reproducible(device)
        self._gpu_share = gpu_share if device.type == "cuda" else 0.0
        if 0 < self._gpu_share < 1:
            torch.cuda.set_per_process_memory_fraction(self._gpu_share * MEMORY_FRACTION)
        self._data: TensorData = to_tensors(arrays, device)
        self._trial: Trial | None = None
        self._froze = not gc.get_freeze_count()
        if self._froze:  # a collection takes 0.3 s with all of torch to look at
            gc.freeze()
        self._device_is_sick = False

    def start(self, launch: Launch) -> SliceReport:
        """Start a trial, from the checkpoints of an earlier attempt if there are any."""
        self._trial = Trial.start(
            launch.assignment,
            self._data,
            launch.folder,
            resume_from=launch.resume_from,
            gpu_share=self._gpu_share,
        )
        return self._trial.report()

    def advance(self, until_epoch: int) -> SliceReport:
        """Train the current trial up to `until_epoch`."""
        assert self._trial is not None
        return self._trial.advance(until_epoch)

    def finish(self, verdict: Verdict | None = None) -> TrialRecord:
        """End the current trial, with the verdict's status if there is one, and forget it."""
        assert self._trial is not None
        if verdict is None:
            record = self._trial.finish()
        else:
            record = self._trial.finish(verdict.status, verdict.cause)
        self._device_is_sick = bool(self._gpu_share) and not _gpu_answers()
        self._forget()
        return record

    def park(self) -> None:
        """Write a checkpoint of the current trial, and forget the trial.

        Raises:
            OSError: if the checkpoint cannot be written.
        """
        try:
            if self._trial is not None:
                self._trial.save()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._trial = None
        gc.collect()  # tensors of a trial are in cycles, of its hooks or of a traceback
        if self._gpu_share and not self._device_is_sick:
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Forget the current trial, and leave no mark on a process that goes on."""
        self._forget()
        if self._froze:
            gc.unfreeze()
            self._froze = False

    @property
    def device(self) -> str:
        """Return what kind of device trains: "cpu" or "cuda"."""
        return self._data.x_train.device.type

    @property
    def must_go(self) -> str:
        """Return why this process must not run another trial, or ""."""
        return "a CUDA error" if self._device_is_sick else ""


def make_reproducible(device: torch.device) -> None:
    """Choose kernels by which a GPU gives the same bits for the same trial; a CPU needs none.

    Without it cuBLAS may split sums differently between two runs, and cuDNN choose another kernel.
    Call it before the first product: cuBLAS reads its setting once.

    What holds rests on torch's two lists (docstring of `torch.use_deterministic_algorithms`):

    - No operator of a trial of our own families, with its folds and Laplace scores, is on the list
      of those without a deterministic CUDA kernel; `tests/workers/test_deterministic_operators.py`
      records them. An own family may call one, say the gradient of `nn.AdaptiveAvgPool2d`: it runs
      with a warning, and its trials may differ in the last bits.
    - These are on the list of those that this setting makes deterministic: convolutions, `cumsum`,
      `index_add`, `scatter`, `scatter_add`, assignment by index, and gradients of `gather`,
      `index_select` and embeddings. torch 2.11 has a deterministic `cumsum` too, but its docstring
      still has it on the other list.
    - The gradient of `max_pool2d` is on neither list: its CUDA kernel has a thread for each input.
      `bincount` without a deterministic kernel is that with weights; it is used on CPUs alone.
    - `eigvalsh`, `cholesky` and `segment_reduce` are on neither list. cuSOLVER is deterministic in
      its default mode; `segment_reduce` sums a segment in one block of threads, in a fixed order.

    Bits are those of one kind of GPU, one version of torch and CUDA, one share of the GPU (where
    the work space of an algorithm does not fit, cuDNN takes another), and one group of networks
    trained side by side. Another GPU, a CPU, or MIG slices of another size round differently.
    """
    torch.backends.cudnn.benchmark = False
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing here reads memory that it has not written; filling it is a launch for each tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _gpu_answers() -> bool:
    """Return whether this process may use its GPU: after a CUDA error every later call fails."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def estimated_bytes(assignment: Assignment, arrays: ArrayData) -> int:
    """Return the memory in bytes of a trial and its data on a GPU; of rows of a file none.

    It is asked for on machines without a GPU, too: a share is decided where the driver is.

    Beside the data, each network of a group of folds has the rows that it learns from, each
    training a sample of its rows for updates, and the rows of a fold are taken to be predicted.
    """
    plan, estimators = assignment.plan, assignment.estimators
    shape, n_outputs = arrays.input_shape, plan.head_width(arrays.n_outputs)
    n_data = len(arrays.x_train)
    cost = cost_of(
        assignment.architecture, shape, n_outputs, plan, estimators, n_data, device="cuda"
    )  # fmt: skip
    numbers = sum(x.size for x in (arrays.x_train, arrays.x_test) if isinstance(x, np.ndarray))
    if isinstance(arrays.x_train, np.ndarray):
        parts = parts_trained_on(plan, estimators, n_data)[:MOST_TOGETHER]
        rows = n_data * (sum(parts) + (1 - min(parts) if parts else 0.0))
        trained_on = (n_data, *(n_data * part for part in parts))
        samples = [(n, plan.update_rows(int(n))) for n in trained_on]
        rows += sum(sample for n, sample in samples if n > sample)
        numbers += math.ceil(rows) * math.prod(shape)
    return cost.memory_bytes + 4 * numbers  # float32
