import os
from pathlib import Path

import pytest

from nas_evidence.plumbing.mounts import is_shared


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        *((kind, True) for kind in ("nfs4", "nfs", "fuse.sshfs", "fuse", "cifs", "9p", "lustre")),
        *((kind, False) for kind in ("ext4", "overlay", "tmpfs", "fuseblk", "fusectl", "zfs")),
    ],
)
def test_a_folder_of_a_network_or_of_a_program_is_shared(
    tmp_path: Path, kind: str, shared: bool
) -> None:
    device = tmp_path.stat().st_dev
    here = f"{os.major(device)}:{os.minor(device)}"
    (tmp_path / "mounts").write_text(
        "21 1 0:99 / /proc rw,nosuid shared:5 - proc proc rw\n"
        f"36 21 {here} / /a\\040b rw,noatime - {kind} host:/export rw\n"
    )
    assert is_shared(tmp_path, tmp_path / "mounts") == shared


def test_what_is_not_known_counts_as_a_disk_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("")
    assert not is_shared(tmp_path, tmp_path / "mounts")
    assert not is_shared(tmp_path, tmp_path / "none")
