"""Which executor runs the trials of a study, where the user has not said it."""

from pathlib import Path

from nas_evidence.spec.study import ResourceSpec
from nas_evidence.workers.executor import Where

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
        return "ray", "Ray actors on the cluster"
    if resources.gpus and _has_gpu():
        return "ray", "Ray actors, which share the GPUs"
    return "local", "plain processes (--executor ray: Ray actors)"


def _has_gpu() -> bool:
    """Return whether there may be a GPU; torch, which knows, takes seconds to import."""
    return any(map(Path.exists, map(Path, _GPU_DEVICES)))
