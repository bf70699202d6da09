"""Atomic file writes that survive a power failure."""

import contextlib
import errno
import os
import uuid
from pathlib import Path


def write_whole(path: Path, content: bytes | memoryview | str, *, private: bool = False) -> None:
    """Write a file atomically: it has either its old content or the new one.

    The content is written to a hidden file beside it and synced (fsync); then the file is renamed
    and the folder synced, else a power failure could undo the rename. Text is UTF-8. A `private`
    file can be read by its owner only, or by nobody if the umask says so.

    Raises:
        OSError: if it cannot be written, as on a full disk; names the file. The old file stays.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        mode = 0o600 if private else 0o666
        with open(temporary, "wb", opener=lambda name, how: os.open(name, how, mode)) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # name the target file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk, where its file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network and FUSE file systems
            raise
    finally:
        os.close(handle)
