"""Folders that are written whole, and replace only what was written in the same way.

A folder is made beside its place and renamed, so that it is there whole or not at all. What the
same verb has written is on a list in the folder, SHA256SUMS. Whatever else is there stays.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from nas_evidence.plumbing.files import hidden_beside, hidden_stem
from nas_evidence.plumbing.removal import move, remove
from nas_evidence.plumbing.sums import NAME, listed, wrong_sums
from nas_evidence.plumbing.user_error import UserError


def files_in(folder: Path) -> list[str]:
    """Return the files below a folder, but for what Python keeps of code that it has read.

    A link counts as a file, whatever it leads to.
    """
    every = sorted(folder.rglob("*")) if folder.is_dir() else []
    return [
        path.relative_to(folder).as_posix()
        for path in every
        if (path.is_symlink() or not path.is_dir()) and path.parent.name != "__pycache__"
    ]


def written_here(folder: Path, wanted: Collection[str]) -> set[str]:
    """Return the files of a folder that are on its list and as they were written.

    Args:
        folder: that may have a list.
        wanted: what the list must name; without it, it is somebody else's list.
    """
    names = listed(folder)
    if not names or not names.issuperset(wanted):
        return set()
    return names - set(wrong_sums(folder)) | {NAME}


def check_output(
    to: Path, foreign: Sequence[str], *, verb: str, force: bool, own: Sequence[str] = ()
) -> None:
    """Check that a folder may be written into.

    Args:
        to: the folder.
        foreign: what is in it that the verb has not written.
        verb: that writes.
        force: whether files with the names of its own may be replaced. Other files stay.
        own: folders of the output that must hold nothing else.

    Raises:
        ValueError: it may not.
    """
    if to.exists() and not to.is_dir():
        raise UserError("output-is-a-file", f"{to} is a file; name another folder.")
    mixed = [name for name in foreign if name.partition("/")[0] in own]
    if mixed:
        raise UserError(
            "output-held-for-good",
            f"{to} holds {mixed[0]}, which {verb} has not written; name another folder.",
        )
    if foreign and not force:
        raise UserError(
            "output-held",
            f"{to} holds {foreign[0]}, which {verb} has not written; name another folder, or add "
            "`force`, which replaces files of the same names and leaves the others.",
        )


@contextlib.contextmanager
def written_whole(to: Path, ours: Callable[[Path], set[str]]) -> Iterator[Path]:
    """Give a folder to write into; at the end it is put in place.

    Files in the place that are not ours stay, unless new ones have their names.

    Args:
        to: the place.
        ours: which files of a folder the same verb has written.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    place = to.resolve()
    _clear_leftovers(place)
    made = hidden_beside(place)
    before = made.with_name(f"{made.name}.before")
    made.mkdir()
    with _held(made):
        try:
            yield made
            if set(files_in(place)) - ours(place):
                _merge(made, place, ours(place))
                return
            if place.exists():
                move(place, before)
            made.replace(place)
            shutil.rmtree(before, ignore_errors=True)
        except OSError as error:
            if error.filename is None or str(error.filename).startswith(str(made)):
                raise OSError(error.errno, error.strerror or str(error), str(to)) from error
            raise
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _merge(made: Path, place: Path, old: Collection[str]) -> None:
    """Move all files into a folder that holds others; its list comes last."""
    names = files_in(made)
    for name in old:
        if name not in names:
            remove(place / name)
    for name in sorted(names, key=lambda name: name == NAME):
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.parent.resolve().is_relative_to(place):
            raise UserError(
                "output-through-link",
                f"{target.parent} is a link to another folder; name another place.",
            )
        (made / name).replace(target)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Lock a folder, where its file system has locks; tell whether nobody else has it."""
    handle, free = os.open(folder, os.O_RDONLY), False
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free
    finally:
        os.close(handle)


def _clear_leftovers(place: Path) -> None:
    """Remove what a killed process has left beside its place; put what was there before back."""
    ours = re.compile(re.escape(f"{hidden_stem(place)}.") + r"[0-9a-f]{32}(\.before)?")
    for left in sorted(path for path in place.parent.iterdir() if ours.fullmatch(path.name)):
        old = left.suffix == ".before"
        with contextlib.suppress(OSError), _held(left) as free:  # another may be clearing, too
            if not free or (old and left.with_suffix("").exists()):  # an export goes on
                continue
            if old and not place.exists():
                left.replace(place)
            else:
                shutil.rmtree(left, ignore_errors=True)
