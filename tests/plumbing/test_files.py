"""A file is written whole or not at all, and its rename survives a loss of power."""

import errno
import os
from pathlib import Path

import pytest

from nas_evidence.plumbing.files import write_whole


@pytest.mark.parametrize("content", [b"new", memoryview(b"new"), "new"])
def test_a_file_is_replaced_and_nothing_else_is_left(
    tmp_path: Path, content: bytes | memoryview | str
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old, and longer")
    write_whole(path, content)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_disk_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a.json", []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_whole(path, b"new")
    (file, renamed_before), folder = synced
    assert Path(file).parent == tmp_path
    assert not renamed_before
    assert folder == (str(tmp_path), True)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
