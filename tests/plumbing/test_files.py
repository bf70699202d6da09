"""A file is written whole or not at all and survives a loss of power; mounts; what is unpacked."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment

import nas_evidence
from nas_evidence.plumbing.files import write_whole
from nas_evidence.plumbing.mounts import is_shared


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


# --- processes that Ray starts in a working directory which it may remove at any time


DRIVER = """
import shutil, sys
sys.argv = ["nas-evidence", "--version"]
from nas_evidence.__main__ import main
try:
    main()
except SystemExit:
    shutil.rmtree(sys.path[-1])
    from nas_evidence.storage import log
    print(open("study.toml").read(), log.__file__)
"""

WORKER = """
import os, shutil, tempfile
from nas_evidence.plumbing.unpacked import leave_unpacked
shutil.rmtree(os.getcwd())
leave_unpacked(with_files=False)
assert os.getcwd() == os.path.realpath(tempfile.gettempdir())
"""


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    return tmp_path / "working_dir_files" / "_ray_pkg_0"


def ran(code: str, folder: Path, **more: str) -> str:
    command = [sys.executable, "-P", "-c", code]
    ended = subprocess.run(
        command, cwd=folder, env=environment(**more), text=True, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_a_job_goes_on_with_what_was_sent_when_its_folder_is_removed(
    tmp_path: Path, unpacked: Path
) -> None:
    shutil.copytree(nas_evidence.__path__[0], unpacked / "nas_evidence")
    (unpacked / "study.toml").write_text("sent")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    code = f"import sys; sys.path.append({str(unpacked)!r})\n{DRIVER}"
    said = ran(code, unpacked, PYTHONPATH=str(unpacked), TMPDIR=str(temporary))
    assert not unpacked.exists()
    assert f"sent {temporary}/nas-evidence-job-" in said
    assert not list(temporary.iterdir())


def test_a_worker_whose_folder_was_removed_goes_to_one_that_stays(unpacked: Path) -> None:
    unpacked.mkdir(parents=True)
    ran(WORKER, unpacked)


def test_a_command_in_a_folder_that_was_removed_writes_nowhere_else(tmp_path: Path) -> None:
    code = "import os; os.rmdir(os.getcwd()); from nas_evidence.__main__ import run; run()"
    gone, command = tmp_path / "gone", [sys.executable, "-P", "-c", code, "--version"]
    for more, said in (
        ({}, (2, "error: the current folder was removed; go to another one (`cd`), and run the "
              "same command again\n")),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}, (0, "")),
    ):  # fmt: skip
        gone.mkdir()
        given = {"cwd": gone, "env": environment(**more), "text": True, "capture_output": True}
        ended = subprocess.run(command, **given)
        assert (ended.returncode, ended.stderr) == said


def test_any_other_folder_is_stayed_in(tmp_path: Path) -> None:
    code = (
        "import os; from nas_evidence.plumbing.unpacked import leave_unpacked; "
        "print(leave_unpacked(with_files=True), os.getcwd())"
    )
    assert ran(code, tmp_path) == f"None {tmp_path.resolve()}\n"
