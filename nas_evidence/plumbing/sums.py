"""The file SHA256SUMS of a folder, in the format of `sha256sum -c`.

A file that is wanted but not listed counts as wrong, and so does all of a folder without the list.
A list that names a file elsewhere is damaged.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.names import stays_inside

NAME = "SHA256SUMS"


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of files of a folder, named relative to it."""
    lines = [f"{_sum(folder / name)}  {name}\n" for name in names]
    write_whole(folder / NAME, "".join(lines))


def listed(folder: Path) -> set[str]:
    """Return the names on the list of a folder, which may not be there."""
    return {name for name in _digests(folder) if stays_inside(name)}


def _digests(folder: Path) -> dict[str, str]:
    path = folder / NAME
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def wrong_sums(folder: Path, names: Iterable[str] = ()) -> list[str]:
    """Return the files that are missing, not listed, or not as they were written.

    Args:
        folder: with the list.
        names: of the files that are wanted; by default those that are listed.
    """
    if not (folder / NAME).is_file():
        return [NAME]
    digests = _digests(folder)
    if not all(map(stays_inside, digests)):  # nobody who writes a list names what is elsewhere
        return [NAME]
    wanted = tuple(names) or tuple(digests)
    return [name for name in wanted if not _is_sound(folder, name, digests.get(name))]


def _is_sound(folder: Path, name: str, digest: str | None) -> bool:
    path = folder / name
    inside = path.resolve().is_relative_to(folder.resolve())
    return inside and path.is_file() and _sum(path) == digest


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
