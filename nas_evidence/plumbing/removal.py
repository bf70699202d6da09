"""Files that this process removes, noted for whoever mirrors their folder.

A mirrored folder may lie where others clean up. A file that is not there any more was removed by
this process, or it vanished: only the first is to be removed from the mirror, too. So whatever
removes or moves a file of a study uses the functions here.
"""

import contextlib
import os
import shutil
from pathlib import Path, PurePosixPath

#: Names of what was removed, by the folder that is mirrored.
_NOTED: dict[str, set[str]] = {}


def noted_removals(folder: Path) -> set[str]:
    """Return a set that from now on gets what is removed below a folder, by relative name."""
    return _NOTED.setdefault(os.path.realpath(folder), set())


def forget_removals(folder: Path) -> None:
    """Note no more what is removed below a folder."""
    _NOTED.pop(os.path.realpath(folder), None)


def is_below(name: str, removed: set[str]) -> bool:
    """Return whether a file, or a folder that it was in, is among those removed.

    >>> is_below("export/code/own.py", {"export"}), is_below("models/1.safetensors", {"export"})
    (True, False)
    """
    path = PurePosixPath(name)
    return any(str(one) in removed for one in (path, *path.parents))


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    _note(path)
    path.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as possible."""
    _note(folder)
    shutil.rmtree(folder, ignore_errors=True)


def remove_empty(folder: Path) -> None:
    """Remove a folder, if it is empty and no link."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        _note(folder)


def move(path: Path, to: Path) -> None:
    """Rename a file or a folder."""
    _note(path)
    path.replace(to)


def _note(path: Path) -> None:
    if not _NOTED:
        return
    place = Path(os.path.realpath(path.parent), path.name)
    for folder, removed in _NOTED.items():
        if place.is_relative_to(folder):
            removed.add(place.relative_to(folder).as_posix())
