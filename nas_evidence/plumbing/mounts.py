"""The file system of a folder: a disk of this machine, or one that machines share."""

import os
import re
from pathlib import Path

#: File systems of which one machine can have several mounts that see no locks of each other.
#: Those of programs (FUSE) are among them: buckets, sshfs, and most network drives of containers.
_SHARED = re.compile(
    r"fuse(?!blk|ctl).*|nfs\d*|cifs|smb\d*|9p|virtiofs|ceph|lustre|gpfs|beegfs|afs|orangefs|panfs"
)
_MOUNTS = Path("/proc/self/mountinfo")


def is_shared(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """Return whether others may use a folder through another mount; False where not known.

    Args:
        folder: which is there.
        mounts: file with the mounts of this process, as `proc_pid_mountinfo(5)` describes it.
    """
    try:
        device, lines = os.stat(folder).st_dev, mounts.read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        facts, _, kind = line.partition(" - ")
        if facts.split()[2:3] == [number]:
            return bool(_SHARED.fullmatch(kind.partition(" ")[0]))
    return False
