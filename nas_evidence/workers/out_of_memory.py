"""Processes that the kernel has ended for want of memory, counted.

Such a process is ended by SIGKILL and cannot say a word. The kernel counts them for each control
group, and for the machine.
"""

import re
from pathlib import Path

_GROUP = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")
#: Where a control group has its count: of version 2, whose line begins with "0::", and of 1.
_COUNTS = (
    (r"^0::(/.*)$", "/sys/fs/cgroup", "memory.events"),
    (r"^\d+:memory:(/.*)$", "/sys/fs/cgroup/memory", "memory.oom_control"),
)
#: What is said of a worker that was ended so.
REMEDY = (
    "the kernel ended the worker process for want of memory; free some, raise the limit of this "
    "container or job, or take fewer workers"
)


def n_killed() -> int:
    """Return how many processes of this one's control group, else of this machine, ended so.

    The count is 0 where the kernel does not tell.
    """
    groups = _text(_GROUP)
    for pattern, root, name in _COUNTS:
        if group := re.search(pattern, groups, re.MULTILINE):
            for place in (f"{root}{group[1]}", root):  # a container may see its own as the root
                if (n := _count(_text(Path(place) / name))) is not None:
                    return n
    return _count(_text(_MACHINE)) or 0


def _count(text: str) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
