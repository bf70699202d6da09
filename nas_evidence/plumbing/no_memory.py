"""Whether an error means that memory is used up, or limited."""

import errno
import re

_MEMORY = re.compile(
    r"allocate memory|not enough memory|out of memory|failed to map segment|bad_alloc|"
    r"can't start new thread",
    re.IGNORECASE,
)


def is_memory_full(error: BaseException) -> bool:
    """Return whether an error means that memory is used up, or limited.

    torch raises a RuntimeError where the CPU has none left.

    >>> is_memory_full(RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"))
    True
    """
    no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or no_memory or bool(_MEMORY.search(str(error)))
