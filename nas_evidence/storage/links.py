"""A study is never followed out of its folder: links out of it are refused by name.

What is written through a link lands elsewhere, what is read through one comes from elsewhere, and
what is removed through one was never of the study.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from nas_evidence.plumbing.user_error import UserError


def refuse_links(folder: Path, place: str | None = None) -> None:
    """Refuse a folder with a link out of it or to nothing, or with what is no file and no folder.

    Who reads a pipe waits for ever.

    Args:
        folder: of a study, or of a store.
        place: what the user calls it; by default its path.

    Raises:
        ValueError: names the link, and where it leads, or the other thing.
    """
    home, place = Path(os.path.realpath(folder)), place or str(folder)
    for entry in _neither_file_nor_folder(home):
        name = Path(entry.path).relative_to(home)
        if not os.path.lexists(entry.path):  # a driver has removed it
            continue
        if not entry.is_symlink():
            raise UserError(
                "not-file-or-folder",
                f"{place}/{name} is neither a file nor a folder, but a pipe, a socket or a "
                "device; remove it.",
            )
        target = Path(os.path.realpath(entry.path))  # `resolve` raises for a circle
        inside = target.is_relative_to(home)
        if not inside or not os.path.exists(entry.path):
            where = "where nothing is" if inside else "outside of the study"
            raise UserError(
                "link-outside",
                f"{place}/{name} is a link to {target}, {where}; put what it leads to in its "
                "place, or remove it.",
            )


def link_on_the_way(root: Path, name: str) -> str | None:
    """Return the first part of a name below a folder that is a link; None if there is none."""
    here = ""
    for part in name.split("/"):
        here = f"{here}/{part}" if here else part
        if os.path.islink(root / here):
            return here
    return None


def _neither_file_nor_folder(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Yield the links below a folder, and what is neither a file nor a folder; follow no link."""
    try:
        with os.scandir(folder) as entries:
            below = sorted(entries, key=lambda entry: entry.name)
    except OSError:  # a driver has removed it; or nobody may read it
        return
    for entry in below:
        if entry.is_dir(follow_symlinks=False):
            yield from _neither_file_nor_folder(entry.path)
        elif not entry.is_file(follow_symlinks=False):
            yield entry
