"""Who may read a study folder may read its copy at `file://`, and nobody else."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import pytest

from nas_evidence.driver.mirror import Mirror
from nas_evidence.storage.faults import StoreError
from nas_evidence.storage.store import Store


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def rights(folder: Path, *names: str) -> list[str]:
    return [oct(S_IMODE((folder / name).stat().st_mode)) for name in names]


def private_data(folder: Path) -> Path:
    (folder / "data").mkdir(0o700, parents=True)
    path = folder / "data" / "train.parquet"
    path.touch(0o600)
    path.write_bytes(b"private")
    return path


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "open to all"])
def test_copies_of_data_at_a_file_uri_are_for_no_other_user(
    tmp_path: Path, is_there: bool
) -> None:
    there = tmp_path / "st"
    if is_there:
        there.mkdir(0o755)
    keeper = Mirror(f"file://{there}", tmp_path / "here" / "st")
    with keeper.held():
        private_data(keeper.folder)
        (keeper.folder / "trials").mkdir()
        (keeper.folder / "trials" / "x").touch()
    assert rights(tmp_path, "st") == ["0o755" if is_there else "0o700"]
    assert rights(there, "data", "data/train.parquet") == ["0o700", "0o600"]
    assert rights(there, "trials", "trials/x") == ["0o755", "0o644"]
    again = Mirror(f"file://{there}", tmp_path / "again" / "st")
    again.pull()
    assert rights(again.folder, "data/train.parquet") == ["0o600"]
    assert (again.folder / "data/train.parquet").read_bytes() == b"private"


def test_a_copy_that_was_open_to_all_is_closed_with_its_next_content(tmp_path: Path) -> None:
    path, there = private_data(tmp_path / "here"), tmp_path / "st" / "data"
    there.mkdir(parents=True)
    (there / "train.parquet").write_bytes(b"old")
    assert rights(there, "train.parquet") == ["0o644"]
    Store(f"file://{tmp_path}/st").upload({"data/train.parquet": path})
    assert rights(there, "train.parquet") == ["0o600"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(old: Path, new: Path) -> None:
        raise OSError(number, "not here", str(old), None, str(new))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match=f"{tmp_path}.* is on a file system without hard links"):
        Store(f"file://{tmp_path}/st").put("logs/events/000000.jsonl", b"1", if_absent=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
