"""The command line of a source tree that is on the path and not installed."""

import json
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from commands import environment

import nas_evidence
from nas_evidence.storage.tables import read_table

ROOT = Path(nas_evidence.__file__).parents[1]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python with all libraries and no installation of the package, for its children too."""
    venv.create(tmp_path / "venv", symlinks=True)
    (libraries,) = tmp_path.glob("venv/lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "nas_evidence" not in entry.name:  # the package, its path file, its metadata
            (libraries / entry.name).symlink_to(entry)
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.long
def test_a_tree_that_is_only_on_the_path_searches_verifies_and_exports(
    bare: Path, tmp_path: Path
) -> None:
    def python(*arguments: str) -> str:
        done = subprocess.run(
            [bare, *arguments], cwd=tmp_path, env=environment() | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True,
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
