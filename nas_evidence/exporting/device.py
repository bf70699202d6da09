"""On which device the results of a trained trial are computed: the kind that it was trained on.

    trained on a GPU   on the GPU, if `resources.gpus` is not 0 and this process may use one with
                       enough free memory; else on the CPU, whose values are the same to rounding
    trained on a CPU   on the CPU, also where a GPU is: a study on CPUs is not changed by one

This holds for the posterior, the check of the evidence, the predictions of the report and the
importance of columns. They run in the process that asks for them, after the workers of a search
have ended. Nothing is forked from it: the server of `workers/fork_server.py`, the only code that
forks, is a program of its own, and imports torch without touching a GPU.

Weights that are trained again must be those of the first time to the bit, or they are not the
same network. So training again needs the same kind of device, and on a GPU a process of its own:
cuBLAS reads its setting once (`worker.make_reproducible`), and this process may have used it.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from nas_evidence.data import ArrayData
from nas_evidence.plumbing.parsing import parsed_json
from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.registry import CURVATURES
from nas_evidence.spec.study import Assignment, ResourceSpec
from nas_evidence.workers.shares import CONTEXT_BYTES
from nas_evidence.workers.trial import device_for
from nas_evidence.workers.worker import estimated_bytes

_LOG = logging.getLogger(__name__)
CPU = torch.device("cpu")
#: Kinds of curvature that the posterior may need; see `evidence/posterior.py`.
_OF_POSTERIOR = "kfac_ggn"
#: Bytes of Jacobians of predictions with uncertainty, held at once.
_JACOBIANS = 1 << 30
#: Seconds for workers that have just ended to give their memory back, and between two looks.
_PATIENCE, _BETWEEN = 4.0, 0.5

T = TypeVar("T")


def trained_on(row: Mapping[str, Any]) -> str:
    """Return the device of a trial as its row in `trials` has it, such as "cuda NVIDIA H100".

    >>> trained_on({"versions": '{"device": "cpu x86_64"}'})
    'cpu x86_64'
    """
    try:
        return str(parsed_json(row["versions"])["device"])
    except (KeyError, TypeError, ValueError):  # of an older study
        return "cpu"


def device_of(
    row: Mapping[str, Any], assignment: Assignment, arrays: ArrayData, resources: ResourceSpec
) -> torch.device:
    """Return the device for the results of a trial; see above.

    Args:
        row: of the trial in `trials`.
        assignment: of the trial.
        arrays: its data.
        resources: the study's `[resources]`.
    """
    if not trained_on(row).startswith("cuda"):
        return CPU
    device = device_for(resources.gpus)
    if device.type != "cuda":
        return CPU
    kinds = {_OF_POSTERIOR} | {*assignment.estimators} & {*CURVATURES}
    asked = assignment.model_copy(update={"estimators": tuple(sorted(kinds))})
    needed = estimated_bytes(asked, arrays) + CONTEXT_BYTES + _JACOBIANS
    tries = round(_PATIENCE / _BETWEEN)
    while (free := _free_bytes(device)) < needed and tries > 0:
        time.sleep(_BETWEEN)
        tries -= 1
    if free < needed:
        _LOG.warning("gpu_full free_bytes=%d needed_bytes=%d", free, needed)
        return CPU
    return device


def _free_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU; 0 where this process gets none, as if it were full."""
    try:
        return int(torch.cuda.mem_get_info(device)[0])
    except RuntimeError as error:  # another process has it for itself
        _LOG.warning("gpu_unavailable error=%s", error)
        return 0


def computed_on(device: torch.device, compute: Callable[[torch.device], T]) -> T:
    """Return what a function computes on a device, or on the CPU if the GPU fails or is full."""
    if device.type != "cuda":
        return compute(device)
    try:
        return compute(device)
    except (torch.OutOfMemoryError, torch.AcceleratorError) as error:
        _LOG.warning("gpu_failed error=%s; computing on the CPU", error)
    finally:
        _release()
    return compute(CPU)


def _release() -> None:
    """Give the memory that no tensor holds back to other processes."""
    try:
        torch.cuda.empty_cache()
    except RuntimeError as error:  # after an error of the GPU every call fails
        _LOG.warning("gpu_not_released error=%s", error)


def device_again(
    row: Mapping[str, Any], resources: ResourceSpec, *, kept: int | None
) -> torch.device:
    """Return the device to train a trial again on: of the kind that it was trained on.

    Args:
        row: of the trial in `trials`.
        resources: the study's `[resources]`.
        kept: the best trial whose weights are kept, None if there is none.

    Raises:
        ValueError: if that kind is not here.
    """
    then = trained_on(row)
    if not then.startswith("cuda"):
        return CPU
    device = device_for(resources.gpus)
    if device.type == "cuda":
        return device
    here = "torch finds no GPU here" if resources.gpus else "resources.gpus is 0"
    other = (
        ""
        if kept is None
        else f", or take a trial whose weights are kept: trial_id={kept} (--trial)"
    )
    raise UserError(
        "retraining-device",
        f"trial {int(row['trial_id'])} was trained on {then} and its weights are not here, but "
        f"{here}: another kind of device gives other weights. Run this on a machine with such a "
        f"GPU{other}.",
    )
