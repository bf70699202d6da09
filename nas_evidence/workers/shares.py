"""Shares of one GPU: a trial gets 1, 1/2, ... or 1/32, the smallest that holds its memory.

    memory + CONTEXT_BYTES  <=  share * MEMORY_FRACTION * memory of the GPU

Powers of two always fill a GPU without a gap. Ray counts in steps of 1/10,000 and rounds down, so
that 32 workers of 1/32 find room and 33 do not. Neither Ray nor the GPU enforces the memory limit
of a share; the worker does (`torch.cuda.set_per_process_memory_fraction`). So a GPU is not split
into more shares than there are cores for workers: it would take memory away for nothing.
"""

#: Share classes, largest first.
SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
#: Fraction of its share that a worker may allocate; the rest covers what allocators do not count.
MEMORY_FRACTION = 0.95
#: What a process takes on a GPU before its first tensor: CUDA context and libraries.
CONTEXT_BYTES = 600 * 1024**2


def share_for(memory_bytes: int, gpu_memory_bytes: int, *, min_share: float = 0.0) -> float:
    """Return the smallest class that holds `memory_bytes` and is not below `min_share`.

    A trial too large for a whole GPU gets a whole one: the estimate may be wrong; if it is
    right, the trial's record says that memory ran out.

    >>> share_for(2 * 1024**3, 16 * 1024**3)
    0.25
    """
    usable = MEMORY_FRACTION * gpu_memory_bytes
    fitting = [
        share
        for share in SHARES
        if share >= min_share and memory_bytes + CONTEXT_BYTES <= share * usable
    ]
    return min(fitting, default=SHARES[0])


def finest_share(workers_per_gpu: float) -> float:
    """Return the smallest share worth giving where the cores carry so many workers per GPU.

    >>> [finest_share(n) for n in (0.5, 2, 6, 16, 100)]
    [1.0, 0.5, 0.125, 0.0625, 0.03125]
    """
    return max((share for share in SHARES if share * workers_per_gpu <= 1), default=SHARES[-1])
