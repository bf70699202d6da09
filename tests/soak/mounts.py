"""File systems of other kinds, mounted from an image in a mount namespace of this thread.

What is mounted there is seen by nobody else, and goes with the namespace, also when the process is
killed.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNS = 0x20000
#: How an image is made, and mounted.
KINDS = {
    # Inodes of 128 bytes have room for whole seconds only.
    "ext4 with times in seconds": (("mkfs.ext4", "-q", "-I", "128"), ("mount", "-o", "loop")),
    # Names that differ in case are one name; times in steps of two seconds; no hard links.
    "exFAT": (("mkfs.exfat",), ("mount.exfat-fuse",)),
}
_MEGABYTES = 300


def why_not(kind: str) -> str:
    """Return why an image of a kind cannot be mounted here; "" if it can."""
    (make, *_), (mount, *_) = KINDS[kind]
    if os.geteuid() != 0:
        return "only root may mount"
    lacking = [name for name in (make, mount, "losetup") if shutil.which(name) is None]
    return f"{', '.join(lacking)} is not installed" if lacking else ""


@contextlib.contextmanager
def mounted(kind: str, home: Path) -> Iterator[Path]:
    """Mount an empty file system of a kind below a folder; give where it is."""
    image, place = home / "image", home / "mounted"
    make, mount = KINDS[kind]
    place.mkdir(parents=True, exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(_MEGABYTES << 20)
    _run(*make, str(image))
    before = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    libc, here = ctypes.CDLL(None, use_errno=True), Path.cwd()
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    loop = ""
    try:
        _run("mount", "--make-rprivate", "/")
        loop = _run("losetup", "-f", "--show", str(image)).strip()
        _run(*(word for word in mount if word not in ("-o", "loop")), loop, str(place))
        yield place
    finally:
        _run("umount", "--lazy", str(place), check=False)
        if loop:
            _run("losetup", "-d", loop, check=False)
        libc.setns(before, _CLONE_NEWNS)
        os.close(before)
        os.chdir(here)
        image.unlink()


def _run(*command: str, check: bool = True) -> str:
    """Run a command to its end; return what it prints."""
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout
