"""Which executor runs the trials of a study and how many at once, where it is not said."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

from nas_evidence.plumbing.user_error import UserError
from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.executor import Where

#: Workers of `workers = "auto"` where it is not known how many there is room for.
FEW_WORKERS = 2
#: What Linux has where a GPU may be used, by its own driver or in a virtual machine of Windows.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def chosen_executor(resources: ResourceSpec, *, joins: bool) -> tuple[Where, str]:
    """Return the executor of "auto", and why, for the user.

    Ray shares out the nodes of a cluster, and the GPUs of a machine. On one machine without a GPU
    it would only take some seconds to start and stop.

    Args:
        resources: of the study.
        joins: whether a cluster is named.
    """
    if joins:
        return "ray", "in Ray actors on the cluster"
    if resources.gpus and gpu_device():
        return "ray", "in Ray actors, which share the GPUs"
    return "local", "in processes of this machine"


def n_workers(resources: ResourceSpec, executor: str | object, most: int) -> int | None:
    """Return how many trials run at once; None if as many as Ray finds room for.

    Args:
        resources: of the study.
        executor: that runs them, not "auto".
        most: the number of trials.
    """
    if executor == "inline":
        return 1
    if resources.workers != "auto":
        return min(resources.workers, most)
    return None if executor == "ray" else min(FEW_WORKERS, most)


def gpu_device() -> str:
    """Return the device file of a GPU, "" if none is here.

    Torch, which knows whether it can be used, takes seconds to import.
    """
    return next((path for path in _GPU_DEVICES if Path(path).exists()), "")


def gpus_are_hidden() -> bool:
    """Return whether this process was told to see no GPU."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")


def torch_is_for_cpus() -> bool:
    """Return whether the torch that is installed here can use no GPU; it is not imported."""
    found = find_spec("torch")
    try:
        text = Path(found.origin or "").with_name("version.py").read_text() if found else ""
    except OSError:
        return False
    return "cuda" in text and not re.search(r"^(cuda|hip|rocm)\b.*= '", text, re.M)


def no_gpu_here(share: float) -> UserError:
    """Return the error for a share of a GPU on a machine without one."""
    return UserError(
        "no-gpu-here",
        f"resources.gpus = {share:g}, but this machine has no GPU; set resources.gpus=0.",
    )


def unused_gpu(resources: ResourceSpec, executor: str | object) -> UserError | None:
    """Return what is to be said if trials in plain processes or in this one miss a GPU.

    `resources.gpus = 0` is an answer: then nothing is said. On Ray the workers tell.

    Args:
        resources: of the study.
        executor: that runs it.

    Raises:
        ValueError: a share of a GPU is asked for where there is none.
    """
    if executor not in ("local", "inline") or not resources.gpus or gpus_are_hidden():
        return None
    device = gpu_device()
    if not device:
        if resources.gpus != "auto":
            raise no_gpu_here(resources.gpus)
        return None
    if torch_is_for_cpus():
        return UserError(
            "torch-for-cpus",
            f"this machine has a GPU ({device}), but trials run on CPUs, since torch is built for "
            "CPUs; install torch for CUDA, or set resources.gpus=0.",
        )
    if executor == "local":
        return UserError(
            "gpu-not-for-processes",
            f"this machine has a GPU ({device}), but trials run on CPUs, since plain processes "
            "use none; take executor=ray, or set resources.gpus=0.",
        )
    return None


def gpu_not_counted(address: str, device: str, *, joined: bool) -> UserError:
    """Return what is to be said if Ray counts no GPU on a node that has one.

    Args:
        address: of the node.
        device: device file of its GPU.
        joined: whether the node is one of a cluster, or Ray was started here for this study.
    """
    ours = "`ray start --head --num-gpus=N` and add address=auto"
    how = "`ray start --num-gpus=N`" if joined else ours
    return UserError(
        "gpu-not-counted",
        f"the node at {address} has a GPU ({device}) that Ray does not count, so no trial can use "
        f"it; start Ray there with {how}, or set resources.gpus=0.",
    )


def gpu_not_found(device: str) -> UserError:
    """Return what is to be said if torch, which is built for GPUs, finds none."""
    return UserError(
        "gpu-not-found",
        f"this machine has a GPU ({device}), but trials run on CPUs, since torch finds none; "
        "check its driver with nvidia-smi, or set resources.gpus=0.",
    )
