"""The file SHA256SUMS of an export, in the format of `sha256sum -c`."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

NAME = "SHA256SUMS"


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of files of a folder."""
    lines = [f"{_sum(folder / name)}  {name}\n" for name in names]
    (folder / NAME).write_text("".join(lines), encoding="utf-8")


def wrong_sums(folder: Path, names: Iterable[str] | None = None) -> list[str]:
    """Return the files that are missing or do not match, all or of some names.

    Without a folder nothing is wrong.
    """
    path = folder / NAME
    if not path.is_file():
        return [NAME] if folder.is_dir() else []
    wanted = None if names is None else set(names)
    wrong = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        if wanted is None or name in wanted:
            file = folder / Path(name).name
            if not file.is_file() or _sum(file) != digest:
                wrong.append(name)
    return wrong


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
