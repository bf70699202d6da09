"""Processes that Ray starts in a working directory which it may remove at any time."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment

import nas_evidence

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
