"""The command line of a source tree that is on the path and not installed."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from commands import environment

import nas_evidence
from nas_evidence.storage.tables import read_table

ROOT = Path(nas_evidence.__file__).parents[1]


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a process with -S: all libraries, no installation of the package."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "nas_evidence" not in entry.name:  # the package, its path file, its metadata
            (libraries / entry.name).symlink_to(entry)
    return environment() | {"PYTHONPATH": f"{ROOT}{os.pathsep}{libraries}"}


@pytest.mark.long
def test_a_tree_that_is_only_on_the_path_searches_verifies_and_exports(
    bare: dict[str, str], tmp_path: Path
) -> None:
    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=tmp_path, env=bare, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    asks = "from importlib.metadata import packages_distributions as p; print(*p())"
    assert "torch" in (packages := python("-c", asks).split())
    assert "nas_evidence" not in packages
    assert nas_evidence.__version__ in python("-m", "nas_evidence", "--version")
    options = ("--trials", "2", "--preset", "quick", "--executor", "local", "--out", "study")
    assert "export: " in python("-m", "nas_evidence", "search", "digits", *options)
    python("-m", "nas_evidence", "verify", "study")
    trials = read_table(tmp_path / "study", "trials")
    assert set(trials["status"]) == {"complete"}
    assert {json.loads(found)["nas-evidence"] for found in trials["versions"]} == {"source"}
