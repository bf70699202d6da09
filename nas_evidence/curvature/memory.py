"""Memory checks before use: an error with an estimate instead of a killed process."""

from collections.abc import Sequence
from pathlib import Path

import torch

from nas_evidence.plumbing.user_error import UserError

#: Square matrices in memory at once: the sum, its scaled copy, and the eigenvalue work space.
COPIES = 3


class DoesNotFitError(UserError, MemoryError):
    """A curvature needs more memory than is free."""


def require_memory(what: str, n_bytes: int, device: torch.device, *, instead: str) -> None:
    """Check that the memory is free.

    Raises:
        DoesNotFitError: if it is not; with the estimate, the free memory, and alternatives.
    """
    free = available_bytes(device)
    if n_bytes > free:
        raise DoesNotFitError(
            "memory-short",
            f"{what} needs about {n_bytes / 2**30:.3g} GiB, but {free / 2**30:.3g} GiB are free; "
            f"use {instead}",
        )


def squares(sizes: Sequence[int]) -> int:
    """Return the bytes of float64 square matrices and of the work space for the largest."""
    return 8 * (sum(size**2 for size in sizes) + COPIES * max(sizes) ** 2)


def available_bytes(device: torch.device) -> int:
    """Return the free bytes of a device: of the GPU, or of this machine or its container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    candidates = [1 << 62]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        candidates.append(int(fields["MemAvailable"].split()[0]) * 1024)
    limit, used = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        candidates.append(int(text) - int(used.read_text()))
    return min(candidates)
