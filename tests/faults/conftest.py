"""A finished study of small networks, trained once for the tests of this room."""

import shutil
from pathlib import Path

import pytest
from commands import TINY, write_study
from faulty import quiet_call


@pytest.hookimpl(tryfirst=True)  # before marks are chosen by
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the study as slow."""
    for item in items:
        if "finished_study" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five real trials, the last by a second run, with report and export; their data beside it."""
    home = tmp_path_factory.mktemp("finished")
    path = write_study(home, TINY.replace('name = "random"', 'name = "posterior"'))
    more = ("--trials", 5, "--set", "budget.wall_seconds=5000.0")
    assert quiet_call("search", path, "--out", home / "s", "--executor", "inline") == 0
    assert quiet_call("resume", home / "s", *more, "--executor", "inline") == 0
    return home / "s"


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of the same data with another seed."""
    home = tmp_path_factory.mktemp("other")
    how = ("--executor", "inline", "--trials", 3, "--seed", 5)
    assert quiet_call("search", write_study(home), "--out", home / "s", *how) == 0
    return home / "s"


@pytest.fixture
def folder(finished_study: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_study, tmp_path / "s"))
