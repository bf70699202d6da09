"""Atomic file writes that survive a power failure."""

import contextlib
import errno
import hashlib
import os
import uuid
from pathlib import Path

#: Bytes of the longest name that hidden ones beside it repeat.
_LONG = 180


def hidden_beside(path: Path) -> Path:
    """Return where to write what is to get the name of `path`: a hidden name in its folder.

    A file system takes names of 255 bytes at most: a long one is named by its checksum.
    """
    return path.with_name(f"{hidden_stem(path)}.{uuid.uuid4().hex}")


def hidden_stem(path: Path) -> str:
    """Return what the hidden names beside `path` begin with."""
    name = os.fsencode(path.name)
    if len(name) <= _LONG:
        return f".{path.name}"
    return f".{hashlib.blake2b(name, digest_size=16).hexdigest()}"


def write_whole(path: Path, content: bytes | memoryview | str, *, private: bool = False) -> None:
    """Write a file atomically: it has either its old content or the new one.

    The content is written to a hidden file beside it and synced (fsync); then the file is renamed
    and the folder synced, else a power failure could undo the rename. Text is UTF-8. A `private`
    file can be read by its owner only, or by nobody if the umask says so.

    Raises:
        OSError: if it cannot be written, as on a full disk; names the file. The old file stays.
    """
    temporary = hidden_beside(path)
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
