"""How much of a large temporary array is formed at a time, by device.

A sum over data is computed a part at a time. On a CPU a part should stay in the cache, and each
kernel has its own bound, which was timed there. A GPU gains nothing from small parts, and each
costs it a launch for every operator: so one bound in bytes, on all devices but CPUs.

`ON_A_GPU` holds the patches of 128 images in one part for every convolution of the published
grid: at most 48 channels, 3x3 kernels and 32x32 positions, 226 MB in float32. A kernel has two
such arrays at most, what it reads and what it writes.
"""

import torch

#: Bytes of a temporary array on a GPU.
ON_A_GPU = 1 << 28


def elements_at_once(on_cpu: int, device: torch.device, dtype: torch.dtype = torch.float32) -> int:
    """Return the most elements of a temporary array that are formed at a time.

    Args:
        on_cpu: the bound of this kernel on a CPU.
        device: where the array is.
        dtype: of the array.

    >>> elements_at_once(1 << 20, torch.device("cpu"))
    1048576
    >>> elements_at_once(1 << 20, torch.device("cuda")) == 1 << 26
    True
    """
    return on_cpu if device.type == "cpu" else ON_A_GPU // dtype.itemsize
