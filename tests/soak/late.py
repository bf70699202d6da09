"""A folder that shows what others did late, as NFS does: `python -m soak.late BACK PLACE SECONDS`.

It needs Linux, root, libfuse and the package mfusepy, which is no dependency of the project.
Each host mounts one with a cache of its own. As on NFS with its attribute cache

    attributes, and that a name is absent, are remembered for SECONDS, and so is a listing
    opening a file asks again for its attributes, so that its content is that of this moment
    what this host changed is seen by it at once
    creating a file only if it is absent is decided where the file is
    a lock (`flock`) is seen by this host alone
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

try:
    import mfusepy as fuse
except ImportError:  # `why_not` says so
    fuse = None

_FACTS = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size")
_TIMES = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")


def why_not() -> str:
    """Return why no such folder can be mounted here, "" if one can."""
    if fuse is None:
        return "a folder with late news needs libfuse and the package mfusepy"
    return "" if os.path.exists("/dev/fuse") else "this machine has no /dev/fuse"


def mount(back: str, place: str, seconds: float) -> None:
    """Show the folder `back` at `place` until it is unmounted; late by up to some seconds."""

    def there(path: str) -> str:
        return back + path

    seen: dict[str, tuple[float, dict[str, int] | OSError]] = {}
    lists: dict[str, tuple[float, list[str]]] = {}

    def changed(*paths: str) -> None:
        for path in paths:
            seen.pop(path, None)
            lists.pop(os.path.dirname(path), None)
            seen.pop(os.path.dirname(path), None)

    def changing(act: Callable[..., Any]) -> Callable[..., Any]:
        def do(self: object, path: str, *rest: Any) -> Any:
            try:
                return act(there(path), *rest)
            finally:
                changed(path)

        return do

    class Late(fuse.Operations):  # type: ignore[misc, name-defined]
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            at, known = seen.get(path, (0.0, None))
            if known is None or time.monotonic() > at + seconds:
                try:
                    # An open file that was removed has no name any more.
                    facts = os.lstat(there(path)) if fh is None else os.fstat(fh)
                    known = {name: getattr(facts, name) for name in _FACTS}
                    known |= {name.removesuffix("_ns"): getattr(facts, name) for name in _TIMES}
                except OSError as error:
                    known = error
                seen[path] = time.monotonic(), known
            if isinstance(known, OSError):
                raise known
            return known

        def readdir(self, path: str, fh: int) -> list[str]:
            at, names = lists.get(path, (0.0, []))
            if not names or time.monotonic() > at + seconds:
                names = [".", "..", *os.listdir(there(path))]
                lists[path] = time.monotonic(), names
            return names

        def open(self, path: str, flags: int) -> int:
            seen.pop(path, None)
            return os.open(there(path), flags)

        def create(self, path: str, mode: int, flags: int) -> int:
            try:
                return os.open(there(path), flags | os.O_CREAT, mode)
            finally:
                changed(path)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            seen.pop(path, None)
            return os.pwrite(fh, data, offset)

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            return 0

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            seen.pop(path, None)
            os.truncate(there(path), length)
            return 0

        def rename(self, old: str, new: str) -> int:
            os.rename(there(old), there(new))
            for known in (seen, lists):
                for path in [one for one in known if one.startswith((old + "/", new + "/"))]:
                    del known[path]
            changed(old, new)
            return 0

        def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
            seen.pop(path, None)
            os.utime(there(path), ns=times)
            return 0

        def link(self, target: str, source: str) -> int:
            os.link(there(source), there(target))
            changed(target)
            return 0

        def symlink(self, path: str, target: str) -> int:
            os.symlink(target, there(path))
            changed(path)
            return 0

        def readlink(self, path: str) -> str:
            return os.readlink(there(path))

        def statfs(self, path: str) -> dict[str, int]:
            facts = os.statvfs(there(path))
            names = ("bavail", "bfree", "blocks", "bsize", "frsize", "files", "ffree", "namemax")
            return {f"f_{name}": getattr(facts, f"f_{name}") for name in names}

        unlink = changing(os.unlink)
        mkdir = changing(os.mkdir)
        rmdir = changing(os.rmdir)
        chmod = changing(os.chmod)
        chown = changing(os.chown)

    nothing = {"entry_timeout": 0, "attr_timeout": 0, "negative_timeout": 0, "ac_attr_timeout": 0}
    with contextlib.suppress(KeyboardInterrupt):
        fuse.FUSE(Late(), place, foreground=True, **nothing)


if __name__ == "__main__":
    mount(sys.argv[1], sys.argv[2], float(sys.argv[3]))
