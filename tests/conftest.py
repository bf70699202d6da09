"""Fixtures for all tests; one thread, so that sums have one order."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import pytest
import torch

torch.set_num_threads(1)

#: Files that take longest, beside those on Ray.
_LONG = (
    "test_cli", "test_audit", "test_service_machine", "test_crash_points", "test_scale",
    "test_proposer", "test_thermodynamic", "test_mirror", "test_notebooks", "test_export",
)  # fmt: skip

SHARED = Path(__file__).resolve().parents[2] / "shared"


@cache
def _on_ray(path: Path) -> bool:
    return "mark.ray" in path.read_text(encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first, so that two workers end at the same time."""
    rank = {name: i for i, name in enumerate(_LONG)}
    on_ray = {path: _on_ray(path) for path in {item.path for item in items}}
    items.sort(key=lambda item: -1 if on_ray[item.path] else rank.get(item.path.stem, len(_LONG)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give a file to one worker, and all files with tests on Ray to the same one.

    Two clusters that start at once hold each other up past Ray's own limits.
    """
    from xdist.scheduler import LoadFileScheduling

    class RayTogether(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "ray" if _on_ray(config.rootpath / file) else file

    return RayTogether(config, log)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data, golden values and published tables that lie beside some checkouts."""
    if not SHARED.is_dir():
        pytest.skip("the folder of reference data is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def require_service() -> Callable[[str, bool], None]:
    """Called with a service's name and whether it is there; without it the test skips, or fails.

    It fails where NAS_REQUIRE_SERVICES=1: `.ci/run` sets that once it has installed them.
    """

    def require(name: str, present: bool) -> None:
        if not present and os.environ.get("NAS_REQUIRE_SERVICES") == "1":
            pytest.fail(f"{name} must be installed with NAS_REQUIRE_SERVICES=1")
        if not present:
            pytest.skip(f"{name} is not installed here")

    return require


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
