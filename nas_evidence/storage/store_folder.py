"""A folder as a store: files that are there completely or not at all, with the rights they had."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from nas_evidence.plumbing.files import hidden_beside
from nas_evidence.storage.faults import StoreError


class StoreFolder(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Local files, each of which is there completely or not at all; links are not followed."""

    def find(self, path: str, **_: Any) -> dict[str, dict[str, Any]]:
        """Return the files below a folder, each with what tells it from another version."""
        found: dict[str, dict[str, Any]] = {}
        for place, _folders, files in os.walk(path):
            for name in files:
                with contextlib.suppress(FileNotFoundError):  # a driver has removed it
                    facts = self.info(f"{place}/{name}")
                    # A time in whole seconds does not tell a file from the one that replaced it.
                    facts["ETag"] = f"{facts['mtime']}-{facts['ino']}"
                    found[f"{place}/{name}"] = facts
        return found

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a file; with the mode "create" only if there is none."""
        with self._whole(Path(path), create=mode == "create") as temporary:
            temporary.write_bytes(value)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Copy a file; it and the folders made for it have the rights of those it comes from."""
        _make_like(Path(rpath).parent, Path(lpath).parent)
        with self._whole(Path(rpath)) as temporary:
            _copy_like(Path(lpath), temporary)

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        """Copy a file to here, with its rights: data of a study stay private."""
        _make_like(Path(lpath).parent, Path(rpath).parent)
        _copy_like(Path(rpath), Path(lpath))

    @contextlib.contextmanager
    def _whole(self, path: Path, *, create: bool = False) -> Iterator[Path]:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = hidden_beside(path)
        try:
            yield temporary
            if create:
                _link(temporary, path)  # which never replaces
            else:
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise StoreError(
            "store-without-hard-links",
            f"{target.parent} is on a file system without hard links, such as FAT and exFAT, so "
            "two drivers at file:// could not be told apart; give the path of the folder without "
            "file:// if only this machine works there, or a store elsewhere.",
        ) from None


def _copy_like(source: Path, target: Path) -> None:
    """Copy a file; at no moment may anybody read the copy who may not read the original."""
    mode = source.stat().st_mode & 0o777
    target.unlink(missing_ok=True)  # it may have other rights
    with (
        source.open("rb") as old,
        open(target, "xb", opener=lambda name, how: os.open(name, how, mode | 0o200)) as new,
    ):
        shutil.copyfileobj(old, new, 1 << 20)


def _make_like(folder: Path, pattern: Path) -> None:
    """Make a folder, and those above it, each with the rights of the one of the same name."""
    if folder.is_dir():
        return
    if folder.parent.name == pattern.parent.name:
        _make_like(folder.parent, pattern.parent)
    mode = pattern.stat().st_mode & 0o777 if folder.name == pattern.name else 0o777
    folder.mkdir(mode, parents=True, exist_ok=True)
