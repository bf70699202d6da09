"""Which executor runs the trials of a study, where the user has not said it."""

from pathlib import Path

import numpy as np

from nas_evidence.data import ArrayData
from nas_evidence.spec.study import StudySpec
from nas_evidence.workers.executor import Where

#: Families whose trials are short where rows are few.
_SMALL_FAMILIES = frozenset({"linear", "mlp"})
#: Most rows shown in a training, and most bytes of inputs, of a study without Ray.
MOST_SHOWN, MOST_BYTES = 400_000, 100_000_000
#: What Linux has where a GPU may be used, by its own driver or in a virtual machine of Windows.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def chosen_executor(spec: StudySpec, arrays: ArrayData, *, at_home: bool) -> tuple[Where, str]:
    """Return the executor of "auto", and why, for the user.

    Ray takes some seconds to start and stop; it pays on a cluster, with GPUs, for long trials, and
    for data of which each worker should not have a copy.

    Args:
        spec: the study, with its number of epochs.
        arrays: its data.
        at_home: no cluster is named, and the study is in a folder of this machine.
    """
    short = arrays.n_train * spec.plan.epochs <= MOST_SHOWN and set(spec.family) <= _SMALL_FAMILIES
    x = arrays.x_train
    small = isinstance(x, np.ndarray) and x.nbytes <= MOST_BYTES
    if at_home and short and small and not (spec.resources.gpus and _has_gpu()):
        return "local", "plain processes, since trials are short (--executor ray: a Ray cluster)"
    return "ray", "a Ray cluster"


def _has_gpu() -> bool:
    """Return whether there may be a GPU; torch, which knows, takes seconds to import."""
    return any(map(Path.exists, map(Path, _GPU_DEVICES)))
