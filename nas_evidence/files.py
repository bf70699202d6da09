"""Files that are there whole or not at all, also after a loss of power."""

import contextlib
import os
import uuid
from pathlib import Path


def write_whole(path: Path, content: bytes | memoryview | str) -> None:
    """Write a file so that its name has the old content or the new one, never a part.

    The content goes to a hidden name beside it and to the disk (fsync); then the file is renamed,
    and the folder synced, without which a loss of power could undo the rename. Text is UTF-8.

    Raises:
        OSError: if it cannot be written, as on a full disk; names it. The old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # of the file that was meant
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
